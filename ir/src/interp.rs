//! The reference interpreter: evaluates a graph node by node.
