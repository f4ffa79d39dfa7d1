//! Partitioning: one SPMD program out of a graph and a strategy.
//!
//! 1. Inputs, weights and constants are loaded in their home sharding; weights and constants that
//!    nothing reads are not loaded.
//! 2. A node becomes one kernel on local parts. Its factor rule says which sharding each operand must
//!    be in; an operand whose home is another gets there by the cheapest path of steps, just before
//!    the first kernel that needs it.
//! 3. A value exists at most once in each sharding for the readers of one [`section`]: they share it, and
//!    paths share the steps that they have in common.
//! 4. An output that is partial is reduced to whatever sharding is cheapest, unless the program has
//!    it in a finished form already.
//! 5. State takes on its next value in place: what it becomes is brought into the state's home sharding as
//!    soon as it is there, and lies where the state lies. Where something still reads the state after
//!    that, or the next value is needed elsewhere too, it is copied there in the end.
//! 6. A value whose extents are only known at run time becomes a dynamic buffer: nodes that run whole
//!    on every rank make it and read it.

use crate::carry::Uses;
use crate::{CodegenError, memory};
use planc_ir::ops::Op;
use planc_ir::program::{
    Buffer, BufferId, CarriedBuffer, Instr, Kernel, MicroBatches, Program, Slot,
};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::{Path, Resharder, StepCost, reshard_reduced};
use planc_ir::sharding::{OpShardings, Sharding, Strategy, section};
use planc_ir::{Carried, Extents, Graph, NodeId, Phase, ValueDef, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The program that carries out a strategy, with a place for every buffer.
///
/// # Errors
/// If the strategy does not fit the graph, or a value whose extents are not known is more than an
/// output.
pub fn partition(
    graph: &Graph,
    strategy: &Strategy,
    cost: &dyn StepCost,
) -> Result<Program, CodegenError> {
    let Instructions { mut program, repeated, .. } = instructions(graph, strategy, cost, &[])?;
    let count = graph.micro_batches;
    if count > 1 {
        program.micro_batches = Some(MicroBatches { count, instrs: repeated });
    }
    memory::place(&mut program)?;
    Ok(program)
}

/// A program whose buffers have no place yet.
pub(crate) struct Instructions {
    pub program: Program,
    /// How many instructions are those of a micro-batch.
    pub repeated: usize,
    /// What each instruction belongs to.
    pub origins: Vec<Origin>,
}

/// What an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub phase: Phase,
    pub chunk: u32,
}

/// The instructions that carry out a strategy. `chunks` says to which chunk each node belongs, all to the first
/// where it says nothing.
pub(crate) fn instructions(
    graph: &Graph,
    strategy: &Strategy,
    cost: &dyn StepCost,
    chunks: &[u32],
) -> Result<Instructions, CodegenError> {
    // A factor rule describes operands of known extents, so this comes before the strategy.
    dynamic_values(graph)?;
    let nodes = strategy.check(graph)?;
    let mut becomes: BTreeMap<ValueId, Vec<Carried>> = BTreeMap::new();
    for &c in &graph.carried {
        becomes.entry(c.next).or_default().push(c);
    }
    let mut p = Partitioner {
        graph,
        becomes: Rc::new(becomes),
        strategy,
        cost,
        resharder: Resharder::new(&strategy.mesh, cost),
        at: Origin { phase: Phase::Forward, chunk: 0 },
        origins: Vec::new(),
        repeated: 0,
        forms: vec![Vec::new(); graph.values.len()],
        program: Program {
            mesh: strategy.mesh.clone(),
            buffers: Vec::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            constants: Vec::new(),
            accumulators: Vec::new(),
            passes: Vec::new(),
            order: Vec::new(),
            instrs: Vec::new(),
            micro_batches: None,
            carried: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 0,
        },
    };
    p.load();
    for (id, shardings) in graph.node_ids().zip(&nodes) {
        let phase = graph.node(id).phase;
        if phase == Phase::Update && p.at.phase != Phase::Update {
            p.end_micro_batch()?;
        }
        p.at = Origin { phase, chunk: chunks.get(id.index()).copied().unwrap_or(0) };
        p.node(id, shardings)?;
        p.next_values(id)?;
    }
    if p.at.phase != Phase::Update {
        p.end_micro_batch()?;
    }
    for &v in &graph.outputs {
        let buffer = p.finished(v)?;
        p.program.outputs.push(buffer);
    }
    p.end_step()?;
    let Partitioner { program, repeated, origins, .. } = p;
    Ok(Instructions { program, repeated, origins })
}

