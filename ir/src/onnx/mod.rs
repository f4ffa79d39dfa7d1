//! ONNX in and out. The only place that sees protobuf.

pub mod export;
pub mod wire;
