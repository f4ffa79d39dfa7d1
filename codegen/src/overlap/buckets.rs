//! Gradients are reduced in buckets while others are still made.
//!
//! A reduction is one of a gradient if nothing waits for its result where gradients are made but what is
//! done element by element at the end: accumulation, the optimizer. It joins the bucket of its kind as
//! soon as its operand is there. A full bucket is issued; then the one before it is waited for, and the
//! work on its results, put off so far, is done. So at most two buckets are in flight, which bounds the
//! memory that they hold, and while compute waits the communication stream has work.

use super::uses::Uses;
use planc_ir::DType;
use planc_ir::program::{BufferId, Instr, Program};
use planc_ir::sharding::reshard::Step;
use std::ops::Range;

/// The instructions of a part, with its reductions of gradients in buckets. From instruction `update` on no
/// gradients are made any more.
pub fn form(
    program: &Program,
    uses: &Uses,
    part: Range<usize>,
    update: usize,
    bucket_bytes: u64,
) -> Vec<Instr> {
    let zones = Zones { part: part.clone(), update };
    let put_off = put_off(program, uses, &zones);
    let mut former = Former {
        program,
        uses,
        put_off: &put_off,
        bucket_bytes,
        out: Vec::with_capacity(part.len()),
        number: 0,
        open: Vec::new(),
        flying: None,
        pending: vec![None; program.buffers.len()],
    };
    let count = program.instrs.len();
    let mut how = vec![How::Stays; count];
    // What is moved, by the instruction that it is moved behind.
    let mut behind: Vec<Vec<usize>> = vec![Vec::new(); count];
    for at in part.clone() {
        how[at] = zones.how(program, uses, &put_off, at);
        if let How::Behind(maker) = how[at] {
            behind[maker].push(at);
        }
    }
    for at in part {
        if at == update {
            former.issue_all();
        }
        match how[at] {
            How::Stays => former.instr(at),
            How::Joins => former.join(at),
            How::Behind(_) => {}
        }
        for &moved in &behind[at] {
            former.join(moved);
        }
    }
    former.finish()
}

/// What becomes of an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// It is no reduction of a gradient.
    Stays,
    /// It joins a bucket where it is.
    Joins,
    /// It joins a bucket behind the instruction that makes its operand.
    Behind(usize),
}

/// Where in a part gradients are made, and where they are used.
struct Zones {
    part: Range<usize>,
    update: usize,
}

impl Zones {
    /// The end of the zone that an instruction is in.
    fn end(&self, at: usize) -> usize {
        if at < self.update { self.part.end.min(self.update) } else { self.part.end }
    }

    fn how(&self, program: &Program, uses: &Uses, put_off: &[bool], at: usize) -> How {
        let Instr::Reshard { step, input, output } = &program.instrs[at] else {
            return How::Stays;
        };
        let reduces = matches!(step, Step::AllReduce { .. } | Step::ReduceScatter { .. });
        if !reduces || uses.state(*input).is_some() || uses.replaces(*output).is_some() {
            return How::Stays;
        }
        let maker = uses.writer[input.index()].filter(|maker| self.part.contains(maker));
        let maker = maker.filter(|&maker| maker < self.update);
        let end = self.end(maker.unwrap_or(at));
        let mut readers = uses.readers[output.index()].iter().filter(|&&reader| reader < end);
        if !readers.all(|&reader| put_off[reader]) {
            return How::Stays;
        }
        maker.map_or(How::Joins, How::Behind)
    }
}

/// By instruction, whether it is one of the part that can be put off to the end of its zone: nothing but what
/// can be put off, too, reads there what it makes.
fn put_off(program: &Program, uses: &Uses, zones: &Zones) -> Vec<bool> {
    let mut put_off = vec![false; program.instrs.len()];
    for at in zones.part.clone().rev() {
        let instr = &program.instrs[at];
        let elementwise = matches!(instr, Instr::Kernel { kernel, .. } if kernel.is_elementwise());
        let readers = instr.writes().iter().flat_map(|b| &uses.readers[b.index()]);
        let mut readers = readers.filter(|&&reader| reader < zones.end(at));
        put_off[at] = elementwise && readers.all(|&reader| put_off[reader]);
    }
    put_off
}

/// Reductions that run as one.
struct Bucket {
    number: u32,
    dtype: DType,
    bytes: u64,
    steps: Vec<Step>,
    inputs: Vec<BufferId>,
    outputs: Vec<BufferId>,
    /// Instructions that use its results.
    put_off: Vec<usize>,
}

struct Former<'a> {
    program: &'a Program,
    uses: &'a Uses,
    /// By instruction, whether it can be put off.
    put_off: &'a [bool],
    /// A bucket is issued when it holds so much on a rank.
    bucket_bytes: u64,
    out: Vec<Instr>,
    /// Buckets so far.
    number: u32,
    /// Buckets that are not issued yet, the oldest first; few, as each is of another kind.
    open: Vec<Bucket>,
    /// The last one that was issued, if it is not waited for yet.
    flying: Option<Bucket>,
    /// By buffer, the bucket that must be done before it is there.
    pending: Vec<Option<u32>>,
}

