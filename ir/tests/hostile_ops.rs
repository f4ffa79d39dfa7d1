//! Whatever attributes and inputs a node has, decoding it gives ops or an error and never panics;
//! nor do the rules, the work and the kernels of what it gave.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

mod random;

use planc_ir::ops::decode::{Attribute, Decoder, DecoderEntry};
use planc_ir::ops::decoders;
use planc_ir::sharding::{Mesh, OpStrategy};
use planc_ir::{DType, Graph, Tensor, TensorType, ValueId};
use random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;

const EXTENTS: [u64; 10] = [1, 2, 3, 4, 6, 1, 2, 0, 1 << 40, u64::MAX >> 1];
const INTS: [i64; 14] =
    [0, 1, -1, 2, 3, -2, 5, 7, 1 << 31, 1 << 62, i64::MAX, i64::MIN, -1 << 40, 16];
const FLOATS: [f32; 6] = [0.0, 1.0, -1.5, f32::NAN, f32::INFINITY, f32::MAX];
const DTYPES: [DType; 6] = [DType::F32, DType::F32, DType::I64, DType::Bool, DType::F16, DType::U8];
/// Attributes that any operator reads, by the type that they have.
const INT_ATTRIBUTES: &[&str] = &[
    "axis",
    "keepdims",
    "group",
    "ceil_mode",
    "to",
    "allowzero",
    "num_outputs",
    "size",
    "transA",
    "k",
    "upper",
    "exclusive",
    "batch_dims",
    "start",
    "end",
    "num_groups",
    "num_heads",
    "rotary_embedding_dim",
    "q_num_heads",
    "kv_num_heads",
    "is_causal",
    "left_window_size",
    "interleaved",
    "count_include_pad",
    "layout",
    "hidden_size",
    "linear_before_reset",
    "input_forget",
    "block_size",
    "output_dtype",
    "precision",
    "blocksize",
    "p",
    "output_height",
    "output_width",
    "sampling_ratio",
    "inverse",
    "onesided",
    "storage_order",
    "antialias",
    "exclude_outside",
    "align_corners",
    "training_mode",
    "seed",
    "time_axis",
    "batch_axis",
    "offset_group",
    "output_datatype",
    "periodic",
    "ignore_index",
    "groups",
    "bits",
    "N",
    "K",
    "do_rotary",
    "local_window_size",
    "unidirectional",
    "transBatchA",
    "swiglu_fusion",
];
const LIST_ATTRIBUTES: &[&str] = &[
    "axes",
    "pads",
    "strides",
    "dilations",
    "kernel_shape",
    "perm",
    "starts",
    "ends",
    "split",
    "repeats",
    "value_ints",
    "output_padding",
    "output_shape",
    "qkv_hidden_sizes",
    "pool_int64s",
    "ngram_counts",
    "ngram_indexes",
];
const FLOAT_ATTRIBUTES: &[&str] = &[
    "alpha",
    "beta",
    "epsilon",
    "value",
    "min",
    "max",
    "softcap",
    "clip",
    "momentum",
    "spatial_scale",
    "cubic_coeff_a",
    "extrapolation_value",
];
const STRING_ATTRIBUTES: &[(&str, &[&str])] = &[
    ("auto_pad", &["SAME_UPPER", "SAME_LOWER", "VALID", "WRONG"]),
    ("mode", &["constant", "reflect", "edge", "linear", "cubic", "nearest", "max", "CRD", "?"]),
    ("equation", &["ij,jk->ik", "...i->i...", "ii", "->", "a,b->ab", "é"]),
    ("direction", &["LEFT", "RIGHT", "reverse", "bidirectional", ""]),
    ("reduction", &["none", "add", "mul", "sub", "sum", "mean"]),
    ("update_rule", &["linear", "gated", "delta", "?"]),
    ("activation", &["silu", "Relu", "Clip", "?"]),
    ("activation_type", &["relu", "swiglu", "identity", "?"]),
    (
        "coordinate_transformation_mode",
        &[
            "half_pixel",
            "align_corners",
            "asymmetric",
            "tf_crop_and_resize",
            "half_pixel_symmetric",
        ],
    ),
    ("nearest_mode", &["floor", "ceil", "round_prefer_ceil", ""]),
    ("keep_aspect_ratio_policy", &["stretch", "not_larger", "not_smaller"]),
    ("padding_mode", &["zeros", "border", "reflection"]),
];

struct Fuzz(Random);

