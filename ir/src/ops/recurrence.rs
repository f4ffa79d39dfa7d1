//! One layer of a recurrent network in one direction, its input projection apart.
//!
//! - **ONNX**: RNN, GRU and LSTM are made of it in [`recurrent`](super::recurrent).
//! - **Semantics**: from the initial state on, each step adds the recurrent product `state · rᵀ` to
//!   the step's projected input, and the cell makes of these gates the next state, which is the
//!   step's output. With `reverse` the last step comes first. A sequence shorter than the batch's
//!   longest gives 0 beyond its end.
//! - **Split**: the batch is parallel. Steps depend on each other and gates on the whole state, so
//!   those dimensions stay whole; the input projection outside splits as a product.

use super::decode::DecoderEntry;
use super::recurrence_grad::RecurrenceGrad;
use super::{Build, OpDef, Vjp, Work, expect_inputs};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorId, FactorKind, FactorRule, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A recurrence. Inputs: projected inputs `[T, B, G · H]`, recurrent weights `[G · H, H]`, initial
/// state `[B, H]`, what the cell takes, and the sequences' lengths `[B]` if they are there.
/// Outputs: all states `[T, B, H]`, the last one `[B, H]`, and the last cell state of an LSTM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recurrence {
    /// What makes states of gates.
    pub cell: Cell,
    /// The last step comes first.
    pub reverse: bool,
    /// The last input has the sequences' lengths.
    pub lengths: bool,
    /// What activations take is clipped to plus or minus this.
    #[serde(with = "crate::number")]
    pub clip: f32,
}

/// What makes states of gates. Gates lie in ONNX's order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// One gate, which is the next state.
    Rnn {
        /// Of the gate.
        f: Activation,
    },
    /// Gates `z r h`: `z · state + (1 - z) · h`.
    Gru {
        /// Of `z` and `r`.
        f: Activation,
        /// Of `h`.
        g: Activation,
        /// `r` applies to the recurrent product and its bias, rather than to the state before it.
        /// The cell takes the recurrent bias `[3 · H]`.
        linear_before_reset: bool,
    },
    /// Gates `i o f c` and a cell state: `cell = f · cell + i · c`, `state = o · h(cell)`. The cell
    /// takes the initial cell state `[B, H]`.
    Lstm {
        /// Of `i`, `o` and `f`.
        f: Activation,
        /// Of `c`.
        g: Activation,
        /// Of the cell state.
        h: Activation,
        /// `f` is `1 - i`.
        coupled: bool,
        /// The cell takes weights `[3 · H]`, by which the cell state enters `i`, `o` and `f`.
        peepholes: bool,
    },
}

/// `outer · f(inner · x) + offset`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activation {
    /// The function.
    pub f: ScalarFn,
    /// Scale of what it takes.
    #[serde(with = "crate::number")]
    pub inner: f32,
    /// Scale of what it gives.
    #[serde(with = "crate::number")]
    pub outer: f32,
    /// Added to that.
    #[serde(with = "crate::number")]
    pub offset: f32,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl Activation {
    /// A function by itself.
    pub const fn new(f: ScalarFn) -> Self {
        Self { f, inner: 1.0, outer: 1.0, offset: 0.0 }
    }

    /// The derivative, if that of the function is known.
    pub(super) fn slope(&self, x: f64) -> Option<f64> {
        let inner = f64::from(self.inner);
        let [slope, _] = self.f.derivatives(&[inner * x])?;
        Some(f64::from(self.outer) * inner * slope)
    }

    fn apply(&self, x: f64) -> f64 {
        let y = self.f.apply(&[f64::from(self.inner) * x]);
        f64::from(self.outer) * y + f64::from(self.offset)
    }
}

