//! Random graphs, meshes, strategies and prices, drawn from a list of choices that proptest shrinks.

mod gradients;
mod run;
mod update;

use planc_ir::ops::concat::Concat;
use planc_ir::ops::conv::Conv;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::fill::Fill;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::gather_grad::GatherGrad;
use planc_ir::ops::gather_nd::GatherNd;
use planc_ir::ops::lrn::Lrn;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::normalize::Normalize;
use planc_ir::ops::pad::Pad;
use planc_ir::ops::pool::Pool;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::transpose::Transpose;
use planc_ir::program::kernel::PadMode;
use planc_ir::program::{PoolKind, Window};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, ReduceKind, Sharding, Strategy, op_shardings};
use planc_ir::{DType, Graph, NodeId, Tensor, TensorType, ValueDef, ValueId, WeightSource};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A source of choices; when the list is used up, every choice is the first.
pub struct Draw<'a> {
    choices: std::slice::Iter<'a, u32>,
}

impl<'a> Draw<'a> {
    pub fn new(choices: &'a [u32]) -> Self {
        Self { choices: choices.iter() }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.choices.next().map_or(0, |&c| c as usize % n.max(1))
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, i - self.below(i + 1));
        }
    }
}

const EXTENTS: [u64; 8] = [4, 6, 3, 2, 8, 5, 1, 7];

/// A graph with the tensors that it is run on.
pub struct Case {
    pub graph: Graph,
    pub inputs: BTreeMap<String, Tensor>,
    pub weights: BTreeMap<String, Tensor>,
    pub constants: BTreeMap<String, Tensor>,
}

impl Case {
    /// A few ops on a few tensors. Every result that nothing reads is an output.
    pub fn draw(d: &mut Draw<'_>) -> Self {
        let mut case = Self {
            graph: Graph::new("random"),
            inputs: BTreeMap::new(),
            weights: BTreeMap::new(),
            constants: BTreeMap::new(),
        };
        let rank = 1 + d.below(4);
        let shape: Vec<u64> = (0..rank).map(|_| d.pick(&EXTENTS)).collect();
        let mut made = vec![case.input(&shape)];
        for _ in 0..=d.below(7) {
            let x = made[made.len() - 1 - d.below(made.len().min(3))];
            made.extend(case.op(d, x));
        }
        let read = case.graph.consumers();
        case.graph.outputs.extend(made.iter().filter(|v| read[v.index()].is_empty()));
        if d.one_in(3) {
            case.graph.outputs.push(d.pick(&made));
        }
        case
    }

    fn input(&mut self, shape: &[u64]) -> ValueId {
        let name = format!("x{}", self.graph.values.len());
        let tensor = numbers(shape, self.graph.values.len());
        let v = self.graph.input(name.clone(), tensor.ty().clone());
        self.inputs.insert(name, tensor);
        v
    }

    /// A tensor that is there before the program runs: an input, a weight or a constant.
    fn given(&mut self, d: &mut Draw<'_>, tensor: Tensor) -> ValueId {
        let name = format!("w{}", self.graph.values.len());
        let ty = tensor.ty().clone();
        match d.below(4) {
            0 => {
                self.inputs.insert(name.clone(), tensor);
                self.graph.input(name, ty)
            }
            1 => {
                self.constants.insert(name.clone(), tensor.clone());
                self.graph.constant(name, tensor)
            }
            _ => self.state(tensor),
        }
    }

    /// A weight.
    fn state(&mut self, tensor: Tensor) -> ValueId {
        let name = format!("w{}", self.graph.values.len());
        let ty = tensor.ty().clone();
        self.weights.insert(name.clone(), tensor.clone());
        let source = WeightSource::Inline(Arc::new(tensor));
        self.graph.add_value(name, ty, ValueDef::Weight(source))
    }

    fn weight(&mut self, d: &mut Draw<'_>, shape: &[u64]) -> ValueId {
        let tensor = numbers(shape, self.graph.values.len());
        self.given(d, tensor)
    }

