//! The textual form, which prints and parses back.
