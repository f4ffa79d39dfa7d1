//! An event simulation of a program on one rank's two streams.
//!
//! Prices what a program does, instruction by instruction, where the search prices what a strategy
//! needs; the two share no more than the prices of ops and collectives.
//!
//! * Kernels and local steps run on the compute stream, issues on the communication stream, as
//!   [`streams`](planc_ir::program::streams) says. A collective that is not issued takes both.
//! * While an issue runs, what is on the compute stream takes longer by
//!   [`CostModel::overlap_slowdown`]. So overlapping never takes longer than one after the other: of the
//!   two streams one always works, and together they do at least as much as one would.
//! * Every rank is taken to hold the largest parts, and all ranks to do the same at the same time.
//! * Nothing is in flight when a micro-batch ends, so all micro-batches take the same time.

use crate::model::CostModel;
use planc_ir::TensorType;
use planc_ir::program::{BufferId, Instr, Program};
use planc_ir::sharding::reshard::StepCost as _;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// How long a program takes, and what it does meanwhile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulation {
    /// From the first instruction to the last.
    pub total_us: f64,
    /// What kernels alone would take.
    pub compute_us: f64,
    /// What collectives and local steps alone would take, by kind of step.
    pub communication_us: BTreeMap<String, f64>,
}

impl Simulation {
    /// What communication adds to the time of the kernels.
    pub fn exposed_us(&self) -> f64 {
        (self.total_us - self.compute_us).max(0.0)
    }

    /// What everything would take one after the other.
    pub fn serial_us(&self) -> f64 {
        self.compute_us + self.communication_us.values().sum::<f64>()
    }

    fn add(&mut self, part: &Self, times: f64) {
        self.total_us += part.total_us * times;
        self.compute_us += part.compute_us * times;
        for (kind, us) in &part.communication_us {
            *self.communication_us.entry(kind.clone()).or_default() += us * times;
        }
    }
}

/// Simulates a program in which the verifier finds nothing.
pub fn simulate(program: &Program, costs: &CostModel) -> Simulation {
    let slowdown = costs.overlap_slowdown();
    let mut sum = Simulation::default();
    let end = program.instrs.len();
    let (repeated, count) =
        program.micro_batches.map_or((end, 1), |m| (m.instrs.min(end), m.count));
    sum.add(&part(program, &program.instrs[..repeated], costs, slowdown), f64::from(count));
    sum.add(&part(program, &program.instrs[repeated..], costs, slowdown), 1.0);
    sum
}

/// Simulates some of a program's instructions, which must not wait for what others issue.
pub fn simulate_instrs(program: &Program, instrs: Range<usize>, costs: &CostModel) -> Simulation {
    let instrs = program.instrs.get(instrs).unwrap_or_default();
    part(program, instrs, costs, costs.overlap_slowdown())
}

/// Time of an instruction by itself, on the slowest device.
pub fn instr_us(program: &Program, instr: &Instr, costs: &CostModel) -> f64 {
    let local = |b: BufferId| {
        let buffer = program.buffer(b);
        let shape = buffer.sharding.max_local_shape(&buffer.ty.shape, &program.mesh);
        TensorType::new(buffer.ty.dtype, shape)
    };
    match instr {
        Instr::Kernel { kernel, inputs, outputs, .. } => {
            let types = |ids: &[BufferId]| ids.iter().map(|&b| local(b)).collect::<Vec<_>>();
            let (inputs, outputs) = (types(inputs), types(outputs));
            match (kernel.op(&inputs, &outputs), outputs.first()) {
                (Ok(op), Some(first)) => costs.op_us(&op.work(&inputs, &outputs), first.dtype),
                _ => 0.0,
            }
        }
        Instr::Reshard { step, input, output } => {
            costs.step_us(step, &local(*input), &local(*output), &program.mesh)
        }
        Instr::Issue { .. } => {
            let steps = instr.steps().map(|(step, from, to)| (step, local(from), local(to)));
            costs.issue_us(steps, &program.mesh)
        }
        // What goes between stages goes beside this, and is priced where the stages are.
        Instr::Wait { .. } | Instr::Send { .. } | Instr::Receive { .. } => 0.0,
    }
}

/// An issue that is not done.
struct InFlight {
    /// Its number among the issues.
    number: usize,
    /// What of it is left.
    left_us: f64,
}

/// The two streams.
struct Streams {
    slowdown: f64,
    now_us: f64,
    in_flight: VecDeque<InFlight>,
}

impl Streams {
    /// Runs something on the compute stream, and what is in flight beside it.
    fn compute(&mut self, mut left_us: f64) {
        while left_us > 0.0 {
            let Some(issue) = self.in_flight.front_mut() else {
                self.now_us += left_us;
                return;
            };
            let slowed_us = left_us * self.slowdown;
            if issue.left_us > slowed_us {
                issue.left_us -= slowed_us;
                self.now_us += slowed_us;
                return;
            }
            self.now_us += issue.left_us;
            left_us -= issue.left_us / self.slowdown;
            self.in_flight.pop_front();
        }
    }

    /// Waits until the issues up to this number are done.
    fn wait(&mut self, number: usize) {
        while let Some(issue) = self.in_flight.front().filter(|i| i.number <= number) {
            self.now_us += issue.left_us;
            self.in_flight.pop_front();
        }
    }
}

fn part(program: &Program, instrs: &[Instr], costs: &CostModel, slowdown: f64) -> Simulation {
    let mut sum = Simulation::default();
    let mut streams = Streams { slowdown, now_us: 0.0, in_flight: VecDeque::new() };
    let mut issues = 0;
    let mut issued_by: BTreeMap<BufferId, usize> = BTreeMap::new();
    for instr in instrs {
        let us = instr_us(program, instr, costs);
        if let Some((step, ..)) = instr.steps().next() {
            *sum.communication_us.entry(step.name().to_string()).or_default() += us;
        }
        match instr {
            Instr::Kernel { .. } => {
                sum.compute_us += us;
                streams.compute(us);
            }
            Instr::Reshard { step, .. } => {
                if step.is_collective() {
                    streams.wait(issues);
                    streams.now_us += us;
                } else {
                    streams.compute(us);
                }
            }
            Instr::Issue { outputs, .. } => {
                issues += 1;
                issued_by.extend(outputs.iter().map(|&b| (b, issues)));
                streams.in_flight.push_back(InFlight { number: issues, left_us: us });
            }
            Instr::Wait { buffer } => {
                if let Some(&issue) = issued_by.get(buffer) {
                    streams.wait(issue);
                }
            }
            Instr::Send { .. } | Instr::Receive { .. } => {}
        }
    }
    streams.wait(issues);
    sum.total_us = streams.now_us;
    sum
}
