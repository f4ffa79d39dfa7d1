//! Parsing. Checks that the text denotes a graph; whether the graph makes sense is the verifier's
//! question.

use super::cursor::{Cursor, ParseError, ParseErrorKind as Kind};
use super::literal::{self, Literal};
use crate::graph::{
    Carried, Extents, Graph, Node, NodeId, Phase, Value, ValueDef, ValueId, WeightSource,
};
use crate::ops::{self, Op};
use crate::{DType, TensorType};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads the textual form of a graph.
///
/// # Errors
/// The first thing that is wrong, with its line and column.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    let mut parser =
        Parser { cursor: Cursor::new(text), graph: Graph::default(), values: BTreeMap::new() };
    parser.graph()?;
    Ok(parser.graph)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    graph: Graph,
    /// Values so far; they move into the graph once it is known that their ids have no gap.
    values: BTreeMap<ValueId, Value>,
}

/// A value's id and name, as they stand before the `=`.
struct Def {
    id: ValueId,
    name: String,
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<(), ParseError> {
        if !self.cursor.take_word("graph") {
            return Err(self.cursor.expected("`graph`"));
        }
        self.graph.name = self.cursor.string()?;
        self.cursor.expect("{")?;
        while !self.cursor.looking_at("}") {
            if self.cursor.take_word("output") {
                let id = self.use_of()?;
                self.graph.outputs.push(id);
            } else if self.cursor.take_word("carried") {
                let (state, next) = (self.use_of()?, self.use_of()?);
                self.graph.carried.push(Carried { state, next });
            } else if self.cursor.take_word("micro_batches") {
                self.graph.micro_batches = self.micro_batches()?;
            } else if self.cursor.take_word("under_way") {
                self.graph.under_way = self.micro_batches()?;
            } else if self.cursor.looking_at("%") {
                self.definition()?;
            } else if self.cursor.looking_at("Send") {
                self.node(Vec::new())?;
            } else {
                return Err(self.cursor.expected(
                    "a definition, `output`, `carried`, `micro_batches`, `under_way` or `}`",
                ));
            }
        }
        for (expected, &id) in self.values.keys().enumerate() {
            if id.index() != expected {
                return Err(self.cursor.error(Kind::Gap(ValueId(expected as u32))));
            }
        }
        self.cursor.expect("}")?;
        if !self.cursor.at_end() {
            return Err(self.cursor.expected("the end of the text"));
        }
        self.graph.values = std::mem::take(&mut self.values).into_values().collect();
        Ok(())
    }

    /// A number of micro-batches.
    fn micro_batches(&mut self) -> Result<u32, ParseError> {
        let at = self.cursor.offset();
        let n: u64 = self.cursor.unsigned()?;
        let n = u32::try_from(n).ok().filter(|&n| n > 0);
        n.ok_or_else(|| self.cursor.error_at(at, Kind::MicroBatches))
    }

    /// A source or a node.
    fn definition(&mut self) -> Result<(), ParseError> {
        let first = self.def()?;
        if !self.cursor.take("=") {
            let mut defs = vec![first];
            while self.cursor.take(",") {
                defs.push(self.def()?);
            }
            self.cursor.expect("=")?;
            return self.node(defs);
        }
        if self.cursor.take_word("input") {
            self.graph.inputs.push(first.id);
            return self.source(first, |_| Ok(ValueDef::Input));
        }
        if self.cursor.take_word("accumulator") {
            return self.source(first, |_| Ok(ValueDef::Accumulator));
        }
        if self.cursor.take_word("constant") {
            let elements = literal::read(&mut self.cursor)?;
            return self.source(first, |ty| Ok(ValueDef::Constant(tensor(elements, ty)?)));
        }
        if self.cursor.take_word("weight") {
            let place = self.place(0)?;
            return self.source(first, |ty| Ok(ValueDef::Weight(place.source(ty)?)));
        }
        self.node(vec![first])
    }

    fn def(&mut self) -> Result<Def, ParseError> {
        let at = self.cursor.offset();
        let id = self.cursor.id()?;
        if self.values.contains_key(&id) {
            return Err(self.cursor.error_at(at, Kind::Redefined(id)));
        }
        Ok(Def { id, name: self.cursor.string()? })
    }

    fn use_of(&mut self) -> Result<ValueId, ParseError> {
        let at = self.cursor.offset();
        let id = self.cursor.id()?;
        if self.values.contains_key(&id) {
            Ok(id)
        } else {
            Err(self.cursor.error_at(at, Kind::Undefined(id)))
        }
    }

    fn source(
        &mut self,
        def: Def,
        value_def: impl FnOnce(&TensorType) -> Result<ValueDef, Kind>,
    ) -> Result<(), ParseError> {
        self.cursor.expect(":")?;
        let at = self.cursor.offset();
        let (ty, extents) = self.ty()?;
        let value_def = value_def(&ty).map_err(|kind| self.cursor.error_at(at, kind))?;
        self.values.insert(def.id, Value { name: def.name, ty, extents, def: value_def });
        Ok(())
    }

