//! Reshaping: the same elements under other extents.
//!
//! - **ONNX**: Reshape, Flatten, Squeeze, Unsqueeze.
//! - **Semantics**: row-major order is kept.
//! - **Split**: extents are decomposed into common factors: `(b s) h -> b s h`. Where the two sides
//!   have no common boundary, the rest of the group stays whole.

use super::decode::{Decoder, DecoderEntry, ResultType};
use super::{Build, OpDef, Vjp, Work, expect_inputs};
use crate::graph::{TensorType, ValueId, elements, resolve_axis};
use crate::program::Kernel;
use crate::sharding::{FactorId, FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A reshape to fixed extents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// The result's extents.
    pub shape: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("Reshape", 5, decode_reshape).results(&[ResultType::ShapedBy(1)]),
    DecoderEntry::onnx("Flatten", 1, decode_flatten),
    DecoderEntry::onnx("Squeeze", 1, decode_squeeze),
    DecoderEntry::onnx("Unsqueeze", 1, decode_unsqueeze),
];

type Outputs = Result<Vec<ValueId>, OpError>;

fn decode_reshape(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let wanted = d.known_ints(1, "it is the output's shape")?;
    let shape = resolve(&d.ty(x), &wanted, d.int_or("allowzero", 0)? != 0)?;
    Ok(vec![d.reshape(x, shape)?])
}

/// The extents that a Reshape asks for: 0 copies the input's extent unless `allow_zero`, one -1
/// stands for what is left.
fn resolve(from: &TensorType, wanted: &[i64], allow_zero: bool) -> Result<Vec<u64>, OpError> {
    let bad = |why: String| OpError::BadAttribute { name: "shape", why };
    let mut unknown = None;
    let mut shape = Vec::with_capacity(wanted.len());
    for (i, &n) in wanted.iter().enumerate() {
        shape.push(match n {
            -1 if unknown.is_some() => return Err(bad("more than one extent is -1".into())),
            -1 => {
                unknown = Some(i);
                1
            }
            0 if !allow_zero => *from.shape.get(i).ok_or_else(|| {
                bad(format!("extent {i} copies a dimension that {from} does not have"))
            })?,
            n => u64::try_from(n).map_err(|_| bad(format!("extent {i} is {n}")))?,
        });
    }
    if let Some(i) = unknown {
        let (total, known) = (from.elements(), elements(&shape));
        if known == 0 || total % known != 0 {
            return Err(bad(format!("{from} cannot be divided into {wanted:?}")));
        }
        shape[i] = total / known;
    }
    Ok(shape)
}

fn decode_flatten(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let shape = d.shape(x);
    let axis = d.int_or("axis", 1)?;
    let at = if axis == shape.len() as i64 { shape.len() } else { d.ty(x).axis(axis)? };
    let flat = [elements(&shape[..at]), elements(&shape[at..])];
    Ok(vec![d.reshape(x, flat)?])
}

const AXES: &str = "it lists the axes";

fn decode_squeeze(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let dropped = match d.ints_or_input("axes", 1, AXES)? {
        Some(axes) => distinct_axes(&axes, ty.rank())?,
        None => (0..ty.rank()).filter(|&i| ty.shape[i] == 1).collect(),
    };
    if let Some(&i) = dropped.iter().find(|&&i| ty.shape[i] != 1) {
        let why = format!("axis {i} of {ty} is not of extent 1");
        return Err(OpError::BadAttribute { name: "axes", why });
    }
    let kept = (0..ty.rank()).filter(|i| !dropped.contains(i)).map(|i| ty.shape[i]);
    Ok(vec![d.reshape(x, kept.collect::<Vec<_>>())?])
}

fn decode_unsqueeze(d: &mut Decoder<'_>) -> Outputs {
    let x = d.input(0)?;
    let axes = d
        .ints_or_input("axes", 1, AXES)?
        .ok_or(OpError::MissingAttribute { name: "axes" })?;
    let mut old = d.shape(x).into_iter();
    let rank = old.len() + axes.len();
    let new = distinct_axes(&axes, rank)?;
    let shape: Vec<u64> = (0..rank)
        .map(|i| if new.binary_search(&i).is_ok() { 1 } else { old.next().unwrap_or(1) })
        .collect();
    Ok(vec![d.reshape(x, shape)?])
}

