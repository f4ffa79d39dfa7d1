//! One or more applications of every op, small and with extents that do not divide evenly.

mod gradients;

use crate::random::Random;
use planc_ir::ops::Op;
use planc_ir::ops::arg_pool::ArgPool;
use planc_ir::ops::arg_reduce::ArgReduce;
use planc_ir::ops::attention::Attention;
use planc_ir::ops::bit_cast::BitCast;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::conv::Conv;
use planc_ir::ops::conv_transpose::ConvTranspose;
use planc_ir::ops::cum_prod::CumProd;
use planc_ir::ops::cum_prod_grad::CumProdGrad;
use planc_ir::ops::cumsum::CumSum;
use planc_ir::ops::det::Det;
use planc_ir::ops::det_grad::DetGrad;
use planc_ir::ops::dft::Dft;
use planc_ir::ops::einsum::Einsum;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::fill::Fill;
use planc_ir::ops::frames::Frames;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::gather_elements::GatherElements;
use planc_ir::ops::gather_grad::GatherGrad;
use planc_ir::ops::gather_nd::GatherNd;
use planc_ir::ops::gather_nd_grad::GatherNdGrad;
use planc_ir::ops::grid_sample::{GridSample, Outside, Sampling, Unit};
use planc_ir::ops::grid_sample_grad::GridSampleGrad;
use planc_ir::ops::grid_sample_grid_grad::GridSampleGridGrad;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::ops::linear_recurrence::LinearRecurrence;
use planc_ir::ops::linear_recurrence_grad::LinearRecurrenceGrad;
use planc_ir::ops::lrn::Lrn;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::matmul_grad::MatMulGrad;
use planc_ir::ops::mixture_of_experts::MixtureOfExperts;
use planc_ir::ops::mixture_of_experts_grad::MixtureOfExpertsGrad;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::ops::pad::Pad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::range::{Range, Scalar};
use planc_ir::ops::recurrence::{Activation, Cell, Recurrence};
use planc_ir::ops::recurrence_grad::RecurrenceGrad;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::resize::{Axis, Filter, Place, Resize, Rounding};
use planc_ir::ops::resize_grad::ResizeGrad;
use planc_ir::ops::reverse_sequence::ReverseSequence;
use planc_ir::ops::roi_align::RoiAlign;
use planc_ir::ops::roi_align_grad::RoiAlignGrad;
use planc_ir::ops::rotary_embedding::RotaryEmbedding;
use planc_ir::ops::scatter::Update;
use planc_ir::ops::scatter_elements::ScatterElements;
use planc_ir::ops::scatter_nd::ScatterNd;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::tf_idf::TfIdf;
use planc_ir::ops::top_k::TopK;
use planc_ir::ops::transpose::Transpose;
use planc_ir::ops::trilu::Trilu;
use planc_ir::ops::uniform::Uniform;
use planc_ir::program::kernel::PadMode;
use planc_ir::program::{PoolKind, Window};
use planc_ir::scalar::{Gate, ScalarFn, Slope};
use planc_ir::sharding::ReduceKind;
use planc_ir::{DType, Tensor, TensorType};

/// An op with inputs that it accepts.
pub struct Sample {
    pub op: Op,
    pub inputs: Vec<Tensor>,
}

/// A tensor of random numbers.
pub fn random_tensor(random: &mut Random, shape: &[u64]) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F64, shape), |_| random.next()).unwrap()
}

fn window(strides: &[u64], dilations: &[u64], before: &[u64], after: &[u64]) -> Window {
    Window {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        before: before.to_vec(),
        after: after.to_vec(),
    }
}

fn ints(shape: &[u64], values: &[i64]) -> Tensor {
    Tensor::new(shape, values.to_vec()).unwrap()
}

