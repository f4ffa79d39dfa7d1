//! Llama: rotary positions, pre-norm blocks of grouped-query causal attention and a SwiGLU MLP, without
//! biases.
//!
//! RMS normalization and rotary embeddings are spelled out, as exporters do before opset 23. Parameters,
//! with `h` hidden, `c` = kv-heads · h / heads, `f` ffn, `v` vocab and `n` layers:
//! `v·h + n·(2·h·h + 2·h·c + 3·h·f + 2·h) + h`, and `v·h` more where the head is not tied to the
//! embedding.

use crate::builder::{Builder, Dim, Val, int};
use crate::{Default, Family, ModelError, Plan, Size};
use planc_ir::{DType, Tensor};

/// Base of the rotary frequencies.
const ROPE_BASE: f64 = 10_000.0;

pub(crate) const FAMILY: Family = Family {
    name: "llama",
    summary: "Llama 2, 7B unless sized otherwise: rotary positions, grouped-query attention, SwiGLU",
    sizes: &[
        (Size::Layers, Default::Is(32)),
        (Size::Hidden, Default::Is(4096)),
        (Size::Heads, Default::Is(32)),
        (Size::KvHeads, Default::Of { size: Size::Heads, numerator: 1, denominator: 1 }),
        (Size::Ffn, Default::Of { size: Size::Hidden, numerator: 43, denominator: 16 }),
        (Size::Vocab, Default::Is(32000)),
        (Size::Seq, Default::Is(4096)),
    ],
    tied: Some(false),
    build,
};

/// What all blocks share.
struct Shared {
    mask: Val,
    cos: Val,
    sin: Val,
}

fn build(b: &mut Builder, plan: &Plan) -> Result<(), ModelError> {
    let size = |s| plan.sizes.get(s);
    let (hidden, vocab) = (size(Size::Hidden), size(Size::Vocab));
    plan.sizes.divides(Size::Heads, Size::Hidden)?;
    plan.sizes.divides(Size::KvHeads, Size::Heads)?;
    let width = hidden / size(Size::Heads);
    if !width.is_multiple_of(2) {
        return Err(ModelError::OddHeadWidth { width });
    }
    let (batch_dim, seq_dim) = (plan.batch_dim(), plan.seq_dim());

    let ids = b.input("input_ids", DType::I64, &[batch_dim, seq_dim]);
    let positions = b.positions(plan, &ids);
    let mask = b.causal_mask(&positions);
    let (cos, sin) = b.module("model.rotary_emb", |b| Ok(rotary_tables(b, &positions, width)))?;
    let shared = Shared { mask, cos, sin };
    let (embedding, mut x) = b.embedding("model.embed_tokens", &ids, vocab, hidden)?;
    for layer in 0..size(Size::Layers) {
        x = b.module(&format!("model.layers.{layer}"), |b| block(b, plan, &x, &shared))?;
    }
    let x = b.rms_norm("model.norm", &x, hidden)?;
    let logits = b.head(&x, &embedding, plan)?;
    b.output(&logits, "logits", &[batch_dim, seq_dim, Dim::Fixed(vocab)]);
    Ok(())
}

fn block(b: &mut Builder, plan: &Plan, x: &Val, shared: &Shared) -> Result<Val, ModelError> {
    let (hidden, ffn) = (plan.sizes.get(Size::Hidden), plan.sizes.get(Size::Ffn));
    let normed = b.rms_norm("input_layernorm", x, hidden)?;
    let attended = b.module("self_attn", |b| attention(b, plan, &normed, shared))?;
    let x = b.node("Add", &[x, &attended], vec![]);
    let normed = b.rms_norm("post_attention_layernorm", &x, hidden)?;
    let mapped = b.module("mlp", |b| {
        let gate = b.linear("gate_proj", &normed, hidden, ffn, false)?;
        let sigmoid = b.node("Sigmoid", &[&gate], vec![]);
        let active = b.node("Mul", &[&gate, &sigmoid], vec![]);
        let up = b.linear("up_proj", &normed, hidden, ffn, false)?;
        let gated = b.node("Mul", &[&active, &up], vec![]);
        b.linear("down_proj", &gated, ffn, hidden, false)
    })?;
    Ok(b.node("Add", &[&x, &mapped], vec![]))
}