/// Resolved axes in ascending order, none twice.
pub fn distinct_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut resolved =
        axes.iter().map(|&a| resolve_axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
    resolved.sort_unstable();
    let mut pairs = resolved.iter().zip(resolved.iter().skip(1));
    if let Some((twice, _)) = pairs.find(|(a, b)| a == b) {
        let why = format!("axis {twice} is listed twice");
        return Err(OpError::BadAttribute { name: "axes", why });
    }
    Ok(resolved)
}

const FACTORS: [&str; 16] = [
    "f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12", "f13", "f14",
    "f15",
];

/// The factors of each dimension of one side, most significant first, as indices.
type Products = Vec<Vec<usize>>;

/// Decomposes two shapes of equal element count into common factors: the extents of the factors,
/// whether each may be split, and for each dimension of each side its factors, most significant
/// first.
///
/// Both shapes are walked from the front. While the pending parts of two dimensions share their
/// greatest common divisor as a most significant factor, it is split off; what remains incompatible
/// stays whole.
fn common_factors(a: &[u64], b: &[u64]) -> (Vec<(u64, bool)>, [Products; 2]) {
    let mut factors: Vec<(u64, bool)> = Vec::new();
    let mut dims = [vec![Vec::new(); a.len()], vec![Vec::new(); b.len()]];
    let (mut i, mut j) = (0, 0);
    let (mut x, mut y) = (1u64, 1u64); // what is left of a[i-1] and b[j-1]
    loop {
        while x == 1 && i < a.len() {
            x = a[i];
            i += 1;
        }
        while y == 1 && j < b.len() {
            y = b[j];
            j += 1;
        }
        if x == 1 || y == 1 {
            return (factors, dims);
        }
        let g = gcd(x, y);
        if g > 1 && (g == x || g == y) {
            factors.push((g, true));
            dims[0][i - 1].push(factors.len() - 1);
            dims[1][j - 1].push(factors.len() - 1);
            x /= g;
            y /= g;
            continue;
        }
        // [6, 4] and [4, 6]: a most significant part of 2 is common, then nothing until both sides
        // have been used up to the same product.
        if g > 1 {
            factors.push((g, true));
            dims[0][i - 1].push(factors.len() - 1);
            dims[1][j - 1].push(factors.len() - 1);
            x /= g;
            y /= g;
        }
        let (mut px, mut py) = (u128::from(x), u128::from(y));
        factors.push((x, false));
        dims[0][i - 1].push(factors.len() - 1);
        factors.push((y, false));
        dims[1][j - 1].push(factors.len() - 1);
        while px != py {
            let (side, n) = if px < py {
                i += 1;
                px *= u128::from(a[i - 1]);
                (0, (i - 1, a[i - 1]))
            } else {
                j += 1;
                py *= u128::from(b[j - 1]);
                (1, (j - 1, b[j - 1]))
            };
            factors.push((n.1, false));
            dims[side][n.0].push(factors.len() - 1);
        }
        (x, y) = (1, 1);
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl OpDef for Reshape {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        if elements(&self.shape) != inputs[0].elements() {
            return Err(OpError::ShapeMismatch {
                lhs: inputs[0].shape.clone(),
                rhs: self.shape.clone(),
                why: "a reshape keeps the number of elements",
            });
        }
        Ok(vec![TensorType::new(inputs[0].dtype, self.shape.clone())])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let (a, b) = (&inputs[0].shape, &outputs[0].shape);
        let opaque = |why: &str| FactorRule::opaque(&[a.len()], &[b.len()], why);
        if inputs[0].elements() == 0 {
            return opaque("no elements");
        }
        if inputs[0].elements() == u64::MAX {
            return opaque("more than 2^64 elements");
        }
        let (factors, [ins, outs]) = common_factors(a, b);
        if factors.len() > FACTORS.len() {
            return opaque("more than 16 factors");
        }
        let mut rule = RuleBuilder::new();
        let ids: Vec<FactorId> = factors
            .iter()
            .zip(FACTORS)
            .map(|(&(n, splits), name)| {
                let kind = if splits { FactorKind::Parallel } else { FactorKind::Whole };
                rule.factor(name, n, kind)
            })
            .collect();
        let named = |dims: Vec<Vec<usize>>| -> Vec<Vec<FactorId>> {
            dims.into_iter().map(|d| d.into_iter().map(|f| ids[f]).collect()).collect()
        };
        rule.input_products(named(ins));
        rule.output_products(named(outs));
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, _: &[TensorType], _: &[TensorType]) -> Work {
        Work::view()
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![inputs[0].clone().reshape(self.shape.clone())?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, shape) = (v.gradient()?, v.shape(v.inputs[0]));
        Ok(vec![Some(v.reshape(g, shape)?)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Copy
    }
}
