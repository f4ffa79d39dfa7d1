//! What can be wrong with a cluster description or a profile.

use thiserror::Error;

/// A cluster or a profile that cannot be priced.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CostError {
    #[error("unknown device `{name}`; known devices: {known}")]
    UnknownDevice { name: String, known: String },
    #[error("unknown link `{name}`; known links: {known}, or describe one as an object")]
    UnknownLink { name: String, known: String },
    #[error(
        "unknown cluster `{name}`; known clusters: {known}, each with `:NODES`, as in `dgx-h100:2`"
    )]
    UnknownCluster { name: String, known: String },
    #[error("cluster file: {0}")]
    Syntax(String),
    #[error("{place}: {what} is {value}; {expected}")]
    BadValue { place: String, what: &'static str, value: String, expected: &'static str },
    #[error("cluster `{cluster}` has {nodes} nodes but no `inter` link; say what connects them")]
    NoNetwork { cluster: String, nodes: u64 },
    #[error("mesh {mesh} has {ranks} ranks, but cluster `{cluster}` has only {devices} devices")]
    MeshTooLarge { mesh: String, ranks: u64, cluster: String, devices: u32 },
    #[error("profile `{profile}`: {why}")]
    BadProfile { profile: String, why: String },
}

/// Checks that a number is finite and above 0.
pub(crate) fn positive(place: &str, what: &'static str, value: f64) -> Result<f64, CostError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(bad(place, what, value, "it must be a number above 0"))
    }
}

/// Checks that a number is finite and at least 0.
pub(crate) fn not_negative(place: &str, what: &'static str, value: f64) -> Result<f64, CostError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(bad(place, what, value, "it must be a number of at least 0"))
    }
}

/// Checks that a number is a share: above 0 and at most 1.
pub(crate) fn share(place: &str, what: &'static str, value: f64) -> Result<f64, CostError> {
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        Err(bad(place, what, value, "it must lie above 0 and be at most 1"))
    }
}

/// A [`CostError::BadValue`].
pub(crate) fn bad(
    place: &str,
    what: &'static str,
    value: impl std::fmt::Display,
    expected: &'static str,
) -> CostError {
    CostError::BadValue { place: place.into(), what, value: value.to_string(), expected }
}
