//! Ways between shardings: what it takes to bring a value from one to another.

use super::costs::Costs;
use super::space::{Group, Maker, ShardingId, Space};
use planc_ir::TensorType;
use planc_ir::program::ALIGNMENT;
use planc_ir::sharding::reshard::{StepCost, reshard_all, reshard_reduced};
use planc_ir::sharding::{Mesh, Sharding};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A way from one sharding to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Time of all steps.
    pub us: f64,
    /// Bytes of all that the steps make, the result included; 0 where there is nothing to do.
    pub bytes: u64,
}

/// The ways that the groups of a space may take.
pub struct Ways {
    /// By group: the shardings that the maker may leave the values in, ascending.
    pub from: Vec<Vec<ShardingId>>,
    /// By group: the shardings that the values may be needed in, ascending.
    pub to: Vec<Vec<ShardingId>>,
    /// By group: those in which an output may be left to the caller.
    pub finished: Vec<Vec<ShardingId>>,
    table: BTreeMap<(Type, ShardingId, ShardingId), Option<Way>>,
}

/// A tensor type that can be a key.
type Type = (&'static str, Vec<u64>);

fn key(ty: &TensorType) -> Type {
    (ty.dtype.name(), ty.shape.clone())
}

impl Ways {
    /// Finds all ways of a space. Each type and start is searched once, whatever the number of groups.
    /// Finishing an output may add shardings to the space.
    pub fn new(space: &mut Space<'_>, costs: &dyn Costs) -> Self {
        let from: Vec<Vec<ShardingId>> = space.groups.iter().map(|g| left_in(space, g)).collect();
        let mut to: Vec<Vec<ShardingId>> =
            space.groups.iter().map(|g| needed_in(space, g)).collect();
        for (g, to) in to.iter_mut().enumerate() {
            let states = space.groups[g].becomes.iter();
            let homes = states.flat_map(|&s| space.groups[s].homes.iter().copied());
            *to = sorted(to.iter().copied().chain(homes));
        }
        let mut finished = vec![Vec::new(); space.groups.len()];
        for (g, finished) in finished.iter_mut().enumerate() {
            if space.groups[g].output {
                *finished = finishes(space, g, &from[g], &to[g], costs);
                to[g] = sorted(to[g].iter().chain(finished.iter()).copied());
            }
        }
        let mut wanted: BTreeMap<(Type, ShardingId), (usize, BTreeSet<ShardingId>)> =
            BTreeMap::new();
        for (g, group) in space.groups.iter().enumerate() {
            for &f in &from[g] {
                let entry = wanted.entry((key(&group.ty), f)).or_insert((g, BTreeSet::new()));
                entry.1.extend(to[g].iter().copied());
            }
        }
        let rows: Vec<_> = wanted.into_iter().collect();
        let found: Vec<Vec<_>> = rows
            .par_iter()
            .map(|((ty, from), (group, targets))| {
                let targets: Vec<ShardingId> = targets.iter().copied().collect();
                let row = row(space, &space.groups[*group].ty, *from, &targets, costs);
                targets.into_iter().zip(row).map(|(t, way)| ((ty.clone(), *from, t), way)).collect()
            })
            .collect();
        Self { from, to, finished, table: found.into_iter().flatten().collect() }
    }

    /// The way of a group's values from one sharding to another.
    pub fn way(&self, group: &Group, from: ShardingId, to: ShardingId) -> Option<Way> {
        self.table.get(&(key(&group.ty), from, to)).copied().flatten()
    }
}

/// Bytes that a rank holds at most.
pub fn held_bytes(ty: &TensorType, sharding: &Sharding, mesh: &Mesh) -> u64 {
    let local = TensorType::new(ty.dtype, sharding.max_local_shape(&ty.shape, mesh));
    local.bytes().checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

fn row(
    space: &Space<'_>,
    ty: &TensorType,
    from: ShardingId,
    targets: &[ShardingId],
    costs: &dyn Costs,
) -> Vec<Option<Way>> {
    let to: Vec<Sharding> = targets.iter().map(|&t| space.shardings[t].clone()).collect();
    let step_cost: &dyn StepCost = costs;
    let paths = reshard_all(ty, &space.shardings[from], &to, space.mesh, step_cost);
    let way = |path: planc_ir::sharding::reshard::Path| Way {
        us: path.cost_us,
        bytes: path
            .shardings
            .iter()
            .map(|s| held_bytes(ty, s, space.mesh))
            .fold(0, u64::saturating_add),
    };
    paths.into_iter().map(|p| p.map(way)).collect()
}

fn sorted(ids: impl Iterator<Item = ShardingId>) -> Vec<ShardingId> {
    ids.collect::<BTreeSet<_>>().into_iter().collect()
}

fn left_in(space: &Space<'_>, group: &Group) -> Vec<ShardingId> {
    match group.maker {
        Maker::Node { leader, output } => {
            sorted(space.nodes[&leader].iter().map(|c| c.outputs[output as usize]))
        }
        Maker::Loaded(_) => sorted(group.homes.iter().copied()),
    }
}

fn needed_in(space: &Space<'_>, group: &Group) -> Vec<ShardingId> {
    let uses = group.uses.iter();
    sorted(uses.flat_map(|&(l, operand)| space.nodes[&l].iter().map(move |c| c.inputs[operand])))
}

/// What an output may be left in: as it is made or as a reader has it, if that is not partial, and
/// what the cheapest reduction leads to.
fn finishes(
    space: &mut Space<'_>,
    group: usize,
    from: &[ShardingId],
    to: &[ShardingId],
    costs: &dyn Costs,
) -> Vec<ShardingId> {
    let ty = space.groups[group].ty.clone();
    let whole = |space: &Space<'_>, id: ShardingId| space.shardings[id].partial.is_empty();
    let mut all: BTreeSet<ShardingId> =
        from.iter().chain(to).copied().filter(|&id| whole(space, id)).collect();
    let step_cost: &dyn StepCost = costs;
    for &f in from.iter().filter(|&&f| !whole(space, f)).collect::<Vec<_>>() {
        if let Some(path) = reshard_reduced(&ty, &space.shardings[f], space.mesh, step_cost)
            && let Some(end) = path.shardings.last()
        {
            all.insert(space.sharding_id(end));
        }
    }
    all.into_iter().collect()
}
