//! Rotary position embedding.
//!
//! - **ONNX**: RotaryEmbedding (since 23; heads apart or not, part of a head, tables with positions);
//!   com.microsoft RotaryEmbedding.
//! - **Semantics**: pairs of elements of the last dimension are rotated by the angle of their position:
//!   `x₁ cos - x₂ sin`, `x₂ cos + x₁ sin`. A pair is one element of each half, or two neighbours if
//!   interleaved. Cosines and sines broadcast to x, except that their last extent is that of x (one an
//!   element) or half of it (one a pair).
//!   No gradient flows into cosines and sines: they hold positions.
//! - **Split**: the last dimension stays whole, the others are parallel.

use super::concat::Concat;
use super::decode::{Attribute, Decoder, DecoderEntry};
use super::fused_attention::refuse;
use super::gather::Gather;
use super::lanes::floats;
use super::slice::{Cut, Slice};
use super::{Build, OpDef, Vjp, Work, broadcast, broadcast_index, expect_inputs, factors, heads, range, same_dtype,};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn as F;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A rotary embedding. Inputs: x, cosines, sines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotaryEmbedding {
    /// Pairs are neighbours; else one of each half.
    pub interleaved: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("RotaryEmbedding", 23, decode),
    DecoderEntry::microsoft("RotaryEmbedding", decode_microsoft),
];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let shape = d.shape(x);
    // Heads apart: [batch, heads, positions, elements], or [batch, positions, heads, elements].
    let (apart, heads_at) = match shape[..] {
        [_, _, _, _] => (shape.clone(), 1),
        [batch, positions, hidden] => {
            let heads = d.int_or("num_heads", 0)?;
            let heads = u64::try_from(heads).ok().filter(|&h| h > 0 && hidden % h == 0);
            let heads = heads.ok_or_else(|| OpError::BadAttribute {
                name: "num_heads",
                why: format!("does not divide the last extent, {hidden}"),
            })?;
            (vec![batch, positions, heads, hidden / heads], 2)
        }
        _ => {
            return Err(OpError::Rank { index: 0, found: shape.len(), expected: "3 or 4".into() });
        }
    };
    let head = apart[3];
    let bad = |why: String| OpError::BadAttribute { name: "rotary_embedding_dim", why };
    let rotated = match d.int_or("rotary_embedding_dim", 0)? {
        0 => head,
        n => u64::try_from(n).ok().filter(|&n| n <= head).ok_or_else(|| {
            bad(format!("{n} of heads of {head} elements"))
        })?,
    };
    if rotated % 2 != 0 {
        return Err(bad(format!("{rotated} elements do not form pairs")));
    }
    let [cos, sin] = [angles(d, 1, heads_at, rotated / 2)?, angles(d, 2, heads_at, rotated / 2)?];
    let x = d.reshape(x, apart)?;
    let interleaved = d.int_or("interleaved", 0)? != 0;
    let result = rotate(d, x, [cos, sin], rotated, interleaved)?;
    Ok(vec![d.reshape(result, shape)?])
}

