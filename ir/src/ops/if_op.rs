//! Conditional execution.
//!
//! - **ONNX**: If (since 1). A condition that is known at import is decided there: only the branch
//!   taken is read, in place. What remains is decided at run time.
//! - **Semantics**: evaluates one of two bodies. Inputs are the condition, then what the branches
//!   read from outside: first the inputs of the `then` body, then those of the `else` body.
//! - **Split**: opaque. Which body runs is known to nobody before it does.

use super::decode::{Attribute, Decoder, DecoderEntry};
use super::work::body_work;
use super::{OpDef, Work};
use crate::graph::{Extents, Graph, TensorType, ValueId};
use crate::interp::{MAX_ITERATIONS, evaluate_within};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::weights::InMemory;
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A choice between two bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct If {
    /// Runs where the condition is true.
    pub then_branch: Arc<Graph>,
    /// Runs where it is false.
    pub else_branch: Arc<Graph>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] =
    &[DecoderEntry::onnx("If", 1, decode_if)];

fn decode_if(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let op = If { then_branch: body(d, "then_branch")?, else_branch: body(d, "else_branch")? };
    let inputs = d.all_inputs()?;
    d.graph.push(d.name, op.into(), &inputs, &[])
}

/// The body in attribute `name`.
pub(super) fn body(d: &Decoder<'_>, name: &'static str) -> Result<Arc<Graph>, OpError> {
    match d.attribute(name) {
        Some(Attribute::Graph(body)) => Ok(body.clone()),
        Some(_) => Err(OpError::BadAttribute { name, why: "expected a graph".into() }),
        None => Err(OpError::MissingAttribute { name }),
    }
}

impl If {
    /// The types of output `i` in both branches.
    fn pairs(&self) -> impl Iterator<Item = [&crate::Value; 2]> {
        let (t, e) = (&self.then_branch, &self.else_branch);
        t.outputs.iter().zip(&e.outputs).map(|(&a, &b)| [t.value(a), e.value(b)])
    }

    /// Whether each output has the same extents whichever branch runs.
    pub fn extents(&self) -> Vec<Extents> {
        let same = |[a, b]: [&crate::Value; 2]| {
            a.ty == b.ty && a.extents == Extents::Static && b.extents == Extents::Static
        };
        self.pairs().map(|p| if same(p) { Extents::Static } else { Extents::Dynamic }).collect()
    }

    /// Evaluates, with what is left of the budget of loop iterations.
    pub(crate) fn eval_within(
        &self,
        inputs: &[&Tensor],
        iterations: &mut u64,
    ) -> Result<Vec<Tensor>, EvalError> {
        let condition = inputs.first().and_then(|t| t.slice::<bool>()).and_then(|b| b.first());
        let Some(&condition) = condition else {
            return Err(EvalError::Invalid("the condition is not a bool".into()));
        };
        let split = (1 + self.then_branch.inputs.len()).min(inputs.len());
        let (body, captured) = if condition {
            (&self.then_branch, &inputs[1..split])
        } else {
            (&self.else_branch, &inputs[split..])
        };
        evaluate_within(body, captured, &InMemory, iterations)
            .map_err(|e| EvalError::Invalid(format!("in the branch `{}`: {e}", body.name)))
    }
}

impl OpDef for If {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let (t, e) = (&self.then_branch, &self.else_branch);
        let expected = 1 + t.inputs.len() + e.inputs.len();
        if inputs.len() != expected {
            return Err(OpError::InputCount {
                expected: expected.to_string(),
                found: inputs.len(),
            });
        }
        if inputs[0].dtype != DType::Bool || inputs[0].elements() != 1 {
            return Err(OpError::Invalid(format!("the condition is {}, not one bool", inputs[0])));
        }
        if t.outputs.len() != e.outputs.len() {
            return Err(OpError::Invalid(format!(
                "the branches have {} and {} outputs; both must have as many as the node",
                t.outputs.len(),
                e.outputs.len()
            )));
        }
        self.pairs()
            .zip(self.extents())
            .map(|([a, b], extents)| match extents {
                _ if a.ty.dtype != b.ty.dtype => {
                    Err(OpError::TypeMismatch { lhs: a.ty.dtype, rhs: b.ty.dtype })
                }
                Extents::Static => Ok(a.ty.clone()),
                Extents::Dynamic => Ok(TensorType::new(a.ty.dtype, [])),
            })
            .collect()
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        opaque(inputs, outputs, "which branch runs is decided at run time")
    }

    fn work(&self, _: &[TensorType], _: &[TensorType]) -> Work {
        let (t, e) = (body_work(&self.then_branch), body_work(&self.else_branch));
        if t.flops.max(t.bytes) >= e.flops.max(e.bytes) { t } else { e }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        self.eval_within(inputs, &mut { MAX_ITERATIONS })
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}

/// An opaque rule for operands of these types.
pub(super) fn opaque(inputs: &[TensorType], outputs: &[TensorType], why: &str) -> FactorRule {
    let ranks = |types: &[TensorType]| types.iter().map(TensorType::rank).collect::<Vec<_>>();
    FactorRule::opaque(&ranks(inputs), &ranks(outputs), why)
}