/// The samples.
pub fn all() -> Vec<Sample> {
    let mut random = Random(1);
    let mut samples = Vec::new();
    let mut add = |op: Op, inputs: Vec<Tensor>| samples.push(Sample { op, inputs });
    let mut x = |shape: &[u64]| random_tensor(&mut random, shape);

    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let a = if trans_a { x(&[2, 6, 5]) } else { x(&[2, 5, 6]) };
        let b = if trans_b { x(&[7, 6]) } else { x(&[6, 7]) };
        add(MatMul { trans_a, trans_b }.into(), vec![a, b]);
    }
    let plain = MatMul { trans_a: false, trans_b: false };
    add(plain.clone().into(), vec![x(&[3, 1, 2, 4]), x(&[1, 5, 4, 3])]);
    add(plain.into(), vec![x(&[3, 2, 4]), x(&[3, 4, 1])]);

    add(MatMulGrad {}.into(), vec![x(&[2, 3, 5]), x(&[2, 3, 4])]);
    add(MatMulGrad {}.into(), vec![x(&[6, 4]), x(&[6, 5])]);

    let map = |f| Op::from(Map { f });
    add(map(ScalarFn::Add), vec![x(&[3, 5]), x(&[5])]);
    add(map(ScalarFn::Sub), vec![x(&[3, 1]), x(&[3, 5])]);
    add(map(ScalarFn::Mul), vec![x(&[2, 3, 1]), x(&[4])]);
    add(map(ScalarFn::Div), vec![x(&[7]), x(&[7])]);
    add(map(ScalarFn::Neg), vec![x(&[4, 3])]);
    add(map(ScalarFn::Gelu), vec![x(&[6, 2])]);
    add(map(ScalarFn::Gated(Gate::Silu)), vec![x(&[6, 2]), x(&[6, 2])]);
    add(map(ScalarFn::Slope(Slope::Gelu)), vec![x(&[6, 1]), x(&[6, 2])]);
    add(map(ScalarFn::Less), vec![x(&[3, 2]), x(&[])]);
    let mask = Tensor::vector(vec![true, false, true, true, false]);
    add(map(ScalarFn::Where), vec![mask, x(&[3, 5]), x(&[1])]);
    add(map(ScalarFn::Clip), vec![x(&[3, 5]), x(&[]), x(&[])]);
    add(map(ScalarFn::Cast(DType::I32)), vec![x(&[5])]);

    let qkv = |heads, kv_heads| [[2, heads, 5, 3], [2, kv_heads, 7, 3], [2, kv_heads, 7, 4]];
    let causal = Attention { causal: Some(2), ..Attention::plain(0.5) };
    for (op, shapes, mask) in [
        (Attention::plain(0.5), qkv(3, 3), None),
        (Attention { softcap: Some(0.5), ..causal.clone() }, qkv(4, 2), None),
        (causal, qkv(6, 1), Some(vec![2, 1, 1, 7])),
        (Attention::plain(1.0), qkv(4, 2), Some(vec![4, 5, 7])),
    ] {
        let mut inputs: Vec<Tensor> = shapes.iter().map(|s| x(s)).collect();
        inputs.extend(mask.map(|m| x(&m)));
        add(op.into(), inputs);
    }
    let seen = Tensor::new([5, 7], (0..35).map(|i| i % 3 > 0 && i > 6).collect()).unwrap();
    let blind = Attention { zero_unseeing: true, ..Attention::plain(1.0) };
    let mut inputs: Vec<Tensor> = qkv(2, 2).iter().map(|s| x(s)).collect();
    inputs.push(seen);
    add(blind.into(), inputs);
    let gated = ScalarFn::Gated(Gate::Silu);
    for (f, fused, trans_in, trans_out) in [
        (gated, true, true, true),
        (gated, true, false, false),
        (gated, false, true, false),
        (ScalarFn::Relu, false, false, true),
    ] {
        let layer = match (fused, trans_in) {
            (true, true) => vec![5, 2, 6, 3],
            (true, false) => vec![5, 3, 2, 6],
            (false, true) => vec![5, 6, 3],
            (false, false) => vec![5, 3, 6],
        };
        let chosen = [0, 4, 3, -1, 2, 2, 1, 0, 4, 3, 0, 1];
        let mut inputs = vec![x(&[2, 3, 3]), ints(&[2, 3, 2], &chosen), x(&[2, 3, 2]), x(&layer)];
        if f.arity() == 2 && !fused {
            inputs.push(x(&layer));
        }
        inputs.push(if trans_out { x(&[5, 4, 6]) } else { x(&[5, 6, 4]) });
        let layer = MixtureOfExperts { experts: 5, f, fused, trans_in, trans_out };
        let with_gradient = [&[x(&[2, 3, 4])], &inputs[..]].concat();
        add(layer.clone().into(), inputs);
        for experts in [false, true] {
            let layer = layer.clone();
            add(MixtureOfExpertsGrad { layer, experts }.into(), with_gradient.clone());
        }
    }
    for interleaved in [false, true] {
        for angles in [vec![5, 6], vec![2, 1, 5, 3]] {
            let inputs = vec![x(&[2, 3, 5, 6]), x(&angles), x(&angles)];
            add(RotaryEmbedding { interleaved }.into(), inputs);
        }
    }
    for channels in [1, 2, 6] {
        let inputs = vec![x(&[3, 6, 2, 5]), x(&[6]), x(&[6])];
        add(GroupNorm { channels, epsilon: 1e-5 }.into(), inputs);
    }

    add(Fill { dtype: DType::F64, shape: vec![5, 3], value: 0.5 }.into(), vec![]);
    let range = |dtype, start, limit, delta| Range { dtype, start, limit, delta };
    let [start, limit, delta] = [9, -6, -4].map(Scalar::Int);
    add(range(DType::I32, start, limit, delta).into(), vec![]);
    let [start, limit, delta] = [0.5, 2.0, 0.375].map(Scalar::Float);
    add(range(DType::F64, start, limit, delta).into(), vec![]);
    add(Expand { shape: vec![2, 4, 5] }.into(), vec![x(&[4, 1])]);

    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
        for keep in [true, false] {
            add(Reduce { kind, axes: vec![0, 2], keep }.into(), vec![x(&[5, 2, 3])]);
        }
    }
    add(Reduce { kind: ReduceKind::Sum, axes: vec![], keep: true }.into(), vec![x(&[5, 2])]);
    let whole = ints(&[5], &[3, -1, 4, 1, -5]);
    add(Reduce { kind: ReduceKind::Max, axes: vec![0], keep: true }.into(), vec![whole]);

    add(Softmax { axis: 1, log: false }.into(), vec![x(&[2, 5, 3])]);
    add(Softmax { axis: 0, log: true }.into(), vec![x(&[5, 3])]);
    let inner = || vec![3, 4];
    for rms in [false, true] {
        let norm = Normalize { axis: 1, epsilon: 1e-5, rms };
        let mut inputs = vec![x(&[5, 3, 4]), x(&inner())];
        if !rms {
            inputs.push(x(&inner()));
        }
        add(norm.into(), inputs);
    }
    add(Lrn { size: 3, alpha: 0.5, beta: 0.75, bias: 1.0 }.into(), vec![x(&[2, 5, 3])]);

    let w = window(&[2, 1], &[1, 2], &[1, 0], &[0, 2]);
    for groups in [1, 2, 4] {
        let conv = Conv { window: w.clone(), groups };
        let inputs = vec![x(&[3, 4, 5, 6]), x(&[8, 4 / groups, 3, 2])];
        add(conv.into(), inputs);
    }
    let line = window(&[1], &[1], &[1], &[1]);
    add(Conv { window: line, groups: 3 }.into(), vec![x(&[2, 9, 4]), x(&[6, 3, 3])]);
    for kind in [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding] {
        let window = window(&[2, 2], &[1, 1], &[1, 0], &[0, 1]);
        let pool = Pool { kind, extents: vec![3, 2], window, ceil: true };
        add(pool.into(), vec![x(&[2, 5, 5, 4])]);
    }

    for (from, to) in [
        (vec![6, 4], vec![2, 3, 4]),
        (vec![2, 3, 4], vec![6, 4]),
        (vec![2, 3, 8], vec![2, 3, 2, 4]),
        (vec![5, 6], vec![5, 3, 2]),
        (vec![6, 4], vec![4, 6]),
        (vec![1, 7, 1], vec![7]),
        (vec![7, 3], vec![21]),
    ] {
        add(Reshape { shape: to }.into(), vec![x(&from)]);
    }
    add(Transpose { perm: vec![2, 0, 1] }.into(), vec![x(&[5, 2, 3])]);
    add(Concat { axis: 1 }.into(), vec![x(&[5, 2]), x(&[5, 3]), x(&[5, 1])]);
    let cut = |start, step, extent| Some(Cut { start, step, extent });
    let cuts = vec![cut(1, 1, 2), None, cut(4, -2, 3)];
    add(Slice { cuts }.into(), vec![x(&[4, 3, 5])]);
    for mode in [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        for value in [0.0, 2.5] {
            let pad = Pad { before: vec![1, 0, -1], after: vec![2, 0, 1], mode, value };
            add(pad.into(), vec![x(&[3, 5, 4])]);
        }
    }

    let rows = ints(&[2, 2], &[0, -1, 6, 3]);
    add(Gather { axis: 0 }.into(), vec![x(&[7, 3]), rows]);
    let rows = ints(&[3], &[4, 1, -5]);
    add(Gather { axis: 1 }.into(), vec![x(&[2, 5, 3]), rows]);
    let table = Tensor::vector(vec![true, false, true]);
    add(Gather { axis: 0 }.into(), vec![table, ints(&[5], &[2, 2, 0, 1, -1])]);
    let at = ints(&[2, 3, 1], &[0, 3, -1, 2, 2, 1]);
    add(GatherNd { batch_dims: 1 }.into(), vec![x(&[2, 4, 5]), at]);
    let at = ints(&[5, 2], &[0, 1, 2, -1, 1, 0, 0, 0, -3, 3]);
    add(GatherNd { batch_dims: 0 }.into(), vec![x(&[3, 4, 5]), at]);

    for (exclusive, reverse) in [(false, false), (true, true)] {
        add(CumSum { axis: 1, exclusive, reverse }.into(), vec![x(&[5, 4])]);
    }
    for (exclusive, reverse) in [(false, true), (true, false)] {
        add(CumProd { axis: 1, exclusive, reverse }.into(), vec![x(&[5, 4])]);
    }
    add(BitCast { to: DType::I64 }.into(), vec![x(&[5, 3])]);
    add(Det {}.into(), vec![x(&[5, 3, 3])]);
    let pool = vec![(vec![1], 2), (vec![2, 1], 0), (vec![1, 1], 2)];
    let grams = TfIdf { pool, lengths: (1, 2), max_skip: 1, once: false, weights: None };
    let tokens = ints(&[3, 4], &[1, 2, 1, 1, 2, 2, 1, 0, 1, 1, 1, 2]);
    add(grams.clone().into(), vec![tokens]);
    let weights = Some(vec![0.5, 1.0, -2.0]);
    add(TfIdf { once: true, weights, ..grams }.into(), vec![ints(&[4], &[2, 2, 1, 1])]);
    for (decays, corrects) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut operands =
            vec![x(&[3, 2, 2, 4, 2]), x(&[3, 2, 4, 2]), x(&[3, 2, 4, 5]), x(&[3, 2, 2, 5])];
        operands.extend(decays.then(|| x(&[3, 2, 4, 2])));
        operands.extend(corrects.then(|| x(&[3, 2, 4])));
        let op = LinearRecurrence { decays, corrects };
        add(op.clone().into(), operands.clone());
        operands.extend([x(&[3, 2, 2, 4, 5]), x(&[3, 2, 2, 5])]);
        add(LinearRecurrenceGrad { of: op }.into(), operands);
    }
    add(Trilu { upper: true, k: 1 }.into(), vec![x(&[5, 3, 4])]);
    add(Trilu { upper: false, k: 0 }.into(), vec![x(&[4, 3])]);
    add(TopK { axis: 1, k: 2, largest: true }.into(), vec![x(&[3, 5, 2])]);
    add(TopK { axis: 0, k: 3, largest: false }.into(), vec![x(&[3, 5])]);
    for keep in [true, false] {
        let arg = ArgReduce { axis: 1, largest: keep, keep, last: false };
        add(arg.into(), vec![x(&[5, 3, 2])]);
    }
    let at = ints(&[5, 2], &[0, 3, -1, 2, 2, 1, 0, 0, 3, -4]);
    add(GatherElements { axis: 1 }.into(), vec![x(&[5, 4]), at.clone()]);
    add(GatherElements { axis: 1 }.into(), vec![x(&[6, 4]), at.clone()]);
    for update in [Update::Set, Update::Add, Update::Mul, Update::Max, Update::Min] {
        let inputs = vec![x(&[5, 4]), at.clone(), x(&[5, 2])];
        add(ScatterElements { axis: 1, update }.into(), inputs);
        let at = ints(&[3, 1], &[1, -1, 1]);
        add(ScatterNd { update }.into(), vec![x(&[3, 5]), at, x(&[3, 5])]);
    }
    for (inputs, output, shapes) in [
        (vec!["bij", "jk"], "kbi", vec![vec![2, 3, 5], vec![5, 4]]),
        (vec!["ab", "ac", "ad"], "bd", vec![vec![5, 2], vec![5, 3], vec![5, 4]]),
        (vec!["bii"], "bi", vec![vec![3, 4, 4]]),
        (vec!["ij", "ij"], "i", vec![vec![3, 5], vec![1, 5]]),
    ] {
        let inputs = inputs.into_iter().map(String::from).collect();
        let op = Einsum { inputs, output: output.to_string() };
        add(op.into(), shapes.iter().map(|s| x(s)).collect());
    }
    gradients(&mut add, &mut x);
    vision(&mut add, &mut x);
    sequences(&mut add, &mut x);
    gradients::add(&mut add, &mut x);
    optimizers(&mut add, &mut x);
    samples
}

