//! The plan as a JSON document.
//!
//! The layout is fixed, so that equal plans are equal bytes and a difference between two plans shows
//! line by line: fields in declaration order; every weight, constant, baseline, node strategy, buffer
//! and instruction on a line of its own.

use super::{FORMAT, ModelRef, NodeStrategy, Plan, Stage};
use crate::atomic;
use crate::program::Program;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use thiserror::Error;

/// A document that is not a plan that this version can use.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum PlanError {
    #[error("cannot access the plan {path}: {source}")]
    Io { path: String, source: io::Error },
    #[error(
        "this is not a whole plan ({0}); it was cut short or is another kind of file: plan the \
         model again"
    )]
    Syntax(String),
    #[error(
        "the plan has format {found}, this version of planc reads format {FORMAT}: plan the model \
         again with this version"
    )]
    Format { found: u64 },
    #[error(
        "the plan does not have the checksum that it states, so it was edited or damaged: plan the \
         model again, or restore the file"
    )]
    Checksum,
    #[error("the plan is malformed although its checksum is right: {0}")]
    Shape(String),
}

/// What is read before anything else.
#[derive(Deserialize)]
struct Header {
    format: u64,
    checksum: String,
}

impl Plan {
    /// The plan as a document, with its checksum.
    ///
    /// # Errors
    /// If a value has no JSON form.
    pub fn to_json(&self) -> Result<String, PlanError> {
        let without = self.print("").map_err(|e| PlanError::Shape(e.to_string()))?;
        let checksum = sha256(&without);
        // The first empty checksum is the plan's own: only the format stands before it.
        Ok(without.replacen(&stated(""), &stated(&checksum), 1))
    }

    /// Reads a document: first its format, then its checksum, then the rest.
    ///
    /// # Errors
    /// If it is not a plan of this format as it was written.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let header: Header =
            serde_json::from_str(text).map_err(|e| PlanError::Syntax(e.to_string()))?;
        if header.format != u64::from(FORMAT) {
            return Err(PlanError::Format { found: header.format });
        }
        let without = text.replacen(&stated(&header.checksum), &stated(""), 1);
        if sha256(&without) != header.checksum {
            return Err(PlanError::Checksum);
        }
        serde_json::from_str(text).map_err(|e| PlanError::Shape(e.to_string()))
    }

    /// Writes the document. The file appears whole or, on failure, not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), PlanError> {
        let text = self.to_json()?;
        let failed = |source| PlanError::Io { path: path.display().to_string(), source };
        atomic::write(path, text.as_bytes()).map_err(failed)
    }

    /// Reads a document from a file.
    ///
    /// # Errors
    /// See [`Plan::from_json`].
    pub fn load(path: &Path) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PlanError::Io { path: path.display().to_string(), source })?;
        Self::from_json(&text)
    }

    fn print(&self, checksum: &str) -> serde_json::Result<String> {
        let Self {
            format,
            checksum: _,
            model,
            training,
            cluster,
            semantics,
            predicted,
            baselines,
            certificate,
            stages,
            channels,
            weights,
            constants,
        } = self;
        let mut p = Printer::default();
        p.open(None, '{')?;
        p.line(Some("format"), format)?;
        p.line(Some("checksum"), checksum)?;
        print_model(&mut p, model)?;
        if let Some(training) = training {
            p.line(Some("training"), training)?;
        }
        p.line(Some("cluster"), cluster)?;
        p.line(Some("semantics"), semantics)?;
        p.line(Some("predicted"), predicted)?;
        p.lines("baselines", baselines)?;
        p.line(Some("certificate"), certificate)?;
        p.open(Some("stages"), '[')?;
        for stage in stages {
            print_stage(&mut p, stage)?;
        }
        p.close(']');
        if !channels.is_empty() {
            p.lines("channels", channels)?;
        }
        p.lines("weights", weights)?;
        p.lines("constants", constants)?;
        p.close('}');
        p.text.push('\n');
        Ok(p.text)
    }
}

