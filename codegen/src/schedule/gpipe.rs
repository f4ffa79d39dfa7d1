//! GPipe (Huang et al., 2019): all micro-batches forward, then all backward.
//!
//! ```text
//! 0123......aabbccdd
//! .0123...aabbccdd..
//! ..0123aabbccdd....
//! ```
//!
//! * Time lost, of `P` stages: `(P - 1)(t_f + t_b)`.
//! * Under way: all micro-batches, on every stage.
//!
//! The paper goes backward from the last micro-batch to the first. Here it is from the first to the last, as in the
//! other schedules; neither time nor memory differ.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

pub(super) fn order(shape: Shape, _stage: u32) -> Vec<Action> {
    let mut order = Writer::new(shape);
    order.repeat(Pass::Forward, 0, shape.micro_batches);
    order.repeat(Pass::Backward, 0, shape.micro_batches);
    order.actions
}
