//! Layer norm and RMS norm in pieces.
//!
//! The bare norm is raised first, with a scale of ones. Its real scale, its bias and the casts around it
//! (norms of half-precision models are computed in f32) join it as they come.

use super::super::pattern::{Walk, is_close};
use super::super::rewriter::Rewriter;
use super::Raise;
use planc_ir::TensorType;
use planc_ir::graph::{ValueId, elements};
use planc_ir::ops::Op;
use planc_ir::ops::normalize::Normalize;
use planc_ir::scalar::ScalarFn as F;
use planc_ir::sharding::ReduceKind;

/// `(x - mean) / √(mean((x - mean)²) + ε)` over trailing dimensions: the definition of layer norm.
pub fn layer(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    bare(rewriter, root, false)
}

/// `x / √(mean(x²) + ε)` over trailing dimensions: the definition of RMS norm.
pub fn rms(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    bare(rewriter, root, true)
}

fn bare(rewriter: &mut Rewriter, root: ValueId, rms: bool) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let (above, below, deviation) = quotient(&mut walk, root)?;
    let (square, epsilon) = walk.with_number(below, F::Add)?;
    let (squared, axis) = mean(rewriter, &mut walk, square)?;
    let deviating = walk.square(squared)?;
    let x = if rms {
        (deviating == above).then_some(above)?
    } else {
        let (x, of) = centred(rewriter, &mut walk, above)?;
        // Some exporters subtract the mean twice, once for each use.
        let again =
            if deviating == above { (x, of) } else { centred(rewriter, &mut walk, deviating)? };
        (again == (x, axis) && of == axis).then_some(x)?
    };
    let fits = epsilon >= 0.0 && aligned(rewriter, deviation, x, axis);
    let interior = walk.close(root).filter(|_| fits)?;
    let ty = rewriter.ty(x).clone();
    let ones = rewriter.filled(root, TensorType::new(ty.dtype, &ty.shape[axis..]), 1.0)?;
    let op = Normalize { axis, epsilon: epsilon as f32, rms };
    Some(Raise::new(op, [x, ones], interior))
}

/// `a` and `b` of `a / √b`, and the value that stands for the root or its inverse.
fn quotient(walk: &mut Walk<'_>, root: ValueId) -> Option<(ValueId, ValueId, ValueId)> {
    if let Some([above, divisor]) = walk.attempt(|w| w.binary(root, F::Div))
        && let Some(below) = walk.unary(divisor, F::Sqrt)
    {
        return Some((above, below, divisor));
    }
    let [a, b] = walk.binary(root, F::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(above, factor)| {
        let below = walk.attempt(|w| {
            let inverse = w.without_ones(factor);
            if let Some(below) = w.power(inverse, -0.5) {
                return Some(below);
            }
            let root = w.unary(inverse, F::Reciprocal).or_else(|| {
                w.attempt(|w| w.binary(inverse, F::Div).filter(|[one, _]| w.is(*one, 1.0)))
                    .map(|[_, root]| root)
            })?;
            w.unary(root, F::Sqrt)
        })?;
        Some((above, below, factor))
    })
}

/// What a mean over trailing dimensions is of, and the first of them.
fn mean(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId) -> Option<(ValueId, usize)> {
    let v = walk.without_ones(v);
    let (sum, by) = walk.scaled(v)?;
    let sum = walk.without_ones(sum);
    let (Op::Reduce(reduce), &[x]) = walk.step(sum)? else { return None };
    let ty = rewriter.ty(x);
    // Dimensions of 1 may be reduced or not.
    let many = |axes: &[usize]| -> Vec<usize> {
        axes.iter().copied().filter(|&i| ty.shape[i] != 1).collect()
    };
    let first = many(&reduce.axes).first().or(reduce.axes.first()).copied()?;
    let trailing: Vec<usize> = (first..ty.rank()).collect();
    let count = elements(&ty.shape[first..]) as f64;
    let fits = many(&reduce.axes) == many(&trailing)
        && reduce.kind == ReduceKind::Sum
        && is_close(by * count, 1.0, ty.dtype);
    fits.then_some((x, first))
}

/// Whether a value that was reduced from `axis` on broadcasts to `x` as if those dimensions were kept.
fn aligned(rewriter: &Rewriter, v: ValueId, x: ValueId, axis: usize) -> bool {
    let (own, shape) = (rewriter.shape(v), rewriter.shape(x));
    let Some(skip) = shape.len().checked_sub(own.len()) else { return false };
    let wanted = |i: usize| if i < axis { shape[i] } else { 1 };
    (0..shape.len()).all(|i| i.checked_sub(skip).map_or(1, |at| own[at]) == wanted(i))
}

/// `x` of `x - mean(x)`, and the first dimension of the mean.
fn centred(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId) -> Option<(ValueId, usize)> {
    let [x, subtracted] = walk.binary(v, F::Sub)?;
    let (of, axis) = mean(rewriter, walk, subtracted)?;
    (of == x && aligned(rewriter, subtracted, x, axis)).then_some((x, axis))
}

