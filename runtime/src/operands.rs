//! The operands of one instruction, out of one arena.

use crate::KernelError;
use crate::device::bytes::AlignedBytes;
use std::ops::{Deref, Range};

/// Bytes that an instruction reads: in the arena, or a copy where it writes to the same place.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// In the arena.
    Borrowed(&'a [u8]),
    /// A copy.
    Copied(AlignedBytes),
}

impl Deref for Bytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(b) => b,
            Self::Copied(b) => b,
        }
    }
}

/// What an instruction reads and what it writes; no two share memory, unless both are read.
#[derive(Debug)]
pub struct Operands<'a> {
    /// What it reads.
    pub inputs: Vec<Bytes<'a>>,
    /// What it writes.
    pub outputs: Vec<&'a mut [u8]>,
}

impl<'a> Operands<'a> {
    /// Divides an arena. An input that overlaps an output is copied first.
    pub fn split(
        arena: &'a mut [u8],
        inputs: &[Range<usize>],
        outputs: &[Range<usize>],
    ) -> Result<Self, KernelError> {
        let overlaps =
            |r: &Range<usize>| outputs.iter().any(|o| r.start.max(o.start) < r.end.min(o.end));
        let mut copies = Vec::new();
        for r in inputs {
            let copy = if overlaps(r) {
                let bytes = r.len() as u64;
                Some(
                    AlignedBytes::copy_of(&arena[r.clone()])
                        .ok_or(KernelError::Memory { bytes })?,
                )
            } else {
                None
            };
            copies.push(copy);
        }
        // The outputs in the order of the arena, and the gaps between them.
        let mut order: Vec<usize> =
            (0..outputs.len()).filter(|&i| !outputs[i].is_empty()).collect();
        order.sort_by_key(|&i| outputs[i].start);
        let mut written: Vec<Option<&'a mut [u8]>> = outputs.iter().map(|_| None).collect();
        let mut gaps: Vec<(usize, &'a [u8])> = Vec::new();
        let (mut rest, mut at) = (arena, 0);
        for i in order {
            let Some(skip) = outputs[i].start.checked_sub(at) else {
                let why = "two results share memory".to_string();
                return Err(KernelError::Operands { kernel: "any", why });
            };
            let (gap, tail) = rest.split_at_mut(skip);
            let (output, tail) = tail.split_at_mut(outputs[i].len());
            gaps.push((at, gap));
            written[i] = Some(output);
            (rest, at) = (tail, outputs[i].end);
        }
        gaps.push((at, rest));
        let inputs = inputs
            .iter()
            .zip(copies)
            .map(|(r, copy)| match copy {
                Some(copy) => Bytes::Copied(copy),
                None if r.is_empty() => Bytes::Borrowed(&[]),
                None => {
                    let gap = gaps.partition_point(|(begin, _)| *begin <= r.start) - 1;
                    let (begin, bytes) = gaps[gap];
                    Bytes::Borrowed(&bytes[r.start - begin..r.end - begin])
                }
            })
            .collect();
        let outputs = written.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Self { inputs, outputs })
    }

    /// Bytes that were copied.
    pub fn copied_bytes(&self) -> u64 {
        let copied = |b: &Bytes<'_>| if matches!(b, Bytes::Copied(_)) { b.len() as u64 } else { 0 };
        self.inputs.iter().map(copied).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn split(inputs: &[Range<usize>], outputs: &[Range<usize>]) -> Vec<Vec<u8>> {
        let mut arena: Vec<u8> = (0..16).collect();
        let o = Operands::split(&mut arena, inputs, outputs).unwrap();
        for (out, r) in o.outputs.iter().zip(outputs) {
            assert_eq!(out.to_vec(), r.clone().map(|x| x as u8).collect::<Vec<_>>());
        }
        o.inputs.iter().map(|i| i.to_vec()).collect()
    }

    #[test]
    fn operands_are_where_their_ranges_say() {
        for (inputs, outputs) in [
            (vec![0..4, 12..16, 4..4], vec![4..8]),
            (vec![8..12, 0..4, 8..10], vec![12..16, 4..8]),
            (vec![4..8, 0..16], vec![4..8]),
            (vec![0..2], vec![]),
            (vec![0..2, 3..5], vec![8..8, 6..8, 8..9]),
        ] {
            let want: Vec<Vec<u8>> =
                inputs.iter().map(|r| r.clone().map(|x| x as u8).collect()).collect();
            assert_eq!(split(&inputs, &outputs), want);
        }
    }

    #[test]
    fn results_that_overlap_are_refused() {
        let mut arena = [0; 8];
        assert!(Operands::split(&mut arena, &[], &[0..4, 3..6]).is_err());
    }
}
