//! Layers that several families share.

use crate::builder::{Builder, Dim, Val, float, int, int_list};
use crate::weights::Init;
use crate::{ModelError, Plan, Size};
use planc_ir::{DType, Tensor};

impl Plan {
    /// The batch as a dimension of an input or output.
    pub(crate) fn batch_dim(&self) -> Dim {
        self.batch.map_or(Dim::Symbol("batch"), Dim::Fixed)
    }

    /// The sequence as a dimension of an input or output.
    pub(crate) fn seq_dim(&self) -> Dim {
        if self.symbolic_seq { Dim::Symbol("seq") } else { Dim::Fixed(self.sizes.get(Size::Seq)) }
    }
}

impl Builder {
    /// `x · weight (+ bias)`, the weight stored `[inputs, outputs]`, as exporters leave it for inputs
    /// of three dimensions.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        x: &Val,
        inputs: u64,
        outputs: u64,
        bias: bool,
    ) -> Result<Val, ModelError> {
        self.module(name, |b| {
            let weight = b.parameter("weight", &[inputs, outputs], Init::matrix(inputs))?;
            let y = b.node("MatMul", &[x, &weight], vec![]);
            if !bias {
                return Ok(y);
            }
            let bias = b.parameter("bias", &[outputs], Init::bias())?;
            Ok(b.node("Add", &[&y, &bias], vec![]))
        })
    }

    /// A table of `rows` vectors, and those of them that the indices name.
    pub(crate) fn embedding(
        &mut self,
        name: &str,
        indices: &Val,
        rows: u64,
        width: u64,
    ) -> Result<(Val, Val), ModelError> {
        self.module(name, |b| {
            let table = b.parameter("weight", &[rows, width], Init::embedding())?;
            let vectors = b.node("Gather", &[&table, indices], vec![]);
            Ok((table, vectors))
        })
    }

    /// Layer normalization over the last dimension.
    pub(crate) fn layer_norm(
        &mut self,
        name: &str,
        x: &Val,
        width: u64,
    ) -> Result<Val, ModelError> {
        self.module(name, |b| {
            let weight = b.parameter("weight", &[width], Init::scale())?;
            let bias = b.parameter("bias", &[width], Init::bias())?;
            let attributes = vec![int("axis", -1), float("epsilon", 1e-5), int("stash_type", 1)];
            Ok(b.node("LayerNormalization", &[x, &weight, &bias], attributes))
        })
    }

    /// Root-mean-square normalization over the last dimension, spelled out, in f32 as torch does it.
    pub(crate) fn rms_norm(&mut self, name: &str, x: &Val, width: u64) -> Result<Val, ModelError> {
        self.module(name, |b| {
            let weight = b.parameter("weight", &[width], Init::scale())?;
            let wide = b.widen(x);
            let two = b.constant("exponent", &Tensor::scalar(2.0f32));
            let square = b.node("Pow", &[&wide, &two], vec![]);
            let axes = b.ints("axes", &[-1]);
            let mean = b.node("ReduceMean", &[&square, &axes], vec![int("keepdims", 1)]);
            let epsilon = b.constant("epsilon", &Tensor::scalar(1e-5f32));
            let shifted = b.node("Add", &[&mean, &epsilon], vec![]);
            let root = b.node("Sqrt", &[&shifted], vec![]);
            let inverse = b.node("Reciprocal", &[&root], vec![]);
            let unit = b.node("Mul", &[&wide, &inverse], vec![]);
            let unit = b.narrow(&unit);
            Ok(b.node("Mul", &[&unit, &weight], vec![]))
        })
    }

    /// Converts from the type of the model's activations to f32.
    pub(crate) fn widen(&mut self, x: &Val) -> Val {
        if self.dtype() == DType::F32 { x.clone() } else { self.cast(x, DType::F32) }
    }

    /// Converts f32 to the type of the model's activations.
    pub(crate) fn narrow(&mut self, x: &Val) -> Val {
        let to = self.dtype();
        if to == DType::F32 { x.clone() } else { self.cast(x, to) }
    }

    /// A conversion.
    pub(crate) fn cast(&mut self, x: &Val, to: DType) -> Val {
        let to = planc_ir::onnx::wire::DataType::from(to) as i64;
        self.node("Cast", &[x], vec![int("to", to)])
    }

    /// A scalar of the model's type.
    pub(crate) fn scalar(&mut self, name: &str, x: f64) -> Result<Val, ModelError> {
        let value = Tensor::scalar(x).cast(self.dtype())?;
        Ok(self.constant(name, &value))
    }

    /// `0, 1, …` as i64, as many as the sequence has tokens.
    pub(crate) fn positions(&mut self, plan: &Plan, input_ids: &Val) -> Val {
        let length = if plan.symbolic_seq {
            let extent = self.node("Shape", &[input_ids], vec![int("start", 1), int("end", 2)]);
            let axis = self.ints("length_axis", &[0]);
            self.node("Squeeze", &[&extent, &axis], vec![])
        } else {
            self.constant("length", &Tensor::scalar(plan.sizes.get(Size::Seq) as i64))
        };
        let start = self.constant("start", &Tensor::scalar(0i64));
        let step = self.constant("step", &Tensor::scalar(1i64));
        self.node("Range", &[&start, &length, &step], vec![])
    }

    /// Whether query position `i` (rows) may see key position `j` (columns): `j ≤ i`.
    pub(crate) fn causal_mask(&mut self, positions: &Val) -> Val {
        let row_axis = self.ints("row_axis", &[0]);
        let column_axis = self.ints("column_axis", &[1]);
        let keys = self.node("Unsqueeze", &[positions, &row_axis], vec![]);
        let queries = self.node("Unsqueeze", &[positions, &column_axis], vec![]);
        self.node("LessOrEqual", &[&keys, &queries], vec![])
    }

    /// `[batch, seq, heads · width]` as `[batch, heads, seq, width]`.
    pub(crate) fn split_heads(&mut self, x: &Val, heads: u64, width: u64) -> Val {
        // 0 keeps an extent, so batch and sequence may be symbolic.
        let shape = self.ints("heads_shape", &[0, 0, heads as i64, width as i64]);
        let split = self.node("Reshape", &[x, &shape], vec![]);
        self.node("Transpose", &[&split], vec![int_list("perm", &[0, 2, 1, 3])])
    }

    /// `[batch, heads, seq, width]` as `[batch, seq, heads · width]`.
    pub(crate) fn merge_heads(&mut self, x: &Val, hidden: u64) -> Val {
        let back = self.node("Transpose", &[x], vec![int_list("perm", &[0, 2, 1, 3])]);
        let shape = self.ints("merged_shape", &[0, 0, hidden as i64]);
        self.node("Reshape", &[&back, &shape], vec![])
    }

    /// `softmax(mask(q · kᵀ / √width)) · v`, all of them `[batch, heads, seq, width]`.
    pub(crate) fn attend(
        &mut self,
        q: &Val,
        k: &Val,
        v: &Val,
        mask: &Val,
        width: u64,
    ) -> Result<Val, ModelError> {
        let keys = self.node("Transpose", &[k], vec![int_list("perm", &[0, 1, 3, 2])]);
        let scores = self.node("MatMul", &[q, &keys], vec![]);
        let scale = self.scalar("scale", 1.0 / (width as f64).sqrt())?;
        let scaled = self.node("Mul", &[&scores, &scale], vec![]);
        let lowest = self.scalar("lowest", lowest(self.dtype()))?;
        let masked = self.node("Where", &[mask, &scaled, &lowest], vec![]);
        let weights = self.node("Softmax", &[&masked], vec![int("axis", -1)]);
        Ok(self.node("MatMul", &[&weights, v], vec![]))
    }

    /// Logits: the head is a weight of its own, or the token embedding, transposed.
    pub(crate) fn head(
        &mut self,
        x: &Val,
        embedding: &Val,
        plan: &Plan,
    ) -> Result<Val, ModelError> {
        let (hidden, vocab) = (plan.sizes.get(Size::Hidden), plan.sizes.get(Size::Vocab));
        if !plan.tied {
            return self.linear("lm_head", x, hidden, vocab, false);
        }
        self.module("lm_head", |b| {
            let head = b.node("Transpose", &[embedding], vec![int_list("perm", &[1, 0])]);
            Ok(b.node("MatMul", &[x, &head], vec![]))
        })
    }
}

/// The lowest finite number, with which exporters mask attention scores.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::BF16 => -3.389_531_389_251_535_5e38,
        _ => f64::from(f32::MIN),
    }
}
