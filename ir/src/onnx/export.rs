//! Writing ONNX files.

use super::wire::ModelProto;
use prost::Message;
use std::fs;
use std::io;
use std::path::Path;

/// Writes a model. The file appears whole or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write_model(path: &Path, model: &ModelProto) -> io::Result<()> {
    write_message(path, model)
}

/// Writes a message to a temporary file beside `path` and renames it.
pub(super) fn write_message(path: &Path, message: &impl Message) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display()))
    })?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written =
        fs::write(&temporary, message.encode_to_vec()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report, whether or not there is something to remove.
        let _ = fs::remove_file(&temporary);
    }
    written
}
