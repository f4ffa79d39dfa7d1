//! Unique: the distinct elements or slices of a known tensor.
//!
//! - **ONNX**: Unique (since 11), of known contents, which decide the extents.
//! - **Semantics**: the distinct slices along `axis`, or elements if there is none, ascending or in
//!   order of appearance; where each first appears, which of them each slice is, and how often each
//!   appears.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use super::gather::Gather;
use super::lanes::Lanes;
use crate::graph::ValueId;
use crate::{DType, OpError, Tensor};
use std::cmp::Ordering;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Unique", 11, decode)
    .results(&[ResultType::ElementOf(0), ResultType::Element(DType::I64)])];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let mut x = d.known(0, "its distinct elements decide the output's shape")?;
    let axis = if let Some(axis) = d.int("axis")? {
        x.ty().axis(axis)?
    } else {
        let n = x.ty().elements();
        x = x.reshape([n]).map_err(|e| OpError::Invalid(e.to_string()))?;
        0
    };
    let sorted = d.int_or("sorted", 1)? != 0;
    let lanes = Lanes::new(x.shape(), axis);
    let starts: Vec<usize> = lanes.starts().collect();
    let compare = |a: &usize, b: &usize| {
        let pairs = starts.iter().map(|&s| element_order(&x, lanes.at(s, *a), lanes.at(s, *b)));
        pairs.fold(Ordering::Equal, Ordering::then)
    };

    // Slices by contents, those of equal contents by position; so each run starts with its first.
    let mut order: Vec<usize> = (0..lanes.n).collect();
    order.sort_by(|a, b| compare(a, b).then(a.cmp(b)));
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match runs.last_mut() {
            Some(run) if compare(&run[0], &at).is_eq() => run.push(at),
            _ => runs.push(vec![at]),
        }
    }
    if !sorted {
        runs.sort_by_key(|run| run[0]);
    }
    let mut inverse = vec![0i64; lanes.n];
    for (k, run) in runs.iter().enumerate() {
        for &at in run {
            inverse[at] = k as i64;
        }
    }
    let first = Tensor::vector(runs.iter().map(|run| run[0] as i64).collect());
    let counts = Tensor::vector(runs.iter().map(|run| run.len() as i64).collect());
    let (x, first) = (d.constant(x), d.constant(first));
    let distinct = d.push(Gather { axis }, &[x, first])?;
    let inverse = d.constant(Tensor::vector(inverse));
    Ok(vec![distinct, first, inverse, d.constant(counts)])
}

fn element_order(x: &Tensor, a: usize, b: usize) -> Ordering {
    if x.dtype().is_float() {
        x.f64_at(a).total_cmp(&x.f64_at(b))
    } else {
        x.int_at(a).cmp(&x.int_at(b))
    }
}
