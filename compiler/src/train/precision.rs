//! Computing in a narrower type than the state.
//!
//! Everything that depends on a weight is computed in the narrow type; what does not (position tables, masks)
//! keeps its own, and is converted where the two meet. A weight of the model becomes a copy in the narrow
//! type, whose contents are the model's, converted; the model's own weight is the optimizer's business.

use super::TrainError;
use planc_ir::graph::{Graph, Phase, Value, ValueDef, ValueId, WeightSource};
use planc_ir::ops::Op;
use planc_ir::ops::map::Map;
use planc_ir::scalar::ScalarFn;
use planc_ir::{DType, Extents, NodeId, OpError, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// In what type activations and gradients are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// As the model says.
    AsModel,
    /// In bfloat16 where the model says f32.
    Bf16,
    /// In half precision where the model says f32; the loss is scaled.
    F16,
}

impl Precision {
    /// The name as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsModel => "model",
            Self::Bf16 => "bf16",
            Self::F16 => "fp16",
        }
    }

    const fn narrow(self) -> Option<DType> {
        match self {
            Self::AsModel => None,
            Self::Bf16 => Some(DType::BF16),
            Self::F16 => Some(DType::F16),
        }
    }
}

/// The weight of which another is a copy in a narrower type.
#[derive(Clone, Debug, PartialEq)]
pub struct Master {
    /// Its name.
    pub name: String,
    /// Where its contents come from: f32.
    pub source: WeightSource,
}

/// A model that computes in another precision.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The model.
    pub graph: Graph,
    /// The masters of its weights that are copies.
    pub masters: BTreeMap<ValueId, Master>,
}

/// The model in this precision.
///
/// # Errors
/// If an op cannot compute in it.
pub fn lower(model: &Graph, precision: Precision) -> Result<Lowered, TrainError> {
    let Some(narrow) = precision.narrow() else {
        return Ok(Lowered { graph: model.clone(), masters: BTreeMap::new() });
    };
    let mut lowering = Lowering {
        model,
        narrow,
        graph: Graph::new(model.name.clone()),
        values: vec![None; model.values.len()],
        narrowed: BTreeMap::new(),
        masters: BTreeMap::new(),
    };
    lowering.run()?;
    Ok(Lowered { graph: lowering.graph, masters: lowering.masters })
}

struct Lowering<'a> {
    model: &'a Graph,
    narrow: DType,
    graph: Graph,
    /// For each value of the model its counterpart, in its own type unless it depends on weights.
    values: Vec<Option<ValueId>>,
    /// Values of the model that are not narrow by themselves, and what they are in the narrow type.
    narrowed: BTreeMap<ValueId, ValueId>,
    masters: BTreeMap<ValueId, Master>,
}

impl Lowering<'_> {
    fn run(&mut self) -> Result<(), TrainError> {
        let model = self.model;
        // Inputs first, in the file's order.
        for &v in &model.inputs {
            self.source(v);
        }
        let dependent = self.dependent();
        for id in model.node_ids() {
            self.node(id, &dependent)?;
        }
        for &v in &model.outputs {
            let v = self.counterpart(v);
            self.graph.outputs.push(v);
        }
        Ok(())
    }

    /// By value: whether it is an f32 weight, or computed from one.
    fn dependent(&self) -> Vec<bool> {
        let model = self.model;
        let is_weight = |v: &Value| {
            matches!(v.def, ValueDef::Weight(_)) && v.ty.dtype == DType::F32 && v.ty.rank() > 0
        };
        let mut dependent: Vec<bool> = model.values.iter().map(is_weight).collect();
        for node in &model.nodes {
            if node.inputs.iter().any(|v| dependent[v.index()]) {
                node.outputs.iter().for_each(|v| {
                    dependent[v.index()] = model.ty(*v).dtype == DType::F32;
                });
            }
        }
        dependent
    }

    /// The copy of a value that no node defines, in its own type.
    fn source(&mut self, v: ValueId) -> ValueId {
        let value = self.model.value(v);
        let copy = self.graph.add_value(value.name.clone(), value.ty.clone(), value.def.clone());
        self.values[v.index()] = Some(copy);
        copy
    }

    fn counterpart(&mut self, v: ValueId) -> ValueId {
        self.values[v.index()].unwrap_or_else(|| self.source(v))
    }

    /// A value in the narrow type, if it is f32.
    fn operand(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        let value = self.model.value(v);
        let is_narrow = |&w: &ValueId| self.graph.ty(w).dtype == self.narrow;
        if value.ty.dtype != DType::F32 || self.values[v.index()].as_ref().is_some_and(is_narrow) {
            return Ok(self.counterpart(v));
        }
        if let Some(&known) = self.narrowed.get(&v) {
            return Ok(known);
        }
        let mut ty = value.ty.clone();
        ty.dtype = self.narrow;
        let name = format!("{}:{}", value.name, self.narrow);
        let narrowed = match &value.def {
            ValueDef::Weight(source) => {
                let (from, boxed) = (DType::F32, Box::new(source.clone()));
                let copy = ValueDef::Weight(WeightSource::Cast { from, source: boxed });
                let copy = self.graph.add_value(name, ty, copy);
                let master = Master { name: value.name.clone(), source: source.clone() };
                self.masters.insert(copy, master);
                copy
            }
            ValueDef::Constant(t) => {
                let cast = Tensor::from_f64(ty.clone(), |i| t.f64_at(i));
                let cast = cast.map_err(|e| OpError::Invalid(e.to_string()))?;
                self.graph.add_value(name, ty, ValueDef::Constant(Arc::new(cast)))
            }
            _ => {
                let wide = self.counterpart(v);
                let op = Op::from(Map { f: ScalarFn::Cast(self.narrow) });
                self.graph.push(name.clone(), op, &[wide], &[&name])?[0]
            }
        };
        self.narrowed.insert(v, narrowed);
        Ok(narrowed)
    }

    fn node(&mut self, id: NodeId, dependent: &[bool]) -> Result<(), TrainError> {
        let node = self.model.node(id);
        let lowers = node.outputs.iter().any(|v| dependent[v.index()]);
        let dtype = self.narrow;
        let failed =
            |why| TrainError::Precision { node: node.name.clone(), op: node.op.name(), dtype, why };
        let names: Vec<&str> =
            node.outputs.iter().map(|&v| self.model.value(v).name.as_str()).collect();
        let outputs = if lowers {
            let mut op = node.op.clone();
            if let Op::Map(Map { f: f @ ScalarFn::Cast(DType::F32) }) = &mut op {
                *f = ScalarFn::Cast(self.narrow);
            }
            let inputs: Result<Vec<_>, _> = node.inputs.iter().map(|&v| self.operand(v)).collect();
            let inputs = inputs.map_err(failed)?;
            self.graph.push(node.name.clone(), op, &inputs, &names).map_err(failed)?
        } else {
            let inputs: Vec<_> = node.inputs.iter().map(|&v| self.counterpart(v)).collect();
            let types = self.model.output_types(id);
            let outputs = self.graph.push_typed(
                node.name.clone(),
                node.op.clone(),
                &inputs,
                &names,
                types,
                Extents::Static,
            );
            for (&new, &old) in outputs.iter().zip(&node.outputs) {
                self.graph.values[new.index()].extents = self.model.value(old).extents;
            }
            outputs
        };
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            self.values[old.index()] = Some(new);
        }
        if let Some(last) = self.graph.nodes.last_mut() {
            last.scope.clone_from(&node.scope);
            last.phase = Phase::Forward;
        }
        Ok(())
    }
}
