//! Gradients where differences show nothing: ties, repeated indices, zeros, and how large graphs get.

use crate::difference::{Case, Tally, check, differentiate};
use crate::random::Random;
use planc_ir::interp::evaluate;
use planc_ir::ops::Op;
use planc_ir::ops::cum_prod::CumProd;
use planc_ir::ops::det::Det;
use planc_ir::ops::map::Map;
use planc_ir::ops::pad::Pad;
use planc_ir::ops::reduce::Reduce;
use planc_ir::program::kernel::PadMode;
use planc_ir::scalar::{Gate, ScalarFn};
use planc_ir::sharding::ReduceKind;
use planc_ir::weights::InMemory;
use planc_ir::{OpError, Tensor};

/// The gradients of all operands where those of the results are 1.
fn gradients(op: impl Into<Op>, inputs: Vec<Tensor>) -> Vec<Vec<f64>> {
    let case = Case::new(op, inputs);
    let d = differentiate(&case, &case.variables()).unwrap();
    let ones = case.result_types().into_iter().map(|t| Tensor::from_f64(t, |_| 1.0).unwrap());
    let inputs: Vec<Tensor> = case.inputs.iter().cloned().chain(ones).collect();
    evaluate(&d.graph, &inputs, &InMemory).unwrap().iter().map(Tensor::to_f64s).collect()
}

#[test]
fn equal_extrema_share_alike() {
    let x = Tensor::new([2, 3], vec![2.0, 5.0, 5.0, 1.0, 1.0, 1.0]).unwrap();
    let reduce = |kind| Reduce { kind, axes: vec![1], keep: false };
    let third = 1.0 / 3.0;
    let shares = gradients(reduce(ReduceKind::Max), vec![x.clone()]);
    assert_eq!(shares, [[0.0, 0.5, 0.5, third, third, third]]);
    let shares = gradients(reduce(ReduceKind::Min), vec![x]);
    assert_eq!(shares, [[1.0, 0.0, 0.0, third, third, third]]);
}

#[test]
fn equal_operands_get_the_gradient_once() {
    let (x, y) = (Tensor::vector(vec![1.0, 2.0, 3.0]), Tensor::scalar(2.0));
    for f in [ScalarFn::Max, ScalarFn::Min] {
        let both = gradients(Map { f }, vec![x.clone(), y.clone()]);
        let total: f64 = both.iter().flatten().sum();
        assert_eq!(total.to_bits(), 3f64.to_bits(), "{f:?}");
    }
}

#[test]
fn zeros_do_no_harm_to_products() {
    let (mut random, mut tally) = (Random(11), Tally::default());
    for x in [[0.5, 0.0, -2.0, 1.5, 0.0, 3.0], [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]] {
        let x = Tensor::new([2, 3], x.to_vec()).unwrap();
        for axes in [vec![0], vec![1], vec![0, 1]] {
            let product = Reduce { kind: ReduceKind::Prod, axes, keep: true };
            check(&Case::new(product, vec![x.clone()]), &mut random, &mut tally).unwrap();
        }
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let running = CumProd { axis: 1, exclusive, reverse };
            check(&Case::new(running, vec![x.clone()]), &mut random, &mut tally).unwrap();
        }
    }
    assert_eq!(tally.skipped, 0);
}

#[test]
fn singular_matrices_have_a_gradient() {
    let (mut random, mut tally) = (Random(13), Tally::default());
    let x = vec![1.0, 2.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0];
    let x = Tensor::new([2, 2, 2], x).unwrap();
    check(&Case::new(Det {}, vec![x]), &mut random, &mut tally).unwrap();
    assert_eq!((tally.compared, tally.skipped), (8, 0));
}

#[test]
fn an_exponent_of_zero_is_flat() {
    let inputs = vec![Tensor::vector(vec![0.0, 0.0, 4.0]), Tensor::vector(vec![0.0, 2.0, 0.0])];
    let found = gradients(Map { f: ScalarFn::Pow }, inputs);
    assert_eq!(found, [vec![0.0; 3], vec![0.0, 0.0, 4f64.ln()]]);
}

#[test]
fn activations_go_back_in_one_node_an_operand() {
    let x = || Tensor::vector(vec![0.5, -1.0]);
    for f in [
        ScalarFn::Gelu,
        ScalarFn::GeluTanh,
        ScalarFn::Mish,
        ScalarFn::Sigmoid,
        ScalarFn::Tanh,
        ScalarFn::Relu,
        ScalarFn::Exp,
    ] {
        let d = differentiate(&Case::new(Map { f }, vec![x()]), &[true]).unwrap();
        assert_eq!(d.graph.nodes.len() - d.forward, 1, "{f:?}");
    }
    let gated = Case::new(Map { f: ScalarFn::Gated(Gate::Silu) }, vec![x(), x()]);
    let d = differentiate(&gated, &[true, true]).unwrap();
    assert_eq!(d.graph.nodes.len() - d.forward, 3);
}

/// What a padding shows of a tensor becomes a constant; that has bounds.
#[test]
fn vast_paddings_are_refused() {
    let pad = Pad { before: vec![1 << 40], after: vec![0], mode: PadMode::Edge, value: 0.0 };
    let case = Case::new(pad, vec![Tensor::vector(vec![0.5])]);
    let refused = differentiate(&case, &[true]).map(|_| ());
    assert!(matches!(refused, Err(OpError::NotDifferentiable { .. })), "{refused:?}");
}
