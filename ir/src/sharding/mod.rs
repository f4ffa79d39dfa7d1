//! Sharding: meshes, tensor shardings, factor rules, strategies and resharding.

pub mod mesh;
pub mod reshard;
pub mod rule;
pub mod spec;
pub mod strategy;
pub mod transfer;

pub use mesh::{AxisId, Coord, Mesh, MeshAxis, MeshError};
pub use rule::{Factor, FactorId, FactorKind, FactorRule, RuleBuilder};
pub use spec::{DimSharding, ReduceKind, Sharding};
pub use strategy::{
    AxisUse, OpShardings, OpStrategy, Strategy, StrategyError, op_shardings, section,
};