    fn indices(&mut self, d: &mut Draw<'_>, shape: &[u64], bounds: &[u64]) -> ValueId {
        let ty = TensorType::new(DType::I64, shape);
        let tensor = Tensor::from_int(ty, |i| {
            let bound = i128::from(bounds[i % bounds.len()]);
            (i as i128 * 5 + 3) % (2 * bound) - bound // negative ones count from the end
        })
        .expect("small");
        self.given(d, tensor)
    }

    /// An op on `x`; nothing where the drawn op does not take it.
    fn op(&mut self, d: &mut Draw<'_>, x: ValueId) -> Vec<ValueId> {
        let shape = self.graph.ty(x).shape.clone();
        let rank = shape.len();
        let mut inputs = vec![x];
        let op = match d.below(22) {
            0 => {
                let f = d.pick(&[ScalarFn::Neg, ScalarFn::Relu, ScalarFn::Identity, ScalarFn::Abs]);
                Map { f }.into()
            }
            1 | 2 => {
                let f = d.pick(&[ScalarFn::Add, ScalarFn::Mul, ScalarFn::Sub, ScalarFn::Max]);
                // The other operand: the same value, or one that broadcasts.
                if d.one_in(4) {
                    inputs.push(x);
                } else {
                    let mut other = shape[d.below(rank + 1)..].to_vec();
                    for n in &mut other {
                        if d.one_in(3) {
                            *n = 1;
                        }
                    }
                    inputs.push(self.weight(d, &other));
                    if d.one_in(2) {
                        inputs.reverse();
                    }
                }
                Map { f }.into()
            }
            3..=5 if rank >= 2 => {
                let (trans_a, trans_b) = (d.one_in(4), d.one_in(3));
                let k = shape[rank - if trans_a { 2 } else { 1 }];
                let n = d.pick(&EXTENTS);
                let mut other = if d.one_in(3) { shape[..rank - 2].to_vec() } else { vec![] };
                other.extend(if trans_b { [n, k] } else { [k, n] });
                inputs.push(self.weight(d, &other));
                MatMul { trans_a, trans_b }.into()
            }
            6 | 7 => Reshape { shape: reshaped(d, &shape) }.into(),
            8 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                d.shuffle(&mut perm);
                Transpose { perm }.into()
            }
            9 if rank > 0 => {
                let kind = d.pick(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min]);
                let axes: Vec<usize> = (0..rank).filter(|_| d.one_in(2)).collect();
                Reduce { kind, axes, keep: d.one_in(2) }.into()
            }
            10 if rank > 0 => Softmax { axis: d.below(rank), log: d.one_in(3) }.into(),
            11 if rank > 0 => {
                let (axis, rms) = (d.below(rank), d.one_in(2));
                inputs.push(self.weight(d, &shape[axis..]));
                if !rms && d.one_in(2) {
                    inputs.push(self.weight(d, &shape[axis..]));
                }
                Normalize { axis, epsilon: 0.5, rms }.into()
            }
            12 if rank > 0 => {
                let axis = d.below(rank);
                let mut other = shape.clone();
                other[axis] = d.pick(&EXTENTS);
                inputs.push(self.weight(d, &other));
                Concat { axis }.into()
            }
            13 if rank > 0 => window_of_dim(d, &shape),
            14 if rank > 0 && !shape.contains(&0) => {
                let axis = d.below(rank);
                let many: Vec<u64> = (0..d.below(3)).map(|_| d.pick(&EXTENTS)).collect();
                inputs.push(self.indices(d, &many, &[shape[axis]]));
                Gather { axis }.into()
            }
            15 if rank > 1 && !shape.contains(&0) => {
                let batch_dims = d.below(rank - 1);
                let depth = 1 + d.below(rank - batch_dims);
                let mut many = shape[..batch_dims].to_vec();
                many.extend([d.pick(&EXTENTS), depth as u64]);
                inputs.push(self.indices(d, &many, &shape[batch_dims..batch_dims + depth]));
                GatherNd { batch_dims }.into()
            }
            16 => {
                let mut wide = shape.clone();
                wide.iter_mut().filter(|n| **n == 1).for_each(|n| *n = d.pick(&EXTENTS));
                if d.one_in(2) {
                    wide.insert(0, d.pick(&EXTENTS));
                }
                if d.one_in(3) {
                    inputs.clear();
                    Fill { dtype: DType::F64, shape: wide, value: 1.5 }.into()
                } else {
                    Expand { shape: wide }.into()
                }
            }
            18 if rank > 0 && !shape.contains(&0) => {
                let axis = d.below(rank);
                let many = shape[axis..axis + d.below(rank - axis + 1)].to_vec();
                let extent = d.pick(&EXTENTS);
                inputs.insert(0, self.indices(d, &many, &[extent]));
                GatherGrad { axis, extent }.into()
            }
            17 if (3..=4).contains(&rank) => self.spatial(d, &shape, &mut inputs),
            19 | 20 => self.training(d, &shape, &mut inputs),
            21 => {
                self.update(d, x);
                return Vec::new();
            }
            _ => Map { f: ScalarFn::Identity }.into(),
        };
        let name = format!("n{}", self.graph.nodes.len());
        let result = self.graph.push(name, op, &inputs, &[]);
        let elements = |v: &ValueId| self.graph.ty(*v).elements();
        result.unwrap_or_default().into_iter().filter(|v| elements(v) < 5000).collect()
    }

    /// An op over the spatial dimensions of `[N, C, ..]`.
    fn spatial(
        &mut self,
        d: &mut Draw<'_>,
        shape: &[u64],
        inputs: &mut Vec<ValueId>,
    ) -> planc_ir::ops::Op {
        let rank = shape.len() - 2;
        let window = Window {
            strides: (0..rank).map(|_| 1 + d.below(2) as u64).collect(),
            dilations: vec![1; rank],
            before: (0..rank).map(|_| d.below(2) as u64).collect(),
            after: (0..rank).map(|_| d.below(2) as u64).collect(),
        };
        let extents: Vec<u64> =
            shape[2..].iter().map(|&n| 1 + d.below(n.min(3) as usize) as u64).collect();
        match d.below(4) {
            0 => {
                let kind = d.pick(&[PoolKind::Max, PoolKind::Average]);
                let window = Window { before: vec![0; rank], after: vec![0; rank], ..window };
                Pool { kind, extents, window, ceil: false }.into()
            }
            1 => Lrn { size: 3, alpha: 0.5, beta: 0.75, bias: 1.0 }.into(),
            _ => {
                let groups = d.pick(&divisors(shape[1]));
                let m = groups * (1 + d.below(4) as u64);
                inputs.push(self.weight(d, &[&[m, shape[1] / groups], &extents[..]].concat()));
                Conv { window, groups }.into()
            }
        }
    }
}

