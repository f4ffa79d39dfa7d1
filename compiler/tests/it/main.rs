//! The command line, run as a user would.
#![allow(clippy::print_stderr)] // says aloud what is left out

mod nasty;
mod plan_files;
mod trace;
mod train;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// After this long a command is taken to hang.
const HANG: Duration = Duration::from_secs(60);

/// Runs `planc` in `folder`.
fn planc(folder: &Path, args: &[&str]) -> Output {
    planc_measured(folder, args).0
}

/// Runs `planc` in `folder`; also the most memory that it was seen to take, in kilobytes.
fn planc_measured(folder: &Path, args: &[&str]) -> (Output, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_planc"))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("planc starts");
    // What planc prints here fits the pipes, so it never waits for us.
    let started = Instant::now();
    let mut peak = 0;
    while child.try_wait().expect("planc is waited for").is_none() {
        peak = peak.max(resident_peak(child.id()));
        if started.elapsed() > HANG {
            child.kill().expect("planc is killed");
            panic!("planc {args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (child.wait_with_output().expect("planc's output"), peak)
}

/// The most memory that a process has taken so far, in kilobytes; 0 where the system does not tell.
fn resident_peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The project's test data.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data")
}
