//! Hand-made models: a few words to write ONNX with.

use planc_ir::DType;
use planc_ir::Tensor;
use planc_ir::onnx::tensor::to_proto;
use planc_ir::onnx::wire::{
    AttributeProto, AttributeType, DataType, Dimension, DimensionValue, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    TypeValue, ValueInfoProto,
};
use planc_ir::onnx::{ImportError, ImportOptions, Model, import_bytes};
use prost::Message;

pub fn text(s: &str) -> Option<String> {
    Some(s.to_string())
}

/// `node("Add", "a b", "c")`: operands and results separated by spaces; `_` is one left out.
pub fn node(op_type: &str, inputs: &str, outputs: &str) -> NodeProto {
    let names = |list: &str| {
        list.split_whitespace().map(|n| if n == "_" { "" } else { n }.to_string()).collect()
    };
    NodeProto {
        op_type: text(op_type),
        name: Some(format!("{op_type}_{}", outputs.replace(' ', "_"))),
        input: names(inputs),
        output: names(outputs),
        ..NodeProto::default()
    }
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    let kind = Some(AttributeType::Int as i32);
    AttributeProto { name: text(name), r#type: kind, i: Some(i), ..AttributeProto::default() }
}

pub fn tensor(name: &str, t: TensorProto) -> AttributeProto {
    let kind = Some(AttributeType::Tensor as i32);
    let t = Some(Box::new(t));
    AttributeProto { name: text(name), r#type: kind, t, ..AttributeProto::default() }
}

pub fn body(name: &str, g: GraphProto) -> AttributeProto {
    let kind = Some(AttributeType::Graph as i32);
    let g = Some(Box::new(g));
    AttributeProto { name: text(name), r#type: kind, g, ..AttributeProto::default() }
}

pub fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

/// `value("x", DType::F32, "batch 4 ?")`: dimensions separated by spaces.
pub fn value(name: &str, dtype: DType, dims: &str) -> ValueInfoProto {
    let data_type = match dtype {
        DType::F32 => DataType::Float,
        DType::I64 => DataType::Int64,
        DType::Bool => DataType::Bool,
        other => panic!("not needed: {other}"),
    };
    let dim = |text: &str| Dimension {
        value: match text.parse() {
            _ if text == "?" => None,
            Ok(n) => Some(DimensionValue::Value(n)),
            Err(_) => Some(DimensionValue::Param(text.replace('_', " "))),
        },
        denotation: None,
    };
    let shape = TensorShapeProto { dim: dims.split_whitespace().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: Some(data_type as i32), shape: Some(shape) };
    let ty = TypeProto { value: Some(TypeValue::Tensor(tensor)), denotation: None };
    ValueInfoProto { name: text(name), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// An output without a declared type.
pub fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: text(name), ..ValueInfoProto::default() }
}

pub fn initializer(name: &str, t: &Tensor) -> TensorProto {
    to_proto(name, t)
}

pub fn graph(
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    nodes: Vec<NodeProto>,
    outputs: &str,
) -> GraphProto {
    GraphProto {
        name: text("g"),
        input: inputs,
        initializer: initializers,
        node: nodes,
        output: outputs.split_whitespace().map(output).collect(),
        ..GraphProto::default()
    }
}

pub fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: text(domain), version: Some(version) }
}

pub fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset("", 17)],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

pub fn import(model: &ModelProto, bind: &[(&str, u64)]) -> Result<Model, ImportError> {
    let bind = bind.iter().map(|(n, v)| ((*n).to_string(), *v)).collect();
    import_bytes(model.encode_to_vec(), &ImportOptions { bind, ..ImportOptions::default() })
}

/// The error of a model that must not import.
pub fn refused(model: &ModelProto, bind: &[(&str, u64)]) -> String {
    match import(model, bind) {
        Ok(_) => panic!("imported"),
        Err(e) => e.to_string(),
    }
}
