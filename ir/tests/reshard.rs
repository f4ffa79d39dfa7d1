//! Reshard paths move real data to where the target sharding says, and no cheaper path exists.
#![allow(clippy::float_cmp)] // small integers, and costs that are sums of the same terms

use planc_ir::sharding::reshard::{
    Resharder, Step, StepCost, reshard, reshard_all, reshard_reduced,
};
use planc_ir::sharding::{AxisId, DimSharding, Mesh, ReduceKind, Sharding};
use planc_ir::{DType, TensorType};
use std::collections::BTreeMap;
use std::ops::Range;

/// One rank's part: where it lies in the whole, and its elements by global position.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    ranges: Vec<Range<u64>>,
    elements: BTreeMap<Vec<u64>, f64>,
}

fn positions(ranges: &[Range<u64>]) -> Vec<Vec<u64>> {
    ranges.iter().fold(vec![vec![]], |all, range| {
        all.iter()
            .flat_map(|p: &Vec<u64>| range.clone().map(|i| [p.as_slice(), &[i]].concat()))
            .collect()
    })
}

/// The whole tensor's element at a position: all different, small integers so that sums are exact.
fn element(position: &[u64]) -> f64 {
    position.iter().fold(1.0, |n, &i| n * 10.0 + i as f64)
}

fn combine(kind: ReduceKind, values: impl Iterator<Item = f64>) -> f64 {
    match kind {
        ReduceKind::Sum => values.sum(),
        ReduceKind::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Min => values.fold(f64::INFINITY, f64::min),
        ReduceKind::Prod => values.product(),
    }
}

fn neutral(kind: ReduceKind) -> f64 {
    combine(kind, std::iter::empty())
}

/// The tensor laid out in a sharding. Contributions to a partial value all differ.
fn lay_out(s: &Sharding, shape: &[u64], mesh: &Mesh) -> Vec<Part> {
    let over: Vec<AxisId> = s.partial.iter().map(|p| p.0).collect();
    let contribution = |rank: u32, whole: f64| {
        let group = mesh.group(rank, &over);
        let i = group.iter().position(|&r| r == rank).expect("a rank is in its group");
        let last = i + 1 == group.len();
        match s.partial.first().map(|p| p.1) {
            None => whole,
            Some(ReduceKind::Sum) if last => whole - (0..i).map(|j| j as f64 + 7.0).sum::<f64>(),
            Some(ReduceKind::Sum) => i as f64 + 7.0,
            Some(ReduceKind::Prod) if last => whole / 2f64.powi(i as i32),
            Some(ReduceKind::Prod) => 2.0,
            Some(ReduceKind::Max) => whole - (group.len() - 1 - i) as f64,
            Some(ReduceKind::Min) => whole + i as f64,
        }
    };
    (0..mesh.ranks())
        .map(|rank| {
            let ranges = s.ranges(shape, mesh, &mesh.coord(rank));
            let elements = positions(&ranges)
                .into_iter()
                .map(|p| (p.clone(), contribution(rank, element(&p))))
                .collect();
            Part { ranges, elements }
        })
        .collect()
}

/// One step by its definition. Data comes from ranks of the step's group only.
fn run(step: &Step, parts: &[Part], after: &Sharding, shape: &[u64], mesh: &Mesh) -> Vec<Part> {
    (0..mesh.ranks())
        .map(|rank| {
            let group = mesh.group(rank, step.axes());
            let ranges = after.ranges(shape, mesh, &mesh.coord(rank));
            let own = &parts[rank as usize].elements;
            let value = |p: &Vec<u64>| match step {
                Step::AllReduce { kind, .. } | Step::ReduceScatter { kind, .. } => {
                    combine(*kind, group.iter().map(|&r| parts[r as usize].elements[p]))
                }
                Step::AllGather { .. } | Step::AllToAll { .. } => {
                    let mut holders =
                        group.iter().filter_map(|&r| parts[r as usize].elements.get(p));
                    let held = *holders.next().expect("a rank of the group holds the element");
                    assert_eq!(holders.next(), None, "one rank of the group holds the element");
                    held
                }
                Step::ToPartial { kind, .. } if group[0] != rank => neutral(*kind),
                Step::Slice { .. } | Step::ToPartial { .. } => own[p],
            };
            let elements = positions(&ranges).into_iter().map(|p| (p.clone(), value(&p))).collect();
            Part { ranges, elements }
        })
        .collect()
}

