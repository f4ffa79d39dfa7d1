//! GELU and SiLU in pieces, and gates.

use super::super::pattern::{Walk, is_close};
use super::super::rewriter::Rewriter;
use super::Raise;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::scalar::{Gate, ScalarFn as F};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// How deep in a product its decisive factor may stand.
const MAX_DEPTH: usize = 4;

/// `x · ½ · (1 + erf(x / √2))`, its factors in any order: the definition of [`F::Gelu`].
pub fn gelu(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    half_of_one_plus(rewriter, root, F::Gelu, |w, inner| {
        let argument = w.unary(inner, F::Erf)?;
        let dtype = w.dtype(argument);
        let (x, by) = w.scaled(argument)?;
        is_close(by, FRAC_1_SQRT_2, dtype).then_some(x)
    })
}

/// `x · ½ · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`: the definition of [`F::GeluTanh`].
pub fn gelu_tanh(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    half_of_one_plus(rewriter, root, F::GeluTanh, |w, inner| {
        let argument = w.unary(inner, F::Tanh)?;
        let dtype = w.dtype(argument);
        let sqrt = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
        let sum = w.attempt(|w| {
            let (sum, by) = w.scaled(argument)?;
            let [a, b] = w.binary(sum, F::Add).filter(|_| is_close(by, sqrt, dtype))?;
            [(a, b), (b, a)]
                .into_iter()
                .find_map(|(x, cubic)| w.attempt(|w| is_power(w, cubic, x, 3).then_some(x)))
        });
        // √(2/π) · x · (1 + 0.044715 · x²)
        sum.or_else(|| {
            let (factors, by) = w.product(argument, &[])?;
            let &[a, b] = &factors[..] else { return None };
            let pairs = is_close(by, sqrt, dtype).then_some([(a, b), (b, a)])?;
            pairs.into_iter().find_map(|(x, sum)| {
                w.attempt(|w| {
                    let (square, one) = w.with_number(sum, F::Add)?;
                    (is_close(one, 1.0, dtype) && is_power(w, square, x, 2)).then_some(x)
                })
            })
        })
    })
}

/// Whether a value is `0.044715 · x` to this power.
fn is_power(w: &mut Walk<'_>, v: ValueId, x: ValueId, power: usize) -> bool {
    let dtype = w.dtype(v);
    let found = w.attempt(|w| {
        let (factors, by) = w.product(v, &[x])?;
        let all = match factors[..] {
            [one] if one != x => w.power(one, power as f64)? == x,
            _ => factors.len() == power && factors.iter().all(|&f| f == x),
        };
        (all && is_close(by, 0.044_715, dtype)).then_some(())
    });
    found.is_some()
}

/// `½ · x · (1 + inner(x))`; `argument` steps through `inner` to `x`.
fn half_of_one_plus(
    rewriter: &mut Rewriter,
    root: ValueId,
    f: F,
    argument: impl Fn(&mut Walk<'_>, ValueId) -> Option<ValueId>,
) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let found = |w: &mut Walk<'_>, candidate: ValueId| {
        let (inner, one) = w.with_number(candidate, F::Add)?;
        let x = argument(w, inner).filter(|_| one == 1.0)?;
        let (factors, number) = w.product(root, &[x, candidate])?;
        let dtype = w.dtype(root);
        let mut both = [x, candidate];
        both.sort_unstable();
        (factors == both && is_close(number, 0.5, dtype)).then_some(x)
    };
    let x = sums(rewriter, root).into_iter().find_map(|c| walk.attempt(|w| found(w, c)))?;
    let interior = walk.close(root)?;
    Some(Raise::new(Map { f }, [x], interior))
}

/// The sums among the factors of a product.
fn sums(rewriter: &Rewriter, root: ValueId) -> Vec<ValueId> {
    let (mut level, mut found) = (vec![root], Vec::new());
    for depth in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for v in level {
            match rewriter.op(v) {
                Some((Op::Map(Map { f: F::Mul | F::Div }), inputs)) => next.extend(inputs),
                Some((Op::Map(Map { f: F::Add }), _)) if depth > 0 => found.push(v),
                _ => {}
            }
        }
        level = next;
    }
    found
}

/// `x · sigmoid(α · x)`: SiLU, and the quick form of GELU for α = 1.702.
pub fn swish(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, F::Mul)?;
    let (x, alpha) = [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        walk.attempt(|w| {
            let argument = w.unary(gate, F::Sigmoid)?;
            if argument == x {
                return Some((x, 1.0));
            }
            w.scaled(argument).filter(|(scaled, _)| *scaled == x)
        })
    })?;
    let interior = walk.close(root)?;
    Some(Raise::new(Map { f: F::Swish { alpha: alpha as f32 } }, [x], interior))
}

/// `activation(gate) · x`, both of one shape.
pub fn gated(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, F::Mul)?;
    if rewriter.shape(a) != rewriter.shape(b) {
        return None;
    }
    let all = [Gate::Silu, Gate::Gelu, Gate::GeluTanh];
    let (activation, gate, x) = [(a, b), (b, a)].into_iter().find_map(|(gate, x)| {
        all.into_iter().find_map(|activation| {
            let gate = walk.unary(gate, activation.function())?;
            Some((activation, gate, x))
        })
    })?;
    let interior = walk.close(root)?;
    Some(Raise::new(Map { f: F::Gated(activation) }, [gate, x], interior))
}
