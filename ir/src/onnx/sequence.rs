//! Sequences: lists of tensors, which dissolve while the model is imported.
//!
//! What is known one by one is kept as a list, and the operators on it pick from the list. A loop
//! may grow a sequence by one tensor in each iteration; then it is those tensors stacked.

use super::build::{Importer, Named};
use super::call::Call;
use super::error::ImportError;
use super::functions::Item;
use crate::Tensor;
use crate::graph::{TensorType, ValueId};
use crate::ops::DecoderEntry;
use crate::ops::decode::Attribute;
use std::rc::Rc;

/// Tensors that the file holds in one value.
#[derive(Clone, Debug)]
pub(super) enum Sequence {
    /// Each is known.
    List(Vec<Named>),
    /// The slices of a tensor along its first dimension.
    Stack(Named),
    /// What a loop carries, in its body: what it was before the iteration, and these.
    Growing {
        /// The body, by its place in the stack of graphs.
        graph: usize,
        /// Which carried value of the loop it is.
        slot: usize,
        appended: Vec<Named>,
    },
}

impl Sequence {
    pub(super) fn is_empty_list(&self) -> bool {
        matches!(self, Self::List(list) if list.is_empty())
    }

    /// The one tensor by which the carried value in this slot grows.
    pub(super) fn grows(&self, slot: usize) -> Option<ValueId> {
        match self {
            Self::Growing { graph, slot: own, appended } if *own == slot => match appended[..] {
                [Named::Value { graph: there, id }] if there == *graph => Some(id),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Whether a node makes or takes sequences.
pub(super) fn is_about_sequences(item: &Item<'_>) -> bool {
    let name = item.node.op_type();
    let converts = ["SplitToSequence", "ConcatFromSequence"].contains(&name);
    item.domain().is_empty() && (converts || name.starts_with("Sequence"))
}

/// How many tensors a sequence may have.
const MAX_LENGTH: i64 = 10_000;

type Results = Result<Option<Vec<Named>>, ImportError>;

impl Importer<'_> {
    /// The outputs of a node that makes or takes sequences; `None`, and noted, if it is unsupported.
    pub(super) fn sequence(
        &mut self,
        item: &Item<'_>,
        entry: &'static DecoderEntry,
        operands: &[Option<Named>],
    ) -> Results {
        let given = operands.iter().flatten().count();
        let (sequence, others) = match operands.split_first() {
            Some((Some(Named::Sequence(s)), others)) => (Some(Rc::clone(s)), others),
            _ => (None, operands),
        };
        let list = |list| Ok(Some(vec![Named::Sequence(Rc::new(Sequence::List(list)))]));
        let why = match (entry.name, sequence.as_deref()) {
            ("SequenceEmpty", None) => return list(Vec::new()),
            ("SequenceConstruct", None) => {
                return list(operands.iter().flatten().cloned().collect());
            }
            ("SplitToSequence", None) => return self.split(item, operands),
            ("SequenceLength", Some(Sequence::List(known))) => {
                let length = self.constant(item, Tensor::scalar(known.len() as i64));
                return Ok(Some(vec![self.local(length)]));
            }
            ("SequenceAt", Some(Sequence::List(known))) => {
                match self.position(others.first(), known.len()) {
                    Some(i) if i < known.len() => return Ok(Some(vec![known[i].clone()])),
                    Some(_) => "its position is outside of the sequence",
                    None => "its position is only known at run time",
                }
            }
            ("SequenceInsert", Some(Sequence::List(known))) => {
                let at = match others.get(1) {
                    None | Some(None) => Some(known.len()),
                    position => self.position(position, known.len()),
                };
                match (at, others.first()) {
                    (Some(at), Some(Some(tensor))) if at <= known.len() => {
                        let mut known = known.clone();
                        known.insert(at, tensor.clone());
                        return list(known);
                    }
                    _ => "its position is only known at run time, or outside of the sequence",
                }
            }
            ("SequenceErase", Some(Sequence::List(known))) => {
                let at = match others.first() {
                    None | Some(None) => known.len().checked_sub(1),
                    position => self.position(position, known.len()),
                };
                match at {
                    Some(at) if at < known.len() => {
                        let mut known = known.clone();
                        known.remove(at);
                        return list(known);
                    }
                    _ => "its position is only known at run time, or outside of the sequence",
                }
            }
            ("ConcatFromSequence", Some(Sequence::List(known))) if !known.is_empty() => {
                return self.join(item, known);
            }
            ("SequenceInsert", Some(Sequence::Growing { graph, slot, appended })) if given == 2 => {
                let Some(tensor) = others.first().and_then(Option::as_ref) else { return Ok(None) };
                let mut appended = appended.clone();
                // A value of an enclosing graph is captured, so that the body gives it.
                let Some(id) = self.tensor(tensor) else { return Ok(None) };
                appended.push(self.local(id));
                let grown = Sequence::Growing { graph: *graph, slot: *slot, appended };
                return Ok(Some(vec![Named::Sequence(Rc::new(grown))]));
            }
            ("SequenceAt", Some(Sequence::Stack(stack))) => {
                let position = others.first().and_then(Option::as_ref);
                let inputs = [self.tensor(stack), position.and_then(|p| self.tensor(p))];
                return match inputs {
                    [Some(stack), Some(position)] => {
                        let value = self.stand_in(item, "Gather", &[stack, position], &[])?;
                        Ok(value.map(|v| vec![self.local(v)]))
                    }
                    _ => Ok(None),
                };
            }
            ("SequenceLength", Some(Sequence::Stack(stack))) => {
                let Some(stack) = self.tensor(stack) else { return Ok(None) };
                let Some(shape) = self.stand_in(item, "Shape", &[stack], &[])? else {
                    return Ok(None);
                };
                let first = self.constant(item, Tensor::scalar(0i64));
                let length = self.stand_in(item, "Gather", &[shape, first], &[])?;
                return Ok(length.map(|v| vec![self.local(v)]));
            }
            ("ConcatFromSequence", Some(Sequence::Stack(stack))) => {
                let Some(stack) = self.tensor(stack) else { return Ok(None) };
                let Some(attributes) = self.attributes(item)? else { return Ok(None) };
                let inputs = vec![Some(stack)];
                let call = Call { entry, inputs, captured: 0, attributes, outputs: 1 };
                let values = self.call(item, &call)?;
                return Ok(values.map(|values| values.into_iter().map(|v| self.local(v)).collect()));
            }
            _ => "the tensors of the sequence are not known one by one",
        };
        self.note_use(item, why.into());
        Ok(None)
    }

    /// A known position in a sequence of this length; negative ones count from the back.
    fn position(&mut self, operand: Option<&Option<Named>>, length: usize) -> Option<usize> {
        let v = self.tensor(operand?.as_ref()?)?;
        let position =
            self.graph().constant_of(v).filter(|t| t.len() == 1 && t.dtype().is_int())?;
        let at = i64::try_from(position.int_at(0)).ok()?;
        let from_back = if at < 0 { length as i64 } else { 0 };
        usize::try_from(at.checked_add(from_back)?).ok()
    }

    /// SplitToSequence: pieces of one extent, or of the extents that are listed.
    fn split(&mut self, item: &Item<'_>, operands: &[Option<Named>]) -> Results {
        let Some(inputs) = self.tensors(item, operands) else { return Ok(None) };
        let Some(attributes) = self.attributes(item)? else { return Ok(None) };
        let int = |name, default| match attributes.get(name) {
            Some(Attribute::Int(n)) => *n,
            _ => default,
        };
        let (axis, keeps) = (int("axis", 0), int("keepdims", 1) != 0);
        let Some(x) = inputs.first().copied().flatten() else {
            let missing = crate::OpError::MissingInput { index: 0 };
            return Err(super::build::op_error(item, missing));
        };
        let sizes = inputs.get(1).copied().flatten();
        let known = sizes.map(|v| self.graph().constant_of(v).cloned());
        let ty = (!self.is_dynamic(x)).then(|| self.graph().ty(x).clone());
        let list = match known {
            Some(Some(t)) if t.ty().rank() == 1 => Some(t.to_i64s()),
            Some(Some(t)) if t.len() == 1 => {
                ty.and_then(|ty| even_pieces(&ty, axis, t.to_i64s()[0]))
            }
            None => ty.and_then(|ty| even_pieces(&ty, axis, 1)),
            _ => None,
        };
        let Some(list) = list.filter(|list| list.len() as i64 <= MAX_LENGTH) else {
            self.note_use(item, "how many pieces it makes is only known at run time".into());
            return Ok(None);
        };
        let (count, squeezes) = (list.len(), sizes.is_none() && !keeps);
        let axis_attribute = vec![("axis", Attribute::Int(axis))];
        let split = ("Split", "split", 13);
        let pieces = self.stand_in_with_list(item, split, x, list, axis_attribute, count)?;
        let Some(pieces) = pieces else { return Ok(None) };
        let mut values = Vec::with_capacity(count);
        for mut piece in pieces {
            if squeezes {
                let squeeze = ("Squeeze", "axes", 13);
                let whole = self.stand_in_with_list(item, squeeze, piece, vec![axis], vec![], 1)?;
                let Some(&[whole]) = whole.as_deref() else { return Ok(None) };
                piece = whole;
            }
            values.push(self.local(piece));
        }
        Ok(Some(vec![Named::Sequence(Rc::new(Sequence::List(values)))]))
    }

    /// ConcatFromSequence of a list that is not empty.
    fn join(&mut self, item: &Item<'_>, list: &[Named]) -> Results {
        let Some(attributes) = self.attributes(item)? else { return Ok(None) };
        let axis = match attributes.get("axis") {
            Some(Attribute::Int(axis)) => *axis,
            _ => 0,
        };
        let is_new = attributes.get("new_axis") == Some(&Attribute::Int(1));
        let mut values = Vec::with_capacity(list.len());
        for named in list {
            let Some(mut value) = self.tensor(named) else { return Ok(None) };
            if is_new {
                let unsqueeze = ("Unsqueeze", "axes", 13);
                let wider =
                    self.stand_in_with_list(item, unsqueeze, value, vec![axis], vec![], 1)?;
                let Some(&[wider]) = wider.as_deref() else { return Ok(None) };
                value = wider;
            }
            values.push(value);
        }
        let joined = self.stand_in(item, "Concat", &values, &[("axis", Attribute::Int(axis))])?;
        Ok(joined.map(|v| vec![self.local(v)]))
    }
}

/// The extents of pieces of `size` along a dimension; the last may be smaller.
fn even_pieces(ty: &TensorType, axis: i64, size: i64) -> Option<Vec<i64>> {
    let extent = i64::try_from(ty.shape[ty.axis(axis).ok()?]).ok()?;
    if size <= 0 || extent / size > MAX_LENGTH {
        return None;
    }
    let whole = std::iter::repeat_n(size, (extent / size) as usize);
    Some(whole.chain((extent % size > 0).then_some(extent % size)).collect())
}
