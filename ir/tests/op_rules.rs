//! Factor rules against semantics: whatever a rule allows, evaluating each rank's part and putting
//! the parts together again gives what evaluating the whole gives.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

mod random;
mod samples;

use planc_ir::ops::attention_grad::AttentionGrad;
use planc_ir::ops::{self, Op};
use planc_ir::sharding::{AxisUse, FactorKind, FactorRule, Mesh, OpStrategy, ReduceKind, Sharding};
use planc_ir::tensor::{strides, unravel};
use planc_ir::{Tensor, TensorType};
use random::Random;
use samples::{Sample, random_tensor};
use std::ops::Range;

fn types(tensors: &[Tensor]) -> Vec<TensorType> {
    tensors.iter().map(|t| t.ty().clone()).collect()
}

fn shapes(types: &[TensorType]) -> Vec<&[u64]> {
    types.iter().map(|t| &t.shape[..]).collect()
}

/// The whole result, its types and the rule.
fn whole(sample: &Sample) -> (Vec<Tensor>, Vec<TensorType>, FactorRule) {
    let inputs: Vec<&Tensor> = sample.inputs.iter().collect();
    let result = sample.op.eval(&inputs).unwrap();
    let in_types = types(&sample.inputs);
    let consts: Vec<Option<&Tensor>> = inputs.iter().map(|&t| Some(t)).collect();
    let out_types = sample.op.infer(&in_types, &consts).unwrap();
    assert_eq!(types(&result), out_types, "{:?}", sample.op);
    let rule = sample.op.rule(&in_types, &out_types);
    (result, out_types, rule)
}

fn part(t: &Tensor, ranges: &[Range<u64>]) -> Tensor {
    let shape: Vec<u64> = ranges.iter().map(|r| r.end - r.start).collect();
    let strides = strides(t.shape());
    let at = |i| {
        let coord = unravel(i, &shape).into_iter().zip(ranges).zip(&strides);
        coord.map(|((c, r), s)| (c + r.start as usize) * s).sum()
    };
    t.select(shape.clone(), at).unwrap()
}

/// A rank's part of a table with a row of zeros behind it, which stands for rows that other ranks hold, and
/// indices into it.
fn part_of_table(
    data: &Tensor,
    axis: usize,
    indices: &Tensor,
    (rows, total): (Range<u64>, u64),
) -> (Tensor, Tensor) {
    let mut shape = data.shape().to_vec();
    shape[axis] = 1;
    let zeros = Tensor::zeros(TensorType::new(data.dtype(), shape)).unwrap();
    let concat = Op::from(ops::concat::Concat { axis });
    let extended = concat.eval(&[data, &zeros]).unwrap().remove(0);
    let local = |i: usize| {
        let row = indices.int_at(i);
        let row = if row < 0 { row + i128::from(total) } else { row };
        let inside = (i128::from(rows.start)..i128::from(rows.end)).contains(&row);
        if inside { row - i128::from(rows.start) } else { -1 }
    };
    (extended, Tensor::from_int(indices.ty().clone(), local).unwrap())
}

/// A rank's rows of a lookup's gradient: those of other ranks are added to one more row, which is cut off.
fn part_of_rows(
    gradient: &ops::gather_grad::GatherGrad,
    inputs: &[Tensor],
    (rows, total): (Range<u64>, u64),
) -> Tensor {
    let (axis, held) = (gradient.axis, rows.end - rows.start);
    let mut shape = inputs[1].shape().to_vec();
    shape.splice(axis..axis + inputs[0].shape().len(), [0]);
    let none = Tensor::zeros(TensorType::new(inputs[1].dtype(), shape)).unwrap();
    let (_, indices) = part_of_table(&none, axis, &inputs[0], (rows, total));
    let longer = Op::from(ops::gather_grad::GatherGrad { axis, extent: held + 1 });
    let all = longer.eval(&[&indices, &inputs[1]]).unwrap().remove(0);
    let mut kept: Vec<Range<u64>> = all.shape().iter().map(|&n| 0..n).collect();
    kept[axis].end = held;
    part(&all, &kept)
}

/// A rank's experts with one behind them that stands for all others, and choices among these; `first` is the
/// operand that holds tokens.
fn part_of_experts(inputs: &mut [Tensor], first: usize, table: &(Range<u64>, u64)) {
    let choices = inputs[first + 1].clone();
    for i in first + 3..inputs.len() {
        (inputs[i], inputs[first + 1]) = part_of_table(&inputs[i], 0, &choices, table.clone());
    }
}

