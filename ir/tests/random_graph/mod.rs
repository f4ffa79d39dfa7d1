//! Random valid graphs, for the property tests of this crate.

use planc_ir::ops::{map::Map, matmul::MatMul, reshape::Reshape};
use planc_ir::scalar::ScalarFn;
use planc_ir::tensor::Tensor;
use planc_ir::{DType, Graph, TensorType, ValueDef, ValueId, WeightSource, dtype};
use proptest::prelude::*;
use std::sync::Arc;

/// A valid graph with at least one node.
pub fn graph() -> impl Strategy<Value = Graph> {
    let source = (0..5u8, 0..dtype::ALL.len(), prop::collection::vec(0..4u64, 0..4), any::<u64>());
    let step = (any::<u8>(), any::<u16>(), any::<u16>());
    (
        ".*",
        prop::collection::vec((source, ".*"), 1..6),
        prop::collection::vec((step, ".*", ".*"), 1..12),
        prop::collection::vec(any::<u16>(), 0..4),
    )
        .prop_map(|(name, sources, steps, outputs)| {
            let mut g = Graph::new(name);
            for ((kind, dtype, shape, seed), label) in sources {
                add_source(&mut g, kind, TensorType::new(dtype::ALL[dtype], shape), seed, &label);
            }
            for (step, label, scope) in steps {
                add_node(&mut g, step, &label, scope);
            }
            g.outputs = outputs.into_iter().map(|pick| value(&g, pick)).collect();
            g
        })
}

fn value(g: &Graph, pick: u16) -> ValueId {
    ValueId(u32::from(pick) % g.values.len() as u32)
}

/// A name that no value has yet, with any characters behind it.
fn fresh(g: &Graph, label: &str) -> String {
    format!("{}{label}", g.values.len())
}

fn add_source(g: &mut Graph, kind: u8, ty: TensorType, seed: u64, label: &str) {
    let bytes = ty.bytes();
    let tensor = |ty: &TensorType| Arc::new(contents(ty, seed));
    let def = match kind {
        0 => ValueDef::Input,
        1 => ValueDef::Constant(tensor(&ty)),
        2 => ValueDef::Weight(WeightSource::Inline(tensor(&ty))),
        3 => ValueDef::Weight(WeightSource::ModelFile { offset: seed >> 1, bytes }),
        _ => ValueDef::Weight(WeightSource::External {
            location: format!("{label}.bin"),
            offset: seed >> 1,
            bytes,
        }),
    };
    g.add_value(fresh(g, label), ty, def);
}

/// Finite contents that look random, fractions and negative numbers among them.
fn contents(ty: &TensorType, seed: u64) -> Tensor {
    let number =
        |i: usize| (seed ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) as i64;
    if ty.dtype.is_float() {
        Tensor::from_f64(ty.clone(), |i| number(i) as f64 / 2f64.powi(50)).expect("is small")
    } else {
        Tensor::from_int(ty.clone(), |i| i128::from(number(i))).expect("is small")
    }
}

/// Appends a node; which one depends on what the picked values allow.
fn add_node(g: &mut Graph, (kind, x, y): (u8, u16, u16), label: &str, scope: String) {
    let (x, y) = (value(g, x), value(g, y));
    let (tx, ty) = (g.ty(x).clone(), g.ty(y).clone());
    let name = fresh(g, label);
    let out = format!("{name}:out");
    let cast = Map { f: ScalarFn::Cast(dtype::ALL[kind as usize % dtype::ALL.len()]) };
    let transposed = MatMul { trans_a: kind & 4 != 0, trans_b: kind & 8 != 0 };
    let pushed = match kind % 4 {
        0 => g.push(&name, transposed.into(), &[x, y], &[&out]),
        1 if tx.dtype == ty.dtype && tx.dtype != DType::Bool => {
            g.push(&name, Map { f: ScalarFn::Mul }.into(), &[x, y], &[&out])
        }
        2 => {
            let mut shape = tx.shape;
            shape.reverse();
            shape.insert(shape.len() / 2, 1);
            g.push(&name, Reshape { shape }.into(), &[x], &[&out])
        }
        3 => {
            let leaky = Map { f: ScalarFn::LeakyRelu { alpha: f32::from(kind) / 255.0 } };
            g.push(&name, leaky.into(), &[x], &[&out])
        }
        _ => g.push(&name, cast.clone().into(), &[x], &[&out]),
    };
    // Shapes that do not fit: a cast always does.
    if pushed.is_err() {
        g.push(&name, cast.into(), &[x], &[&out]).expect("every type can be cast");
    }
    g.nodes.last_mut().expect("was just appended").scope = scope;
}
