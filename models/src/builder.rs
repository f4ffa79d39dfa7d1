//! Builds an ONNX graph the way exporters write one: values, nodes and parameters are named after
//! the module they belong to, and each node says its module path.
//!
//! In module `h.0.attn.q` a node is called `/h.0/attn/q/MatMul`, its result
//! `/h.0/attn/q/MatMul_output_0`, a parameter `h.0.attn.q.weight`.

use crate::weights::{Init, random_bytes};
use crate::{Config, ModelError, Weights};
use planc_ir::onnx::wire::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, DimensionValue, GraphProto,
    ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use planc_ir::{DType, Tensor, TensorType};
use std::collections::BTreeSet;

/// Random weights are written up to this size; protobuf itself ends at 2 GiB.
pub const MAX_RANDOM_BYTES: u64 = 1 << 30;

/// Version of ONNX's operators that the builders use.
const OPSET: i64 = 20;

/// The first version of the file format with node metadata.
const IR_VERSION: i64 = 10;

/// A value of the graph being built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Val(String);

/// An extent of a graph input or output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dim {
    Fixed(u64),
    Symbol(&'static str),
}

/// A parameter without contents yet.
#[derive(Debug)]
struct ToFill {
    /// Which of the graph's initializers.
    initializer: usize,
    ty: TensorType,
    init: Init,
    seed: u64,
}

/// An ONNX graph being built.
#[derive(Debug)]
pub(crate) struct Builder {
    graph: GraphProto,
    /// Names of the modules that are open, outermost first.
    modules: Vec<String>,
    dtype: DType,
    weights: Weights,
    /// Bytes of all parameters so far; the next one's offset in the side file.
    weight_bytes: u64,
    /// Parameters that are filled once it is known that all together are not too large.
    to_fill: Vec<ToFill>,
    /// Names of values and nodes that are taken.
    names: BTreeSet<String>,
}

impl Builder {
    pub(crate) fn new(family: &str, config: &Config) -> Result<Self, ModelError> {
        if !matches!(config.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(ModelError::UnsupportedType { found: config.dtype });
        }
        Ok(Self {
            graph: GraphProto { name: Some(family.to_string()), ..GraphProto::default() },
            modules: Vec::new(),
            dtype: config.dtype,
            weights: config.weights,
            weight_bytes: 0,
            to_fill: Vec::new(),
            names: BTreeSet::new(),
        })
    }

    /// Type of weights and activations.
    pub(crate) const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Builds inside a module. A dotted name opens several at once.
    pub(crate) fn module<R>(
        &mut self,
        name: &str,
        body: impl FnOnce(&mut Self) -> Result<R, ModelError>,
    ) -> Result<R, ModelError> {
        self.modules.push(name.to_string());
        let result = body(self);
        self.modules.pop();
        result
    }

    /// A name that nothing else has: the wanted one, or that with a number.
    fn unique(&mut self, wanted: String) -> String {
        let numbered = (1..).map(|i| format!("{wanted}_{i}"));
        let free =
            std::iter::once(wanted.clone()).chain(numbered).find(|n| !self.names.contains(n));
        let name = free.unwrap_or(wanted);
        self.names.insert(name.clone());
        name
    }

    /// A name of a parameter or constant of the open module.
    fn member(&mut self, name: &str) -> String {
        let dotted = self.modules.iter().map(String::as_str).chain([name]).collect::<Vec<_>>();
        self.unique(dotted.join("."))
    }

