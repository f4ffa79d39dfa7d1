//! The rank program: what one rank runs.
//!
//! A program is SPMD: all ranks of a stage run the same instructions, on local parts that differ by
//! coordinate. Buffers are described by global type and sharding; the local extents and the global
//! position of a rank's part follow from its coordinate alone ([`Buffer::local`]). The instruction
//! set is closed: kernels, and resharding steps of which some are collectives. Every transfer is an
//! explicit instruction, so a runtime decides nothing. Communication may run beside compute; [`streams`] says
//! what that means.

pub mod kernel;
mod lift;
pub mod order;
pub mod passes;
pub mod pipeline;
pub mod streams;
pub mod under_way;
pub mod verify;

pub use kernel::{Kernel, PoolKind, Window};
pub use order::{Action, Pass, PassInstrs};
pub use pipeline::{Pipeline, Place};

use crate::graph::TensorType;
use crate::sharding::reshard::Step;
use crate::sharding::{Mesh, Sharding};
use serde::{Deserialize, Serialize};

/// An index into [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

impl BufferId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tensor of which each rank holds its part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    /// Name of the value in the user's model; several buffers hold one value in several shardings.
    pub name: String,
    /// Global type.
    #[serde(flatten)]
    pub ty: TensorType,
    /// How it is split.
    pub sharding: Sharding,
    /// Whether its extents are only known when the program runs. A dynamic buffer is whole on every
    /// rank and has no place in the arena; its type says the element type alone (its rank is 0).
    /// Reference kernels of ops that leave extents open write and read it, and the caller may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dynamic: bool,
    /// Of how many micro-batches at once it holds the contents, where several are under way: micro-batch `m` has
    /// its copy `m mod copies`. Copies lie one behind the other, each aligned.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub copies: u32,
    /// Where it, or its first copy, lies in the rank's arena.
    #[serde(flatten)]
    pub slot: Slot,
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for a reference
const fn is_one(n: &u32) -> bool {
    *n == 1
}

/// A place in the arena; sizes and offsets are the same on all ranks (the largest part decides).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Offset from the start of the arena, a multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// Bytes of the largest part.
    pub bytes: u64,
}

/// Alignment of buffers in the arena, in bytes.
pub const ALIGNMENT: u64 = 256;

/// A rank's part of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Type with the local extents.
    pub ty: TensorType,
    /// Position of the part in the whole: the first index held, one a dimension.
    pub start: Vec<u64>,
    /// Extents of the whole.
    pub global: Vec<u64>,
}

impl Buffer {
    /// Bytes that the largest part on any rank takes in the arena; `u64::MAX` when they would overflow.
    pub fn max_bytes(&self, mesh: &Mesh) -> u64 {
        if self.dynamic {
            return 0;
        }
        TensorType::new(self.ty.dtype, self.sharding.max_local_shape(&self.ty.shape, mesh)).bytes()
    }

    /// Bytes from where its first copy begins to where its last one ends, each as large as the slot says; none if
    /// they would overflow.
    pub fn footprint(&self) -> Option<u64> {
        let others = u64::from(self.copies.saturating_sub(1));
        let distance = self.slot.bytes.checked_next_multiple_of(ALIGNMENT)?;
        others.checked_mul(distance)?.checked_add(self.slot.bytes)
    }

    /// Where its copy for a micro-batch lies in the arena. Its footprint is in range.
    pub fn copy_offset(&self, micro_batch: u32) -> u64 {
        let copy = u64::from(micro_batch % self.copies.max(1));
        self.slot.offset + copy * self.slot.bytes.next_multiple_of(ALIGNMENT)
    }

