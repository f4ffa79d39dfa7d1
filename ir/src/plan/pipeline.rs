//! Checks how the stages of a plan fit together and lists every finding.
//!
//! The programs are sound each by itself ([`verify`](crate::program::verify::verify)). Then a plan without findings
//! has these properties:
//!
//! 1. **Ranks**: each stage has consecutive ranks of its own, and together they have all from 0 on.
//! 2. **Micro-batches** are as many in every stage.
//! 3. **Channels** are those that programs name. One instruction sends by each, in the stage that it leads from,
//!    and one receives, in the stage that it leads to: the same type, both for each micro-batch or both once
//!    a step. A stage that uses one for each of several micro-batches has passes.
//! 4. **Progress**: sends do not wait and receives do, and so every stage comes to its end.

use super::{Channel, Stage};
use crate::graph::TensorType;
use crate::program::passes::pass_of;
use crate::program::{Instr, Program};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A property that a plan lacks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum Finding {
    #[error("the plan has no stages")]
    NoStages,
    #[error("stage {stage} begins with rank {found}, not {expected}")]
    Ranks { stage: usize, expected: u64, found: u32 },
    #[error("stage {stage} runs {found} micro-batches, the first stage {expected}")]
    MicroBatches { stage: usize, expected: u32, found: u32 },
    #[error("stage {stage}: instruction {instr} names channel {channel}, which there is not")]
    UnknownChannel { stage: usize, instr: usize, channel: u32 },
    #[error(
        "channel {channel} leads {way} stage {stage}, where {found} instructions use it so, not one"
    )]
    Ends { channel: usize, way: &'static str, stage: u32, found: usize },
    #[error(
        "stage {stage}: instruction {instr} uses channel {channel}, which is not between these stages"
    )]
    Elsewhere { stage: usize, instr: usize, channel: u32 },
    #[error("channel {channel}: {sent} is sent, {received} is received")]
    Type { channel: usize, sent: TensorType, received: TensorType },
    #[error(
        "stage {stage} uses channels for each of {micro_batches} micro-batches, but has no passes"
    )]
    NoPasses { stage: usize, micro_batches: u32 },
    #[error("channel {channel}: one end runs for each micro-batch, the other once a step")]
    Frequency { channel: usize },
    #[error(
        "stage {stage} waits for ever: at instruction {instr} for what comes by channel {channel}"
    )]
    Deadlock { stage: usize, instr: usize, channel: u32 },
}

/// One use of a channel.
#[derive(Clone, Copy)]
struct Transfer {
    instr: usize,
    channel: u32,
    sends: bool,
    /// Index of the pass, none for what runs once a step.
    pass: Option<usize>,
}

/// Every property of the module's page that the plan lacks; progress is looked at if the others hold.
pub fn check(stages: &[Stage], channels: &[Channel]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(first) = stages.first() else { return vec![Finding::NoStages] };
    ranks(stages, &mut findings);
    let expected = micro_batches(&first.program);
    for (stage, s) in stages.iter().enumerate() {
        let found = micro_batches(&s.program);
        if found != expected {
            findings.push(Finding::MicroBatches { stage, expected, found });
        }
    }
    let transfers: Vec<Vec<Transfer>> = stages.iter().map(|s| transfers(&s.program)).collect();
    for (stage, (s, list)) in stages.iter().zip(&transfers).enumerate() {
        let micro_batches = micro_batches(&s.program);
        let repeats = micro_batches > 1 && list.iter().any(|t| t.pass.is_some());
        if repeats && s.program.order.is_empty() {
            findings.push(Finding::NoPasses { stage, micro_batches });
        }
    }
    ends(stages, channels, &transfers, &mut findings);
    if findings.is_empty() {
        progress(stages, &transfers, &mut findings);
    }
    findings
}

fn micro_batches(program: &Program) -> u32 {
    program.micro_batches.map_or(1, |m| m.count)
}

/// Property 1.
fn ranks(stages: &[Stage], findings: &mut Vec<Finding>) {
    let mut by_rank: Vec<(usize, &Stage)> = stages.iter().enumerate().collect();
    by_rank.sort_by_key(|(_, s)| s.first_rank);
    let mut expected = 0;
    for (stage, s) in by_rank {
        if u64::from(s.first_rank) != expected {
            findings.push(Finding::Ranks { stage, expected, found: s.first_rank });
        }
        expected += u64::from(s.program.mesh.ranks());
    }
}

/// The instructions of a program that use channels, in order.
fn transfers(program: &Program) -> Vec<Transfer> {
    let repeated = program.micro_batches.map_or(program.instrs.len(), |m| m.instrs);
    let pass_of = pass_of(program);
    // Without passes, all that is repeated is one.
    let pass = |at: usize| pass_of[at].or((at < repeated).then_some(0));
    let instrs = program.instrs.iter().enumerate();
    instrs
        .filter_map(|(instr, i)| match *i {
            Instr::Send { channel, .. } => {
                Some(Transfer { instr, channel, sends: true, pass: pass(instr) })
            }
            Instr::Receive { channel, .. } => {
                Some(Transfer { instr, channel, sends: false, pass: pass(instr) })
            }
            _ => None,
        })
        .collect()
}

