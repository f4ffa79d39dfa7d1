//! The op table: the only list of ops.
//!
//! One op is one file. Each holds, under these headings in its doc comment, what ONNX calls it and
//! since when, its semantics, and how it may be split; and in code: ONNX decoding, shape inference,
//! factor rule, work, reference evaluation, lowering to a kernel.
//!
//! To add an op: write its file with a struct that implements [`OpDef`] and a `DECODERS` list, and
//! add its line to the table below. An ONNX operator that is made of ops that exist already needs
//! only a decoder: it goes under `composites`.

pub mod build;
pub mod decode;
pub mod equation;
pub mod factors;
pub mod heads;
pub mod lanes;
pub mod scatter;
pub mod vjp;
pub mod window;
pub mod work;

pub use build::Build;
pub use decode::{Decoder, DecoderEntry, ResultType};
pub use vjp::Vjp;
pub use work::{Work, WorkKind};

use crate::graph::{Extents, Graph, TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// What planc knows of an op. Implemented by one struct an op, whose fields are its attributes.
///
/// Methods get types that [`OpDef::infer`] accepted, so they need not check them again.
/// [`OpDef::rule`] sees no rank above [`factors::MAX_RANK`].
pub trait OpDef {
    /// Output types from input types. `consts[i]` is the contents of input `i` where they are
    /// known; only ops whose *shape* depends on contents look at it.
    fn infer(
        &self,
        inputs: &[TensorType],
        consts: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError>;

    /// How the op may be split; extents are global.
    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule;

    /// Arithmetic and traffic of one application, on local or global types alike.
    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work;

    /// Reference semantics: naive, obviously right, f64 inside.
    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError>;

    /// For each input, the gradient of a scalar with respect to it, from the gradients with respect to the
    /// outputs (a vector-Jacobian product): appends what computes it. `None` where it is zero
    /// everywhere, or nobody wants it ([`Vjp::wants`]).
    ///
    /// # Errors
    /// [`OpError::NotDifferentiable`] unless the op says otherwise.
    fn vjp(&self, _: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        Err(OpError::NotDifferentiable { why: "planc has no gradient for it".into() })
    }

    /// The kernel that computes the op on local buffers. Kernels know no global extents except
    /// through their buffers' shardings, so one kernel serves every rank.
    fn lower(&self) -> Kernel;
}

/// Declares [`Op`] from the list of modules, and everything that follows from the list.
macro_rules! op_table {
    (
        ops: $($module:ident :: $variant:ident),+;
        composites: $($composite:ident),+;
    ) => {
        $(pub mod $module;)+
        $(pub mod $composite;)+

        /// An operator of the IR with its attributes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum Op {
            $(
                #[doc = concat!("See [`", stringify!($module), "`].")]
                $variant($module::$variant),
            )+
        }

        impl Op {
            /// The op's name as printed.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($variant)),+ }
            }

            fn def(&self) -> &dyn OpDef {
                match self { $(Self::$variant(op) => op),+ }
            }
        }

        /// The names of all ops of the IR, in table order.
        pub const NAMES: &[&str] = &[$(stringify!($variant)),+];

        /// Every ONNX operator that some op's file decodes.
        pub fn decoders() -> impl Iterator<Item = &'static DecoderEntry> {
            [$($module::DECODERS,)+ $($composite::DECODERS,)+].into_iter().flatten()
        }

        $(impl From<$module::$variant> for Op {
            fn from(op: $module::$variant) -> Self { Self::$variant(op) }
        })+
    };
}

