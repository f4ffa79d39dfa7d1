//! What an instruction is called in a trace, and what is said of it.

use planc_cost_model::timeline::local_bytes;
use planc_ir::program::passes::pass_of;
use planc_ir::program::{BufferId, Instr, Program};
use serde::Serialize;

/// What is said of an event.
#[derive(Clone, Debug, Serialize)]
pub struct Args<'a> {
    /// The instruction's number in its program.
    instr: usize,
    /// For which micro-batch it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_batch: Option<u32>,
    /// As a part of what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
    /// Of the largest part on any rank: what a kernel reads and writes, or what is communicated.
    bytes: u64,
}

/// An instruction's name and more.
#[derive(Clone, Debug)]
pub struct Label {
    /// The node of the user's model, or what is done to which value.
    pub name: String,
    /// Kind of instruction.
    pub category: &'static str,
    /// As a part of what it runs.
    pass: Option<String>,
    bytes: u64,
    instr: usize,
}

impl Label {
    /// Those of all instructions.
    pub fn all(program: &Program) -> Vec<Self> {
        let repeated = program.micro_batches.map_or(program.instrs.len(), |m| m.instrs);
        let passes = pass_of(program);
        let pass = |at: usize| match passes.get(at).copied().flatten() {
            Some(pass) => {
                let p = program.passes[pass];
                let is_only = program.passes.iter().all(|p| p.chunk == 0);
                Some(if is_only {
                    p.pass.to_string()
                } else {
                    format!("{} of chunk {}", p.pass, p.chunk)
                })
            }
            None => (at >= repeated).then(|| "update".to_string()),
        };
        let instrs = program.instrs.iter().enumerate();
        instrs.map(|(at, instr)| Self::new(program, at, instr, pass(at))).collect()
    }

    fn new(program: &Program, at: usize, instr: &Instr, pass: Option<String>) -> Self {
        let value = |b: BufferId| program.buffer(b).name.as_str();
        let (name, category) = match instr {
            Instr::Kernel { node, .. } => (node.clone(), "kernel"),
            Instr::Reshard { step, input, .. } => {
                (format!("{} {}", step.name(), value(*input)), "reshard")
            }
            Instr::Issue { steps, inputs, .. } => {
                let kind = steps.first().map_or("nothing", |step| step.name());
                let name = match &inputs[..] {
                    [] => kind.to_string(),
                    [input] => format!("{kind} {}", value(*input)),
                    [input, others @ ..] => {
                        format!("{kind} {} and {} more", value(*input), others.len())
                    }
                };
                (name, "reshard")
            }
            Instr::Wait { buffer } => (format!("wait {}", value(*buffer)), "wait"),
            Instr::Send { buffer, .. } => (format!("send {}", value(*buffer)), "transfer"),
            Instr::Receive { buffer, .. } => (format!("receive {}", value(*buffer)), "transfer"),
        };
        let counted = match instr {
            Instr::Kernel { inputs, outputs, .. } => [&inputs[..], &outputs[..]],
            Instr::Wait { .. } => [&[][..], &[]],
            Instr::Receive { .. } => [&[], instr.writes()],
            _ => [instr.reads(), &[]],
        };
        let bytes = counted.into_iter().flatten().map(|&b| local_bytes(program, b));
        let bytes = bytes.fold(0, u64::saturating_add);
        Self { name, category, pass, bytes, instr: at }
    }

    /// What is said of it where it runs for a micro-batch, or once.
    pub fn args(&self, micro_batch: Option<u32>) -> Args<'_> {
        let Self { instr, bytes, .. } = *self;
        Args { instr, micro_batch, pass: self.pass.as_deref(), bytes }
    }
}
