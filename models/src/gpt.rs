//! GPT-2: learned positions, pre-norm blocks of causal attention and a GELU MLP, with biases.
//!
//! Queries, keys and values have a linear layer each. Parameters, with `h` hidden, `f` ffn, `v` vocab,
//! `s` seq and `n` layers: `v·h + s·h + n·(4·h·(h + 1) + 2·h·f + f + h + 4·h) + 2·h`, and `v·h` more
//! where the head is not tied to the embedding.

use crate::builder::{Builder, Dim, Val, string};
use crate::{Default, Family, ModelError, Plan, Size};
use planc_ir::DType;

pub(crate) const FAMILY: Family = Family {
    name: "gpt",
    summary: "GPT-2, small unless sized otherwise: learned positions, causal attention, GELU MLP",
    sizes: &[
        (Size::Layers, Default::Is(12)),
        (Size::Hidden, Default::Is(768)),
        (Size::Heads, Default::Is(12)),
        (Size::Ffn, Default::Of { size: Size::Hidden, numerator: 4, denominator: 1 }),
        (Size::Vocab, Default::Is(50257)),
        (Size::Seq, Default::Is(1024)),
    ],
    tied: Some(true),
    build,
};

fn build(b: &mut Builder, plan: &Plan) -> Result<(), ModelError> {
    let size = |s| plan.sizes.get(s);
    let (hidden, vocab, seq) = (size(Size::Hidden), size(Size::Vocab), size(Size::Seq));
    plan.sizes.divides(Size::Heads, Size::Hidden)?;
    let (batch_dim, seq_dim) = (plan.batch_dim(), plan.seq_dim());

    let ids = b.input("input_ids", DType::I64, &[batch_dim, seq_dim]);
    let positions = b.positions(plan, &ids);
    let mask = b.causal_mask(&positions);
    let (embedding, token) = b.embedding("wte", &ids, vocab, hidden)?;
    let (_, position) = b.embedding("wpe", &positions, seq, hidden)?;
    let mut x = b.node("Add", &[&token, &position], vec![]);
    for layer in 0..size(Size::Layers) {
        x = b.module(&format!("h.{layer}"), |b| block(b, plan, &x, &mask))?;
    }
    let x = b.layer_norm("ln_f", &x, hidden)?;
    let logits = b.head(&x, &embedding, plan)?;
    b.output(&logits, "logits", &[batch_dim, seq_dim, Dim::Fixed(vocab)]);
    Ok(())
}

fn block(b: &mut Builder, plan: &Plan, x: &Val, mask: &Val) -> Result<Val, ModelError> {
    let hidden = plan.sizes.get(Size::Hidden);
    let normed = b.layer_norm("ln_1", x, hidden)?;
    let attended = b.module("attn", |b| attention(b, plan, &normed, mask))?;
    let x = b.node("Add", &[x, &attended], vec![]);
    let normed = b.layer_norm("ln_2", &x, hidden)?;
    let mapped = b.module("mlp", |b| {
        let ffn = plan.sizes.get(Size::Ffn);
        let wide = b.linear("fc", &normed, hidden, ffn, true)?;
        let active = b.node("Gelu", &[&wide], vec![string("approximate", "tanh")]);
        b.linear("proj", &active, ffn, hidden, true)
    })?;
    Ok(b.node("Add", &[&x, &mapped], vec![]))
}

fn attention(b: &mut Builder, plan: &Plan, x: &Val, mask: &Val) -> Result<Val, ModelError> {
    let (hidden, heads) = (plan.sizes.get(Size::Hidden), plan.sizes.get(Size::Heads));
    let width = hidden / heads;
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let y = b.linear(name, x, hidden, hidden, true)?;
        Ok::<Val, ModelError>(b.split_heads(&y, heads, width))
    });
    let y = b.attend(&q?, &k?, &v?, mask, width)?;
    let y = b.merge_heads(&y, hidden);
    b.linear("proj", &y, hidden, hidden, true)
}