op_table! {
    ops:
        // Contractions.
        matmul::MatMul,
        matmul_grad::MatMulGrad,
        einsum::Einsum,
        attention::Attention,
        attention_grad::AttentionGrad,
        mixture_of_experts::MixtureOfExperts,
        mixture_of_experts_grad::MixtureOfExpertsGrad,
        conv::Conv,
        conv_transpose::ConvTranspose,
        conv_weight_grad::ConvWeightGrad,
        // Elementwise.
        map::Map,
        bit_cast::BitCast,
        fill::Fill,
        range::Range,
        uniform::Uniform,
        dropout::Dropout,
        expand::Expand,
        trilu::Trilu,
        rotary_embedding::RotaryEmbedding,
        optimizer_step::OptimizerStep,
        // Reductions and normalisation.
        reduce::Reduce,
        arg_reduce::ArgReduce,
        cumsum::CumSum,
        cum_prod::CumProd,
        cum_prod_grad::CumProdGrad,
        linear_recurrence::LinearRecurrence,
        linear_recurrence_grad::LinearRecurrenceGrad,
        det::Det,
        det_grad::DetGrad,
        tf_idf::TfIdf,
        top_k::TopK,
        softmax::Softmax,
        normalize::Normalize,
        normalize_grad::NormalizeGrad,
        group_norm::GroupNorm,
        group_norm_grad::GroupNormGrad,
        pool::Pool,
        pool_grad::PoolGrad,
        arg_pool::ArgPool,
        roi_align::RoiAlign,
        roi_align_grad::RoiAlignGrad,
        resize::Resize,
        resize_grad::ResizeGrad,
        grid_sample::GridSample,
        grid_sample_grad::GridSampleGrad,
        grid_sample_grid_grad::GridSampleGridGrad,
        dft::Dft,
        recurrence::Recurrence,
        recurrence_grad::RecurrenceGrad,
        lrn::Lrn,
        // Layout.
        reshape::Reshape,
        transpose::Transpose,
        concat::Concat,
        slice::Slice,
        pad::Pad,
        frames::Frames,
        reverse_sequence::ReverseSequence,
        // Indexing.
        gather::Gather,
        gather_grad::GatherGrad,
        gather_elements::GatherElements,
        scatter_elements::ScatterElements,
        scatter_nd::ScatterNd,
        gather_nd::GatherNd,
        gather_nd_grad::GatherNdGrad,
        // Control flow.
        if_op::If,
        loop_op::Loop,
        // Between the stages of a pipeline.
        send::Send,
        receive::Receive,
        // Whatever only the run can decode.
        deferred::Deferred;
    // Files that only decode: ONNX operators that are made of the ops above.
    composites:
        activation,
        affine_grid,
        batch_norm,
        bias,
        causal_conv,
        center_crop_pad,
        col2im,
        compress,
        constant,
        deform_conv,
        depth_space,
        elementwise,
        embed_layer_norm,
        eye_like,
        fused_attention,
        fused_conv,
        fused_experts,
        gemm,
        group_query_attention,
        hardmax,
        loss,
        lp_normalization,
        lp_pool,
        mat_mul_n_bits,
        max_unpool,
        mean_variance,
        nhwc_group_norm,
        non_max_suppression,
        non_zero,
        one_hot,
        onnx_attention,
        quantize,
        quantized,
        recurrent,
        resize_decode,
        sequence,
        signal,
        tensor_scatter,
        tile,
        unique;
}

/// The entry that decodes an ONNX operator of this version.
pub fn decoder(domain: &str, name: &str, version: i64) -> Option<&'static DecoderEntry> {
    decoders()
        .filter(|e| e.domain == domain && e.name == name && e.since <= version)
        .max_by_key(|e| e.since)
}

impl Op {
    /// Whether the op may leave extents open. Only such ops take operands whose extents are open.
    pub const fn leaves_extents_open(&self) -> bool {
        matches!(self, Self::If(_) | Self::Loop(_) | Self::Deferred(_))
    }

    /// For each output whether its extents are facts, if the op is one that leaves extents open; bodies must
    /// be well formed.
    pub fn extents(&self) -> Option<Vec<Extents>> {
        match self {
            Self::If(op) => Some(op.extents()),
            Self::Loop(op) => Some(op.extents()),
            Self::Deferred(op) => Some(op.extents()),
            _ => None,
        }
    }

    /// The graphs that the op holds. Their depth is bounded where they are read.
    pub fn bodies(&self) -> Vec<&Graph> {
        match self {
            Self::If(op) => vec![&op.then_branch, &op.else_branch],
            Self::Loop(op) => vec![&op.body],
            Self::Deferred(op) => op.bodies().collect(),
            _ => vec![],
        }
    }