impl Former<'_> {
    /// Appends an instruction, or puts it off.
    fn instr(&mut self, at: usize) {
        let instr = &self.program.instrs[at];
        let mut awaited: Vec<u32> =
            instr.reads().iter().filter_map(|b| self.pending[b.index()]).collect();
        awaited.sort_unstable();
        awaited.dedup();
        // What is put off may read state that this writes over.
        let replaced: Vec<_> =
            instr.writes().iter().filter_map(|&b| self.uses.replaces(b)).collect();
        let overwritten = self.reading(&replaced);
        if let ([bucket], true, true) =
            (&awaited[..], self.put_off[at], overwritten.iter().all(|b| awaited.contains(b)))
        {
            for b in instr.writes() {
                self.pending[b.index()] = Some(*bucket);
            }
            let mut buckets = self.open.iter_mut().chain(&mut self.flying);
            if let Some(bucket) = buckets.find(|b| b.number == *bucket) {
                bucket.put_off.push(at);
            }
            return;
        }
        for bucket in overwritten.into_iter().chain(awaited) {
            self.settle(bucket);
        }
        self.out.push(instr.clone());
    }

    /// The buckets for whose results something waits that reads one of these states.
    fn reading(&self, states: &[BufferId]) -> Vec<u32> {
        if states.is_empty() {
            return Vec::new();
        }
        let reads = |at: &usize| {
            let mut read = self.program.instrs[*at].reads().iter();
            read.any(|&b| self.uses.state(b).is_some_and(|state| states.contains(&state)))
        };
        let buckets = self.open.iter().chain(&self.flying);
        buckets.filter(|b| b.put_off.iter().any(reads)).map(|b| b.number).collect()
    }

    /// Puts a reduction into a bucket.
    fn join(&mut self, at: usize) {
        let Instr::Reshard { step, input, output } = &self.program.instrs[at] else { return };
        if let Some(bucket) = self.pending[input.index()] {
            self.settle(bucket);
        }
        let buffer = self.program.buffer(*input);
        let dtype = buffer.ty.dtype;
        let is_its =
            |b: &Bucket| b.dtype == dtype && b.steps.first().is_some_and(|s| s.joins(step));
        let place = self.open.iter().position(is_its).unwrap_or_else(|| {
            self.number += 1;
            self.open.push(Bucket {
                number: self.number,
                dtype,
                bytes: 0,
                steps: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                put_off: Vec::new(),
            });
            self.open.len() - 1
        });
        let bucket = &mut self.open[place];
        bucket.steps.push(step.clone());
        bucket.inputs.push(*input);
        bucket.outputs.push(*output);
        bucket.bytes = bucket.bytes.saturating_add(buffer.max_bytes(&self.program.mesh));
        self.pending[output.index()] = Some(bucket.number);
        if bucket.bytes >= self.bucket_bytes {
            let full = self.open.remove(place);
            self.issue(full);
        }
    }

    /// Issues a bucket, and waits for the one before it.
    fn issue(&mut self, bucket: Bucket) {
        self.out.push(Instr::Issue {
            steps: bucket.steps.clone(),
            inputs: bucket.inputs.clone(),
            outputs: bucket.outputs.clone(),
        });
        if let Some(before) = self.flying.replace(bucket) {
            self.wait(before);
        }
    }

    fn issue_all(&mut self) {
        for bucket in std::mem::take(&mut self.open) {
            self.issue(bucket);
        }
    }

    /// Waits for a bucket and does what was put off for it.
    fn wait(&mut self, bucket: Bucket) {
        if let Some(&buffer) = bucket.outputs.last() {
            self.out.push(Instr::Wait { buffer });
        }
        self.done(bucket);
    }

    fn done(&mut self, bucket: Bucket) {
        for b in bucket.outputs {
            self.pending[b.index()] = None;
        }
        for at in bucket.put_off {
            let instr = &self.program.instrs[at];
            for b in instr.writes() {
                self.pending[b.index()] = None;
            }
            self.out.push(instr.clone());
        }
    }

    /// Sees to it that a bucket is done.
    fn settle(&mut self, number: u32) {
        if let Some(place) = self.open.iter().position(|b| b.number == number) {
            let bucket = self.open.remove(place);
            if let ([step], [input], [output]) =
                (&bucket.steps[..], &bucket.inputs[..], &bucket.outputs[..])
            {
                let (step, input, output) = (step.clone(), *input, *output);
                self.out.push(Instr::Reshard { step, input, output });
                self.done(bucket);
                return;
            }
            self.issue(bucket);
        }
        if let Some(bucket) = self.flying.take_if(|b| b.number == number) {
            self.wait(bucket);
        }
    }

    /// Ends the part: nothing stays in flight.
    fn finish(mut self) -> Vec<Instr> {
        self.issue_all();
        if let Some(last) = self.flying.take() {
            self.wait(last);
        }
        self.out
    }
}
