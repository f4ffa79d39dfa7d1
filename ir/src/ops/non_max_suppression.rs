//! Non-maximum suppression, computed from known boxes: how many are left decides a shape.
//!
//! - **ONNX**: NonMaxSuppression (since 10).
//! - **Semantics**: for each sample and class, boxes in order of falling score are selected unless
//!   they overlap one selected before by more than the threshold, as a fraction of their union. The
//!   result has one row (sample, class, box) a selected box.

use super::Build;
use super::decode::{Decoder, DecoderEntry, ResultType};
use crate::graph::ValueId;
use crate::{DType, OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("NonMaxSuppression", 10, decode)
    .results(&[ResultType::Element(DType::I64)])];

/// How often two boxes are compared at most, so that no model keeps the importer busy for ever.
const MAX_COMPARISONS: u64 = 1 << 30;

const WHY: &str = "it decides which boxes are left";

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (boxes, scores) = (d.known(0, WHY)?, d.known(1, WHY)?);
    let (&[samples, count, 4], &[_, classes, _]) = (boxes.shape(), scores.shape()) else {
        return Err(mismatch(&boxes, &scores));
    };
    if scores.shape() != [samples, classes, count] {
        return Err(mismatch(&boxes, &scores));
    }
    let number = |index| -> Result<Option<Tensor>, OpError> {
        let given = d.optional(index).map(|_| d.known(index, WHY)).transpose()?;
        Ok(given.filter(|t| !t.is_empty()))
    };
    let most = number(2)?.map_or(0, |t| t.int_at(0).max(0)) as usize;
    let overlap = number(3)?.map_or(0.0, |t| t.f64_at(0) as f32);
    let lowest = number(4)?.map_or(f32::NEG_INFINITY, |t| t.f64_at(0) as f32);
    let centred = d.int_or("center_point_box", 0)? != 0;

    let boxes: Vec<f32> = boxes.to_f64s().into_iter().map(|x| x as f32).collect();
    let scores: Vec<f32> = scores.to_f64s().into_iter().map(|x| x as f32).collect();
    let (count, classes) = (count as usize, classes as usize);
    let mut rows: Vec<i64> = Vec::new();
    let mut comparisons = 0u64;
    for sample in 0..samples as usize {
        let rectangles: Vec<Rectangle> = boxes[sample * count * 4..(sample + 1) * count * 4]
            .chunks_exact(4)
            .map(|b| Rectangle::new([b[0], b[1], b[2], b[3]], centred))
            .collect();
        for class in 0..classes {
            let scores = &scores[(sample * classes + class) * count..][..count];
            let mut order: Vec<usize> = (0..count).filter(|&b| scores[b] > lowest).collect();
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut selected: Vec<usize> = Vec::new();
            for candidate in order {
                if selected.len() >= most {
                    break;
                }
                comparisons += selected.len() as u64;
                if comparisons > MAX_COMPARISONS {
                    let why = format!("more than {MAX_COMPARISONS} comparisons of boxes");
                    return Err(OpError::Unsupported(why));
                }
                let overlaps =
                    |&other: &usize| rectangles[candidate].overlap(&rectangles[other]) > overlap;
                if !selected.iter().any(overlaps) {
                    selected.push(candidate);
                }
            }
            rows.extend(selected.iter().flat_map(|&b| [sample as i64, class as i64, b as i64]));
        }
    }
    let rows = Tensor::new([rows.len() as u64 / 3, 3], rows);
    let rows = rows.map_err(|e| OpError::Invalid(e.to_string()))?;
    Ok(vec![d.constant(rows)])
}

fn mismatch(boxes: &Tensor, scores: &Tensor) -> OpError {
    OpError::ShapeMismatch {
        lhs: boxes.shape().to_vec(),
        rhs: scores.shape().to_vec(),
        why: "boxes are [N, B, 4] and scores [N, C, B]",
    }
}

/// A box by its sides. In f32, as the comparison with the threshold is meant.
struct Rectangle {
    low: [f32; 2],
    high: [f32; 2],
}

impl Rectangle {
    /// From two opposite corners, or from the centre and the extents.
    fn new([a, b, c, d]: [f32; 4], centred: bool) -> Self {
        if centred {
            let half = [c / 2.0, d / 2.0];
            return Self { low: [a - half[0], b - half[1]], high: [a + half[0], b + half[1]] };
        }
        Self { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] }
    }

    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The area in common as a fraction of the union's; 0 where there is none.
    fn overlap(&self, other: &Self) -> f32 {
        let side = |i: usize| self.high[i].min(other.high[i]) - self.low[i].max(other.low[i]);
        let (height, width) = (side(0), side(1));
        if !(height > 0.0 && width > 0.0) || self.area() <= 0.0 || other.area() <= 0.0 {
            return 0.0;
        }
        let common = height * width;
        common / (self.area() + other.area() - common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp)] // these are exact
    fn overlaps_are_fractions_of_the_union() {
        let corners = |b| Rectangle::new(b, false);
        let unit = corners([0.0, 0.0, 1.0, 1.0]);
        assert_eq!(unit.overlap(&corners([1.0, 1.0, 0.0, 0.0])), 1.0);
        assert_eq!(unit.overlap(&corners([0.0, 0.5, 1.0, 1.5])), 1.0 / 3.0);
        assert_eq!(unit.overlap(&corners([1.0, 0.0, 2.0, 1.0])), 0.0);
        let centred = Rectangle::new([0.5, 0.5, 1.0, 1.0], true);
        assert_eq!(unit.overlap(&centred), 1.0);
    }
}
