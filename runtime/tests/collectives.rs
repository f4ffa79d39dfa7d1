//! Collectives between threads, and resharding steps built on them, against their definitions.
#![allow(clippy::unwrap_used, clippy::float_cmp)] // sums of small integers are exact

mod common;

use common::axes;
use planc_ir::program::{Buffer, Slot};
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisId, DimSharding, Mesh, ReduceKind, Sharding};
use planc_ir::tensor::{strides, unravel};
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::CommError;
use planc_runtime::comm::local::{LocalComm, World};
use planc_runtime::comm::reshard::Reshard;
use planc_runtime::comm::{Comm, Group};
use planc_runtime::device::bytes::AlignedBytes;
use std::sync::Arc;

/// Runs `work` for each rank at the same time.
fn on_ranks<T: Send>(ranks: u32, work: impl Fn(u32, &mut LocalComm) -> T + Sync) -> Vec<T> {
    let world = Arc::new(World::default());
    let work = &work;
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let mut comm = LocalComm::new(&world);
                s.spawn(move || work(rank, &mut comm))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn everyone(ranks: u32, rank: u32) -> Group {
    Group { ranks: (0..ranks).collect(), position: rank as usize }
}

/// A sequence of irregular numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// What a rank contributes to an element; ranks that hold the same replica contribute the same.
fn contribution(element: usize, partial_coord: &[u32]) -> i64 {
    let mut dice = Dice(element as u64 * 31 + 7);
    for &c in partial_coord {
        dice.0 ^= u64::from(c + 1) << 20;
        dice.below(2);
    }
    dice.below(17) as i64 - 8
}

fn fold(kind: ReduceKind, dtype: DType, values: impl Iterator<Item = f64>) -> f64 {
    let round = |x: f64| if dtype == DType::Bool { f64::from(u8::from(x != 0.0)) } else { x };
    let combine = |a: f64, b: f64| match kind {
        ReduceKind::Sum => a + b,
        ReduceKind::Prod => a * b,
        ReduceKind::Max => a.max(b),
        ReduceKind::Min => a.min(b),
    };
    values.map(round).reduce(combine).map(round).unwrap()
}

/// The coordinates that agree with `coord` but along the partial axes.
fn over_partial(sharding: &Sharding, mesh: &Mesh, coord: &[u32]) -> Vec<Vec<u32>> {
    let on: Vec<AxisId> = sharding.partial.iter().map(|p| p.0).collect();
    mesh.group(mesh.rank_at(coord), &on).into_iter().map(|r| mesh.coord(r)).collect()
}

/// One rank's part of the tensor in a sharding.
fn part(buffer: &Buffer, mesh: &Mesh, rank: u32) -> AlignedBytes {
    let coord = mesh.coord(rank);
    let local = buffer.local(mesh, &coord);
    let whole = strides(&buffer.ty.shape);
    let partial: Vec<u32> = buffer.sharding.partial.iter().map(|p| coord[p.0.index()]).collect();
    let tensor = Tensor::from_int(local.ty.clone(), |i| {
        let at = unravel(i, &local.ty.shape);
        let element: usize =
            (0..at.len()).map(|d| (at[d] + local.start[d] as usize) * whole[d]).sum();
        contribution(element, &partial).into()
    });
    AlignedBytes::copy_of(&tensor.unwrap().to_bytes()).unwrap()
}

/// All steps that apply to a sharding.
fn steps(from: &Sharding, shape: &[u64], mesh: &Mesh) -> Vec<(Step, Sharding)> {
    let rank = shape.len();
    let used: Vec<AxisId> = from.split_axes().chain(from.partial.iter().map(|p| p.0)).collect();
    let free: Vec<AxisId> = mesh.axis_ids().filter(|a| !used.contains(a)).collect();
    let subsets = |of: &[AxisId]| -> Vec<Vec<AxisId>> {
        (1..1usize << of.len())
            .map(|mask| (0..of.len()).filter(|i| mask >> i & 1 == 1).map(|i| of[i]).collect())
            .collect()
    };
    let mut found = Vec::new();
    for kind in [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod] {
        let on: Vec<AxisId> = from.partial.iter().filter(|p| p.1 == kind).map(|p| p.0).collect();
        for axes in subsets(&on) {
            found.push(Step::AllReduce { axes: axes.clone(), kind });
            for (dim, unit) in (0..rank).flat_map(|d| [(d, 1), (d, 2)]) {
                found.push(Step::ReduceScatter { axes: axes.clone(), dim, kind, unit });
            }
        }
        for axes in subsets(&free) {
            found.push(Step::ToPartial { axes, kind });
        }
    }
    for axes in subsets(&free) {
        for (dim, unit) in (0..rank).flat_map(|d| [(d, 1), (d, 2)]) {
            found.push(Step::Slice { axes: axes.clone(), dim, unit });
        }
    }
    for dim in 0..rank {
        let own = &from.dims[dim].axes;
        for first in 0..own.len() {
            let axes = own[first..].to_vec();
            found.push(Step::AllGather { axes: axes.clone(), dim });
            for (to, unit) in (0..rank).filter(|&t| t != dim).flat_map(|t| [(t, 1), (t, 2)]) {
                found.push(Step::AllToAll { axes: axes.clone(), from: dim, to, unit });
            }
        }
    }
    found.into_iter().filter_map(|s| s.apply(from, shape, mesh).map(|to| (s, to))).collect()
}

fn check(step: &Step, ty: &TensorType, from: &Sharding, to: &Sharding, mesh: &Mesh) {
    let buffer = |sharding: &Sharding| Buffer {
        name: "v".into(),
        ty: ty.clone(),
        sharding: sharding.clone(),
        dynamic: false,
        copies: 1,
        slot: Slot::default(),
    };
    let (from, to) = (buffer(from), buffer(to));
    let results = on_ranks(mesh.ranks(), |rank, comm| {
        let local = to.local(mesh, &mesh.coord(rank));
        let mut out = AlignedBytes::zeroed(local.ty.bytes()).unwrap();
        out.fill(0x5A); // what was there before must not matter
        let reshard = Reshard { mesh, rank, first_rank: 0, from: &from, to: &to };
        reshard.run(step, &part(&from, mesh, rank), &mut out, comm).unwrap();
        (local.clone(), Tensor::from_bytes(local.ty, &out).unwrap())
    });
    let what = format!("{step:?} of {ty} from {:?} on {mesh}", from.sharding);
    let kind = |s: &Sharding| s.partial.first().map_or(ReduceKind::Sum, |p| p.1);
    let whole = strides(&ty.shape);
    for rank in 0..mesh.ranks() {
        let (local, _) = &results[rank as usize];
        let coord = mesh.coord(rank);
        for i in 0..local.ty.elements() as usize {
            let at = unravel(i, &local.ty.shape);
            let element: usize =
                (0..at.len()).map(|d| (at[d] + local.start[d] as usize) * whole[d]).sum();
            let contributions = over_partial(&from.sharding, mesh, &coord).into_iter().map(|c| {
                let on: Vec<u32> = from.sharding.partial.iter().map(|p| c[p.0.index()]).collect();
                contribution(element, &on) as f64
            });
            let want = if ty.dtype == DType::Bool || !from.sharding.partial.is_empty() {
                fold(kind(&from.sharding), ty.dtype, contributions)
            } else {
                contribution(element, &[]) as f64
            };
            let got = over_partial(&to.sharding, mesh, &coord)
                .into_iter()
                .map(|c| results[mesh.rank_at(&c) as usize].1.f64_at(i));
            let got = fold(kind(&to.sharding), ty.dtype, got);
            assert_eq!(got, want, "{what}: rank {rank}, element {element}");
        }
    }
}

#[test]
fn every_step_keeps_the_value() {
    let mut uneven = Mesh::new([("x", 2), ("y", 3)]);
    uneven.axes[1].shares = Some(vec![1, 3, 2]);
    let meshes = [
        Mesh::new([("x", 4)]),
        Mesh::new([("x", 2), ("y", 3)]),
        Mesh::new([("x", 2), ("y", 1), ("z", 2)]),
        Mesh::new([("x", 2), ("y", 2), ("z", 2)]),
        uneven,
    ];
    let shapes: [&[u64]; 7] = [&[], &[5], &[8], &[4, 6], &[3, 7], &[2, 0], &[3, 4, 5]];
    let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min, ReduceKind::Prod];
    let mut dice = Dice(1);
    let mut seen = [0usize; 6];
    for round in 0..400 {
        let mesh = &meshes[round % meshes.len()];
        let shape = shapes[dice.below(shapes.len())];
        let kind = kinds[dice.below(4)];
        let mut from = Sharding::replicated(shape.len());
        for a in mesh.axis_ids() {
            match dice.below(shape.len() + 2) {
                0 => {}
                1 => from.partial.push((a, kind)),
                d => from.dims[d - 2].axes.push(a),
            }
        }
        for (d, &n) in from.dims.iter_mut().zip(shape) {
            if n % 2 == 0 && !d.axes.is_empty() && dice.below(3) == 0 {
                d.unit = 2;
            }
        }
        let from = from.canonical(shape, mesh);
        let dtype = match kind {
            ReduceKind::Sum => [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64],
            ReduceKind::Prod => [DType::F64, DType::I64, DType::F64, DType::F64, DType::I64],
            _ => [DType::F32, DType::Bool, DType::I8, DType::F16, DType::I32],
        }[dice.below(5)];
        let ty = TensorType::new(dtype, shape);
        let found = steps(&from, shape, mesh);
        for _ in 0..3.min(found.len()) {
            let (step, to) = &found[dice.below(found.len())];
            // A bool has no sum or product, so nothing becomes a partial one.
            let partial = matches!(step, Step::ToPartial { kind: k, .. } if *k != kind);
            if partial {
                continue;
            }
            seen[match step {
                Step::AllReduce { .. } => 0,
                Step::ReduceScatter { .. } => 1,
                Step::AllGather { .. } => 2,
                Step::AllToAll { .. } => 3,
                Step::Slice { .. } => 4,
                Step::ToPartial { .. } => 5,
            }] += 1;
            check(step, &ty, &from, to, mesh);
        }
    }
    assert!(seen.iter().all(|&n| n > 20), "too few of some kind of step: {seen:?}");
}

