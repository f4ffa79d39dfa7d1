//! One thread a rank. None outlives the call, and none waits for one that has failed.

use crate::RunError;
use crate::comm::Comm;
use crate::comm::local::{LocalComm, World};
use crate::executor::Rank;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Does `work` for every rank at the same time. Of several failures, the one that is returned is the
/// lowest rank's that did not merely follow from another's.
pub fn on_each_rank(
    ranks: &mut [Rank],
    work: impl Fn(&mut Rank, &mut LocalComm) -> Result<(), RunError> + Sync,
) -> Result<(), RunError> {
    let world = Arc::new(World::default());
    let work = &work;
    let results: Vec<Result<(), RunError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter_mut()
            .map(|rank| {
                let number = rank.number;
                let mut comm = LocalComm::new(&world);
                let spawned = std::thread::Builder::new()
                    .name(format!("rank {number}"))
                    .spawn_scoped(scope, move || {
                        let result = catch_unwind(AssertUnwindSafe(|| work(rank, &mut comm)))
                            .unwrap_or_else(|payload| Err(panicked(rank, &*payload)));
                        if result.is_err() {
                            comm.abort();
                        }
                        result
                    });
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

fn panicked(rank: &Rank, payload: &(dyn Any + Send)) -> RunError {
    let message = payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    RunError::Panic { rank: rank.number, place: rank.place.clone(), message }
}
