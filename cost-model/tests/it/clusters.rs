//! Clusters: by count, by preset, by file; what is refused, and with which words.

use planc_cost_model::{Catalogue, Cluster, CostError, CostModel};
use planc_ir::sharding::Mesh;
use std::fs;

fn catalogue() -> Catalogue {
    Catalogue::shipped().unwrap()
}

fn read(text: &str) -> Result<Cluster, CostError> {
    Cluster::from_json(text, &catalogue())
}

fn message(text: &str) -> String {
    read(text).unwrap_err().to_string()
}

#[test]
fn counted_devices_fill_usual_nodes() {
    let c = Cluster::homogeneous("H100", 20, &catalogue()).unwrap();
    let nodes: Vec<_> = c.nodes.iter().map(|n| (n.count, n.devices)).collect();
    assert_eq!(nodes, [(2, 8), (1, 4)]);
    assert_eq!(c.devices(), 20);
    assert_eq!(c.inter.unwrap().name, "ib-ndr400");
    let one = Cluster::homogeneous("a100-80", 8, &catalogue()).unwrap();
    assert_eq!((one.node_count(), one.inter), (1, None));
}

#[test]
fn presets_are_nodes_of_their_kind() {
    let c = Cluster::preset("dgx-a100:4", &catalogue()).unwrap();
    assert_eq!((c.devices(), c.nodes[0].device.as_str()), (32, "a100-sxm-80gb"));
    for (name, _) in planc_cost_model::preset::presets() {
        let c = Cluster::preset(name, &catalogue()).unwrap();
        assert!(CostModel::new(&c, &catalogue()).is_ok(), "{name}");
    }
}

#[test]
fn a_file_may_mix_devices_and_spell_links_out() {
    let c = read(
        r#"{
            "name": "mixed",
            "nodes": [
                {"count": 2, "devices": 8, "device": "H100"},
                {"devices": 4, "device": "a100", "intra": {
                    "name": "riser", "topology": "pcie", "bandwidth_bytes_per_s": 25e9,
                    "efficiency": 0.7, "launch_us": 20, "hop_us": 8
                }, "adapters": 1}
            ],
            "inter": "ethernet-25g"
        }"#,
    )
    .unwrap();
    assert_eq!((c.devices(), c.node_count()), (20, 3));
    let model = CostModel::new(&c, &catalogue()).unwrap();
    assert_eq!(model.device_names(), ["h100-sxm-80gb", "a100-sxm-80gb"]);
    assert_eq!(model.device(15).name(), "h100-sxm-80gb");
    assert_eq!(model.device(16).name(), "a100-sxm-80gb");
    // The smaller device decides what fits everywhere.
    assert_eq!(model.memory_bytes(), catalogue().device("a100").unwrap().usable_bytes());
}

