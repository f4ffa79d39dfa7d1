//! Scan, read as a loop: iteration `i` gathers slice `i` of each scanned operand.

use super::build::{Importer, Named, op_error};
use super::call::Call;
use super::error::ImportError;
use super::functions::Item;
use super::loops::{Read, Slot};
use crate::graph::{TensorType, ValueId};
use crate::ops::decode::Attribute;
use crate::{DType, OpError, Tensor};
use std::collections::BTreeMap;

/// Where the slices of a scanned operand or result lie.
#[derive(Clone, Copy, Debug)]
struct Along {
    axis: i64,
    backward: bool,
}

impl Importer<'_> {
    pub(super) fn scan(
        &mut self,
        item: &Item<'_>,
        operands: &[Option<Named>],
    ) -> Result<Option<Vec<Named>>, ImportError> {
        if item.version()? < 9 {
            self.note_use(item, "the form with a batch dimension, of opset 8".into());
            return Ok(None);
        }
        let proto = Self::proto(item, "body")?;
        let Some(attributes) = self.attributes(item)? else { return Ok(None) };
        let bad = |why: &str| op_error(item, OpError::Invalid(why.to_string()));
        let scanned = match attributes.get("num_scan_inputs") {
            Some(Attribute::Int(n)) => usize::try_from(*n).ok().filter(|n| *n > 0),
            _ => None,
        };
        let carried = scanned.and_then(|n| operands.len().checked_sub(n));
        let Some(carried) = carried.filter(|_| proto.input.len() == operands.len()) else {
            return Err(bad(
                "its body must take as many inputs, and `num_scan_inputs` of them scanned",
            ));
        };
        let stacked = proto.output.len().checked_sub(carried);
        let Some(stacked) = stacked else { return Err(bad("its body has too few outputs")) };
        let (states, scanned) = operands.split_at(carried);
        let inputs = along(&attributes, "scan_input", scanned.len());
        let results = along(&attributes, "scan_output", stacked);
        let (Some(inputs), Some(results)) = (inputs, results) else {
            return Err(bad("lists axes or directions, but not one for each scanned value"));
        };
        let Some(sources) = self.tensors(item, scanned) else { return Ok(None) };
        let Some(sources) = sources.into_iter().collect::<Option<Vec<ValueId>>>() else {
            return Err(op_error(item, OpError::MissingInput { index: carried }));
        };
        let extents = sources.iter().zip(&inputs).map(|(&v, &along)| self.slices_of(v, along));
        let extents = extents.collect::<Result<Vec<Option<u64>>, _>>();
        let mut extents = extents.map_err(|e| op_error(item, e))?.into_iter().flatten();
        let known = extents.next();
        if extents.any(|n| Some(n) != known) {
            return Err(bad("scans operands of different extents"));
        }
        let count = match known.map(i64::try_from) {
            Some(n) => Some(self.constant(item, Tensor::scalar(n.unwrap_or(i64::MAX)))),
            None => self.count(item, sources[0], inputs[0])?,
        };
        let Some(count) = count else { return Ok(None) };

        let Some(slots) = self.slots(item, states, 0)? else { return Ok(None) };
        let outer = self.graphs.len() - 1;
        let mut condition = None;
        let read = self.iterate(item, proto, slots, 0, |importer, slots| {
            let number = importer.graph().input("iteration", TensorType::new(DType::I64, []));
            condition = Some(importer.graph().input("running", TensorType::new(DType::Bool, [])));
            for (i, (info, slot)) in proto.input.iter().zip(slots).enumerate() {
                importer.take(info, slot, i)?;
            }
            let infos = proto.input.iter().skip(slots.len());
            for ((info, &source), &along) in infos.zip(&sources).zip(&inputs) {
                let Some(slice) = importer.slice(item, outer, (source, count), number, along)?
                else {
                    return Ok(false);
                };
                let named = importer.local(slice);
                importer.name(info.name(), named);
            }
            Ok(true)
        })?;
        let Some(Read { body, slots }) = read else { return Ok(None) };
        let values = body.results.iter().map(|named| match named {
            Named::Value { id, .. } => Some(*id),
            _ => None,
        });
        let values: Option<Vec<ValueId>> = values.collect();
        let (Some(values), true) = (values, slots.iter().all(|s| matches!(s, Slot::Tensor(..))))
        else {
            self.note_use(item, "carries a sequence".into());
            return Ok(None);
        };
        let (graph, captures) = body.finish(condition.into_iter().chain(values).collect());
        let mut inputs = vec![Some(count), None];
        for named in states.iter().flatten() {
            inputs.push(self.tensor(named));
        }
        let captured = captures.len();
        inputs.extend(captures.into_iter().map(Some));
        let Some(entry) = self.entry("", "Loop", item.version()?) else { return Ok(None) };
        let attributes = BTreeMap::from([("body".to_string(), graph)]);
        let call = Call { entry, inputs, captured, attributes, outputs: item.outputs };
        let Some(mut values) = self.call(item, &call)? else { return Ok(None) };
        for (value, along) in values[carried..].iter_mut().zip(results) {
            match self.turn(item, *value, along)? {
                Some(turned) => *value = turned,
                None => return Ok(None),
            }
        }
        Ok(Some(values.into_iter().map(|v| self.local(v)).collect()))
    }

    /// How many slices an operand has, if its extents are known.
    fn slices_of(&mut self, source: ValueId, along: Along) -> Result<Option<u64>, OpError> {
        if self.is_dynamic(source) {
            return Ok(None);
        }
        let ty = self.graph().ty(source);
        Ok(Some(ty.shape[ty.axis(along.axis)?]))
    }

    /// How many slices an operand has, where only the run knows.
    fn count(
        &mut self,
        item: &Item<'_>,
        source: ValueId,
        along: Along,
    ) -> Result<Option<ValueId>, ImportError> {
        let Some(shape) = self.stand_in(item, "Shape", &[source], &[])? else { return Ok(None) };
        let axis = self.constant(item, Tensor::scalar(along.axis));
        self.stand_in(item, "Gather", &[shape, axis], &[])
    }

    /// In the body: the slice of an operand outside that iteration `number` takes.
    fn slice(
        &mut self,
        item: &Item<'_>,
        outer: usize,
        (source, count): (ValueId, ValueId),
        mut number: ValueId,
        along: Along,
    ) -> Result<Option<ValueId>, ImportError> {
        let source = self.capture(outer, source);
        if along.backward {
            let count = self.capture(outer, count);
            let one = self.constant(item, Tensor::scalar(1i64));
            let Some(last) = self.stand_in(item, "Sub", &[count, one], &[])? else {
                return Ok(None);
            };
            let Some(mirrored) = self.stand_in(item, "Sub", &[last, number], &[])? else {
                return Ok(None);
            };
            number = mirrored;
        }
        let axis = [("axis", Attribute::Int(along.axis))];
        self.stand_in(item, "Gather", &[source, number], &axis)
    }

    /// A result whose slices are stacked in front, in order, as the node wants it.
    fn turn(
        &mut self,
        item: &Item<'_>,
        mut value: ValueId,
        along: Along,
    ) -> Result<Option<ValueId>, ImportError> {
        if along.backward {
            let bounds =
                [-1, i64::MIN, 0, -1].map(|n| self.constant(item, Tensor::vector(vec![n])));
            let operands: Vec<ValueId> = std::iter::once(value).chain(bounds).collect();
            let Some(reversed) = self.stand_in(item, "Slice", &operands, &[])? else {
                return Ok(None);
            };
            value = reversed;
        }
        if along.axis == 0 {
            return Ok(Some(value));
        }
        if self.is_dynamic(value) {
            self.note_use(item, "stacks slices of unknown extents along an inner axis".into());
            return Ok(None);
        }
        let ty = self.graph().ty(value).clone();
        let axis = ty.axis(along.axis).map_err(|e| op_error(item, e))?;
        let mut perm: Vec<i64> = (1..ty.rank() as i64).collect();
        perm.insert(axis, 0);
        self.stand_in(item, "Transpose", &[value], &[("perm", Attribute::Ints(perm))])
    }
}

/// The axes and directions of `count` values; forward along the first where nothing is said.
fn along(attributes: &BTreeMap<String, Attribute>, kind: &str, count: usize) -> Option<Vec<Along>> {
    let list = |what: &str| match attributes.get(&format!("{kind}_{what}")) {
        Some(Attribute::Ints(list)) => (list.len() == count).then(|| list.clone()),
        _ => Some(vec![0; count]),
    };
    let pairs = list("axes")?.into_iter().zip(list("directions")?);
    Some(pairs.map(|(axis, direction)| Along { axis, backward: direction != 0 }).collect())
}
