//! From a space to a request, and from a choice back to a strategy.
//!
//! Decisions are, in this order: the leading nodes, the groups of loaded values (their home), the
//! groups of graph outputs (what they are left in). Each group of values is an edge from its maker to
//! its readers of one section; state takes part as a reader of what it becomes. Costs are multiplied by how
//! many nodes or values decide alike, and by how often a step runs them.

use super::request::{Choice, Decision, Edge, End, Memory, Request};
use super::space::{Group, Maker, ShardingId, Space};
use super::ways::Ways;
use planc_ir::Phase;
use planc_ir::sharding::{OpStrategy, Sharding, Strategy};
use std::collections::BTreeMap;

/// A request, and what its decisions and edges stand for.
pub struct Formulation {
    /// The request, without memory rows.
    pub request: Request,
    /// Decision of each leading node.
    pub nodes: BTreeMap<usize, usize>,
    /// Decision of each group of loaded values, by group.
    pub loads: BTreeMap<usize, usize>,
    /// Decision of each group of outputs, by group.
    pub sinks: BTreeMap<usize, usize>,
    /// Edges of each group that is read, an output or what state becomes: one a section in which it is.
    pub edges: BTreeMap<(usize, Phase), usize>,
}

impl Formulation {
    /// Poses the problem.
    pub fn new(space: &Space<'_>, ways: &Ways) -> Self {
        let mut decisions = Vec::new();
        let mut nodes = BTreeMap::new();
        for (&leader, candidates) in &space.nodes {
            let node = &space.graph.nodes[leader];
            let repeats = f64::from(space.graph.repeats(node.phase));
            let followers = space.followers(leader) as f64 * repeats;
            nodes.insert(leader, decisions.len());
            decisions.push(Decision {
                name: node.name.clone(),
                cost_us: candidates.iter().map(|c| c.us * followers).collect(),
            });
        }
        let (mut loads, mut sinks) = (BTreeMap::new(), BTreeMap::new());
        for (g, group) in space.groups.iter().enumerate() {
            let name =
                || group.members.first().map_or("", |&v| &space.graph.value(v).name).to_string();
            if matches!(group.maker, Maker::Loaded(_)) {
                loads.insert(g, decisions.len());
                decisions.push(Decision { name: name(), cost_us: vec![0.0; group.homes.len()] });
            }
            if group.output {
                sinks.insert(g, decisions.len());
                decisions
                    .push(Decision { name: name(), cost_us: vec![0.0; ways.finished[g].len()] });
            }
        }
        let mut formulation = Self {
            request: Request { decisions, edges: Vec::new(), memory: Memory::default() },
            nodes,
            loads,
            sinks,
            edges: BTreeMap::new(),
        };
        for (g, group) in space.groups.iter().enumerate() {
            for (section, uses) in formulation.uses(space, ways, g, group) {
                let repeats = f64::from(space.graph.repeats(section));
                let price = group.members.len() as f64 * repeats;
                let edge = formulation.edge(space, ways, g, uses, price);
                formulation.edges.insert((g, section), formulation.request.edges.len());
                formulation.request.edges.push(edge);
            }
        }
        formulation
    }

    /// The readers of a group, by section.
    fn uses(
        &self,
        space: &Space<'_>,
        ways: &Ways,
        g: usize,
        group: &Group,
    ) -> BTreeMap<Phase, Vec<End>> {
        let to = &ways.to[g];
        let mut uses: BTreeMap<Phase, Vec<End>> = BTreeMap::new();
        for &(leader, operand) in &group.uses {
            let class = positions(to, space.nodes[&leader].iter().map(|c| c.inputs[operand]));
            let end = End { decision: self.nodes[&leader], class };
            uses.entry(space.section(group, leader)).or_default().push(end);
        }
        for &state in &group.becomes {
            let class = positions(to, space.groups[state].homes.iter().copied());
            let end = End { decision: self.loads[&state], class };
            uses.entry(space.made_in(group)).or_default().push(end);
        }
        if let Some(&decision) = self.sinks.get(&g) {
            let class = positions(to, ways.finished[g].iter().copied());
            uses.entry(space.last_section()).or_default().push(End { decision, class });
        }
        uses
    }

