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
    #[error(
        "the order does not run every pass of every micro-batch once, and each pass in the order of the micro-batches"
    )]
    Order,
    #[error("value `{value}` belongs to a pass that the order does not have")]
    NoPass { value: String },
    #[error(
        "value `{value}` cannot go between passes: one needs it before the pass that makes it has run, or several \
         accumulate in it"
    )]
    Passes { value: String },
    #[error("the buffers of one rank take more than 2^64 bytes, up to value `{value}`")]
    TooLarge { value: String },
}