    /// Where a weight lies; a cast may stand in a cast, but not without end.
    fn place(&mut self, depth: usize) -> Result<Place, ParseError> {
        if self.cursor.take_word("fill") {
            self.cursor.expect("(")?;
            let value = f64::from_bits(self.cursor.unsigned()?);
            self.cursor.expect(")")?;
            return Ok(Place::Elsewhere(WeightSource::Fill { value }));
        }
        if depth < MAX_CASTS && self.cursor.take_word("cast") {
            self.cursor.expect("(")?;
            let from = self.dtype()?;
            self.cursor.expect(",")?;
            let place = Box::new(self.place(depth + 1)?);
            self.cursor.expect(")")?;
            return Ok(Place::Cast { from, place });
        }
        let location = if self.cursor.take_word("external") {
            self.cursor.expect("(")?;
            let location = self.cursor.string()?;
            self.cursor.expect(",")?;
            Some(location)
        } else if self.cursor.take_word("file") {
            self.cursor.expect("(")?;
            None
        } else {
            return Ok(Place::Here(literal::read(&mut self.cursor)?));
        };
        let offset = self.cursor.unsigned()?;
        self.cursor.expect(",")?;
        let bytes = self.cursor.unsigned()?;
        self.cursor.expect(")")?;
        Ok(Place::Elsewhere(match location {
            Some(location) => WeightSource::External { location, offset, bytes },
            None => WeightSource::ModelFile { offset, bytes },
        }))
    }

    fn node(&mut self, defs: Vec<Def>) -> Result<(), ParseError> {
        let at = self.cursor.offset();
        let name = self.cursor.word("an op")?;
        if !ops::NAMES.contains(&name) {
            return Err(self.cursor.error_at(at, Kind::UnknownOp(name.to_string())));
        }
        self.cursor.expect("(")?;
        let mut inputs = Vec::new();
        if !self.cursor.take(")") {
            loop {
                inputs.push(self.use_of()?);
                if self.cursor.take(")") {
                    break;
                }
                self.cursor.expect(",")?;
            }
        }
        let op = self.op(name)?;
        self.cursor.expect("@")?;
        let node_name = self.cursor.string()?;
        let scope =
            if self.cursor.take_word("scope") { self.cursor.string()? } else { String::new() };
        let phase = if self.cursor.take_word("phase") { self.phase()? } else { Phase::Forward };
        let mut types = Vec::new();
        if !defs.is_empty() {
            self.cursor.expect(":")?;
            types.push(self.ty()?);
        }
        while self.cursor.take(",") {
            types.push(self.ty()?);
        }
        if types.len() != defs.len() {
            let kind = Kind::TypeCount { defs: defs.len(), types: types.len() };
            return Err(self.cursor.error_at(at, kind));
        }
        let node = NodeId(self.graph.nodes.len() as u32);
        let outputs = defs.iter().map(|d| d.id).collect();
        for (output, (Def { id, name }, (ty, extents))) in defs.into_iter().zip(types).enumerate() {
            let def = ValueDef::Node { node, output: output as u32 };
            if self.values.insert(id, Value { name, ty, extents, def }).is_some() {
                return Err(self.cursor.error_at(at, Kind::Redefined(id)));
            }
        }
        self.graph.nodes.push(Node { name: node_name, scope, phase, op, inputs, outputs });
        Ok(())
    }

    /// The op of this name with the attributes that follow, if any.
    fn op(&mut self, name: &str) -> Result<Op, ParseError> {
        let at = self.cursor.offset();
        let mut forms = Vec::new();
        if self.cursor.looking_at("@") {
            // An op without attributes is `{}` or `null` in serialised form.
            forms.extend([serde_json::json!({}), serde_json::Value::Null]);
        } else {
            forms.push(self.cursor.json()?);
        }
        let mut why = String::new();
        for attributes in forms {
            match serde_json::from_value(serde_json::json!({ name: attributes })) {
                Ok(op) => return Ok(op),
                Err(e) if why.is_empty() => why = e.to_string(),
                Err(_) => {}
            }
        }
        Err(self.cursor.error_at(at, Kind::Attributes { op: name.to_string(), why }))
    }

    fn phase(&mut self) -> Result<Phase, ParseError> {
        for phase in [Phase::Forward, Phase::Backward, Phase::Update] {
            if self.cursor.take_word(phase.name()) {
                return Ok(phase);
            }
        }
        Err(self.cursor.expected("`forward`, `backward` or `update`"))
    }

    fn dtype(&mut self) -> Result<DType, ParseError> {
        let at = self.cursor.offset();
        let name = self.cursor.word("an element type")?;
        DType::from_name(name)
            .ok_or_else(|| self.cursor.error_at(at, Kind::UnknownType(name.to_string())))
    }

    fn ty(&mut self) -> Result<(TensorType, Extents), ParseError> {
        let dtype = self.dtype()?;
        self.cursor.expect("[")?;
        if self.cursor.take("*") {
            self.cursor.expect("]")?;
            return Ok((TensorType::new(dtype, []), Extents::Dynamic));
        }
        let mut shape = Vec::new();
        if !self.cursor.take("]") {
            loop {
                shape.push(self.cursor.unsigned()?);
                if self.cursor.take("]") {
                    break;
                }
                self.cursor.expect(",")?;
            }
        }
        Ok((TensorType::new(dtype, shape), Extents::Static))
    }
}

/// Casts within casts that are read.
const MAX_CASTS: usize = 4;

/// Where a weight lies: outside the text, or in it.
enum Place {
    Elsewhere(WeightSource),
    Here(Literal),
    Cast { from: DType, place: Box<Place> },
}

impl Place {
    /// The source of a weight of this type.
    fn source(self, ty: &TensorType) -> Result<WeightSource, Kind> {
        Ok(match self {
            Self::Elsewhere(source) => source,
            Self::Here(elements) => WeightSource::Inline(tensor(elements, ty)?),
            Self::Cast { from, place } => {
                let stored = TensorType::new(from, ty.shape.clone());
                WeightSource::Cast { from, source: Box::new(place.source(&stored)?) }
            }
        })
    }
}

fn tensor(elements: Literal, ty: &TensorType) -> Result<Arc<crate::Tensor>, Kind> {
    elements.typed(ty).map(Arc::new).map_err(|e| Kind::Tensor(e.to_string()))
}