/// Whether parts are the tensor in this sharding.
fn holds(parts: &[Part], s: &Sharding, shape: &[u64], mesh: &Mesh) -> bool {
    let over: Vec<AxisId> = s.partial.iter().map(|p| p.0).collect();
    (0..mesh.ranks()).all(|rank| {
        let part = &parts[rank as usize];
        part.ranges == s.ranges(shape, mesh, &mesh.coord(rank))
            && part.elements.iter().all(|(p, &x)| {
                let group = mesh.group(rank, &over);
                let contributions = group.iter().map(|&r| parts[r as usize].elements[p]);
                let whole = match s.partial.first() {
                    None => x,
                    Some(&(_, kind)) => combine(kind, contributions),
                };
                whole == element(p)
            })
    })
}

/// Every canonical sharding whose block lengths are 1 or the dimension's entry of `units`.
fn all_shardings(shape: &[u64], units: &[u64], mesh: &Mesh, kind: ReduceKind) -> Vec<Sharding> {
    let mut all = vec![Sharding::replicated(shape.len())];
    // Axes are inserted one by one, each everywhere it can go; the last axis last.
    for a in mesh.axis_ids() {
        all = all
            .iter()
            .flat_map(|s| {
                let mut next = vec![s.clone()];
                next.push(s.clone());
                next[1].partial.push((a, kind));
                for d in 0..shape.len() {
                    for i in 0..=s.dims[d].axes.len() {
                        let mut t = s.clone();
                        t.dims[d].axes.insert(i, a);
                        next.push(t);
                    }
                }
                next
            })
            .collect();
    }
    let mut with_units = Vec::new();
    for s in all {
        let choices = positions(&vec![0..2; shape.len()]);
        for choice in choices {
            let mut t = s.clone();
            for (d, &c) in choice.iter().enumerate() {
                t.dims[d].unit = if c == 1 { units[d] } else { 1 };
            }
            with_units.push(t.canonical(shape, mesh));
        }
    }
    with_units.sort();
    with_units.dedup();
    with_units
}

/// Every ordered selection of axes.
fn selections(mesh: &Mesh) -> Vec<Vec<AxisId>> {
    let mut all = vec![vec![]];
    for _ in mesh.axis_ids() {
        let longer: Vec<Vec<AxisId>> = all
            .iter()
            .flat_map(|s: &Vec<AxisId>| {
                mesh.axis_ids().filter(|a| !s.contains(a)).map(|a| [s.as_slice(), &[a]].concat())
            })
            .collect();
        all.extend(longer);
    }
    all.retain(|s| !s.is_empty());
    all.sort();
    all.dedup();
    all
}

/// Every step there is, whether or not it applies.
fn all_steps(units: &[u64], mesh: &Mesh, kind: ReduceKind) -> Vec<Step> {
    let mut steps = Vec::new();
    for axes in selections(mesh) {
        steps.push(Step::AllReduce { axes: axes.clone(), kind });
        steps.push(Step::ToPartial { axes: axes.clone(), kind });
        for (dim, &unit) in units.iter().enumerate() {
            steps.push(Step::AllGather { axes: axes.clone(), dim });
            for unit in [1, unit] {
                let axes = axes.clone();
                steps.push(Step::ReduceScatter { axes: axes.clone(), dim, kind, unit });
                steps.push(Step::Slice { axes: axes.clone(), dim, unit });
                for from in 0..units.len() {
                    steps.push(Step::AllToAll { axes: axes.clone(), from, to: dim, unit });
                }
            }
        }
    }
    steps
}

