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
    let mut sum = Simulation::default();
    let end = program.instrs.len();
    let (repeated, count) =
        program.micro_batches.map_or((end, 1), |m| (m.instrs.min(end), m.count));
    sum.add(&part(program, 0..repeated, costs).0, f64::from(count));
    sum.add(&part(program, repeated..end, costs).0, 1.0);
    sum
}

/// When each of some of a program's instructions runs, which must not wait for what others issue: the first begins
/// at 0.
pub fn spans(program: &Program, instrs: Range<usize>, costs: &CostModel) -> Vec<InstrSpan> {
    part(program, instrs, costs).1
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

/// One of a rank's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Kernels, local steps, and waiting.
    Compute,
    /// Collectives.
    Communication,
}

/// An instruction, and when it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InstrSpan {
    /// Its number in the program.
    pub instr: usize,
    /// Where it runs; a collective that takes both streams is on that of communication.
    pub stream: Stream,
    /// When it starts.
    pub start_us: f64,
    /// When it ends.
    pub end_us: f64,
}

/// When the last instruction ends; they begin at 0.
pub fn end_us(spans: &[InstrSpan]) -> f64 {
    spans.iter().map(|s| s.end_us).fold(0.0, f64::max)
}

/// An issue that is not done.
struct InFlight {
    /// Its number among the issues.
    number: usize,
    /// The instruction.
    instr: usize,
    /// What of it is left.
    left_us: f64,
}

/// A rank's two streams on their way through a program.
pub(crate) struct Streams<'a> {
    program: &'a Program,
    costs: &'a CostModel,
    slowdown: f64,
    now_us: f64,
    in_flight: VecDeque<InFlight>,
    /// When the first of those in flight began.
    issue_start_us: f64,
    /// How many have been issued.
    issues: usize,
    issued_by: BTreeMap<BufferId, usize>,
    spans: Vec<InstrSpan>,
    sum: Simulation,
}

impl<'a> Streams<'a> {
    /// Streams on which nothing runs.
    pub(crate) fn new(program: &'a Program, costs: &'a CostModel, now_us: f64) -> Self {
        Self {
            program,
            costs,
            slowdown: costs.overlap_slowdown(),
            now_us,
            in_flight: VecDeque::new(),
            issue_start_us: now_us,
            issues: 0,
            issued_by: BTreeMap::new(),
            spans: Vec::new(),
            sum: Simulation::default(),
        }
    }

    /// The time on the compute stream.
    pub(crate) const fn now_us(&self) -> f64 {
        self.now_us
    }

    /// Runs the instruction of this number. A receive finds what it receives.
    pub(crate) fn run(&mut self, number: usize) {
        let instr = &self.program.instrs[number];
        let us = instr_us(self.program, instr, self.costs);
        if let Some((step, ..)) = instr.steps().next() {
            *self.sum.communication_us.entry(step.name().to_string()).or_default() += us;
        }
        let mut start_us = self.now_us;
        let mut stream = Stream::Compute;
        match instr {
            Instr::Kernel { .. } => {
                self.sum.compute_us += us;
                self.compute(us);
            }
            Instr::Reshard { step, .. } if step.is_collective() => {
                self.wait(self.issues);
                (start_us, stream) = (self.now_us, Stream::Communication);
                self.now_us += us;
            }
            Instr::Reshard { .. } => self.compute(us),
            Instr::Issue { outputs, .. } => {
                self.issues += 1;
                self.issued_by.extend(outputs.iter().map(|&b| (b, self.issues)));
                if self.in_flight.is_empty() {
                    self.issue_start_us = self.now_us;
                }
                let issue = InFlight { number: self.issues, instr: number, left_us: us };
                self.in_flight.push_back(issue);
                return; // has its span when it is done
            }
            Instr::Wait { buffer } => {
                if let Some(&issue) = self.issued_by.get(buffer) {
                    self.wait(issue);
                }
            }
            Instr::Send { .. } | Instr::Receive { .. } => {}
        }
        self.spans.push(InstrSpan { instr: number, stream, start_us, end_us: self.now_us });
    }

    /// Runs the receive of this number, of what is there at that time.
    pub(crate) fn receive(&mut self, number: usize, at_us: f64) {
        let start_us = self.now_us;
        while let Some(issue) = self.in_flight.front_mut() {
            if self.now_us + issue.left_us > at_us {
                issue.left_us -= (at_us - self.now_us).max(0.0);
                break;
            }
            self.now_us += issue.left_us;
            self.issue_done();
        }
        self.now_us = self.now_us.max(at_us);
        let (stream, end_us) = (Stream::Compute, self.now_us);
        self.spans.push(InstrSpan { instr: number, stream, start_us, end_us });
    }

    /// Lets what is in flight come to its end, and says what ran when, in order of the starts.
    pub(crate) fn end(mut self) -> (Simulation, Vec<InstrSpan>) {
        self.wait(self.issues);
        self.sum.total_us = self.now_us;
        self.spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.instr.cmp(&b.instr)));
        (self.sum, self.spans)
    }

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
            self.issue_done();
        }
    }

    /// Waits until the issues up to this number are done.
    fn wait(&mut self, number: usize) {
        while let Some(issue) = self.in_flight.front().filter(|i| i.number <= number) {
            self.now_us += issue.left_us;
            self.issue_done();
        }
    }

    /// Ends the first issue in flight; the one after it begins.
    fn issue_done(&mut self) {
        if let Some(InFlight { instr, .. }) = self.in_flight.pop_front() {
            let (start_us, end_us) = (self.issue_start_us, self.now_us);
            let stream = Stream::Communication;
            self.spans.push(InstrSpan { instr, stream, start_us, end_us });
            self.issue_start_us = end_us;
        }
    }
}

fn part(
    program: &Program,
    instrs: Range<usize>,
    costs: &CostModel,
) -> (Simulation, Vec<InstrSpan>) {
    let mut streams = Streams::new(program, costs, 0.0);
    for number in instrs.start..instrs.end.min(program.instrs.len()) {
        streams.run(number);
    }
    streams.end()
}
