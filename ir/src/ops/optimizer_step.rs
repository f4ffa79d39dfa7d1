//! One step of an optimizer on one parameter.
//!
//! - **ONNX**: none; planc adds it when a model is trained.
//! - **Semantics**: what `torch.optim.SGD`, `Adam` and `AdamW` do. Operands: parameter, gradient, learning
//!   rate, what the gradient is multiplied by, the number of this step (from 1), then the optimizer's state:
//!   for SGD with momentum the momentum, for Adam the first and the second moment. Results: the new
//!   parameter and the new state. If the factor of the gradient is not finite, the step is skipped: all
//!   results equal their operands.
//! - **Split**: all dimensions are parallel, scalars stay whole. Nothing is linear.

use super::decode::DecoderEntry;
use super::{OpDef, Work, expect_inputs, factors};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// Operands before the optimizer's state.
pub const FIRST_STATE: usize = 5;

/// A step. Parameter and state are f32, the gradient may be f32, f16 or bf16; learning rate and factor are
/// f32 scalars, the step's number is a scalar of f32 or i64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerStep {
    /// How the parameter follows the gradient.
    pub rule: Rule,
}

/// How a parameter follows its gradient. Coefficients are f64, since PyTorch computes with them in f64 before
/// it rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Stochastic gradient descent; without momentum it has no state.
    Sgd {
        /// How much of the momentum stays.
        momentum: f64,
        /// How much of the gradient does not enter the momentum, after the first step.
        dampening: f64,
        /// Multiple of the parameter that is added to the gradient.
        weight_decay: f64,
        /// Whether the gradient is followed as well as the momentum.
        nesterov: bool,
    },
    /// Adam.
    Adam {
        /// How much of the first moment stays.
        beta1: f64,
        /// How much of the second moment stays.
        beta2: f64,
        /// Added to the root of the second moment.
        epsilon: f64,
        /// See `decoupled`.
        weight_decay: f64,
        /// Whether the parameter itself decays (AdamW); else a multiple of it is added to the gradient.
        decoupled: bool,
    },
}

impl Rule {
    /// Number of tensors of state.
    pub fn states(&self) -> usize {
        match *self {
            Self::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Self::Adam { .. } => 2,
        }
    }

    /// Floating-point operations an element.
    const fn flops(&self) -> f64 {
        match self {
            Self::Sgd { .. } => 7.0,
            Self::Adam { .. } => 18.0,
        }
    }

    /// Refuses coefficients that PyTorch refuses, too.
    fn check(&self) -> Result<(), OpError> {
        let share = |name, x: f64| (name, x, (0.0..1.0).contains(&x), "is not in [0, 1)");
        let amount = |name, x: f64| (name, x, x.is_finite() && x >= 0.0, "is not a positive number");
        let number = |name, x: f64| (name, x, x.is_finite(), "is not finite");
        let coefficients = match *self {
            Self::Sgd { momentum, dampening, weight_decay, nesterov } => {
                if nesterov && (momentum == 0.0 || dampening != 0.0) {
                    let why = "takes momentum, and no dampening".to_string();
                    return Err(OpError::BadAttribute { name: "nesterov", why });
                }
                vec![
                    amount("momentum", momentum),
                    number("dampening", dampening),
                    amount("weight_decay", weight_decay),
                ]
            }
            Self::Adam { beta1, beta2, epsilon, weight_decay, .. } => vec![
                share("beta1", beta1),
                share("beta2", beta2),
                amount("epsilon", epsilon),
                amount("weight_decay", weight_decay),
            ],
        };
        match coefficients.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((name, x, _, why)) => {
                Err(OpError::BadAttribute { name, why: format!("{x} {why}") })
            }
            None => Ok(()),
        }
    }

    /// The new parameter, and the new state in `state`, of one element. `lr` is the learning rate, `n` the
    /// step's number.
    fn apply(&self, parameter: f64, gradient: f64, state: &mut [f64], lr: f64, n: f64) -> f64 {
        match (self, state) {
            (&Self::Sgd { momentum, dampening, weight_decay, nesterov }, state) => {
                let mut direction = gradient + weight_decay * parameter;
                if let [velocity] = state {
                    *velocity = if n <= 1.0 {
                        direction
                    } else {
                        momentum * *velocity + (1.0 - dampening) * direction
                    };
                    direction =
                        if nesterov { direction + momentum * *velocity } else { *velocity };
                }
                parameter - lr * direction
            }
            (&Self::Adam { beta1, beta2, epsilon, weight_decay, decoupled }, [first, second]) => {
                let decay = weight_decay * parameter;
                let (start, gradient) = if decoupled {
                    (parameter - lr * decay, gradient)
                } else {
                    (parameter, gradient + decay)
                };
                *first = beta1 * *first + (1.0 - beta1) * gradient;
                *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
                let mean = *first / (1.0 - beta1.powf(n));
                let square = *second / (1.0 - beta2.powf(n));
                start - lr * mean / (square.sqrt() + epsilon)
            }
            _ => f64::NAN, // `infer` counts the state
        }
    }
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for OptimizerStep {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        self.rule.check()?;
        expect_inputs(inputs, FIRST_STATE + self.rule.states())?;
        let (parameter, state) = (&inputs[0], &inputs[FIRST_STATE..]);
        let singles = [DType::F32].as_slice();
        let elements = [
            singles,
            &[DType::F32, DType::F16, DType::BF16],
            singles,
            singles,
            &[DType::F32, DType::I64],
        ];
        for (i, x) in inputs.iter().enumerate() {
            if !elements.get(i).unwrap_or(&singles).contains(&x.dtype) {
                return Err(OpError::UnsupportedType { found: x.dtype });
            }
        }
        if let Some(i) = (2..FIRST_STATE).find(|&i| inputs[i].rank() != 0) {
            let found = inputs[i].rank();
            return Err(OpError::Rank { index: i, found, expected: "0".into() });
        }
        if let Some(x) = inputs[1..2].iter().chain(state).find(|x| x.shape != parameter.shape) {
            return Err(OpError::ShapeMismatch {
                lhs: parameter.shape.clone(),
                rhs: x.shape.clone(),
                why: "gradient and state have the parameter's extents",
            });
        }
        Ok(std::iter::once(parameter).chain(state).cloned().collect())
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let dims = factors::dims(&mut rule, &outputs[0].shape, |_| false);
        for x in inputs {
            rule.input(dims.iter().take(x.rank()).copied().map(Some));
        }
        for _ in outputs {
            rule.output(dims.iter().copied().map(Some));
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, self.rule.flops())
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let state = &inputs[FIRST_STATE..];
        let [lr, scale, n] = [2, 3, 4].map(|i| inputs[i].f64_at(0));
        if !scale.is_finite() {
            return Ok(std::iter::once(&inputs[0]).chain(state).map(|&t| t.clone()).collect());
        }
        let mut results: Vec<Vec<f64>> = vec![Vec::with_capacity(inputs[0].len()); 1 + state.len()];
        for i in 0..inputs[0].len() {
            let mut new: Vec<f64> = state.iter().map(|t| t.f64_at(i)).collect();
            let gradient = scale * inputs[1].f64_at(i);
            let parameter = self.rule.apply(inputs[0].f64_at(i), gradient, &mut new, lr, n);
            results[0].push(parameter);
            results[1..].iter_mut().zip(new).for_each(|(r, x)| r.push(x));
        }
        results.iter().map(|r| Tensor::from_f64(inputs[0].ty().clone(), |i| r[i])).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::OptimizerStep(self.clone())
    }
}