/// ONNX Runtime's: tables always, behind the positions, which may be one to start from; the number of
/// heads follows from the tables unless only a part of each head is rotated.
fn decode_microsoft(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    refuse(d, &["is_packed_batching"], &[])?;
    if d.attribute("scale").is_some_and(|scale| *scale != Attribute::Float(1.0)) {
        return Err(OpError::Unsupported("attribute `scale`".into()));
    }
    let (x, positions, cos) = (d.input(0)?, d.input(1)?, d.input(2)?);
    let [_, pairs] = d.shape(cos)[..] else {
        return Err(OpError::Rank { index: 2, found: d.ty(cos).rank(), expected: "2".into() });
    };
    let rotated = pairs.saturating_mul(2);
    let shape = d.shape(x);
    let apart = match shape[..] {
        [_, _, _, _] => x,
        [_, _, hidden] => {
            let heads = match d.int_or("num_heads", 0)? {
                0 => hidden.checked_div(rotated).unwrap_or(0),
                n => u64::try_from(n).unwrap_or(0),
            };
            if heads == 0 {
                let why = format!("there are no heads in {hidden} elements");
                return Err(OpError::BadAttribute { name: "num_heads", why });
            }
            heads::apart(d, x, heads)?
        }
        _ => {
            return Err(OpError::Rank { index: 0, found: shape.len(), expected: "3 or 4".into() });
        }
    };
    let of_heads = d.shape(apart);
    if rotated > of_heads[3] {
        let why = "there are no more angles than pairs of a head";
        return Err(OpError::ShapeMismatch { lhs: of_heads, rhs: d.shape(cos), why });
    }
    let positions = match d.shape(positions)[..] {
        [1] => {
            let first = d.cast(positions, DType::I64)?;
            let steps = range::along(d, 0, of_heads[2], 1, 2)?;
            d.map(F::Add, &[first, steps])?
        }
        [_, _] => positions,
        ref other => {
            return Err(OpError::Rank { index: 1, found: other.len(), expected: "1 or 2".into() });
        }
    };
    let mut angles = [cos, d.input(3)?];
    for table in &mut angles {
        let rows = d.push(Gather { axis: 0 }, &[*table, positions])?;
        let mut one_for_all_heads = d.shape(rows);
        one_for_all_heads.insert(1, 1);
        *table = d.reshape(rows, one_for_all_heads)?;
    }
    let interleaved = d.int_or("interleaved", 0)? != 0;
    let result = rotate(d, apart, angles, rotated, interleaved)?;
    Ok(vec![if shape.len() == 4 { result } else { heads::joined(d, result)? }])
}

/// Rotates the first `rotated` elements of each head of `x`, which has four dimensions; the others
/// pass. Cosines and sines, one a pair, broadcast to the pairs of `x`.
pub(super) fn rotate(
    d: &mut Decoder<'_>,
    x: ValueId,
    [cos, sin]: [ValueId; 2],
    rotated: u64,
    interleaved: bool,
) -> Result<ValueId, OpError> {
    let head = d.shape(x)[3];
    let turning = d.slice(x, 3, 0, rotated)?;
    let result = d.push(RotaryEmbedding { interleaved }, &[turning, cos, sin])?;
    if rotated == head {
        return Ok(result);
    }
    let rest = d.slice(x, 3, rotated, head)?;
    d.push(Concat { axis: 3 }, &[result, rest])
}

/// Cosines or sines, one for each position and pair, with a dimension of 1 for the heads. With
/// position ids the input is a table.
fn angles(
    d: &mut Decoder<'_>,
    index: usize,
    heads_at: usize,
    pairs: u64,
) -> Result<ValueId, OpError> {
    let mut angles = d.input(index)?;
    if let Some(positions) = d.optional(3) {
        if d.ty(angles).rank() != 2 {
            let found = d.ty(angles).rank();
            return Err(OpError::Rank { index, found, expected: "2, a table".into() });
        }
        angles = d.push(Gather { axis: 0 }, &[angles, positions])?;
    }
    let mut shape = d.shape(angles);
    if shape.len() != 3 || shape[2] != pairs {
        let expected = format!("3, its last extent {pairs}");
        return Err(OpError::Rank { index, found: shape.len(), expected });
    }
    shape.insert(heads_at, 1);
    d.reshape(angles, shape)
}

impl RotaryEmbedding {
    /// The other element of a pair, and whether `i` is the pair's second, of `n` elements.
    pub const fn partner(&self, i: usize, n: usize) -> (usize, bool) {
        if self.interleaved {
            (i ^ 1, i % 2 == 1)
        } else if i < n / 2 {
            (i + n / 2, false)
        } else {
            (i - n / 2, true)
        }
    }