/// A slice or a padding of one dimension.
fn window_of_dim(d: &mut Draw<'_>, shape: &[u64]) -> planc_ir::ops::Op {
    let (axis, rank) = (d.below(shape.len()), shape.len());
    if d.one_in(2) {
        let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
        (before[axis], after[axis]) = (d.below(3) as i64, d.below(3) as i64 - 1);
        let mode = d.pick(&[PadMode::Constant, PadMode::Edge, PadMode::Reflect]);
        return Pad { before, after, mode, value: 0.5 }.into();
    }
    let mut cuts = vec![None; rank];
    let start = d.below(shape[axis] as usize) as u64;
    cuts[axis] = Some(if d.one_in(2) {
        Cut { start: start as i64, step: -1, extent: start + 1 }
    } else {
        Cut { start: start as i64, step: 1, extent: shape[axis] - start }
    });
    Slice { cuts }.into()
}

fn divisors(n: u64) -> Vec<u64> {
    (1..=n.max(1)).filter(|m| n.is_multiple_of(*m)).collect()
}

/// Multiples of a quarter between -1 and 1: sums and small products are exact.
fn numbers(shape: &[u64], seed: usize) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F64, shape), |i| {
        let x =
            (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add((seed as u64) << 19);
        ((x >> 40) % 9) as f64 / 4.0 - 1.0
    })
    .expect("small")
}