type Add<'a> = &'a mut dyn FnMut(Op, Vec<Tensor>);
type RandomOf<'a> = &'a mut dyn FnMut(&[u64]) -> Tensor;

fn gradients(add: Add<'_>, x: RandomOf<'_>) {
    let rows = ints(&[2, 2], &[6, -1, 6, 3]);
    add(GatherGrad { axis: 0, extent: 7 }.into(), vec![rows, x(&[2, 2, 3])]);
    let rows = ints(&[5], &[4, 1, -5, 1, 2]);
    add(GatherGrad { axis: 1, extent: 5 }.into(), vec![rows, x(&[2, 5, 3])]);
    add(GatherGrad { axis: 1, extent: 4 }.into(), vec![ints(&[], &[-3]), x(&[5])]);
    let at = ints(&[2, 3, 1], &[0, 3, -1, 2, 2, 1]);
    add(GatherNdGrad { batch_dims: 1, indexed: vec![4] }.into(), vec![at, x(&[2, 3, 5])]);
    let at = ints(&[5, 2], &[0, 1, 2, -1, 1, 0, 0, 1, -3, 3]);
    add(GatherNdGrad { batch_dims: 0, indexed: vec![3, 4] }.into(), vec![at, x(&[5, 5])]);
    add(DetGrad {}.into(), vec![x(&[5, 3, 3]), x(&[5])]);
    for (exclusive, reverse) in [(false, true), (true, false)] {
        let inputs = vec![x(&[5, 4]), x(&[5, 4])];
        add(CumProdGrad { axis: 1, exclusive, reverse }.into(), inputs);
    }
}

