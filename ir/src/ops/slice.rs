//! Cutting a part out of a tensor.
//!
//! - **ONNX**: Slice (since 1; parameters are attributes before 10), Split (since 2; one slice an
//!   output).
//! - **Semantics**: `out[i] = in[start + i · step]` along each dimension that is cut.
//! - **Split**: dimensions that are cut stay whole, the others are parallel. Linear.

use super::decode::{Decoder, DecoderEntry};
use super::pad::Pad;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::program::kernel::PadMode;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// What is kept of a dimension that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// First index.
    pub start: i64,
    /// Distance; may be negative, never 0.
    pub step: i64,
    /// How many.
    pub extent: u64,
}

/// A slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// One entry a dimension; `None` passes whole.
    pub cuts: Vec<Option<Cut>>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("Slice", 1, decode_slice), DecoderEntry::onnx("Split", 2, decode_split)];

fn decode_slice(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let why = "it decides the output's shape";
    let missing = |name| OpError::MissingAttribute { name };
    let starts = d.ints_or_input("starts", 1, why)?.ok_or_else(|| missing("starts"))?;
    let ends = d.ints_or_input("ends", 2, why)?.ok_or_else(|| missing("ends"))?;
    let axes = match d.ints_or_input("axes", 3, why)? {
        Some(axes) => axes,
        None => (0..starts.len() as i64).collect(),
    };
    let steps = d.optional_ints(4, why)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        let why = "starts, ends, axes and steps are of different lengths".to_string();
        return Err(OpError::BadAttribute { name: "starts", why });
    }
    super::reshape::distinct_axes(&axes, ty.rank())?;
    let mut cuts = vec![None; ty.rank()];
    for i in 0..starts.len() {
        let axis = ty.axis(axes[i])?;
        let n = ty.shape[axis];
        let cut = clamp(n, starts[i], ends[i], steps[i])?;
        cuts[axis] = Some(cut).filter(|c| *c != Cut { start: 0, step: 1, extent: n });
    }
    if cuts.iter().all(Option::is_none) {
        return Ok(vec![x]);
    }
    Ok(vec![d.push(Slice { cuts }, &[x])?])
}

/// Python's slicing rules: negative bounds count from the back, bounds beyond the ends are moved
/// there.
fn clamp(n: u64, start: i64, end: i64, step: i64) -> Result<Cut, OpError> {
    let (n, step128) = (i128::from(n), i128::from(step));
    let wrap = |i: i64| if i < 0 { i128::from(i) + n } else { i128::from(i) };
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let start = wrap(start).clamp(lowest.max(0), highest.max(0));
    let end = wrap(end).clamp(lowest, highest.max(lowest));
    let count = match step {
        0 => return Err(OpError::BadAttribute { name: "steps", why: "a step is 0".into() }),
        1.. => (end - start + step128 - 1).max(0) / step128,
        _ => (start - end - step128 - 1).max(0) / -step128,
    };
    // An empty dimension has nothing to start from.
    let count = if n == 0 { 0 } else { count };
    // One element needs no step; a step beyond the extent cannot be told from it.
    let step = if count <= 1 { 1 } else { step };
    Ok(Cut { start: start as i64, step, extent: count as u64 })
}

/// Extents are an attribute before 13 and an input since; without them the parts are equal, the
/// last one smaller if it must be.
fn decode_split(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let x = d.input(0)?;
    let ty = d.ty(x);
    let axis = ty.axis(d.int_or("axis", 0)?)?;
    let n = ty.shape[axis];
    let bad = |why: String| OpError::BadAttribute { name: "split", why };
    let listed = d.ints_or_input("split", 1, "it decides the outputs' shapes")?;
    let parts = if let Some(parts) = listed {
        parts
            .iter()
            .map(|&p| u64::try_from(p).map_err(|_| bad(format!("a part of {p}"))))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        let count = d.int_or("num_outputs", d.outputs as i64)?;
        let count = u64::try_from(count).ok().filter(|&c| c > 0 && c == d.outputs as u64);
        let count = count.ok_or_else(|| OpError::BadAttribute {
            name: "num_outputs",
            why: format!("the node has {} outputs", d.outputs),
        })?;
        let part = n.div_ceil(count);
        (0..count).map(|i| part.min(n.saturating_sub(i.saturating_mul(part)))).collect()
    };
    let total = parts.iter().try_fold(0u64, |sum, &p| sum.checked_add(p));
    if total != Some(n) || parts.len() < d.outputs {
        return Err(bad(format!("parts {parts:?} of an extent of {n}, {} outputs", d.outputs)));
    }
    let mut start = 0;
    let mut outputs = Vec::new();
    for part in parts {
        outputs.push(d.slice(x, axis, start, start + part)?);
        start += part;
    }
    Ok(outputs)
}

