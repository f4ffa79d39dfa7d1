//! Repeated blocks: which nodes share one decision.
//!
//! A network of 96 equal layers is one layer decided once. Nodes are compared at a distance: node `i`
//! *matches* node `i + p` if both apply the same op (but for what a dropout draws) to equal types, and each
//! operand comes either from the same distance back, or from the very same value, or (inputs, weights,
//! constants) from a value of its own of the same type. A stretch of matches of length `L` is a run of `L + p` nodes with period `p`;
//! node `s + k` of the run decides with all others at the same place modulo `p`.
//!
//! The longest run is taken first, then the rest to its left and right is searched in the same way. The
//! first block of a run reads what precedes the run rather than a block, so a run is extended to the
//! left over nodes that differ from the next block's only in that; it must span two blocks then.
//!
//! The phases of a training step are searched one after another. An operand that an earlier phase made matches
//! another if their makers decide together: the gradients of equal layers repeat though they come in the
//! opposite order.
//!
//! A period has at least [`MIN_PERIOD`] nodes, several blocks if need be: strategies that alternate
//! between neighbouring layers (column-parallel, then row-parallel) must stay expressible. Sharing
//! decisions restricts the space that is searched; the certificate says how much is shared.

use planc_ir::ops::Op;
use planc_ir::{Graph, NodeId, TensorType, ValueDef, ValueId};

/// The least number of nodes after which decisions repeat.
pub const MIN_PERIOD: usize = 24;

/// Which nodes share a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// For each node, the first node that it shares its decision with (itself if there is none).
    pub leader: Vec<usize>,
    /// The runs found, in order.
    pub runs: Vec<Run>,
}

/// A run of equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First node.
    pub start: usize,
    /// Number of nodes; the last block may be cut short.
    pub nodes: usize,
    /// Nodes in a block.
    pub period: usize,
}

impl Blocks {
    /// Every node decides for itself.
    pub fn none(graph: &Graph) -> Self {
        Self { leader: (0..graph.nodes.len()).collect(), runs: Vec::new() }
    }

    /// Finds the repeated blocks of a graph, for deciding.
    pub fn find(graph: &Graph) -> Self {
        Self::with_period(graph, MIN_PERIOD)
    }

    /// Finds the repeated blocks of at least `least` nodes.
    pub fn with_period(graph: &Graph, least: usize) -> Self {
        let kind = kinds(graph);
        let mut blocks = Self::none(graph);
        let mut from = 0;
        while from < graph.nodes.len() {
            let phase = graph.nodes[from].phase;
            let to = from + graph.nodes[from..].partition_point(|n| n.phase == phase);
            let mut runs = Vec::new();
            let finder =
                Finder { graph, kind: &kind, least: least.max(1), from, leader: &blocks.leader };
            finder.search(from, to, &mut runs);
            for run in &runs {
                for i in run.start..run.start + run.nodes {
                    blocks.leader[i] = run.start + (i - run.start) % run.period;
                }
            }
            blocks.runs.extend(runs);
            from = to;
        }
        blocks.runs.sort_unstable_by_key(|r| r.start);
        blocks
    }

    /// Number of distinct decisions.
    pub fn distinct_nodes(&self) -> usize {
        self.leader.iter().enumerate().filter(|&(i, &l)| i == l).count()
    }
}

/// Whether two ops split and cost the same on the same types: which elements a dropout drops does not count.
fn alike(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Dropout(a), Op::Dropout(b)) => a.ratio.to_bits() == b.ratio.to_bits(),
        _ => a == b,
    }
}

/// Numbers nodes alike that apply ops that are alike to the same types.
fn kinds(graph: &Graph) -> Vec<usize> {
    let mut seen: Vec<(&Op, Vec<TensorType>, Vec<TensorType>)> = Vec::new();
    let kind = |id: NodeId| {
        let op = &graph.node(id).op;
        let (inputs, outputs) = (graph.input_types(id), graph.output_types(id));
        let same = seen.iter().position(|(o, i, r)| alike(o, op) && *i == inputs && *r == outputs);
        same.unwrap_or_else(|| {
            seen.push((op, inputs, outputs));
            seen.len() - 1
        })
    };
    graph.node_ids().map(kind).collect()
}

struct Finder<'a> {
    graph: &'a Graph,
    kind: &'a [usize],
    /// The least period.
    least: usize,
    /// The first node of the phase that is searched.
    from: usize,
    /// Who decides for the nodes before it.
    leader: &'a [usize],
}

