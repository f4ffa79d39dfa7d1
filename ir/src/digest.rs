//! What identifies a model file without reading its weights.
//!
//! `SHA-256("planc model digest 1" ‖ length ‖ number of ranges ‖ start, end of each ‖ every byte of
//! the file outside the ranges)`, numbers as 64-bit little-endian. The ranges are those of the
//! weights, so the digest covers the graph, all names and types, and where each weight lies. A
//! runtime recomputes it from a plan, which lists the same ranges.

use crate::graph::{Graph, ValueDef, WeightSource};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// The ranges of a graph's model file that hold weights, in the order of the values.
pub fn weight_ranges(graph: &Graph) -> Vec<Range<u64>> {
    let range = |def: &ValueDef| match def {
        ValueDef::Weight(source) => in_file(source),
        _ => None,
    };
    graph.values.iter().filter_map(|v| range(&v.def)).collect()
}

fn in_file(source: &WeightSource) -> Option<Range<u64>> {
    match source {
        WeightSource::ModelFile { offset, bytes } => Some(*offset..offset.saturating_add(*bytes)),
        WeightSource::Cast { source, .. } => in_file(source),
        _ => None,
    }
}

/// The digest of a model file, hexadecimal. The order of `weights` does not matter; they may overlap.
///
/// # Errors
/// If the file cannot be read, or a range does not lie in it.
pub fn model_digest(path: &Path, weights: &[Range<u64>]) -> io::Result<String> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    digest_of(BufReader::new(file), length, weights)
}

/// [`model_digest`] of anything that can be read and sought; `length` is its length.
///
/// # Errors
/// If it cannot be read, or a range does not lie in it.
pub fn digest_of(
    mut file: impl Read + Seek,
    length: u64,
    weights: &[Range<u64>],
) -> io::Result<String> {
    let ranges = merged(weights);
    if let Some(bad) = ranges.iter().find(|r| r.end > length) {
        let why =
            format!("bytes {}..{} lie outside the file of {length} bytes", bad.start, bad.end);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut hash = Sha256::new();
    hash.update(b"planc model digest 1");
    hash.update(length.to_le_bytes());
    hash.update((ranges.len() as u64).to_le_bytes());
    for r in &ranges {
        hash.update(r.start.to_le_bytes());
        hash.update(r.end.to_le_bytes());
    }
    let mut at = 0;
    for hole in ranges.iter().cloned().chain(std::iter::once(length..length)) {
        file.seek(SeekFrom::Start(at))?;
        let copied = io::copy(&mut (&mut file).take(hole.start - at), &mut hash)?;
        if copied != hole.start - at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at = hole.end;
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// Sorted, empty ones dropped, touching ones joined.
fn merged(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.iter().filter(|r| r.start < r.end).cloned().collect();
    sorted.sort_by_key(|r| (r.start, r.end));
    let mut out: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for r in sorted {
        match out.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn digest(bytes: &[u8], weights: &[Range<u64>]) -> String {
        digest_of(Cursor::new(bytes), bytes.len() as u64, weights).unwrap()
    }

    #[test]
    fn depends_on_everything_but_the_weights_contents() {
        let base = digest(b"headWEIGHTtail", &[4..10]);
        assert_eq!(base, digest(b"headweighttail", &[4..10]));
        assert_ne!(base, digest(b"HeadWEIGHTtail", &[4..10]));
        assert_ne!(base, digest(b"headWEIGHTtaiL", &[4..10]));
        assert_ne!(base, digest(b"headWEIGHTtail", &[4..9]));
        assert_ne!(base, digest(b"headWEIGHTtail", &[]));
        assert_ne!(base, digest(b"headWEIGHTtail!", &[4..10]));
        assert_eq!(base.len(), 64);
    }

    #[test]
    fn order_and_overlap_of_ranges_do_not_matter() {
        let a = digest(b"0123456789", &[2..5, 7..9]);
        assert_eq!(a, digest(b"0123456789", &[7..9, 3..5, 2..4, 6..6]));
    }

    #[test]
    fn a_range_outside_the_file_is_an_error() {
        let e = digest_of(Cursor::new(b"abc"), 3, std::slice::from_ref(&(1..4))).unwrap_err();
        assert!(e.to_string().contains("outside"), "{e}");
    }
}
