//! Linear attention: a state that keys and values are written to and queries read, step by step.
//!
//! - **ONNX**: LinearAttention (since 27).
//! - **Semantics**: for each head, with the state `S` a matrix of keys and values, at each step: `S ←
//!   decay · S` if there is a decay; `v ← β (v - Sᵀk)` if there is an update rate; `S ← S + k ⊗ v`;
//!   and for each query of the head `y = Sᵀq`.
//! - **Split**: samples, heads and the elements of a value are parallel; the elements of a key, the
//!   queries of a head and the steps stay whole.

use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use super::lanes::floats;
use super::linear_recurrence_grad::LinearRecurrenceGrad;
use super::{Build, OpDef, Vjp, Work, expect_inputs, heads, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::scalar::ScalarFn as F;
use crate::sharding::{FactorKind, FactorRule, RuleBuilder};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A linear recurrence. Inputs, with `g` the queries of a head: queries `[b, h, g, t, k]`, keys
/// `[b, h, t, k]`, values `[b, h, t, v]`, state `[b, h, k, v]`, decay `[b, h, t, k]` if there is one,
/// rate `[b, h, t]` if there is one. Outputs: what is read `[b, h, g, t, v]`, and the last state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearRecurrence {
    /// Whether the state decays.
    pub decays: bool,
    /// Whether values are corrected by what the state holds already.
    pub corrects: bool,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("LinearAttention", 27, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let (decays, corrects) = match d.string_or("update_rule", "gated_delta")?.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => {
            let why = format!("expected linear, gated, delta or gated_delta, found {other:?}");
            return Err(OpError::BadAttribute { name: "update_rule", why });
        }
    };
    let op = LinearRecurrence { decays, corrects };
    let (query_heads, heads) = (heads::count(d, "q_num_heads")?, heads::count(d, "kv_num_heads")?);
    if query_heads % heads != 0 {
        let why = format!("{query_heads} query heads are no multiple of {heads} key heads");
        return Err(OpError::BadAttribute { name: "q_num_heads", why });
    }
    let dtype = d.ty(d.input(0)?).dtype;
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };

    let queries = apart(d, 0, query_heads, wide)?;
    let (keys, values) = (apart(d, 1, heads, wide)?, apart(d, 2, heads, wide)?);
    let (qs, ks, vs) = (d.shape(queries), d.shape(keys), d.shape(values));
    let (batch, steps, key, value) = (ks[0], ks[2], ks[3], vs[3]);
    let queries = d.reshape(queries, [batch, heads, query_heads / heads, steps, qs[3]])?;
    let scale = match d.float_or("scale", 0.0)? {
        0.0 => 1.0 / (key as f64).sqrt(),
        scale => f64::from(scale),
    };
    let queries = d.scale(queries, scale)?;
    let shape = [batch, heads, key, value];
    let (state, state_type) = match d.optional(3) {
        Some(state) => (d.cast(state, wide)?, d.ty(state).dtype),
        None => (d.push(Fill { dtype: wide, shape: shape.to_vec(), value: 0.0 }, &[])?, dtype),
    };
    let mut inputs = vec![queries, keys, values, state];
    if decays {
        let decay = apart(d, 4, heads, wide)?;
        let decay = d.map(F::Exp, &[decay])?;
        inputs.push(d.expand(decay, [batch, heads, steps, key])?);
    }
    if corrects {
        let of_each_head = d.shape(d.input(5)?).last() == Some(&heads);
        let rate = apart(d, 5, if of_each_head { heads } else { 1 }, wide)?;
        let rate = d.expand(rate, [batch, heads, steps, 1])?;
        inputs.push(d.reshape(rate, [batch, heads, steps])?);
    }
    let results = d.push_multi(op, &inputs)?;
    let y = d.reshape(results[0], [batch, query_heads, steps, value])?;
    let y = heads::joined(d, y)?;
    Ok(vec![d.cast(y, dtype)?, d.cast(results[1], state_type)?])
}

/// Input `index`, `[batch, steps, heads · elements]`, as `[batch, heads, steps, elements]`.
fn apart(
    d: &mut Decoder<'_>,
    index: usize,
    heads: u64,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let x = d.cast(d.input(index)?, dtype)?;
    heads::apart(d, x, heads)
}

/// Extents of a recurrence.
struct Extents {
    batch: u64,
    heads: u64,
    group: u64,
    steps: u64,
    key: u64,
    value: u64,
}

