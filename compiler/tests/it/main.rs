//! The command line, run as a user would.

mod nasty;
mod plan_files;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// After this long a command is taken to hang.
const HANG: Duration = Duration::from_secs(60);

/// Runs `planc` in `folder`.
fn planc(folder: &Path, args: &[&str]) -> Output {
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
    while child.try_wait().expect("planc is waited for").is_none() {
        if started.elapsed() > HANG {
            child.kill().expect("planc is killed");
            panic!("planc {args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("planc's output")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The project's test data.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data")
}
