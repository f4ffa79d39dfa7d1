//! How many prices a second: the search asks for millions.
#![allow(clippy::unwrap_used, missing_docs)]

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::ops::{Work, WorkKind};
use planc_ir::sharding::reshard::{Step, StepCost};
use planc_ir::sharding::spec::ReduceKind;
use planc_ir::sharding::{AxisId, Mesh};
use planc_ir::{DType, TensorType};

fn main() {
    divan::main();
}

fn model() -> CostModel {
    let catalogue = Catalogue::shipped().unwrap();
    CostModel::new(&Cluster::preset("dgx-h100:4", &catalogue).unwrap(), &catalogue).unwrap()
}

#[divan::bench]
fn thousand_matrix_products(bencher: Bencher) {
    let model = model();
    let works: Vec<Work> = (0..1000)
        .map(|i| {
            let (m, n, k) = (1 + i * 7 % 4096, 1 + i * 131 % 8192, 1 + i * 37 % 8192);
            let bytes = (2 * (m * k + k * n + m * n)) as f64;
            Work { kind: WorkKind::Matmul { batch: 1, m, n, k }, flops: 0.0, bytes }
        })
        .collect();
    bencher
        .counter(ItemsCount::new(1000usize))
        .bench_local(|| works.iter().map(|w| model.op_us(black_box(w), DType::F16)).sum::<f64>());
}

#[divan::bench]
fn thousand_steps(bencher: Bencher) {
    let model = model();
    let mesh = Mesh::new([("data", 4), ("tensor", 8)]);
    let step = Step::AllReduce { axes: vec![AxisId(1)], kind: ReduceKind::Sum };
    let types: Vec<_> = (0..1000).map(|i| TensorType::new(DType::F16, [64 + i, 4096])).collect();
    bencher.counter(ItemsCount::new(1000usize)).bench_local(|| {
        types.iter().map(|t| model.step_us(&step, black_box(t), t, &mesh)).sum::<f64>()
    });
}
