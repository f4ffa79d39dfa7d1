//! The gradients of elementwise functions.

use crate::graph::ValueId;
use crate::ops::{Build, Vjp};
use crate::scalar::{ScalarFn as F, Slope, SlopeOf};
use crate::{OpError, Tensor};

type Gradients = Result<Vec<Option<ValueId>>, OpError>;

/// The gradients of the operands, each summed over the dimensions along which it was broadcast.
pub(super) fn vjp(f: F, v: &mut Vjp<'_>) -> Gradients {
    let nothing = vec![None; v.inputs.len()];
    if !v.wanted.contains(&true) || !v.ty(v.outputs[0]).dtype.is_float() {
        return Ok(nothing);
    }
    let gradients = match f {
        // Constant between steps.
        F::Sign | F::Floor | F::Ceil | F::Round => return Ok(nothing),
        F::Where => {
            let (g, condition) = (v.gradient()?, v.inputs[0]);
            let [x, y] = divided(v, condition, g, [1, 2])?;
            vec![None, x, y]
        }
        F::Clip => clip(v)?,
        _ if f.arity() == 2 => binary(f, v)?,
        _ => vec![Some(unary(f, v)?)],
    };
    let mut sums = Vec::with_capacity(gradients.len());
    for (i, gradient) in gradients.into_iter().enumerate() {
        let shape = v.shape(v.inputs[i]);
        sums.push(gradient.map(|g| v.sum_to(g, &shape)).transpose()?);
    }
    Ok(sums)
}

fn unary(f: F, v: &mut Vjp<'_>) -> Result<ValueId, OpError> {
    let (g, x, z) = (v.gradient()?, v.inputs[0], v.outputs[0]);
    match f {
        F::Identity => Ok(g),
        F::Cast(_) => v.cast(g, v.ty(x).dtype),
        F::Neg => v.map(F::Neg, &[g]),
        F::Exp => v.map(F::Mul, &[g, z]),
        F::Log => v.map(F::Div, &[g, x]),
        _ => match Slope::of(f) {
            Some((slope, SlopeOf::Operand)) => v.map(F::Slope(slope), &[x, g]),
            Some((slope, SlopeOf::Result)) => v.map(F::Slope(slope), &[z, g]),
            None => Err(OpError::NotDifferentiable { why: format!("{f:?} has no derivative") }),
        },
    }
}

fn binary(f: F, v: &mut Vjp<'_>) -> Gradients {
    let (g, x, y, z) = (v.gradient()?, v.inputs[0], v.inputs[1], v.outputs[0]);
    let (mut dx, mut dy) = (None, None);
    match f {
        F::Min | F::Max => {
            let first = if f == F::Max { F::GreaterOrEqual } else { F::LessOrEqual };
            let first = v.map(first, &[x, y])?;
            return Ok(divided(v, first, g, [0, 1])?.into());
        }
        F::PRelu => return prelu(v),
        F::Pow => return power(v),
        _ => {}
    }
    if v.wants(0) {
        dx = Some(match f {
            F::Add | F::Sub | F::Mod | F::Fmod => g,
            F::Mul => v.map(F::Mul, &[g, y])?,
            F::Div => v.map(F::Div, &[g, y])?,
            F::Gated(gate) => {
                let g = v.map(F::Mul, &[g, y])?;
                let (slope, _) = Slope::of(gate.function()).ok_or_else(|| no_derivative(f))?;
                v.map(F::Slope(slope), &[x, g])?
            }
            _ => return Err(no_derivative(f)),
        });
    }
    if v.wants(1) {
        dy = Some(match f {
            F::Add => g,
            // Summed first, since there may be less to negate then.
            F::Sub => {
                let sum = v.sum_to(g, &v.shape(y))?;
                v.map(F::Neg, &[sum])?
            }
            F::Mul => v.map(F::Mul, &[g, x])?,
            F::Div => {
                let product = v.map(F::Mul, &[g, z])?;
                let quotient = v.map(F::Div, &[product, y])?;
                let sum = v.sum_to(quotient, &v.shape(y))?;
                v.map(F::Neg, &[sum])?
            }
            // The remainder is `x - n y` with a whole number `n`.
            F::Mod | F::Fmod => {
                let multiple = v.map(F::Sub, &[z, x])?;
                let n = v.map(F::Div, &[multiple, y])?;
                v.map(F::Mul, &[g, n])?
            }
            F::Gated(_) | F::Slope(_) => v.map(f, &[x, g])?,
            _ => return Err(no_derivative(f)),
        });
    }
    Ok(vec![dx, dy])
}

