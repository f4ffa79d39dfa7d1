//! One step of an optimizer, in f32, each operation rounded as PyTorch rounds it.

use super::operand::{In, Out};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use half::{bf16, f16};
use planc_ir::DType;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};

/// Writes the new parameter and state; copies them where the gradient's factor is not finite.
pub fn run(
    step: &OptimizerStep,
    inputs: &[In<'_>],
    outputs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let [parameter, gradient, lr, scale, number, state @ ..] = inputs else {
        return Err(mismatch(format!("{} operands", inputs.len())));
    };
    if outputs.len() != 1 + state.len() || state.len() != step.rule.states() {
        return Err(mismatch(format!("{} results, {} of state", outputs.len(), state.len())));
    }
    let old = || std::iter::once(parameter).chain(state);
    let is_single =
        |ty: &planc_ir::TensorType| ty.dtype == DType::F32 && ty.shape == parameter.shape();
    let operands = old().map(|x| &x.local.ty).chain(outputs.iter().map(|x| &x.local.ty));
    if !operands.into_iter().all(is_single) || gradient.shape() != parameter.shape() {
        return Err(mismatch("parameter, gradient and state differ in extents".to_string()));
    }
    let (scale, lr, number) = (scalar(scale)? as f32, scalar(lr)?, scalar(number)?);
    if !scale.is_finite() {
        outputs.iter_mut().zip(old()).for_each(|(out, x)| out.bytes.copy_from_slice(x.bytes));
        return Ok(());
    }
    match gradient.dtype() {
        DType::F32 => follow::<f32>(&step.rule, lr, scale, number, inputs, outputs),
        DType::F16 => follow::<f16>(&step.rule, lr, scale, number, inputs, outputs),
        DType::BF16 => follow::<bf16>(&step.rule, lr, scale, number, inputs, outputs),
        dtype => Err(KernelError::Type { kernel: "optimizer step", dtype }),
    }
}

fn mismatch(why: String) -> KernelError {
    KernelError::Operands { kernel: "optimizer step", why }
}

fn scalar(x: &In<'_>) -> Result<f64, KernelError> {
    let first = with_elem!(x.dtype(), T => x.elements::<T>().first().map(|&x| Elem::to_f64(x)));
    first.ok_or_else(|| mismatch("a scalar has no element".to_string()))
}

fn follow<G: Elem>(
    rule: &Rule,
    lr: f64,
    scale: f32,
    number: f64,
    inputs: &[In<'_>],
    outputs: &mut [Out<'_>],
) -> Result<(), KernelError> {
    let gradients = inputs[1].elements::<G>().iter().map(|g| g.to_f64() as f32 * scale);
    let parameters = inputs[0].elements::<f32>();
    match (rule, &inputs[planc_ir::ops::optimizer_step::FIRST_STATE..], outputs) {
        (&Rule::Sgd { weight_decay, .. }, [], [out]) => {
            let (decay, rate) = (weight_decay as f32, lr as f32);
            for ((out, &p), g) in out.elements::<f32>().iter_mut().zip(parameters).zip(gradients) {
                *out = p - rate * decayed(g, p, decay);
            }
        }
        (
            &Rule::Sgd { momentum, dampening, weight_decay, nesterov },
            [velocity],
            [out, new_velocity],
        ) => {
            let (decay, rate) = (weight_decay as f32, lr as f32);
            // The first step's gradient is all there is of momentum.
            let (keep, add) = if number <= 1.0 {
                (0.0, 1.0)
            } else {
                (momentum as f32, (1.0 - dampening) as f32)
            };
            let ahead = momentum as f32;
            let old = parameters.iter().zip(velocity.elements::<f32>());
            let new = out.elements::<f32>().iter_mut().zip(new_velocity.elements::<f32>());
            for (((out, new_v), (&p, &v)), g) in new.zip(old).zip(gradients) {
                let g = decayed(g, p, decay);
                *new_v = keep * v + add * g;
                *out = p - rate * if nesterov { g + ahead * *new_v } else { *new_v };
            }
        }
        (rule @ Rule::Adam { .. }, [first, second], [out, new_first, new_second]) => {
            let Some(adam) = Adam::new(rule, lr, number) else {
                return Err(mismatch("the rule has other state".to_string()));
            };
            let old = parameters
                .iter()
                .zip(first.elements::<f32>())
                .zip(second.elements::<f32>())
                .map(|((&p, &m), &v)| (p, m, v));
            let new = out
                .elements::<f32>()
                .iter_mut()
                .zip(new_first.elements::<f32>())
                .zip(new_second.elements::<f32>());
            for ((((out, new_m), new_v), (p, m, v)), g) in new.zip(old).zip(gradients) {
                (*out, *new_m, *new_v) = adam.apply(p, g, m, v);
            }
        }
        _ => return Err(mismatch("the rule has other state".to_string())),
    }
    Ok(())
}

/// A gradient with a multiple of the parameter added; without decay the parameter may even be infinite. Rounded
/// once, as PyTorch's fused multiply-add: where the two cancel, what is left decides where Adam goes.
fn decayed(gradient: f32, parameter: f32, decay: f32) -> f32 {
    if decay == 0.0 {
        gradient
    } else {
        (f64::from(gradient) + f64::from(decay) * f64::from(parameter)) as f32
    }
}

/// Adam's coefficients in one step, worked out in f64.
struct Adam {
    /// What the parameter is multiplied by.
    shrink: f32,
    /// Multiple of the parameter that is added to the gradient.
    decay: f32,
    /// How far the first moment moves to the gradient.
    weight: f32,
    beta2: f32,
    rest2: f32,
    epsilon: f32,
    root_correction: f32,
    step_size: f32,
}

impl Adam {
    fn new(rule: &Rule, lr: f64, number: f64) -> Option<Self> {
        let &Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled } = rule else {
            return None;
        };
        let shrink = if decoupled { 1.0 - lr * weight_decay } else { 1.0 };
        Some(Self {
            shrink: shrink as f32,
            decay: if decoupled { 0.0 } else { weight_decay as f32 },
            weight: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            epsilon: epsilon as f32,
            root_correction: (1.0 - beta2.powf(number)).sqrt() as f32,
            step_size: (lr / (1.0 - beta1.powf(number))) as f32,
        })
    }

    /// The new parameter, first and second moment of one element.
    fn apply(&self, p: f32, g: f32, m: f32, v: f32) -> (f32, f32, f32) {
        let g = decayed(g, p, self.decay);
        // An interpolation is most exact from its nearer end.
        let m = if self.weight < 0.5 {
            m + self.weight * (g - m)
        } else {
            g - (g - m) * (1.0 - self.weight)
        };
        let v = v * self.beta2 + self.rest2 * g * g;
        let root = v.sqrt() / self.root_correction + self.epsilon;
        (p * self.shrink - self.step_size * m / root, m, v)
    }
}
