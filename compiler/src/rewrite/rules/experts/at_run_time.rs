//! Walking through deferred nodes: operators as the file names them.

use super::super::super::pattern::Walk;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::ops::decode::Attribute;
use planc_ir::ops::deferred::Deferred;
use planc_ir::scalar::{Gate, ScalarFn as F};

/// Steps through a deferred operator of this name.
pub fn deferred<'a>(
    walk: &mut Walk<'a>,
    v: ValueId,
    op_type: &str,
) -> Option<(&'a Deferred, &'a [ValueId])> {
    walk.attempt(|w| match w.step(v)? {
        (Op::Deferred(op), inputs) if op.domain.is_empty() && op.op_type == op_type => {
            Some((op, inputs))
        }
        _ => None,
    })
}

/// An integer attribute, or its default.
pub fn int_attribute(op: &Deferred, name: &str, default: i64) -> i64 {
    match op.attributes.get(name) {
        Some(Attribute::Int(x)) => *x,
        _ => default,
    }
}

/// Steps through casts between floats.
pub fn uncast(walk: &mut Walk<'_>, mut v: ValueId) -> ValueId {
    while let Some(x) = walk.attempt(|w| {
        let (_, &[x]) = deferred(w, v, "Cast")? else { return None };
        (w.dtype(v).is_float() && w.dtype(x).is_float()).then_some(x)
    }) {
        v = x;
    }
    v
}

/// `gate · sigmoid(gate) · up`: the function, gate and up.
pub fn gated(walk: &mut Walk<'_>, v: ValueId) -> Option<(F, ValueId, ValueId)> {
    let (_, &[a, b]) = deferred(walk, v, "Mul")? else { return None };
    let silu = |w: &mut Walk<'_>, v: ValueId| {
        w.attempt(|w| {
            let (_, &[a, b]) = deferred(w, v, "Mul")? else { return None };
            [(a, b), (b, a)].into_iter().find_map(|(x, sigmoid)| {
                w.attempt(|w| match deferred(w, sigmoid, "Sigmoid")? {
                    (_, &[of]) if of == x => Some(x),
                    _ => None,
                })
            })
        })
    };
    [(a, b), (b, a)]
        .into_iter()
        .find_map(|(active, up)| Some((F::Gated(Gate::Silu), silu(walk, active)?, up)))
}
