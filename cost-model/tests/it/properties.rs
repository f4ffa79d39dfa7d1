//! What must hold for any work, any bytes, any placement.

use planc_cost_model::{Catalogue, Cluster, Collective, CostModel, DeviceModel};
use planc_ir::DType;
use planc_ir::dtype;
use planc_ir::ops::{Work, WorkKind};
use planc_ir::sharding::{AxisId, Mesh};
use proptest::prelude::*;
use std::sync::LazyLock;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::shipped().unwrap());

static DEVICES: LazyLock<Vec<DeviceModel>> =
    LazyLock::new(|| CATALOGUE.devices().map(|p| DeviceModel::new(p).unwrap()).collect());

static PRESETS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let kinds = planc_cost_model::preset::presets();
    kinds.flat_map(|(name, _)| [1, 2, 4].map(|nodes| format!("{name}:{nodes}"))).collect()
});

fn model(cluster: &Cluster) -> CostModel {
    CostModel::new(cluster, &CATALOGUE).unwrap()
}

fn device() -> impl Strategy<Value = &'static DeviceModel> {
    (0..DEVICES.len()).prop_map(|i| &DEVICES[i])
}

fn any_dtype() -> impl Strategy<Value = DType> {
    proptest::sample::select(dtype::ALL.to_vec())
}

/// Extents of every magnitude, half of them around powers of two, where tiles end.
fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0u32..16, -3i64..4)
            .prop_map(|(magnitude, offset)| ((1 << magnitude) + offset).max(1) as u64),
        (0.0f64..16.0).prop_map(|magnitude| magnitude.exp2() as u64),
    ]
}

fn product(conv: bool, [batch, m, n, k]: [u64; 4]) -> Work {
    let kind =
        if conv { WorkKind::Conv { batch, m, n, k } } else { WorkKind::Matmul { batch, m, n, k } };
    let [b, m, n, k] = [batch, m, n, k].map(|x| x as f64);
    Work { kind, flops: 2.0 * b * m * n * k, bytes: 2.0 * b * (m * k + k * n + m * n) }
}

fn collective() -> impl Strategy<Value = Collective> {
    proptest::sample::select(Collective::ALL.to_vec())
}

fn bytes() -> impl Strategy<Value = f64> {
    (0.0f64..36.0).prop_map(f64::exp2)
}

fn cluster() -> impl Strategy<Value = Cluster> {
    proptest::sample::select(PRESETS.clone())
        .prop_map(|name| Cluster::preset(&name, &CATALOGUE).unwrap())
}

