//! Loops, and what Scan shares with them: carried values.
//!
//! The body is read with the types that the carried values start with. Where an iteration changes
//! the extents of one, the body is read again with that value of open extents; what has once changed
//! stays so when the loop is read again, as part of a loop that is read again.

use super::build::{Importer, Named, op_error};
use super::call::Call;
use super::control::Body;
use super::error::ImportError;
use super::functions::Item;
use super::sequence::Sequence;
use super::types;
use super::wire::{GraphProto, ValueInfoProto};
use crate::graph::{Extents, TensorType, ValueId};
use crate::ops::DecoderEntry;
use crate::{DType, OpError};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What a body takes for a carried value.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    Tensor(TensorType, Extents),
    /// A sequence, empty at first.
    Sequence,
}

/// A loop whose body has been read.
pub(super) struct Read {
    pub(super) body: Body,
    pub(super) slots: Vec<Slot>,
}

impl Importer<'_> {
    pub(super) fn repeat(
        &mut self,
        item: &Item<'_>,
        entry: &'static DecoderEntry,
        operands: &[Option<Named>],
    ) -> Result<Option<Vec<Named>>, ImportError> {
        let proto = Self::proto(item, "body")?;
        let (head, carried) = operands.split_at(operands.len().min(2));
        let Some(mut inputs) = self.tensors(item, head) else { return Ok(None) };
        inputs.resize(2, None);
        let Some(slots) = self.slots(item, carried, 2)? else { return Ok(None) };
        if proto.input.len() != slots.len() + 2 {
            let why = format!(
                "its body takes {} inputs; with {} carried values it must be {}",
                proto.input.len(),
                slots.len(),
                slots.len() + 2
            );
            return Err(op_error(item, OpError::Invalid(why)));
        }
        let read = self.iterate(item, proto, slots, 1, |importer, slots| {
            importer.take(
                &proto.input[0],
                &Slot::Tensor(TensorType::new(DType::I64, []), Extents::Static),
                0,
            )?;
            importer.take(
                &proto.input[1],
                &Slot::Tensor(TensorType::new(DType::Bool, []), Extents::Static),
                0,
            )?;
            for (i, (info, slot)) in proto.input[2..].iter().zip(slots).enumerate() {
                importer.take(info, slot, i)?;
            }
            Ok(true)
        })?;
        let Some(Read { body, slots }) = read else { return Ok(None) };

        // The condition, carried tensors, slices, then what each sequence grows by.
        let (mut outputs, mut slices, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for (i, named) in body.results.iter().enumerate() {
            match (named, i.checked_sub(1).and_then(|i| slots.get(i))) {
                (Named::Value { id, .. }, Some(Slot::Tensor(..))) => outputs.push(*id),
                (Named::Value { id, .. }, None) if i == 0 => outputs.push(*id),
                (Named::Value { id, .. }, None) => slices.push(*id),
                (Named::Sequence(s), Some(Slot::Sequence)) if s.grows(i - 1).is_some() => {
                    grown.extend(s.grows(i - 1));
                }
                _ => {
                    let why = "a sequence that a loop carries must grow by one tensor an iteration";
                    self.note_use(item, why.into());
                    return Ok(None);
                }
            }
        }
        let counts = [outputs.len().saturating_sub(1), slices.len()];
        outputs.extend(slices);
        outputs.extend(grown);
        let (graph, captures) = body.finish(outputs);
        for named in carried.iter().flatten().filter(|n| !matches!(n, Named::Sequence(_))) {
            inputs.push(self.tensor(named));
        }
        let captured = captures.len();
        inputs.extend(captures.into_iter().map(Some));
        let attributes = BTreeMap::from([("body".to_string(), graph)]);
        let call = Call { entry, inputs, captured, attributes, outputs: item.outputs };
        let Some(values) = self.call(item, &call)? else { return Ok(None) };
        let mut values = values.into_iter().map(|v| self.local(v));
        let tensors: Vec<Named> = values.by_ref().take(counts[0]).collect();
        let slices: Vec<Named> = values.by_ref().take(counts[1]).collect();
        let mut tensors = tensors.into_iter();
        let carried = slots.iter().filter_map(|slot| match slot {
            Slot::Tensor(..) => tensors.next(),
            Slot::Sequence => Some(Named::Sequence(Rc::new(Sequence::Stack(values.next()?)))),
        });
        Ok(Some(carried.chain(slices).collect()))
    }

    /// What a body takes for values that are carried; input `first` of the node is the first of them.
    pub(super) fn slots(
        &mut self,
        item: &Item<'_>,
        carried: &[Option<Named>],
        first: usize,
    ) -> Result<Option<Vec<Slot>>, ImportError> {
        let mut slots = Vec::with_capacity(carried.len());
        for (i, named) in carried.iter().enumerate() {
            let Some(named) = named else {
                return Err(op_error(item, OpError::MissingInput { index: first + i }));
            };
            slots.push(match named {
                Named::Sequence(s) if s.is_empty_list() => Slot::Sequence,
                Named::Sequence(_) => {
                    let why = "carries a sequence that is not empty at first";
                    self.note_use(item, why.into());
                    return Ok(None);
                }
                named => match self.tensor(named) {
                    Some(v) => {
                        let value = self.graph().value(v);
                        Slot::Tensor(value.ty.clone(), value.extents)
                    }
                    None => return Ok(None),
                },
            });
        }
        Ok(Some(slots))
    }

    /// Reads a body until it is right about which carried values keep their extents. Outputs from
    /// `first` on are the carried values; `open` makes the body's inputs.
    pub(super) fn iterate(
        &mut self,
        item: &Item<'_>,
        proto: &GraphProto,
        mut slots: Vec<Slot>,
        first: usize,
        mut open: impl FnMut(&mut Self, &[Slot]) -> Result<bool, ImportError>,
    ) -> Result<Option<Read>, ImportError> {
        loop {
            if let Some(changing) = self.changing.get(&item.node.output) {
                changing.iter().filter_map(|&i| slots.get_mut(i).map(open_up)).for_each(drop);
            }
            let body = self.body(proto, &item.opsets, |importer| open(importer, &slots))?;
            let Some(body) = body else { return Ok(None) };
            let changes = |(slot, named): (&Slot, &Named)| match (slot, named) {
                (Slot::Tensor(ty, Extents::Static), Named::Value { id, .. }) => {
                    let after = body.building.graph.value(*id);
                    let same = after.ty.shape == ty.shape && after.extents == Extents::Static;
                    after.ty.dtype == ty.dtype && !same
                }
                _ => false,
            };
            let results = body.results.iter().skip(first);
            let changing: BTreeSet<usize> = slots
                .iter()
                .zip(results)
                .enumerate()
                .filter_map(|(i, pair)| changes(pair).then_some(i))
                .collect();
            if changing.is_empty() {
                return Ok(Some(Read { body, slots }));
            }
            self.changing.entry(item.node.output.clone()).or_default().extend(changing);
        }
    }

    /// Makes an input of the body under construction; slot `number` says what it is.
    pub(super) fn take(
        &mut self,
        info: &ValueInfoProto,
        slot: &Slot,
        number: usize,
    ) -> Result<Option<ValueId>, ImportError> {
        let (named, id) = match slot {
            Slot::Sequence => {
                let graph = self.graphs.len() - 1;
                let growing = Sequence::Growing { graph, slot: number, appended: Vec::new() };
                (Named::Sequence(Rc::new(growing)), None)
            }
            Slot::Tensor(ty, extents) => {
                let declared = info.r#type.as_ref().and_then(types::declared_dtype);
                if let Some(declared) = declared.filter(|d| *d != ty.dtype) {
                    let (value, inferred) = (info.name().to_string(), ty.dtype);
                    return Err(ImportError::DeclaredType { value, declared, inferred });
                }
                let id = self.graph().input(info.name(), ty.clone());
                self.graph().values[id.index()].extents = *extents;
                (self.local(id), Some(id))
            }
        };
        self.name(info.name(), named);
        Ok(id)
    }
}

/// Makes a carried value one of open extents.
fn open_up(slot: &mut Slot) {
    if let Slot::Tensor(ty, extents) = slot {
        (ty.shape, *extents) = (Vec::new(), Extents::Dynamic);
    }
}