/// The same number of elements: dimensions split, merged, or both.
fn reshaped(d: &mut Draw<'_>, shape: &[u64]) -> Vec<u64> {
    let mut out = shape.to_vec();
    for _ in 0..=d.below(3) {
        let i = d.below(out.len());
        if d.one_in(2) && i + 1 < out.len() {
            let n = out.remove(i + 1);
            out[i] *= n;
        } else if let Some(&n) = out.get(i) {
            let m = d.pick(&divisors(n));
            out[i] = n / m;
            out.insert(i, m);
        } else {
            out.insert(0, 1);
        }
    }
    out
}

/// One or two axes, sometimes with uneven shares.
pub fn mesh(d: &mut Draw<'_>) -> Mesh {
    let mut mesh = match d.below(8) {
        0 => Mesh::new([("a", 2)]),
        1 => Mesh::new([("a", 3)]),
        2 => Mesh::new([("a", 4)]),
        3 => Mesh::new([("a", 1), ("b", 3)]),
        4 => Mesh::new([("a", 3), ("b", 2)]),
        5 => Mesh::new([("a", 2), ("b", 4)]),
        _ => Mesh::new([("a", 2), ("b", 2)]),
    };
    if d.one_in(4) {
        let axis = d.below(mesh.axes.len());
        let size = mesh.axes[axis].size as usize;
        mesh.axes[axis].shares = Some((0..size).map(|_| 1 + d.below(3) as u32).collect());
    }
    mesh
}

/// Any legal strategy: for each op any use of each axis, for each loaded value any home.
pub fn strategy(d: &mut Draw<'_>, graph: &Graph, mesh: &Mesh) -> Strategy {
    let ops = graph.node_ids().map(|id| op_strategy(d, graph, id, mesh)).collect();
    let mut homes: Vec<Sharding> =
        graph.values.iter().map(|v| home(d, &v.ty.shape, mesh)).collect();
    Strategy::from_ops(graph, mesh.clone(), ops, |v| {
        std::mem::replace(&mut homes[v.index()], Sharding::replicated(0))
    })
    .expect("legal")
}

fn op_strategy(d: &mut Draw<'_>, graph: &Graph, id: NodeId, mesh: &Mesh) -> OpStrategy {
    let uses = graph.rule(id).axis_uses();
    let mut drawn =
        OpStrategy { axes: mesh.axis_ids().map(|_| uses[d.below(uses.len())]).collect() };
    // Where two axes do not go together, the later ones replicate.
    for axis in (0..mesh.rank()).rev() {
        if op_shardings(graph, id, mesh, &drawn).is_ok() {
            break;
        }
        drawn.axes[axis] = AxisUse::Replicate;
    }
    drawn
}

fn home(d: &mut Draw<'_>, shape: &[u64], mesh: &Mesh) -> Sharding {
    let mut home = Sharding::replicated(shape.len());
    let mut axes: Vec<_> = mesh.axis_ids().collect();
    d.shuffle(&mut axes);
    for a in axes {
        let dim = d.below(shape.len() + 1);
        if let Some(split) = home.dims.get_mut(dim) {
            split.axes.push(a);
            let n = shape[dim];
            split.unit = d.pick(&divisors(n));
        }
    }
    home.canonical(shape, mesh)
}

/// Prices under which now this, now that kind of step is the cheap one.
pub struct Prices {
    base_us: [f64; 6],
}

impl Prices {
    pub fn draw(d: &mut Draw<'_>) -> Self {
        Self { base_us: std::array::from_fn(|_| 1.0 + d.below(50) as f64) }
    }
}

impl StepCost for Prices {
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64 {
        let kind = match step {
            Step::AllReduce { .. } => 0,
            Step::ReduceScatter { .. } => 1,
            Step::AllGather { .. } => 2,
            Step::AllToAll { .. } => 3,
            Step::Slice { .. } => 4,
            Step::ToPartial { .. } => 5,
        };
        let bytes = before.bytes().max(after.bytes()) as f64;
        self.base_us[kind] + bytes * 0.01 * f64::from(mesh.group_size(step.axes()))
    }
}
