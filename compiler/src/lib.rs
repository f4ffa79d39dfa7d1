//! The planner: reads a model and a cluster, searches, and emits a plan.