fn no_derivative(f: F) -> OpError {
    OpError::NotDifferentiable { why: format!("{f:?} has no derivative in one of its operands") }
}

/// The gradient where a condition holds goes to the first of two operands, the rest to the second.
fn divided(
    v: &mut Vjp<'_>,
    condition: ValueId,
    g: ValueId,
    [first, second]: [usize; 2],
) -> Result<[Option<ValueId>; 2], OpError> {
    let zero = v.scalar(v.ty(g).dtype, 0.0)?;
    let mut part = |index, x, y| -> Result<_, OpError> {
        v.wants(index).then(|| v.map(F::Where, &[condition, x, y])).transpose()
    };
    Ok([part(first, g, zero)?, part(second, zero, g)?])
}

/// Of `x` and its factor where it is negative.
fn prelu(v: &mut Vjp<'_>) -> Gradients {
    let (g, x, factor) = (v.gradient()?, v.inputs[0], v.inputs[1]);
    let zero = v.scalar(v.ty(g).dtype, 0.0)?;
    let (mut dx, mut d_factor) = (None, None);
    if v.wants(0) {
        let negative = v.map(F::Less, &[x, zero])?;
        let scaled = v.map(F::Mul, &[g, factor])?;
        dx = Some(v.map(F::Where, &[negative, scaled, g])?);
    }
    if v.wants(1) {
        let negative = v.map(F::Min, &[x, zero])?;
        d_factor = Some(v.map(F::Mul, &[g, negative])?);
    }
    Ok(vec![dx, d_factor])
}

/// `y x^(y-1)` and `x^y log x`, and 0 in place of their undefined products with 0.
#[allow(clippy::float_cmp)] // only exactly these exponents are simpler
fn power(v: &mut Vjp<'_>) -> Gradients {
    let (g, x, y, z) = (v.gradient()?, v.inputs[0], v.inputs[1], v.outputs[0]);
    let dtype = v.ty(g).dtype;
    let zero = v.scalar(dtype, 0.0)?;
    let exponent = v.constant_of(y).filter(|y| y.len() == 1).map(|y| y.f64_at(0));
    let (mut dx, mut dy) = (None, None);
    if v.wants(0) {
        dx = match exponent {
            Some(0.0) => None,
            Some(2.0) => {
                let product = v.map(F::Mul, &[g, x])?;
                Some(v.scale(product, 2.0)?)
            }
            _ => {
                let one = v.scalar(dtype, 1.0)?;
                let less = v.map(F::Sub, &[y, one])?;
                let power = v.map(F::Pow, &[x, less])?;
                let slope = v.map(F::Mul, &[power, y])?;
                let product = v.map(F::Mul, &[g, slope])?;
                if v.constant_of(y).is_some_and(has_no_zero) {
                    Some(product)
                } else {
                    let flat = v.map(F::Equal, &[y, zero])?;
                    Some(v.map(F::Where, &[flat, zero, product])?)
                }
            }
        };
    }
    if v.wants(1) {
        let log = v.map(F::Log, &[x])?;
        let slope = v.map(F::Mul, &[z, log])?;
        let product = v.map(F::Mul, &[g, slope])?;
        let flat = v.map(F::Equal, &[x, zero])?;
        dy = Some(v.map(F::Where, &[flat, zero, product])?);
    }
    Ok(vec![dx, dy])
}

fn has_no_zero(t: &Tensor) -> bool {
    (0..t.len()).all(|i| t.f64_at(i) != 0.0)
}

/// Of the lower of the upper bound and the higher of `x` and the lower bound.
fn clip(v: &mut Vjp<'_>) -> Gradients {
    let (g, x, low, high) = (v.gradient()?, v.inputs[0], v.inputs[1], v.inputs[2]);
    let zero = v.scalar(v.ty(g).dtype, 0.0)?;
    let (mut dx, mut d_low, mut d_high) = (None, None, None);
    if v.wants(0) {
        let inside = v.map(F::Equal, &[x, v.outputs[0]])?;
        dx = Some(v.map(F::Where, &[inside, g, zero])?);
    }
    if v.wants(1) || v.wants(2) {
        let raised = v.map(F::Max, &[x, low])?;
        let held = v.map(F::Less, &[high, raised])?;
        if v.wants(1) {
            let g = v.map(F::Where, &[held, zero, g])?;
            let below = v.map(F::Less, &[x, low])?;
            d_low = Some(v.map(F::Where, &[below, g, zero])?);
        }
        if v.wants(2) {
            d_high = Some(v.map(F::Where, &[held, g, zero])?);
        }
    }
    Ok(vec![dx, d_low, d_high])
}