fn attention(b: &mut Builder, plan: &Plan, x: &Val, shared: &Shared) -> Result<Val, ModelError> {
    let (hidden, heads) = (plan.sizes.get(Size::Hidden), plan.sizes.get(Size::Heads));
    let kv_heads = plan.sizes.get(Size::KvHeads);
    let width = hidden / heads;
    let q = b.linear("q_proj", x, hidden, hidden, false)?;
    let k = b.linear("k_proj", x, hidden, kv_heads * width, false)?;
    let v = b.linear("v_proj", x, hidden, kv_heads * width, false)?;
    let q = b.split_heads(&q, heads, width);
    let k = b.split_heads(&k, kv_heads, width);
    let v = b.split_heads(&v, kv_heads, width);
    let q = rotate(b, &q, shared, width);
    let k = rotate(b, &k, shared, width);
    let k = repeat_heads(b, &k, heads, kv_heads, width);
    let v = repeat_heads(b, &v, heads, kv_heads, width);
    let y = b.attend(&q, &k, &v, &shared.mask, width)?;
    let y = b.merge_heads(&y, hidden);
    b.linear("o_proj", &y, hidden, hidden, false)
}

/// Cosine and sine of every position's angle for every element of a head: `[seq, width]`.
fn rotary_tables(b: &mut Builder, positions: &Val, width: u64) -> (Val, Val) {
    let frequencies: Vec<f32> =
        (0..width / 2).map(|i| ROPE_BASE.powf(-2.0 * i as f64 / width as f64) as f32).collect();
    let frequencies = b.constant("inv_freq", &Tensor::vector(frequencies));
    let positions = b.cast(positions, DType::F32);
    let axis = b.ints("axis", &[1]);
    let column = b.node("Unsqueeze", &[&positions, &axis], vec![]);
    let half = b.node("Mul", &[&column, &frequencies], vec![]);
    let angles = b.node("Concat", &[&half, &half], vec![int("axis", -1)]);
    let [cos, sin] = ["Cos", "Sin"].map(|f| {
        let table = b.node(f, &[&angles], vec![]);
        b.narrow(&table)
    });
    (cos, sin)
}

/// Rotates each pair of elements `(i, i + width / 2)` of a head by its position's angle.
fn rotate(b: &mut Builder, x: &Val, shared: &Shared, width: u64) -> Val {
    let half = (width / 2) as i64;
    let sizes = b.ints("halves", &[half, half]);
    let halves = b.node_multi("Split", &[x, &sizes], 2, vec![int("axis", -1)]);
    let negated = b.node("Neg", &[&halves[1]], vec![]);
    let turned = b.node("Concat", &[&negated, &halves[0]], vec![int("axis", -1)]);
    let straight = b.node("Mul", &[x, &shared.cos], vec![]);
    let crossed = b.node("Mul", &[&turned, &shared.sin], vec![]);
    b.node("Add", &[&straight, &crossed], vec![])
}

/// Each head of keys or values once for every query head of its group.
fn repeat_heads(b: &mut Builder, x: &Val, heads: u64, kv_heads: u64, width: u64) -> Val {
    let group = heads / kv_heads;
    if group == 1 {
        return x.clone();
    }
    let axis = b.ints("group_axis", &[2]);
    let apart = b.node("Unsqueeze", &[x, &axis], vec![]);
    let repeats = b.ints("repeats", &[1, 1, group as i64, 1, 1]);
    let repeated = b.node("Expand", &[&apart, &repeats], vec![]);
    let shape = b.ints("repeated_shape", &[0, heads as i64, -1, width as i64]);
    b.node("Reshape", &[&repeated, &shape], vec![])
}
