//! The importer on hand-made models: symbols, declarations, initializers, order, names.

use crate::builder::{graph, import, initializer, model, node, opset, refused, value, with};
use crate::builder::{int, tensor, text};
use crate::vector;
use planc_ir::interp::evaluate;
use planc_ir::onnx::export;
use planc_ir::onnx::wire::{DataLocation, StringStringEntryProto, TensorProto};
use planc_ir::onnx::{self, ImportOptions};
use planc_ir::weights::{InMemory, ModelFiles};
use planc_ir::{DType, Tensor, TensorType, ValueDef, WeightSource, digest};
use std::fs;

fn add(inputs: &str, output: &str) -> planc_ir::onnx::wire::NodeProto {
    node("Add", inputs, output)
}

#[test]
fn symbols_are_bound_from_the_command_line() {
    let x = value("x", DType::F32, "batch past_+_1 ? 2");
    let m = model(graph(vec![x], vec![], vec![add("x x", "y")], "y"));
    let e = refused(&m, &[]);
    assert!(e.contains("`batch`, `past`, `x.2`"), "{e}");
    assert!(e.contains("--bind batch=8,past=8,x.2=8"), "{e}");
    let e = refused(&m, &[("batch", 1), ("past", 2), ("x.2", 3), ("seq", 4)]);
    assert!(e.contains("--bind seq") && e.contains("batch, past, x.2"), "{e}");
    let imported = import(&m, &[("batch", 5), ("past", 2), ("x.2", 7)]).unwrap();
    assert_eq!(imported.graph.ty(imported.graph.inputs[0]).shape, [5, 3, 7, 2]);
    assert_eq!(imported.bindings["past"], 2);
}

#[test]
fn initializers_listed_as_inputs_are_weights() {
    let inputs = vec![value("x", DType::F32, "600"), value("w", DType::F32, "600")];
    let w = vector(&[0.5; 600]);
    let m = model(graph(inputs, vec![initializer("w", &w)], vec![add("x w", "y")], "y"));
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(g.inputs.len(), 1);
    assert!(g.values.iter().any(|v| v.name == "w" && matches!(v.def, ValueDef::Weight(_))));
}