    /// See [`OpDef::infer`].
    pub fn infer(
        &self,
        inputs: &[TensorType],
        consts: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        self.def().infer(inputs, consts)
    }

    /// See [`OpDef::rule`].
    pub fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let ranks = |types: &[TensorType]| types.iter().map(TensorType::rank).collect::<Vec<_>>();
        let (ins, outs) = (ranks(inputs), ranks(outputs));
        if ins.iter().chain(&outs).any(|&r| r > factors::MAX_RANK) {
            return FactorRule::opaque(&ins, &outs, "more than 8 dimensions");
        }
        self.def().rule(inputs, outputs)
    }

    /// See [`OpDef::work`].
    pub fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        self.def().work(inputs, outputs)
    }

    /// See [`OpDef::eval`]. Results without elements are made without it: their other extents may be
    /// so large that no loop over them would end.
    pub fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        if inputs.iter().any(|t| t.is_empty())
            && let Some(types) = self.types_without_elements(inputs)
        {
            return types.into_iter().map(Tensor::zeros).collect();
        }
        self.def().eval(inputs)
    }

    /// The types of the results on these operands, if none has an element.
    fn types_without_elements(&self, inputs: &[&Tensor]) -> Option<Vec<TensorType>> {
        let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
        let known: Vec<Option<&Tensor>> = inputs.iter().map(|t| Some(*t)).collect();
        let results = self.def().infer(&types, &known).ok()?;
        results.iter().all(|ty| ty.elements() == 0).then_some(results)
    }

    /// See [`OpDef::vjp`]. What an op yields besides what is wanted is left out.
    pub fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let found = self.def().vjp(v)?;
        Ok(found.into_iter().enumerate().map(|(i, g)| g.filter(|_| v.wants(i))).collect())
    }

    /// See [`OpDef::lower`].
    pub fn lower(&self) -> Kernel {
        self.def().lower()
    }
}

/// Checks the number of inputs.
pub fn expect_inputs(inputs: &[TensorType], count: usize) -> Result<(), OpError> {
    if inputs.len() == count {
        Ok(())
    } else {
        Err(OpError::InputCount { expected: count.to_string(), found: inputs.len() })
    }
}

/// Checks that two inputs have one element type, and returns it.
pub fn same_dtype(a: &TensorType, b: &TensorType) -> Result<DType, OpError> {
    if a.dtype == b.dtype {
        Ok(a.dtype)
    } else {
        Err(OpError::TypeMismatch { lhs: a.dtype, rhs: b.dtype })
    }
}

/// Checks that a gradient has the type of the value that it is a gradient of.
pub fn expect_gradient(gradient: &TensorType, value: &TensorType) -> Result<(), OpError> {
    same_dtype(gradient, value)?;
    if gradient.shape == value.shape {
        return Ok(());
    }
    Err(OpError::ShapeMismatch {
        lhs: gradient.shape.clone(),
        rhs: value.shape.clone(),
        why: "a gradient has the extents of its value",
    })
}

/// The shape that two shapes broadcast to (ONNX multidirectional broadcasting).
pub fn broadcast(a: &[u64], b: &[u64]) -> Result<Vec<u64>, OpError> {
    let rank = a.len().max(b.len());
    let at = |s: &[u64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(OpError::ShapeMismatch {
                lhs: a.to_vec(),
                rhs: b.to_vec(),
                why: "they cannot be broadcast together",
            }),
        })
        .collect()
}

/// For each element of a tensor of shape `out`, the row-major index of the element of a tensor of
/// shape `from` that broadcasts onto it.
pub fn broadcast_index(from: &[u64], out: &[u64], i: usize) -> usize {
    let (mut rest, mut index, mut stride) = (i, 0, 1);
    for d in (0..out.len()).rev() {
        let c = rest % out[d] as usize;
        rest /= out[d] as usize;
        let Some(j) = (d + from.len()).checked_sub(out.len()) else { break };
        if from[j] != 1 {
            index += c * stride;
        }
        stride *= from[j] as usize;
    }
    index
}
