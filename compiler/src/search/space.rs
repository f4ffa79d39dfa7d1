//! The space that is searched: what can be chosen on one mesh.
//!
//! - A **node**'s candidates are all products of what each mesh axis may do ([`axis_uses`]) that its
//!   factor rule accepts. Left out are splits of a factor over more ranks than its extent (parts would
//!   be empty), and of candidates with the same shardings all but the cheapest. Nodes of repeated
//!   blocks share one decision ([`Blocks`]).
//! - A **value that no node defines** (input, weight, constant) is loaded in a home of choice: any
//!   sharding that some reader could need, less what is partial, or replicated. Loading is free.
//! - **State** keeps its home: what it becomes is brought there. An accumulator may be partial.
//! - A **graph output** is left in any sharding that is not partial.
//!
//! Values whose maker and readers decide alike (the same weight of each block, say) form one *group*:
//! they cost the same under every choice.
//!
//! [`axis_uses`]: planc_ir::sharding::FactorRule::axis_uses

use super::blocks::Blocks;
use super::costs::Costs;
use planc_ir::sharding::{AxisUse, FactorRule, Mesh, OpStrategy, ReduceKind, Sharding, section};
use planc_ir::{Graph, NodeId, Phase, TensorType, ValueDef, ValueId};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Index of a sharding in [`Space::shardings`].
pub type ShardingId = usize;

/// One way to run a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeCandidate {
    /// What each axis does.
    pub strategy: OpStrategy,
    /// What each operand must be in.
    pub inputs: Vec<ShardingId>,
    /// What each result is left in.
    pub outputs: Vec<ShardingId>,
    /// Time of the kernel.
    pub us: f64,
}

/// What makes the values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// Result `output` of the nodes led by `leader`.
    Node {
        /// The leading node.
        leader: usize,
        /// Which of its results.
        output: u32,
    },
    /// Nobody: it is loaded.
    Loaded(Source),
}

/// What is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum Source {
    Input,
    Weight,
    Constant,
    Accumulator,
}

/// Values that cost the same under every choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What makes them.
    pub maker: Maker,
    /// Their type.
    pub ty: TensorType,
    /// Leading nodes that read them, and as which operand.
    pub uses: Vec<(usize, usize)>,
    /// Whether they are outputs of the graph.
    pub output: bool,
    /// The values.
    pub members: Vec<ValueId>,
    /// For loaded values, the homes to choose from.
    pub homes: Vec<ShardingId>,
    /// The groups of state that they become, each in the home of that group.
    pub becomes: Vec<usize>,
}

/// Everything that can be chosen on one mesh.
pub struct Space<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Which nodes share decisions.
    pub blocks: &'a Blocks,
    /// Every sharding that occurs.
    pub shardings: Vec<Sharding>,
    /// Candidates of each leading node, in node order.
    pub nodes: BTreeMap<usize, Vec<NodeCandidate>>,
    /// Groups of values.
    pub groups: Vec<Group>,
    /// Whether weights' further forms are made again for the backward phase.
    pub gather_again: bool,
}

/// Gives equal shardings equal numbers.
#[derive(Default)]
struct Interner {
    numbers: BTreeMap<Sharding, ShardingId>,
    all: Vec<Sharding>,
}

impl Interner {
    fn id(&mut self, sharding: Sharding) -> ShardingId {
        *self.numbers.entry(sharding).or_insert_with_key(|s| {
            self.all.push(s.clone());
            self.all.len() - 1
        })
    }
}

impl<'a> Space<'a> {
    /// The space of a graph on a mesh.
    pub fn new(graph: &'a Graph, mesh: &'a Mesh, blocks: &'a Blocks, costs: &dyn Costs) -> Self {
        let leaders: Vec<usize> =
            (0..graph.nodes.len()).filter(|&i| blocks.leader[i] == i).collect();
        let found: Vec<Vec<Candidate>> =
            leaders.par_iter().map(|&i| candidates(graph, NodeId(i as u32), mesh, costs)).collect();
        let mut interner = Interner::default();
        let mut nodes = BTreeMap::new();
        for (leader, candidates) in leaders.into_iter().zip(found) {
            let interned = candidates.into_iter().map(|c| NodeCandidate {
                strategy: c.strategy,
                inputs: c.inputs.into_iter().map(|s| interner.id(s)).collect(),
                outputs: c.outputs.into_iter().map(|s| interner.id(s)).collect(),
                us: c.us,
            });
            nodes.insert(leader, interned.collect());
        }
        let mut groups = groups(graph, blocks);
        let mut next: Vec<Vec<Maker>> = vec![Vec::new(); groups.len()];
        for group in &groups {
            group.becomes.iter().for_each(|&state| next[state].push(group.maker));
        }
        for (group, next) in groups.iter_mut().zip(next) {
            if matches!(group.maker, Maker::Loaded(_)) {
                group.homes = homes(group, &next, &nodes, &mut interner);
            }
        }
        Self { graph, mesh, blocks, shardings: interner.all, nodes, groups, gather_again: false }
    }