/// Latency and traffic of ring collectives.
struct Ring;

impl StepCost for Ring {
    fn step_us(&self, step: &Step, before: &TensorType, after: &TensorType, mesh: &Mesh) -> f64 {
        let p = f64::from(mesh.group_size(step.axes()));
        let (before, after) = (before.bytes() as f64, after.bytes() as f64);
        let share = (p - 1.0) / p;
        match step {
            Step::AllReduce { .. } => 6.0 + 2.0 * share * before,
            Step::ReduceScatter { .. } => 5.0 + share * before,
            Step::AllGather { .. } => 5.0 + share * after,
            Step::AllToAll { .. } => 4.0 + share * before.max(after),
            Step::Slice { .. } | Step::ToPartial { .. } => 1.0 + 0.01 * (before + after),
        }
    }
}

/// The cheapest cost to every sharding, by relaxing every step from everywhere until nothing changes.
/// Only these axes may become partial.
fn exhaustive(
    from: &Sharding,
    partial: &[AxisId],
    shape: &[u64],
    steps: &[Step],
    mesh: &Mesh,
) -> BTreeMap<Sharding, f64> {
    let local = |s: &Sharding| TensorType::new(DType::F32, s.max_local_shape(shape, mesh));
    let mut best = BTreeMap::from([(from.clone(), 0.0)]);
    let mut changed = vec![from.clone()];
    while let Some(at) = changed.pop() {
        for step in steps {
            if let Step::ToPartial { axes, .. } = step
                && axes.iter().any(|a| !partial.contains(a))
            {
                continue;
            }
            let Some(next) = step.apply(&at, shape, mesh) else { continue };
            let cost = best[&at] + Ring.step_us(step, &local(&at), &local(&next), mesh);
            if best.get(&next).is_none_or(|&old| cost < old - 1e-9) {
                best.insert(next.clone(), cost);
                changed.push(next);
            }
        }
    }
    best
}

fn check_pair(shape: &[u64], from: &Sharding, to: &Sharding, mesh: &Mesh) -> f64 {
    let ty = TensorType::new(DType::F32, shape);
    let path = reshard(&ty, from, to, mesh, &Ring)
        .unwrap_or_else(|| panic!("{} -> {}", from.display(mesh), to.display(mesh)));
    let (mut at, mut parts) = (from.clone(), lay_out(from, shape, mesh));
    for (step, sharding) in path.steps.iter().zip(&path.shardings) {
        let next = step.apply(&at, shape, mesh).expect("steps of a path apply");
        assert_eq!(next, *sharding);
        assert_eq!(next.clone().canonical(shape, mesh), next);
        parts = run(step, &parts, &next, shape, mesh);
        at = next;
    }
    assert_eq!(at, *to);
    assert!(
        holds(&parts, to, shape, mesh),
        "{} -> {} by {:?}",
        from.display(mesh),
        to.display(mesh),
        path.steps
    );
    assert_eq!(path.steps.is_empty(), from == to);
    assert_eq!(path.cost_us == 0.0, from == to);
    path.cost_us
}

