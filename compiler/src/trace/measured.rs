//! A step that ran.

use super::channels::Channels;
use super::chrome::{Chrome, Interval, Row};
use super::label::Label;
use super::{Ranks, TraceError, check_size};
use planc_ir::plan::Plan;
use planc_ir::program::Instr;
use planc_runtime::RankTimes;
use std::collections::BTreeMap;

/// The trace of a step of a plan that ran and took these times. A rank does one thing after another, so it has one row.
///
/// # Errors
/// If the trace would be too large.
pub fn measured(plan: &Plan, times: &[RankTimes]) -> Result<String, TraceError> {
    check_size(plan, Ranks::All)?;
    let labels: Vec<Vec<Label>> = plan.stages.iter().map(|s| Label::all(&s.program)).collect();
    let mut chrome = Chrome::new();
    // When each rank sent and received what goes by a channel for a micro-batch.
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for rank in times {
        let (Some(stage), Some(labels)) = (plan.stages.get(rank.stage), labels.get(rank.stage))
        else {
            continue;
        };
        let row = Row { pid: rank.rank, tid: 0 };
        let name = match plan.stages.len() {
            1 => format!("rank {}", rank.rank),
            _ => format!("stage {}, rank {}", rank.stage, rank.rank),
        };
        chrome.process(row.pid, &name)?;
        chrome.thread(row, "instructions")?;
        for time in &rank.instrs {
            let Some((label, instr)) =
                labels.get(time.instr).zip(stage.program.instrs.get(time.instr))
            else {
                continue;
            };
            let interval = Interval { start_us: time.start_us, end_us: time.end_us };
            let args = label.args(time.micro_batch);
            chrome.span(row, &label.name, label.category, interval, args)?;
            match instr {
                Instr::Send { channel, .. } => {
                    sent.insert((*channel, time.micro_batch, rank.rank), (interval, label));
                }
                Instr::Receive { channel, .. } => {
                    received.insert((*channel, time.micro_batch, rank.rank), interval);
                }
                _ => {}
            }
        }
    }
    let channels = Channels::of(plan, Ranks::All);
    for ((channel, micro_batch, from), (sent, label)) in sent {
        let pairs = channels.pairs(channel).iter().filter(|pair| pair.0 == from);
        for &(_, to) in pairs {
            if let Some(&received) = received.get(&(channel, micro_batch, to)) {
                let rows = [from, to].map(|pid| Row { pid, tid: 0 });
                chrome.arrow(&label.name, (rows[0], sent), (rows[1], received))?;
            }
        }
    }
    Ok(chrome.finish())
}
