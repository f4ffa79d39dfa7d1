//! From the graph of a step to the graphs of its parts.
//!
//! The graph of a part is a graph like any other. What is made elsewhere is the result of a node that
//! receives it, and what is read elsewhere is read by a node that sends it:
//!
//! - what a forward or backward node reads is sent for each micro-batch, as soon as it is made;
//! - what an update node reads is sent once a step;
//! - state that another part updates is loaded by each part that reads it, and becomes what it receives of
//!   the update.

use super::assign::Place;
use planc_ir::graph::{Node, Value};
use planc_ir::ops::Op;
use planc_ir::ops::transfer::{Receive, Send};
use planc_ir::plan::Channel;
use planc_ir::{Carried, Graph, NodeId, Phase, ValueDef, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The graphs of the parts, and the ways between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// One a part.
    pub graphs: Vec<Graph>,
    /// By the number that nodes that send and receive name; parts are numbered as the graphs are.
    pub channels: Vec<Channel>,
}

/// Cuts a graph whose nodes have these places into so many parts.
pub fn cut(graph: &Graph, places: &[Place], parts: u32) -> Parts {
    let empty = || Part {
        graph: Graph { micro_batches: graph.micro_batches, ..Graph::new(graph.name.clone()) },
        values: BTreeMap::new(),
        received: BTreeMap::new(),
    };
    let mut cutter = Cutter {
        whole: graph,
        places,
        readers: readers(graph, places),
        parts: (0..parts).map(|_| empty()).collect(),
        channels: Vec::new(),
    };
    cutter.run();
    let graphs = cutter.parts.into_iter().map(|p| p.graph).collect();
    Parts { graphs, channels: cutter.channels }
}

/// By value, the other parts whose forward and backward nodes read it.
fn readers(graph: &Graph, places: &[Place]) -> Vec<BTreeSet<u32>> {
    let mut readers = vec![BTreeSet::new(); graph.values.len()];
    for (node, place) in graph.nodes.iter().zip(places) {
        let Place::Part(part) = *place else { continue };
        for v in node.inputs.iter().filter(|_| node.phase != Phase::Update) {
            if let ValueDef::Node { node: maker, .. } = graph.value(*v).def
                && matches!(places[maker.index()], Place::Part(from) if from != part)
            {
                readers[v.index()].insert(part);
            }
        }
    }
    readers
}

struct Part {
    graph: Graph,
    /// What stands here for a value of the whole graph that is loaded or made here.
    values: BTreeMap<ValueId, ValueId>,
    /// What is received, by value and whether once a step.
    received: BTreeMap<(ValueId, bool), ValueId>,
}

struct Cutter<'a> {
    whole: &'a Graph,
    places: &'a [Place],
    readers: Vec<BTreeSet<u32>>,
    parts: Vec<Part>,
    channels: Vec<Channel>,
}

impl Cutter<'_> {
    fn run(&mut self) {
        let whole = self.whole;
        for (at, place) in self.places.iter().enumerate() {
            if let Place::Part(part) = *place {
                let phase = whole.nodes[at].phase;
                self.node(NodeId(at as u32), part, phase);
                for &v in &whole.nodes[at].outputs {
                    for to in self.readers[v.index()].clone() {
                        let channel = self.channel(v, part, to);
                        self.received_later(v, to, channel);
                    }
                }
            }
        }
        for c in &whole.carried {
            self.carry(*c);
        }
        for &v in &whole.inputs {
            if self.parts.iter().all(|p| !p.values.contains_key(&v)) {
                self.value(v, 0, Phase::Forward);
            }
        }
        for &v in &whole.outputs {
            let part = self.home(v).unwrap_or(self.parts.len() as u32 - 1);
            let last = whole.nodes.last().map_or(Phase::Forward, |n| n.phase);
            let here = self.value(v, part, last);
            self.parts[part as usize].graph.outputs.push(here);
        }
    }

    /// Where a value is made, unless that is wherever it is read.
    fn home(&self, v: ValueId) -> Option<u32> {
        match self.whole.value(v).def {
            ValueDef::Node { node, .. } => match self.places[node.index()] {
                Place::Part(part) => Some(part),
                Place::Shared => None,
            },
            _ => None,
        }
    }

    /// Copies a node into a part.
    fn node(&mut self, id: NodeId, part: u32, phase: Phase) {
        let node = self.whole.node(id);
        let inputs = node.inputs.iter().map(|&v| self.value(v, part, phase)).collect();
        let outputs = self.append(part, Node { phase, inputs, ..node.clone() }, &node.outputs);
        let values = node.outputs.iter().copied().zip(outputs);
        self.parts[part as usize].values.extend(values);
    }

    /// Appends a node whose results stand for these values of the whole graph.
    fn append(&mut self, part: u32, node: Node, made: &[ValueId]) -> Vec<ValueId> {
        let graph = &mut self.parts[part as usize].graph;
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

    /// What stands for a value in a part, where a node of this phase reads it.
    fn value(&mut self, v: ValueId, part: u32, phase: Phase) -> ValueId {
        if let Some(&here) = self.parts[part as usize].values.get(&v) {
            return here;
        }
        let whole = self.whole;
        let value = whole.value(v);
        let ValueDef::Node { node, .. } = value.def else {
            let p = &mut self.parts[part as usize];
            let here = p.graph.add_value(value.name.clone(), value.ty.clone(), value.def.clone());
            p.values.insert(v, here);
            return here;
        };
        match self.places[node.index()] {
            Place::Shared => {
                self.node(node, part, phase.max(whole.node(node).phase));
                self.parts[part as usize].values[&v]
            }
            Place::Part(from) => self.received(v, from, part, phase),
        }
    }

    /// What is received of another part.
    fn received(&mut self, v: ValueId, from: u32, to: u32, phase: Phase) -> ValueId {
        let once = phase == Phase::Update;
        let known = self.parts[to as usize].received.get(&(v, once)).copied();
        let channel = match known {
            Some(Received::Here(here)) => return here,
            Some(Received::Channel(channel)) => channel,
            None => self.channel(v, from, to),
        };
        let ty = self.whole.ty(v).clone();
        let name = format!("{}:receive", self.whole.value(v).name);
        let node = transfer(name, Receive { channel, ty }.into(), phase, Vec::new());
        let here = self.append(to, node, &[v])[0];
        self.parts[to as usize].received.insert((v, once), Received::Here(here));
        here
    }
}
