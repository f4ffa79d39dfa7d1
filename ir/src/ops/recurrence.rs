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
use super::{OpDef, Work, expect_inputs};
use crate::graph::TensorType;
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
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

    const fn has_cell_state(&self) -> bool {
        matches!(self, Self::Lstm { .. })
    }

    /// The shapes of what the cell takes.
    fn operands(&self, batch: u64, hidden: u64) -> Vec<Vec<u64>> {
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
    fn activations(&self) -> Vec<&Activation> {
        match self {
            Self::Rnn { f } => vec![f],
            Self::Gru { f, g, .. } => vec![f, g],
            Self::Lstm { f, g, h, .. } => vec![f, g, h],
        }
    }
}

/// The state of one sequence.
struct State {
    hidden: Vec<f64>,
    cell: Vec<f64>,
}

/// The operands as numbers.
struct Numbers {
    weights: Vec<f64>,
    /// A GRU's recurrent bias or an LSTM's peepholes.
    extra: Vec<f64>,
}

impl Recurrence {
    fn activate(&self, f: &Activation, x: f64) -> f64 {
        let clip = f64::from(self.clip);
        // Not `clamp`, which panics on a NaN.
        f.apply(x.max(-clip).min(clip))
    }

    /// The recurrent products of gates `gates` with a vector of the state's length.
    fn products(weights: &[f64], state: &[f64], gates: std::ops::Range<usize>) -> Vec<f64> {
        let n = state.len();
        let rows = weights[gates.start * n * n..gates.end * n * n].chunks_exact(n);
        rows.map(|row| row.iter().zip(state).map(|(w, h)| w * h).sum()).collect()
    }

    /// One step: the projected inputs of a sequence's gates change its state.
    fn step(&self, x: &[f64], numbers: &Numbers, state: &mut State) {
        let n = state.hidden.len();
        let Numbers { weights, extra } = numbers;
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
        // Where an operand has the batch: behind the steps, or in front of the state.
        let dims = |ty: &TensorType| match ty.rank() {
            3 => vec![None, Some(b), None],
            2 => vec![Some(b), None],
            _ => vec![Some(b)],
        };
        let taken = self.cell.operands(0, 0);
        for (i, ty) in inputs.iter().enumerate() {
            let weights = i == 1 || taken.get(i.wrapping_sub(3)).is_some_and(|s| s.len() == 1);
            rule.input(if weights { vec![None; ty.rank()] } else { dims(ty) });
        }
        for ty in outputs {
            rule.output(dims(ty));
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
        let (&[steps, batch, _], &[_, hidden]) = (inputs[0].shape(), inputs[2].shape()) else {
            return Err(EvalError::Invalid("operands do not fit the recurrence".into()));
        };
        let (x, initial) = (inputs[0].to_f64s(), inputs[2].to_f64s());
        let mut taken = inputs[3..].iter();
        let mut next = |there: bool| {
            taken.by_ref().take(usize::from(there)).flat_map(|t| t.to_f64s()).collect::<Vec<_>>()
        };
        let initial_cell = next(self.cell.has_cell_state());
        let extra = next(self.cell.operands(0, 0).last().is_some_and(|shape| shape.len() == 1));
        let lengths = taken.next();
        let numbers = Numbers { weights: inputs[1].to_f64s(), extra };

        let ty = TensorType::new(inputs[0].dtype(), [steps, batch, hidden]);
        let mut states = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        let (mut last, mut last_cell) = (Vec::new(), Vec::new());
        let (n, width) = (hidden as usize, (hidden * self.cell.gates()) as usize);
        for b in 0..batch as usize {
            let own = |v: &[f64]| v.get(b * n..(b + 1) * n).map_or_else(Vec::new, <[_]>::to_vec);
            let mut state = State { hidden: own(&initial), cell: own(&initial_cell) };
            let length = lengths.map_or(i128::from(steps), |t| t.int_at(b));
            if !(0..=i128::from(steps)).contains(&length) {
                let why = format!("a sequence of length {length} in {steps} steps");
                return Err(EvalError::Invalid(why));
            }
            for step in 0..length as usize {
                let t = if self.reverse { length as usize - 1 - step } else { step };
                let at = t * batch as usize + b;
                self.step(&x[at * width..(at + 1) * width], &numbers, &mut state);
                states[at * n..(at + 1) * n].copy_from_slice(&state.hidden);
            }
            last.extend(state.hidden);
            last_cell.extend(state.cell);
        }
        let end = TensorType::new(ty.dtype, [batch, hidden]);
        let mut outputs =
            vec![Tensor::from_f64(ty, |i| states[i])?, Tensor::from_f64(end.clone(), |i| last[i])?];
        if self.cell.has_cell_state() {
            outputs.push(Tensor::from_f64(end, |i| last_cell[i])?);
        }
        Ok(outputs)
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
