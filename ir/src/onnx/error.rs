//! Why a file is not accepted. Names are the file's own.

use crate::weights::WeightError;
use crate::{DType, EvalError, OpError};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use thiserror::Error;

/// Why a model cannot be imported.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ImportError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path} is not a complete ONNX model: {source}; export it again, or check the copy")]
    Decode { path: String, source: prost::DecodeError },
    #[error("the file holds no graph; is it an ONNX model?")]
    NoGraph,
    #[error("the graph `{graph}` has no outputs, so there is nothing to compute")]
    NoOutputs { graph: String },
    #[error(
        "the model does not declare its opset (no opset_import for the default domain); set it with \
         onnx.helper.make_model(.., opset_imports=..)"
    )]
    NoOpset,
    #[error(
        "opset {found} is not read (known: {min} to {max}); convert the model with \
         onnx.version_converter.convert_version(model, {})", (*.found).clamp(*.min, *.max)
    )]
    Opset { found: i64, min: i64, max: i64 },
    #[error("the domain `{domain}` is imported twice, as versions {first} and {second}; keep one")]
    TwoOpsets { domain: String, first: i64, second: i64 },
    #[error(
        "node `{node}` ({op_type}): the domain `{domain}` has no opset_import; the model must \
         declare the domains that it uses"
    )]
    UndeclaredDomain { node: String, op_type: String, domain: String },

    #[error("{}", unbound_message(.names))]
    Unbound { names: Vec<String> },
    #[error(
        "--bind {name}: the model's inputs have no such dimension; {}", known_symbols(.known)
    )]
    UnknownBinding { name: String, known: Vec<String> },
    #[error(
        "--bind {name}={value} contradicts the model, in which `{name}` is {expression} = {expected}: \
         {source}; leave it out, or change the others"
    )]
    Contradiction {
        name: String,
        value: u64,
        expression: String,
        expected: u64,
        source: Box<ImportError>,
    },
    #[error("input `{input}`, dimension {index} is {text}: {why}")]
    Dimension { input: String, index: usize, text: String, why: &'static str },
    #[error("input `{input}` {why}; only tensors with a declared type and rank can be inputs")]
    InputType { input: String, why: String },

    #[error("the body `{graph}` is nested deeper than the {limit} levels that are read")]
    Nesting { graph: String, limit: usize },
    #[error("{what} `{name}` is defined twice: by {first} and by {second}")]
    Duplicate { what: &'static str, name: String, first: String, second: String },
    #[error(
        "node `{node}` ({op_type}) reads `{value}`, which is neither an input, an initializer nor \
         the output of a node"
    )]
    Undefined { node: String, op_type: String, value: String },
    #[error("the output `{value}` of graph `{graph}` is produced nowhere")]
    MissingOutput { graph: String, value: String },
    #[error("nodes depend on each other in a circle: {}", .nodes.join(" -> "))]
    Cycle { nodes: Vec<String> },

    #[error("initializer `{name}`: {source}")]
    Initializer { name: String, source: TensorError },
    #[error("node `{node}` ({op_type}), attribute `{attribute}`: {why}")]
    Attribute { node: String, op_type: String, attribute: String, why: String },
    #[error("node `{node}` ({op_type}): {source}")]
    Op { node: String, op_type: String, source: OpError },
    #[error(
        "`{value}` is declared as {declared}, but is {inferred}; correct or remove the declaration"
    )]
    DeclaredType { value: String, declared: DType, inferred: DType },
    #[error("branch `{graph}` of node `{node}` (If) takes inputs; a branch has none")]
    BranchInputs { node: String, graph: String },
    #[error("{0}")]
    Unsupported(Unsupported),

    #[error("the function `{name}` calls itself: {}", .path.join(" -> "))]
    Recursion { name: String, path: Vec<String> },
    #[error(
        "inlining the model's functions gives {nodes} nodes, more than the limit of {limit}; \
         simplify the model before importing it"
    )]
    TooManyNodes { nodes: u64, limit: u64 },
    #[error("cannot compute the digest of {path}: {source}")]
    Digest { path: String, source: io::Error },
}

/// What is wrong with a tensor's declaration or contents.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum TensorError {
    #[error("data_type {0} is not an element type that planc reads")]
    DataType(String),
    #[error("extent {0} is negative")]
    NegativeExtent(i64),
    #[error("extents {0:?} have more elements than a file can hold")]
    TooLarge(Vec<i64>),
    #[error("needs {expected} bytes of raw_data, has {found}")]
    RawLength { expected: u64, found: u64 },
    #[error("needs {expected} elements in {field}, has {found}")]
    TypedLength { field: &'static str, expected: u64, found: u64 },
    #[error("elements of type {dtype} lie in {expected}, but {found} is filled")]
    WrongField { dtype: DType, expected: &'static str, found: &'static str },
    #[error("has no data")]
    NoData,
    #[error("is split into segments, which is not supported; store it whole")]
    Segment,
    #[error("external data has no `{0}`")]
    ExternalMissing(&'static str),
    #[error("external data: `{key}` is `{value}`, not a number of bytes")]
    ExternalNumber { key: &'static str, value: String },
    #[error("external data has length {found}, but the tensor takes {expected} bytes")]
    ExternalLength { expected: u64, found: u64 },
    #[error(
        "external data: bytes {offset}..{end} lie outside `{location}`, which has {length} bytes"
    )]
    ExternalOutside { location: String, offset: u64, end: u64, length: u64 },
    #[error("external data is not allowed here")]
    ExternalNotAllowed,
    #[error(transparent)]
    External(#[from] WeightError),
    #[error(transparent)]
    Contents(#[from] EvalError),
}

/// Everything in a file that planc has no implementation for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsupported {
    /// The operators, with why if there is more to say than that they are unknown, and the names of
    /// the nodes that use them.
    pub ops: BTreeMap<UnsupportedOp, Vec<String>>,
}

/// An operator, or a use of one, that has no implementation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsupportedOp {
    /// Domain; empty for ONNX's own.
    pub domain: String,
    /// Operator name.
    pub op_type: String,
    /// What of it is not supported; `None` if the operator as a whole.
    pub why: Option<String>,
}

/// How many node names are listed for one operator.
const LISTED_NODES: usize = 5;

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the model uses operators that are not supported (`planc ops` lists those that are):",
        )?;
        for (op, nodes) in &self.ops {
            f.write_str("\n  ")?;
            if !op.domain.is_empty() {
                write!(f, "{}::", op.domain)?;
            }
            f.write_str(&op.op_type)?;
            if let Some(why) = &op.why {
                write!(f, " ({why})")?;
            }
            let listed: Vec<String> =
                nodes.iter().take(LISTED_NODES).map(|n| format!("`{n}`")).collect();
            write!(f, ": {}", listed.join(", "))?;
            if let Some(more) = nodes.len().checked_sub(LISTED_NODES).filter(|&n| n > 0) {
                write!(f, " and {more} more")?;
            }
        }
        Ok(())
    }
}

fn unbound_message(names: &[String]) -> String {
    let listed: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    let example: Vec<String> = names
        .iter()
        .map(|n| {
            let long = ["seq", "len", "token"].iter().any(|part| n.to_lowercase().contains(part));
            format!("{n}={}", if long { 128 } else { 8 })
        })
        .collect();
    format!(
        "the model's inputs have dimensions without a value: {}; give each one, for example \
         --bind {}",
        listed.join(", "),
        example.join(",")
    )
}

fn known_symbols(known: &[String]) -> String {
    if known.is_empty() {
        "all of them are fixed".to_string()
    } else {
        format!("they have {}", known.join(", "))
    }
}