    fn edge(&self, space: &Space<'_>, ways: &Ways, g: usize, uses: Vec<End>, price: f64) -> Edge {
        let group = &space.groups[g];
        let (from, to) = (&ways.from[g], &ways.to[g]);
        let us = from
            .iter()
            .map(|&f| to.iter().map(|&t| ways.way(group, f, t).map(|w| w.us * price)).collect())
            .collect();
        Edge { from: self.maker(space, ways, g, group), uses, us }
    }

    /// The maker's end of a group's edge.
    fn maker(&self, space: &Space<'_>, ways: &Ways, g: usize, group: &Group) -> End {
        let from = &ways.from[g];
        match group.maker {
            Maker::Node { leader, output } => End {
                decision: self.nodes[&leader],
                class: positions(
                    from,
                    space.nodes[&leader].iter().map(|c| c.outputs[output as usize]),
                ),
            },
            Maker::Loaded(_) => End {
                decision: self.loads[&g],
                class: positions(from, group.homes.iter().copied()),
            },
        }
    }

    /// The decision that settles a group's home, and the home under each of its candidates.
    pub fn home(&self, space: &Space<'_>, g: usize) -> (usize, Vec<ShardingId>) {
        let group = &space.groups[g];
        match group.maker {
            Maker::Node { leader, output } => {
                let homes = space.nodes[&leader].iter().map(|c| c.outputs[output as usize]);
                (self.nodes[&leader], homes.collect())
            }
            Maker::Loaded(_) => (self.loads[&g], group.homes.clone()),
        }
    }

    /// The strategy that a choice stands for.
    pub fn strategy(&self, space: &Space<'_>, choice: &[usize]) -> Strategy {
        let graph = space.graph;
        let leaders = &space.blocks.leader;
        let ops: Vec<OpStrategy> = leaders
            .iter()
            .map(|l| space.nodes[l][choice[self.nodes[l]]].strategy.clone())
            .collect();
        let mut values: Vec<Sharding> =
            graph.values.iter().map(|v| Sharding::replicated(v.ty.rank())).collect();
        for (g, group) in space.groups.iter().enumerate() {
            let (decision, homes) = self.home(space, g);
            for v in &group.members {
                values[v.index()] = space.shardings[homes[choice[decision]]].clone();
            }
        }
        Strategy { mesh: space.mesh.clone(), ops, values, gather_again: space.gather_again }
    }

    /// The choice that comes closest to a strategy: its own where nodes that decide together agree. `None`
    /// if it does what no candidate does.
    pub fn choice(&self, space: &Space<'_>, ways: &Ways, strategy: &Strategy) -> Option<Choice> {
        let mut choice = vec![0; self.request.decisions.len()];
        for (&leader, &decision) in &self.nodes {
            let candidates = &space.nodes[&leader];
            let node = &space.graph.nodes[leader];
            // Strategies that name other axes may mean the same shardings; the results tell.
            let same = candidates.iter().position(|c| c.strategy == strategy.ops[leader]);
            choice[decision] = match same {
                Some(same) => same,
                None => candidates.iter().position(|c| {
                    let mut homes = node.outputs.iter().zip(&c.outputs);
                    homes.all(|(v, &s)| space.shardings[s] == strategy.values[v.index()])
                })?,
            };
        }
        for (&g, &decision) in &self.loads {
            let group = &space.groups[g];
            let home = &strategy.values[group.members.first()?.index()];
            choice[decision] = group.homes.iter().position(|&id| space.shardings[id] == *home)?;
        }
        for (&g, &decision) in &self.sinks {
            let edge = &self.request.edges[self.edges[&(g, space.last_section())]];
            let (mut best, mut least) = (0, f64::INFINITY);
            for (c, _) in ways.finished[g].iter().enumerate() {
                choice[decision] = c;
                match edge.price(&choice) {
                    Some(us) if us < least => (best, least) = (c, us),
                    _ => {}
                }
            }
            choice[decision] = best;
        }
        Some(choice)
    }
}

/// The position of each item in an ascending list that holds them all.
fn positions(of: &[ShardingId], items: impl Iterator<Item = ShardingId>) -> Vec<usize> {
    items.map(|item| of.partition_point(|&x| x < item)).collect()
}
