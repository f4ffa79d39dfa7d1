//! Mutated model files: whatever stands in one, importing it, printing and parsing what it gave, and
//! evaluating that on small inputs ends soon, in little memory and without a panic.
//!
//! By default a few seconds of cases, always the same. For a long run:
//!
//! ```text
//! PLANC_FUZZ_MINUTES=10 PLANC_FUZZ_SEED=1 cargo test --release -p planc-ir --test fuzz -- --nocapture
//! ```
//!
//! Findings are written, made as small as removing parts makes them, to the build folder's
//! `tmp/fuzz-findings`; a case that ends the process is in `tmp/fuzz-current.onnx` there. What once failed
//! stays in `tests/fuzz_corpus` and is run every time.

#![allow(clippy::print_stderr, clippy::unwrap_used)] // a test may

mod case;
mod memory;
mod minimise;
mod mutate;

use case::{Finding, run};
use mutate::{Mutator, Seed};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Cases of the short run.
const CASES: usize = 4000;

/// The largest file that is mutated: of larger ones most bytes are weights.
const MAX_SEED_BYTES: u64 = 64 << 10;

/// The short run takes this many of the seeds beside the project's own.
const SHORT_SEEDS: usize = 200;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The small model files below a folder, in a fixed order.
fn models_below(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            models_below(&path, found);
        } else if path.extension().is_some_and(|e| e == "onnx")
            && fs::metadata(&path).unwrap().len() <= MAX_SEED_BYTES
        {
            found.push(path);
        }
    }
}

fn seeds(most_shared: usize) -> Vec<Seed> {
    let mut paths = Vec::new();
    for own in ["tests/fuzz_corpus", "../tests/data"] {
        models_below(&here().join(own), &mut paths);
    }
    let mut shared = Vec::new();
    let folder = here().join("../../shared/models");
    for set in ["nasty", "ops", "run", "wild"] {
        models_below(&folder.join(set), &mut shared);
    }
    if shared.is_empty() {
        eprintln!("SKIPPED: ../shared/models is absent; only the project's own models are mutated");
    }
    let step = shared.len().div_ceil(most_shared).max(1);
    paths.extend(shared.into_iter().step_by(step));
    paths.iter().map(|path| Seed::new(fs::read(path).unwrap())).collect()
}

#[test]
fn what_once_failed_does_not() {
    let mut paths = Vec::new();
    models_below(&here().join("tests/fuzz_corpus"), &mut paths);
    let wrong: Vec<String> = paths
        .iter()
        .filter_map(|path| {
            Some(format!("{}: {}", path.display(), run(&fs::read(path).unwrap()).err()?))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn mutated_models_end_well() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<f64>().ok());
    let minutes = number("PLANC_FUZZ_MINUTES");
    let seed = number("PLANC_FUZZ_SEED").unwrap_or(0.0) as u64;
    let seeds = seeds(if minutes.is_some() { usize::MAX } else { SHORT_SEEDS });
    let mut mutator = Mutator::new(&seeds, seed);
    let (current, started) = (scratch().join("fuzz-current.onnx"), Instant::now());
    let mut findings: BTreeMap<String, (Finding, Vec<u8>)> = BTreeMap::new();
    let (mut cases, mut imported) = (0, 0);
    loop {
        let done = match minutes {
            Some(minutes) => started.elapsed() > Duration::from_secs_f64(minutes * 60.0),
            None => cases == CASES,
        };
        if done {
            break;
        }
        let bytes = mutator.next();
        if minutes.is_some() {
            fs::write(&current, &bytes).unwrap();
        }
        cases += 1;
        match run(&bytes) {
            Ok(true) => imported += 1,
            Ok(false) => {}
            Err(finding) => {
                eprintln!("case {cases}: {finding}");
                findings.entry(finding.kind()).or_insert((finding, bytes));
            }
        }
    }
    eprintln!(
        "{cases} mutations of {} models, {imported} of them imported, in {:.0?}",
        seeds.len(),
        started.elapsed()
    );
    // Too few that still are models would test the decoder alone.
    assert!(imported * 20 > cases, "only {imported} of {cases} were imported");
    let folder = scratch().join("fuzz-findings");
    for (i, (kind, (_, bytes))) in findings.iter().enumerate() {
        fs::create_dir_all(&folder).unwrap();
        let small = minimise::minimise(bytes, |b| run(b).is_err_and(|f| f.kind() == *kind));
        fs::write(folder.join(format!("{seed}-{i}.onnx")), small).unwrap();
    }
    let texts: Vec<String> = findings.values().map(|(f, _)| f.to_string()).collect();
    assert!(texts.is_empty(), "see {}:\n{}", folder.display(), texts.join("\n"));
}
