//! planc's cross-crate test suites.
