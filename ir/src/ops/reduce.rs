//! Reductions over dimensions.
//!
//! - **ONNX**: ReduceSum, ReduceMax, ReduceMin, ReduceProd (axes are an attribute until 11 or 17,
//!   an input since), and made of them ReduceMean, ReduceL1, ReduceL2, ReduceSumSquare,
//!   ReduceLogSum, ReduceLogSumExp, GlobalAveragePool, GlobalMaxPool.
//! - **Semantics**: elements along `axes` combine; of none at all, the result is the neutral
//!   element.
//! - **Split**: reduced dimensions give partial results of the same kind, the others are parallel.
//!   A sum is linear.

use super::cum_prod::CumProd;
use super::decode::{Decoder, DecoderEntry};
use super::reshape::distinct_axes;
use super::{Build, OpDef, Vjp, Work, expect_inputs, factors};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn as F;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A reduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    /// How elements combine.
    pub kind: ReduceKind,
    /// The dimensions, ascending.
    pub axes: Vec<usize>,
    /// Whether they are kept as 1.
    pub keep: bool,
}

type Outputs = Result<Vec<ValueId>, OpError>;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("ReduceSum", 1, |d| plain(d, ReduceKind::Sum)),
    DecoderEntry::onnx("ReduceMax", 1, |d| plain(d, ReduceKind::Max)),
    DecoderEntry::onnx("ReduceMin", 1, |d| plain(d, ReduceKind::Min)),
    DecoderEntry::onnx("ReduceProd", 1, |d| plain(d, ReduceKind::Prod)),
    DecoderEntry::onnx("ReduceMean", 1, |d| composed(d, mean)),
    DecoderEntry::onnx("ReduceL1", 1, |d| {
        composed(d, |d, x, axes| {
            let x = d.map(F::Abs, &[x])?;
            d.reduce(ReduceKind::Sum, x, axes)
        })
    }),
    DecoderEntry::onnx("ReduceL2", 1, |d| {
        composed(d, |d, x, axes| {
            let sum = sum_square(d, x, axes)?;
            d.map(F::Sqrt, &[sum])
        })
    }),
    DecoderEntry::onnx("ReduceSumSquare", 1, |d| composed(d, sum_square)),
    DecoderEntry::onnx("ReduceLogSum", 1, |d| {
        composed(d, |d, x, axes| {
            let sum = d.reduce(ReduceKind::Sum, x, axes)?;
            d.map(F::Log, &[sum])
        })
    }),
    DecoderEntry::onnx("ReduceLogSumExp", 1, |d| composed(d, log_sum_exp)),
    DecoderEntry::onnx("GlobalAveragePool", 1, |d| global(d, mean)),
    DecoderEntry::onnx("GlobalMaxPool", 1, |d| {
        global(d, |d, x, axes| d.reduce(ReduceKind::Max, x, axes))
    }),
];

/// The axes that a node reduces, or `None` where it does nothing.
fn axes(d: &Decoder<'_>) -> Result<Option<Vec<usize>>, OpError> {
    let rank = d.ty(d.input(0)?).rank();
    let listed = d.ints_or_input("axes", 1, "it lists the axes")?.unwrap_or_default();
    if listed.is_empty() {
        let nothing = d.int_or("noop_with_empty_axes", 0)? != 0;
        return Ok((!nothing).then(|| (0..rank).collect()));
    }
    distinct_axes(&listed, rank).map(Some)
}

fn plain(d: &mut Decoder<'_>, kind: ReduceKind) -> Outputs {
    composed(d, |d, x, axes| d.reduce(kind, x, axes))
}