impl LinearRecurrence {
    /// The extents that the inputs have, all of which must agree.
    fn extents(&self, inputs: &[TensorType]) -> Result<Extents, OpError> {
        expect_inputs(inputs, 4 + usize::from(self.decays) + usize::from(self.corrects))?;
        let ([batch, heads, group, steps, key], [_, _, _, value]) =
            (&inputs[0].shape[..], &inputs[2].shape[..])
        else {
            let found = inputs[0].rank();
            return Err(OpError::Rank { index: 0, found, expected: "5, values 4".into() });
        };
        let (&batch, &heads, &steps, &key, &value) = (batch, heads, steps, key, value);
        let e = Extents { batch, heads, group: *group, steps, key, value };
        let mut expected = vec![
            vec![batch, heads, steps, key],
            vec![batch, heads, steps, value],
            vec![batch, heads, key, value],
        ];
        expected.extend(self.decays.then(|| vec![batch, heads, steps, key]));
        expected.extend(self.corrects.then(|| vec![batch, heads, steps]));
        for (found, expected) in inputs[1..].iter().zip(expected) {
            same_dtype(&inputs[0], found)?;
            if found.shape != expected {
                let why = "operands of a linear recurrence agree in their extents";
                return Err(OpError::ShapeMismatch { lhs: expected, rhs: found.shape.clone(), why });
            }
        }
        Ok(e)
    }
}

impl OpDef for LinearRecurrence {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let e = self.extents(inputs)?;
        let dtype = inputs[0].dtype;
        if !dtype.is_float() {
            return Err(OpError::UnsupportedType { found: dtype });
        }
        let read = TensorType::new(dtype, [e.batch, e.heads, e.group, e.steps, e.value]);
        Ok(vec![read, TensorType::new(dtype, [e.batch, e.heads, e.key, e.value])])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let (q, state) = (&inputs[0].shape, &outputs[1].shape);
        let mut rule = RuleBuilder::new();
        let b = rule.factor("b", q[0], FactorKind::Parallel);
        let h = rule.factor("h", q[1], FactorKind::Parallel);
        let v = rule.factor("v", state[3], FactorKind::Parallel);
        let mut input = |last: &[Option<_>]| rule.input([&[Some(b), Some(h)], last].concat());
        input(&[None, None, None]);
        input(&[None, None]);
        input(&[None, Some(v)]);
        input(&[None, Some(v)]);
        if self.decays {
            input(&[None, None]);
        }
        if self.corrects {
            input(&[None]);
        }
        rule.output([Some(b), Some(h), None, None, Some(v)]);
        rule.output([Some(b), Some(h), None, Some(v)]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let (q, state) = (&inputs[0].shape, &outputs[1]);
        let per_element = 3.0 + 2.0 * q[2] as f64 + if self.corrects { 2.0 } else { 0.0 };
        let mut work = Work::memory(inputs, outputs, 0.0);
        work.flops = per_element * q[3] as f64 * state.elements() as f64;
        work
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
        let e = self.extents(&types).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let [group, steps, key, value] = [e.group, e.steps, e.key, e.value].map(|n| n as usize);
        let operands: Vec<Vec<f64>> = inputs.iter().map(|t| t.to_f64s()).collect();
        let (q, k, v) = (&operands[0], &operands[1], &operands[2]);
        let mut state = operands[3].clone();
        let mut y = Tensor::zeros(TensorType::new(
            types[0].dtype,
            [e.batch, e.heads, e.group, e.steps, e.value],
        ))?
        .to_f64s();
        for head in 0..(e.batch * e.heads) as usize {
            let s = &mut state[head * key * value..][..key * value];
            for t in head * steps..(head + 1) * steps {
                let (k, mut v) = (&k[t * key..][..key], v[t * value..][..value].to_vec());
                if self.decays {
                    let decay = &operands[4][t * key..][..key];
                    s.iter_mut().enumerate().for_each(|(i, s)| *s *= decay[i / value]);
                }
                if self.corrects {
                    let rate = operands[inputs.len() - 1][t];
                    for (j, v) in v.iter_mut().enumerate() {
                        *v = rate * (*v - read(s, k, value, j));
                    }
                }
                s.iter_mut().enumerate().for_each(|(i, s)| *s += k[i / value] * v[i % value]);
                for g in 0..group {
                    let at = (head * group + g) * steps + t % steps;
                    let q = &q[at * key..][..key];
                    (0..value).for_each(|j| y[at * value + j] = read(s, q, value, j));
                }
            }
        }
        let like = &types[0];
        let shape = [e.batch, e.heads, e.group, e.steps, e.value];
        Ok(vec![floats(like, &shape, &y)?, floats(like, inputs[3].shape(), &state)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let mut operands = v.inputs.clone();
        for (gradient, &result) in v.gradients.clone().into_iter().zip(&v.outputs.clone()) {
            operands.push(match gradient {
                Some(g) => g,
                None => v.zeros(v.ty(result))?,
            });
        }
        let gradients = v.push_multi(LinearRecurrenceGrad { of: self.clone() }, &operands)?;
        let wanted = gradients.into_iter().enumerate();
        Ok(wanted.map(|(i, g)| v.wants(i).then_some(g)).collect())
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

/// Element `j` of what a key or query reads from a state.
pub(super) fn read(state: &[f64], key: &[f64], value: usize, j: usize) -> f64 {
    key.iter().enumerate().map(|(i, k)| k * state[i * value + j]).sum()
}