    /// Where among `m` angles that of element `i` of `n` stands.
    pub const fn angle(&self, i: usize, n: usize, m: usize) -> usize {
        if m == n {
            i
        } else if self.interleaved {
            i / 2
        } else {
            i % (n / 2)
        }
    }
}

impl RotaryEmbedding {
    /// Exchanges the angles of the elements of each pair, if each has its own.
    fn exchange(&self, v: &mut Vjp<'_>, angles: ValueId, n: u64) -> Result<ValueId, OpError> {
        let shape = v.shape(angles);
        let Some((_, outer)) = shape.split_last().filter(|(m, _)| **m == n) else {
            return Ok(angles);
        };
        let (pairs, axis) =
            if self.interleaved { ([n / 2, 2], outer.len() + 1) } else { ([2, n / 2], outer.len()) };
        let apart = v.reshape(angles, [outer, &pairs].concat())?;
        let mut cuts = vec![None; outer.len() + 2];
        cuts[axis] = Some(Cut { start: 1, step: -1, extent: 2 });
        let exchanged = v.push(Slice { cuts }, &[apart])?;
        v.reshape(exchanged, shape)
    }
}

impl OpDef for RotaryEmbedding {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        let x = &inputs[0];
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        let Some((&n, outer)) = x.shape.split_last().filter(|(n, _)| *n % 2 == 0) else {
            let expected = "1 or more, an even number of elements last".into();
            return Err(OpError::Rank { index: 0, found: x.rank(), expected });
        };
        for t in &inputs[1..] {
            same_dtype(x, t)?;
            let fits = t.shape.split_last().is_some_and(|(&m, rest)| {
                (m == n || m * 2 == n) && broadcast(outer, rest).is_ok_and(|s| s == outer)
            });
            if !fits {
                return Err(OpError::ShapeMismatch {
                    lhs: x.shape.clone(),
                    rhs: t.shape.clone(),
                    why: "cosines and sines broadcast to the operand, one an element or a pair",
                });
            }
        }
        Ok(vec![x.clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let shape = &inputs[0].shape;
        let last = shape.len() - 1;
        let dims = factors::dims(&mut rule, shape, |i| i == last);
        rule.input(dims.iter().copied().map(Some));
        for t in &inputs[1..] {
            rule.input(factors::broadcast(t, shape, &dims));
        }
        rule.output(dims.iter().copied().map(Some));
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 3.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0].to_f64s();
        let shape = inputs[0].shape();
        let n = shape.last().map_or(1, |&n| n as usize).max(1);
        let outer = &shape[..shape.len() - 1];
        let [cos, sin] = [inputs[1], inputs[2]].map(|t| {
            let (m, rest) = t.shape().split_last().map_or((1, &[][..]), |(&m, r)| (m as usize, r));
            move |row: usize, i: usize| {
                t.f64_at(broadcast_index(rest, outer, row) * m + self.angle(i, n, m))
            }
        });
        let rotated: Vec<f64> = (0..x.len())
            .map(|at| {
                let (row, i) = (at / n, at % n);
                let (other, second) = self.partner(i, n);
                let across = x[row * n + other] * sin(row, i);
                x[at] * cos(row, i) + if second { across } else { -across }
            })
            .collect();
        Ok(vec![floats(inputs[0].ty(), shape, &rotated)?])
    }

    /// The rotation by the negative angle. Where the elements of a pair have their own sines, each takes
    /// that of the other, which its gradient came through.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, cos, sin) = (v.gradient()?, v.inputs[1], v.inputs[2]);
        let n = v.shape(g).last().copied().unwrap_or(0);
        let dx = if v.wants(0) {
            let sin = self.exchange(v, sin, n)?;
            let back = v.map(F::Neg, &[sin])?;
            Some(v.push(self.clone(), &[g, cos, back])?)
        } else {
            None
        };
        Ok(vec![dx, None, None])
    }

    fn lower(&self) -> Kernel {
        Kernel::RotaryEmbedding { interleaved: self.interleaved }
    }
}