fn vision(add: Add<'_>, x: RandomOf<'_>) {
    let w = window(&[2, 3], &[1, 2], &[1, 0], &[0, 1]);
    for groups in [1, 2, 4] {
        let conv = ConvTranspose { window: w.clone(), extra: vec![1, 0] };
        add(conv.into(), vec![x(&[3, 4, 3, 2]), x(&[groups, 4 / groups, 5, 3, 2])]);
    }
    for column_major in [false, true] {
        let window = window(&[2, 2], &[1, 1], &[1, 0], &[0, 1]);
        let pool = Pool { kind: PoolKind::Max, extents: vec![3, 2], window, ceil: true };
        add(ArgPool { pool, column_major }.into(), vec![x(&[2, 5, 5, 4])]);
    }
    for (filter, place) in [
        (Filter::Nearest(Rounding::RoundPreferFloor), Place::HalfPixel),
        (Filter::Linear, Place::AlignCorners),
        (Filter::Cubic { a: -0.75 }, Place::Crop),
    ] {
        let axis = |axis, extent, n: f64| {
            let (length, scale) = (extent as f64, extent as f64 / n);
            Axis { axis, extent, scale, length, start: -0.25, end: 0.75 }
        };
        let axes = vec![axis(1, 7, 4.0), axis(3, 2, 5.0)];
        let resize =
            Resize { axes, filter, place, antialias: true, exclude_outside: true, outside: 0.0 };
        add(resize.clone().into(), vec![x(&[3, 4, 2, 5])]);
        add(ResizeGrad { resize, extents: vec![4, 5] }.into(), vec![x(&[3, 7, 2, 2])]);
    }
    for (largest, points) in [(false, 2), (true, 0)] {
        let regions = x(&[5, 4]);
        let corner = |i: usize| 2.0 * regions.f64_at(i) + if i % 4 < 2 { 0.0 } else { 4.0 };
        let regions = Tensor::from_f64(regions.ty().clone(), corner).unwrap();
        let roi = RoiAlign { bins: [2, 3], points, scale: 0.75, half_pixel: true, largest };
        let samples = ints(&[5], &[1, 0, 0, 1, -1]);
        let image = x(&[2, 3, 5, 4]);
        let mut of_gradient = vec![x(&[5, 3, 2, 3]), regions.clone(), samples.clone()];
        of_gradient.extend(largest.then(|| image.clone()));
        let gradient = RoiAlignGrad { align: roi.clone(), image: [2, 5, 4] };
        add(roi.into(), vec![image, regions, samples]);
        add(gradient.into(), of_gradient);
    }
    for (sampling, outside, unit) in [
        (Sampling::Nearest, Outside::Border, Unit::Centres),
        (Sampling::Linear, Outside::Zero, Unit::Edges),
        (Sampling::Cubic, Outside::Mirror, Unit::Pixels),
        (Sampling::Linear, Outside::Border, Unit::Centres),
        (Sampling::Linear, Outside::Mirror, Unit::Edges),
        (Sampling::Cubic, Outside::Border, Unit::Edges),
    ] {
        let sample = GridSample { sampling, outside, unit };
        let (image, grid, g) = (x(&[3, 2, 4, 5]), x(&[3, 5, 2, 2]), x(&[3, 2, 5, 2]));
        let wide = Tensor::from_f64(grid.ty().clone(), |i| 3.0 * grid.f64_at(i)).unwrap();
        add(sample.clone().into(), vec![image.clone(), wide.clone()]);
        let of_image = GridSampleGrad { sample: sample.clone(), spatial: vec![4, 5] };
        add(of_image.into(), vec![g.clone(), wide.clone()]);
        add(GridSampleGridGrad { sample: sample.clone() }.into(), vec![g, image, wide]);
        add(sample.into(), vec![x(&[2, 2, 3]), x(&[2, 4, 1])]);
    }
}

