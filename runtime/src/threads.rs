//! One thread a rank; a single rank has the caller's. None outlives the call, and none waits for one
//! that has failed.

use crate::RunError;
use crate::comm::Comm;
use crate::comm::local::{LocalComm, World};
use crate::rank::Rank;
use crate::stage::StageProgram;
use planc_ir::program::{Instr, Program};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Does `work` for every rank at the same time. Of several failures, the one that is returned is the
/// lowest rank's that did not merely follow from another's.
pub fn on_each_rank(
    stages: &[StageProgram],
    ranks: &mut [Rank],
    work: impl Fn(&StageProgram, &mut Rank, &mut LocalComm) -> Result<(), RunError> + Sync,
) -> Result<(), RunError> {
    let world = Arc::new(World::default());
    let guarded = |rank: &mut Rank| {
        let mut comm = LocalComm::new(&world);
        let stage = &stages[rank.stage];
        let result = catch_unwind(AssertUnwindSafe(|| work(stage, rank, &mut comm)))
            .unwrap_or_else(|payload| Err(panicked(&stage.program, rank, &*payload)));
        if result.is_err() {
            comm.abort();
        }
        result
    };
    if let [rank] = ranks {
        return guarded(rank);
    }
    let results: Vec<Result<(), RunError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter_mut()
            .map(|rank| {
                let number = rank.number;
                let spawned = std::thread::Builder::new()
                    .name(format!("rank {number}"))
                    .spawn_scoped(scope, || guarded(rank));
                spawned.map_err(|source| {
                    LocalComm::new(&world).abort();
                    RunError::Thread { rank: number, source }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread?.join() {
                Ok(result) => result,
                Err(payload) => std::panic::resume_unwind(payload), // not from `work`
            })
            .collect()
    });
    let failures: Vec<RunError> = results.into_iter().filter_map(Result::err).collect();
    let cause = failures.iter().position(|e| !e.is_consequence()).unwrap_or(0);
    failures.into_iter().nth(cause).map_or(Ok(()), Err)
}

fn panicked(program: &Program, rank: &Rank, payload: &(dyn Any + Send)) -> RunError {
    let message = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    let instr = rank.current.and_then(|number| Some((number, program.instrs.get(number)?)));
    let place = match instr {
        Some((number, Instr::Kernel { node, .. })) => {
            format!("instruction {number} (node `{node}`)")
        }
        Some((number, Instr::Reshard { input, .. })) => {
            format!("instruction {number} (reshard of `{}`)", program.buffer(*input).name)
        }
        Some((number, _)) => format!("instruction {number} (communication)"),
        None => "the loading of its buffers".to_string(),
    };
    RunError::Panic { rank: rank.number, place, message }
}