fn print_model(p: &mut Printer, model: &ModelRef) -> serde_json::Result<()> {
    let ModelRef { name, file, digest, bindings, parameters, flops, inputs, outputs } = model;
    p.open(Some("model"), '{')?;
    p.line(Some("name"), name)?;
    p.line(Some("file"), file)?;
    p.line(Some("digest"), digest)?;
    p.line(Some("bindings"), bindings)?;
    p.line(Some("parameters"), parameters)?;
    p.line(Some("flops"), flops)?;
    p.lines("inputs", inputs)?;
    p.lines("outputs", outputs)?;
    p.close('}');
    Ok(())
}

fn print_stage(p: &mut Printer, stage: &Stage) -> serde_json::Result<()> {
    let Stage { first_rank, strategy, program } = stage;
    p.open(None, '{')?;
    p.line(Some("first_rank"), first_rank)?;
    p.lines::<NodeStrategy>("strategy", strategy)?;
    let Program {
        mesh,
        buffers,
        inputs,
        weights,
        constants,
        accumulators,
        instrs,
        micro_batches,
        passes,
        order,
        carried,
        outputs,
        arena_bytes,
    } = program;
    p.open(Some("program"), '{')?;
    p.line(Some("mesh"), mesh)?;
    p.lines("buffers", buffers)?;
    p.line(Some("inputs"), inputs)?;
    p.line(Some("weights"), weights)?;
    p.line(Some("constants"), constants)?;
    if !accumulators.is_empty() {
        p.line(Some("accumulators"), accumulators)?;
    }
    p.lines("instrs", instrs)?;
    if let Some(micro_batches) = micro_batches {
        p.line(Some("micro_batches"), micro_batches)?;
    }
    if !passes.is_empty() {
        p.line(Some("passes"), passes)?;
        p.line(Some("order"), order)?;
    }
    if !carried.is_empty() {
        p.lines("carried", carried)?;
    }
    p.line(Some("outputs"), outputs)?;
    p.line(Some("arena_bytes"), arena_bytes)?;
    p.close('}');
    p.close('}');
    Ok(())
}

/// Writes nested objects and lists of which some parts stand on one line.
#[derive(Default)]
struct Printer {
    text: String,
    depth: usize,
    /// Whether something stands before the next entry at this depth.
    follows: bool,
}

impl Printer {
    /// Begins an entry: separator, line break, indentation, key.
    fn entry(&mut self, key: Option<&str>) -> serde_json::Result<()> {
        if self.follows {
            self.text.push(',');
        }
        if self.depth > 0 {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n("  ", self.depth));
        }
        if let Some(key) = key {
            self.text.push_str(&serde_json::to_string(key)?);
            self.text.push_str(": ");
        }
        self.follows = true;
        Ok(())
    }

    /// An entry on one line.
    fn line(
        &mut self,
        key: Option<&str>,
        value: &(impl Serialize + ?Sized),
    ) -> serde_json::Result<()> {
        self.entry(key)?;
        self.text.push_str(&serde_json::to_string(value)?);
        Ok(())
    }

    /// A list, one line an item.
    fn lines<T: Serialize>(&mut self, key: &str, items: &[T]) -> serde_json::Result<()> {
        self.open(Some(key), '[')?;
        for item in items {
            self.line(None, item)?;
        }
        self.close(']');
        Ok(())
    }

    fn open(&mut self, key: Option<&str>, bracket: char) -> serde_json::Result<()> {
        self.entry(key)?;
        self.text.push(bracket);
        self.depth += 1;
        self.follows = false;
        Ok(())
    }

    fn close(&mut self, bracket: char) {
        self.depth -= 1;
        if self.follows {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n("  ", self.depth));
        }
        self.text.push(bracket);
        self.follows = true;
    }
}

/// The checksum's line.
fn stated(checksum: &str) -> String {
    format!("\"checksum\": \"{checksum}\"")
}

fn sha256(text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(text);
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