fn sequences(add: Add<'_>, x: RandomOf<'_>) {
    let f = || Activation::new(ScalarFn::Sigmoid);
    let g = || Activation { inner: 0.5, ..Activation::new(ScalarFn::Tanh) };
    let gru = |linear_before_reset| Cell::Gru { f: f(), g: g(), linear_before_reset };
    let lstm = |coupled, peepholes| Cell::Lstm { f: f(), g: g(), h: g(), coupled, peepholes };
    let (steps, batch, hidden) = (4, 5, 3);
    for (i, cell) in
        [Cell::Rnn { f: g() }, gru(false), gru(true), lstm(false, true), lstm(true, false)]
            .into_iter()
            .enumerate()
    {
        let gates = cell.gates() * hidden;
        let mut inputs = vec![x(&[steps, batch, gates]), x(&[gates, hidden]), x(&[batch, hidden])];
        match &cell {
            Cell::Gru { linear_before_reset: true, .. } => inputs.push(x(&[gates])),
            Cell::Lstm { peepholes, .. } => {
                inputs.push(x(&[batch, hidden]));
                inputs.extend(peepholes.then(|| x(&[3 * hidden])));
            }
            _ => {}
        }
        let lengths = i % 2 == 1;
        inputs.extend(lengths.then(|| ints(&[batch], &[4, 2, 0, 1, 3])));
        let op = Recurrence { cell, reverse: lengths, lengths, clip: 1.5 };
        let mut of_results = vec![x(&[steps, batch, hidden]), x(&[batch, hidden])];
        of_results.extend(matches!(op.cell, Cell::Lstm { .. }).then(|| x(&[batch, hidden])));
        of_results.extend_from_slice(&inputs);
        add(op.clone().into(), inputs);
        add(RecurrenceGrad { of: op }.into(), of_results);
    }
    let lengths = ints(&[5], &[1, 3, 0, 2, 3]);
    add(ReverseSequence { time: 0, batch: 1 }.into(), vec![x(&[3, 5, 2]), lengths]);
    add(Frames { axis: 1, length: 3, step: 2 }.into(), vec![x(&[3, 8, 2])]);
    for (parts, inverse, onesided) in [(1, false, true), (2, true, false), (2, true, true)] {
        let dft = Dft { axis: 1, length: 6, inverse, onesided };
        add(dft.into(), vec![x(&[3, 5, 2, parts])]);
    }
    for (parts, inverse, onesided) in
        [(1, false, false), (2, false, false), (1, true, false), (1, true, true), (1, false, true)]
    {
        for length in [1, 3, 4] {
            add(Dft { axis: 0, length, inverse, onesided }.into(), vec![x(&[3, parts])]);
        }
    }
    add(Uniform { dtype: DType::F64, shape: vec![3, 2], seed: 7 }.into(), vec![]);
}