    /// The part that the rank at `coord` holds; of a dynamic buffer, only the element type is right.
    pub fn local(&self, mesh: &Mesh, coord: &[u32]) -> Local {
        let ranges = self.sharding.ranges(&self.ty.shape, mesh, coord);
        Local {
            ty: TensorType::new(
                self.ty.dtype,
                ranges.iter().map(|r| r.end - r.start).collect::<Vec<_>>(),
            ),
            start: ranges.iter().map(|r| r.start).collect(),
            global: self.ty.shape.clone(),
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Instr {
    /// Runs a kernel on local parts.
    Kernel {
        /// The node of the user's model that it comes from.
        node: String,
        /// What runs.
        kernel: Kernel,
        /// Operands.
        inputs: Vec<BufferId>,
        /// Results.
        outputs: Vec<BufferId>,
    },
    /// Changes a value's sharding by one step, over the step's mesh axes.
    Reshard {
        /// What is done.
        step: Step,
        /// From.
        input: BufferId,
        /// To.
        output: BufferId,
    },
    /// Begins collective steps beside compute, as one: all do the same, over the same axes.
    Issue {
        /// What is done to each input.
        steps: Vec<Step>,
        /// From, one a step.
        inputs: Vec<BufferId>,
        /// To, one a step.
        outputs: Vec<BufferId>,
    },
    /// Waits for what was issued to fill a buffer, and for all that was issued before.
    Wait {
        /// The buffer.
        buffer: BufferId,
    },
    /// Sends a value to another stage, without waiting until it is there.
    Send {
        /// The [channel](crate::plan::Channel) by which it goes.
        channel: u32,
        /// The value, with nothing left to reduce.
        buffer: BufferId,
    },
    /// Receives a value from another stage, of the same micro-batch if it goes for each.
    Receive {
        /// The channel by which it comes.
        channel: u32,
        /// What it fills, with nothing left to reduce.
        buffer: BufferId,
    },
}

impl Instr {
    /// The buffers that it reads; of a wait, the one that it waits for.
    pub fn reads(&self) -> &[BufferId] {
        match self {
            Self::Kernel { inputs, .. } | Self::Issue { inputs, .. } => inputs,
            Self::Reshard { input, .. } => std::slice::from_ref(input),
            Self::Wait { buffer } | Self::Send { buffer, .. } => std::slice::from_ref(buffer),
            Self::Receive { .. } => &[],
        }
    }

    /// The resharding steps that it runs, each with what it leads from and to.
    pub fn steps(&self) -> impl Iterator<Item = (&Step, BufferId, BufferId)> {
        let steps = match self {
            Self::Reshard { step, .. } => std::slice::from_ref(step),
            Self::Issue { steps, .. } => steps,
            _ => &[],
        };
        let ends = self.reads().iter().zip(self.writes());
        steps.iter().zip(ends).map(|(step, (from, to))| (step, *from, *to))
    }

    /// The buffers that it writes.
    pub fn writes(&self) -> &[BufferId] {
        match self {
            Self::Kernel { outputs, .. } | Self::Issue { outputs, .. } => outputs,
            Self::Reshard { output, .. } => std::slice::from_ref(output),
            Self::Receive { buffer, .. } => std::slice::from_ref(buffer),
            Self::Wait { .. } | Self::Send { .. } => &[],
        }
    }
}

/// The part of a program that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicroBatches {
    /// How often.
    pub count: u32,
    /// How many instructions.
    pub instrs: usize,
}

/// State of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedBuffer {
    /// A weight or an accumulator.
    pub state: BufferId,
    /// What it becomes: of the same type, in the same sharding, in the same place.
    pub next: BufferId,
}

/// What all ranks of one stage run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The mesh.
    pub mesh: Mesh,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Buffers filled before the first instruction from the caller's inputs.
    pub inputs: Vec<BufferId>,
    /// Buffers filled before the first instruction from the model's weights, named as the model
    /// names them.
    pub weights: Vec<BufferId>,
    /// Buffers filled before the first instruction from constants in the plan.
    pub constants: Vec<BufferId>,
    /// Buffers that are zero before the first micro-batch; they alone may be partial without an
    /// instruction having made them so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accumulators: Vec<BufferId>,
    /// Instructions in order.
    pub instrs: Vec<Instr>,
    /// How many of them, from the first on, run once for each micro-batch, on inputs of its own; those that
    /// follow run once after the last. `None`: all, for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batches: Option<MicroBatches>,
    /// In a stage of a pipeline, the passes that the repeated instructions are, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PassInstrs>,
    /// In a stage of a pipeline, when each pass runs for which micro-batch; then come the instructions that run
    /// once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<Action>,
    /// State: `next` lies where `state` lies, so that the next micro-batch or step finds it there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<CarriedBuffer>,
    /// Buffers that hold the results after the last instruction; never partial.
    pub outputs: Vec<BufferId>,
    /// Size of each rank's arena.
    pub arena_bytes: u64,
}

impl Program {
    /// The buffer with this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }
}
