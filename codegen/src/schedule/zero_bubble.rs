//! ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): 1F1B with the gradients of weights apart, which fill
//! time that the stages would lose.
//!
//! Nothing waits for the gradients of weights but the update. Stage `s` keeps back those of `s` micro-batches, and
//! runs them when no backward pass is there to run:
//!
//! ```text
//! 012..aA3bBcCdD
//! .01.a2bA3cBdCD
//! ..0a1b2cA3dBCD
//! ```
//!
//! * Time lost, of `P` stages: `(P - 1)(t_f + t_b - t_w)`, where `t_b` is without, and `t_w` for the gradients of
//!   weights, if `t_w` is the least of the three; a third of that of 1F1B if they are the same. Each micro-batch less
//!   than `P` adds `t_w`.
//! * Under way on stage `s`, of `M` micro-batches: `min(M, P - s)` from forward to backward, as with 1F1B, and
//!   `min(M, s + 1)` from backward to weights; `min(M, P)` in all, what 1F1B has on its first stage.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

pub(super) fn order(shape: Shape, stage: u32) -> Vec<Action> {
    let mut order = Writer::new(shape);
    let ahead = shape.micro_batches.min(shape.stages - 1 - stage);
    order.repeat(Pass::Forward, 0, ahead);
    for micro_batch in 0..shape.micro_batches {
        order.push(Pass::Forward, 0);
        order.push(Pass::Backward, 0);
        if micro_batch >= stage {
            order.push(Pass::Weights, 0);
        }
    }
    order.repeat(Pass::Weights, 0, shape.micro_batches.min(stage));
    order.actions
}
