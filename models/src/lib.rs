//! Builders of model families that write ONNX at any size.
