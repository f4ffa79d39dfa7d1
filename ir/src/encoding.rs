//! Tensors in JSON: element type, shape, and the base64 of the little-endian bytes.
//!
//! Written where an op carries tensors, such as the constants in the body of a loop.

use crate::Tensor;
use crate::graph::TensorType;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Encoded {
    #[serde(flatten)]
    ty: TensorType,
    data: String,
}

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = STANDARD.encode(self.to_bytes());
        Encoded { ty: self.ty().clone(), data }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = Encoded::deserialize(deserializer)?;
        let bytes = STANDARD.decode(&encoded.data).map_err(D::Error::custom)?;
        Self::from_bytes(encoded.ty, &bytes).map_err(D::Error::custom)
    }
}
