//! What can go wrong between a strategy and a program.

use planc_ir::sharding::StrategyError;
use thiserror::Error;

/// A strategy that does not become a program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CodegenError {
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    #[error(
        "unsupported: the extents of value `{value}` are only known when the model runs, so no place \
         can be planned for it: what makes and what reads it has to run whole on every rank; export \
         the model with fixed sizes"
    )]
    Dynamic { value: String },
    #[error(
        "value `{value}` is {from}, and {reader} needs it {to}; no sequence of collectives does that"
    )]
    NoPath { value: String, from: String, to: String, reader: String },
    #[error("the buffers of one rank take more than 2^64 bytes, up to value `{value}`")]
    TooLarge { value: String },
}
