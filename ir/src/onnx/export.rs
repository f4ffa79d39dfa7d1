//! Writing ONNX files.

use super::wire::ModelProto;
use prost::Message;
use std::io::{self, Write};
use std::path::Path;

/// A model as the bytes of its file.
pub fn encode(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

/// Writes a model. The file appears whole or, on failure, not at all: it is written under another
/// name in the same folder and renamed.
///
/// # Errors
/// If the folder cannot be written to, or the disk is full.
pub fn write(model: &ModelProto, path: &Path) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut partial_name = std::ffi::OsString::from(".");
    partial_name.push(name);
    partial_name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(partial_name);
    let written = std::fs::File::create(&partial)
        .and_then(|mut file| file.write_all(&encode(model)))
        .and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // What is left over is of no use; the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written
}