#[test]
fn small_tensors_are_constants_and_large_ones_stay_in_the_file() {
    let x = || value("x", DType::F32, "300");
    let large = vector(&(0..300).map(|i| i as f32).collect::<Vec<_>>());
    let small = vector(&[3.0]);
    let weights = || vec![initializer("large", &large), initializer("small", &small)];
    let nodes = || vec![add("x large", "t"), add("t small", "y")];
    let m = model(graph(vec![x()], weights(), nodes(), "y"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    export::write(&m, &path).unwrap();
    let model = onnx::import(&path, &ImportOptions::default()).unwrap();
    let by_name = |name: &str| model.graph.values.iter().find(|v| v.name == name).unwrap();
    assert_eq!(by_name("small").def, ValueDef::Constant(small.clone().into()));
    let ValueDef::Weight(WeightSource::ModelFile { offset, bytes }) = by_name("large").def else {
        panic!("{:?}", by_name("large").def)
    };
    let file = fs::read(&path).unwrap();
    assert_eq!(&file[offset as usize..(offset + bytes) as usize], large.to_bytes());
    assert_eq!(model.parameters, 301);
    let ones = vector(&[1.0; 300]);
    let y = evaluate(&model.graph, &[ones], &ModelFiles::new(&path)).unwrap();
    assert_eq!(y[0].f64_at(299), 303.0);

    // The digest does not depend on the weight's contents, but on everything around.
    let ranges = digest::weight_ranges(&model.graph);
    assert_eq!(digest::model_digest(&path, &ranges).unwrap(), model.digest);
    let mut changed = file.clone();
    changed[offset as usize] ^= 1;
    fs::write(&path, &changed).unwrap();
    assert_eq!(onnx::import(&path, &ImportOptions::default()).unwrap().digest, model.digest);
    let mut other = m.clone();
    other.graph.as_mut().unwrap().name = text("h");
    assert_ne!(import(&other, &[]).unwrap().digest, model.digest);
}

/// A weight in a file beside the model.
fn external(name: &str, extent: i64, entries: &[(&str, &str)]) -> TensorProto {
    let entry = |(k, v): &(&str, &str)| StringStringEntryProto { key: text(k), value: text(v) };
    TensorProto {
        name: text(name),
        dims: vec![extent],
        data_type: Some(1),
        data_location: Some(DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..TensorProto::default()
    }
}

#[test]
fn external_data_are_read_only_when_a_weight_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let write = |entries: &[(&str, &str)]| {
        let x = value("x", DType::F32, "400");
        let nodes = vec![add("x w", "y")];
        let m = model(graph(vec![x], vec![external("w", 400, entries)], nodes, "y"));
        export::write(&m, &path).unwrap();
        onnx::import(&path, &ImportOptions::default())
    };
    let good = [("location", "w.bin"), ("offset", "16"), ("length", "1600")];
    let planned = write(&good).unwrap();
    let zeros = Tensor::zeros(TensorType::new(DType::F32, [400])).unwrap();
    let run = || evaluate(&planned.graph, std::slice::from_ref(&zeros), &ModelFiles::new(&path));
    let e = run().unwrap_err().to_string();
    assert!(e.contains("`w`") && e.contains("w.bin"), "{e}");

    let contents = vector(&[1.5; 404]).to_bytes();
    fs::write(folder.path().join("w.bin"), &contents).unwrap();
    assert_eq!(run().unwrap()[0].f64_at(399), 1.5);
    assert_eq!(write(&good).unwrap().graph, planned.graph);

    for (entries, part) in [
        (&[("location", "w.bin"), ("offset", "20")][..], "outside"),
        (&[("location", "w.bin"), ("offset", "-8")], "not a number"),
        (&[("location", "w.bin"), ("length", "64")], "takes 1600 bytes"),
        (&[("location", "a/../../w.bin")], "out of the model's folder"),
        (&[("location", "D:\\w.bin")], "absolute"),
        (&[("offset", "0")], "no `location`"),
    ] {
        let e = write(entries).unwrap_err().to_string();
        assert!(e.contains("initializer `w`") && e.contains(part), "{e}");
    }
}

#[test]
fn nodes_may_come_in_any_order() {
    let x = value("x", DType::F32, "2");
    let nodes = vec![add("b x", "y"), add("a x", "b"), add("x x", "a")];
    let m = model(graph(vec![x.clone()], vec![], nodes, "y"));
    let g = import(&m, &[]).unwrap().graph;
    assert_eq!(evaluate(&g, &[vector(&[1.0, 2.0])], &InMemory).unwrap(), [vector(&[4.0, 8.0])]);

    let nodes = vec![add("x c", "a"), add("a x", "b"), add("b x", "c")];
    let e = refused(&model(graph(vec![x], vec![], nodes, "c")), &[]);
    assert!(e.contains("circle") && e.contains("Add_a -> Add_b -> Add_c"), "{e}");
}

#[test]
fn names_survive_aliases_and_folding() {
    let x = value("x", DType::F32, "2");
    let nodes = vec![
        add("x x", "hidden"),
        node("Identity", "hidden", "y"),
        node("Identity", "x", "same"),
        node("Identity", "c", "known"),
        node("Identity", "y", "again"),
        add("x hidden", "unused"),
    ];
    let c = initializer("c", &vector(&[7.0]));
    let outputs = "y same known again";
    let g = import(&model(graph(vec![x], vec![c], nodes, outputs)), &[]).unwrap().graph;
    let names: Vec<&str> = g.outputs.iter().map(|&v| g.value(v).name.as_str()).collect();
    assert_eq!(names, outputs.split(' ').collect::<Vec<_>>());
    assert!(g.values.iter().all(|v| v.name != "unused"), "dead code is dropped");
    let results = evaluate(&g, &[vector(&[1.0, 2.0])], &InMemory).unwrap();
    assert_eq!(results, [[2.0, 4.0].as_slice(), &[1.0, 2.0], &[7.0], &[2.0, 4.0]].map(vector));
}

#[test]
fn scopes_come_from_metadata_or_names() {
    let x = value("x", DType::F32, "2");
    let mut a = add("x x", "a");
    a.name = text("/model/layers.0/Add");
    let mut b = add("a x", "y");
    b.metadata_props = vec![StringStringEntryProto {
        key: text("pkg.torch.onnx.name_scopes"),
        value: text("['', 'model', 'model.layers.1', 'add_7']"),
    }];
    let g = import(&model(graph(vec![x], vec![], vec![a, b], "y")), &[]).unwrap().graph;
    let scopes: Vec<&str> = g.nodes.iter().map(|n| n.scope.as_str()).collect();
    assert_eq!(scopes, ["model.layers.0", "model.layers.1"]);
}

#[test]
fn one_error_lists_everything_unsupported() {
    let x = value("x", DType::F32, "2");
    let nodes = vec![
        node("Frobnicate", "x", "a"),
        add("a x", "b"),
        node("Frobnicate", "b", "c"),
        node("Explode", "c", "d"),
        add("d x", "y"),
        node("Ignored", "x", "nobody_reads_this"),
    ];
    let mut m = model(graph(vec![x], vec![], nodes, "y"));
    m.graph.as_mut().unwrap().node[3].domain = text("acme");
    m.opset_import.push(opset("acme", 3));
    let e = refused(&m, &[]);
    assert!(e.contains("Frobnicate: `Frobnicate_a`, `Frobnicate_c`"), "{e}");
    assert!(e.contains("acme::Explode: `Explode_d`") && !e.contains("Ignored"), "{e}");
}

#[test]
fn a_large_constant_node_is_a_weight() {
    let large = vector(&[2.0; 1000]);
    let x = value("x", DType::F32, "1000");
    let constant = with(node("Constant", "", "w"), vec![tensor("value", initializer("", &large))]);
    let m = model(graph(vec![x], vec![], vec![constant, add("x w", "y")], "y"));
    let g = import(&m, &[]).unwrap().graph;
    let w = g.values.iter().find(|v| v.name == "w").unwrap();
    assert!(matches!(w.def, ValueDef::Weight(WeightSource::ModelFile { bytes: 4000, .. })));
}

#[test]
fn contradictions_are_refused() {
    let x = || value("x", DType::F32, "2");
    let simple = |nodes| model(graph(vec![x()], vec![], nodes, "y"));
    let mut m = simple(vec![add("x x", "y")]);
    m.graph.as_mut().unwrap().value_info = vec![value("y", DType::I64, "2")];
    assert!(refused(&m, &[]).contains("`y` is declared as i64, but is f32"));

    let e = refused(&simple(vec![add("x x", "y"), add("x x", "y")]), &[]);
    assert!(e.contains("`y` is defined twice: by node `Add_y` and by node `Add_y`"), "{e}");
    let e = refused(&simple(vec![add("x nothing", "y")]), &[]);
    assert!(e.contains("`Add_y`") && e.contains("`nothing`"), "{e}");
    let e = refused(&simple(vec![add("x x", "z")]), &[]);
    assert!(e.contains("output `y`"), "{e}");
    let e = refused(&simple(vec![with(node("Concat", "x x", "y"), vec![])]), &[]);
    assert!(e.contains("`axis`") && e.contains("`Concat_y`"), "{e}");
    let twice = vec![int("axis", 0), int("axis", 0)];
    let e = refused(&simple(vec![with(node("Concat", "x x", "y"), twice)]), &[]);
    assert!(e.contains("twice"), "{e}");
    let mut m = simple(vec![add("x x", "y")]);
    m.opset_import = vec![opset("ai.onnx", 6)];
    assert!(refused(&m, &[]).contains("convert_version(model, 7)"));
    m.opset_import = vec![opset("", 17), opset("ai.onnx", 18)];
    assert!(refused(&m, &[]).contains("imported twice"));
}

#[test]
fn sixteen_bit_floats_lie_in_int32_data() {
    for (data_type, bits, dtype) in [(10, 0x3e00, DType::F16), (16, 0x3fc0, DType::BF16)] {
        let w = TensorProto {
            name: text("w"),
            dims: vec![1],
            data_type: Some(data_type),
            int32_data: vec![bits],
            ..TensorProto::default()
        };
        let g = import(&model(graph(vec![], vec![w], vec![], "w")), &[]).unwrap().graph;
        let t = g.constant_of(g.outputs[0]).unwrap();
        assert_eq!((t.dtype(), t.f64_at(0)), (dtype, 1.5));
    }
}

#[test]
fn tensor_files_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pb");
    for dtype in planc_ir::dtype::ALL {
        let ty = TensorType::new(dtype, [2, 3]);
        let t = Tensor::from_int(ty, |i| i as i128 % 2).unwrap();
        onnx::tensor::write_tensor(&path, "t", &t).unwrap();
        assert_eq!(onnx::tensor::read_tensor(&path).unwrap(), ("t".to_string(), t));
    }
}
