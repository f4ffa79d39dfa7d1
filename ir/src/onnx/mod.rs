//! ONNX in and out. The only place that sees protobuf.
//!
//! [`import`] turns a file into a [`Graph`]: symbolic dimensions bound, functions inlined, shape
//! arithmetic folded, weights left where they are. The steps, each in its file:
//!
//! 1. The file is mapped and decoded ([`wire`]); tensors stay slices of the map.
//! 2. Calls of model-local functions are replaced by their bodies (`functions`).
//! 3. Dimensions of the inputs get their values (`dims`, `types`); those that are not given may follow from
//!    the others (`relations`).
//! 4. Initializers become constants if they are small, and weights otherwise (`initializer`).
//! 5. Nodes are put into order (`order`) and handed to the op table's decoders (`build`, `call`,
//!    `attribute`, `coverage`). Nodes with bodies become ops with graphs (`control`, `loops`, `scan`),
//!    sequences dissolve (`sequence`).
//! 6. What no output needs is dropped, names are made unique ([`finish`]).
//!
//! Recursion happens only over nested bodies, whose depth the decoder bounds.

pub mod error;
pub mod export;
pub mod tensor;
pub mod wire;

mod attribute;
mod build;
mod call;
mod control;
mod coverage;
mod dims;
mod functions;
mod initializer;
mod loops;
mod order;
mod relations;
mod scan;
mod scope;
mod sequence;
mod types;

pub use error::{ImportError, TensorError, Unsupported, UnsupportedOp};
pub use relations::Relation;

use crate::graph::Graph;
use crate::{DType, OpError, digest, finish, mapped};
use build::Importer;
use bytes::Bytes;
use dims::Symbols;
use functions::Library;
use initializer::Files;
use prost::Message;
use relations::Bindings;
use std::collections::{BTreeMap, HashSet};
use std::io::Cursor;
use std::path::Path;
use wire::{GraphProto, ModelProto, TensorProto};

/// How to import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Values of symbolic dimensions.
    pub bind: BTreeMap<String, u64>,
    /// Keep every floating-point initializer of rank 1 or more as a weight, however small: it may be
    /// trained. Otherwise small ones are constants.
    pub training: bool,
    /// Keep ONNX's Dropout as the op that drops elements, as in training. Otherwise it is left out.
    pub dropout: bool,
}

/// An imported model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// What it computes.
    pub graph: Graph,
    /// See [`digest`].
    pub digest: String,
    /// Values of the symbolic dimensions.
    pub bindings: BTreeMap<String, u64>,
    /// Those that were not given, but follow from the others.
    pub relations: BTreeMap<String, Relation>,
    /// Number of parameters: elements of floating-point and 8-bit initializers.
    pub parameters: u64,
    /// Version of ONNX's own operators.
    pub opset: i64,
    /// Version of the file format.
    pub ir_version: i64,
    /// What wrote the file, with its version.
    pub producer: String,
}

/// Imports a file.
///
/// # Errors
/// If the file is not a valid model, or uses what planc does not support.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Model, ImportError> {
    let display = || path.display().to_string();
    let bytes =
        mapped::map(path).map_err(|source| ImportError::Read { path: display(), source })?;
    let mut model = read(&bytes, Some(path), options)?;
    model.digest = digest::model_digest(path, &digest::weight_ranges(&model.graph))
        .map_err(|source| ImportError::Digest { path: display(), source })?;
    Ok(model)
}

/// Imports a file's bytes. External data are taken to be absent.
///
/// # Errors
/// As [`import`].
pub fn import_bytes(
    bytes: impl Into<Bytes>,
    options: &ImportOptions,
) -> Result<Model, ImportError> {
    let bytes = bytes.into();
    let mut model = read(&bytes, None, options)?;
    let ranges = digest::weight_ranges(&model.graph);
    model.digest = digest::digest_of(Cursor::new(&bytes), bytes.len() as u64, &ranges)
        .map_err(|source| ImportError::Digest { path: "the model".into(), source })?;
    Ok(model)
}

/// The values of symbolic dimensions under which a model's inputs have these extents: what to bind
/// for given tensors. Names that do not follow from them are left out.
///
/// # Errors
/// If the file is not a model.
pub fn bindings(
    path: &Path,
    shapes: &BTreeMap<String, Vec<u64>>,
) -> Result<BTreeMap<String, u64>, ImportError> {
    let display = || path.display().to_string();
    let bytes =
        mapped::map(path).map_err(|source| ImportError::Read { path: display(), source })?;
    let proto = ModelProto::decode(bytes)
        .map_err(|source| ImportError::Decode { path: display(), source })?;
    let graph = proto.graph.as_ref().ok_or(ImportError::NoGraph)?;
    let mut dims = Vec::new();
    for input in &graph.input {
        let Some(shape) = shapes.get(input.name()) else { continue };
        let declared = types::declared_dims(input).unwrap_or_default();
        for (i, (dim, &extent)) in declared.iter().zip(shape).enumerate() {
            dims.push((input.name(), i, dim, extent));
        }
    }
    Ok(dims::solve(&dims))
}