    /// Declares a graph input.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Val {
        self.graph.input.push(value_info(name, dtype, dims));
        Val(self.unique(name.to_string()))
    }

    /// Declares a node's result as a graph output, which renames it.
    pub(crate) fn output(&mut self, value: &Val, name: &str, dims: &[Dim]) {
        let name = self.unique(name.to_string());
        for node in &mut self.graph.node {
            for v in node.input.iter_mut().chain(&mut node.output).filter(|v| **v == value.0) {
                v.clone_from(&name);
            }
        }
        self.graph.output.push(value_info(&name, self.dtype, dims));
    }

    /// A parameter of the open module.
    pub(crate) fn parameter(
        &mut self,
        name: &str,
        shape: &[u64],
        init: Init,
    ) -> Result<Val, ModelError> {
        let name = self.member(name);
        let ty = TensorType::new(self.dtype, shape);
        let (offset, bytes) = (self.weight_bytes, ty.bytes());
        self.weight_bytes = offset
            .checked_add(bytes)
            .filter(|&end| i64::try_from(end).is_ok())
            .ok_or(ModelError::TooLarge)?;
        let mut tensor = tensor_proto(&name, &ty);
        match self.weights {
            Weights::Stripped => {
                tensor.data_location = Some(DataLocation::External as i32);
                tensor.external_data = vec![
                    entry("location", format!("{}.weights.bin", self.graph.name())),
                    entry("offset", offset.to_string()),
                    entry("length", bytes.to_string()),
                ];
            }
            Weights::Random { seed } => {
                let initializer = self.graph.initializer.len();
                self.to_fill.push(ToFill { initializer, ty, init, seed });
            }
        }
        self.graph.initializer.push(tensor);
        Ok(Val(name))
    }

    /// A constant of the open module.
    pub(crate) fn constant(&mut self, name: &str, value: &Tensor) -> Val {
        let name = self.member(name);
        let mut tensor = tensor_proto(&name, value.ty());
        tensor.raw_data = Some(value.to_bytes().into());
        self.graph.initializer.push(tensor);
        Val(name)
    }

    /// A constant vector of integers: extents, axes.
    pub(crate) fn ints(&mut self, name: &str, values: &[i64]) -> Val {
        self.constant(name, &Tensor::vector(values.to_vec()))
    }

    /// Appends a node with one result.
    pub(crate) fn node(
        &mut self,
        op_type: &str,
        inputs: &[&Val],
        attributes: Vec<AttributeProto>,
    ) -> Val {
        self.node_multi(op_type, inputs, 1, attributes).swap_remove(0)
    }

    /// Appends a node with several results.
    pub(crate) fn node_multi(
        &mut self,
        op_type: &str,
        inputs: &[&Val],
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<Val> {
        let mut path: Vec<String> = vec![String::new()];
        path.extend(self.modules.iter().cloned());
        path.push(op_type.to_string());
        let name = self.unique(path.join("/"));
        let results: Vec<String> =
            (0..outputs).map(|i| self.unique(format!("{name}_output_{i}"))).collect();
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|v| v.0.clone()).collect(),
            output: results.clone(),
            name: Some(name),
            op_type: Some(op_type.to_string()),
            attribute: attributes,
            metadata_props: vec![entry("pkg.torch.onnx.name_scopes", self.scopes(op_type))],
            ..NodeProto::default()
        });
        results.into_iter().map(Val).collect()
    }

    /// The open modules as torch's exporter writes them: each with its whole path, then the operator.
    fn scopes(&self, op_type: &str) -> String {
        let mut scopes = vec!["''".to_string()];
        for depth in 1..=self.modules.len() {
            scopes.push(format!("'{}'", self.modules[..depth].join(".")));
        }
        scopes.push(format!("'{op_type}'"));
        format!("[{}]", scopes.join(", "))
    }

    /// The whole model.
    pub(crate) fn finish(mut self) -> Result<ModelProto, ModelError> {
        if !self.to_fill.is_empty() && self.weight_bytes > MAX_RANDOM_BYTES {
            return Err(ModelError::TooLargeForRandom {
                bytes: self.weight_bytes,
                limit_bytes: MAX_RANDOM_BYTES,
            });
        }
        for ToFill { initializer, ty, init, seed } in &self.to_fill {
            let tensor = &mut self.graph.initializer[*initializer];
            tensor.raw_data = Some(random_bytes(*seed, tensor.name(), ty, *init)?.into());
        }
        Ok(ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: vec![OperatorSetIdProto {
                domain: Some(String::new()),
                version: Some(OPSET),
            }],
            producer_name: Some("planc".to_string()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_string()),
            graph: Some(self.graph),
            ..ModelProto::default()
        })
    }
}

/// An attribute that is an integer.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

/// An attribute that is a list of integers.
pub(crate) fn int_list(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// An attribute that is a number.
pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

/// An attribute that is a string.
pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    let bytes = value.as_bytes().to_vec();
    AttributeProto { s: Some(bytes.into()), ..attribute(name, AttributeType::String) }
}

fn attribute(name: &str, ty: AttributeType) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(ty as i32),
        ..AttributeProto::default()
    }
}

fn tensor_proto(name: &str, ty: &TensorType) -> TensorProto {
    TensorProto {
        name: Some(name.to_string()),
        dims: ty.shape.iter().map(|&d| d as i64).collect(),
        data_type: Some(DataType::from(ty.dtype) as i32),
        ..TensorProto::default()
    }
}

fn value_info(name: &str, dtype: DType, dims: &[Dim]) -> ValueInfoProto {
    let dim = |d: &Dim| Dimension {
        value: Some(match *d {
            Dim::Fixed(n) => DimensionValue::Value(n as i64),
            Dim::Symbol(s) => DimensionValue::Param(s.to_string()),
        }),
        denotation: None,
    };
    let tensor = TensorTypeProto {
        elem_type: Some(DataType::from(dtype) as i32),
        shape: Some(TensorShapeProto { dim: dims.iter().map(dim).collect() }),
    };
    ValueInfoProto {
        name: Some(name.to_string()),
        r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)), denotation: None }),
        ..ValueInfoProto::default()
    }
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.to_string()), value: Some(value) }
}
