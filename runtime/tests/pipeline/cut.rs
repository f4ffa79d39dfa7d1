//! Cuts a step into the graphs of stages, by a list that says where each node goes.

use planc_ir::ops::{Op, receive::Receive, send::Send};
use planc_ir::plan::Channel;
use planc_ir::{Carried, Graph, Phase, ValueDef, ValueId};
use std::collections::BTreeMap;

/// A stage's graph.
pub struct Cut {
    pub graph: Graph,
    /// The chunk of each node.
    pub chunks: Vec<u32>,
    /// What each value of the whole is here.
    values: BTreeMap<ValueId, ValueId>,
}

/// Where a node goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub stage: usize,
    pub chunk: u32,
}

impl Cut {
    fn push(&mut self, name: &str, op: Op, at: (Phase, u32), inputs: &[ValueId]) -> Vec<ValueId> {
        let outputs = self.graph.push(name, op, inputs, &[name]).unwrap();
        self.graph.nodes.last_mut().unwrap().phase = at.0;
        self.chunks.push(at.1);
        outputs
    }
}

/// The stages' graphs and the channels between them.
pub fn cut(whole: &Graph, places: &[Place], stages: usize) -> (Vec<Cut>, Vec<Channel>) {
    let empty = || {
        let mut graph = Graph::new(whole.name.clone());
        graph.micro_batches = whole.micro_batches;
        Cut { graph, chunks: Vec::new(), values: BTreeMap::new() }
    };
    let mut cuts: Vec<Cut> = (0..stages).map(|_| empty()).collect();
    let maker = |v: ValueId| match whole.value(v).def {
        ValueDef::Node { node, .. } => Some(node),
        _ => None,
    };
    // Who needs what from elsewhere, and when first.
    let mut needs: BTreeMap<(ValueId, usize), Phase> = BTreeMap::new();
    for id in whole.node_ids() {
        let (node, stage) = (whole.node(id), places[id.index()].stage);
        for &v in &node.inputs {
            if maker(v).is_some_and(|m| places[m.index()].stage != stage) {
                needs.entry((v, stage)).or_insert(node.phase);
            }
        }
    }
    // A weight that another stage changes is received anew.
    let weights =
        whole.carried.iter().filter(|c| matches!(whole.value(c.state).def, ValueDef::Weight(_)));
    for c in weights {
        let owner = places[maker(c.next).unwrap().index()].stage;
        for id in whole.node_ids().filter(|&id| whole.node(id).inputs.contains(&c.state)) {
            let reader = places[id.index()].stage;
            if reader != owner {
                needs.entry((c.next, reader)).or_insert(Phase::Update);
            }
        }
    }
    let numbers: BTreeMap<(ValueId, usize), u32> = needs.keys().copied().zip(0..).collect();
    let channels = numbers.keys().map(|&(v, to)| Channel {
        value: whole.value(v).name.clone(),
        from: places[maker(v).unwrap().index()].stage as u32,
        to: to as u32,
    });
    let channels: Vec<Channel> = channels.collect();

    let mut phase = Phase::Forward;
    for id in whole.node_ids() {
        let node = whole.node(id);
        let Place { stage, chunk } = places[id.index()];
        if node.phase == Phase::Update && phase != Phase::Update {
            // What is only needed once is sent once.
            for (&(v, to), &first) in &needs {
                let from = places[maker(v).unwrap().index()];
                if first == Phase::Update && whole.phase(v) != Phase::Update {
                    send(&mut cuts[from.stage], v, numbers[&(v, to)], (Phase::Update, from.chunk));
                }
            }
        }
        phase = node.phase;
        let inputs: Vec<ValueId> = node
            .inputs
            .iter()
            .map(|&v| operand(whole, &mut cuts[stage], v, stage, (phase, chunk), &numbers))
            .collect();
        let name = node.name.as_str();
        let outputs = cuts[stage].push(name, node.op.clone(), (phase, chunk), &inputs);
        for (&v, there) in node.outputs.iter().zip(outputs) {
            cuts[stage].values.insert(v, there);
            for (&(_, to), first) in needs.range((v, 0)..=(v, usize::MAX)) {
                if phase == Phase::Update || *first != Phase::Update {
                    send(&mut cuts[stage], v, numbers[&(v, to)], (phase, chunk));
                }
            }
        }
    }
    for c in &whole.carried {
        for (stage, cut) in cuts.iter_mut().enumerate() {
            let Some(&state) = cut.values.get(&c.state) else { continue };
            let next = operand(whole, cut, c.next, stage, (Phase::Update, 0), &numbers);
            cut.graph.carried.push(Carried { state, next });
        }
    }
    for v in &whole.outputs {
        let home = places[maker(*v).unwrap().index()].stage;
        let there = cuts[home].values[v];
        cuts[home].graph.outputs.push(there);
    }
    (cuts, channels)
}

fn send(cut: &mut Cut, v: ValueId, channel: u32, at: (Phase, u32)) {
    let operand = cut.values[&v];
    cut.push(&format!("send {channel}"), Send { channel }.into(), at, &[operand]);
}

/// A value of the whole in a stage; received if it is made elsewhere.
fn operand(
    whole: &Graph,
    cut: &mut Cut,
    v: ValueId,
    stage: usize,
    at: (Phase, u32),
    numbers: &BTreeMap<(ValueId, usize), u32>,
) -> ValueId {
    if let Some(&there) = cut.values.get(&v) {
        return there;
    }
    let value = whole.value(v);
    let there = match &value.def {
        ValueDef::Node { .. } => {
            let (channel, ty) = (numbers[&(v, stage)], value.ty.clone());
            cut.push(&value.name, Receive { channel, ty }.into(), at, &[])[0]
        }
        def => cut.graph.add_value(value.name.clone(), value.ty.clone(), def.clone()),
    };
    cut.values.insert(v, there);
    there
}

/// The places of nodes whose parts are dealt out to stages: for each part, its stage; a stage's chunks are its parts
/// in order.
pub fn places(part_of: &[usize], stage_of: &[usize]) -> Vec<Place> {
    let place = |&part: &usize| {
        let stage = stage_of[part];
        let chunk = stage_of[..part].iter().filter(|&&s| s == stage).count() as u32;
        Place { stage, chunk }
    };
    part_of.iter().map(place).collect()
}
