//! What `planc inspect` says of real models: parameters and matrix FLOPs are those that the model set's own
//! counter states, and transformers are seen for what they are.
#![allow(clippy::print_stderr)] // a table of what was seen

use planc::inspect::{Inspection, inspect, report};
use planc::rewrite::raise;
use planc_ir::onnx::{ImportError, ImportOptions, Model, import};
use planc_tests::{run_model, shared};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Files whose FLOPs are counted otherwise, and why.
const COUNTED_OTHERWISE: [(&str, &str); 7] = [
    ("dit-dynamo", "its Einsum only permutes; the reference counts two operations an element"),
    ("dit-xl-2-dynamo", "its Einsum only permutes; the reference counts two operations an element"),
    ("dlrm-bag-legacy", "only the run knows the extents behind its loops"),
    ("old-llama-legacy", "a product of two constants is folded"),
    ("rnn-dynamo", "the reference does not count recurrent layers"),
    ("rnn-legacy", "the reference does not count recurrent layers"),
    ("tf-lstm", "the reference does not count recurrent layers"),
];

/// Files of two layers that differ: the first also holds nodes that both share, or nodes stand in another order.
const DIFFERING_LAYERS: [&str; 5] =
    ["llama-kv-hf", "llama-ortfused-hf", "mixtral-hf", "t5-hf", "tf-bert-like"];

/// Mixtures of experts that stay as the file writes them, and why.
const UNRAISED_EXPERTS: [(&str, &str); 2] = [
    ("mixtral-eager-legacy", "the file holds only the experts that its sample went to"),
    ("mixtral-8x7b-gshard-dynamo-fp16", "its dispatch drops tokens beyond an expert's capacity"),
];

/// Imports under those of the given dimensions that the model's inputs have.
fn import_at(path: &Path, dims: &Value) -> Result<Model, ImportError> {
    let dims = dims.as_object().into_iter().flatten();
    let mut bind: BTreeMap<String, u64> =
        dims.filter_map(|(name, n)| Some((name.clone(), n.as_u64()?))).collect();
    loop {
        match import(path, &ImportOptions { bind: bind.clone(), ..ImportOptions::default() }) {
            Err(ImportError::UnknownBinding { name, .. }) if bind.remove(&name).is_some() => {}
            result => return result,
        }
    }
}

fn count(inspection: &Inspection, family: &str) -> u64 {
    inspection.families.iter().find(|f| f.name == family).map_or(0, |f| f.count)
}

/// Transformers by name, which must show attention, norms and MLPs.
fn is_transformer(name: &str) -> bool {
    let families = ["bert", "gpt", "llama", "mixtral", "t5-", "vit", "whisper", "dit"];
    families.iter().any(|family| name.contains(family)) && !name.contains("int8")
}

#[test]
fn sizes_and_layers_of_the_model_set() {
    let Some(shared) = shared() else {
        eprintln!("SKIPPED: the optional model folder ../shared/models is absent");
        return;
    };
    let index = std::fs::read_to_string(shared.join("index.json")).expect("index.json");
    let index: Value = serde_json::from_str(&index).expect("index.json");
    let files = ["run", "plan"].iter().flat_map(|set| index[set].as_array().into_iter().flatten());
    let mut wrong = Vec::new();
    eprintln!(
        "{:<38} {:>9} {:>12}  attention norm mlp moe  layers",
        "model", "parameters", "MFLOP"
    );
    for entry in files {
        let name = entry["name"].as_str().expect("a name");
        let path = shared.join(entry["file"].as_str().expect("a file"));
        let work = &entry["matrix_flops"];
        let model = match import_at(&path, &work["dims"]) {
            Ok(model) => model,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let found = inspect(&model, &raise(&model.graph));
        let flops: f64 = found.matrix_flops.values().sum();
        let layers: Vec<String> =
            found.layers.iter().map(|l| format!("{}×{}", l.repeats, l.nodes)).collect();
        let [attention, norm, mlp, experts] =
            ["attention", "norm", "mlp", "mixture of experts"].map(|family| count(&found, family));
        eprintln!(
            "{name:<38} {:>9} {:>12.3}  {attention:>9} {norm:>4} {mlp:>3} {experts:>3}  {}",
            found.parameters,
            flops / 1e6,
            layers.join(" ")
        );
        if Some(found.parameters) != entry["parameters"].as_u64() {
            wrong.push(format!(
                "{name}: {} parameters, not {}",
                found.parameters, entry["parameters"]
            ));
        }
        let exact = work["unresolved_nodes"] == 0
            && COUNTED_OTHERWISE.iter().all(|(other, _)| *other != name);
        if exact && Some(flops) != work["total"].as_f64() {
            wrong.push(format!("{name}: {flops} matrix FLOPs, not {}", work["total"]));
        }
        if is_transformer(name) {
            let has_mlp = mlp + experts > 0 || UNRAISED_EXPERTS.iter().any(|(n, _)| *n == name);
            if attention == 0 || norm == 0 || !has_mlp {
                let families = &found.families;
                wrong.push(format!("{name}: not all of attention, norms and MLPs: {families:?}"));
            }
            let in_blocks = found.layers.iter().filter(|l| l.repeats > 1);
            let in_blocks: u64 = in_blocks.map(|l| l.repeats * l.nodes).sum();
            let differs = DIFFERING_LAYERS.contains(&name);
            if in_blocks * 2 < found.nodes && !differs {
                let layers = layers.join(" ");
                wrong.push(format!("{name}: its layers are not seen as repeats: {layers}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn reports() {
    for name in ["gpt2-dynamo", "llama-dynamo", "resnet18-dynamo", "dlrm-dynamo"] {
        let Some(test) = run_model(name) else { continue };
        let bind = planc_tests::bindings(&test.path, &test.sets[0]).into_iter().collect();
        let model = import(&test.path, &ImportOptions { bind, ..ImportOptions::default() })
            .expect("imports");
        let text = report(name, &inspect(&model, &raise(&model.graph)));
        insta::assert_snapshot!(format!("inspect-{name}"), text);
    }
}