#[test]
fn what_a_plan_keeps_reads_back_equal() {
    for name in ["dgx-h100:3", "dgx-v100", "dgx-a100-40:2"] {
        let c = Cluster::preset(name, &catalogue()).unwrap();
        assert_eq!(read(&c.to_json().unwrap().to_string()).unwrap(), c);
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    let node = |device: &str, rest: &str| {
        format!(r#"{{"name":"c","nodes":[{{"devices":2,"device":"{device}"{rest}}}]}}"#)
    };
    let m = message(&node("h1000", ""));
    assert!(
        m.contains("`h1000`") && m.contains("h100-sxm-80gb (h100)") && m.contains("cpu"),
        "{m}"
    );
    let m = message(&node("h100", r#","intra":"nvlink9""#));
    assert!(m.contains("`nvlink9`") && m.contains("nvlink4-nvswitch"), "{m}");
    let m = Cluster::preset("dgx-b300:2", &catalogue()).unwrap_err().to_string();
    assert!(m.contains("`dgx-b300`") && m.contains("dgx-h200"), "{m}");
    assert!(Cluster::homogeneous("TPU", 8, &catalogue()).is_err());
}

#[test]
fn hostile_values_are_refused_with_their_place() {
    let link = |field: &str, value: &str| {
        let mut fields = [
            ("bandwidth_bytes_per_s", "1e9"),
            ("efficiency", "0.9"),
            ("launch_us", "1"),
            ("hop_us", "1"),
        ];
        for f in &mut fields {
            if f.0 == field {
                f.1 = value;
            }
        }
        let fields: Vec<_> = fields.iter().map(|(k, v)| format!(r#""{k}":{v}"#)).collect();
        format!(
            r#"{{"name":"c","nodes":[{{"devices":2,"device":"cpu","intra":
            {{"name":"l","topology":"pcie",{}}}}}]}}"#,
            fields.join(",")
        )
    };
    assert!(read(&link("", "")).is_ok());
    for (field, value) in [
        ("bandwidth_bytes_per_s", "0"),
        ("bandwidth_bytes_per_s", "-1"),
        ("efficiency", "1.5"),
        ("efficiency", "0"),
        ("launch_us", "-0.1"),
    ] {
        let m = message(&link(field, value));
        assert!(m.contains(field) && m.contains("link `l`"), "{m}");
    }
    // JSON has no NaN or infinity; too large a number is refused by the reader.
    for value in ["NaN", "1e999", "null"] {
        assert!(matches!(read(&link("hop_us", value)), Err(CostError::Syntax(_))), "{value}");
    }
    for (text, word) in [
        (r#"{"name":"c","nodes":[]}"#, "nodes"),
        (r#"{"name":"c","nodes":[{"devices":0,"device":"cpu"}]}"#, "devices"),
        (r#"{"name":"c","nodes":[{"count":0,"devices":1,"device":"cpu"}]}"#, "count"),
        (r#"{"name":"c","nodes":[{"devices":1,"device":"cpu","adapters":0}]}"#, "adapters"),
        (r#"{"name":"c","nodes":[{"count":2,"devices":1,"device":"cpu"}]}"#, "inter"),
        (
            r#"{"name":"c","nodes":[{"count":4000000000,"devices":4000000000,"device":"cpu"}],"inter":"ib-ndr400"}"#,
            "1048576",
        ),
        (r#"{"name":"c","nodes":[{"devices":2,"device":"cpu","intra":"ib-ndr400"}]}"#, "intra"),
        (r#"{"name":"c","nodes":[{"devices":1,"device":"cpu","gpus":3}]}"#, "gpus"),
        (r#"{"name":"c""#, "EOF"),
    ] {
        let m = message(text);
        assert!(m.contains(word), "{text}: {m}");
    }
    assert!(Cluster::homogeneous("h100", 0, &catalogue()).is_err());
    for bad in ["dgx-h100:0", "dgx-h100:-1", "dgx-h100:99999999999", "dgx-h100:x", "dgx-h100:"] {
        assert!(Cluster::preset(bad, &catalogue()).is_err(), "{bad}");
    }
}

#[test]
fn a_mesh_must_fit_the_cluster() {
    let c = Cluster::homogeneous("h100", 8, &catalogue()).unwrap();
    let model = CostModel::new(&c, &catalogue()).unwrap();
    assert!(model.check_mesh(&Mesh::new([("data", 2), ("tensor", 4)])).is_ok());
    let m = model.check_mesh(&Mesh::new([("data", 4), ("tensor", 4)])).unwrap_err().to_string();
    assert!(m.contains("16 ranks") && m.contains("8 devices"), "{m}");
    assert!(model.check_mesh(&Mesh::new([("a", u32::MAX), ("b", u32::MAX)])).is_err());
}

#[test]
fn the_examples_of_the_documentation_are_clusters() {
    let path = format!("{}/../docs/clusters.md", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let examples: Vec<&str> =
        text.split("```json").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        let cluster = read(example).unwrap();
        assert!(CostModel::new(&cluster, &catalogue()).is_ok(), "{example}");
    }
    for name in catalogue().links().map(|l| &l.name).chain(catalogue().devices().map(|d| &d.name)) {
        assert!(text.contains(&format!("`{name}`")), "{name} is not listed");
    }
}