/// Steps through a norm.
fn step(walk: &mut Walk<'_>, v: ValueId, rms: bool) -> Option<(Normalize, Vec<ValueId>)> {
    walk.attempt(|w| match w.step(v)? {
        (Op::Normalize(norm), inputs) if norm.rms == rms => Some((norm.clone(), inputs.to_vec())),
        _ => None,
    })
}

/// A factor behind a layer norm that has none: both are products, element by element.
pub fn scaled_layer(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    scaled(rewriter, root, false)
}

/// The same of RMS norm.
pub fn scaled_rms(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    scaled(rewriter, root, true)
}

fn scaled(rewriter: &mut Rewriter, root: ValueId, rms: bool) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, F::Mul)?;
    let (norm, x, scale) = [(a, b), (b, a)].into_iter().find_map(|(normal, scale)| {
        let (norm, inputs) = step(&mut walk, normal, rms)?;
        let &[x, ones] = &inputs[..] else { return None };
        (rewriter.uniform(ones) == Some(1.0)).then_some((norm, x, scale))
    })?;
    let interior = walk.close(root)?;
    let scale = fitted(rewriter, root, x, norm.axis, scale)?;
    Some(Raise::new(norm, [x, scale], interior))
}

/// A layer norm seen under other extents, which exporters of Keras models write: its rows stay rows.
pub fn reshaped_layer(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let (Op::Reshape(_), &[normal]) = walk.step(root)? else { return None };
    let (norm, inputs) = step(&mut walk, normal, false)?;
    let &[seen, ones] = &inputs[..] else { return None };
    let (Op::Reshape(_), &[x]) = rewriter.op(seen)? else { return None };
    let interior = walk.close(root)?;
    let shape = rewriter.shape(x).to_vec();
    let count = elements(&rewriter.shape(seen)[norm.axis..]);
    let axis = (0..shape.len()).rev().find(|&i| elements(&shape[i..]) == count)?;
    if rewriter.shape(root) != shape || rewriter.uniform(ones) != Some(1.0) {
        return None;
    }
    let inner = TensorType::new(rewriter.ty(x).dtype, &shape[axis..]);
    let ones = rewriter.filled(root, inner, 1.0)?;
    Some(Raise::new(Normalize { axis, ..norm }, [x, ones], interior))
}

/// A summand behind a layer norm that has none.
pub fn biased_layer(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    let mut walk = Walk::new(rewriter);
    let [a, b] = walk.binary(root, F::Add)?;
    let (norm, x, scale, bias) = [(a, b), (b, a)].into_iter().find_map(|(normal, bias)| {
        let (norm, inputs) = step(&mut walk, normal, false)?;
        let &[x, scale] = &inputs[..] else { return None };
        Some((norm, x, scale, bias))
    })?;
    let interior = walk.close(root)?;
    if rewriter.uniform(bias) == Some(0.0) {
        return Some(Raise::new(norm, [x, scale], interior));
    }
    let bias = fitted(rewriter, root, x, norm.axis, bias)?;
    Some(Raise::new(norm, [x, scale, bias], interior))
}

/// A scale or bias with the extents that a norm wants, if it has them but for dimensions of 1 in front.
fn fitted(
    rewriter: &mut Rewriter,
    root: ValueId,
    x: ValueId,
    axis: usize,
    v: ValueId,
) -> Option<ValueId> {
    let inner = rewriter.shape(x)[axis..].to_vec();
    let outer = rewriter.shape(v).len().checked_sub(inner.len())?;
    let fits = rewriter.shape(v)[outer..] == inner && elements(&rewriter.shape(v)[..outer]) == 1;
    if fits { rewriter.reshape(root, v, &inner) } else { None }
}

/// A layer norm of a widened value, narrowed again: the op computes wide in any case.
pub fn narrow_layer(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    narrow(rewriter, root, false)
}

/// The same of RMS norm.
pub fn narrow_rms(rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
    narrow(rewriter, root, true)
}

fn narrow(rewriter: &mut Rewriter, root: ValueId, rms: bool) -> Option<Raise> {
    let dtype = rewriter.ty(root).dtype;
    let mut walk = Walk::new(rewriter);
    let normal = walk.unary(root, F::Cast(dtype))?;
    let (norm, inputs) = step(&mut walk, normal, rms)?;
    let interior = walk.close(root)?;
    let widened =
        |rewriter: &Rewriter, v| Walk::new(rewriter).unary(v, F::Cast(rewriter.ty(v).dtype));
    let mut narrow = Vec::new();
    for (i, v) in inputs.into_iter().enumerate() {
        let source = widened(rewriter, v).filter(|&source| rewriter.ty(source).dtype == dtype);
        narrow.push(match source {
            Some(source) => source,
            // A scale of ones is exact in any type.
            None if i == 1 && rewriter.uniform(v) == Some(1.0) => rewriter.cast(root, v, dtype)?,
            None => return None,
        });
    }
    Some(Raise::new(norm, narrow, interior))
}
