//! Elementwise kernels whose results lie where operands lie.
//!
//! Kernels know nothing of that: they run on one block of the results after the other, each small enough that
//! copies of the operands that it writes over stay in the nearest cache.

use super::operand::{In, Out};
use crate::KernelError;
use crate::device::bytes::AlignedBytes;
use crate::region;
use planc_ir::TensorType;
use planc_ir::program::{Kernel, Local};
use planc_ir::tensor::{strides, unravel};
use std::ops::Range;

/// Elements of a block.
const BLOCK: u64 = 4096;

/// Runs an elementwise kernel. `replaced` says for each operand which result lies where it lies, if one does;
/// then the operand's own bytes are not looked at.
pub fn run(
    kernel: &Kernel,
    inputs: &[In<'_>],
    replaced: &[Option<usize>],
    outputs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let Some(first) = outputs.first() else { return Ok(()) };
    let blocks = Blocks::new(first.shape());
    let bytes = |x: &In<'_>| BLOCK * x.dtype().bytes();
    let mut copies = inputs
        .iter()
        .zip(replaced)
        .map(|(x, replaced)| match replaced {
            None => Ok(None),
            Some(_) => match AlignedBytes::zeroed(bytes(x)) {
                None => Err(KernelError::Memory { bytes: bytes(x) }),
                copy => Ok(copy),
            },
        })
        .collect::<Result<Vec<_>, _>>()?;
    for block in 0..blocks.count() {
        let place = |ty: &TensorType| blocks.place(block, ty);
        let parts: Vec<(Local, Range<usize>)> = inputs.iter().map(|x| place(&x.local.ty)).collect();
        for ((copy, replaced), (_, range)) in copies.iter_mut().zip(replaced).zip(&parts) {
            if let (Some(copy), &Some(result)) = (copy, replaced) {
                copy[..range.len()].copy_from_slice(&outputs[result].bytes[range.clone()]);
            }
        }
        let read: Vec<In<'_>> = inputs
            .iter()
            .zip(&copies)
            .zip(&parts)
            .map(|((x, copy), (local, range))| match copy {
                Some(copy) => In { local, bytes: &copy[..range.len()] },
                None => In { local, bytes: &x.bytes[range.clone()] },
            })
            .collect();
        let parts: Vec<(Local, Range<usize>)> =
            outputs.iter().map(|x| place(&x.local.ty)).collect();
        let mut written: Vec<Out<'_>> = outputs
            .iter_mut()
            .zip(&parts)
            .map(|(x, (local, range))| Out { local, bytes: &mut x.bytes[range.clone()] })
            .collect();
        super::run(kernel, &read, &mut written)?;
    }
    Ok(())
}

/// A tensor divided into blocks of consecutive elements: `rows` of dimension `dim`, with all of those behind
/// it, at one place of those before it.
struct Blocks<'a> {
    shape: &'a [u64],
    dim: usize,
    rows: u64,
}

impl<'a> Blocks<'a> {
    fn new(shape: &'a [u64]) -> Self {
        let (mut dim, mut inner) = (shape.len(), 1u64);
        while dim > 0 {
            dim -= 1;
            if dim == 0 || inner.saturating_mul(shape[dim]) > BLOCK {
                break;
            }
            inner *= shape[dim];
        }
        // As few blocks as there must be, and those of nearly equal size.
        let extent = shape.get(dim).copied().unwrap_or(1);
        let most = (BLOCK / inner.max(1)).max(1);
        let rows = extent.div_ceil(extent.div_ceil(most).max(1));
        Self { shape, dim, rows: rows.max(1) }
    }

    /// Blocks in each place of the dimensions before `dim`.
    fn in_each(&self) -> u64 {
        self.shape.get(self.dim).map_or(1, |n| n.div_ceil(self.rows))
    }

    fn count(&self) -> u64 {
        if self.shape.contains(&0) {
            return 0; // the other extents may be too large to count
        }
        self.shape[..self.dim].iter().product::<u64>() * self.in_each()
    }

    /// The part of an operand that broadcasts to the block of this number, as a tensor of its own, and where
    /// its bytes lie.
    fn place(&self, block: u64, ty: &TensorType) -> (Local, Range<usize>) {
        let before = unravel((block / self.in_each()) as usize, &self.shape[..self.dim]);
        let begin = block % self.in_each() * self.rows;
        let skip = self.shape.len() - ty.rank();
        let (mut shape, mut offset) = (Vec::new(), 0);
        for (own, stride) in strides(&ty.shape).into_iter().enumerate() {
            let (d, extent) = (own + skip, ty.shape[own]);
            let repeats = extent == 1;
            if d < self.dim {
                offset += if repeats { 0 } else { before[d] as usize * stride };
            } else if d == self.dim && !repeats {
                offset += begin as usize * stride;
                shape.push(self.rows.min(extent - begin));
            } else {
                shape.push(extent);
            }
        }
        let part = TensorType::new(ty.dtype, shape);
        let begin = offset * ty.dtype.bytes() as usize;
        let end = begin + part.bytes() as usize;
        (region::whole(&part), begin..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planc_ir::DType;

    fn blocks(shape: &[u64], operand: &[u64]) -> Vec<(Vec<u64>, Range<usize>)> {
        let blocks = Blocks::new(shape);
        let ty = TensorType::new(DType::U8, operand);
        (0..blocks.count())
            .map(|i| blocks.place(i, &ty))
            .map(|(local, range)| (local.ty.shape, range))
            .collect()
    }

    #[test]
    fn blocks_are_small_even_and_cover_everything_once() {
        for shape in [
            vec![],
            vec![1],
            vec![4097],
            vec![3, 4097],
            vec![100, 64, 3],
            vec![5, 1, 7],
            vec![2, 3, 9000],
            vec![1, 1],
            vec![0, u64::MAX],
        ] {
            let found = blocks(&shape, &shape);
            let mut at = 0;
            for (extents, range) in &found {
                assert_eq!((range.start, range.len() as u64), (at, extents.iter().product()));
                assert!(range.len() as u64 <= BLOCK, "{shape:?}");
                at = range.end;
            }
            assert_eq!(at as u64, planc_ir::graph::elements(&shape), "{shape:?}");
            let most = found.iter().map(|(_, r)| r.len()).max().unwrap_or(0);
            let least = found.iter().map(|(_, r)| r.len()).min().unwrap_or(0);
            assert!(most <= 2 * least, "{shape:?}: {least} to {most}");
        }
    }

    #[test]
    fn operands_that_broadcast_repeat() {
        let row = blocks(&[3, 5000], &[5000]);
        assert_eq!(row[0], (vec![2500], 0..2500));
        assert_eq!(row[3], (vec![2500], 2500..5000));
        let column = blocks(&[3, 5000], &[3, 1]);
        assert_eq!(column[0], (vec![1], 0..1));
        assert_eq!(column[4], (vec![1], 2..3));
        assert_eq!(blocks(&[3, 5000], &[])[5], (vec![], 0..1));
        assert_eq!(blocks(&[2, 3], &[2, 1]), [(vec![2, 1], 0..2)]);
    }
}
