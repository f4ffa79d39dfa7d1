//! One forward, one backward (1F1B; PipeDream-Flush, Narayanan et al., 2021): a stage goes backward as soon as it
//! can.
//!
//! ```text
//! 012....aa3bb.cc.dd
//! .01..aa2bb3cc.dd..
//! ..0aa1bb2cc3dd....
//! ```
//!
//! * Time lost, of `P` stages: `(P - 1)(t_f + t_b)`, as with GPipe.
//! * Under way on stage `s`, of `M` micro-batches: `min(M, P - s)`.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

pub(super) fn order(shape: Shape, stage: u32) -> Vec<Action> {
    let mut order = Writer::new(shape);
    let ahead = shape.micro_batches.min(shape.stages - 1 - stage);
    order.repeat(Pass::Forward, 0, ahead);
    for _ in 0..shape.micro_batches {
        order.push(Pass::Forward, 0);
        order.push(Pass::Backward, 0);
    }
    order.actions
}