/// Every pair: data arrives, the cost is the exhaustive minimum, one search to all targets agrees.
fn check_all(shape: &[u64], units: &[u64], mesh: &Mesh, kind: ReduceKind) {
    let ty = TensorType::new(DType::F32, shape);
    let all = all_shardings(shape, units, mesh, kind);
    let steps = all_steps(units, mesh, kind);
    let mut costs = Vec::new();
    for from in &all {
        let mut by_partial: BTreeMap<Vec<AxisId>, BTreeMap<Sharding, f64>> = BTreeMap::new();
        let mut row = Vec::new();
        for to in &all {
            let cost = check_pair(shape, from, to, mesh);
            let partial: Vec<AxisId> = to.partial.iter().map(|p| p.0).collect();
            let least = by_partial
                .entry(partial.clone())
                .or_insert_with(|| exhaustive(from, &partial, shape, &steps, mesh))[to];
            assert!(
                (cost - least).abs() < 1e-6,
                "{shape:?} {} -> {}: {cost} instead of {least}",
                from.display(mesh),
                to.display(mesh)
            );
            row.push(cost);
        }
        let at_once: Vec<f64> = reshard_all(&ty, from, &all, mesh, &Ring)
            .into_iter()
            .map(|p| p.expect("every pair has a path").cost_us)
            .collect();
        assert_eq!(at_once, row);
        let reduced = reshard_reduced(&ty, from, mesh, &Ring).expect("everything can be reduced");
        let least = all
            .iter()
            .zip(&row)
            .filter(|(to, _)| to.partial.is_empty())
            .map(|(_, &cost)| cost)
            .fold(f64::MAX, f64::min);
        assert_eq!(reduced.cost_us, least);
        costs.push(row);
    }
    for i in 0..all.len() {
        for j in 0..all.len() {
            for k in 0..all.len() {
                assert!(costs[i][k] <= costs[i][j] + costs[j][k] + 1e-9, "triangle inequality");
            }
        }
    }
}

const SUM: ReduceKind = ReduceKind::Sum;

#[test]
fn one_axis() {
    let mesh = Mesh::new([("x", 4)]);
    check_all(&[8], &[1], &mesh, SUM);
    check_all(&[7], &[7], &mesh, SUM);
    check_all(&[10, 6], &[2, 3], &mesh, ReduceKind::Max);
    check_all(&[5, 4, 3], &[5, 2, 1], &mesh, ReduceKind::Min);
}

#[test]
fn two_even_axes() {
    let mesh = Mesh::new([("x", 2), ("y", 2)]);
    check_all(&[8], &[1], &mesh, SUM);
    check_all(&[10], &[2], &mesh, ReduceKind::Prod);
    check_all(&[4, 8], &[1, 1], &mesh, SUM);
    check_all(&[5, 6], &[1, 3], &mesh, ReduceKind::Max);
    check_all(&[4, 3, 1], &[1, 1, 1], &mesh, SUM);
}

#[test]
fn two_different_axes() {
    let mesh = Mesh::new([("x", 2), ("y", 3)]);
    check_all(&[7], &[1], &mesh, SUM);
    check_all(&[6, 5], &[1, 1], &mesh, SUM);
    check_all(&[12, 8], &[4, 1], &mesh, ReduceKind::Min);
}

#[test]
fn uneven_shares() {
    let mut mesh = Mesh::new([("x", 3), ("y", 2)]);
    mesh.axes[0].shares = Some(vec![1, 2, 1]);
    check_all(&[8, 5], &[2, 1], &mesh, SUM);
    let exact = DimSharding { axes: vec![AxisId(0)], unit: 2 };
    assert_eq!(exact.canonical(8, &mesh).unit, 1, "shares of 2, 4 and 2 need no blocks");
}

#[test]
fn three_axes_sampled() {
    let mesh = Mesh::new([("x", 2), ("y", 2), ("z", 2)]);
    let shape = [6, 8, 5];
    let all = all_shardings(&shape, &[3, 1, 1], &mesh, SUM);
    let mut state = 1u64;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % all.len()
    };
    for _ in 0..300 {
        check_pair(&shape, &all[draw()], &all[draw()], &mesh);
    }
}

#[test]
fn a_sum_becomes_a_maximum_only_once_it_is_known() {
    let mesh = Mesh::new([("x", 2)]);
    let x = || vec![AxisId(0)];
    let ty = TensorType::new(DType::F32, [4]);
    let partial = |kind| Sharding { partial: vec![(AxisId(0), kind)], ..Sharding::replicated(1) };
    let path = reshard(&ty, &partial(SUM), &partial(ReduceKind::Max), &mesh, &Ring);
    let steps = [
        Step::AllReduce { axes: x(), kind: SUM },
        Step::ToPartial { axes: x(), kind: ReduceKind::Max },
    ];
    assert_eq!(path.expect("there is a path").steps, steps);
}

