//! Steps of optimizers, over their own operands or not.

use super::{Case, Draw, numbers};
use planc_ir::ops::map::Map;
use planc_ir::ops::optimizer_step::{OptimizerStep, Rule};
use planc_ir::scalar::ScalarFn as F;
use planc_ir::{Carried, DType, Tensor, TensorType, ValueId};

/// Coefficients that are exact, and with which rounding decides little.
fn rule(d: &mut Draw<'_>) -> Rule {
    let weight_decay = d.pick(&[0.0, 0.125]);
    match d.below(4) {
        0 => Rule::Sgd { momentum: 0.0, dampening: 0.0, weight_decay, nesterov: false },
        1 => {
            let nesterov = d.one_in(2);
            let dampening = if nesterov { 0.0 } else { 0.25 };
            Rule::Sgd { momentum: 0.5, dampening, weight_decay, nesterov }
        }
        _ => {
            let decoupled = d.one_in(2);
            Rule::Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.5, weight_decay, decoupled }
        }
    }
}

impl Case {
    /// A step of an optimizer on a parameter of its own, with a drawn value as the gradient. The results are
    /// what state becomes, or outputs; something may still read the parameter afterwards.
    pub(super) fn update(&mut self, d: &mut Draw<'_>, x: ValueId) {
        let rule = rule(d);
        let bounded = self.map(F::Tanh, x);
        let gradient = self.map(F::Cast(DType::F32), bounded);
        let shape = self.graph.ty(x).shape.clone();
        let is_state = d.one_in(2);
        let mut own = Vec::new();
        for i in 0..=rule.states() {
            let drawn = numbers(&shape, self.graph.values.len());
            // Second moments are not negative.
            let number = |at: usize| if i > 1 { drawn.f64_at(at).abs() } else { drawn.f64_at(at) };
            let ty = TensorType::new(DType::F32, shape.clone());
            let tensor = Tensor::from_f64(ty, number).expect("small");
            own.push(if is_state { self.state(tensor) } else { self.given(d, tensor) });
        }
        let factor = d.pick(&[0.5f32, 1.0, f32::INFINITY]);
        let number = if d.one_in(2) { Tensor::scalar(1i64) } else { Tensor::scalar(3f32) };
        let scalars = [Tensor::scalar(0.5f32), Tensor::scalar(factor), number];
        let scalars = scalars.map(|scalar| self.given(d, scalar));
        let operands = [&[own[0], gradient], &scalars[..], &own[1..]].concat();
        let name = format!("n{}", self.graph.nodes.len());
        let op = OptimizerStep { rule }.into();
        let results = self.graph.push(name, op, &operands, &[]).expect("types fit");
        if is_state {
            let pairs = own.iter().zip(&results);
            self.graph.carried.extend(pairs.map(|(&state, &next)| Carried { state, next }));
        }
        if !is_state || d.one_in(3) {
            self.graph.outputs.extend(&results);
        }
        if d.one_in(3) {
            let late = self.map(F::Neg, own[0]);
            self.graph.outputs.push(late);
        }
    }

    fn map(&mut self, f: F, x: ValueId) -> ValueId {
        let name = format!("n{}", self.graph.nodes.len());
        self.graph.push(name, Map { f }.into(), &[x], &[]).expect("types fit")[0]
    }
}
