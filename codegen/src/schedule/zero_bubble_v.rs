//! ZB-V (Qi et al., Zero Bubble Pipeline Parallelism, 2023): two parts on a stage, the first down the stages and the
//! second back up, and the gradients of weights apart.
//!
//! The first stage holds the first and the last part, so every stage has its first backward pass to run after as many
//! forward passes, and as much under way. This is the paper's order by hand; with less than `2 P - 1` micro-batches,
//! without those that are not there. For three stages (`0`, `a`, `A`: first chunk, `0'`, `a'`, `A'`: second):
//!
//! ```text
//! 0 1 2 3 4 0'a'A'1'b'B'2'c'C'a A 3'd'D'b B 4'e'E'c C d D e E . .
//! . 0 1 2 0'3 1'a'A'2'b'B'4 a A 3'c'C'b B 4'd'D'c e'd C e D E'E .
//! . . 0 0'1 1'2 2'a'A'3 a A 3'b'B'4 b B 4'c'C'c d'd e'e C D'E'D E
//! ```
//!
//! * Time lost, of `P` stages: `(P - 1) t_f / 2` (`t_f` of both chunks of a stage together), the way to the last
//!   stage, if forward and backward take the same time, weights no longer, and there are `2 P - 1` micro-batches or
//!   more. If all three take the same time, no stage waits between its first action and its last.
//! * Under way on each stage: `2 P` chunks for a micro-batch at most, as much memory as 1F1B has on its first stage.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

/// The chunk on the way down.
const DOWN: u32 = 0;
/// The chunk on the way up.
const UP: u32 = 1;

/// For so many micro-batches a stage goes through the motions; it writes those that there are.
pub(super) fn motions(shape: Shape) -> u64 {
    u64::from(shape.micro_batches).max(2 * u64::from(shape.stages) - 1)
}

pub(super) fn order(shape: Shape, stage: u32) -> Vec<Action> {
    use Pass::{Backward, Forward, Weights};
    let from_end = shape.stages - stage;
    let motions = motions(shape) as u32;
    let mut order = Writer::new(shape);
    let both = |order: &mut Writer, chunk| {
        order.push(Backward, chunk);
        order.push(Weights, chunk);
    };
    order.repeat(Forward, DOWN, 2 * from_end - 1);
    for _ in 0..stage {
        order.push(Forward, UP);
        order.push(Forward, DOWN);
    }
    for _ in 0..from_end {
        order.push(Forward, UP);
        both(&mut order, UP);
    }
    while order.count(Forward, UP) < motions {
        if order.count(Forward, DOWN) < motions {
            order.push(Forward, DOWN);
        }
        both(&mut order, DOWN);
        order.push(Forward, UP);
        both(&mut order, UP);
    }
    for _ in 0..stage {
        order.push(Backward, DOWN);
        order.push(Backward, UP);
    }
    for _ in 0..from_end {
        both(&mut order, DOWN);
    }
    for chunk in [UP, DOWN] {
        order.repeat(Weights, chunk, motions - order.count(Weights, chunk));
    }
    order.actions
}
