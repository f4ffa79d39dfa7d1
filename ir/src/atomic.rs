//! Writing files so that they appear whole or not at all.

use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

/// Writes a file under another name in the same folder and renames it.
///
/// # Errors
/// If the path names no file, or it cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report, whether or not there is something to remove.
        let _ = fs::remove_file(&temporary);
    }
    written
}
