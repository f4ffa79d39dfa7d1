//! From the graph of a step to the graphs of its stages.
//!
//! A stage holds one part of the graph, or several. Its graph is a graph like any other. What is made elsewhere is the result of a node that
//! receives it, and what is read elsewhere is read by a node that sends it:
//!
//! - what a forward or backward node reads is sent for each micro-batch, as soon as it is made;
//! - what an update node reads is sent once a step;
//! - state that another stage updates is loaded by each stage that reads it, and becomes what it receives of
//!   the update.

use super::assign::Place;
use planc_ir::graph::{Node, Value};
use planc_ir::ops::Op;
use planc_ir::ops::receive::Receive;
use planc_ir::ops::send::Send;
use planc_ir::plan::Channel;
use planc_ir::{Carried, Graph, NodeId, Phase, ValueDef, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A stage as a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct StageGraph {
    /// What it runs.
    pub graph: Graph,
    /// By node, the part that it belongs to; of update nodes it says nothing.
    pub part_of: Vec<u32>,
}

/// The stages, and the ways between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    /// In the order of their numbers.
    pub stages: Vec<StageGraph>,
    /// By the number that nodes that send and receive name.
    pub channels: Vec<Channel>,
}

/// Cuts a graph whose nodes have these places. Part `p` is held by stage `holders[p]`; stages are numbered from 0.
pub fn cut(graph: &Graph, places: &[Place], holders: &[u32]) -> Stages {
    let empty = || Stage {
        part_of: Vec::new(),
        graph: Graph { micro_batches: graph.micro_batches, ..Graph::new(graph.name.clone()) },
        values: BTreeMap::new(),
        sent: BTreeMap::new(),
    };
    let mut cutter = Cutter {
        whole: graph,
        places,
        holders,
        now: 0,
        readers: readers(graph, places, holders),
        stages: (0..=holders.iter().copied().max().unwrap_or(0)).map(|_| empty()).collect(),
        channels: Vec::new(),
    };
    cutter.run();
    let stage = |s: Stage| StageGraph { graph: s.graph, part_of: s.part_of };
    Stages { stages: cutter.stages.into_iter().map(stage).collect(), channels: cutter.channels }
}

/// By value, the other stages whose forward and backward nodes read it.
fn readers(graph: &Graph, places: &[Place], holders: &[u32]) -> Vec<BTreeSet<u32>> {
    let mut readers = vec![BTreeSet::new(); graph.values.len()];
    for (node, place) in graph.nodes.iter().zip(places) {
        let Place::Part(part) = *place else { continue };
        let stage = holders[part as usize];
        for v in node.inputs.iter().filter(|_| node.phase != Phase::Update) {
            if let ValueDef::Node { node: maker, .. } = graph.value(*v).def
                && matches!(places[maker.index()], Place::Part(from) if holders[from as usize] != stage)
            {
                readers[v.index()].insert(stage);
            }
        }
    }
    readers
}

struct Stage {
    graph: Graph,
    part_of: Vec<u32>,
    /// What stands here for a value of the whole graph that is loaded or made here.
    values: BTreeMap<ValueId, ValueId>,
    /// What other stages send here, by value and whether once a step.
    sent: BTreeMap<(ValueId, bool), Sent>,
}

/// How far a value has come that another stage sends.
#[derive(Clone, Copy)]
enum Sent {
    /// It is under way.
    By(u32),
    /// It is received: this stands for it.
    As(ValueId),
}

struct Cutter<'a> {
    whole: &'a Graph,
    places: &'a [Place],
    holders: &'a [u32],
    /// The part for which nodes are being appended.
    now: u32,
    readers: Vec<BTreeSet<u32>>,
    stages: Vec<Stage>,
    channels: Vec<Channel>,
}

