//! What the builders write, without importing it: sizes, names, weights, errors; read by an independent
//! protobuf library.

use onnx_protobuf::ModelProto as OtherModel;
use onnx_protobuf::tensor_proto::DataLocation;
use planc_ir::DType;
use planc_ir::onnx::wire::{ModelProto, TensorProto, ValueInfoProto};
use planc_models::{Config, FAMILIES, ModelError, Size, Weights, build, write};
use protobuf::Message;
use std::collections::BTreeSet;
use std::path::Path;

const RANDOM: Weights = Weights::Random { seed: 7 };

fn config(sizes: &[(Size, u64)]) -> Config {
    sizes.iter().fold(Config::default(), |c, &(size, value)| c.with(size, value))
}

/// Sizes that build quickly.
fn small(family: &str) -> Config {
    let sizes: &[(Size, u64)] = match family {
        "mlp" => &[(Size::Hidden, 8), (Size::Inputs, 6), (Size::Outputs, 3)],
        _ => &[
            (Size::Layers, 2),
            (Size::Hidden, 24),
            (Size::Heads, 4),
            (Size::Vocab, 11),
            (Size::Seq, 5),
        ],
    };
    config(sizes)
}

fn initializers(model: &ModelProto) -> &[TensorProto] {
    &model.graph.as_ref().expect("has a graph").initializer
}

/// The parameters: initializers that belong to a module and are trained, not constants.
fn parameters(model: &ModelProto) -> impl Iterator<Item = &TensorProto> {
    let trained =
        |t: &&TensorProto| matches!(t.name().rsplit_once('.'), Some((_, "weight" | "bias")));
    initializers(model).iter().filter(trained)
}

fn parameter_count(family: &str, config: &Config) -> i64 {
    let model = build(family, config).expect("is a model");
    parameters(&model).map(|t| t.dims.iter().product::<i64>()).sum()
}

#[test]
fn published_models_have_their_published_parameters() {
    assert_eq!(parameter_count("gpt", &Config::default()), 124_439_808);
    let xl = config(&[(Size::Layers, 48), (Size::Hidden, 1600), (Size::Heads, 25)]);
    assert_eq!(parameter_count("gpt", &xl), 1_557_611_200);
    let gpt3 = [(Size::Layers, 96), (Size::Hidden, 12288), (Size::Heads, 96), (Size::Seq, 2048)];
    assert_eq!(parameter_count("gpt", &config(&gpt3)), 174_604_259_328);
    assert_eq!(parameter_count("llama", &Config::default()), 6_738_415_616);
    let llama3 = [(Size::KvHeads, 8), (Size::Ffn, 14336), (Size::Vocab, 128_256)];
    assert_eq!(parameter_count("llama", &config(&llama3)), 8_030_261_248);
    let llama70 = [(Size::Layers, 80), (Size::Hidden, 8192), (Size::Heads, 64), (Size::Ffn, 28672)];
    let llama70 = config(&llama70).with(Size::KvHeads, 8).with(Size::Vocab, 128_256);
    assert_eq!(parameter_count("llama", &llama70), 70_553_706_496);
}

#[test]
fn parameters_follow_the_closed_formulas() {
    for (n, h, heads, f, v, s) in [(1, 2, 1, 3, 5, 7), (3, 12, 3, 50, 17, 4), (2, 64, 8, 1, 1, 1)] {
        let sizes = [
            (Size::Layers, n),
            (Size::Hidden, h),
            (Size::Heads, heads),
            (Size::Ffn, f),
            (Size::Vocab, v),
            (Size::Seq, s),
        ];
        let gpt = v * h + s * h + n * (4 * h * (h + 1) + 2 * h * f + f + h + 4 * h) + 2 * h;
        let llama = v * h + n * (4 * h * h + 3 * h * f + 2 * h) + h;
        for (family, tied_count) in [("gpt", gpt), ("llama", llama)] {
            for tied in [true, false] {
                let config = Config { tied: Some(tied), ..config(&sizes) };
                let expected = tied_count + if tied { 0 } else { v * h };
                assert_eq!(parameter_count(family, &config), expected as i64, "{family} {sizes:?}");
            }
        }
        let mlp = [(Size::Layers, n), (Size::Hidden, h), (Size::Inputs, f), (Size::Outputs, v)];
        let features: Vec<u64> = [vec![f], vec![h; n as usize - 1], vec![v]].concat();
        let expected: u64 = features.windows(2).map(|w| w[0] * w[1] + w[1]).sum();
        assert_eq!(parameter_count("mlp", &config(&mlp)), expected as i64);
    }
}

