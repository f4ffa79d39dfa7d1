//! One case: what is done with a file, and what counts as a finding.

use crate::memory::most_bytes;
use planc_ir::interp::evaluate;
use planc_ir::onnx::{ImportError, ImportOptions, Model, import_bytes};
use planc_ir::text::{parse, print};
use planc_ir::verify::verify;
use planc_ir::weights::InMemory;
use planc_ir::{Graph, Tensor};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A step that takes longer, three times in a row, hangs. (A debug build on a busy machine is slow.)
const MAX_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 });

/// The most that a step may allocate for a file of some kilobytes.
const MAX_BYTES: u64 = 500 << 20;

/// Graphs with more arithmetic or more data than this are not evaluated.
const MAX_WORK: f64 = 2e6;

/// What went wrong.
#[derive(Debug)]
pub struct Finding {
    step: &'static str,
    what: String,
}

impl Finding {
    /// Findings of one kind have, as far as one can tell, one cause.
    pub fn kind(&self) -> String {
        let what: String = self.what.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
        format!("{}: {what}", self.step)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.what)
    }
}

/// Does one step and watches it.
fn step<R>(step: &'static str, f: impl Fn() -> R) -> Result<R, Finding> {
    let finding = |what| Finding { step, what };
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let (result, bytes) = most_bytes(|| catch_unwind(AssertUnwindSafe(&f)));
        shortest = shortest.min(started.elapsed());
        let result = result.map_err(|payload| {
            let text = payload.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            finding(format!("panics: {}", text.unwrap_or_default()))
        })?;
        if bytes > MAX_BYTES {
            return Err(finding(format!("allocates {bytes} bytes")));
        }
        if shortest <= MAX_TIME {
            return Ok(result);
        }
    }
    Err(finding(format!("takes {shortest:.1?}")))
}

/// Runs a file through everything; whether it was imported.
pub fn run(bytes: &[u8]) -> Result<bool, Finding> {
    let (model, _message) = step("import", || match import_all(bytes) {
        Ok(model) => (Some(model), String::new()),
        Err(e) => (None, e.to_string()),
    })?;
    let Some(Model { graph, .. }) = model else { return Ok(false) };
    let wrong = step("verify", || verify(&graph))?;
    if let Some(first) = wrong.first() {
        return Err(Finding { step: "verify", what: first.to_string() });
    }
    step("text", || match parse(&print(&graph)) {
        // NaN is not equal to itself, but its text is.
        Ok(parsed) if parsed == graph || print(&parsed) == print(&graph) => Ok(()),
        Ok(_) => Err("another graph comes back".to_string()),
        Err(e) => Err(format!("what was printed does not parse: {e}")),
    })?
    .map_err(|what| Finding { step: "text", what })?;
    if is_small(&graph) {
        step("evaluate", || {
            let ones = |&v| Tensor::from_int(graph.ty(v).clone(), |_| 1);
            let inputs = graph.inputs.iter().map(ones).collect::<Result<Vec<_>, _>>();
            inputs.map(|inputs| evaluate(&graph, &inputs, &InMemory).map_err(|e| e.to_string()))
        })?
        .ok();
    }
    Ok(true)
}

/// Imports with every symbol bound to 2.
fn import_all(bytes: &[u8]) -> Result<Model, ImportError> {
    match import_bytes(bytes.to_vec(), &ImportOptions::default()) {
        Err(ImportError::Unbound { names }) => {
            let bind = names.into_iter().map(|n| (n, 2)).collect();
            import_bytes(bytes.to_vec(), &ImportOptions { bind, ..ImportOptions::default() })
        }
        other => other,
    }
}

/// Whether the reference evaluation, which does everything element by element, can be asked for.
fn is_small(graph: &Graph) -> bool {
    let sources = graph.inputs.iter().map(|&v| graph.ty(v).bytes() as f64).sum::<f64>();
    let work = |id| {
        let work = graph.node(id).op.work(&graph.input_types(id), &graph.output_types(id));
        work.flops.max(work.bytes)
    };
    sources + graph.node_ids().map(work).sum::<f64>() <= MAX_WORK
}
