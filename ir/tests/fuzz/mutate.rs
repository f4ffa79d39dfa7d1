//! Makes files out of files: most still are models, with something in them that is not as it was.

use bytes::Bytes;
use planc_ir::onnx::wire::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto,
    TypeValue, ValueInfoProto,
};
use prost::Message as _;

/// Numbers at which arithmetic, allocation or conversion goes wrong.
const INTS: [i64; 20] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    13,
    64,
    255,
    65_536,
    1 << 24,
    1 << 31,
    -(1 << 31),
    1 << 40,
    1 << 53,
    1 << 62,
    -(1 << 62),
    i64::MAX,
    i64::MIN,
];
const FLOATS: [f32; 9] =
    [0.0, -0.0, 1.0, -1.5, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
const NAMES: [&str; 6] = ["", "x", "batch", "batch*seq", "past + 1", "(a // 0) - Min(9, b)"];

/// A file to begin with, and the model in it.
pub struct Seed {
    bytes: Vec<u8>,
    model: Option<ModelProto>,
}

impl Seed {
    pub fn new(bytes: Vec<u8>) -> Self {
        let model = ModelProto::decode(bytes.as_slice()).ok();
        Self { bytes, model }
    }
}

/// An endless source of mutations.
pub struct Mutator<'a> {
    seeds: &'a [Seed],
    /// Nodes of all seeds, to be put into others.
    nodes: Vec<NodeProto>,
    state: u64,
}

impl<'a> Mutator<'a> {
    pub fn new(seeds: &'a [Seed], seed: u64) -> Self {
        let graphs = seeds.iter().filter_map(|s| s.model.as_ref()?.graph.as_ref());
        let nodes = graphs.flat_map(|g| g.node.iter().cloned()).collect();
        Self { seeds, nodes, state: seed }
    }

