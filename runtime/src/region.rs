//! Copies between parts of one tensor.
//!
//! Whatever moves data (slicing inputs and weights, packing and unpacking for a collective, joining
//! outputs) moves the overlap of two parts of the same whole. A part is a [`Local`]: a range in each
//! dimension, stored row-major on its own.

use planc_ir::TensorType;
use planc_ir::program::Local;

/// The whole of a tensor as a part of itself.
pub fn whole(ty: &TensorType) -> Local {
    Local { ty: ty.clone(), start: vec![0; ty.rank()], global: ty.shape.clone() }
}

/// What two parts of one tensor have in common; some extent is 0 if that is nothing.
pub fn overlap(a: &Local, b: &Local) -> Local {
    let (start, shape): (Vec<u64>, Vec<u64>) = (0..a.start.len())
        .map(|d| {
            let start = a.start[d].max(b.start[d]);
            let end = (a.start[d] + a.ty.shape[d]).min(b.start[d] + b.ty.shape[d]);
            (start, end.saturating_sub(start))
        })
        .unzip();
    Local { ty: TensorType::new(a.ty.dtype, shape), start, global: a.global.clone() }
}

/// Calls `f(from, to, count)` for each contiguous run of the overlap of two parts: `count` elements
/// at element `from` of the one are those at element `to` of the other. Runs come in order.
///
/// # Errors
/// The first that `f` returns.
pub fn for_each_run<E>(
    from: &Local,
    to: &Local,
    mut f: impl FnMut(usize, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let common = overlap(from, to);
    let extents = &common.ty.shape;
    if extents.contains(&0) {
        return Ok(());
    }
    // Dimensions that both parts hold whole, and the first that they do not, make one run.
    let (mut outer, mut run) = (extents.len(), 1);
    while outer > 0 {
        outer -= 1;
        run *= extents[outer];
        if extents[outer] != from.ty.shape[outer] || extents[outer] != to.ty.shape[outer] {
            break;
        }
    }
    let (mut at_from, mut at_to) = (offset(from, &common.start), offset(to, &common.start));
    let step_from = planc_ir::tensor::strides(&from.ty.shape);
    let step_to = planc_ir::tensor::strides(&to.ty.shape);
    let mut coord = vec![0u64; outer];
    loop {
        f(at_from, at_to, run as usize)?;
        let mut d = outer;
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            coord[d] += 1;
            at_from += step_from[d];
            at_to += step_to[d];
            if coord[d] < extents[d] {
                break;
            }
            coord[d] = 0;
            at_from -= step_from[d] * extents[d] as usize;
            at_to -= step_to[d] * extents[d] as usize;
        }
    }
}

/// The element of `part` that is the tensor's element at `position`.
fn offset(part: &Local, position: &[u64]) -> usize {
    let strides = planc_ir::tensor::strides(&part.ty.shape);
    strides.iter().zip(position).zip(&part.start).map(|((s, p), b)| s * (p - b) as usize).sum()
}

/// Copies what two parts have in common from the bytes of the one to those of the other.
pub fn copy(from: &Local, src: &[u8], to: &Local, dst: &mut [u8]) {
    let size = from.ty.dtype.bytes() as usize;
    let done: Result<(), std::convert::Infallible> = for_each_run(from, to, |a, b, n| {
        dst[b * size..(b + n) * size].copy_from_slice(&src[a * size..(a + n) * size]);
        Ok(())
    });
    match done {
        Ok(()) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planc_ir::DType;
    use proptest::prelude::*;

    /// A part of a tensor whose extents are `global`, from fractions of each.
    fn part(global: &[u64], cuts: &[(u64, u64)]) -> Local {
        let (start, shape): (Vec<u64>, Vec<u64>) = global
            .iter()
            .zip(cuts)
            .map(|(&n, &(a, b))| {
                let (a, b) = (a % (n + 1), b % (n + 1));
                (a.min(b), a.max(b) - a.min(b))
            })
            .unzip();
        Local { ty: TensorType::new(DType::U8, shape), start, global: global.to_vec() }
    }

    /// The elements of a part of the tensor whose element `i` is `i`.
    fn elements(p: &Local) -> Vec<u8> {
        let strides = planc_ir::tensor::strides(&p.global);
        (0..p.ty.elements() as usize)
            .map(|i| {
                let c = planc_ir::tensor::unravel(i, &p.ty.shape);
                c.iter().zip(&p.start).zip(&strides).map(|((c, s), k)| (c + *s as usize) * k).sum()
            })
            .map(|i: usize| i as u8)
            .collect()
    }

    proptest! {
        #[test]
        fn copies_exactly_the_overlap(
            global in prop::collection::vec(0u64..4, 0..4),
            a in prop::collection::vec((0u64..9, 0u64..9), 4),
            b in prop::collection::vec((0u64..9, 0u64..9), 4),
        ) {
            let (a, b) = (part(&global, &a), part(&global, &b));
            let mut dst = vec![255; b.ty.elements() as usize];
            copy(&a, &elements(&a), &b, &mut dst);
            let common = overlap(&a, &b);
            let want: Vec<u8> = elements(&b)
                .into_iter()
                .enumerate()
                .map(|(i, x)| {
                    let c = planc_ir::tensor::unravel(i, &b.ty.shape);
                    let inside = c.iter().enumerate().all(|(d, &c)| {
                        let p = b.start[d] + c as u64;
                        p >= common.start[d] && p < common.start[d] + common.ty.shape[d]
                    });
                    if inside { x } else { 255 }
                })
                .collect();
            prop_assert_eq!(dst, want);
        }
    }
}
