//! The gradient of a layer of a recurrent network in one direction.
//!
//! - **ONNX**: none; differentiating [`Recurrence`] makes it.
//! - **Semantics**: inputs are the gradients of the recurrence's results, then its operands; results are the
//!   gradients of its operands but the lengths. The states are computed again, a sequence at a time, and
//!   gone through backwards. Where what an activation takes is clipped, its slope is 0.
//! - **Split**: the batch splits what has it, and gives partial sums of the weights' gradients. Linear in the
//!   gradients together.

use super::lanes::floats;
use super::recurrence::{Activation, Cell, Numbers, Recurrence, State, batch_dims};
use super::{DecoderEntry, OpDef, Work, expect_gradient};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The gradient of a recurrence. Inputs: the gradients of its results, then its operands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecurrenceGrad {
    /// The recurrence.
    pub of: Recurrence,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

/// Gradients of the operands so far.
struct Sums {
    weights: Vec<f64>,
    /// Of a GRU's recurrent bias or an LSTM's peepholes.
    extra: Vec<f64>,
}

impl Sums {
    /// Adds the gradient of recurrent products of gates `gates` with `state`, and gives that of the state.
    fn products(
        &mut self,
        weights: &[f64],
        state: &[f64],
        gates: Range<usize>,
        gradient: &[f64],
    ) -> Vec<f64> {
        let n = state.len();
        let rows = gates.start * n * n..gates.end * n * n;
        let (weights, sums) = (&weights[rows.clone()], &mut self.weights[rows]);
        let mut of_state = vec![0.0; n];
        let rows = weights.chunks_exact(n).zip(sums.chunks_exact_mut(n));
        for ((row, sums), g) in rows.zip(gradient) {
            for (i, of_state) in of_state.iter_mut().enumerate() {
                *of_state += row[i] * g;
                sums[i] += state[i] * g;
            }
        }
        of_state
    }
}

impl RecurrenceGrad {
    /// # Errors
    /// If an activation has no derivative that is known.
    pub fn check(of: &Recurrence) -> Result<(), OpError> {
        match of.cell.activations().into_iter().find(|a| !a.f.has_derivatives()) {
            None => Ok(()),
            Some(a) => {
                let why = format!("the activation {:?} has no gradient in planc", a.f);
                Err(OpError::NotDifferentiable { why })
            }
        }
    }

    /// How many results the recurrence has.
    const fn results(&self) -> usize {
        if self.of.cell.has_cell_state() { 3 } else { 2 }
    }

    /// The gradients and the recurrence's operands.
    fn split<'a, T>(&self, inputs: &'a [T]) -> Result<(&'a [T], &'a [T]), OpError> {
        let missing = OpError::MissingInput { index: inputs.len() };
        inputs.split_at_checked(self.results()).ok_or(missing)
    }

    /// How many operands have a gradient.
    fn differentiated(&self) -> usize {
        3 + self.of.cell.operands(0, 0).len()
    }

    fn slope(&self, f: &Activation, x: f64) -> f64 {
        if x.abs() > f64::from(self.of.clip) { 0.0 } else { f.slope(x).unwrap_or(f64::NAN) }
    }

    /// One step back: from the gradient of the state behind it to that of the state before it. Gives the gradients of
    /// the projected inputs.
    fn back(
        &self,
        x: &[f64],
        numbers: &Numbers<'_>,
        before: &State,
        gradient: &mut State,
        sums: &mut Sums,
    ) -> Vec<f64> {
        match &self.of.cell {
            Cell::Rnn { f } => {
                let h = &before.hidden;
                let r = Recurrence::products(&numbers.weights, h, 0..1);
                let dx: Vec<f64> = gradient.hidden.iter().zip(x.iter().zip(r))
                    .map(|(g, (x, r))| g * self.slope(f, x + r))
                    .collect();
                gradient.hidden = sums.products(&numbers.weights, h, 0..1, &dx);
                dx
            }
            Cell::Gru { f, g, linear_before_reset } => {
                self.back_gru([f, g], *linear_before_reset, x, numbers, before, gradient, sums)
            }
            Cell::Lstm { f, g, h, coupled, peepholes } => {
                let options = [*coupled, *peepholes];
                self.back_lstm([f, g, h], options, x, numbers, before, gradient, sums)
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // those of `back`
    fn back_gru(
        &self,
        [f, g]: [&Activation; 2],
        linear_before_reset: bool,
        x: &[f64],
        numbers: &Numbers<'_>,
        before: &State,
        gradient: &mut State,
        sums: &mut Sums,
    ) -> Vec<f64> {
        let (h, weights) = (&before.hidden, &numbers.weights);
        let n = h.len();
        let bias = |i: usize| if linear_before_reset { numbers.extra[i] } else { 0.0 };
        let r = Recurrence::products(weights, h, 0..2);
        let taken: Vec<f64> = (0..2 * n).map(|i| x[i] + r[i] + bias(i)).collect();
        let gate = |i: usize| self.of.activate(f, taken[i]);
        // What the reset gate applies to, and what it makes of it.
        let (open, kept): (Vec<f64>, Vec<f64>) = if linear_before_reset {
            let r = Recurrence::products(weights, h, 2..3);
            let open: Vec<f64> = (0..n).map(|i| r[i] + bias(2 * n + i)).collect();
            let kept = (0..n).map(|i| gate(n + i) * open[i]).collect();
            (open, kept)
        } else {
            let reset: Vec<f64> = (0..n).map(|i| gate(n + i) * h[i]).collect();
            let kept = Recurrence::products(weights, &reset, 2..3);
            (h.clone(), kept)
        };
        let mut dx = vec![0.0; 3 * n];
        for i in 0..n {
            let (new, z, dh) = (x[2 * n + i] + kept[i], gate(i), gradient.hidden[i]);
            dx[i] = dh * (h[i] - self.of.activate(g, new)) * self.slope(f, taken[i]);
            dx[2 * n + i] = dh * (1.0 - z) * self.slope(g, new);
            gradient.hidden[i] = dh * z;
        }
        let of_new = &dx[2 * n..];
        let (of_open, of_kept): (Vec<f64>, Vec<f64>) = if linear_before_reset {
            let of_open: Vec<f64> = (0..n).map(|i| of_new[i] * gate(n + i)).collect();
            (0..n).for_each(|i| sums.extra[2 * n + i] += of_open[i]);
            (sums.products(weights, h, 2..3, &of_open), of_new.to_vec())
        } else {
            let reset: Vec<f64> = (0..n).map(|i| gate(n + i) * h[i]).collect();
            let of_reset = sums.products(weights, &reset, 2..3, of_new);
            ((0..n).map(|i| of_reset[i] * gate(n + i)).collect(), of_reset)
        };
        for i in 0..n {
            dx[n + i] = of_kept[i] * open[i] * self.slope(f, taken[n + i]);
            gradient.hidden[i] += of_open[i];
        }
        if linear_before_reset {
            (0..2 * n).for_each(|i| sums.extra[i] += dx[i]);
        }
        let of_state = sums.products(weights, h, 0..2, &dx[..2 * n]);
        gradient.hidden.iter_mut().zip(of_state).for_each(|(sum, g)| *sum += g);
        dx
    }

    #[allow(clippy::too_many_arguments)] // those of `back`
    fn back_lstm(
        &self,
        [f, g, h]: [&Activation; 3],
        [coupled, peepholes]: [bool; 2],
        x: &[f64],
        numbers: &Numbers<'_>,
        before: &State,
        gradient: &mut State,
        sums: &mut Sums,
    ) -> Vec<f64> {
        let n = before.hidden.len();
        let r = Recurrence::products(&numbers.weights, &before.hidden, 0..4);
        let peephole = |k: usize, i: usize| if peepholes { numbers.extra[k * n + i] } else { 0.0 };
        let mut dx = vec![0.0; 4 * n];
        for i in 0..n {
            let cell = before.cell[i];
            let gate = |k: usize| x[k * n + i] + r[k * n + i];
            let of_input = gate(0) + peephole(0, i) * cell;
            let input = self.of.activate(f, of_input);
            let of_forget = gate(2) + peephole(2, i) * cell;
            let forget = if coupled { 1.0 - input } else { self.of.activate(f, of_forget) };
            let candidate = self.of.activate(g, gate(3));
            let next = forget * cell + input * candidate;
            let of_output = gate(1) + peephole(1, i) * next;
            let output = self.of.activate(f, of_output);

            let dh = gradient.hidden[i];
            let doutput = dh * self.of.activate(h, next) * self.slope(f, of_output);
            let dnext =
                gradient.cell[i] + dh * output * self.slope(h, next) + doutput * peephole(1, i);
            let through = if coupled { candidate - cell } else { candidate };
            let dinput = dnext * through * self.slope(f, of_input);
            let dforget = if coupled { 0.0 } else { dnext * cell * self.slope(f, of_forget) };
            let dcandidate = dnext * input * self.slope(g, gate(3));
            gradient.cell[i] =
                dnext * forget + dinput * peephole(0, i) + dforget * peephole(2, i);
            for (k, d) in [dinput, doutput, dforget, dcandidate].into_iter().enumerate() {
                dx[k * n + i] = d;
            }
            if peepholes {
                for (k, d) in [dinput * cell, doutput * next, dforget * cell].into_iter().enumerate()
                {
                    sums.extra[k * n + i] += d;
                }
            }
        }
        gradient.hidden = sums.products(&numbers.weights, &before.hidden, 0..4, &dx);
        dx
    }
}

impl OpDef for RecurrenceGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        Self::check(&self.of)?;
        let (gradients, operands) = self.split(inputs)?;
        for (gradient, result) in gradients.iter().zip(self.of.infer(operands, &[])?) {
            expect_gradient(gradient, &result)?;
        }
        Ok(operands[..self.differentiated()].to_vec())
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let batch = inputs[0].shape[1];
        let b = rule.factor("b", batch, FactorKind::Reduce(ReduceKind::Sum));
        let (gradients, operands) = inputs.split_at(self.results());
        for ty in gradients {
            rule.input(batch_dims(ty, b));
        }
        for (i, ty) in operands.iter().enumerate() {
            rule.input(self.of.operand_dims(i, ty, b));
        }
        for (i, ty) in operands.iter().enumerate().take(self.differentiated()) {
            rule.output(self.of.operand_dims(i, ty, b));
        }
        rule.linear((0..gradients.len()).collect::<Vec<_>>());
        rule.build()
    }

    /// The recurrence again, then the products of its gates' gradients with weights and with states.
    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let (gradients, operands) = inputs.split_at(self.results());
        let forward = self.of.work(operands, gradients);
        let mut work = Work::memory(inputs, outputs, 0.0).with_flops(3.0 * forward.flops);
        work.bytes += 2.0 * forward.bytes;
        work
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let invalid = |e: OpError| EvalError::Invalid(e.to_string());
        Self::check(&self.of).map_err(invalid)?;
        let (gradients, operands) = self.split(inputs).map_err(invalid)?;
        let numbers = Numbers::new(&self.of, operands)?;
        let [_, batch, n] = numbers.extents;
        let gradients: Vec<Vec<f64>> = gradients.iter().map(|t| t.to_f64s()).collect();
        let mut sums =
            Sums { weights: vec![0.0; numbers.weights.len()], extra: vec![0.0; numbers.extra.len()] };
        let mut dx = vec![0.0; numbers.x.len()];
        let (mut initial, mut initial_cell) = (Vec::new(), Vec::new());
        for sequence in 0..batch {
            let own = |i: usize| {
                let g = gradients.get(i).map_or(&[][..], |g| g);
                g.get(sequence * n..(sequence + 1) * n).unwrap_or_default().to_vec()
            };
            let mut state = numbers.initial(sequence);
            let mut passed = Vec::new();
            for at in numbers.steps(&self.of, sequence)? {
                passed.push((at, state.clone()));
                self.of.step(numbers.gates(&self.of, at), &numbers, &mut state);
            }
            let mut gradient = State { hidden: own(1), cell: own(2) };
            for (at, before) in passed.iter().rev() {
                let of_output = &gradients[0][at * n..(at + 1) * n];
                gradient.hidden.iter_mut().zip(of_output).for_each(|(sum, g)| *sum += g);
                let x = numbers.gates(&self.of, *at);
                let of_x = self.back(x, &numbers, before, &mut gradient, &mut sums);
                dx[at * of_x.len()..][..of_x.len()].copy_from_slice(&of_x);
            }
            initial.extend(gradient.hidden);
            initial_cell.extend(gradient.cell);
        }
        let mut results = vec![dx, sums.weights, initial];
        results.extend(self.of.cell.has_cell_state().then_some(initial_cell));
        results.push(sums.extra);
        let like = inputs[0].ty();
        let of_operands = operands[..self.differentiated()].iter().zip(&results);
        of_operands.map(|(t, d)| floats(like, t.shape(), d)).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
