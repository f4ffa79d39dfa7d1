//! Rotary embeddings.

use crate::build::Build;
use planc_ir::graph::ValueId;
use planc_ir::scalar::ScalarFn as F;

fn halves(b: &mut Build, x: ValueId, n: u64) -> ValueId {
    let (first, second) = (b.cut(x, 0, 1, n / 2), b.cut(x, n as i64 / 2, 1, n / 2));
    let second = b.map(F::Neg, &[second]);
    let axis = b.shape(x).len() - 1;
    b.concat(axis, &[second, first])
}

fn neighbours(b: &mut Build, x: ValueId, n: u64) -> ValueId {
    let (first, second) = (b.cut(x, 0, 2, n / 2), b.cut(x, 1, 2, n / 2));
    let second = b.map(F::Neg, &[second]);
    let shape = b.shape(x);
    let mut single = shape.clone();
    single.pop();
    single.extend([n / 2, 1]);
    let (second, first) = (b.reshape(second, &single), b.reshape(first, &single));
    let stacked = b.concat(shape.len(), &[second, first]);
    b.reshape(stacked, &shape)
}

fn rotary(b: &mut Build, x: ValueId, turned: ValueId, angles: &[u64], swap: bool) -> ValueId {
    let (cos, sin) = (b.input(angles), b.input(angles));
    let straight = b.map(F::Mul, &[x, cos]);
    let across = if swap { [sin, turned] } else { [turned, sin] };
    let across = b.map(F::Mul, &across);
    b.map(F::Add, &if swap { [across, straight] } else { [straight, across] })
}

#[test]
fn halves_and_neighbours() {
    for interleaved in [false, true] {
        for (angles, swap) in [(&[5, 6][..], false), (&[2, 1, 5, 6], true)] {
            let mut b = Build::new();
            let x = b.input(&[2, 3, 5, 6]);
            let turn = if interleaved { neighbours } else { halves };
            let turned = turn(&mut b, x, 6);
            let y = rotary(&mut b, x, turned, angles, swap);
            assert_eq!(b.raised(y), ["RotaryEmbedding"]);
        }
    }
}

#[test]
fn part_of_a_head() {
    let mut b = Build::new();
    let x = b.input(&[2, 3, 5, 8]);
    let (turning, rest) = (b.cut(x, 0, 1, 4), b.cut(x, 4, 1, 4));
    let turned = halves(&mut b, turning, 4);
    let y = rotary(&mut b, turning, turned, &[5, 4], false);
    let y = b.concat(3, &[y, rest]);
    assert_eq!(b.raised(y), ["Slice", "Slice", "RotaryEmbedding", "Concat"]);
}

#[test]
fn other_turns_are_none() {
    // Unequal parts.
    let mut b = Build::new();
    let x = b.input(&[5, 6]);
    let (first, second) = (b.cut(x, 0, 1, 2), b.cut(x, 2, 1, 4));
    let second = b.map(F::Neg, &[second]);
    let turned = b.concat(1, &[second, first]);
    let y = rotary(&mut b, x, turned, &[5, 6], false);
    assert!(!b.raised(y).contains(&"RotaryEmbedding"));
    // The halves of something else.
    let mut b = Build::new();
    let (x, z) = (b.input(&[5, 6]), b.input(&[5, 6]));
    let turned = halves(&mut b, z, 6);
    let y = rotary(&mut b, x, turned, &[5, 6], false);
    assert!(!b.raised(y).contains(&"RotaryEmbedding"));
    // Without the sign.
    let mut b = Build::new();
    let x = b.input(&[5, 6]);
    let (first, second) = (b.cut(x, 0, 1, 3), b.cut(x, 3, 1, 3));
    let turned = b.concat(1, &[second, first]);
    let y = rotary(&mut b, x, turned, &[5, 6], false);
    assert!(!b.raised(y).contains(&"RotaryEmbedding"));
}
