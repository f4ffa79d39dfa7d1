//! Interleaved 1F1B (Megatron-LM; Narayanan et al., 2021): stage `s` of `P` holds the parts `s`, `s + P`, `s + 2 P`, …
//!
//! Forward, a stage takes `P` micro-batches through its first chunk, the same through its second and so on, then the
//! next `P`; backward likewise from the last chunk to the first. It goes forward for `2 (P - 1 - s) + (v - 1) P`
//! passes ahead, where `v` is the number of chunks, then one forward, one backward. For two stages with two chunks
//! (`0`, `a`: first chunk, `0'`, `a'`: second):
//!
//! ```text
//! 0 1 0'1'2 . a'a'3 b'b'2'a a 3'b b . c'c'. d'd'c c d d
//! . 0 1 0'a'a'1'b'b'2 a a 3 b b 2'c'c'3'd'd'c c d d . .
//! ```
//!
//! * Time lost: `(P - 1)(t_f + t_b) / v`, where `t_f` and `t_b` are of all chunks of a stage together.
//! * Under way on stage `s`: `2 (P - 1 - s) + (v - 1) P + 1` chunks for a micro-batch, of `v M` at most.
//!
//! The number of micro-batches has to be a multiple of `P`.

use super::{Shape, Writer};
use planc_ir::program::{Action, Pass};

pub(super) fn order(shape: Shape, stage: u32) -> Vec<Action> {
    let Shape { stages, chunks, micro_batches } = shape;
    let mut order = Writer::new(shape);
    let all = chunks * micro_batches;
    let ahead = all.min(2 * (stages - 1 - stage) + (chunks - 1) * stages);
    for pass in 0..all + ahead {
        if pass < all {
            order.push(Pass::Forward, pass / stages % chunks);
        }
        if pass >= ahead {
            order.push(Pass::Backward, chunks - 1 - (pass - ahead) / stages % chunks);
        }
    }
    order.actions
}