#[test]
fn results_do_not_depend_on_timing() {
    // Contributions whose sum depends on its order, in ranks that arrive at random.
    let values = [1e8f32, 1.0, -1e8, 0.5, 3e7, -2.5];
    let reduce = || {
        on_ranks(6, |rank, comm| {
            std::thread::sleep(std::time::Duration::from_micros(u64::from(rank * 7 % 5) * 100));
            let mut buffer = AlignedBytes::copy_of(&values[rank as usize].to_le_bytes()).unwrap();
            comm.all_reduce(&everyone(6, rank), DType::F32, ReduceKind::Sum, &mut buffer).unwrap();
            buffer.to_vec()
        })
    };
    let first = reduce();
    assert!(first.iter().all(|r| *r == first[0]));
    for _ in 0..50 {
        assert_eq!(reduce(), first);
    }
}

#[test]
fn groups_do_not_disturb_each_other() {
    // Rows and columns of a grid reduce in turn, many times, without any common barrier.
    let mesh = Mesh::new([("row", 2), ("column", 3)]);
    let results = on_ranks(6, |rank, comm| {
        let mut buffer = AlignedBytes::copy_of(&1i64.to_le_bytes()).unwrap();
        for round in 0..60 {
            let on = axes(&[(round % 2) as u8]);
            let ranks = mesh.group(rank, &on);
            let position = ranks.iter().position(|&r| r == rank).unwrap();
            let group = Group { ranks, position };
            comm.all_reduce(&group, DType::I64, ReduceKind::Sum, &mut buffer).unwrap();
        }
        i64::from_le_bytes(buffer[..].try_into().unwrap())
    });
    assert_eq!(results, [6i64.wrapping_pow(30); 6]);
}

