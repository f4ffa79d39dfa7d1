//! `cargo bench -p planc-ir --bench import [-- FILE..]`: how long importing takes and how much memory is
//! resident at most, for the models of `../shared/models/plan` or the given files.
//!
//! Each file is imported by a process of its own, several times; the shortest time counts, since other
//! processes only ever add to it. Memory includes the pages of the file that were read. It is only
//! known where `/proc` is.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a benchmark's purpose

use planc_ir::onnx::{ImportError, ImportOptions, import};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What symbolic dimensions are bound to.
const EXTENT: u64 = 16;

const RUNS: usize = 5;

/// Before the file that a process is to import and report on.
const REPORT: &str = "--report";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [first, file] = &arguments[..]
        && first == REPORT
    {
        report(Path::new(file));
        return;
    }
    let mut files: Vec<PathBuf> = arguments.iter().map(PathBuf::from).collect();
    if files.is_empty() {
        let plan = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models/plan");
        let Ok(entries) = std::fs::read_dir(&plan) else {
            println!("skipped: {} is absent", plan.display());
            return;
        };
        files = entries.map(|e| e.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|e| e == "onnx"));
        files.sort();
    }
    println!("{:<40} {:>10} {:>10}", "import", "ms", "MB at most");
    for file in files {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let child = Command::new(std::env::current_exe().unwrap()).arg(REPORT).arg(&file).output();
        print!("{name:<40} {}", String::from_utf8_lossy(&child.unwrap().stdout));
    }
}

/// Imports a file and prints what that took.
fn report(file: &Path) {
    let bound = |names: Vec<String>| names.into_iter().map(|n| (n, EXTENT)).collect();
    let options = match import(file, &ImportOptions::default()) {
        Err(ImportError::Unbound { names }) => {
            ImportOptions { bind: bound(names), ..ImportOptions::default() }
        }
        _ => ImportOptions::default(),
    };
    let mut shortest = f64::INFINITY;
    let mut what = String::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        let model = import(file, &options);
        shortest = shortest.min(started.elapsed().as_secs_f64() * 1e3);
        what = match model {
            Ok(model) => format!("{} nodes", model.graph.nodes.len()),
            Err(e) => format!("not imported: {}", e.to_string().lines().next().unwrap_or_default()),
        };
    }
    let resident = resident_mb().map_or_else(|| "?".to_string(), |mb| format!("{mb:.0}"));
    println!("{shortest:>10.1} {resident:>10}  {what}");
}

/// The most memory that this process has had resident.
fn resident_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kb: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kb / 1e3)
}