    /// The number of a sharding, which it gets if it has none.
    pub fn sharding_id(&mut self, sharding: &Sharding) -> ShardingId {
        let known = self.shardings.iter().position(|s| s == sharding);
        known.unwrap_or_else(|| {
            self.shardings.push(sharding.clone());
            self.shardings.len() - 1
        })
    }

    /// The section to which a leading node belongs as a reader of a group's values.
    pub fn section(&self, group: &Group, leader: usize) -> Phase {
        let reader = self.graph.nodes[leader].phase;
        match group.members.first() {
            Some(&v) => section(self.graph, v, reader, self.gather_again),
            None => reader,
        }
    }

    /// The section in which a group's values are made.
    pub fn made_in(&self, group: &Group) -> Phase {
        match group.maker {
            Maker::Node { leader, .. } => self.section(group, leader),
            Maker::Loaded(_) => self.last_section(),
        }
    }

    /// The section in which the caller gets the graph's outputs, and state that is loaded is copied.
    pub fn last_section(&self) -> Phase {
        let last = self.graph.nodes.last().map_or(Phase::Forward, |n| n.phase);
        if last == Phase::Update { last } else { Phase::Forward }
    }

    /// How many nodes decide with a leading node, itself included.
    pub fn followers(&self, leader: usize) -> usize {
        self.blocks.leader.iter().filter(|&&l| l == leader).count()
    }
}

/// A candidate before its shardings are numbered.
struct Candidate {
    strategy: OpStrategy,
    inputs: Vec<Sharding>,
    outputs: Vec<Sharding>,
    us: f64,
}

fn candidates(graph: &Graph, id: NodeId, mesh: &Mesh, costs: &dyn Costs) -> Vec<Candidate> {
    let op = &graph.node(id).op;
    let (ins, outs) = (graph.input_types(id), graph.output_types(id));
    let rule = graph.rule(id);
    let uses = rule.axis_uses();
    let shapes = |types: &'_ [TensorType]| -> Vec<Vec<u64>> {
        types.iter().map(|t| t.shape.clone()).collect()
    };
    let (in_shapes, out_shapes) = (shapes(&ins), shapes(&outs));
    let in_shapes: Vec<&[u64]> = in_shapes.iter().map(Vec::as_slice).collect();
    let out_shapes: Vec<&[u64]> = out_shapes.iter().map(Vec::as_slice).collect();

    let mut found: Vec<Candidate> = Vec::new();
    let mut seen: BTreeMap<(Vec<Sharding>, Vec<Sharding>), usize> = BTreeMap::new();
    for strategy in products(&uses, mesh) {
        if has_empty_parts(&rule, mesh, &strategy) {
            continue;
        }
        let Some((inputs, outputs)) = rule.shardings(mesh, &strategy, &in_shapes, &out_shapes)
        else {
            continue;
        };
        let valid = |shardings: &[Sharding], shapes: &[&[u64]]| {
            shardings.len() == shapes.len()
                && shardings.iter().zip(shapes).all(|(s, shape)| s.is_valid(shape.len(), mesh))
        };
        if !valid(&inputs, &in_shapes) || !valid(&outputs, &out_shapes) {
            continue;
        }
        let local = |types: &[TensorType], shardings: &[Sharding]| -> Vec<TensorType> {
            let pairs = types.iter().zip(shardings);
            pairs
                .map(|(t, s)| TensorType::new(t.dtype, s.max_local_shape(&t.shape, mesh)))
                .collect()
        };
        let local_outs = local(&outs, &outputs);
        let work = op.work(&local(&ins, &inputs), &local_outs);
        let us = local_outs.first().map_or(0.0, |t| costs.op_us(&work, t.dtype));
        match seen.get(&(inputs.clone(), outputs.clone())) {
            Some(&same) if found[same].us <= us => {}
            Some(&same) => found[same] = Candidate { strategy, inputs, outputs, us },
            None => {
                seen.insert((inputs.clone(), outputs.clone()), found.len());
                found.push(Candidate { strategy, inputs, outputs, us });
            }
        }
    }
    found
}