impl Cutter<'_> {
    fn run(&mut self) {
        let whole = self.whole;
        let sums = whole.carried.iter().filter(|c| is_accumulator(whole, c.state));
        let sums: BTreeSet<ValueId> = sums.map(|c| c.next).collect();
        for (at, place) in self.places.iter().enumerate() {
            let (id, node) = (NodeId(at as u32), &whole.nodes[at]);
            let phase = node.phase;
            match *place {
                Place::Part(part) => {
                    self.now = part;
                    let stage = self.holders[part as usize];
                    self.node(id, stage, phase);
                    for &v in &node.outputs {
                        for to in self.readers[v.index()].clone() {
                            self.send(v, stage, to, phase);
                        }
                    }
                }
                // What is summed over micro-batches must be made for each of them, wherever it is read.
                Place::Shared if node.outputs.iter().any(|v| sums.contains(v)) => {
                    for stage in 0..self.stages.len() as u32 {
                        self.now = self.first_part(stage);
                        for &v in &node.outputs {
                            self.value(v, stage, phase);
                        }
                    }
                }
                Place::Shared => {}
            }
        }
        for c in &whole.carried {
            self.carry(*c);
        }
        for &v in &whole.inputs {
            if self.stages.iter().all(|p| !p.values.contains_key(&v)) {
                self.value(v, 0, Phase::Forward);
            }
        }
        for &v in &whole.outputs {
            let stage = self.home(v).unwrap_or(self.stages.len() as u32 - 1);
            let last = whole.nodes.last().map_or(Phase::Forward, |n| n.phase);
            let here = self.value(v, stage, last);
            self.stages[stage as usize].graph.outputs.push(here);
        }
    }

    /// Where a value is made, unless that is wherever it is read.
    fn home(&self, v: ValueId) -> Option<u32> {
        match self.whole.value(v).def {
            ValueDef::Node { node, .. } => match self.places[node.index()] {
                Place::Part(part) => Some(self.holders[part as usize]),
                Place::Shared => None,
            },
            _ => None,
        }
    }

    /// The first part that a stage holds.
    fn first_part(&self, stage: u32) -> u32 {
        self.holders.iter().position(|&s| s == stage).unwrap_or(0) as u32
    }

    /// Copies a node into a stage.
    fn node(&mut self, id: NodeId, stage: u32, phase: Phase) {
        let node = self.whole.node(id);
        let inputs = node.inputs.iter().map(|&v| self.value(v, stage, phase)).collect();
        let outputs = self.append(stage, Node { phase, inputs, ..node.clone() }, &node.outputs);
        let values = node.outputs.iter().copied().zip(outputs);
        self.stages[stage as usize].values.extend(values);
    }

    /// Appends a node whose results stand for these values of the whole graph.
    fn append(&mut self, stage: u32, node: Node, made: &[ValueId]) -> Vec<ValueId> {
        let stage = &mut self.stages[stage as usize];
        stage.part_of.push(self.now);
        let graph = &mut stage.graph;
        let id = NodeId(graph.nodes.len() as u32);
        let mut outputs = Vec::with_capacity(made.len());
        for (output, &v) in made.iter().enumerate() {
            outputs.push(ValueId(graph.values.len() as u32));
            let def = ValueDef::Node { node: id, output: output as u32 };
            graph.values.push(Value { def, ..self.whole.value(v).clone() });
        }
        graph.nodes.push(Node { outputs: outputs.clone(), ..node });
        outputs
    }

    /// What stands for a value in a stage, where a node of this phase reads it.
    fn value(&mut self, v: ValueId, stage: u32, phase: Phase) -> ValueId {
        if let Some(&here) = self.stages[stage as usize].values.get(&v) {
            return here;
        }
        let whole = self.whole;
        let value = whole.value(v);
        let ValueDef::Node { node, .. } = value.def else {
            let p = &mut self.stages[stage as usize];
            let here = p.graph.add_value(value.name.clone(), value.ty.clone(), value.def.clone());
            p.values.insert(v, here);
            return here;
        };
        match self.places[node.index()] {
            Place::Shared => {
                self.node(node, stage, phase.max(whole.node(node).phase));
                self.stages[stage as usize].values[&v]
            }
            Place::Part(from) => self.received(v, self.holders[from as usize], stage, phase),
        }
    }

    /// What another stage sends.
    fn received(&mut self, v: ValueId, from: u32, to: u32, phase: Phase) -> ValueId {
        let once = phase == Phase::Update;
        let channel = match self.stages[to as usize].sent.get(&(v, once)).copied() {
            Some(Sent::As(here)) => return here,
            Some(Sent::By(channel)) => channel,
            None => self.send(v, from, to, phase),
        };
        let ty = self.whole.ty(v).clone();
        let name = format!("{}:received", self.whole.value(v).name);
        let here = self.append(to, transfer(name, Receive { channel, ty }, phase, vec![]), &[v])[0];
        self.stages[to as usize].sent.insert((v, once), Sent::As(here));
        here
    }

    /// Sends a value from the stage that makes it, and returns the channel.
    fn send(&mut self, v: ValueId, from: u32, to: u32, phase: Phase) -> u32 {
        let channel = self.channels.len() as u32;
        let value = self.whole.value(v).name.clone();
        let name = format!("{value}:sent to {to}");
        self.channels.push(Channel { value, from, to });
        let here = self.value(v, from, phase);
        self.append(from, transfer(name, Send { channel }, phase, vec![here]), &[]);
        let once = phase == Phase::Update;
        self.stages[to as usize].sent.insert((v, once), Sent::By(channel));
        channel
    }

    /// Carries state in every stage that holds it.
    fn carry(&mut self, c: Carried) {
        for stage in 0..self.stages.len() as u32 {
            let Some(&state) = self.stages[stage as usize].values.get(&c.state) else { continue };
            let is_sum = is_accumulator(self.whole, c.state);
            let phase = if is_sum { self.whole.phase(c.next) } else { Phase::Update };
            let next = self.value(c.next, stage, phase);
            self.stages[stage as usize].graph.carried.push(Carried { state, next });
        }
    }
}

fn is_accumulator(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.value(v).def, ValueDef::Accumulator)
}

fn transfer(name: String, op: impl Into<Op>, phase: Phase, inputs: Vec<ValueId>) -> Node {
    Node { name, scope: String::new(), phase, op: op.into(), inputs, outputs: Vec::new() }
}
