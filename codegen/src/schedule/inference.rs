//! Forward alone: each micro-batch goes through as soon as it can.
//!
//! ```text
//! 0123..
//! .0123.
//! ..0123
//! ```
//!
//! * Time lost, of `P` stages: `(P - 1) t_f`, to fill the pipeline.
//! * Under way: one micro-batch a stage.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

pub(super) fn order(shape: Shape, _stage: u32) -> Vec<Action> {
    let mut order = Writer::new(shape);
    order.repeat(Pass::Forward, 0, shape.micro_batches);
    order.actions
}
