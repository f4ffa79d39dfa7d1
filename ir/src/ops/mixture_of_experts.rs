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
use super::mixture_of_experts_grad::MixtureOfExpertsGrad;
use super::{Build, OpDef, Vjp, Work, WorkKind, expect_inputs, factors, same_dtype};
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
pub(super) const ROUTED: usize = 3;

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

    pub(super) fn extents_of(&self, inputs: &[TensorType]) -> Result<Extents, OpError> {
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
        let dims = Dims::new(&mut rule, tokens, &extents, [FactorKind::Parallel; 2]);
        for operand in dims.operands(self) {
            rule.input(operand);
        }
        rule.output(dims.of_token(dims.o));
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
        let routed = Routed::new(self, inputs)?;
        let mut shape = inputs[0].shape().to_vec();
        shape.pop();
        shape.push(routed.extents.result);
        let ty = TensorType::new(inputs[0].dtype(), shape);
        let mut out = vec![0.0; Tensor::zeros(ty.clone())?.len()];
        let [inner, result] = [routed.extents.inner, routed.extents.result].map(|n| n as usize);
        routed.for_each_choice(|c| {
            let hidden: Vec<f64> =
                (0..inner).map(|f| self.f.apply(&routed.projected(&c, f))).collect();
            for (o, out) in out[c.token * result..][..result].iter_mut().enumerate() {
                let terms = hidden.iter().enumerate();
                let sum: f64 = terms.map(|(f, y)| y * routed.down(routed.down_at(&c, f, o))).sum();
                *out += c.weight * sum;
            }
        })?;
        Ok(vec![Tensor::from_f64(ty, |i| out[i])?])
    }

    /// The gradient of the router's weights does not depend on them.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        MixtureOfExpertsGrad::check(self)?;
        let experts = (ROUTED..v.inputs.len()).any(|i| v.wants(i));
        let mut inputs = [&[v.gradient()?], &v.inputs[..]].concat();
        if !experts && !v.wants(0) {
            inputs[3] = v.zeros(v.ty(v.inputs[2]))?;
        }
        let op = MixtureOfExpertsGrad { layer: self.clone(), experts };
        let results = v.push_multi(op, &inputs)?;
        let weights = v.cast(results[1], v.ty(inputs[3]).dtype)?;
        let mut gradients = vec![Some(results[0]), None, Some(weights)];
        gradients.extend(results[2..].iter().copied().map(Some));
        gradients.resize(v.inputs.len(), None);
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::MixtureOfExperts(self.clone())
    }
}

/// What the dimensions of a layer and of its gradient mean.
pub(super) struct Dims {
    tokens: Vec<Option<FactorId>>,
    pub h: Option<FactorId>,
    pub k: Option<FactorId>,
    e: Option<FactorId>,
    f: Option<FactorId>,
    pub o: Option<FactorId>,
}

impl Dims {
    /// Adds the factors; the kinds are those of tokens and of the elements of results.
    pub fn new(
        rule: &mut RuleBuilder,
        tokens: &[u64],
        extents: &Extents,
        [of_tokens, of_results]: [FactorKind; 2],
    ) -> Self {
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let mut factor = |name, n, kind| Some(rule.factor(name, n, kind));
        let tokens = tokens.iter().zip(factors::DIMS);
        Self {
            tokens: tokens.map(|(&n, name)| factor(name, n, of_tokens)).collect(),
            h: factor("h", extents.width, FactorKind::Whole),
            k: factor("k", extents.choices, FactorKind::Whole),
            e: factor("e", extents.experts, sum),
            f: factor("f", extents.inner, sum),
            o: factor("o", extents.result, of_results),
        }
    }

    /// The dimensions of a tensor that has this last dimension for each token.
    pub fn of_token(&self, last: Option<FactorId>) -> Vec<Option<FactorId>> {
        self.tokens.iter().copied().chain([last]).collect()
    }