/// What the op's kernel computes on a rank's parts. Kernels read extents from their outputs, and a
/// lookup knows which rows of the table it holds.
fn evaluate_part(
    op: &Op,
    inputs: &[Tensor],
    table: Option<(Range<u64>, u64)>,
    first_query: u64,
    out: &[u64],
) -> Vec<Tensor> {
    let mut op = op.clone();
    let mut inputs = inputs.to_vec();
    match &mut op {
        Op::Reshape(ops::reshape::Reshape { shape })
        | Op::Expand(ops::expand::Expand { shape })
        | Op::Fill(ops::fill::Fill { shape, .. }) => *shape = out.to_vec(),
        Op::Attention(attention) | Op::AttentionGrad(AttentionGrad { attention, .. }) => {
            attention.causal = attention.causal.map(|offset| offset + first_query as i64);
        }
        Op::ConvWeightGrad(_) if out.contains(&0) => {
            let ty = TensorType::new(inputs[0].dtype(), out);
            return vec![Tensor::zeros(ty).unwrap()];
        }
        Op::ConvWeightGrad(grad) => grad.groups = inputs[1].shape()[1] / out[1],
        Op::Gather(gather) if inputs[0].dtype().is_float() => {
            (inputs[0], inputs[1]) =
                part_of_table(&inputs[0], gather.axis, &inputs[1], table.unwrap());
        }
        Op::GatherGrad(gradient) => return vec![part_of_rows(gradient, &inputs, table.unwrap())],
        Op::MixtureOfExperts(layer) => {
            layer.experts += 1;
            part_of_experts(&mut inputs, 0, &table.unwrap());
        }
        Op::MixtureOfExpertsGrad(gradient) => {
            gradient.layer.experts += 1;
            part_of_experts(&mut inputs, 1, &table.unwrap());
            let mut results = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap();
            // Behind the experts held stands the one for all others.
            for result in &mut results[2..] {
                let mut held: Vec<Range<u64>> = result.shape().iter().map(|&n| 0..n).collect();
                held[0].end -= 1;
                *result = part(result, &held);
            }
            return results;
        }
        _ => {}
    }
    op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap()
}

/// What the kernel of an op computes that looks at where in the whole its part of `x` lies: the op on a
/// tensor that is 0 elsewhere.
fn evaluate_in_place(
    op: &Op,
    inputs: &[Tensor],
    ranges: &[Range<u64>],
    whole: &TensorType,
) -> Vec<Tensor> {
    let strides = strides(inputs[0].shape());
    let spread = Tensor::from_f64(whole.clone(), |i| {
        let coord = unravel(i, &whole.shape).into_iter().map(|c| c as u64).zip(ranges);
        let inside = coord.clone().all(|(c, range)| range.contains(&c));
        let at = || coord.zip(&strides).map(|((c, r), s)| (c - r.start) as usize * s).sum();
        if inside { inputs[0].f64_at(at()) } else { 0.0 }
    });
    let mut inputs = inputs.to_vec();
    inputs[0] = spread.unwrap();
    let results = op.eval(&inputs.iter().collect::<Vec<_>>()).unwrap();
    results.iter().map(|t| part(t, ranges)).collect()
}

/// The parts of an input on each rank: slices, and random contributions to a partial sum, which are
/// the same on ranks that differ only along other axes.
fn scatter(t: &Tensor, sharding: &Sharding, mesh: &Mesh, random: &mut Random) -> Vec<Tensor> {
    let mut contributions = vec![None; mesh.ranks() as usize];
    contributions[0] = Some(t.clone());
    for &(axis, kind) in &sharding.partial {
        assert_eq!(kind, ReduceKind::Sum, "inputs are partial sums only");
        for rank in 0..mesh.ranks() {
            let Some(sum) = contributions[rank as usize].clone() else { continue };
            let group = mesh.group(rank, &[axis]);
            if group[0] != rank {
                continue;
            }
            let mut rest = sum.to_f64s();
            for &other in &group[1..] {
                let share = random_tensor(random, t.shape());
                rest.iter_mut().zip(share.to_f64s()).for_each(|(r, s)| *r -= s);
                contributions[other as usize] = Some(share);
            }
            let ty = t.ty().clone();
            contributions[rank as usize] = Some(Tensor::from_f64(ty, |i| rest[i]).unwrap());
        }
    }
    (0..mesh.ranks())
        .map(|r| {
            let coord = mesh.coord(r);
            let mut source = vec![0; coord.len()];
            for &(axis, _) in &sharding.partial {
                source[axis.index()] = coord[axis.index()];
            }
            let own = contributions[mesh.rank_at(&source) as usize].as_ref().unwrap();
            part(own, &sharding.ranges(t.shape(), mesh, &coord))
        })
        .collect()
}

fn combine(kind: ReduceKind, x: f64, y: f64) -> f64 {
    match kind {
        ReduceKind::Sum => x + y,
        ReduceKind::Max => x.max(y),
        ReduceKind::Min => x.min(y),
        ReduceKind::Prod => x * y,
    }
}