#[test]
fn the_usual_paths() {
    let mesh = Mesh::new([("x", 4)]);
    let x = || vec![AxisId(0)];
    let ty = TensorType::new(DType::F32, [64, 64]);
    let whole = Sharding::replicated(2);
    let partial = Sharding { partial: vec![(AxisId(0), SUM)], ..whole.clone() };
    let mut rows = whole.clone();
    rows.dims[0] = DimSharding::split(x());
    let mut columns = whole.clone();
    columns.dims[1] = DimSharding::split(x());
    for (from, to, step) in [
        (&partial, &whole, Step::AllReduce { axes: x(), kind: SUM }),
        (&partial, &rows, Step::ReduceScatter { axes: x(), dim: 0, kind: SUM, unit: 1 }),
        (&rows, &whole, Step::AllGather { axes: x(), dim: 0 }),
        (&rows, &columns, Step::AllToAll { axes: x(), from: 0, to: 1, unit: 1 }),
        (&whole, &columns, Step::Slice { axes: x(), dim: 1, unit: 1 }),
        (&whole, &partial, Step::ToPartial { axes: x(), kind: SUM }),
    ] {
        let path = reshard(&ty, from, to, &mesh, &Ring).expect("there is a path");
        assert_eq!(path.steps, [step]);
    }
}

/// Steps as a damaged plan may have them: none applies, none panics.
#[test]
fn senseless_steps_do_not_apply() {
    let mesh = Mesh::new([("x", 2), ("y", 2)]);
    let shape = [4, 6];
    let (x, y, nowhere) = (AxisId(0), AxisId(1), AxisId(9));
    let mut s = Sharding::replicated(2);
    s.dims[0] = DimSharding::split([x]);
    for step in [
        Step::AllGather { axes: vec![], dim: 0 },
        Step::AllGather { axes: vec![x], dim: 7 },
        Step::AllGather { axes: vec![y], dim: 0 },
        Step::AllReduce { axes: vec![x], kind: SUM },
        Step::ReduceScatter { axes: vec![y], dim: 1, kind: SUM, unit: 1 },
        Step::AllToAll { axes: vec![x], from: 0, to: 0, unit: 1 },
        Step::AllToAll { axes: vec![x], from: 0, to: 1, unit: 0 },
        Step::AllToAll { axes: vec![x], from: 0, to: 1, unit: u64::MAX },
        Step::Slice { axes: vec![x], dim: 1, unit: 1 },
        Step::Slice { axes: vec![y, y], dim: 1, unit: 1 },
        Step::Slice { axes: vec![nowhere], dim: 1, unit: 1 },
        Step::Slice { axes: vec![y], dim: 1, unit: 4 },
        Step::ToPartial { axes: vec![x], kind: SUM },
        Step::ToPartial { axes: vec![nowhere], kind: SUM },
    ] {
        assert_eq!(step.apply(&s, &shape, &mesh), None, "{step:?}");
    }
}

/// One memory for all questions gives the answers that each gives alone.
#[test]
fn what_was_asked_before_does_not_matter() {
    let mesh = Mesh::new([("x", 2), ("y", 3)]);
    let shape = [6, 4];
    let ty = TensorType::new(DType::F32, shape);
    let all = all_shardings(&shape, &[1, 1], &mesh, SUM);
    let mut resharder = Resharder::new(&mesh, &Ring);
    for from in all.iter().rev() {
        for to in &all {
            let alone = reshard(&ty, from, to, &mesh, &Ring);
            assert_eq!(resharder.path(&ty, from, to), alone.as_ref());
            assert_eq!(resharder.cost_us(&ty, from, to), alone.map(|p| p.cost_us));
        }
        let row = resharder.paths(&ty, from, &all);
        assert_eq!(row, reshard_all(&ty, from, &all, &mesh, &Ring));
    }
}
