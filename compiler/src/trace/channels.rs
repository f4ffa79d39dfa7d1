//! The ends of a plan's channels.

use super::Ranks;
use planc_ir::plan::Plan;
use planc_ir::program::Instr;
use planc_ir::sharding::transfer::{End, pieces};
use std::collections::{BTreeMap, BTreeSet};

/// An end of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The index of the stage.
    pub stage: usize,
    /// The instruction that sends or receives.
    pub instr: usize,
}

/// A channel.
#[derive(Clone, Debug)]
pub struct Way {
    /// Where it leads from.
    pub from: Use,
    /// Where it leads to.
    pub to: Use,
    /// Which rank sends something to which, among all of the plan.
    pub pairs: Vec<(u32, u32)>,
}

/// All channels of a plan in which [`check`](planc_ir::plan::pipeline::check) finds nothing.
#[derive(Clone, Debug)]
pub struct Channels(BTreeMap<u32, Way>);

impl Channels {
    /// Those of a plan, between the ranks that are shown.
    pub fn of(plan: &Plan, ranks: Ranks) -> Self {
        let mut receives = BTreeMap::new();
        for (stage, s) in plan.stages.iter().enumerate() {
            for (instr, i) in s.program.instrs.iter().enumerate() {
                if let Instr::Receive { channel, buffer } = i {
                    receives.insert(*channel, (Use { stage, instr }, *buffer));
                }
            }
        }
        let mut ways = BTreeMap::new();
        for (stage, sender) in plan.stages.iter().enumerate() {
            for (instr, i) in sender.program.instrs.iter().enumerate() {
                let Instr::Send { channel, buffer } = i else { continue };
                let Some(&(to, received)) = receives.get(channel) else { continue };
                let receiver = &plan.stages[to.stage];
                let global = |(from, to)| (sender.first_rank + from, receiver.first_rank + to);
                let pairs = match ranks {
                    Ranks::One => BTreeSet::from([global((0, 0))]),
                    Ranks::All => {
                        let sent = sender.program.buffer(*buffer);
                        let received = receiver.program.buffer(received);
                        let from = End { mesh: &sender.program.mesh, sharding: &sent.sharding };
                        let to = End { mesh: &receiver.program.mesh, sharding: &received.sharding };
                        let pieces = pieces(&sent.ty.shape, from, to).into_iter();
                        pieces.map(|p| global((p.source, p.destination))).collect()
                    }
                };
                let from = Use { stage, instr };
                ways.insert(*channel, Way { from, to, pairs: pairs.into_iter().collect() });
            }
        }
        Self(ways)
    }

    /// A channel.
    pub fn way(&self, channel: u32) -> Option<&Way> {
        self.0.get(&channel)
    }

    /// Which rank sends something by a channel to which.
    pub fn pairs(&self, channel: u32) -> &[(u32, u32)] {
        self.way(channel).map_or(&[], |way| &way.pairs)
    }
}
