//! A number and where it is from.

use serde::{Deserialize, Serialize};

/// How a figure came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Measured on the device, or fitted to such measurements.
    Measured,
    /// Reported by others for a real system.
    Published,
    /// Reckoned, or taken from a related device: nothing open backs it yet.
    Assumed,
    /// The vendor's.
    Datasheet,
}

/// A figure of a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// In the unit that the field's name ends with.
    pub value: f64,
    /// How it came about.
    pub origin: Origin,
    /// Where it was found.
    pub source: String,
}
