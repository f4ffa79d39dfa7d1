//! Resharding steps on known placements.

use planc_cost_model::{Catalogue, Cluster, Collective, CostModel};
use planc_ir::ops::{Work, WorkKind};
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::spec::ReduceKind;
use planc_ir::sharding::{AxisId, Mesh};
use planc_ir::{DType, TensorType};

const OUTER: AxisId = AxisId(0);
const INNER: AxisId = AxisId(1);

fn model(cluster: &str) -> CostModel {
    let catalogue = Catalogue::shipped().unwrap();
    CostModel::new(&Cluster::preset(cluster, &catalogue).unwrap(), &catalogue).unwrap()
}

fn f16(shape: &[u64]) -> TensorType {
    TensorType::new(DType::F16, shape)
}

#[test]
fn the_inner_axis_stays_in_a_node_and_the_outer_one_crosses() {
    let m = model("dgx-h100:2");
    let mesh = Mesh::new([("data", 2), ("tensor", 8)]);
    let inner = m.group(&mesh, &[INNER]);
    assert_eq!((inner.size, inner.nodes, inner.ranks_per_node), (8, 1, 8));
    assert!(inner.across.is_none() && inner.in_switch_bytes_per_us.is_some());
    let outer = m.group(&mesh, &[OUTER]);
    assert_eq!((outer.size, outer.nodes, outer.ranks_per_node), (2, 2, 1));
    assert!(outer.within.is_none());
    let both = m.group(&mesh, &[OUTER, INNER]);
    assert_eq!((both.size, both.nodes, both.ranks_per_node), (16, 2, 8));
}

#[test]
fn siblings_share_the_adapters_of_a_node() {
    let m = model("dgx-h100:2");
    // One group of 16 has all 8 adapters of a node; 8 pairs have one each.
    let alone = m.group(&Mesh::new([("a", 16)]), &[AxisId(0)]).across.unwrap();
    let pairs = m.group(&Mesh::new([("a", 2), ("b", 8)]), &[OUTER]).across.unwrap();
    assert!((alone.bytes_per_us / pairs.bytes_per_us - 8.0).abs() < 1e-9);
    let v100 = model("dgx-v100:2"); // 4 adapters
    let alone = v100.group(&Mesh::new([("a", 16)]), &[AxisId(0)]).across.unwrap();
    let pairs = v100.group(&Mesh::new([("a", 2), ("b", 8)]), &[OUTER]).across.unwrap();
    assert!((alone.bytes_per_us / pairs.bytes_per_us - 8.0).abs() < 1e-9);
    assert!((pairs.flow_bytes_per_us / pairs.bytes_per_us - 2.0).abs() < 1e-9);
}

#[test]
fn a_group_that_straddles_nodes_is_priced_as_crossing() {
    let m = model("dgx-a100:2");
    let facts = m.group(&Mesh::new([("a", 12)]), &[AxisId(0)]);
    assert_eq!((facts.nodes, facts.ranks_per_node), (2, 8));
    // Of the groups {0..5}, {6..11}, only the second crosses: the slower decides.
    let facts = m.group(&Mesh::new([("a", 2), ("b", 6)]), &[INNER]);
    assert_eq!((facts.size, facts.nodes, facts.ranks_per_node), (6, 2, 6));
}

#[test]
fn a_large_all_reduce_runs_near_the_published_bus_bandwidth() {
    let bytes = 4.0 * f64::from(1u32 << 30);
    for (cluster, ranks, bus_gbytes_per_s) in
        [("dgx-a100", 8, 234.0), ("dgx-h100", 8, 480.0), ("dgx-v100", 8, 134.0)]
    {
        let mesh = Mesh::new([("a", ranks)]);
        let us = model(cluster).collective_us(Collective::AllReduce, bytes, &mesh, &[AxisId(0)]);
        let n = f64::from(ranks);
        let bus = 2.0 * (n - 1.0) / n * bytes / us / 1e3;
        assert!((bus / bus_gbytes_per_s - 1.0).abs() < 0.1, "{cluster}: {bus}");
    }
}

#[test]
fn steps_price_their_collective_and_the_passes_around_it() {
    let m = model("dgx-h100");
    let mesh = Mesh::new([("data", 2), ("tensor", 4)]);
    let (whole, rows, columns) = (f16(&[4096, 4096]), f16(&[1024, 4096]), f16(&[4096, 1024]));
    let axes = vec![INNER];
    let us = |step: &Step, before, after| m.step_us(step, before, after, &mesh);
    let collective = |kind, ty: &TensorType| m.collective_us(kind, ty.bytes() as f64, &mesh, &axes);
    let sum = ReduceKind::Sum;

    let all_reduce = us(&Step::AllReduce { axes: axes.clone(), kind: sum }, &whole, &whole);
    assert_eq!(all_reduce, collective(Collective::AllReduce, &whole));

    let gather_rows = us(&Step::AllGather { axes: axes.clone(), dim: 0 }, &rows, &whole);
    assert_eq!(gather_rows, collective(Collective::AllGather, &whole));
    // Columns arrive as blocks and are put in place by one pass over the tensor.
    let gather_columns = us(&Step::AllGather { axes: axes.clone(), dim: 1 }, &columns, &whole);
    let pass_us = 2.0 * whole.bytes() as f64 / 3.03e6 + 2.0;
    assert!((gather_columns - gather_rows - pass_us).abs() < 0.1);

    let scatter = Step::ReduceScatter { axes: axes.clone(), dim: 0, kind: sum, unit: 1 };
    let both = us(&scatter, &whole, &rows) + gather_rows;
    assert!(us(&scatter, &whole, &rows) < all_reduce && both > all_reduce);

    let slice = Step::Slice { axes: axes.clone(), dim: 0, unit: 1 };
    let to_partial = Step::ToPartial { axes: axes.clone(), kind: sum };
    assert!(us(&slice, &whole, &rows) < us(&to_partial, &whole, &whole));
    assert!(us(&to_partial, &whole, &whole) < all_reduce);

    let exchange = Step::AllToAll { axes: axes.clone(), from: 0, to: 1, unit: 1 };
    assert!(us(&exchange, &rows, &columns) > collective(Collective::AllToAll, &rows));
}

#[test]
fn a_mixed_cluster_runs_at_the_pace_of_its_slowest_device() {
    let catalogue = Catalogue::shipped().unwrap();
    let text = r#"{"name": "mixed", "inter": "ib-hdr200", "nodes": [
        {"devices": 8, "device": "h100"}, {"devices": 8, "device": "v100"}]}"#;
    let mixed = CostModel::new(&Cluster::from_json(text, &catalogue).unwrap(), &catalogue).unwrap();
    let work = Work {
        kind: WorkKind::Matmul { batch: 1, m: 4096, n: 4096, k: 4096 },
        flops: 2.0 * 4096f64.powi(3),
        bytes: 3.0 * 2.0 * 4096f64.powi(2),
    };
    let slow = mixed.op_us(&work, DType::F16);
    assert_eq!(slow, model("dgx-v100").op_us(&work, DType::F16));
    assert_eq!(slow, mixed.device_op_us(15, &work, DType::F16));
    assert!(mixed.device_op_us(7, &work, DType::F16) < slow / 4.0);
    // A switch that adds helps only groups that lie on such switches.
    let mesh = Mesh::new([("node", 2), ("device", 8)]);
    assert!(mixed.group(&mesh, &[INNER]).in_switch_bytes_per_us.is_none());
}