impl Fuzz {
    fn below(&mut self, n: usize) -> usize {
        ((self.0.next() + 1.0) * 0.5 * n as f64) as usize % n
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn ints(&mut self) -> Vec<i64> {
        // Mostly plausible, so that some nodes get past the first check.
        let choices = if self.below(3) == 0 { INTS.len() } else { 6 };
        (0..self.below(5)).map(|_| self.of(&INTS[..choices])).collect()
    }

    fn input(&mut self, graph: &mut Graph) -> Option<ValueId> {
        let name = format!("v{}", graph.values.len());
        let constant = match self.below(8) {
            0 => return None,
            1 => Tensor::vector(self.ints()),
            2 => Tensor::scalar(self.of(&INTS)),
            3 => Tensor::vector((0..self.below(4)).map(|_| self.of(&FLOATS)).collect()),
            _ => {
                let choices = if self.below(4) == 0 { EXTENTS.len() } else { 5 };
                let highest = if self.below(8) == 0 { 10 } else { 5 };
                let rank = self.below(highest);
                let shape: Vec<u64> = (0..rank).map(|_| self.of(&EXTENTS[..choices])).collect();
                let ty = TensorType::new(self.of(&DTYPES), shape);
                return Some(graph.input(name, ty));
            }
        };
        Some(graph.constant(name, constant))
    }

    fn attributes(&mut self) -> BTreeMap<String, Attribute> {
        let mut attributes = BTreeMap::new();
        let mut add = |name: &str, value| attributes.insert(name.to_string(), value);
        for &name in INT_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Int(self.of(&INTS)));
            }
        }
        for &name in LIST_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Ints(self.ints()));
            }
        }
        for &name in FLOAT_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Float(self.of(&FLOATS)));
            }
        }
        for &(name, choices) in STRING_ATTRIBUTES {
            if self.below(3) == 0 {
                add(name, Attribute::String(self.of(choices).to_string()));
            }
        }
        if self.below(10) == 0 {
            add("value", Attribute::Tensor(Arc::new(Tensor::scalar(i64::MAX))));
        }
        attributes
    }
}

/// Decodes one random node; whether it was accepted.
fn decode(entry: &DecoderEntry, fuzz: &mut Fuzz) -> bool {
    let mut graph = Graph::new("g");
    let inputs = (0..fuzz.below(9)).map(|_| fuzz.input(&mut graph)).collect();
    let attributes = fuzz.attributes();
    decode_node(entry, graph, inputs, attributes, fuzz)
}

fn decode_node(
    entry: &DecoderEntry,
    mut graph: Graph,
    inputs: Vec<Option<ValueId>>,
    attributes: BTreeMap<String, Attribute>,
    fuzz: &mut Fuzz,
) -> bool {
    let mut decoder = Decoder {
        graph: &mut graph,
        name: "node",
        op_type: entry.name,
        opset: fuzz.of(&[7, 9, 11, 13, 18, 21, 24]),
        inputs,
        captured: 0,
        outputs: if fuzz.below(2) == 0 { 1 } else { 1 + fuzz.below(3) },
        attributes,
        drops: fuzz.below(2) == 0,
    };
    let accepted = (entry.decode)(&mut decoder).is_ok();
    let mesh = Mesh::new([("a", 3)]);
    for id in graph.node_ids() {
        let (ins, outs) = (graph.input_types(id), graph.output_types(id));
        let op = &graph.node(id).op;
        op.work(&ins, &outs);
        op.lower();
        let rule = op.rule(&ins, &outs);
        let ins: Vec<&[u64]> = ins.iter().map(|t| &t.shape[..]).collect();
        let outs: Vec<&[u64]> = outs.iter().map(|t| &t.shape[..]).collect();
        for usage in rule.axis_uses() {
            rule.shardings(&mesh, &OpStrategy { axes: vec![usage] }, &ins, &outs);
        }
    }
    accepted
}

#[test]
fn no_node_makes_decoding_panic() {
    let mut fuzz = Fuzz(Random(4));
    for entry in decoders() {
        let accepted = (0..600).filter(|_| decode(entry, &mut fuzz)).count();
        eprintln!("{}: {accepted} of 600 accepted", entry.name);
    }
}

#[test]
fn no_window_makes_decoding_panic() {
    let mut fuzz = Fuzz(Random(5));
    let names = ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "MaxUnpool"];
    for entry in decoders().filter(|e| names.contains(&e.name)) {
        let mut accepted = 0;
        for _ in 0..3000 {
            let spatial = 1 + fuzz.below(3);
            let mut graph = Graph::new("g");
            let extents = |fuzz: &mut Fuzz, n: usize| -> Vec<u64> {
                let hostile = if fuzz.below(5) == 0 { EXTENTS.len() } else { 5 };
                (0..n).map(|_| fuzz.of(&EXTENTS[..hostile])).collect()
            };
            let x = [vec![2, 4], extents(&mut fuzz, spatial)].concat();
            let window = extents(&mut fuzz, spatial);
            // A constant input, so that what is accepted is evaluated too.
            let small = TensorType::new(DType::F32, x.clone());
            let zeros =
                |ty: &TensorType| Tensor::zeros(ty.clone()).ok().filter(|_| ty.elements() <= 512);
            let x = match zeros(&small) {
                Some(tensor) => graph.constant("x", tensor),
                None => graph.input("x", small),
            };
            let channels = if entry.name == "ConvTranspose" { [4, 2] } else { [2, 4] };
            let weight = TensorType::new(DType::F32, [&channels, &window[..]].concat());
            let weight = match zeros(&weight) {
                Some(tensor) => graph.constant("w", tensor),
                None => graph.input("w", weight),
            };
            let mut attributes = BTreeMap::new();
            let mut add = |name: &str, list: Vec<i64>| {
                attributes.insert(name.to_string(), Attribute::Ints(list));
            };
            add("kernel_shape", window.iter().map(|&n| n as i64).collect());
            for (name, n) in [("strides", spatial), ("dilations", spatial), ("pads", 2 * spatial)] {
                if fuzz.below(2) == 0 {
                    let hostile = if fuzz.below(4) == 0 { INTS.len() } else { 5 };
                    add(name, (0..n).map(|_| fuzz.of(&INTS[..hostile]).max(0)).collect());
                }
            }
            if fuzz.below(3) == 0 {
                let auto = fuzz.of(STRING_ATTRIBUTES[0].1).to_string();
                attributes.insert("auto_pad".into(), Attribute::String(auto));
            }
            attributes.insert("ceil_mode".into(), Attribute::Int(fuzz.of(&[0, 1])));
            let inputs = match entry.name {
                "Conv" | "ConvTranspose" => vec![Some(x), Some(weight)],
                "MaxUnpool" => {
                    let ty = TensorType::new(DType::I64, graph.ty(x).shape.clone());
                    vec![Some(x), Some(graph.input("at", ty))]
                }
                _ => vec![Some(x)],
            };
            accepted += usize::from(decode_node(entry, graph, inputs, attributes, &mut fuzz));
        }
        assert!(accepted > 100, "{}: {accepted} of 3000 accepted", entry.name);
    }
}

