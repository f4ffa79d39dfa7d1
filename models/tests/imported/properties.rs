//! Properties that need no reference values.

use crate::support::*;
use planc_ir::tensor::Tensor;
use planc_ir::text::{parse, print};
use planc_ir::verify::verify;
use planc_ir::{DType, ValueDef};
use planc_models::{Config, FAMILIES, Weights};

#[test]
fn every_variant_imports_verifies_and_prints() {
    for family in FAMILIES {
        let tied: &[Option<bool>] =
            if family.tied.is_some() { &[Some(true), Some(false)] } else { &[None] };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (&tied, batch) in tied.iter().flat_map(|t| [(t, None), (t, Some(2))]) {
                for symbolic_seq in [false, family.tied.is_some()] {
                    let config = Config { dtype, tied, batch, symbolic_seq, ..config(family.name) };
                    let mut bind = vec![("batch", 2), ("seq", 4)];
                    bind.retain(|&(name, _)| match name {
                        "batch" => batch.is_none(),
                        _ => symbolic_seq,
                    });
                    let built = Built::new(family.name, &config, &bind);
                    let graph = &built.model.graph;
                    assert_eq!(verify(graph), [], "{config:?}");
                    assert_eq!(parse(&print(graph)).as_ref(), Ok(graph), "{config:?}");
                    let input = match family.name {
                        "mlp" => {
                            Tensor::from_f64(graph.ty(graph.inputs[0]).clone(), |i| i as f64 / 8.0)
                        }
                        _ => Tensor::from_int(graph.ty(graph.inputs[0]).clone(), |i| i as i128 % 7),
                    };
                    let output = built.run(&input.expect("is small"));
                    assert_eq!(output.dtype(), dtype);
                    assert!(output.to_f64s().iter().all(|x| x.is_finite()), "{config:?}");
                }
            }
        }
    }
}

/// Every node of a block says its module, so that repeated blocks can be found.
#[test]
fn scopes_name_the_modules() {
    let graph = Built::new("gpt", &config("gpt"), &[("batch", 1)]).model.graph;
    let in_block = |layer: usize| {
        let path = format!("h.{layer}");
        graph
            .nodes
            .iter()
            .filter(|n| n.scope == path || n.scope.starts_with(&format!("{path}.")))
            .count()
    };
    assert!(in_block(0) > 20);
    assert_eq!(in_block(0), in_block(1));
}

#[test]
fn stripped_models_import_without_their_weights() {
    for family in FAMILIES {
        let config = Config { weights: Weights::Stripped, batch: Some(8), ..Config::default() };
        let graph = Built::new(family.name, &config, &[]).model.graph;
        assert_eq!(verify(&graph), []);
        assert!(graph.values.iter().any(|v| matches!(v.def, ValueDef::Weight(_))));
    }
}

#[test]
fn a_symbolic_sequence_computes_what_a_fixed_one_does() {
    for family in ["gpt", "llama"] {
        let input = tokens(&[&[1, 5, 2, 16, 0, 3], &[4, 4, 9, 11, 12, 13]]);
        let fixed = Built::new(family, &config(family), &[("batch", 2)]);
        let symbolic = Config { symbolic_seq: true, ..config(family) };
        let bind = [("batch", 2), ("seq", SEQ as u64)];
        let symbolic = Built::new(family, &symbolic, &bind);
        assert_eq!(fixed.run(&input), symbolic.run(&input), "{family}");
    }
}

/// A token has an effect on the logits of its own and later positions, and on no earlier one.
#[test]
fn attention_looks_back_only() {
    for family in ["gpt", "llama"] {
        let built = Built::new(family, &config(family), &[("batch", 1)]);
        let a = built.run(&tokens(&[&[1, 5, 2, 16, 0, 3]])).to_f64s();
        let b = built.run(&tokens(&[&[1, 5, 2, 7, 0, 3]])).to_f64s();
        for position in 0..SEQ {
            let row = position * VOCAB..(position + 1) * VOCAB;
            assert_eq!(a[row.clone()] == b[row], position < 3, "{family} position {position}");
        }
    }
}