fn optimizers(add: Add<'_>, x: RandomOf<'_>) {
    let sgd =
        |momentum, nesterov| Rule::Sgd { momentum, dampening: 0.0, weight_decay: 0.1, nesterov };
    let adam = |decoupled| Rule::Adam {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
        decoupled,
    };
    for (rule, gradient, scale, step) in [
        (sgd(0.0, false), DType::F32, 0.5, Tensor::scalar(1i64)),
        (sgd(0.9, true), DType::F16, 1.0, Tensor::scalar(1f32)),
        (adam(false), DType::BF16, 2.0, Tensor::scalar(7i64)),
        (adam(true), DType::F32, f32::INFINITY, Tensor::scalar(2f32)),
    ] {
        let single = |t: Tensor| t.cast(DType::F32).unwrap();
        let mut inputs = vec![single(x(&[5, 3])), x(&[5, 3]).cast(gradient).unwrap()];
        inputs.extend([Tensor::scalar(0.01f32), Tensor::scalar(scale), step]);
        // A second moment is not negative.
        let square = |t: Tensor| Tensor::from_f64(t.ty().clone(), |i| t.f64_at(i).powi(2)).unwrap();
        inputs.extend((0..rule.states()).map(|_| square(single(x(&[5, 3])))));
        add(OptimizerStep { rule }.into(), inputs);
    }
}
