//! Schedules of pipelines: what each stage runs when.
//!
//! ```text
//! Schedule + Shape ──placement──▶ where each part is
//!                  ──order──────▶ for each stage its actions
//! ```
//!
//! A schedule knows stages, chunks and micro-batches, and nothing of what they hold or how long they take.
//! [`Pipeline`](planc_ir::program::Pipeline) checks what comes out. In the pictures time goes to the right, a row is
//! a stage, `0` is forward, `a` backward and `A` weights of the first micro-batch, and a dot is time lost. Where
//! weights have no pass of their own, backward takes twice as long as forward and is drawn `aa`.
//!
//! In every schedule each pass of a chunk takes the micro-batches in their order. So those under way are
//! consecutive, which keeps their number of copies least, and sums over micro-batches round the same way whatever
//! the schedule.

mod gpipe;
mod inference;
mod interleaved;
mod one_f_one_b;
mod zero_bubble;
mod zero_bubble_v;

use planc_ir::program::{Action, Pass, Place};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// So many actions may a pipeline have; more would not be a plan that anyone can keep.
pub const MAX_ACTIONS: u64 = 1 << 24;

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schedule {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// One forward, one backward, with several parts on a stage.
    Interleaved,
    /// Gradients of weights apart, with the memory of one forward, one backward (ZB-H1).
    ZeroBubble,
    /// The same with two parts on a stage, down the stages and back up (ZB-V).
    ZeroBubbleV,
    /// Forward alone.
    Inference,
}

/// How a pipeline is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of stages.
    pub stages: u32,
    /// Number of chunks on each stage.
    pub chunks: u32,
    /// Number of micro-batches.
    pub micro_batches: u32,
}

/// A schedule that there is not, or not of this shape.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum ScheduleError {
    #[error("unknown schedule `{name}`; known schedules: {known}")]
    UnknownName { name: String, known: String },
    #[error(
        "a pipeline needs at least one stage, one chunk and one micro-batch; this one has {stages}, {chunks} and {micro_batches}"
    )]
    Empty { stages: u32, chunks: u32, micro_batches: u32 },
    #[error("schedule `{schedule}` takes {takes} on a stage, not {chunks}")]
    Chunks { schedule: Schedule, takes: &'static str, chunks: u32 },
    #[error(
        "schedule `interleaved` runs micro-batches in groups of as many as there are stages: {micro_batches} are no \
         multiple of {stages}"
    )]
    Groups { micro_batches: u32, stages: u32 },
    #[error("{actions} actions of stages are more than {MAX_ACTIONS}; take fewer micro-batches")]
    TooMany { actions: u128 },
}

impl Schedule {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::ZeroBubble,
        Self::ZeroBubbleV,
        Self::Inference,
    ];

    /// Its name, by which it is asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zb-h1",
            Self::ZeroBubbleV => "zb-v",
            Self::Inference => "inference",
        }
    }

    /// What it runs of each part for each micro-batch.
    pub const fn passes(self) -> &'static [Pass] {
        match self {
            Self::Inference => &[Pass::Forward],
            Self::GPipe | Self::OneFOneB | Self::Interleaved => &[Pass::Forward, Pass::Backward],
            Self::ZeroBubble | Self::ZeroBubbleV => &[Pass::Forward, Pass::Backward, Pass::Weights],
        }
    }

    /// Checks that there is a schedule of this shape, of a size that can be written down.
    fn accepts(self, shape: Shape) -> Result<(), ScheduleError> {
        let Shape { stages, chunks, micro_batches } = shape;
        if stages == 0 || chunks == 0 || micro_batches == 0 {
            return Err(ScheduleError::Empty { stages, chunks, micro_batches });
        }
        let (fits, takes) = match self {
            Self::Interleaved => (chunks >= 2, "two or more chunks"),
            Self::ZeroBubbleV => (chunks == 2, "two chunks"),
            _ => (chunks == 1, "one chunk"),
        };
        if !fits {
            return Err(ScheduleError::Chunks { schedule: self, takes, chunks });
        }
        if self == Self::Interleaved && micro_batches % stages != 0 {
            return Err(ScheduleError::Groups { micro_batches, stages });
        }
        let written = match self {
            Self::ZeroBubbleV => zero_bubble_v::motions(shape),
            _ => u64::from(micro_batches),
        };
        let actions = u128::from(stages)
            * u128::from(chunks)
            * u128::from(written)
            * self.passes().len() as u128;
        if actions > u128::from(MAX_ACTIONS) {
            return Err(ScheduleError::TooMany { actions });
        }
        Ok(())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(name: &str) -> Result<Self, ScheduleError> {
        Self::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| ScheduleError::UnknownName {
            name: name.to_string(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// For each stage what it runs, in order.
///
/// # Errors
/// If there is no such schedule of this shape.
pub fn order(schedule: Schedule, shape: Shape) -> Result<Vec<Vec<Action>>, ScheduleError> {
    schedule.accepts(shape)?;
    let of_stage = match schedule {
        Schedule::GPipe => gpipe::order,
        Schedule::OneFOneB => one_f_one_b::order,
        Schedule::Interleaved => interleaved::order,
        Schedule::ZeroBubble => zero_bubble::order,
        Schedule::ZeroBubbleV => zero_bubble_v::order,
        Schedule::Inference => inference::order,
    };
    Ok((0..shape.stages).map(|stage| of_stage(shape, stage)).collect())
}

/// Where each part is, in the order of the chain: round and round the stages, but of the V-shaped schedule down the
/// stages and back up.
///
/// # Errors
/// If there is no such schedule of this shape.
pub fn placement(schedule: Schedule, shape: Shape) -> Result<Vec<Place>, ScheduleError> {
    schedule.accepts(shape)?;
    let place = |part: u32| {
        let (chunk, stage) = (part / shape.stages, part % shape.stages);
        let back = schedule == Schedule::ZeroBubbleV && chunk == 1;
        Place { stage: if back { shape.stages - 1 - stage } else { stage }, chunk }
    };
    Ok((0..shape.stages * shape.chunks).map(place).collect())
}

/// The order of a stage as it grows, in which each pass of each chunk takes the next micro-batch.
struct Writer {
    shape: Shape,
    /// Number of micro-batches that are written, by chunk and pass.
    next: Vec<[u32; 3]>,
    actions: Vec<Action>,
}

impl Writer {
    fn new(shape: Shape) -> Self {
        Self { shape, next: vec![[0; 3]; shape.chunks as usize], actions: Vec::new() }
    }

    /// Number of micro-batches of which this pass of the chunk is written.
    fn count(&self, pass: Pass, chunk: u32) -> u32 {
        self.next[chunk as usize][pass as usize]
    }

    /// Writes the pass for the next micro-batch, if there is another.
    fn push(&mut self, pass: Pass, chunk: u32) {
        let next = &mut self.next[chunk as usize][pass as usize];
        if *next < self.shape.micro_batches {
            self.actions.push(Action::new(pass, chunk, *next));
        }
        *next += 1;
    }

    /// Writes the pass for so many micro-batches.
    fn repeat(&mut self, pass: Pass, chunk: u32, times: u32) {
        for _ in 0..times {
            self.push(pass, chunk);
        }
    }
}