    /// The next file.
    pub fn next(&mut self) -> Vec<u8> {
        let seed = &self.seeds[self.below(self.seeds.len())];
        let Some(model) = seed.model.as_ref().filter(|_| self.below(8) > 0) else {
            return self.bytes(seed.bytes.clone());
        };
        let mut model = model.clone();
        for _ in 0..=self.below(4) {
            self.model(&mut model);
        }
        let bytes = model.encode_to_vec();
        if self.below(16) == 0 { self.bytes(bytes) } else { bytes }
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// An index into a list, if there is one.
    fn index<T>(&mut self, list: &[T]) -> Option<usize> {
        (!list.is_empty()).then(|| self.below(list.len()))
    }

    fn pick<'b, T>(&mut self, list: &'b mut [T]) -> Option<&'b mut T> {
        let i = self.index(list)?;
        list.get_mut(i)
    }

    /// A node of any seed.
    fn other(&mut self) -> Option<NodeProto> {
        let i = (!self.nodes.is_empty()).then(|| self.below(self.nodes.len()))?;
        self.nodes.get(i).cloned()
    }

    fn int(&mut self) -> i64 {
        INTS[self.below(INTS.len())]
    }

    fn small(&mut self) -> i32 {
        [0, 1, 7, 10, 9, 6, 11, 3, 8, 16, 17, 21, 40, -1, i32::MAX][self.below(15)]
    }

    /// Takes away, repeats, overwrites or inserts some bytes.
    fn bytes(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            let len = self.below(16).min(bytes.len() - at);
            match self.below(6) {
                0 => drop(bytes.drain(at..at + len)),
                1 => {
                    let piece = bytes[at..at + len].to_vec();
                    bytes.splice(at..at, piece);
                }
                2 => bytes.truncate(at),
                3 => {
                    let value = [0, 1, 0x7f, 0x80, 0xff, 0x08, 0x12][self.below(7)];
                    bytes[at..at + len.min(3)].fill(value);
                }
                _ => {
                    let bit = 1 << self.below(8);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= bit;
                    }
                }
            }
        }
        bytes
    }

    fn model(&mut self, model: &mut ModelProto) {
        match self.below(24) {
            0 => {
                let version = [0, 1, 6, 7, 9, 11, 13, 18, 23, 99, -1, i64::MAX][self.below(12)];
                if let Some(opset) = self.pick(&mut model.opset_import) {
                    opset.version = Some(version);
                }
            }
            1 => {
                if let Some(function) = self.pick(&mut model.functions) {
                    self.nodes(&mut function.node);
                }
            }
            2 => {
                if let Some(function) = self.pick(&mut model.functions) {
                    let name = self.pick(&mut function.input).cloned();
                    function.output.extend(name);
                }
            }
            _ => {
                if let Some(graph) = &mut model.graph {
                    self.graph(graph);
                }
            }
        }
    }

    fn graph(&mut self, graph: &mut GraphProto) {
        let bodies = graph.node.iter_mut().flat_map(|n| &mut n.attribute);
        let mut bodies: Vec<&mut GraphProto> = bodies.filter_map(|a| a.g.as_deref_mut()).collect();
        if self.below(3) == 0
            && let Some(body) = self.pick(&mut bodies)
        {
            return self.graph(body);
        }
        match self.below(10) {
            0 => {
                if let Some(tensor) = self.pick(&mut graph.initializer) {
                    self.tensor(tensor);
                }
            }
            1 => {
                if let Some(value) = self.pick(&mut graph.input) {
                    self.value(value);
                }
            }
            2 => {
                let list = match self.below(2) {
                    0 => &mut graph.value_info,
                    _ => &mut graph.output,
                };
                if let Some(value) = self.pick(list) {
                    self.value(value);
                }
            }
            3 => {
                if let Some(i) = self.index(&graph.initializer) {
                    let tensor = graph.initializer.remove(i);
                    // What was a constant may be an input.
                    if self.below(2) == 0 {
                        let name = tensor.name.clone();
                        graph.input.push(ValueInfoProto { name, ..ValueInfoProto::default() });
                    }
                }
            }
            4 => {
                let names: Vec<String> =
                    graph.node.iter().flat_map(|n| n.output.iter().cloned()).collect();
                if let Some(i) = self.index(&names) {
                    let name = Some(names[i].clone());
                    graph.output.push(ValueInfoProto { name, ..ValueInfoProto::default() });
                }
            }
            _ => self.nodes(&mut graph.node),
        }
    }

    fn nodes(&mut self, nodes: &mut Vec<NodeProto>) {
        let names: Vec<String> =
            nodes.iter().flat_map(|n| n.input.iter().chain(&n.output).cloned()).collect();
        match self.below(14) {
            0 => {
                if let Some(i) = self.index(nodes) {
                    nodes.remove(i);
                }
            }
            1 => {
                if let (Some(i), Some(j)) = (self.index(nodes), self.index(nodes)) {
                    nodes.swap(i, j);
                }
            }
            // Another model's node in the place of one, or between one and who reads it.
            2 | 3 => {
                if let (Some(i), Some(mut other)) = (self.index(nodes), self.other()) {
                    for (to, from) in other.input.iter_mut().zip(nodes[i].input.iter().cycle()) {
                        to.clone_from(from);
                    }
                    for (to, from) in other.output.iter_mut().zip(&nodes[i].output) {
                        to.clone_from(from);
                    }
                    nodes[i] = other;
                }
            }
            4 => {
                let other = self.other();
                if let (Some(node), Some(other)) = (self.pick(nodes), other) {
                    node.op_type = other.op_type;
                }
            }
            5..8 => {
                let other = self.index(&names).map(|i| names[i].clone()).unwrap_or_default();
                let Some(node) = self.pick(nodes) else { return };
                match self.below(5) {
                    0 => drop(node.input.pop()),
                    1 => node.input.push(other),
                    2 => node.output.push(format!("{other}_")),
                    3 => {
                        if let Some(input) = self.pick(&mut node.input) {
                            input.clear();
                        }
                    }
                    _ => {
                        if let Some(input) = self.pick(&mut node.input) {
                            *input = other;
                        }
                    }
                }
            }
            _ => {
                let Some(node) = self.pick(nodes) else { return };
                if let Some(attribute) = self.pick(&mut node.attribute) {
                    self.attribute(attribute);
                }
            }
        }
    }

    fn attribute(&mut self, attribute: &mut AttributeProto) {
        let (int, float) = (self.int(), FLOATS[self.below(FLOATS.len())]);
        if let Some(tensor) = &mut attribute.t {
            return self.tensor(tensor);
        }
        match self.below(8) {
            0 => attribute.r#type = Some(self.small()),
            1 => attribute.ints.push(int),
            2 => drop(attribute.ints.pop()),
            3 => attribute.s = Some(Bytes::from_static(b"?\xff")),
            _ => {
                attribute.i = attribute.i.map(|_| int);
                attribute.f = attribute.f.map(|_| float);
                if let Some(i) = self.pick(&mut attribute.ints) {
                    *i = int;
                }
                if let Some(f) = self.pick(&mut attribute.floats) {
                    *f = float;
                }
            }
        }
    }

    fn tensor(&mut self, tensor: &mut TensorProto) {
        let int = self.int();
        match self.below(6) {
            0 => tensor.data_type = Some(self.small()),
            1 => tensor.dims.push(int),
            2 => drop(tensor.dims.pop()),
            3 => {
                if let Some(dim) = self.pick(&mut tensor.dims) {
                    *dim = int;
                }
            }
            _ => {
                if let Some(x) = self.pick(&mut tensor.int64_data) {
                    *x = int;
                }
                if let Some(x) = self.pick(&mut tensor.int32_data) {
                    *x = int as i32;
                }
                if let Some(raw) = &mut tensor.raw_data
                    && raw.len() >= 8
                {
                    let mut bytes = raw.to_vec();
                    let at = self.below(bytes.len() / 8) * 8;
                    bytes[at..at + 8].copy_from_slice(&int.to_le_bytes());
                    *raw = bytes.into();
                }
            }
        }
    }

    fn value(&mut self, value: &mut ValueInfoProto) {
        let int = self.int();
        let name = NAMES[self.below(NAMES.len())].to_string();
        let Some(TypeValue::Tensor(tensor)) = value.r#type.as_mut().and_then(|t| t.value.as_mut())
        else {
            return;
        };
        let Some(shape) = &mut tensor.shape else { return };
        match self.below(7) {
            0 => tensor.elem_type = Some(self.small()),
            1 => tensor.shape = None,
            2 => drop(shape.dim.pop()),
            3 => {
                let value = Some(DimensionValue::Value(int));
                shape.dim.push(Dimension { value, ..Dimension::default() });
            }
            4 => {
                if let Some(dim) = self.pick(&mut shape.dim) {
                    dim.value = Some(DimensionValue::Param(name));
                }
            }
            _ => {
                if let Some(dim) = self.pick(&mut shape.dim) {
                    dim.value = Some(DimensionValue::Value(int));
                }
            }
        }
    }
}