fn read(bytes: &Bytes, path: Option<&Path>, options: &ImportOptions) -> Result<Model, ImportError> {
    let proto = ModelProto::decode(bytes.clone()).map_err(|source| ImportError::Decode {
        path: path.map_or_else(|| "the model".to_string(), |p| p.display().to_string()),
        source,
    })?;
    let graph = proto.graph.as_ref().ok_or(ImportError::NoGraph)?;
    let opsets = functions::opsets(&proto.opset_import)?;
    let opset = *opsets.get("").ok_or(ImportError::NoOpset)?;
    if graph.output.is_empty() {
        return Err(ImportError::NoOutputs { graph: graph.name().to_string() });
    }
    let library = Library::new(&proto)?;
    let build = |bind: &Bindings| {
        let files = Files::new(bytes.clone(), path.map(Path::to_path_buf), options.training);
        let mut importer = Importer::new(graph.name(), &library, files, bind);
        importer.dropout = options.dropout;
        inputs(&mut importer, graph, bind)?;
        importer.initializers(graph)?;
        importer.nodes(graph, &opsets, "a graph input")?;
        importer.outputs(graph)?;
        if importer.unsupported.ops.is_empty() {
            Ok(importer.graphs.swap_remove(0).graph)
        } else {
            Err(ImportError::Unsupported(importer.unsupported))
        }
    };
    let (built, bindings, relations) = bound(&options.bind, &build)?;
    let mut imported = finish::prune(built);
    finish::unique_names(&mut imported);
    Ok(Model {
        graph: imported,
        digest: String::new(),
        bindings,
        relations,
        parameters: parameters(graph),
        opset,
        ir_version: proto.ir_version(),
        producer: format!("{} {}", proto.producer_name(), proto.producer_version())
            .trim()
            .to_string(),
    })
}

/// Builds the graph under the given bindings and what follows from them.
fn bound(
    given: &Bindings,
    build: &dyn Fn(&Bindings) -> Result<Graph, ImportError>,
) -> Result<(Graph, Bindings, BTreeMap<String, Relation>), ImportError> {
    let attempt = |bind: &Bindings| build(bind).and_then(|graph| relations::reach(&graph));
    match build(given) {
        Ok(graph) if given.is_empty() => Ok((graph, given.clone(), BTreeMap::new())),
        Ok(graph) => {
            match relations::reach(&graph).map_err(|e| contradiction(given, e, &attempt)) {
                // An index that is out of range for another reason is left to the run.
                Ok(()) | Err(ImportError::Op { .. }) => Ok((graph, given.clone(), BTreeMap::new())),
                Err(contradiction) => Err(contradiction),
            }
        }
        Err(ImportError::Unbound { names }) if !given.is_empty() => {
            let relations = relations::solve(&names, given, &attempt);
            let found = relations.iter().map(|(name, r)| (name.clone(), r.value));
            let bindings: Bindings = given.clone().into_iter().chain(found).collect();
            Ok((build(&bindings)?, bindings, relations))
        }
        Err(source @ ImportError::Op { source: OpError::ShapeMismatch { .. }, .. }) => {
            Err(contradiction(given, source, &attempt))
        }
        Err(other) => Err(other),
    }
}

/// What is wrong with given values, if without one of them it would follow from the others to be another;
/// else the error that they lead to.
fn contradiction(
    given: &Bindings,
    source: ImportError,
    attempt: &dyn Fn(&Bindings) -> Result<(), ImportError>,
) -> ImportError {
    for (name, &value) in given {
        let mut others = given.clone();
        others.remove(name);
        let relations = relations::solve(std::slice::from_ref(name), &others, attempt);
        let Some(relation) = relations.get(name).filter(|r| r.value != value) else { continue };
        others.insert(name.clone(), relation.value);
        if attempt(&others).is_ok() {
            return ImportError::Contradiction {
                name: name.clone(),
                value,
                expression: relation.expression.clone(),
                expected: relation.value,
                source: Box::new(source),
            };
        }
    }
    source
}

/// Adds the graph's inputs. Files of IR version 3 list initializers too; those are weights.
fn inputs(
    importer: &mut Importer<'_>,
    graph: &GraphProto,
    bind: &Bindings,
) -> Result<(), ImportError> {
    let initialized: HashSet<&str> = graph.initializer.iter().map(TensorProto::name).collect();
    let mut symbols = Symbols::new(bind);
    let mut list = Vec::new();
    for input in graph.input.iter().filter(|v| !initialized.contains(v.name())) {
        list.push((input.name(), types::input_type(input, &mut symbols)?));
    }
    symbols.finish()?;
    for (name, ty) in list {
        let id = importer.graph().input(name, ty);
        let named = importer.local(id);
        importer.name(name, named);
    }
    Ok(())
}

fn parameters(graph: &GraphProto) -> u64 {
    let count = |t: &TensorProto| match types::dtype(t.data_type()) {
        Ok(dtype) if dtype.is_float() || matches!(dtype, DType::I8 | DType::U8) => {
            t.dims.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(0) as u64))
        }
        _ => 0,
    };
    graph.initializer.iter().map(count).fold(0, u64::saturating_add)
}