/// A reduction that keeps dimensions, then drops them if the node says so. With no axes to reduce
/// the function still applies to each element by itself.
fn composed(
    d: &mut Decoder<'_>,
    f: impl Fn(&mut Decoder<'_>, ValueId, &[usize]) -> Result<ValueId, OpError>,
) -> Outputs {
    let x = d.input(0)?;
    let axes = axes(d)?.unwrap_or_default();
    let keep = d.int_or("keepdims", 1)? != 0;
    let mut result = f(d, x, &axes)?;
    if !keep {
        let shape = d.shape(result);
        let kept = (0..shape.len()).filter(|i| axes.binary_search(i).is_err()).map(|i| shape[i]);
        result = d.reshape(result, kept.collect::<Vec<_>>())?;
    }
    Ok(vec![result])
}

fn global(
    d: &mut Decoder<'_>,
    f: impl Fn(&mut Decoder<'_>, ValueId, &[usize]) -> Result<ValueId, OpError>,
) -> Outputs {
    let x = d.input(0)?;
    let rank = d.ty(x).rank();
    if rank < 3 {
        return Err(OpError::Rank { index: 0, found: rank, expected: "3 or more".into() });
    }
    Ok(vec![f(d, x, &(2..rank).collect::<Vec<_>>())?])
}

fn mean(d: &mut Decoder<'_>, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
    d.mean(x, axes)
}

fn sum_square(d: &mut Decoder<'_>, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
    let square = d.map(F::Mul, &[x, x])?;
    d.reduce(ReduceKind::Sum, square, axes)
}

/// `m + log Σ exp(x - m)` with the maximum `m`, or 0 in its place where it is infinite.
fn log_sum_exp(d: &mut Decoder<'_>, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
    let max = d.reduce(ReduceKind::Max, x, axes)?;
    let infinite = d.map(F::IsInf { positive: true, negative: true }, &[max])?;
    let zero = d.scalar(d.ty(x).dtype, 0.0)?;
    let shift = d.map(F::Where, &[infinite, zero, max])?;
    let shifted = d.map(F::Sub, &[x, shift])?;
    let exp = d.map(F::Exp, &[shifted])?;
    let sum = d.reduce(ReduceKind::Sum, exp, axes)?;
    let log = d.map(F::Log, &[sum])?;
    d.map(F::Add, &[log, shift])
}

impl Reduce {
    /// A gradient, times for each element of `x` the product of the others. It goes back through one
    /// dimension at a time; the others in it are those before and those after, so that zeros do no harm.
    fn times_others(
        &self,
        v: &mut Vjp<'_>,
        mut x: ValueId,
        mut g: ValueId,
    ) -> Result<ValueId, OpError> {
        let mut products = Vec::with_capacity(self.axes.len());
        for &axis in &self.axes {
            products.push((axis, x));
            x = v.reduce(ReduceKind::Prod, x, &[axis])?;
        }
        for (axis, x) in products.into_iter().rev() {
            let before = v.push(CumProd { axis, exclusive: true, reverse: false }, &[x])?;
            let after = v.push(CumProd { axis, exclusive: true, reverse: true }, &[x])?;
            let others = v.map(F::Mul, &[before, after])?;
            g = v.map(F::Mul, &[others, g])?;
        }
        Ok(g)
    }

    fn reduces(&self, axis: usize) -> bool {
        self.axes.binary_search(&axis).is_ok()
    }

    /// The result's extents with reduced dimensions kept.
    fn kept(&self, shape: &[u64]) -> Vec<u64> {
        shape.iter().enumerate().map(|(i, &n)| if self.reduces(i) { 1 } else { n }).collect()
    }

    fn shape(&self, shape: &[u64]) -> Vec<u64> {
        if self.keep {
            return self.kept(shape);
        }
        (0..shape.len()).filter(|&i| !self.reduces(i)).map(|i| shape[i]).collect()
    }

    fn function(&self) -> F {
        match self.kind {
            ReduceKind::Sum => F::Add,
            ReduceKind::Max => F::Max,
            ReduceKind::Min => F::Min,
            ReduceKind::Prod => F::Mul,
        }
    }
}

/// The neutral element of a reduction: a float, or an integer of the given type.
pub fn neutral(kind: ReduceKind, dtype: DType) -> (f64, i128) {
    let (lowest, highest) = match dtype {
        DType::Bool => (0, 1),
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => (0, (1 << (8 * dtype.bytes())) - 1),
        _ => (-(1i128 << (8 * dtype.bytes() - 1)), (1i128 << (8 * dtype.bytes() - 1)) - 1),
    };
    match kind {
        ReduceKind::Sum => (0.0, 0),
        ReduceKind::Prod => (1.0, 1),
        ReduceKind::Max => (f64::NEG_INFINITY, lowest),
        ReduceKind::Min => (f64::INFINITY, highest),
    }
}

impl OpDef for Reduce {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 1)?;
        let ty = &inputs[0];
        if let Some(&axis) = self.axes.iter().find(|&&a| a >= ty.rank()) {
            return Err(OpError::Axis { axis: axis as i64, rank: ty.rank() });
        }
        let arithmetic = matches!(self.kind, ReduceKind::Sum | ReduceKind::Prod);
        if ty.dtype == DType::Bool && arithmetic {
            return Err(OpError::UnsupportedType { found: ty.dtype });
        }
        Ok(vec![TensorType::new(ty.dtype, self.shape(&ty.shape))])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims: Vec<_> = inputs[0]
            .shape
            .iter()
            .zip(factors::DIMS)
            .enumerate()
            .map(|(i, (&n, name))| {
                let reduced = FactorKind::Reduce(self.kind);
                let kind = if self.reduces(i) { reduced } else { FactorKind::Parallel };
                rule.factor(name, n, kind)
            })
            .collect();
        rule.input(dims.iter().copied().map(Some));
        let kept = (0..dims.len()).filter(|&i| self.keep || !self.reduces(i));
        rule.output(kept.map(|i| (!self.reduces(i)).then_some(dims[i])).collect::<Vec<_>>());
        if self.kind == ReduceKind::Sum && inputs[0].dtype.is_float() {
            rule.linear([0]);
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0).with_flops(inputs[0].elements() as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let x = inputs[0];
        let (f, dtype) = (self.function(), x.dtype());
        let ty = TensorType::new(dtype, self.shape(x.shape()));
        let slots = Tensor::zeros(ty.clone())?.len();
        let kept = self.kept(x.shape());
        let steps: Vec<usize> = (strides(&kept).into_iter().enumerate())
            .map(|(i, s)| if self.reduces(i) { 0 } else { s })
            .collect();
        let slot =
            |i| unravel(i, x.shape()).iter().zip(&steps).map(|(c, s)| c * s).sum::<usize>();
        let (float, int) = neutral(self.kind, dtype);
        Ok(vec![if dtype.is_float() {
            let mut sums = vec![float; slots];
            for i in 0..x.len() {
                let to = slot(i);
                sums[to] = f.apply(&[sums[to], x.f64_at(i)]);
            }
            Tensor::from_f64(ty, |i| sums[i])?
        } else {
            let mut sums = vec![int; slots];
            for i in 0..x.len() {
                let to = slot(i);
                sums[to] = f.apply_int(&[sums[to], x.int_at(i)])?;
            }
            Tensor::from_int(ty, |i| sums[i])?
        }])
    }

    /// Of a sum, the gradient everywhere; of a product, times the other elements; of an extremum, in equal
    /// shares to the elements that are it.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let (g, x) = (v.gradient()?, v.inputs[0]);
        let ty = v.ty(x);
        let g = v.reshape(g, self.kept(&ty.shape))?;
        Ok(vec![Some(match self.kind {
            ReduceKind::Sum => v.expand(g, ty.shape)?,
            ReduceKind::Prod => self.times_others(v, x, g)?,
            ReduceKind::Max | ReduceKind::Min => {
                let extremum = v.reshape(v.outputs[0], self.kept(&ty.shape))?;
                let chosen = v.map(F::Equal, &[x, extremum])?;
                let chosen = v.cast(chosen, ty.dtype)?;
                let count = v.reduce(ReduceKind::Sum, chosen, &self.axes)?;
                let share = v.map(F::Div, &[g, count])?;
                v.map(F::Mul, &[chosen, share])?
            }
        })])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reduce { kind: self.kind, axes: self.axes.clone() }
    }
}
