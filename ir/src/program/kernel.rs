//! The closed set of kernels that ops lower to. Backends implement these and never learn op names.
//!
//! A kernel reads its extents from its buffers. Where a kernel must know which part of the whole a
//! rank holds (an index into a split table, say), it reads that from the buffer too
//! ([`Local::start`](super::Local)).

use crate::ops::Op;
use crate::ops::attention::Attention;
use crate::ops::attention_grad::AttentionGrad;
use crate::ops::conv_transpose::ConvTranspose;
use crate::ops::conv_weight_grad::ConvWeightGrad;
use crate::ops::dropout::Dropout;
use crate::ops::mixture_of_experts::MixtureOfExperts;
use crate::ops::mixture_of_experts_grad::MixtureOfExpertsGrad;
use crate::ops::normalize_grad::NormalizeGrad;
use crate::ops::optimizer_step::OptimizerStep;
use crate::ops::pool_grad::PoolGrad;
use crate::scalar::ScalarFn;
use crate::sharding::ReduceKind;
use serde::{Deserialize, Serialize};

/// A computation on local buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Applies a scalar function element by element; inputs broadcast to the output.
    Map {
        /// The function.
        f: ScalarFn,
    },
    /// `out[.., i, j] = Σ_k a[.., i, k] · b[.., k, j]`; leading dimensions broadcast.
    MatMul {
        /// The left operand is stored `[.., k, i]`.
        trans_a: bool,
        /// The right operand is stored `[.., j, k]`.
        trans_b: bool,
    },
    /// `out[i, j] = Σ_r x[r.., i] · y[r.., j]`; all leading dimensions are summed.
    #[serde(rename = "matmul_grad")]
    MatMulGrad,
    /// The same elements in row-major order under other extents.
    Copy,
    /// Output dimension `i` is input dimension `perm[i]`.
    Transpose {
        /// The permutation.
        perm: Vec<usize>,
    },
    /// `out[i..] = in[starts[i] + i · steps[i] ..]`; how many is the output's extent. Dimensions
    /// that are not sliced have start 0 and step 1.
    Slice {
        /// First index, one a dimension.
        starts: Vec<i64>,
        /// Distance, one a dimension; may be negative.
        steps: Vec<i64>,
    },
    /// Joins the inputs along a dimension.
    Concat {
        /// The dimension.
        axis: usize,
    },
    /// Writes each dimension's `before` elements of padding in front (the output's extent says how
    /// many follow behind; negative numbers crop).
    Pad {
        /// One a dimension.
        before: Vec<i64>,
        /// What the padding is.
        mode: PadMode,
        /// The value of constant padding.
        #[serde(with = "crate::number")]
        value: f64,
    },
    /// Every element is `value`.
    Fill {
        /// The value; exact for the integers that f64 holds.
        #[serde(with = "crate::number")]
        value: f64,
    },
    /// Reduces some dimensions; whether they are kept as 1 follows from the output's extents.
    Reduce {
        /// How elements combine.
        kind: ReduceKind,
        /// The dimensions, ascending.
        axes: Vec<usize>,
    },
    /// Softmax along a dimension.
    Softmax {
        /// The dimension.
        axis: usize,
        /// Whether the logarithm is taken.
        log: bool,
    },
    /// Normalises over the last dimensions from `axis` on. Inputs: x, scale, bias if there is one.
    /// Layer norm subtracts the mean and divides by the standard deviation; RMS norm divides by the
    /// root of the mean square.
    Normalize {
        /// First normalised dimension.
        axis: usize,
        /// Added to the variance or mean square.
        #[serde(with = "crate::number")]
        epsilon: f32,
        /// RMS instead of layer norm.
        rms: bool,
    },
    /// The gradient of a normalisation; see the op. One result for x, scale, and bias if there is one.
    NormalizeGrad(NormalizeGrad),
    /// Scaled dot-product attention; see the op. Under a split of queries, causality counts from the
    /// position of the rank's first query.
    Attention(Attention),
    /// The gradient of attention; see the op. One result each for q, k and v, and for the mask if the op
    /// says so. Causality counts as above.
    AttentionGrad(AttentionGrad),
    /// A layer of experts; see the op. Indices are global; experts outside the local part of the weights
    /// yield 0, so that experts split over ranks give partial sums.
    MixtureOfExperts(MixtureOfExperts),
    /// The gradient of a layer of experts; see the op. Indices are global; experts outside the local part of the
    /// weights are left out.
    MixtureOfExpertsGrad(MixtureOfExpertsGrad),
    /// Rotary position embedding of `[.., d]`. Inputs: x, cosines, sines.
    RotaryEmbedding {
        /// Pairs are neighbours; else one of each half.
        interleaved: bool,
    },
    /// One step of an optimizer; see the op.
    OptimizerStep(OptimizerStep),
    /// Convolution of `[N, C, spatial..]` with `[M, C / groups, window..]`, no bias.
    Conv {
        /// Strides, padding, dilation.
        window: Window,
        /// Groups of channels. Under a split of channels each rank holds whole groups, so the local
        /// number of groups is local input channels / weight's second extent.
        groups: u64,
    },
    /// Transposed convolution; see the op. The local number of groups is the weight's first extent.
    ConvTranspose(ConvTranspose),
    /// The gradient of a convolution by its weight; see the op. The local number of groups is local input
    /// channels / result's second extent.
    ConvWeightGrad(ConvWeightGrad),
    /// Pooling over `[N, C, spatial..]`.
    Pool {
        /// How elements combine.
        kind: PoolKind,
        /// Extents of the window.
        extents: Vec<u64>,
        /// Strides, padding, dilation.
        window: Window,
    },
    /// The gradient of pooling; see the op.
    PoolGrad(PoolGrad),
    /// Dropout; see the op. Which elements are dropped follows from their global indices.
    Dropout(Dropout),
    /// Local response normalisation across channels of `[N, C, ..]`.
    Lrn {
        /// Window, in channels.
        size: u64,
        /// Scale.
        #[serde(with = "crate::number")]
        alpha: f32,
        /// Exponent.
        #[serde(with = "crate::number")]
        beta: f32,
        /// Offset.
        #[serde(with = "crate::number")]
        bias: f32,
    },
    /// `out[.., i.., ..] = data[.., indices[i..], ..]`. Indices are global (negative ones count
    /// from the global end); those outside the local part of `data` yield 0, so that a table split
    /// over ranks gives partial sums.
    Gather {
        /// The dimension of `data` that is indexed.
        axis: usize,
    },
    /// `out[.., j, ..] = Σ g[.., i.., ..]` over all `i` with `indices[i..] = j`. Inputs: indices, g. Indices
    /// are global, those outside the local part of the result are left out.
    GatherGrad {
        /// The dimension of the result that is indexed.
        axis: usize,
    },
    /// ONNX GatherND. Inputs: data, indices.
    GatherNd {
        /// Leading dimensions shared by both.
        batch_dims: usize,
    },
    /// Evaluates an op by its reference semantics, on the host, on the rank's parts. For ops
    /// without a kernel of their own; their rules split only dimensions that their attributes do
    /// not mention.
    Reference {
        /// The op.
        op: Box<Op>,
    },
}

impl Kernel {
    /// Whether each element of a result follows from the elements at its place in those operands that have
    /// the result's extents, so that results may be written over them.
    pub const fn is_elementwise(&self) -> bool {
        matches!(self, Self::Map { .. } | Self::OptimizerStep(_))
    }
}

/// Strides, padding and dilation of a window that moves over spatial dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// One a spatial dimension.
    pub strides: Vec<u64>,
    /// One a spatial dimension.
    pub dilations: Vec<u64>,
    /// Padding in front, one a spatial dimension.
    pub before: Vec<u64>,
    /// Padding behind, one a spatial dimension.
    pub after: Vec<u64>,
}

/// How a pooling window combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The largest element.
    Max,
    /// The mean of the elements inside the input.
    Average,
    /// The mean over the whole window, padding counted as 0.
    AverageWithPadding,
}

/// What padding is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadMode {
    /// A constant.
    Constant,
    /// Mirrored without repeating the border.
    Reflect,
    /// The border repeated.
    Edge,
    /// Wrapped around.
    Wrap,
}