impl Cell {
    /// Number of gates.
    pub const fn gates(&self) -> u64 {
        match self {
            Self::Rnn { .. } => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    pub(super) const fn has_cell_state(&self) -> bool {
        matches!(self, Self::Lstm { .. })
    }

    /// The shapes of what the cell takes.
    pub(super) fn operands(&self, batch: u64, hidden: u64) -> Vec<Vec<u64>> {
        match self {
            Self::Gru { linear_before_reset: true, .. } => vec![vec![hidden.saturating_mul(3)]],
            Self::Lstm { peepholes, .. } => {
                let peepholes = peepholes.then(|| vec![hidden.saturating_mul(3)]);
                std::iter::once(vec![batch, hidden]).chain(peepholes).collect()
            }
            _ => vec![],
        }
    }

    /// The activations.
    pub(super) fn activations(&self) -> Vec<&Activation> {
        match self {
            Self::Rnn { f } => vec![f],
            Self::Gru { f, g, .. } => vec![f, g],
            Self::Lstm { f, g, h, .. } => vec![f, g, h],
        }
    }
}

/// The state of one sequence.
#[derive(Clone)]
pub(super) struct State {
    pub hidden: Vec<f64>,
    /// Empty unless the cell has a state of its own.
    pub cell: Vec<f64>,
}

/// The operands as numbers, for reference evaluations.
pub(super) struct Numbers<'a> {
    /// Projected inputs, recurrent weights and initial states.
    pub x: Vec<f64>,
    pub weights: Vec<f64>,
    initial: State,
    /// A GRU's recurrent bias or an LSTM's peepholes.
    pub extra: Vec<f64>,
    lengths: Option<&'a Tensor>,
    /// Steps, batch, and elements of a state.
    pub extents: [usize; 3],
}

impl<'a> Numbers<'a> {
    /// Of the recurrence's operands.
    pub fn new(op: &Recurrence, inputs: &[&'a Tensor]) -> Result<Self, EvalError> {
        let (&[steps, batch, _], &[_, hidden]) = (inputs[0].shape(), inputs[2].shape()) else {
            return Err(EvalError::Invalid("operands do not fit the recurrence".into()));
        };
        let mut taken = inputs[3..].iter().copied();
        let mut next = |there: bool| {
            taken.by_ref().take(usize::from(there)).flat_map(Tensor::to_f64s).collect::<Vec<_>>()
        };
        let cell = next(op.cell.has_cell_state());
        let extra = next(op.cell.operands(0, 0).last().is_some_and(|shape| shape.len() == 1));
        Ok(Self {
            x: inputs[0].to_f64s(),
            weights: inputs[1].to_f64s(),
            initial: State { hidden: inputs[2].to_f64s(), cell },
            extra,
            lengths: taken.next(),
            extents: [steps, batch, hidden].map(|n| n as usize),
        })
    }

    /// The state that a sequence begins with.
    pub fn initial(&self, sequence: usize) -> State {
        let n = self.extents[2];
        let own = |v: &[f64]| v.get(sequence * n..(sequence + 1) * n).unwrap_or_default().to_vec();
        State { hidden: own(&self.initial.hidden), cell: own(&self.initial.cell) }
    }

    /// Where the steps of a sequence lie among those of all, in the order in which they come.
    pub fn steps(
        &self,
        op: &Recurrence,
        sequence: usize,
    ) -> Result<impl DoubleEndedIterator<Item = usize> + use<>, EvalError> {
        let [steps, batch, _] = self.extents;
        let length = self.lengths.map_or(steps as i128, |t| t.int_at(sequence));
        if !(0..=steps as i128).contains(&length) {
            let why = format!("a sequence of length {length} in {steps} steps");
            return Err(EvalError::Invalid(why));
        }
        let (length, reverse) = (length as usize, op.reverse);
        let time = move |step| if reverse { length - 1 - step } else { step };
        Ok((0..length).map(move |step| time(step) * batch + sequence))
    }

    /// The projected inputs of a step.
    pub fn gates(&self, op: &Recurrence, at: usize) -> &[f64] {
        let width = self.extents[2] * op.cell.gates() as usize;
        &self.x[at * width..(at + 1) * width]
    }
}

impl Recurrence {
    pub(super) fn activate(&self, f: &Activation, x: f64) -> f64 {
        let clip = f64::from(self.clip);
        // Not `clamp`, which panics on a NaN.
        f.apply(x.max(-clip).min(clip))
    }

    /// The recurrent products of gates `gates` with a vector of the state's length.
    pub(super) fn products(weights: &[f64], state: &[f64], gates: std::ops::Range<usize>) -> Vec<f64> {
        let n = state.len();
        let rows = weights[gates.start * n * n..gates.end * n * n].chunks_exact(n);
        rows.map(|row| row.iter().zip(state).map(|(w, h)| w * h).sum()).collect()
    }

    /// The dimensions of operand `index`; weights have no batch.
    pub(super) fn operand_dims(
        &self,
        index: usize,
        ty: &TensorType,
        b: FactorId,
    ) -> Vec<Option<FactorId>> {
        let taken = self.cell.operands(0, 0);
        let weights = index == 1 || taken.get(index.wrapping_sub(3)).is_some_and(|s| s.len() == 1);
        if weights { vec![None; ty.rank()] } else { batch_dims(ty, b) }
    }