/// Puts parts together: partial values combine, parts are laid side by side, replicas must agree.
fn assemble(
    parts: &[Tensor],
    shape: &[u64],
    sharding: &Sharding,
    mesh: &Mesh,
) -> Result<Vec<f64>, String> {
    let mut values: Vec<Vec<f64>> = parts.iter().map(Tensor::to_f64s).collect();
    for &(axis, kind) in &sharding.partial {
        values = (0..mesh.ranks())
            .map(|r| {
                let group = mesh.group(r, &[axis]);
                let members = group.iter().map(|&g| values[g as usize].clone());
                let sum = |x: Vec<f64>, y: Vec<f64>| {
                    x.into_iter().zip(y).map(|(x, y)| combine(kind, x, y)).collect()
                };
                members.reduce(sum).unwrap()
            })
            .collect();
    }
    let strides = strides(shape);
    let mut out: Vec<Option<f64>> = vec![None; shape.iter().product::<u64>() as usize];
    for r in 0..mesh.ranks() {
        let ranges = sharding.ranges(shape, mesh, &mesh.coord(r));
        let local: Vec<u64> = ranges.iter().map(|x| x.end - x.start).collect();
        if parts[r as usize].shape() != local {
            return Err(format!("rank {r} has {:?}, not {local:?}", parts[r as usize].shape()));
        }
        for (i, &v) in values[r as usize].iter().enumerate() {
            let coord = unravel(i, &local).into_iter().zip(&ranges).zip(&strides);
            let at: usize = coord.map(|((c, x), s)| (c + x.start as usize) * s).sum();
            match out[at] {
                Some(other) if !close(other, v) => return Err(format!("replicas differ at {at}")),
                _ => out[at] = Some(v),
            }
        }
    }
    out.into_iter().collect::<Option<_>>().ok_or_else(|| "an element has no owner".into())
}

fn close(x: f64, y: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-9 * x.abs().max(y.abs()).max(1.0)
}

/// Runs a sample under a strategy; `false` if the strategy is not legal.
fn check(sample: &Sample, mesh: &Mesh, strategy: &OpStrategy, random: &mut Random) -> bool {
    let (expected, out_types, rule) = whole(sample);
    let in_types = types(&sample.inputs);
    let Some((ins, outs)) = rule.shardings(mesh, strategy, &shapes(&in_types), &shapes(&out_types))
    else {
        return false;
    };
    let at = || format!("{:?} of {in_types:?} on {mesh} by {:?}", sample.op, strategy.axes);
    let scattered: Vec<Vec<Tensor>> =
        sample.inputs.iter().zip(&ins).map(|(t, s)| scatter(t, s, mesh, random)).collect();
    let results: Vec<Vec<Tensor>> = (0..mesh.ranks())
        .map(|r| {
            let parts: Vec<Tensor> = scattered.iter().map(|p| p[r as usize].clone()).collect();
            let coord = mesh.coord(r);
            let table = match &sample.op {
                Op::Gather(g) => {
                    let shape = &in_types[0].shape;
                    Some((ins[0].ranges(shape, mesh, &coord)[g.axis].clone(), shape[g.axis]))
                }
                Op::GatherGrad(g) => {
                    let shape = &out_types[0].shape;
                    Some((outs[0].ranges(shape, mesh, &coord)[g.axis].clone(), shape[g.axis]))
                }
                Op::MixtureOfExperts(_) | Op::MixtureOfExpertsGrad(_) => {
                    let last = in_types.len() - 1;
                    let shape = &in_types[last].shape;
                    Some((ins[last].ranges(shape, mesh, &coord)[0].clone(), shape[0]))
                }
                _ => None,
            };
            // Causality counts from the rank's first query.
            let first_query = match &sample.op {
                Op::Attention(_) | Op::AttentionGrad(_) => {
                    ins[0].ranges(&in_types[0].shape, mesh, &coord)[2].start
                }
                _ => 0,
            };
            if matches!(sample.op, Op::Dropout(_)) {
                let ranges = ins[0].ranges(&in_types[0].shape, mesh, &coord);
                return evaluate_in_place(&sample.op, &parts, &ranges, &in_types[0]);
            }
            let out = outs[0].local_shape(&out_types[0].shape, mesh, &coord);
            evaluate_part(&sample.op, &parts, table, first_query, &out)
        })
        .collect();
    for (o, sharding) in outs.iter().enumerate() {
        assert!(sharding.is_valid(out_types[o].rank(), mesh), "{}", at());
        let parts: Vec<Tensor> = results.iter().map(|r| r[o].clone()).collect();
        let assembled = assemble(&parts, &out_types[o].shape, sharding, mesh)
            .unwrap_or_else(|e| panic!("{}, output {o}: {e}", at()));
        for (i, (x, y)) in assembled.iter().zip(expected[o].to_f64s()).enumerate() {
            assert!(close(*x, y), "{}, output {o}: element {i} is {x}, not {y}", at());
        }
    }
    true
}