/// Property 3.
fn ends(
    stages: &[Stage],
    channels: &[Channel],
    transfers: &[Vec<Transfer>],
    findings: &mut Vec<Finding>,
) {
    let mut uses: Vec<[Vec<(usize, Transfer)>; 2]> = vec![Default::default(); channels.len()];
    for (stage, list) in transfers.iter().enumerate() {
        for t in list {
            let (instr, channel) = (t.instr, t.channel);
            let Some(c) = channels.get(channel as usize) else {
                findings.push(Finding::UnknownChannel { stage, instr, channel });
                continue;
            };
            if (if t.sends { c.from } else { c.to }) as usize == stage {
                uses[channel as usize][usize::from(t.sends)].push((stage, *t));
            } else {
                findings.push(Finding::Elsewhere { stage, instr, channel });
            }
        }
    }
    let ty = |(stage, t): (usize, Transfer)| {
        let program = &stages[stage].program;
        let instr = &program.instrs[t.instr];
        let buffer = instr.reads().iter().chain(instr.writes()).next();
        buffer.map(|&b| program.buffer(b).ty.clone())
    };
    for (channel, (c, [received, sent])) in channels.iter().zip(&uses).enumerate() {
        for (way, stage, found) in [("from", c.from, sent.len()), ("to", c.to, received.len())] {
            if found != 1 {
                findings.push(Finding::Ends { channel, way, stage, found });
            }
        }
        let (&[sent], &[received]) = (&sent[..], &received[..]) else { continue };
        if let (Some(sent), Some(received)) = (ty(sent), ty(received))
            && sent != received
        {
            findings.push(Finding::Type { channel, sent, received });
        }
        if sent.1.pass.is_some() != received.1.pass.is_some() {
            findings.push(Finding::Frequency { channel });
        }
    }
}

/// Where a stage is in its work.
struct Progress {
    /// By pass, what it sends and receives.
    passes: Vec<Vec<Transfer>>,
    update: Vec<Transfer>,
    /// The passes that it runs and for which micro-batches; all at once, where there are none.
    order: Vec<(usize, u32)>,
    /// How many passes it has run, those of all micro-batches counted.
    action: usize,
    /// How much of the present one.
    next: usize,
}

impl Progress {
    fn new(program: &Program, transfers: &[Transfer]) -> Self {
        let mut passes = vec![Vec::new(); program.passes.len().max(1)];
        let mut update = Vec::new();
        for t in transfers {
            t.pass.map_or(&mut update, |pass| &mut passes[pass]).push(*t);
        }
        let names: BTreeMap<_, usize> =
            program.passes.iter().enumerate().map(|(i, p)| ((p.pass, p.chunk), i)).collect();
        let mut order = vec![(0, 0)];
        if !program.passes.is_empty() {
            let actions = program.order.iter();
            order = actions
                .filter_map(|a| Some((*names.get(&(a.pass, a.chunk))?, a.micro_batch)))
                .collect();
        }
        Self { passes, update, order, action: 0, next: 0 }
    }

    /// What it sends or receives next, and for which micro-batch; none at the end.
    fn transfer(&mut self) -> Option<(Transfer, Option<u32>)> {
        loop {
            let Some(&(pass, micro_batch)) = self.order.get(self.action) else {
                return self.update.get(self.next).map(|t| (*t, None));
            };
            if let Some(t) = self.passes[pass].get(self.next) {
                return Some((*t, Some(micro_batch)));
            }
            self.action += 1;
            self.next = 0;
        }
    }
}

/// Property 4: lets every stage run until it waits, again and again. Who waits for a message is looked at again when
/// it is sent.
fn progress(stages: &[Stage], transfers: &[Vec<Transfer>], findings: &mut Vec<Finding>) {
    let mut all: Vec<Progress> =
        stages.iter().zip(transfers).map(|(s, t)| Progress::new(&s.program, t)).collect();
    let mut sent: BTreeSet<(u32, Option<u32>)> = BTreeSet::new();
    let mut waiting: BTreeMap<(u32, Option<u32>), usize> = BTreeMap::new();
    let mut ready: Vec<usize> = (0..all.len()).collect();
    while let Some(stage) = ready.pop() {
        while let Some((t, micro_batch)) = all[stage].transfer() {
            let message = (t.channel, micro_batch);
            if t.sends {
                sent.insert(message);
                ready.extend(waiting.remove(&message));
            } else if !sent.remove(&message) {
                waiting.insert(message, stage);
                break;
            }
            all[stage].next += 1;
        }
    }
    for ((channel, _), stage) in waiting {
        if let Some((t, _)) = all[stage].transfer() {
            findings.push(Finding::Deadlock { stage, instr: t.instr, channel });
        }
    }
}
