//! Checks a program and lists every finding.