impl Finder<'_> {
    /// Finds the longest run within `lo..hi`, then searches beside it.
    fn search(&self, lo: usize, hi: usize, runs: &mut Vec<Run>) {
        let mut best: Option<Run> = None;
        for period in self.least..=(hi - lo) / 2 {
            let mut start = lo;
            for i in lo..=hi - period {
                if i < hi - period && self.matches(i, period, None) {
                    continue;
                }
                let (length, run_start) = (i - start, start);
                start = i + 1;
                // The first block of a short run matches only once it may read what precedes it.
                if length * 8 < period {
                    continue;
                }
                let run =
                    self.extended(Run { start: run_start, nodes: length + period, period }, lo);
                if run.nodes < 2 * period {
                    continue;
                }
                let shared = |r: &Run| r.nodes - r.period;
                if best.as_ref().is_none_or(|b| shared(&run) > shared(b)) {
                    best = Some(run);
                }
            }
        }
        if let Some(run) = best {
            runs.push(run);
            self.search(lo, run.start, runs);
            self.search(run.start + run.nodes, hi, runs);
        }
    }

    /// Extends a run to the left over nodes whose operands come from before it.
    fn extended(&self, run: Run, lo: usize) -> Run {
        let earliest = run.start.saturating_sub(run.period - 1).max(lo);
        let fits =
            |&start: &usize| (start..run.start).all(|i| self.matches(i, run.period, Some(start)));
        let start = (earliest..run.start).find(fits).unwrap_or(run.start);
        Run { start, nodes: run.nodes + run.start - start, ..run }
    }

    /// Whether node `i` matches node `i + period`; operands from before node `first` may differ.
    fn matches(&self, i: usize, period: usize, first: Option<usize>) -> bool {
        let j = i + period;
        if self.kind[i] != self.kind[j] {
            return false;
        }
        let (a, b) = (&self.graph.nodes[i].inputs, &self.graph.nodes[j].inputs);
        a.iter().zip(b).all(|(&u, &v)| u == v || self.operands_match(u, v, period, first))
    }

    fn operands_match(&self, u: ValueId, v: ValueId, period: usize, first: Option<usize>) -> bool {
        match (&self.graph.value(u).def, &self.graph.value(v).def) {
            (ValueDef::Node { node: a, output: x }, ValueDef::Node { node: b, output: y }) => {
                if a.index() < self.from || b.index() < self.from {
                    let decide_together = self.leader[a.index()] == self.leader[b.index()];
                    return x == y && a.index().max(b.index()) < self.from && decide_together;
                }
                let outside = first.is_some_and(|first| a.index() < first);
                x == y && (b.index() == a.index() + period || outside)
            }
            (_, ValueDef::Node { .. }) => first.is_some(),
            (ValueDef::Weight(_), ValueDef::Weight(_))
            | (ValueDef::Input, ValueDef::Input)
            | (ValueDef::Accumulator, ValueDef::Accumulator)
            | (ValueDef::Constant(_), ValueDef::Constant(_)) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graphs::{apply, weight};
    use super::*;
    use planc_ir::DType;
    use planc_ir::ops::map::Map;
    use planc_ir::ops::matmul::MatMul;
    use planc_ir::scalar::ScalarFn;

    const MATMUL: MatMul = MatMul { trans_a: false, trans_b: false };

    /// An embedding, `layers` residual blocks of `2 * depth + 1` nodes on a shared mask, and a head.
    fn residual(layers: usize, depth: usize) -> Graph {
        let mut graph = Graph::new("residual");
        let x = graph.input("x", TensorType::new(DType::F32, [8, 16]));
        let mask = graph.input("mask", TensorType::new(DType::F32, [8, 32]));
        let mask = apply(&mut graph, Map { f: ScalarFn::Neg }, &[mask]);
        let w = weight(&mut graph, "embed", &[16, 32]);
        let mut stream = apply(&mut graph, MATMUL, &[x, w]);
        for layer in 0..layers {
            let mut y = stream;
            for i in 0..depth {
                let w = weight(&mut graph, &format!("w{layer}.{i}"), &[32, 32]);
                y = apply(&mut graph, MATMUL, &[y, w]);
                y = apply(&mut graph, Map { f: ScalarFn::Add }, &[y, mask]);
            }
            stream = apply(&mut graph, Map { f: ScalarFn::Add }, &[stream, y]);
        }
        let w = weight(&mut graph, "head", &[32, 5]);
        let head = apply(&mut graph, MATMUL, &[stream, w]);
        graph.outputs.push(head);
        graph
    }

    #[test]
    fn blocks_are_found_from_the_first_node_on() {
        let graph = residual(5, 12);
        let blocks = Blocks::find(&graph);
        assert_eq!(blocks.runs, [Run { start: 2, nodes: 5 * 25, period: 25 }]);
        assert_eq!(blocks.distinct_nodes(), 2 + 25 + 1);
        assert_eq!(blocks.leader[2 + 25 + 7], 2 + 7);
        assert_eq!(*blocks.leader.last().unwrap(), graph.nodes.len() - 1);
    }

    #[test]
    fn the_number_of_decisions_does_not_grow_with_depth() {
        let few = Blocks::find(&residual(3, 12)).distinct_nodes();
        let many = Blocks::find(&residual(30, 12)).distinct_nodes();
        assert_eq!(few, many);
    }

    #[test]
    fn small_blocks_repeat_several_at_a_time() {
        let blocks = Blocks::find(&residual(20, 3));
        assert_eq!(blocks.runs[0].period, 28, "four blocks of seven nodes");
    }

    #[test]
    fn a_block_of_another_width_ends_the_run() {
        let mut graph = residual(3, 12);
        let mut x = *graph.outputs.first().unwrap();
        for i in 0..30 {
            let w = weight(&mut graph, &format!("v{i}"), &[5 + i, 6 + i]);
            x = apply(&mut graph, MATMUL, &[x, w]);
        }
        let blocks = Blocks::find(&graph);
        assert_eq!(blocks.runs, [Run { start: 2, nodes: 75, period: 25 }]);
    }

    #[test]
    fn two_blocks_are_a_run() {
        let graph = residual(2, 12);
        assert_eq!(Blocks::find(&graph).runs, [Run { start: 2, nodes: 50, period: 25 }]);
    }

    #[test]
    fn without_repetition_nothing_is_shared() {
        let graph = residual(1, 4);
        assert_eq!(Blocks::find(&graph), Blocks::none(&graph));
    }
}