/// Every name is defined once and before it is read, and every module says its path.
#[test]
fn names_are_defined_once_and_in_order() {
    for family in FAMILIES {
        for symbolic_seq in [false, family.tied.is_some()] {
            let config = Config { symbolic_seq, ..small(family.name) };
            let model = build(family.name, &config).expect("is a model");
            let graph = model.graph.as_ref().expect("has a graph");
            let mut values = BTreeSet::new();
            for name in graph
                .input
                .iter()
                .map(ValueInfoProto::name)
                .chain(graph.initializer.iter().map(TensorProto::name))
            {
                assert!(values.insert(name), "{name} is defined twice");
            }
            let mut nodes = BTreeSet::new();
            for node in &graph.node {
                assert!(nodes.insert(node.name()), "{} is there twice", node.name());
                assert!(node.input.iter().all(|v| values.contains(v.as_str())), "{node:?}");
                for output in &node.output {
                    assert!(values.insert(output), "{output} is defined twice");
                }
                // `/h.0/attn` stands as `h.0.attn` in the module path.
                let scopes = node.metadata_props[0].value();
                let path = node.name().rsplit_once('/').expect("is a path").0;
                let module = path.trim_start_matches('/').replace('/', ".");
                assert!(scopes.contains(&format!("'{module}'")), "{} {scopes}", node.name());
            }
            assert!(graph.output.iter().all(|v| values.contains(v.name())));
            let read: BTreeSet<&str> =
                graph.node.iter().flat_map(|n| n.input.iter().map(String::as_str)).collect();
            for t in &graph.initializer {
                assert!(read.contains(t.name()), "{} is never read", t.name());
            }
        }
    }
}

#[test]
fn stripped_weights_are_ranges_of_one_absent_file() {
    for family in FAMILIES {
        let model = build(family.name, &small(family.name)).expect("is a model");
        let mut end = 0;
        for t in parameters(&model) {
            let entry = |key: &str| {
                let found = t.external_data.iter().find(|e| e.key() == key);
                found.unwrap_or_else(|| panic!("{} has no {key}", t.name())).value().to_string()
            };
            assert_eq!(entry("location"), format!("{}.weights.bin", family.name));
            assert_eq!(entry("offset"), end.to_string());
            assert_eq!(entry("length"), (t.dims.iter().product::<i64>() * 4).to_string());
            end += t.dims.iter().product::<i64>() * 4;
            assert!(t.raw_data.is_none());
        }
        assert!(end > 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = |name: &str, family: &str, weights: Weights| {
        let path = folder.path().join(name);
        let config = Config { weights, ..small(family) };
        write(&build(family, &config).expect("is a model"), &path).expect("is written");
        std::fs::read(path).expect("was written")
    };
    for family in FAMILIES.iter().map(|f| f.name) {
        let first = bytes("a", family, RANDOM);
        assert_eq!(first, bytes("b", family, RANDOM), "{family}");
        assert_ne!(first, bytes("c", family, Weights::Random { seed: 8 }), "{family}");
    }
}

/// A layer's weights do not depend on what else is in the model.
#[test]
fn weights_depend_on_their_name_only() {
    let of = |layers| {
        let config = Config { weights: RANDOM, ..small("gpt").with(Size::Layers, layers) };
        let model = build("gpt", &config).expect("is a model");
        let weight = parameters(&model).find(|t| t.name() == "h.0.mlp.fc.weight");
        weight.expect("is there").raw_data.clone().expect("is there")
    };
    assert_eq!(of(1), of(3));
}

/// Weights are not degenerate: no two parameters of the same shape are equal, and scales keep away from 0.
#[test]
fn random_weights_are_distinct_and_bounded() {
    let config = Config { weights: RANDOM, ..small("gpt") };
    let model = build("gpt", &config).expect("is a model");
    let mut seen = BTreeSet::new();
    for t in parameters(&model) {
        let raw = t.raw_data.as_ref().expect("is there");
        assert!(seen.insert(raw.clone()), "{} equals another", t.name());
        let norm = t.name().contains("ln_") && t.name().ends_with("weight");
        for x in raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])) {
            assert!(x.abs() < 1.3 && (!norm || x >= 0.75), "{} holds {x}", t.name());
        }
    }
}

#[test]
fn an_independent_library_reads_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.onnx");
    for family in FAMILIES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for weights in [Weights::Stripped, RANDOM] {
                let config = Config { dtype, weights, ..small(family.name) };
                let model = build(family.name, &config).expect("is a model");
                write(&model, &path).expect("is written");
                let bytes = std::fs::read(&path).expect("was written");
                let other = OtherModel::parse_from_bytes(&bytes).expect("is an ONNX file");
                same(&model, &other);
            }
        }
    }
}