/// Refuses dynamic values that nothing can be planned for.
fn dynamic_values(graph: &Graph) -> Result<(), CodegenError> {
    let is_dynamic = |v: &ValueId| graph.value(*v).extents == Extents::Dynamic;
    let refused = |v: ValueId| CodegenError::Dynamic { value: graph.value(v).name.clone() };
    for id in graph.node_ids().filter(|&id| graph.is_dynamic(id)) {
        let node = graph.node(id);
        if !runs_whole(graph, id) {
            let touched = node.inputs.iter().chain(&node.outputs).copied().find(is_dynamic);
            return touched.map_or(Ok(()), |v| Err(refused(v)));
        }
    }
    let is_made = |v: ValueId| matches!(graph.value(v).def, ValueDef::Node { .. });
    let stray = graph.value_ids().find(|v| is_dynamic(v) && !is_made(*v));
    stray.map_or(Ok(()), |v| Err(refused(v)))
}

/// Whether a node is one that takes and leaves open extents, and that any strategy runs whole on every
/// rank.
fn runs_whole(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let (inputs, outputs) = (graph.input_types(id), graph.output_types(id));
    let contents: Vec<_> = node.inputs.iter().map(|&v| graph.constant_of(v)).collect();
    matches!(node.op.lower(), Kernel::Reference { .. })
        && node.op.leaves_extents_open()
        && node.op.infer(&inputs, &contents).is_ok_and(|types| types == outputs)
        && node.op.rule(&inputs, &outputs).opaque.is_some()
}

struct Partitioner<'a> {
    graph: &'a Graph,
    strategy: &'a Strategy,
    cost: &'a dyn StepCost,
    resharder: Resharder<'a>,
    /// The state that each value is what it becomes.
    becomes: Rc<BTreeMap<ValueId, Vec<Carried>>>,
    /// What the instructions that are being appended belong to.
    at: Origin,
    origins: Vec<Origin>,
    /// How many instructions are those of a micro-batch, once that is known.
    repeated: usize,
    /// The buffers that hold each value and the section for whose readers they were made, the one in its
    /// home sharding first, which is for all.
    forms: Vec<Vec<(BufferId, Phase)>>,
    program: Program,
}

