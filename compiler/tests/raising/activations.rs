//! GELU, SiLU and gates.

use crate::build::Build;
use planc_ir::graph::ValueId;
use planc_ir::scalar::ScalarFn as F;

const SQRT_2: f64 = std::f64::consts::SQRT_2;
const ROOT: f64 = 0.797_884_560_802_865_4;

/// `½ · x · (1 + erf(x / √2))` in one of the orders that exporters write.
fn gelu(b: &mut Build, x: ValueId, order: usize) -> ValueId {
    let scaled = if order.is_multiple_of(2) {
        b.with(F::Div, x, SQRT_2)
    } else {
        b.with(F::Mul, x, 1.0 / SQRT_2)
    };
    let erf = b.map(F::Erf, &[scaled]);
    let sum = b.with(F::Add, erf, 1.0);
    match order / 2 {
        0 => {
            let product = b.map(F::Mul, &[x, sum]);
            b.with(F::Mul, product, 0.5)
        }
        1 => {
            let half = b.with(F::Mul, x, 0.5);
            b.map(F::Mul, &[half, sum])
        }
        _ => {
            let half = b.with(F::Div, sum, 2.0);
            b.map(F::Mul, &[half, x])
        }
    }
}

fn gelu_tanh(b: &mut Build, x: ValueId, order: usize) -> ValueId {
    let inner = if order == 0 {
        let cube = b.with(F::Pow, x, 3.0);
        let small = b.with(F::Mul, cube, 0.044_715);
        let sum = b.map(F::Add, &[x, small]);
        b.with(F::Mul, sum, ROOT)
    } else {
        let square = b.map(F::Mul, &[x, x]);
        let small = b.with(F::Mul, square, 0.044_715);
        let sum = b.with(F::Add, small, 1.0);
        let root = b.with(F::Mul, x, ROOT);
        b.map(F::Mul, &[root, sum])
    };
    let tanh = b.map(F::Tanh, &[inner]);
    let sum = b.with(F::Add, tanh, 1.0);
    let half = b.with(F::Mul, x, 0.5);
    b.map(F::Mul, &[half, sum])
}

fn silu(b: &mut Build, x: ValueId) -> ValueId {
    let gate = b.map(F::Sigmoid, &[x]);
    b.map(F::Mul, &[x, gate])
}

#[test]
fn gelu_in_every_order() {
    for order in 0..6 {
        let mut b = Build::new();
        let x = b.input(&[3, 5]);
        let y = gelu(&mut b, x, order);
        assert_eq!(b.raised(y), ["Map"], "order {order}");
    }
    for order in 0..2 {
        let mut b = Build::new();
        let x = b.input(&[7]);
        let y = gelu_tanh(&mut b, x, order);
        assert_eq!(b.raised(y), ["Map"], "order {order}");
    }
}

#[test]
fn the_operand_may_be_a_product_itself() {
    let mut b = Build::new();
    let (x, z) = (b.input(&[3, 5]), b.input(&[5]));
    let product = b.map(F::Mul, &[x, z]);
    let y = gelu(&mut b, product, 2);
    assert_eq!(b.raised(y), ["Map", "Map"]);
}

#[test]
fn swish_and_quick_gelu() {
    let mut b = Build::new();
    let x = b.input(&[3, 5]);
    let y = silu(&mut b, x);
    assert_eq!(b.raised(y), ["Map"]);
    // The factor is held in f32.
    let mut b = Build { dtype: planc_ir::DType::F32, ..Build::new() };
    let x = b.input(&[3, 5]);
    let scaled = b.with(F::Mul, x, 1.702);
    let gate = b.map(F::Sigmoid, &[scaled]);
    let y = b.map(F::Mul, &[gate, x]);
    assert_eq!(b.raised(y), ["Map"]);
}

#[test]
fn gates() {
    for kind in 0..3 {
        let mut b = Build::new();
        let (gate, up) = (b.input(&[3, 5]), b.input(&[3, 5]));
        let gate = match kind {
            0 => silu(&mut b, gate),
            1 => gelu(&mut b, gate, 1),
            _ => gelu_tanh(&mut b, gate, 0),
        };
        let y = b.map(F::Mul, &[up, gate]);
        assert_eq!(b.raised(y), ["Map"]);
    }
}

#[test]
fn other_numbers_are_other_functions() {
    for (root, half, one) in [(1.5, 0.5, 1.0), (SQRT_2, 0.25, 1.0), (SQRT_2, 0.5, 2.0)] {
        let mut b = Build::new();
        let x = b.input(&[5]);
        let scaled = b.with(F::Div, x, root);
        let erf = b.map(F::Erf, &[scaled]);
        let sum = b.with(F::Add, erf, one);
        let product = b.map(F::Mul, &[x, sum]);
        let y = b.with(F::Mul, product, half);
        assert_eq!(b.raised(y).len(), 5);
    }
    let mut b = Build::new();
    let (x, z) = (b.input(&[5]), b.input(&[5]));
    let gate = b.map(F::Sigmoid, &[z]);
    let y = b.map(F::Mul, &[x, gate]);
    assert_eq!(b.raised(y).len(), 2);
}

#[test]
fn what_others_read_stays() {
    let mut b = Build::new();
    let x = b.input(&[5]);
    let gate = b.map(F::Sigmoid, &[x]);
    let y = b.map(F::Mul, &[x, gate]);
    b.graph.outputs.push(gate);
    assert_eq!(b.raised(y), ["Map", "Map"]);
    let mut b = Build::new();
    let x = b.input(&[5]);
    let gate = b.map(F::Sigmoid, &[x]);
    let product = b.map(F::Mul, &[x, gate]);
    // Read later, by a node that comes after what would be raised.
    let y = b.map(F::Add, &[product, gate]);
    assert_eq!(b.raised(y), ["Map", "Map", "Map"]);
}