#[test]
fn an_abort_releases_those_who_wait() {
    let results = on_ranks(3, |rank, comm| {
        if rank == 1 {
            comm.abort();
            return Ok(());
        }
        comm.barrier(&everyone(3, rank))
    });
    assert_eq!(results, [Err(CommError::Aborted), Ok(()), Err(CommError::Aborted)]);
}

#[test]
fn ranks_that_disagree_are_told() {
    let results = on_ranks(2, |rank, comm| {
        let mut buffer = AlignedBytes::zeroed(8 * u64::from(rank + 1)).unwrap();
        let result = comm.all_reduce(&everyone(2, rank), DType::F32, ReduceKind::Sum, &mut buffer);
        if result.is_err() {
            comm.abort();
        }
        result
    });
    assert!(results.iter().any(|r| matches!(r, Err(CommError::Mismatch { .. }))), "{results:?}");
}

#[test]
fn units_split_in_blocks() {
    let mesh = Mesh::new([("x", 3)]);
    let ty = TensorType::new(DType::F32, [8, 2]);
    let from = Sharding::replicated(2);
    let step = Step::Slice { axes: axes(&[0]), dim: 0, unit: 4 };
    let to = step.apply(&from, &ty.shape, &mesh).unwrap();
    assert_eq!(to.dims[0], DimSharding { axes: axes(&[0]), unit: 4 });
    check(&step, &ty, &from, &to, &mesh);
    check(&Step::AllGather { axes: axes(&[0]), dim: 0 }, &ty, &to, &from, &mesh);
}