/// All ways to give each mesh axis one of these uses; full replication first. An axis of one rank has
/// nothing to split.
fn products(uses: &[AxisUse], mesh: &Mesh) -> Vec<OpStrategy> {
    let mut all = vec![Vec::new()];
    for axis in &mesh.axes {
        let uses = if axis.size > 1 { uses } else { &uses[..1] };
        let longer = |head: &Vec<AxisUse>| -> Vec<Vec<AxisUse>> {
            uses.iter().map(|&u| head.iter().copied().chain([u]).collect()).collect()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.into_iter().map(|axes| OpStrategy { axes }).collect()
}

/// Whether some factor is split over more ranks than its extent.
fn has_empty_parts(rule: &FactorRule, mesh: &Mesh, strategy: &OpStrategy) -> bool {
    let mut parts = vec![1u64; rule.factors.len()];
    for (axis, usage) in mesh.axis_ids().zip(&strategy.axes) {
        if let AxisUse::Split(f) = usage {
            parts[f.index()] *= u64::from(mesh.size(axis));
        }
    }
    rule.factors.iter().zip(parts).any(|(f, parts)| parts > f.size.max(1))
}

/// Gathers values by maker, readers and what they become. Weights and constants that nobody reads are in no
/// group.
fn groups(graph: &Graph, blocks: &Blocks) -> Vec<Group> {
    let mut uses: Vec<BTreeSet<(usize, usize)>> = vec![BTreeSet::new(); graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for (operand, v) in node.inputs.iter().enumerate() {
            uses[v.index()].insert((blocks.leader[at], operand));
        }
    }
    let mut states: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for c in &graph.carried {
        states.entry(c.next).or_default().push(c.state);
    }
    let mut grouping = Grouping {
        graph,
        blocks,
        uses,
        groups: Vec::new(),
        numbers: BTreeMap::new(),
        of: vec![None; graph.values.len()],
    };
    for v in graph.value_ids() {
        let becomes = states.remove(&v).unwrap_or_default();
        let becomes: BTreeSet<usize> =
            becomes.into_iter().filter_map(|s| grouping.group(s, BTreeSet::new())).collect();
        grouping.group(v, becomes);
    }
    grouping.groups
}

/// What values of one group have in common: maker, readers, whether they are outputs, type, what they become.
type Key = (Maker, BTreeSet<(usize, usize)>, bool, &'static str, Vec<u64>, BTreeSet<usize>);

struct Grouping<'a> {
    graph: &'a Graph,
    blocks: &'a Blocks,
    uses: Vec<BTreeSet<(usize, usize)>>,
    groups: Vec<Group>,
    numbers: BTreeMap<Key, usize>,
    of: Vec<Option<usize>>,
}

impl Grouping<'_> {
    /// The group of a value that becomes these groups of state.
    fn group(&mut self, v: ValueId, becomes: BTreeSet<usize>) -> Option<usize> {
        if self.of[v.index()].is_some() {
            return self.of[v.index()];
        }
        let maker = match &self.graph.value(v).def {
            ValueDef::Node { node, output } => {
                Maker::Node { leader: self.blocks.leader[node.index()], output: *output }
            }
            ValueDef::Input => Maker::Loaded(Source::Input),
            ValueDef::Weight(_) => Maker::Loaded(Source::Weight),
            ValueDef::Constant(_) => Maker::Loaded(Source::Constant),
            ValueDef::Accumulator => Maker::Loaded(Source::Accumulator),
        };
        let uses = std::mem::take(&mut self.uses[v.index()]);
        let output = self.graph.outputs.contains(&v);
        let unread = uses.is_empty() && !output && becomes.is_empty();
        if unread && matches!(maker, Maker::Loaded(Source::Weight | Source::Constant)) {
            return None;
        }
        let ty = self.graph.ty(v);
        let key = (maker, uses.clone(), output, ty.dtype.name(), ty.shape.clone(), becomes.clone());
        let groups = &mut self.groups;
        let number = *self.numbers.entry(key).or_insert_with(|| {
            groups.push(Group {
                maker,
                ty: ty.clone(),
                uses: uses.into_iter().collect(),
                output,
                members: Vec::new(),
                homes: Vec::new(),
                becomes: becomes.into_iter().collect(),
            });
            groups.len() - 1
        });
        groups[number].members.push(v);
        self.of[v.index()] = Some(number);
        Some(number)
    }
}

/// What a loaded value may be loaded in: as a reader needs it, or as what it becomes is made.
fn homes(
    group: &Group,
    next: &[Maker],
    nodes: &BTreeMap<usize, Vec<NodeCandidate>>,
    interner: &mut Interner,
) -> Vec<ShardingId> {
    let mut homes = vec![interner.id(Sharding::replicated(group.ty.rank()))];
    let mut seen: BTreeSet<ShardingId> = homes.iter().copied().collect();
    let needed = group
        .uses
        .iter()
        .flat_map(|&(leader, operand)| nodes[&leader].iter().map(move |c| c.inputs[operand]));
    let left = next.iter().filter_map(|maker| match *maker {
        Maker::Node { leader, output } => Some((leader, output as usize)),
        Maker::Loaded(_) => None,
    });
    let left =
        left.flat_map(|(leader, output)| nodes[&leader].iter().map(move |c| c.outputs[output]));
    for id in needed.chain(left) {
        let mut home = interner.all[id].clone();
        let is_accumulator = group.maker == Maker::Loaded(Source::Accumulator);
        if !is_accumulator || home.partial.iter().any(|&(_, kind)| kind != ReduceKind::Sum) {
            home.partial.clear();
        }
        let id = interner.id(home);
        if seen.insert(id) {
            homes.push(id);
        }
    }
    homes
}