#[test]
fn splits_on_one_axis_compute_the_whole() {
    let mut random = Random(2);
    for sample in samples::all() {
        let (_, _, rule) = whole(&sample);
        for ranks in [2, 3] {
            let mesh = Mesh::new([("a", ranks)]);
            for usage in rule.axis_uses() {
                let legal = check(&sample, &mesh, &OpStrategy { axes: vec![usage] }, &mut random);
                assert!(legal || usage != AxisUse::Replicate, "{:?}", sample.op);
            }
        }
    }
}

#[test]
fn splits_on_two_axes_compute_the_whole() {
    let mut random = Random(3);
    let mut uneven = Mesh::new([("a", 2), ("b", 3)]);
    uneven.axes[1].shares = Some(vec![2, 1, 3]);
    for mesh in [Mesh::new([("a", 2), ("b", 3)]), uneven] {
        for sample in samples::all() {
            let (_, _, rule) = whole(&sample);
            for a in rule.axis_uses() {
                for b in rule.axis_uses() {
                    check(&sample, &mesh, &OpStrategy { axes: vec![a, b] }, &mut random);
                }
            }
        }
    }
}

#[test]
fn rules_describe_their_operands() {
    for sample in samples::all() {
        let (_, out_types, rule) = whole(&sample);
        let in_types = types(&sample.inputs);
        let opaque = matches!(sample.op, Op::Range(_) | Op::Uniform(_));
        assert_eq!(rule.opaque.is_some(), opaque, "{:?}: {:?}", sample.op, rule.opaque);
        for (dims, types) in [(&rule.inputs, &in_types), (&rule.outputs, &out_types)] {
            assert_eq!(dims.len(), types.len(), "{:?}", sample.op);
            for (dims, ty) in dims.iter().zip(types) {
                assert_eq!(dims.len(), ty.rank(), "{:?}: {ty}", sample.op);
                for (factors, &n) in dims.iter().zip(&ty.shape) {
                    let sizes = factors.iter().map(|f| rule.factors[f.index()].size);
                    let product: u64 = sizes.product();
                    assert!(factors.is_empty() || product == n, "{:?}: {ty}", sample.op);
                }
            }
        }
        for (i, f) in rule.factors.iter().enumerate() {
            let mentions = |dims: &[Vec<Vec<planc_ir::sharding::FactorId>>]| {
                dims.iter().flatten().flatten().any(|f| f.index() == i)
            };
            let (read, written) = (mentions(&rule.inputs), mentions(&rule.outputs));
            assert!(read || written, "{:?}: `{}` stands nowhere", sample.op, f.name);
            if matches!(f.kind, FactorKind::Reduce(_)) {
                let reduced = rule.outputs.iter().any(|o| !mentions(std::slice::from_ref(o)));
                assert!(read && reduced, "{:?}: `{}` is reduced", sample.op, f.name);
            }
        }
    }
}

#[test]
fn every_op_has_a_sample() {
    let sampled: Vec<&str> = samples::all().iter().map(|s| s.op.name()).collect();
    // Control flow is opaque; the importer's tests build its bodies. What stages exchange has no results of
    // its own to compare.
    let without = ["If", "Loop", "Deferred", "Send", "Receive"];
    for name in ops::NAMES.iter().filter(|name| !without.contains(name)) {
        assert!(sampled.contains(name), "{name} has no sample");
    }
}

#[test]
fn work_is_finite_and_ops_survive_json() {
    for sample in samples::all() {
        let (_, out_types, _) = whole(&sample);
        let work = sample.op.work(&types(&sample.inputs), &out_types);
        assert!(work.flops.is_finite() && work.flops >= 0.0, "{:?}", sample.op);
        assert!(work.bytes.is_finite() && work.bytes >= 0.0, "{:?}", sample.op);
        let text = serde_json::to_string(&sample.op).unwrap();
        assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), sample.op, "{text}");
        let kernel = sample.op.lower();
        let text = serde_json::to_string(&kernel).unwrap();
        assert_eq!(
            serde_json::from_str::<planc_ir::program::Kernel>(&text).unwrap(),
            kernel,
            "{text}"
        );
    }
}

#[test]
fn more_than_eight_dimensions_are_opaque() {
    let ty = TensorType::new(planc_ir::DType::F32, [2; 9]);
    let op = Op::from(ops::map::Map { f: planc_ir::scalar::ScalarFn::Neg });
    let rule = op.rule(std::slice::from_ref(&ty), std::slice::from_ref(&ty));
    assert!(rule.opaque.is_some());
    assert_eq!(rule.axis_uses(), [AxisUse::Replicate]);
}