impl Slice {
    fn shape(&self, from: &[u64]) -> Vec<u64> {
        from.iter().zip(&self.cuts).map(|(&n, cut)| cut.map_or(n, |c| c.extent)).collect()
    }
}

/// Keeps sums of a few extents within 64 bits.
const MAX_EXTENT: u64 = 1 << 60;

/// Puts `step - 1` zeros behind each element of a dimension.
fn spread(v: &mut Vjp<'_>, x: ValueId, axis: usize, step: u64) -> Result<ValueId, OpError> {
    if step == 1 {
        return Ok(x);
    }
    let mut shape = v.shape(x);
    shape.insert(axis + 1, 1);
    let x = v.reshape(x, shape.clone())?;
    let (before, mut after) = (vec![0; shape.len()], vec![0; shape.len()]);
    after[axis + 1] = step as i64 - 1;
    let x = v.push(Pad { before, after, mode: PadMode::Constant, value: 0.0 }, &[x])?;
    shape.remove(axis + 1);
    shape[axis] *= step;
    v.reshape(x, shape)
}

impl OpDef for Slice {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        if self.cuts.len() != ty.rank() {
            let expected = self.cuts.len().to_string();
            return Err(OpError::Rank { index: 0, found: ty.rank(), expected });
        }
        for (axis, (&n, cut)) in ty.shape.iter().zip(&self.cuts).enumerate() {
            let Some(c) = cut.filter(|c| c.extent > 0) else { continue };
            let last = i128::from(c.start) + i128::from(c.extent - 1) * i128::from(c.step);
            let inside = |i: i128| (0..i128::from(n)).contains(&i);
            if !(inside(i128::from(c.start)) && inside(last)) {
                return Err(OpError::Invalid(format!("slices beyond the end of axis {axis}")));
            }
        }
        Ok(vec![TensorType::new(inputs[0].dtype, self.shape(&inputs[0].shape))])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &inputs[0].shape, |i| self.cuts[i].is_some());
        rule.input(dims.iter().copied().map(Some));
        rule.output(dims.iter().zip(&self.cuts).map(|(&f, cut)| cut.is_none().then_some(f)));
        if inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, _: &[TensorType], outputs: &[TensorType]) -> Work {
        // Only what is kept is read.
        Work::memory(outputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let from = inputs[0].shape();
        let (shape, strides) = (self.shape(from), strides(from));
        let kept = inputs[0].select(shape.clone(), |i| {
            let coord = unravel(i, &shape).into_iter().zip(&self.cuts).zip(&strides);
            coord
                .map(|((c, cut), stride)| {
                    let at = cut.map_or(c as i64, |cut| cut.start + c as i64 * cut.step);
                    at as usize * stride
                })
                .sum()
        })?;
        Ok(vec![kept])
    }

    /// Zeros around what was cut out and, if not every element was taken, between its elements.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (mut g, shape) = (v.gradient()?, v.shape(v.inputs[0]));
        if v.ty(g).elements() == 0 {
            return Ok(vec![None]);
        }
        if shape.iter().any(|&n| n > MAX_EXTENT) {
            return Err(OpError::Unsupported(format!("extents beyond {MAX_EXTENT}")));
        }
        let turned = self.cuts.iter().map(|cut| {
            let c = cut.filter(|c| c.step < 0)?;
            Some(Cut { start: c.extent as i64 - 1, step: -1, extent: c.extent })
        });
        let turned: Vec<Option<Cut>> = turned.collect();
        if turned.iter().any(Option::is_some) {
            g = v.push(Self { cuts: turned }, &[g])?;
        }
        let (mut before, mut after) = (vec![0; shape.len()], vec![0; shape.len()]);
        for (axis, (&n, cut)) in shape.iter().zip(&self.cuts).enumerate() {
            let Some(c) = cut else { continue };
            let last = c.start + (c.extent as i64 - 1) * c.step;
            let step = if c.extent == 1 { 1 } else { c.step.unsigned_abs() };
            g = spread(v, g, axis, step)?;
            before[axis] = c.start.min(last);
            after[axis] = n as i64 - before[axis] - (c.extent * step) as i64;
        }
        if before.iter().chain(&after).any(|&w| w != 0) {
            g = v.push(Pad { before, after, mode: PadMode::Constant, value: 0.0 }, &[g])?;
        }
        Ok(vec![Some(g)])
    }

    fn lower(&self) -> Kernel {
        Kernel::Slice {
            starts: self.cuts.iter().map(|cut| cut.map_or(0, |c| c.start)).collect(),
            steps: self.cuts.iter().map(|cut| cut.map_or(1, |c| c.step)).collect(),
        }
    }
}