impl Partitioner<'_> {
    /// Makes the buffers that are filled before the first instruction.
    fn load(&mut self) {
        let mut read = vec![false; self.graph.values.len()];
        let carried = self.graph.carried.iter().flat_map(|c| [&c.state, &c.next]);
        let operands = self.graph.nodes.iter().flat_map(|n| &n.inputs);
        for &v in operands.chain(&self.graph.outputs).chain(carried) {
            read[v.index()] = true;
        }
        for &v in &self.graph.inputs {
            let buffer = self.home_buffer(v);
            self.program.inputs.push(buffer);
        }
        for v in self.graph.value_ids().filter(|v| read[v.index()]) {
            match self.graph.value(v).def {
                ValueDef::Weight(_) => {
                    let buffer = self.home_buffer(v);
                    self.program.weights.push(buffer);
                }
                ValueDef::Constant(_) => {
                    let buffer = self.home_buffer(v);
                    self.program.constants.push(buffer);
                }
                ValueDef::Accumulator => {
                    let buffer = self.home_buffer(v);
                    self.program.accumulators.push(buffer);
                }
                ValueDef::Input | ValueDef::Node { .. } => {}
            }
        }
    }

    fn node(&mut self, id: NodeId, shardings: &OpShardings) -> Result<(), CodegenError> {
        let node = self.graph.node(id);
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (&v, needed) in node.inputs.iter().zip(&shardings.inputs) {
            inputs.push(self.form(v, needed, &node.name)?);
        }
        let outputs: Vec<BufferId> = node.outputs.iter().map(|&v| self.home_buffer(v)).collect();
        let instr = match (&node.op, &inputs[..], &outputs[..]) {
            (Op::Send(send), &[buffer], []) => Instr::Send { channel: send.channel, buffer },
            (Op::Receive(receive), [], &[buffer]) => {
                Instr::Receive { channel: receive.channel, buffer }
            }
            (op, ..) => {
                Instr::Kernel { node: node.name.clone(), kernel: op.lower(), inputs, outputs }
            }
        };
        self.append(instr);
        Ok(())
    }

    fn append(&mut self, instr: Instr) {
        self.program.instrs.push(instr);
        self.origins.push(self.at);
    }

    /// Brings the results of a node that state becomes into the state's home.
    fn next_values(&mut self, id: NodeId) -> Result<(), CodegenError> {
        let becomes = Rc::clone(&self.becomes);
        for v in &self.graph.node(id).outputs {
            for c in becomes.get(v).into_iter().flatten() {
                self.next_value(*c)?;
            }
        }
        Ok(())
    }

    /// The buffer that holds what state becomes, in the state's home.
    fn next_value(&mut self, c: Carried) -> Result<BufferId, CodegenError> {
        let home = self.strategy.values[c.state.index()].clone();
        let reader = format!("the state `{}`", self.graph.value(c.state).name);
        self.form(c.next, &home, &reader)
    }

    /// Ends what is repeated for each micro-batch.
    fn end_micro_batch(&mut self) -> Result<(), CodegenError> {
        self.carry(|def| matches!(def, ValueDef::Accumulator))?;
        self.repeated = self.program.instrs.len();
        Ok(())
    }

    /// Ends the step.
    fn end_step(&mut self) -> Result<(), CodegenError> {
        self.carry(|def| matches!(def, ValueDef::Weight(_)))
    }

    /// Settles the state whose definition is such, at the end of the instructions that may still read it.
    fn carry(&mut self, is_such: impl Fn(&ValueDef) -> bool) -> Result<(), CodegenError> {
        let graph = self.graph;
        let such = graph.carried.iter().filter(|c| is_such(&graph.value(c.state).def));
        let mut pairs = Vec::new();
        for &c in such {
            pairs.push((c, self.next_value(c)?));
        }
        // What is loaded may be state itself, so it is read before any state is written over.
        let uses = Uses::of(&self.program);
        for (c, next) in pairs.iter_mut().filter(|(_, next)| !uses.is_made(*next)) {
            *next = self.copy(*c, *next);
        }
        let uses = Uses::of(&self.program);
        let mut taken = BTreeSet::new();
        for (c, mut next) in pairs {
            let state = self.home(c.state);
            if !uses.in_place(&self.program, state, next) || !taken.insert(next) {
                next = self.copy(c, next);
            }
            self.program.carried.push(CarriedBuffer { state, next });
        }
        Ok(())
    }

    /// A copy of what a state becomes, which belongs to what makes that.
    fn copy(&mut self, c: Carried, next: BufferId) -> BufferId {
        let home = self.program.buffer(next).sharding.clone();
        let copy = self.add_buffer(c.next, home);
        let node = self.graph.value(c.state).name.clone();
        let kernel = Kernel::Map { f: ScalarFn::Identity };
        let (inputs, outputs) = (vec![next], vec![copy]);
        let mut instrs = self.program.instrs.iter().zip(&self.origins);
        let maker = instrs.rfind(|(instr, _)| instr.writes().contains(&next));
        let origin = maker.map_or(self.at, |(_, origin)| *origin);
        self.program.instrs.push(Instr::Kernel { node, kernel, inputs, outputs });
        self.origins.push(if self.at.phase == Phase::Update { self.at } else { origin });
        copy
    }

    /// The buffer that holds `v` in the sharding that `reader` needs.
    fn form(
        &mut self,
        v: ValueId,
        needed: &Sharding,
        reader: &str,
    ) -> Result<BufferId, CodegenError> {
        if let Some(buffer) = self.find(v, needed) {
            return Ok(buffer);
        }
        let home = &self.strategy.values[v.index()];
        match self.resharder.path(self.graph.ty(v), home, needed).cloned() {
            Some(path) => Ok(self.walk(v, path)),
            None => Err(self.no_path(v, needed.display(&self.strategy.mesh).to_string(), reader)),
        }
    }

    /// A buffer that holds output `v` with nothing left to reduce.
    fn finished(&mut self, v: ValueId) -> Result<BufferId, CodegenError> {
        let is_finished = |b: &BufferId| self.program.buffer(*b).sharding.partial.is_empty();
        if let Some(buffer) = self.shared(v).find(is_finished) {
            return Ok(buffer);
        }
        let home = &self.strategy.values[v.index()];
        match reshard_reduced(self.graph.ty(v), home, &self.strategy.mesh, self.cost) {
            Some(path) => Ok(self.walk(v, path)),
            None => Err(self.no_path(v, "reduced".to_string(), "the caller")),
        }
    }

    /// Appends the steps that lead away from the home of `v`, except those whose result is there.
    fn walk(&mut self, v: ValueId, path: Path) -> BufferId {
        let mut at = self.home(v);
        for (step, sharding) in path.steps.into_iter().zip(path.shardings) {
            if let Some(there) = self.find(v, &sharding) {
                at = there;
                continue;
            }
            let (input, output) = (at, self.add_buffer(v, sharding));
            self.append(Instr::Reshard { step, input, output });
            at = output;
        }
        at
    }

    fn find(&self, v: ValueId, sharding: &Sharding) -> Option<BufferId> {
        self.shared(v).find(|&b| self.program.buffer(b).sharding == *sharding)
    }

    /// The buffer that holds a value in its home.
    fn home(&self, v: ValueId) -> BufferId {
        self.forms[v.index()][0].0
    }

    /// The buffers that hold a value for what is being appended.
    fn shared(&self, v: ValueId) -> impl Iterator<Item = BufferId> {
        let section = self.section(v);
        let all = self.forms[v.index()].iter().enumerate();
        all.filter(move |(i, (_, s))| *i == 0 || *s == section).map(|(_, (b, _))| *b)
    }

    fn section(&self, v: ValueId) -> Phase {
        section(self.graph, v, self.at.phase, self.strategy.gather_again)
    }

    fn home_buffer(&mut self, v: ValueId) -> BufferId {
        self.add_buffer(v, self.strategy.values[v.index()].clone())
    }

    fn add_buffer(&mut self, v: ValueId, sharding: Sharding) -> BufferId {
        let id = BufferId(self.program.buffers.len() as u32);
        let value = self.graph.value(v);
        let (name, ty) = (value.name.clone(), value.ty.clone());
        let (dynamic, slot) = (value.extents == Extents::Dynamic, Slot::default());
        self.program.buffers.push(Buffer { name, ty, sharding, dynamic, copies: 1, slot });
        let section = self.section(v);
        self.forms[v.index()].push((id, section));
        id
    }

    fn no_path(&self, v: ValueId, to: String, reader: &str) -> CodegenError {
        CodegenError::NoPath {
            value: self.graph.value(v).name.clone(),
            from: self.strategy.values[v.index()].display(&self.strategy.mesh).to_string(),
            to,
            reader: format!("`{reader}`"),
        }
    }
}