fn same(ours: &ModelProto, theirs: &OtherModel) {
    assert_eq!((theirs.ir_version, theirs.opset_import[0].version), (10, 20));
    let graph = ours.graph.as_ref().expect("has a graph");
    assert_eq!(theirs.graph.node.len(), graph.node.len());
    for (a, b) in graph.node.iter().zip(&theirs.graph.node) {
        assert_eq!((a.name(), a.op_type()), (b.name.as_str(), b.op_type.as_str()));
        assert_eq!((&a.input, &a.output), (&b.input, &b.output));
        assert_eq!(a.attribute.len(), b.attribute.len());
        for (a, b) in a.attribute.iter().zip(&b.attribute) {
            assert_eq!((a.name(), a.i(), &a.ints), (b.name.as_str(), b.i, &b.ints));
            assert_eq!((a.f().to_bits(), a.s()), (b.f.to_bits(), b.s.as_slice()));
            assert_eq!(a.r#type, Some(b.type_.value()));
        }
    }
    assert_eq!(theirs.graph.initializer.len(), graph.initializer.len());
    for (a, b) in graph.initializer.iter().zip(&theirs.graph.initializer) {
        assert_eq!((a.name(), &a.dims, a.data_type()), (b.name.as_str(), &b.dims, b.data_type));
        assert_eq!(a.raw_data.as_deref().unwrap_or_default(), b.raw_data);
        let external = b.data_location == DataLocation::EXTERNAL.into();
        assert_eq!(a.raw_data.is_none(), external);
    }
    let dims = |v: &onnx_protobuf::ValueInfoProto| v.type_.tensor_type().shape.dim.clone();
    assert_eq!(dims(&theirs.graph.input[0])[0].dim_param(), "batch");
}

/// The error for this change of a family's small configuration.
fn error(family: &str, change: impl FnOnce(&mut Config)) -> String {
    let mut config = small(family);
    change(&mut config);
    build(family, &config).expect_err("is no model").to_string()
}

#[test]
fn impossible_configurations_say_why() {
    assert_eq!(
        build("gtp", &Config::default()).expect_err("no such family").to_string(),
        "there is no model family `gtp`; choose one of mlp, gpt, llama"
    );
    let set = |size, value| move |c: &mut Config| *c = c.clone().with(size, value);
    for family in FAMILIES {
        for &(size, _) in family.sizes {
            let zero = error(family.name, set(size, 0));
            assert!(
                zero.contains(&format!("`{}` is 0, but must be from 1", size.name())),
                "{zero}"
            );
            error(family.name, set(size, u64::MAX));
        }
    }
    assert_eq!(
        error("gpt", set(Size::Heads, 5)),
        "`hidden` (24) must be a multiple of `heads` (5)"
    );
    assert_eq!(
        error("llama", set(Size::KvHeads, 3)),
        "`heads` (4) must be a multiple of `kv-heads` (3)"
    );
    assert!(
        error("llama", set(Size::Heads, 8)).contains("is 3, but rotary positions need an even one")
    );
    assert_eq!(
        error("gpt", set(Size::KvHeads, 2)),
        "family `gpt` has no size `kv-heads`; it has layers, hidden, heads, ffn, vocab, seq"
    );
    assert!(error("mlp", |c| c.tied = Some(true)).contains("has no head to tie"));
    assert!(error("mlp", |c| c.symbolic_seq = true).contains("has no sequence"));
    assert!(error("mlp", |c| c.batch = Some(0)).contains("at least 1"));
    assert!(error("mlp", |c| c.dtype = DType::I8).contains("type i8"));
}

#[test]
fn sizes_beyond_all_limits_are_refused_without_filling_memory() {
    let random = Config { weights: RANDOM, ..Config::default() };
    let e = build("llama", &random).expect_err("is too large");
    assert!(matches!(e, ModelError::TooLargeForRandom { bytes: 26_953_662_464, .. }), "{e}");
    let most = 1 << 31;
    for weights in [RANDOM, Weights::Stripped] {
        let huge = Config { weights, ..config(&[(Size::Hidden, most), (Size::Inputs, most)]) };
        assert!(matches!(build("mlp", &huge), Err(ModelError::TooLarge)));
    }
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = build("mlp", &small("mlp")).expect("is a model");
    let absent = folder.path().join("absent").join("model.onnx");
    let e = write(&model, &absent).expect_err("there is no such folder");
    assert!(e.to_string().contains("model.onnx"), "{e}");
    // The name is taken by a folder: writing fails at the last step, and leaves nothing behind.
    let taken = folder.path().join("taken");
    std::fs::create_dir_all(taken.join("inside")).expect("a folder");
    write(&model, &taken).expect_err("is a folder");
    assert!(write(&model, Path::new("/")).is_err());
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
