//! Loops.
//!
//! - **ONNX**: Loop (since 1).
//! - **Semantics**: runs a body until the trip count is reached or the condition turns false. The
//!   body takes the iteration's number, the condition, the carried values, and what it reads from
//!   outside; it returns the condition, the carried values, and one slice of each scan output.
//!   Inputs: trip count and condition if they are there, the initial carried values, the outside.
//! - **Split**: opaque. How often the body runs is known only when it has run.
//!
//! A carried value keeps its type from one iteration to the next, and so every iteration has the types
//! that the body was checked with; or the body takes it as a value of open extents.

use super::decode::{Decoder, DecoderEntry};
use super::if_op::{body, opaque};
use super::work::body_work;
use super::{OpDef, Work};
use crate::graph::{Extents, Graph, TensorType, Value, ValueId};
use crate::interp::{MAX_ITERATIONS, evaluate_within};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::tensor::{Element, MAX_TENSOR_BYTES};
use crate::weights::InMemory;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loop {
    /// What runs in each iteration.
    pub body: Arc<Graph>,
    /// The first input is the trip count.
    pub has_trip_count: bool,
    /// The next input is the condition before the first iteration.
    pub has_condition: bool,
    /// Number of carried values.
    pub carried: usize,
    /// How often the body runs, where that is known at import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
}

/// So many bytes of values whose extents may change count as one more iteration: where they grow, each
/// iteration does more than the one before.
const BYTES_AN_ITERATION: u64 = 4 << 10;

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("Loop", 1, decode_loop), DecoderEntry::onnx("Scan", 8, decode_scan)];

/// The importer reads a Scan as a Loop.
fn decode_scan(_: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    Err(OpError::MissingAttribute { name: "body" })
}

fn decode_loop(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let body = body(d, "body")?;
    let own = d.inputs.len().saturating_sub(d.captured);
    let mut op = Loop {
        has_trip_count: d.optional(0).is_some(),
        has_condition: d.optional(1).is_some(),
        carried: own.saturating_sub(2),
        iterations: None,
        body,
    };
    op.iterations = op.known_iterations(d);
    let inputs = d.inputs.iter().enumerate().skip(2).map(|(i, _)| d.input(i));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let head = [d.optional(0), d.optional(1)].into_iter().flatten();
    let inputs: Vec<ValueId> = head.chain(inputs).collect();
    d.graph.push(d.name, op.into(), &inputs, &[])
}

impl Loop {
    /// The trip count, if it is known and the condition never turns false.
    fn known_iterations(&self, d: &Decoder<'_>) -> Option<u64> {
        let starts = match d.optional(1) {
            None => true,
            Some(v) => *d.graph.constant_of(v)?.slice::<bool>()?.first()?,
        };
        if !starts {
            return Some(0);
        }
        let &condition = self.body.outputs.first()?;
        let always = self.body.inputs.get(1) == Some(&condition)
            || self.body.constant_of(condition)?.slice::<bool>()?.first() == Some(&true);
        let count = *d.graph.constant_of(d.optional(0)?)?.slice::<i64>()?.first()?;
        always.then_some(count.max(0) as u64)
    }

    /// The body's output values that are carried, and those that are scanned.
    fn results(&self) -> (Vec<&Value>, Vec<&Value>) {
        let all: Vec<&Value> =
            self.body.outputs.iter().skip(1).map(|&v| self.body.value(v)).collect();
        let scanned = all[self.carried.min(all.len())..].to_vec();
        let carried = all[..self.carried.min(all.len())].to_vec();
        (carried, scanned)
    }

    /// Whether the extents of each output are known: those of a scan output need the number of
    /// iterations.
    pub fn extents(&self) -> Vec<Extents> {
        let (carried, scanned) = self.results();
        let scan = |v: &Value| match self.iterations {
            Some(_) => v.extents,
            None => Extents::Dynamic,
        };
        let before = self.body.inputs.iter().skip(2).map(|&v| self.body.value(v).extents);
        before.take(carried.len()).chain(scanned.into_iter().map(scan)).collect()
    }

    /// Bytes of the carried values whose extents may change.
    fn open_bytes(&self, carried: &[Tensor]) -> u64 {
        let inputs = self.body.inputs.iter().skip(2).map(|&v| self.body.value(v).extents);
        let open = carried.iter().zip(inputs).filter(|(_, e)| *e == Extents::Dynamic);
        open.fold(0, |sum, (t, _)| sum.saturating_add(t.ty().bytes()))
    }

