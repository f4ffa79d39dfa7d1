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
const INT_ATTRIBUTES: [&str; 24] = [
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
];
const LIST_ATTRIBUTES: [&str; 11] = [
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
];
const FLOAT_ATTRIBUTES: [&str; 7] = ["alpha", "beta", "epsilon", "value", "min", "max", "softcap"];
const STRING_ATTRIBUTES: [(&str, &[&str]); 5] = [
    ("auto_pad", &["SAME_UPPER", "SAME_LOWER", "VALID", "WRONG"]),
    ("mode", &["constant", "reflect", "edge", "wrap", "?"]),
    ("equation", &["ij,jk->ik", "...i->i...", "ii", "->", "a,b->ab", "é"]),
    ("direction", &["LEFT", "RIGHT", ""]),
    ("reduction", &["none", "add", "mul", "sub"]),
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
        for name in INT_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Int(self.of(&INTS)));
            }
        }
        for name in LIST_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Ints(self.ints()));
            }
        }
        for name in FLOAT_ATTRIBUTES {
            if self.below(6) == 0 {
                add(name, Attribute::Float(self.of(&FLOATS)));
            }
        }
        for (name, choices) in STRING_ATTRIBUTES {
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
    let inputs = (0..fuzz.below(6)).map(|_| fuzz.input(&mut graph)).collect();
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
    let names = ["Conv", "MaxPool", "AveragePool"];
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
            let x = if small.elements() <= 512 {
                graph.constant("x", Tensor::zeros(small).unwrap())
            } else {
                graph.input("x", small)
            };
            let weight = TensorType::new(DType::F32, [&[2, 4], &window[..]].concat());
            let weight = if weight.elements() <= 512 {
                graph.constant("w", Tensor::zeros(weight).unwrap())
            } else {
                graph.input("w", weight)
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
                "Conv" => vec![Some(x), Some(weight)],
                _ => vec![Some(x)],
            };
            accepted += usize::from(decode_node(entry, graph, inputs, attributes, &mut fuzz));
        }
        assert!(accepted > 100, "{}: {accepted} of 3000 accepted", entry.name);
    }
}
