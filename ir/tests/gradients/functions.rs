//! The gradient of every scalar function.

use crate::difference::{Case, Tally, check, differentiate};
use crate::random::Random;
use planc_ir::ops::map::Map;
use planc_ir::scalar::{Gate, ScalarFn, ScalarFn as F, Slope};
use planc_ir::{DType, OpError, Tensor, TensorType};

/// What there is to say of a function's gradient.
enum Gradient {
    /// There is one; from where to where each operand lies.
    Over(&'static [[f64; 2]]),
    /// The function does not change but in jumps.
    Zero,
    /// Operands or result are no floats.
    NoFloats,
}

use Gradient::{NoFloats, Over, Zero};

/// Pairs of functions and their gradients. The patterns are exhaustive: a function that is not listed does
/// not compile.
macro_rules! functions {
    ($($pattern:pat, [$($example:expr),+] => $gradient:expr;)+) => {
        fn all() -> Vec<(ScalarFn, Gradient)> {
            let all = vec![$($(($example, $gradient)),+),+];
            for (f, _) in &all {
                match f { $($pattern)|+ => {} }
            }
            all
        }
    };
}

const NEAR: &[[f64; 2]] = &[[-2.0, 2.0]];
const WIDE: &[[f64; 2]] = &[[-5.0, 5.0]];
const UNIT: &[[f64; 2]] = &[[-0.9, 0.9]];
const POSITIVE: &[[f64; 2]] = &[[0.2, 3.0]];
const TWO: &[[f64; 2]] = &[[-2.0, 2.0], [-2.0, 2.0]];
const RATIO: &[[f64; 2]] = &[[-2.0, 2.0], [0.5, 2.0]];

functions! {
    F::Identity, [F::Identity] => Over(NEAR);
    F::Cast(_), [F::Cast(DType::F64)] => Over(NEAR);
    F::Neg, [F::Neg] => Over(NEAR);
    F::Abs, [F::Abs] => Over(NEAR);
    F::Sign, [F::Sign] => Zero;
    F::Reciprocal, [F::Reciprocal] => Over(POSITIVE);
    F::Sqrt, [F::Sqrt] => Over(POSITIVE);
    F::Exp, [F::Exp] => Over(NEAR);
    F::Log, [F::Log] => Over(POSITIVE);
    F::Sin, [F::Sin] => Over(WIDE);
    F::Cos, [F::Cos] => Over(WIDE);
    F::Tan, [F::Tan] => Over(UNIT);
    F::Asin, [F::Asin] => Over(UNIT);
    F::Acos, [F::Acos] => Over(UNIT);
    F::Atan, [F::Atan] => Over(WIDE);
    F::Sinh, [F::Sinh] => Over(NEAR);
    F::Cosh, [F::Cosh] => Over(NEAR);
    F::Tanh, [F::Tanh] => Over(NEAR);
    F::Asinh, [F::Asinh] => Over(WIDE);
    F::Acosh, [F::Acosh] => Over(&[[1.2, 4.0]]);
    F::Atanh, [F::Atanh] => Over(UNIT);
    F::Erf, [F::Erf] => Over(NEAR);
    F::Floor, [F::Floor] => Zero;
    F::Ceil, [F::Ceil] => Zero;
    F::Round, [F::Round] => Zero;
    F::Not, [F::Not] => NoFloats;
    F::IsNaN, [F::IsNaN] => NoFloats;
    F::IsInf { .. }, [F::IsInf { positive: true, negative: true }] => NoFloats;
    F::Relu, [F::Relu] => Over(NEAR);
    F::Sigmoid, [F::Sigmoid] => Over(WIDE);
    F::HardSigmoid { .. }, [F::HardSigmoid { alpha: 0.3, beta: 0.4 }] => Over(WIDE);
    F::HardSwish, [F::HardSwish] => Over(WIDE);
    F::LeakyRelu { .. }, [F::LeakyRelu { alpha: 0.1 }, F::LeakyRelu { alpha: -0.5 }] => Over(NEAR);
    F::Elu { .. }, [F::Elu { alpha: 0.7 }, F::Elu { alpha: -0.5 }] => Over(NEAR);
    F::Celu { .. }, [F::Celu { alpha: 0.7 }] => Over(NEAR);
    F::Selu { .. }, [F::Selu { alpha: 1.6, gamma: 1.1 }] => Over(NEAR);
    F::ThresholdedRelu { .. }, [F::ThresholdedRelu { alpha: 0.6 }] => Over(NEAR);
    F::Softplus, [F::Softplus] => Over(WIDE);
    F::Softsign, [F::Softsign] => Over(WIDE);
    F::Mish, [F::Mish] => Over(WIDE);
    F::Gelu, [F::Gelu] => Over(WIDE);
    F::GeluTanh, [F::GeluTanh] => Over(WIDE);
    F::Swish { .. }, [F::Swish { alpha: 1.0 }, F::Swish { alpha: 1.7 }] => Over(WIDE);
    F::Shrink { .. }, [F::Shrink { bias: 0.2, lambd: 0.5 }] => Over(NEAR);
    F::BitwiseNot, [F::BitwiseNot] => NoFloats;
    F::Add, [F::Add] => Over(TWO);
    F::Sub, [F::Sub] => Over(TWO);
    F::Mul, [F::Mul] => Over(TWO);
    F::Div, [F::Div] => Over(RATIO);
    F::Pow, [F::Pow] => Over(&[[0.2, 2.0], [-2.0, 3.0]]);
    F::Mod, [F::Mod] => Over(RATIO);
    F::Fmod, [F::Fmod] => Over(RATIO);
    F::Min, [F::Min] => Over(TWO);
    F::Max, [F::Max] => Over(TWO);
    F::And, [F::And] => NoFloats;
    F::Or, [F::Or] => NoFloats;
    F::Xor, [F::Xor] => NoFloats;
    F::Equal, [F::Equal] => NoFloats;
    F::Less, [F::Less] => NoFloats;
    F::LessOrEqual, [F::LessOrEqual] => NoFloats;
    F::Greater, [F::Greater] => NoFloats;
    F::GreaterOrEqual, [F::GreaterOrEqual] => NoFloats;
    F::PRelu, [F::PRelu] => Over(TWO);
    F::Gated(_),
        [F::Gated(Gate::Silu), F::Gated(Gate::Gelu), F::Gated(Gate::GeluTanh)] => Over(TWO);
    // Second derivatives are not taken; see the test below.
    F::Slope(_), [F::Slope(Slope::Gelu)] => NoFloats;
    F::BitwiseAnd, [F::BitwiseAnd] => NoFloats;
    F::BitwiseOr, [F::BitwiseOr] => NoFloats;
    F::BitwiseXor, [F::BitwiseXor] => NoFloats;
    F::ShiftLeft, [F::ShiftLeft] => NoFloats;
    F::ShiftRight, [F::ShiftRight] => NoFloats;
    F::Clip, [F::Clip] => Over(&[[-2.0, 2.0], [-1.5, 0.5], [-0.5, 1.5]]);
    F::Where, [F::Where] => Over(&[[-1.0, 1.0], [-2.0, 2.0], [-2.0, 2.0]]);
}

/// Shapes that broadcast together, of three operands at most.
const SHAPES: [[&[u64]; 3]; 5] = [
    [&[3, 4], &[3, 4], &[3, 4]],
    [&[3, 1], &[4], &[]],
    [&[], &[2, 3], &[2, 1]],
    [&[2, 1, 3], &[4, 1], &[1]],
    [&[0, 2], &[1, 2], &[0, 1]],
];

fn operand(random: &mut Random, shape: &[u64], [low, high]: [f64; 2]) -> Tensor {
    let ty = TensorType::new(DType::F64, shape);
    Tensor::from_f64(ty, |_| low + (high - low) * f64::midpoint(random.next(), 1.0)).unwrap()
}

#[test]
fn every_function_has_the_gradient_that_differences_show() {
    let (mut random, mut tally) = (Random(7), Tally::default());
    for (f, gradient) in all() {
        let Over(ranges) = gradient else { continue };
        assert_eq!(ranges.len(), f.arity(), "{f:?}");
        for shapes in &SHAPES {
            let mut inputs: Vec<Tensor> =
                shapes.iter().zip(ranges).map(|(s, &r)| operand(&mut random, s, r)).collect();
            if f == F::Where {
                let random = inputs[0].clone();
                inputs[0] = Tensor::from_int(TensorType::new(DType::Bool, random.shape()), |i| {
                    i128::from(random.f64_at(i) > 0.0)
                })
                .unwrap();
            }
            let case = Case::new(Map { f }, inputs);
            check(&case, &mut random, &mut tally).unwrap_or_else(|e| panic!("{f:?}: {e}"));
        }
    }
    tally.assert_mostly_compared();
}

#[test]
fn steps_have_no_gradient() {
    for (f, gradient) in all() {
        let x = Tensor::vector(vec![0.3, -1.7]);
        let case = Case::new(Map { f }, vec![x; f.arity()]);
        if matches!(gradient, Zero) {
            let d = differentiate(&case, &[true]).unwrap();
            assert_eq!((d.gradients, d.graph.nodes.len()), (vec![None], 1), "{f:?}");
        }
        if matches!(gradient, NoFloats) && f != F::Slope(Slope::Gelu) {
            let takes_floats = f.accepts(DType::F64);
            assert!(!(takes_floats && f.output(DType::F64).is_float()), "{f:?}");
        }
    }
    let to_int = Case::new(Map { f: F::Cast(DType::I32) }, vec![Tensor::vector(vec![0.5])]);
    assert_eq!(differentiate(&to_int, &[true]).unwrap().gradients, [None]);
}

#[test]
fn casts_go_back() {
    for (from, to) in [(DType::F32, DType::F64), (DType::F64, DType::F32)] {
        let x = Tensor::vector(vec![0.5, -1.0]).cast(from).unwrap();
        let d = differentiate(&Case::new(Map { f: F::Cast(to) }, vec![x]), &[true]).unwrap();
        assert_eq!(d.graph.nodes.len(), 2); // and the types are compared there
    }
}

#[test]
fn constant_exponents_at_zero_and_below() {
    let (mut random, mut tally) = (Random(9), Tally::default());
    for (exponent, x) in [
        (0.0, vec![-1.5, 0.0, 2.0]),
        (1.0, vec![-1.5, 0.0, 2.0]),
        (2.0, vec![-1.5, 0.0, 2.0]),
        (3.0, vec![-1.5, 0.0, 2.0]),
        (-2.0, vec![-1.5, 0.7, 2.0]),
        (0.5, vec![0.3, 1.0, 2.0]),
    ] {
        let inputs = vec![Tensor::vector(x), Tensor::scalar(exponent)];
        let mut case = Case::new(Map { f: F::Pow }, inputs);
        case.known = vec![1];
        check(&case, &mut random, &mut tally).unwrap();
        // Not known, the exponent still does no harm to the base's gradient.
        let d = differentiate(&Case { known: vec![], ..case }, &[true, false]).unwrap();
        assert!(d.gradients[0].is_some());
    }
    assert_eq!(tally.skipped, 0);
}

#[test]
fn slopes_are_differentiated_once() {
    let x = Tensor::vector(vec![0.3, -1.7]);
    let case = Case::new(Map { f: F::Slope(Slope::Gelu) }, vec![x.clone(), x]);
    let refused = differentiate(&case, &[true, false]).map(|_| ());
    assert!(matches!(refused, Err(OpError::NotDifferentiable { .. })));
    assert!(differentiate(&case, &[false, true]).is_ok());
}
