//! Checks a graph and lists every finding.
