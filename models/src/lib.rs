//! Builders of model families that write ONNX at any size, as an exporter would.
//!
//! ```
//! use planc_models::{Config, Size, Weights, build};
//!
//! let config = Config { weights: Weights::Random { seed: 1 }, ..Config::default() };
//! let model = build("gpt", &config.with(Size::Layers, 2).with(Size::Hidden, 96))?;
//! assert!(model.graph.is_some());
//! # Ok::<(), planc_models::ModelError>(())
//! ```
//!
//! With [`Weights::Stripped`], the default, a model of any size is a file of a few kilobytes a layer:
//! its parameters name ranges of a side file that does not exist, which is all that a plan needs.
//!
//! To add a family: write its file with a `build` function, and add its entry to [`FAMILIES`].

mod builder;
mod config;
mod error;
mod gpt;
mod layers;
mod llama;
mod mlp;
mod weights;

pub use builder::MAX_RANDOM_BYTES;
pub use config::{Config, Default, Size, Weights};
pub use error::ModelError;

use builder::Builder;
use config::Sizes;
use planc_ir::onnx::{export, wire::ModelProto};
use std::path::Path;

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// Name as a user writes it.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// The sizes that it has, with their defaults.
    pub sizes: &'static [(Size, Default)],
    /// Whether its head is the token embedding unless said otherwise; `None` if it has none.
    pub tied: Option<bool>,
    build: fn(&mut Builder, &Plan) -> Result<(), ModelError>,
}

/// Every family.
pub const FAMILIES: &[Family] = &[mlp::FAMILY, gpt::FAMILY, llama::FAMILY];

/// A configuration, complete and checked as far as that can be done without knowing the family.
#[derive(Debug)]
pub(crate) struct Plan {
    sizes: Sizes,
    batch: Option<u64>,
    symbolic_seq: bool,
    tied: bool,
}

/// Builds a model.
///
/// # Errors
/// If there is no such family, or the configuration describes no model of it.
pub fn build(family: &str, config: &Config) -> Result<ModelProto, ModelError> {
    let family = FAMILIES.iter().find(|f| f.name == family).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().map(|f| f.name).collect();
        ModelError::UnknownFamily { name: family.to_string(), known: known.join(", ") }
    })?;
    if config.batch == Some(0) {
        return Err(ModelError::EmptyBatch);
    }
    if config.tied.is_some() && family.tied.is_none() {
        return Err(ModelError::NoSuchChoice { family: family.name, what: "head to tie" });
    }
    let has_seq = family.sizes.iter().any(|&(s, _)| s == Size::Seq);
    if config.symbolic_seq && !has_seq {
        return Err(ModelError::NoSuchChoice { family: family.name, what: "sequence" });
    }
    let plan = Plan {
        sizes: Sizes::new(family.name, family.sizes, config)?,
        batch: config.batch,
        symbolic_seq: config.symbolic_seq,
        tied: config.tied.or(family.tied).unwrap_or(false),
    };
    let mut builder = Builder::new(family.name, config)?;
    (family.build)(&mut builder, &plan)?;
    builder.finish()
}

/// Writes a model; the file appears whole or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write(model: &ModelProto, path: &Path) -> Result<(), ModelError> {
    export::write(model, path)
        .map_err(|error| ModelError::Write { path: path.to_path_buf(), error })
}
