//! Joining tensors along a dimension.
//!
//! - **ONNX**: Concat (since 4).
//! - **Semantics**: the inputs one after another along `axis`.
//! - **Split**: the joined dimension stays whole, all others are parallel. Linear in all inputs
//!   together.

use super::decode::{Decoder, DecoderEntry};
use super::lanes::{Lanes, pick};
use super::{Build, OpDef, Vjp, Work, factors, same_dtype};
use crate::graph::{TensorType, ValueId};
use crate::program::Kernel;
use crate::sharding::FactorRule;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A concatenation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concat {
    /// The dimension.
    pub axis: usize,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Concat", 4, decode)];

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let inputs = d.all_inputs()?;
    let axis = d.int("axis")?.ok_or(OpError::MissingAttribute { name: "axis" })?;
    let axis = d.ty(d.input(0)?).axis(axis)?;
    if let [single] = inputs[..] {
        return Ok(vec![single]);
    }
    Ok(vec![d.push(Concat { axis }, &inputs)?])
}

impl Concat {
    fn joined<'a>(&self, shapes: impl Iterator<Item = &'a [u64]>) -> Option<Vec<u64>> {
        let mut joined: Option<Vec<u64>> = None;
        for shape in shapes {
            match &mut joined {
                None => joined = Some(shape.to_vec()),
                Some(all) => {
                    if all.len() != shape.len() {
                        return None;
                    }
                    for (i, (n, &m)) in all.iter_mut().zip(shape).enumerate() {
                        if i == self.axis {
                            *n = n.checked_add(m)?;
                        } else if *n != m {
                            return None;
                        }
                    }
                }
            }
        }
        joined.filter(|shape| self.axis < shape.len())
    }
}

impl OpDef for Concat {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let Some((first, rest)) = inputs.split_first() else {
            return Err(OpError::InputCount { expected: "1 or more".into(), found: 0 });
        };
        first.dim(self.axis)?;
        for other in rest {
            same_dtype(first, other)?;
            if self.joined([first, other].into_iter().map(|t| &t.shape[..])).is_none() {
                return Err(OpError::ShapeMismatch {
                    lhs: first.shape.clone(),
                    rhs: other.shape.clone(),
                    why: "joined tensors agree in all extents but that of the axis",
                });
            }
        }
        let shape = self
            .joined(inputs.iter().map(|t| &t.shape[..]))
            .ok_or_else(|| OpError::Invalid("the joined extent overflows".into()))?;
        Ok(vec![TensorType::new(first.dtype, shape)])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let mut rule = factors::along(inputs, outputs, &[self.axis]);
        if outputs[0].dtype.is_float() {
            rule.linear((0..inputs.len()).collect::<Vec<_>>());
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        Work::memory(inputs, outputs, 0.0)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let shape = self
            .joined(inputs.iter().map(|t| t.shape()))
            .ok_or_else(|| EvalError::Invalid("shapes cannot be joined".into()))?;
        let out = Lanes::new(&shape, self.axis);
        // For each index along the axis, the input that holds it and the index there.
        let sources: Vec<(usize, usize)> = inputs
            .iter()
            .enumerate()
            .flat_map(|(s, t)| (0..t.shape()[self.axis] as usize).map(move |k| (s, k)))
            .collect();
        let joined = pick(inputs, &shape, |i| {
            let (outer, k, inner) =
                (i / out.inner / out.n, i / out.inner % out.n, i % out.inner);
            let (source, k) = sources[k];
            let n = inputs[source].shape()[self.axis] as usize;
            (source, (outer * n + k) * out.inner + inner)
        })?;
        Ok(vec![joined])
    }

    /// To each input its part.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        let g = v.gradient()?;
        let (mut gradients, mut start) = (Vec::with_capacity(v.inputs.len()), 0);
        for i in 0..v.inputs.len() {
            let end = start + v.shape(v.inputs[i])[self.axis];
            let part = v.wants(i).then(|| v.slice(g, self.axis, start, end)).transpose()?;
            gradients.push(part);
            start = end;
        }
        Ok(gradients)
    }

    fn lower(&self) -> Kernel {
        Kernel::Concat { axis: self.axis }
    }
}
