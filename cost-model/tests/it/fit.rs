//! Recomputes how far the model is from the measurements that its constants were fitted to, through
//! the same functions that the search calls. `docs/cost-model.md` quotes these numbers.

use planc_cost_model::{Catalogue, Cluster, Collective, CostModel, DeviceModel, NodeGroup};
use planc_ir::DType;
use planc_ir::ops::{Work, WorkKind};
use planc_ir::sharding::{AxisId, Mesh};
use std::collections::BTreeMap;
use std::fs;

/// Rows of a file of raw measurements: its columns are named in the first line.
fn rows(file: &str) -> Vec<BTreeMap<String, String>> {
    let path = format!("{}/profiles/data/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), names.len(), "{file}: {line}");
        names.iter().zip(cells).map(|(n, c)| ((*n).to_string(), c.to_string())).collect()
    };
    lines.map(row).collect()
}

fn number(row: &BTreeMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap()
}

/// Relative errors; their quantiles are what a fit promises.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    fn add(&mut self, predicted: f64, measured: f64) {
        self.0.push((predicted / measured - 1.0).abs());
    }

    fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * q).round() as usize]
    }

    fn report(&self, name: &str) {
        let (n, mid, high) = (self.0.len(), self.quantile(0.5), self.quantile(0.9));
        let mean = self.0.iter().sum::<f64>() / n as f64;
        println!("{name:28} {n:4} points  median {mid:.3}  mean {mean:.3}  90 % {high:.3}");
    }
}

fn matmul(row: &BTreeMap<String, String>, dtype: DType) -> Work {
    let [batch, m, n, k] = ["batch", "m", "n", "k"].map(|c| number(row, c) as u64);
    let elements = batch * (m * k + k * n + m * n);
    Work {
        kind: WorkKind::Matmul { batch, m, n, k },
        flops: 2.0 * (batch * m * n * k) as f64,
        bytes: (elements * dtype.bytes()) as f64,
    }
}

/// The errors of one device by element type.
fn matmul_errors(device: &str) -> BTreeMap<String, Errors> {
    let catalogue = Catalogue::shipped().unwrap();
    let model = DeviceModel::new(catalogue.device(device).unwrap()).unwrap();
    let mut errors: BTreeMap<String, Errors> = BTreeMap::new();
    for row in rows(&format!("{device}/gemm.csv")) {
        let dtype = DType::from_name(&row["dtype"]).unwrap();
        // One chip, one fit: f16 and bf16 run alike on tensor cores.
        let name = if dtype == DType::BF16 { "f16" } else { dtype.name() };
        let predicted = model.op_us(&matmul(&row, dtype), dtype);
        errors.entry(name.into()).or_default().add(predicted, number(&row, "time_us"));
    }
    errors
}

#[test]
fn matrix_products_are_within_eight_percent_at_the_median() {
    let devices = ["v100-sxm2-32gb", "a100-sxm-80gb", "h100-sxm-80gb", "cpu"];
    let mut all = 0;
    for device in devices {
        for (dtype, errors) in matmul_errors(device) {
            errors.report(&format!("{device} {dtype}"));
            assert!(errors.quantile(0.5) <= 0.08, "{device} {dtype}");
            assert!(errors.quantile(0.9) <= 0.35, "{device} {dtype}");
            all += errors.0.len();
        }
    }
    assert_eq!(all, 1037, "measurements were lost or added: quote the new errors in the docs");
}

/// The model of the machine that a row was measured on.
fn machine(row: &BTreeMap<String, String>, catalogue: &Catalogue) -> (CostModel, Mesh) {
    let [ranks, nodes] = ["ranks", "nodes"].map(|c| number(row, c) as u32);
    let device = match row["intra"].as_str() {
        "nvlink2-mesh" => "v100",
        "nvlink3-nvswitch" => "a100",
        "nvlink4-nvswitch" => "h100",
        other => panic!("no device for {other}"),
    };
    let several = nodes > 1;
    let cluster = Cluster {
        name: row["id"].clone(),
        nodes: vec![NodeGroup {
            count: nodes,
            devices: if several { ranks / nodes } else { 8 },
            device: catalogue.device(device).unwrap().name.clone(),
            intra: catalogue.link(&row["intra"]).unwrap(),
            adapters: if several { number(row, "adapters") as u32 } else { 1 },
        }],
        inter: several.then(|| catalogue.link(&row["inter"]).unwrap()),
    };
    (CostModel::new(&cluster, catalogue).unwrap(), Mesh::new([("ranks", ranks)]))
}

#[test]
fn collectives_are_within_fifteen_percent_at_the_median() {
    let catalogue = Catalogue::shipped().unwrap();
    let mut by_kind: BTreeMap<&str, Errors> = BTreeMap::new();
    let mut by_reach: BTreeMap<String, Errors> = BTreeMap::new();
    let mut all = Errors::default();
    for row in rows("links/collectives.csv") {
        let kind = Collective::ALL.into_iter().find(|c| c.name() == row["collective"]).unwrap();
        let (model, mesh) = machine(&row, &catalogue);
        let predicted = model.collective_us(kind, number(&row, "bytes"), &mesh, &[AxisId(0)]);
        let measured = number(&row, "time_us");
        let reach = format!("{} {}", row["intra"], row["inter"]);
        by_kind.entry(kind.name()).or_default().add(predicted, measured);
        by_reach.entry(reach).or_default().add(predicted, measured);
        all.add(predicted, measured);
    }
    for (name, errors) in &by_kind {
        errors.report(name);
        assert!(errors.quantile(0.5) <= 0.15, "{name}");
    }
    for (name, errors) in &by_reach {
        errors.report(name);
        assert!(errors.quantile(0.5) <= 0.18, "{name}");
    }
    all.report("all collectives");
    assert!(all.quantile(0.5) <= 0.07);
    assert_eq!(all.0.len(), 521);
}