    /// One step: the projected inputs of a sequence's gates change its state.
    pub(super) fn step(&self, x: &[f64], numbers: &Numbers<'_>, state: &mut State) {
        let n = state.hidden.len();
        let Numbers { weights, extra, .. } = numbers;
        match &self.cell {
            Cell::Rnn { f } => {
                let r = Self::products(weights, &state.hidden, 0..1);
                state.hidden = (0..n).map(|i| self.activate(f, x[i] + r[i])).collect();
            }
            Cell::Gru { f, g, linear_before_reset } => {
                let r = Self::products(weights, &state.hidden, 0..2);
                let bias = |i: usize| if *linear_before_reset { extra[i] } else { 0.0 };
                let gates: Vec<f64> =
                    (0..2 * n).map(|i| self.activate(f, x[i] + r[i] + bias(i))).collect();
                let (update, reset) = gates.split_at(n);
                let recurrent: Vec<f64> = if *linear_before_reset {
                    let r = Self::products(weights, &state.hidden, 2..3);
                    (0..n).map(|i| reset[i] * (r[i] + extra[2 * n + i])).collect()
                } else {
                    let kept: Vec<f64> = (0..n).map(|i| reset[i] * state.hidden[i]).collect();
                    Self::products(weights, &kept, 2..3)
                };
                for i in 0..n {
                    let new = self.activate(g, x[2 * n + i] + recurrent[i]);
                    state.hidden[i] = update[i] * state.hidden[i] + (1.0 - update[i]) * new;
                }
            }
            Cell::Lstm { f, g, h, coupled, peepholes } => {
                let r = Self::products(weights, &state.hidden, 0..4);
                let peephole = |k: usize, i: usize, cell: f64| {
                    if *peepholes { extra[k * n + i] * cell } else { 0.0 }
                };
                for i in 0..n {
                    let before = state.cell[i];
                    let gate = |k: usize| x[k * n + i] + r[k * n + i];
                    let input = self.activate(f, gate(0) + peephole(0, i, before));
                    let forget = if *coupled {
                        1.0 - input
                    } else {
                        self.activate(f, gate(2) + peephole(2, i, before))
                    };
                    let cell = forget * before + input * self.activate(g, gate(3));
                    let output = self.activate(f, gate(1) + peephole(1, i, cell));
                    state.cell[i] = cell;
                    state.hidden[i] = output * self.activate(h, cell);
                }
            }
        }
    }
}

/// Where an operand or result has the batch: behind the steps, or in front of the state.
pub(super) fn batch_dims(ty: &TensorType, b: FactorId) -> Vec<Option<FactorId>> {
    match ty.rank() {
        3 => vec![None, Some(b), None],
        2 => vec![Some(b), None],
        _ => vec![Some(b)],
    }
}

impl OpDef for Recurrence {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let taken = self.cell.operands(0, 0).len();
        expect_inputs(inputs, 3 + taken + usize::from(self.lengths))?;
        let (x, state) = (&inputs[0], &inputs[2]);
        let (&[steps, batch, _], &[_, hidden]) = (&x.shape[..], &state.shape[..]) else {
            return Err(OpError::Rank { index: 0, found: x.rank(), expected: "3".into() });
        };
        if !x.dtype.is_float() {
            return Err(OpError::UnsupportedType { found: x.dtype });
        }
        let gates = hidden.checked_mul(self.cell.gates()).filter(|&n| n > 0);
        let gates = gates.ok_or_else(|| OpError::Invalid(format!("has a state of {hidden}")))?;
        let mut expected =
            vec![vec![steps, batch, gates], vec![gates, hidden], vec![batch, hidden]];
        expected.extend(self.cell.operands(batch, hidden));
        for (ty, shape) in inputs.iter().zip(&expected) {
            super::same_dtype(x, ty)?;
            if ty.shape != *shape {
                return Err(OpError::ShapeMismatch {
                    lhs: ty.shape.clone(),
                    rhs: shape.clone(),
                    why: "operands of a recurrence fit its batch and state",
                });
            }
        }
        if let Some(lengths) = inputs.get(expected.len()) {
            if !lengths.dtype.is_int() {
                return Err(OpError::UnsupportedType { found: lengths.dtype });
            }
            if lengths.shape != [batch] {
                return Err(OpError::ShapeMismatch {
                    lhs: lengths.shape.clone(),
                    rhs: vec![batch],
                    why: "each sequence has one length",
                });
            }
        }
        if let Some(a) = self.cell.activations().iter().find(|a| a.f.arity() != 1) {
            return Err(OpError::Invalid(format!("{:?} is no activation", a.f)));
        }
        let last = TensorType::new(x.dtype, [batch, hidden]);
        let mut outputs = vec![TensorType::new(x.dtype, [steps, batch, hidden]), last.clone()];
        outputs.extend(self.cell.has_cell_state().then_some(last));
        Ok(outputs)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let b = rule.factor("b", inputs[0].shape[1], FactorKind::Parallel);
        for (i, ty) in inputs.iter().enumerate() {
            rule.input(self.operand_dims(i, ty, b));
        }
        for ty in outputs {
            rule.output(batch_dims(ty, b));
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let products = inputs[0].elements() as f64 * inputs[2].shape[1] as f64;
        let steps = inputs[0].shape[0] as f64;
        let mut work = Work::memory(inputs, outputs, 0.0).with_flops(2.0 * products);
        // Each step reads the weights again.
        work.bytes += (steps - 1.0).max(0.0) * inputs[1].bytes() as f64;
        work
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let numbers = Numbers::new(self, inputs)?;
        let [steps, batch, n] = numbers.extents;
        let ty = TensorType::new(inputs[0].dtype(), [steps, batch, n].map(|n| n as u64));
        let mut states = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        let (mut last, mut last_cell) = (Vec::new(), Vec::new());
        for sequence in 0..batch {
            let mut state = numbers.initial(sequence);
            for at in numbers.steps(self, sequence)? {
                self.step(numbers.gates(self, at), &numbers, &mut state);
                states[at * n..(at + 1) * n].copy_from_slice(&state.hidden);
            }
            last.extend(state.hidden);
            last_cell.extend(state.cell);
        }
        let end = TensorType::new(ty.dtype, &ty.shape[1..]);
        let mut outputs =
            vec![Tensor::from_f64(ty, |i| states[i])?, Tensor::from_f64(end.clone(), |i| last[i])?];
        if self.cell.has_cell_state() {
            outputs.push(Tensor::from_f64(end, |i| last_cell[i])?);
        }
        Ok(outputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        RecurrenceGrad::check(self)?;
        let mut inputs = Vec::new();
        for (i, gradient) in v.gradients.clone().into_iter().enumerate() {
            inputs.push(match gradient {
                Some(g) => g,
                None => v.zeros(v.ty(v.outputs[i]))?,
            });
        }
        inputs.extend_from_slice(&v.inputs);
        let results = v.push_multi(RecurrenceGrad { of: self.clone() }, &inputs)?;
        let mut gradients: Vec<Option<ValueId>> = results.into_iter().map(Some).collect();
        gradients.resize(v.inputs.len(), None);
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_sequences_end_early_and_turn_around_their_own_end() {
        let f = Activation::new(ScalarFn::Identity);
        let sums = |reverse| {
            let op = Recurrence {
                cell: Cell::Rnn { f: f.clone() },
                reverse,
                lengths: true,
                clip: f32::INFINITY,
            };
            let x = Tensor::new([3, 2, 1], vec![1f32, 10.0, 2.0, 20.0, 4.0, 40.0]).unwrap();
            let r = Tensor::new([1, 1], vec![1f32]).unwrap();
            let state = Tensor::new([2, 1], vec![0f32, 100.0]).unwrap();
            let out = op.eval(&[&x, &r, &state, &Tensor::vector(vec![3i32, 2])]).unwrap();
            (out[0].to_f64s(), out[1].to_f64s())
        };
        assert_eq!(sums(false), (vec![1.0, 110.0, 3.0, 130.0, 7.0, 0.0], vec![7.0, 130.0]));
        assert_eq!(sums(true), (vec![7.0, 130.0, 6.0, 120.0, 4.0, 0.0], vec![7.0, 130.0]));
    }

    #[test]
    fn what_activations_take_is_clipped() {
        let cell = Cell::Rnn { f: Activation { outer: 2.0, ..Activation::new(ScalarFn::Identity) } };
        let op = Recurrence { cell, reverse: false, lengths: false, clip: 3.0 };
        let x = Tensor::new([1, 2, 1], vec![5f32, -1.0]).unwrap();
        let zero = |shape: [u64; 2]| Tensor::zeros(TensorType::new(x.dtype(), shape)).unwrap();
        let out = op.eval(&[&x, &zero([1, 1]), &zero([2, 1])]).unwrap();
        assert_eq!(out[1].to_f64s(), [6.0, -2.0]);
    }
}