/// Operators whose results follow from known numbers, with numbers of which some are hostile.
#[test]
fn no_known_numbers_make_decoding_panic() {
    let mut fuzz = Fuzz(Random(6));
    let floats = |shape: &[u64]| Tensor::zeros(TensorType::new(DType::F32, shape)).unwrap();
    let image = floats(&[1, 2, 4, 3]);
    // An operator, the shape of its first input, and how many numbers each further input has.
    let cases: [(&str, &[u64], &[usize]); 13] = [
        ("Resize", &[1, 2, 4, 3], &[8, 4]),
        ("Resize", &[1, 2, 4, 3], &[8, 0, 4]),
        ("Upsample", &[1, 2, 4, 3], &[4]),
        ("CenterCropPad", &[4, 3], &[2]),
        ("Col2Im", &[1, 8, 1], &[2, 2]),
        ("AffineGrid", &[1, 2, 3], &[4]),
        ("DFT", &[2, 6, 1], &[1]),
        ("STFT", &[1, 8, 1], &[1, 0, 1]),
        ("HannWindow", &[1], &[]),
        ("MelWeightMatrix", &[1], &[1, 1, 1, 1]),
        ("NonMaxSuppression", &[1, 3, 4], &[]),
        ("RoiAlign", &[1, 2, 4, 3], &[]),
        ("ReverseSequence", &[4, 3], &[3]),
    ];
    for (name, shape, lists) in cases {
        let newest = decoders().filter(|e| e.domain.is_empty() && e.name == name);
        let entry = newest.max_by_key(|e| e.since).unwrap();
        let mut accepted = 0;
        for _ in 0..3000 {
            let mut graph = Graph::new("g");
            let mut add = |t: Tensor| Some(graph.constant(format!("v{}", graph.values.len()), t));
            let mut inputs = vec![match name {
                "HannWindow" | "MelWeightMatrix" => add(Tensor::vector(vec![fuzz.of(&INTS)])),
                "Resize" | "Upsample" | "RoiAlign" => add(image.clone()),
                _ => add(floats(shape)),
            }];
            for &n in lists {
                let choices = if fuzz.below(3) == 0 { INTS.len() } else { 5 };
                let numbers: Vec<i64> = (0..n).map(|_| fuzz.of(&INTS[..choices])).collect();
                let fractions = ["Resize", "Upsample"].contains(&name) && fuzz.below(2) == 0;
                inputs.push(match n {
                    0 => None,
                    _ if fractions => {
                        let fraction = |i: &i64| 0.5 * *i as f32;
                        add(Tensor::vector(numbers.iter().map(fraction).collect::<Vec<f32>>()))
                    }
                    1 => add(Tensor::scalar(numbers[0])),
                    _ => add(Tensor::vector(numbers)),
                });
            }
            match name {
                "NonMaxSuppression" => {
                    inputs.push(add(floats(&[1, 2, 3])));
                    inputs.push(add(Tensor::scalar(fuzz.of(&INTS))));
                    inputs.push(add(Tensor::scalar(fuzz.of(&FLOATS))));
                }
                "RoiAlign" => {
                    let corners = (0..8).map(|_| fuzz.of(&FLOATS)).collect::<Vec<_>>();
                    inputs.push(add(Tensor::new([2, 4], corners).unwrap()));
                    inputs.push(add(Tensor::vector(vec![0i64, fuzz.of(&[0, 0, 0, 1, -7])])));
                }
                _ => {}
            }
            let attributes = fuzz.attributes();
            accepted += usize::from(decode_node(entry, graph, inputs, attributes, &mut fuzz));
        }
        eprintln!("{name}: {accepted} of 3000 accepted");
        assert!(accepted > 0, "{name}: nothing accepted");
    }
}
