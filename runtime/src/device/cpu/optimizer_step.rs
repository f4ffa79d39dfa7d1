//! One step of an optimizer, in f32, each operation rounded as PyTorch rounds it.

use super::operand::{In, Out};
use crate::KernelError;
use crate::device::element::{Elem, with_elem};
use half::{bf16, f16};
use planc_ir::DType;
use planc_ir::ops::optimizer_step::{FIRST_STATE, OptimizerStep, Rule};

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
        dtype => return Err(KernelError::Type { kernel: "optimizer step", dtype }),
    }
    Ok(())
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
) {
    match *rule {
        Rule::Sgd { momentum, dampening, weight_decay, nesterov } => {
            let (decay, rate, ahead) = (weight_decay as f32, lr as f32, momentum as f32);
            // The first step's gradient is all there is of momentum.
            let (keep, add) =
                if number <= 1.0 { (0.0, 1.0) } else { (ahead, (1.0 - dampening) as f32) };
            if rule.states() == 0 {
                each::<0, G>(inputs, outputs, scale, |p, g, []| {
                    (p - rate * decayed(g, p, decay), [])
                });
            } else {
                each::<1, G>(inputs, outputs, scale, |p, g, [v]| {
                    let g = decayed(g, p, decay);
                    let v = keep * v + add * g;
                    (p - rate * if nesterov { g + ahead * v } else { v }, [v])
                });
            }
        }
        Rule::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => {
            // Coefficients are worked out in f64.
            let shrink = if decoupled { 1.0 - lr * weight_decay } else { 1.0 } as f32;
            let decay = if decoupled { 0.0 } else { weight_decay as f32 };
            let (to_gradient, epsilon) = ((1.0 - beta1) as f32, epsilon as f32);
            let (keep, add) = (beta2 as f32, (1.0 - beta2) as f32);
            let correction = (1.0 - beta2.powf(number)).sqrt() as f32;
            let step = (lr / (1.0 - beta1.powf(number))) as f32;
            each::<2, G>(inputs, outputs, scale, |p, g, [m, v]| {
                let g = decayed(g, p, decay);
                // An interpolation is most exact from its nearer end.
                let m = if to_gradient < 0.5 {
                    m + to_gradient * (g - m)
                } else {
                    g - (g - m) * (1.0 - to_gradient)
                };
                let v = v * keep + add * g * g;
                (p * shrink - step * m / (v.sqrt() / correction + epsilon), [m, v])
            });
        }
    }
}

/// Elements that are computed at a time, in arrays of their own: the compiler sees that no two of these
/// overlap, and uses vector instructions.
const BLOCK: usize = 128;

/// Applies `f` to each element: from the parameter, the scaled gradient and the state to the new parameter and
/// state.
fn each<const STATES: usize, G: Elem>(
    inputs: &[In<'_>],
    outputs: &mut [Out<'_>],
    scale: f32,
    f: impl Fn(f32, f32, [f32; STATES]) -> (f32, [f32; STATES]),
) {
    let gradients = inputs[1].elements::<G>();
    let (mut p, mut g) = ([0f32; BLOCK], [0f32; BLOCK]);
    let mut state = [[0f32; BLOCK]; STATES];
    for (begin, gradients) in (0..).step_by(BLOCK).zip(gradients.chunks(BLOCK)) {
        let range = begin..begin + gradients.len();
        let len = range.len();
        p[..len].copy_from_slice(&inputs[0].elements()[range.clone()]);
        g.iter_mut().zip(gradients).for_each(|(g, x)| *g = x.to_f64() as f32 * scale);
        for (s, x) in state.iter_mut().zip(&inputs[FIRST_STATE..]) {
            s[..len].copy_from_slice(&x.elements()[range.clone()]);
        }
        for i in 0..BLOCK {
            let (parameter, new) = f(p[i], g[i], std::array::from_fn(|k| state[k][i]));
            p[i] = parameter;
            for (s, x) in state.iter_mut().zip(new) {
                s[i] = x;
            }
        }
        for (out, x) in outputs.iter_mut().zip(std::iter::once(&p).chain(&state)) {
            out.elements()[range.clone()].copy_from_slice(&x[..len]);
        }
    }
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