    /// Evaluates, taking from the budget of iterations.
    pub(crate) fn eval_within(
        &self,
        inputs: &[&Tensor],
        iterations: &mut u64,
    ) -> Result<Vec<Tensor>, EvalError> {
        let malformed = || EvalError::Invalid("operands do not fit the loop".into());
        let mut rest = inputs.iter().copied();
        let limit = if self.has_trip_count {
            first::<i64>(rest.next()).ok_or_else(malformed)?.max(0) as u64
        } else {
            u64::MAX
        };
        let mut running =
            !self.has_condition || first::<bool>(rest.next()).ok_or_else(malformed)?;
        let mut carried: Vec<Tensor> = rest.by_ref().take(self.carried).cloned().collect();
        let outside: Vec<&Tensor> = rest.collect();
        let slices = self.results().1.len();
        let mut scanned: Vec<Vec<Tensor>> = vec![Vec::new(); slices];
        let mut stacked_bytes = 0u64;
        let mut i = 0;
        while running && i < limit {
            let cost = 1 + self.open_bytes(&carried) / BYTES_AN_ITERATION;
            *iterations = iterations
                .checked_sub(cost)
                .ok_or(EvalError::TooLong { iterations: limit, limit: MAX_ITERATIONS })?;
            let number = Tensor::scalar(i as i64);
            let condition = Tensor::scalar(running);
            let operands: Vec<&Tensor> = [&number, &condition]
                .into_iter()
                .chain(&carried)
                .chain(outside.iter().copied())
                .collect();
            let results = evaluate_within(&self.body, &operands, &InMemory, iterations).map_err(
                |e| EvalError::Invalid(format!("in iteration {i} of `{}`: {e}", self.body.name)),
            )?;
            let mut results = results.into_iter();
            running = first::<bool>(results.next().as_ref()).ok_or_else(malformed)?;
            carried = results.by_ref().take(self.carried).collect();
            for (slices, slice) in scanned.iter_mut().zip(results) {
                stacked_bytes = stacked_bytes.saturating_add(slice.ty().bytes());
                slices.push(slice);
            }
            if stacked_bytes > MAX_TENSOR_BYTES {
                let limit_bytes = MAX_TENSOR_BYTES;
                return Err(EvalError::TooLarge { bytes: stacked_bytes, limit_bytes });
            }
            i += 1;
        }
        let stacked = scanned.iter().zip(self.results().1).map(|(s, v)| stack(s, &v.ty));
        let stacked = stacked.collect::<Result<Vec<_>, _>>()?;
        Ok(carried.into_iter().chain(stacked).collect())
    }
}

fn first<T: Element>(t: Option<&Tensor>) -> Option<T> {
    t?.slice::<T>()?.first().copied()
}

/// Joins slices along a new first dimension.
fn stack(slices: &[Tensor], ty: &TensorType) -> Result<Tensor, EvalError> {
    let inner = slices.first().map_or(ty, Tensor::ty);
    if slices.iter().any(|s| s.ty() != inner) {
        return Err(EvalError::Invalid("slices of a scan output differ in their shapes".into()));
    }
    let shape = [&[slices.len() as u64][..], &inner.shape].concat();
    let bytes: Vec<u8> = slices.iter().flat_map(Tensor::to_bytes).collect();
    Tensor::from_bytes(TensorType::new(inner.dtype, shape), &bytes)
}

impl OpDef for Loop {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let head = usize::from(self.has_trip_count) + usize::from(self.has_condition);
        let body = &self.body;
        let too_few = inputs.len() < head + self.carried;
        if too_few || inputs.len() + 2 != body.inputs.len() + head {
            let expected = (body.inputs.len() + head).saturating_sub(2).to_string();
            return Err(OpError::InputCount { expected, found: inputs.len() });
        }
        let expected = [(self.has_trip_count, DType::I64), (self.has_condition, DType::Bool)];
        let expected = expected.into_iter().filter_map(|(there, dtype)| there.then_some(dtype));
        for (t, dtype) in inputs.iter().zip(expected) {
            if t.dtype != dtype || t.elements() != 1 {
                let why = format!("trip count or condition is {t}, not one {dtype}");
                return Err(OpError::Invalid(why));
            }
        }
        if body.outputs.len() < 1 + self.carried {
            return Err(OpError::Invalid(format!(
                "the body has {} outputs, too few for a condition and {} carried values",
                body.outputs.len(),
                self.carried
            )));
        }
        let (carried, scanned) = self.results();
        let mut types = Vec::with_capacity(body.outputs.len());
        for (i, value) in carried.iter().enumerate() {
            let (before, taken) = (&inputs[head + i], body.value(body.inputs[2 + i]));
            for dtype in [taken.ty.dtype, value.ty.dtype] {
                if dtype != before.dtype {
                    return Err(OpError::TypeMismatch { lhs: before.dtype, rhs: dtype });
                }
            }
            if taken.extents == Extents::Dynamic {
                types.push(TensorType::new(before.dtype, []));
                continue;
            }
            if value.ty != *before || value.extents == Extents::Dynamic {
                return Err(OpError::Invalid(format!(
                    "carried value {i} is {before} before an iteration and {} after it",
                    value.ty
                )));
            }
            types.push(before.clone());
        }
        let scan = |v: &&Value| match (self.iterations, v.extents) {
            (Some(n), Extents::Static) => {
                TensorType::new(v.ty.dtype, [&[n][..], &v.ty.shape].concat())
            }
            _ => TensorType::new(v.ty.dtype, []),
        };
        types.extend(scanned.iter().map(scan));
        Ok(types)
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        opaque(inputs, outputs, "how often the body runs is decided at run time")
    }

    fn work(&self, _: &[TensorType], _: &[TensorType]) -> Work {
        let (once, times) = (body_work(&self.body), self.iterations.unwrap_or(1) as f64);
        Work { kind: once.kind, flops: once.flops * times, bytes: once.bytes * times }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        self.eval_within(inputs, &mut { MAX_ITERATIONS })
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