    /// The dimensions of a layer's operands.
    pub fn operands(&self, layer: &MixtureOfExperts) -> Vec<Vec<Option<FactorId>>> {
        let &Self { h, k, e, f, o, .. } = self;
        let first = match (layer.fused, layer.trans_in) {
            (false, false) => vec![e, h, f],
            (false, true) => vec![e, f, h],
            (true, false) => vec![e, h, None, f],
            (true, true) => vec![e, None, f, h],
        };
        let mut operands = vec![self.of_token(h), self.of_token(k), self.of_token(k)];
        operands.resize(layer.down(), first);
        operands.push(if layer.trans_out { vec![e, o, f] } else { vec![e, f, o] });
        operands
    }
}

/// A layer's operands as numbers, for reference evaluations.
pub(super) struct Routed<'a> {
    pub extents: Extents,
    layer: &'a MixtureOfExperts,
    x: Vec<f64>,
    indices: &'a Tensor,
    weights: &'a Tensor,
    /// The operands that hold the experts' matrices, `down` last.
    matrices: Vec<Vec<f64>>,
}

/// One choice of one token.
pub(super) struct Choice {
    /// Its number, through all tokens.
    pub number: usize,
    pub token: usize,
    pub expert: usize,
    pub weight: f64,
}

impl<'a> Routed<'a> {
    /// Of the layer's operands.
    pub fn new(layer: &'a MixtureOfExperts, inputs: &[&'a Tensor]) -> Result<Self, EvalError> {
        let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
        let invalid = |e: OpError| EvalError::Invalid(e.to_string());
        layer.infer(&types, &[]).map_err(invalid)?;
        Ok(Self {
            extents: layer.extents_of(&types).map_err(invalid)?,
            layer,
            x: inputs[0].to_f64s(),
            indices: inputs[1],
            weights: inputs[2],
            matrices: inputs[ROUTED..].iter().map(|t| t.to_f64s()).collect(),
        })
    }

    /// Visits all choices of all tokens.
    pub fn for_each_choice(&self, mut visit: impl FnMut(Choice)) -> Result<(), EvalError> {
        for number in 0..self.indices.len() {
            visit(Choice {
                number,
                token: number / self.extents.choices as usize,
                expert: index(self.indices.int_at(number), self.extents.experts)?,
                weight: self.weights.f64_at(number),
            });
        }
        Ok(())
    }

    /// A token's elements.
    pub fn token(&self, token: usize) -> &[f64] {
        let width = self.extents.width as usize;
        &self.x[token * width..][..width]
    }

    /// Which matrix, and where in it, multiplies element `h` of a token to make element `f` of its gate (side 0)
    /// or, if there is one, up projection (side 1).
    pub fn first_at(&self, c: &Choice, side: usize, h: usize, f: usize) -> (usize, usize) {
        let [width, inner] = [self.extents.width, self.extents.inner].map(|n| n as usize);
        let (matrix, sides, side) =
            if self.layer.fused { (0, 2, side) } else { (side, 1, 0) };
        let within = if self.layer.trans_in {
            (side * inner + f) * width + h
        } else {
            (h * sides + side) * inner + f
        };
        (matrix, c.expert * sides * inner * width + within)
    }

    /// An element of the matrices in front of the function.
    pub fn first(&self, (matrix, at): (usize, usize)) -> f64 {
        self.matrices[matrix][at]
    }

    /// Where in `down` the element is that takes `f` to `o`.
    pub fn down_at(&self, c: &Choice, f: usize, o: usize) -> usize {
        let [inner, result] = [self.extents.inner, self.extents.result].map(|n| n as usize);
        let within = if self.layer.trans_out { o * inner + f } else { f * result + o };
        c.expert * inner * result + within
    }

    /// An element of `down`.
    pub fn down(&self, at: usize) -> f64 {
        self.matrices[self.matrices.len() - 1][at]
    }

    /// What the function takes to make element `f`.
    pub fn projected(&self, c: &Choice, f: usize) -> Vec<f64> {
        let x = self.token(c.token).iter().enumerate();
        (0..self.layer.f.arity())
            .map(|side| x.clone().map(|(h, x)| x * self.first(self.first_at(c, side, h, f))).sum())
            .collect()
    }
}
