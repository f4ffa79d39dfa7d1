//! Each family beside its formula, written out in f64.

use crate::support::*;
use planc_ir::tensor::Tensor;
use planc_models::Size;

#[test]
fn mlp_computes_its_formula() {
    let config = config("mlp");
    let p = Parameters::of("mlp", &config);
    let mut x: Vec<f64> = (0..SEQ).map(|i| i as f64 / 2.0 - 1.0).collect();
    let input = Tensor::new([1, SEQ as u64], x.iter().map(|&v| v as f32).collect()).expect("fits");
    for layer in 0..3 {
        // Stored `[outputs, inputs]`.
        let (w, b) =
            (p.get(&format!("layers.{layer}.weight")), p.get(&format!("layers.{layer}.bias")));
        let y = b.iter().enumerate().map(|(j, b)| b + dot(&w[j * x.len()..][..x.len()], &x));
        x = y.map(|v| if layer < 2 { v.max(0.0) } else { v }).collect();
    }
    let found = Built::new("mlp", &config, &[("batch", 1)]).run(&input);
    assert_close(&found.to_f64s(), &x, 1e-4);
}

#[test]
fn gpt_computes_its_formula() {
    let config = config("gpt");
    let p = Parameters::of("gpt", &config);
    let ids = [1usize, 5, 2, 16, 0, 3];
    let mut x: Vec<Vec<f64>> = ids
        .iter()
        .enumerate()
        .map(|(i, &id)| add(&p.row("wte.weight", id), &p.row("wpe.weight", i)))
        .collect();
    for layer in 0..LAYERS {
        let at = |name: &str| format!("h.{layer}.{name}");
        let normed: Vec<_> = x.iter().map(|r| p.layer_norm(&at("ln_1"), r)).collect();
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            normed.iter().map(|r| p.linear(&at(&format!("attn.{name}")), r)).collect::<Vec<_>>()
        });
        for i in 0..SEQ {
            let heads = (0..HEADS).flat_map(|h| {
                let part = |r: &'_ Vec<f64>| r[h * WIDTH..(h + 1) * WIDTH].to_vec();
                let seen = |rows: &[Vec<f64>]| rows[..=i].iter().map(part).collect::<Vec<_>>();
                attend(&part(&q[i]), &seen(&k), &seen(&v))
            });
            let heads: Vec<f64> = heads.collect();
            let y = add(&x[i], &p.linear(&at("attn.proj"), &heads));
            let wide = p.linear(&at("mlp.fc"), &p.layer_norm(&at("ln_2"), &y));
            let gelu = |v: f64| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v.powi(3));
                0.5 * v * (1.0 + inner.tanh())
            };
            let active: Vec<f64> = wide.into_iter().map(gelu).collect();
            x[i] = add(&y, &p.linear(&at("mlp.proj"), &active));
        }
    }
    let logits: Vec<f64> = x
        .iter()
        .flat_map(|r| {
            let normed = p.layer_norm("ln_f", r);
            (0..VOCAB).map(|t| dot(&normed, &p.row("wte.weight", t))).collect::<Vec<_>>()
        })
        .collect();
    let input = tokens(&[&ids.map(|id| id as i64)]);
    let found = Built::new("gpt", &config, &[("batch", 1)]).run(&input);
    assert_close(&found.to_f64s(), &logits, 1e-4);
}

#[test]
fn llama_computes_its_formula() {
    // Three query heads share one head of keys and values.
    let config = config("llama").with(Size::KvHeads, 1);
    let p = Parameters::of("llama", &config);
    let ids = [1usize, 5, 2, 16, 0, 3];
    let mut x: Vec<Vec<f64>> =
        ids.iter().map(|&id| p.row("model.embed_tokens.weight", id)).collect();
    let rms_norm = |name: &str, x: &[f64]| -> Vec<f64> {
        let root = (dot(x, x) / x.len() as f64 + 1e-5).sqrt();
        x.iter().zip(p.get(&format!("{name}.weight"))).map(|(v, w)| v / root * w).collect()
    };
    // Pairs (c, c + half) turn by position / 10000^(2c / width).
    let rotated = |x: &[f64], position: usize| -> Vec<f64> {
        let half = WIDTH / 2;
        let turn = |c: usize| {
            let angle = position as f64 / 10_000f64.powf((2 * (c % half)) as f64 / WIDTH as f64);
            let across = if c < half { -x[c + half] } else { x[c - half] };
            x[c] * angle.cos() + across * angle.sin()
        };
        (0..WIDTH).map(turn).collect()
    };
    for layer in 0..LAYERS {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let normed: Vec<_> = x.iter().map(|r| rms_norm(&at("input_layernorm"), r)).collect();
        let projected = |name: &str| {
            normed
                .iter()
                .map(|r| p.product(&at(&format!("self_attn.{name}")), r))
                .collect::<Vec<_>>()
        };
        let (q, k, v) = (projected("q_proj"), projected("k_proj"), projected("v_proj"));
        let k: Vec<_> = k.iter().enumerate().map(|(i, r)| rotated(r, i)).collect();
        for i in 0..SEQ {
            let heads = q[i].chunks(WIDTH).flat_map(|q| attend(&rotated(q, i), &k[..=i], &v[..=i]));
            let heads: Vec<f64> = heads.collect();
            let y = add(&x[i], &p.product(&at("self_attn.o_proj"), &heads));
            let normed = rms_norm(&at("post_attention_layernorm"), &y);
            let gate = p.product(&at("mlp.gate_proj"), &normed);
            let up = p.product(&at("mlp.up_proj"), &normed);
            let gated: Vec<f64> =
                gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            x[i] = add(&y, &p.product(&at("mlp.down_proj"), &gated));
        }
    }
    let logits: Vec<f64> =
        x.iter().flat_map(|r| p.product("lm_head", &rms_norm("model.norm", r))).collect();
    let input = tokens(&[&ids.map(|id| id as i64)]);
    let found = Built::new("llama", &config, &[("batch", 1)]).run(&input);
    assert_close(&found.to_f64s(), &logits, 1e-4);
}
