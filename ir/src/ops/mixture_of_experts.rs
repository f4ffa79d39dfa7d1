//! A layer of experts: each token is processed by the few that a router chose for it.
//!
//! - **ONNX**: none; the planner raises to this op what exporters wrote as gathers of weights, as products of
//!   all tokens with all experts, as one-hot dispatch, or as a chain of operators an expert.
//! - **Semantics**: `out[t] = Σ_j weights[t, j] · (f(x[t] · gate[e], x[t] · up[e]) · down[e])` with `e =
//!   indices[t, j]`. Inputs: x `[tokens.., h]`, indices `[tokens.., k]`, weights `[tokens.., k]` of any type of
//!   floats, then of the experts gate `[e, h, f]`, unless the function takes one operand, up `[e, h, f]`, and
//!   down `[e, f, o]`. Gate and up may be one operand, `[e, h, 2, f]`, and matrices may be stored transposed.
//!   Negative indices count from the back. Only the sum is rounded to the element type of x.
//! - **Split**: tokens and `o` are parallel. Experts and `f` are summed over: a rank that holds some of the
//!   experts, or some of what is between their layers, contributes its part of the sum. `h` stays whole, since
//!   the function stands behind its sum. Linear in the weights.

use super::lanes::index;
use super::{OpDef, Vjp, Work, WorkKind, expect_inputs, factors, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::ops::work::traffic;
use crate::program::Kernel;
use crate::scalar::ScalarFn;
use crate::sharding::{FactorId, FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A layer of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixtureOfExperts {
    /// How many experts the router chooses from: how many of its choices fall on those at hand follows.
    pub experts: u64,
    /// What stands between the layers, a function of `gate` and `up`, or of `up` alone.
    pub f: ScalarFn,
    /// `gate` and `up` are one operand.
    pub fused: bool,
    /// `gate` and `up` are stored `[e, f, h]` (`[e, 2, f, h]`).
    pub trans_in: bool,
    /// `down` is stored `[e, o, f]`.
    pub trans_out: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[super::DecoderEntry] = &[];

/// Number of operands in front of the experts' weights.
const ROUTED: usize = 3;

/// Extents of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Tokens, all of their dimensions together.
    pub tokens: u64,
    /// Experts that each token goes to.
    pub choices: u64,
    /// Experts whose weights are at hand.
    pub experts: u64,
    /// Elements of a token.
    pub width: u64,
    /// Elements between the layers.
    pub inner: u64,
    /// Elements of a result.
    pub result: u64,
}

impl MixtureOfExperts {
    /// Whether the function takes a gate.
    pub const fn is_gated(&self) -> bool {
        self.f.arity() == 2
    }

    /// Number of operands in front of `down`.
    fn down(&self) -> usize {
        ROUTED + if self.is_gated() && !self.fused { 2 } else { 1 }
    }

    /// The extents that the operands' extents agree on.
    ///
    /// # Errors
    /// If they do not.
    pub fn extents(&self, inputs: &[&[u64]]) -> Result<Extents, OpError> {
        let mismatch = |lhs: &[u64], rhs: &[u64], why| OpError::ShapeMismatch {
            lhs: lhs.to_vec(),
            rhs: rhs.to_vec(),
            why,
        };
        if inputs.len() != self.down() + 1 {
            let expected = (self.down() + 1).to_string();
            return Err(OpError::InputCount { expected, found: inputs.len() });
        }
        let (x, indices) = (inputs[0], inputs[1]);
        let rank = |index: usize, expected: &str| OpError::Rank {
            index,
            found: inputs[index].len(),
            expected: expected.into(),
        };
        let (&width, tokens) = x.split_last().ok_or_else(|| rank(0, "1 or more"))?;
        let (&choices, rows) = indices.split_last().ok_or_else(|| rank(1, "1 or more"))?;
        if tokens != rows {
            return Err(mismatch(x, indices, "each token has its choices"));
        }
        if indices != inputs[2] {
            return Err(mismatch(indices, inputs[2], "each choice has a weight"));
        }
        let &[experts, a, b] = inputs[self.down()] else { return Err(rank(self.down(), "3")) };
        let (inner, result) = if self.trans_out { (b, a) } else { (a, b) };
        let expected = match (self.fused, self.trans_in) {
            (false, false) => vec![experts, width, inner],
            (false, true) => vec![experts, inner, width],
            (true, false) => vec![experts, width, 2, inner],
            (true, true) => vec![experts, 2, inner, width],
        };
        for &found in &inputs[ROUTED..self.down()] {
            if found != expected {
                return Err(mismatch(&expected, found, "the experts' layers follow each other"));
            }
        }
        let tokens = elements(tokens);
        Ok(Extents { tokens, choices, experts, width, inner, result })
    }

    fn extents_of(&self, inputs: &[TensorType]) -> Result<Extents, OpError> {
        self.extents(&inputs.iter().map(|t| &t.shape[..]).collect::<Vec<_>>())
    }
}

impl OpDef for MixtureOfExperts {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, self.down() + 1)?;
        let e = self.extents_of(inputs)?;
        let dtype = inputs[0].dtype;
        inputs[ROUTED..].iter().try_for_each(|t| same_dtype(&inputs[0], t).map(|_| ()))?;
        if let Some(t) = [0, 2].map(|i| &inputs[i]).into_iter().find(|t| !t.dtype.is_float()) {
            return Err(OpError::UnsupportedType { found: t.dtype });
        }
        if !inputs[1].dtype.is_int() {
            return Err(OpError::UnsupportedType { found: inputs[1].dtype });
        }
        let invalid = |why: String| Err(OpError::Invalid(why));
        if !self.f.accepts(dtype) || self.f.output(dtype) != dtype || self.f.arity() > 2 {
            return invalid(format!("{:?} does not stand between layers", self.f));
        }
        if self.fused && !self.is_gated() {
            return invalid(format!("there is no gate for {:?}", self.f));
        }
        if e.experts > self.experts {
            return invalid(format!("has weights of {} of {} experts", e.experts, self.experts));
        }
        let mut shape = inputs[0].shape.clone();
        shape.pop();
        shape.push(e.result);
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let Ok(extents) = self.extents_of(inputs) else {
            let ranks: Vec<usize> = inputs.iter().map(TensorType::rank).collect();
            return FactorRule::opaque(&ranks, &ranks[..1], "its extents do not fit");
        };
        let mut rule = RuleBuilder::new();
        let tokens = &inputs[0].shape[..inputs[0].rank() - 1];
        let tokens: Vec<Option<FactorId>> =
            factors::dims(&mut rule, tokens, |_| false).into_iter().map(Some).collect();
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let h = Some(rule.factor("h", extents.width, FactorKind::Whole));
        let k = Some(rule.factor("k", extents.choices, FactorKind::Whole));
        let e = Some(rule.factor("e", extents.experts, sum));
        let f = Some(rule.factor("f", extents.inner, sum));
        let o = Some(rule.factor("o", extents.result, FactorKind::Parallel));
        let of_token = |last| tokens.iter().copied().chain([last]).collect::<Vec<_>>();
        rule.input(of_token(h));
        rule.input(of_token(k));
        rule.input(of_token(k));
        for _ in ROUTED..self.down() {
            rule.input(match (self.fused, self.trans_in) {
                (false, false) => vec![e, h, f],
                (false, true) => vec![e, f, h],
                (true, false) => vec![e, h, None, f],
                (true, true) => vec![e, None, f, h],
            });
        }
        rule.input(if self.trans_out { [e, o, f] } else { [e, f, o] });
        rule.output(of_token(o));
        rule.linear([2]);
        rule.build()
    }

    /// As if the router chose all experts equally often.
    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let bytes = traffic(inputs, outputs);
        let Ok(e) = self.extents_of(inputs) else {
            return Work { kind: WorkKind::Memory, flops: 0.0, bytes };
        };
        let share = e.experts as f64 / self.experts.max(1) as f64;
        let rows = e.tokens as f64 * e.choices as f64 * share;
        let projections = if self.is_gated() { 2.0 } else { 1.0 };
        let per_row = e.inner as f64 * (projections * e.width as f64 + e.result as f64);
        // Both layers as one product of each expert that gets a token with its share of the tokens.
        let busy = (e.experts as f64).min(rows.ceil()).max(1.0);
        let kind = WorkKind::Matmul {
            batch: busy as u64,
            m: (rows / busy).ceil() as u64,
            n: (per_row / e.width.max(1) as f64).ceil() as u64,
            k: e.width,
        };
        // Experts that get no token are not read.
        let of_experts = traffic(&inputs[ROUTED..], &[]);
        let unread = of_experts * (1.0 - (busy / e.experts.max(1) as f64).min(1.0));
        Work { kind, flops: 2.0 * rows * per_row, bytes: bytes - unread }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let invalid = |e: OpError| EvalError::Invalid(e.to_string());
        let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
        let ty = self.infer(&types, &[]).map_err(invalid)?.remove(0);
        let e = self.extents_of(&types).map_err(invalid)?;
        let [choices, width, inner, result] =
            [e.choices, e.width, e.inner, e.result].map(|n| n as usize);
        let x = inputs[0].to_f64s();
        let layers: Vec<Vec<f64>> = inputs[ROUTED..].iter().map(|t| t.to_f64s()).collect();
        let (down, first) = (&layers[layers.len() - 1], &layers[0]);
        // What an expert's gate (0) or, if there is one, up projection (1) makes of a token.
        let project = |side: usize, expert: usize, token: &[f64], f: usize| -> f64 {
            let (from, block, per_expert) = match (self.fused, side) {
                (true, _) => (first, side, 2 * inner * width),
                (false, side) => (&layers[side], 0, inner * width),
            };
            let at = |h: usize| match (self.fused, self.trans_in) {
                (_, true) => (block * inner + f) * width + h,
                (false, false) => h * inner + f,
                (true, false) => (2 * h + block) * inner + f,
            };
            let weights = &from[expert * per_expert..][..per_expert];
            token.iter().enumerate().map(|(h, x)| x * weights[at(h)]).sum()
        };
        let mut out = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        for (i, choice) in (0..inputs[1].len()).map(|i| (i, inputs[1].int_at(i))) {
            let expert = index(choice, e.experts)?;
            let (token, weight) = (i / choices, inputs[2].f64_at(i));
            let x = &x[token * width..][..width];
            let hidden: Vec<f64> = (0..inner)
                .map(|f| {
                    let sides = (0..self.f.arity()).map(|side| project(side, expert, x, f));
                    self.f.apply(&sides.collect::<Vec<_>>())
                })
                .collect();
            let down = &down[expert * inner * result..][..inner * result];
            for (o, out) in out[token * result..][..result].iter_mut().enumerate() {
                let at = |f: usize| if self.trans_out { o * inner + f } else { f * result + o };
                *out += weight * hidden.iter().enumerate().map(|(f, y)| y * down[at(f)]).sum::<f64>();
            }
        }
        Ok(vec![Tensor::from_f64(ty, |i| out[i])?])
    }

    fn vjp(&self, _: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let why = "a layer of experts has no gradient in planc; the operators that were raised to it may";
        Err(OpError::NotDifferentiable { why: why.into() })
    }

    fn lower(&self) -> Kernel {
        Kernel::MixtureOfExperts(self.clone())
    }
}
