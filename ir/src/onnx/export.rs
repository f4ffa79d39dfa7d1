//! Writing ONNX files.

use super::wire::ModelProto;
use crate::atomic;
use prost::Message as _;
use std::io;
use std::path::Path;

/// A model as the bytes of its file.
pub fn encode(model: &ModelProto) -> Vec<u8> {
    model.encode_to_vec()
}

/// Writes a model. The file appears whole or not at all.
///
/// # Errors
/// If it cannot be written.
pub fn write(model: &ModelProto, path: &Path) -> io::Result<()> {
    atomic::write(path, &encode(model))
}
