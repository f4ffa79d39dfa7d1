//! Random legal strategies.

use fastrand::Rng;
use planc_ir::sharding::{AxisUse, Mesh, OpStrategy, Sharding, Strategy, op_shardings};
use planc_ir::{Graph, NodeId, ValueId};

/// A random legal strategy of a graph.
pub fn strategy(graph: &Graph, mesh: &Mesh, rng: &mut Rng) -> Strategy {
    let ops = graph.node_ids().map(|id| draw_op(graph, id, mesh, rng)).collect();
    let mut homes = rng.fork();
    Strategy::from_ops(graph, mesh.clone(), ops, |v| draw_home(graph, v, mesh, &mut homes))
        .expect("the drawn strategy is legal")
}

/// A random legal strategy of a node; replication if chance finds none.
fn draw_op(graph: &Graph, id: NodeId, mesh: &Mesh, rng: &mut Rng) -> OpStrategy {
    let rule = graph.rule(id);
    let uses = rule.axis_uses();
    for _ in 0..20 {
        let axes: Vec<AxisUse> = (0..mesh.rank()).map(|_| uses[rng.usize(..uses.len())]).collect();
        let strategy = OpStrategy { axes };
        if op_shardings(graph, id, mesh, &strategy).is_ok() {
            return strategy;
        }
    }
    OpStrategy::replicated(mesh)
}

/// A random sharding of a value that is loaded.
fn draw_home(graph: &Graph, v: ValueId, mesh: &Mesh, rng: &mut Rng) -> Sharding {
    let ty = graph.ty(v);
    let mut home = Sharding::replicated(ty.rank());
    for axis in mesh.axis_ids() {
        if ty.rank() > 0 && rng.bool() {
            home.dims[rng.usize(..ty.rank())].axes.push(axis);
        }
    }
    home.canonical(&ty.shape, mesh)
}