/// A cluster, a mesh over all of it, and one to two of its three axes.
fn placed() -> impl Strategy<Value = (Cluster, Mesh, Vec<AxisId>)> {
    let axes = proptest::sample::select(vec![vec![0], vec![1], vec![2], vec![0, 2], vec![1, 2]]);
    (cluster(), 0u32..4, 0u32..4, axes).prop_map(|(cluster, a, b, axes)| {
        let bits = cluster.devices().trailing_zeros();
        let (a, b) = (a.min(bits), b.min(bits - a.min(bits)));
        let mesh = Mesh::new([("a", 1 << a), ("b", 1 << b), ("c", 1 << (bits - a - b))]);
        (cluster, mesh, axes.into_iter().map(AxisId).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn products_never_get_faster_as_an_extent_grows(
        device in device(), dtype in any_dtype(), conv: bool,
        extents in [extent(), extent(), extent(), extent()], grown in 0usize..4, by in prop_oneof![1u64..4, extent()],
    ) {
        let mut larger = extents;
        larger[grown] += by;
        let before = device.op_us(&product(conv, extents), dtype);
        let after = device.op_us(&product(conv, larger), dtype);
        prop_assert!(before > 0.0 && after >= before, "{before} {after}");
    }

    #[test]
    fn memory_bound_ops_never_get_faster_as_work_grows(
        device in device(), dtype in any_dtype(), bytes in bytes(), flops in bytes(),
        more_bytes in bytes(), more_flops in bytes(),
    ) {
        let us = |bytes, flops| device.op_us(&Work { kind: WorkKind::Memory, flops, bytes }, dtype);
        prop_assert!(us(bytes + more_bytes, flops + more_flops) >= us(bytes, flops));
        prop_assert_eq!(device.op_us(&Work::view(), dtype), 0.0);
    }

    #[test]
    fn products_never_beat_the_peak(
        device in device(), extents in [extent(), extent(), extent(), extent()],
    ) {
        let profile = CATALOGUE.device(device.name()).unwrap();
        let work = product(false, extents);
        for (&dtype, m) in &profile.matmul {
            let peak_us = work.flops / m.peak_flops_per_s.value * 1e6;
            prop_assert!(device.op_us(&work, dtype) >= peak_us);
        }
    }

    #[test]
    fn faster_devices_are_never_slower(
        extents in [extent(), extent(), extent(), extent()], factor in 1.0f64..4.0,
    ) {
        for profile in CATALOGUE.devices() {
            let mut better = profile.clone();
            better.memory.bandwidth_bytes_per_s.value *= factor;
            for m in better.matmul.values_mut() {
                m.peak_flops_per_s.value *= factor;
            }
            let work = product(false, extents);
            for dtype in [DType::F32, DType::F16] {
                let us = |p| DeviceModel::new(p).unwrap().op_us(&work, dtype);
                prop_assert!(us(&better) <= us(profile));
            }
        }
    }

    #[test]
    fn collectives_never_get_faster_as_bytes_grow(
        (cluster, mesh, axes) in placed(), collective in collective(), bytes in bytes(), more in bytes(),
    ) {
        let model = model(&cluster);
        let us = |bytes| model.collective_us(collective, bytes, &mesh, &axes);
        prop_assert!(us(bytes + more) >= us(bytes));
        if mesh.group_size(&axes) == 1 {
            prop_assert_eq!(us(bytes), 0.0);
        } else {
            prop_assert!(us(bytes) > 0.0);
        }
    }

    #[test]
    fn faster_links_are_never_slower(
        (cluster, mesh, axes) in placed(), collective in collective(), bytes in bytes(),
        factor in 1.0f64..4.0, inter: bool,
    ) {
        let mut better = cluster.clone();
        match (&mut better.inter, inter) {
            (Some(link), true) => link.bandwidth_bytes_per_s *= factor,
            _ => better.nodes[0].intra.bandwidth_bytes_per_s *= factor,
        }
        let us = |cluster| model(cluster).collective_us(collective, bytes, &mesh, &axes);
        prop_assert!(us(&better) <= us(&cluster));
    }

    #[test]
    fn more_adapters_are_never_slower(
        (mut cluster, mesh, axes) in placed(), collective in collective(), bytes in bytes(),
    ) {
        let before = model(&cluster).collective_us(collective, bytes, &mesh, &axes);
        cluster.nodes[0].adapters *= 2;
        prop_assert!(model(&cluster).collective_us(collective, bytes, &mesh, &axes) <= before);
    }

    #[test]
    fn crossing_nodes_is_never_faster_than_staying_inside(
        collective in collective(), bytes in bytes(), size in 1u32..4, nodes in 1u32..4,
    ) {
        // Groups of `size` over several nodes, against their part inside a node, and, once bandwidth
        // counts, against as many neighbours in one node.
        let (size, nodes) = (1 << size, 1 << nodes.min(size));
        let part = size / nodes;
        for kind in ["dgx-v100", "dgx-a100", "dgx-h100"] {
            let model = model(&Cluster::preset(&format!("{kind}:{nodes}"), &CATALOGUE).unwrap());
            let spread = Mesh::new([("nodes", nodes), ("other", 8 / part), ("inside", part)]);
            let together = Mesh::new([("other", 8 * nodes / size), ("group", size)]);
            let us = |mesh, axes: &[u8]| {
                let axes: Vec<AxisId> = axes.iter().copied().map(AxisId).collect();
                model.collective_us(collective, bytes, mesh, &axes)
            };
            let far = us(&spread, &[0, 2]);
            prop_assert!(far >= us(&spread, &[2]), "{kind}: {far}");
            prop_assert!(bytes < 1e7 || far >= us(&together, &[1]), "{kind}: {far}");
        }
    }

    #[test]
    fn names_and_unit_axes_do_not_matter(
        (cluster, mesh, axes) in placed(), collective in collective(), bytes in bytes(),
    ) {
        let model = model(&cluster);
        let [a, b, c] = [0, 1, 2].map(|i| mesh.size(AxisId(i)));
        let padded = Mesh::new([("p", a), ("one", 1), ("q", b), ("r", c)]);
        let moved: Vec<AxisId> =
            axes.iter().map(|x| AxisId(if x.0 == 0 { 0 } else { x.0 + 1 })).collect();
        let us = model.collective_us(collective, bytes, &mesh, &axes);
        prop_assert_eq!(us, model.collective_us(collective, bytes, &padded, &moved));
        // A cached answer is the computed one.
        prop_assert_eq!(us, model.collective_us(collective, bytes, &mesh, &axes));
    }

    #[test]
    fn symmetric_axes_cost_the_same_within_a_node(collective in collective(), bytes in bytes()) {
        let cluster = Cluster::preset("dgx-a100", &CATALOGUE).unwrap();
        let mesh = Mesh::new([("a", 2), ("b", 2), ("c", 2)]);
        let us = |i| model(&cluster).collective_us(collective, bytes, &mesh, &[AxisId(i)]);
        prop_assert!(us(0) == us(1) && us(1) == us(2));
    }
}

#[test]
fn hostile_extents_give_finite_times() {
    for device in DEVICES.iter() {
        for extents in [[u64::MAX; 4], [0; 4], [1, u64::MAX, 1, 0]] {
            let us = device.op_us(&product(false, extents), DType::F16);
            assert!(us.is_finite() && us >= 0.0, "{extents:?}: {us}");
        }
    }
}
