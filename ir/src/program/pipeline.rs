//! What the stages of a pipeline run together, and whether they come to an end.
//!
//! Parts form a chain. Forward, a part waits for the part before it; backward, for the part after it and for what
//! its own forward pass kept; its weights wait for its own backward pass. Sends never wait, and find their receiver
//! by micro-batch, so a stage stands still only where an action of its order needs another that is not done.
//!
//! A model may send more than from part to next part, but nothing against the chain: what it sends is there once
//! the chain is, so orders that come to an end here do so with any such sends.

use super::{Action, Pass};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The stage that holds it.
    pub stage: u32,
    /// Which of the stage's chunks it is.
    pub chunk: u32,
}

/// The orders of all stages, and what they are to run.
#[derive(Clone, Copy, Debug)]
pub struct Pipeline<'a> {
    /// Where each part is, in the order of the chain.
    pub places: &'a [Place],
    /// What is run of each part for each micro-batch; each pass once.
    pub passes: &'a [Pass],
    /// Number of micro-batches.
    pub micro_batches: u32,
    /// The order of each stage.
    pub orders: &'a [Vec<Action>],
}

/// An action of a stage, in a sequence of all actions of all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: usize,
    /// The part that its chunk is.
    pub part: usize,
    /// What it runs.
    pub action: Action,
    /// The step that sends it what it begins with: of the part before it forward, of the part after it backward.
    pub sent_by: Option<usize>,
    /// The step of the same part that kept what it needs.
    pub kept_by: Option<usize>,
}

/// Something that is wrong with the orders of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the messages say it
pub enum OrderFinding {
    #[error("part {part} is on stage {stage}; there are {stages} stages")]
    NoStage { part: usize, stage: u32, stages: usize },
    #[error("parts {first} and {second} are both chunk {chunk} of stage {stage}", chunk = place.chunk, stage = place.stage)]
    SamePlace { first: usize, second: usize, place: Place },
    #[error("the {pass} pass is listed twice")]
    SamePass { pass: Pass },
    #[error("stage {stage}, action {at}: {action} is not a thing that it has to run")]
    Unknown { stage: usize, at: usize, action: Action },
    #[error("stage {stage}, action {at}: {action} has run before")]
    Repeated { stage: usize, at: usize, action: Action },
    #[error("stage {stage} never runs {first}, and in all lacks {count} such passes")]
    Missing { stage: usize, first: Action, count: u32 },
    #[error("stage {stage}, action {at}: {action} needs {needs}, which the stage runs later")]
    Early { stage: usize, at: usize, action: Action, needs: Action },
    #[error("stage {stage} waits for ever at action {at}: {action} needs {needs} of stage {of}")]
    Stuck { stage: usize, at: usize, action: Action, of: usize, needs: Action },
}

impl Pipeline<'_> {
    /// All that is wrong. While there are actions too many or too few, no more than that is looked for.
    pub fn check(&self) -> Vec<OrderFinding> {
        self.sequence().err().unwrap_or_default()
    }

    /// All actions, each after those that it needs, or what is wrong.
    ///
    /// # Errors
    /// What [`Pipeline::check`] gives, if that is anything.
    pub fn sequence(&self) -> Result<Vec<Step>, Vec<OrderFinding>> {
        let parts = self.parts()?;
        let findings = self.complete(&parts);
        if !findings.is_empty() {
            return Err(findings);
        }
        Walk::new(self, &parts).run()
    }

    /// The part at each place, where places and passes are without fault.
    fn parts(&self) -> Result<BTreeMap<Place, usize>, Vec<OrderFinding>> {
        let mut parts = BTreeMap::new();
        let mut findings = Vec::new();
        let mut passes = BTreeSet::new();
        let again = self.passes.iter().filter(|pass| !passes.insert(**pass));
        findings.extend(again.map(|&pass| OrderFinding::SamePass { pass }));
        for (part, &place) in self.places.iter().enumerate() {
            if place.stage as usize >= self.orders.len() {
                let (stage, stages) = (place.stage, self.orders.len());
                findings.push(OrderFinding::NoStage { part, stage, stages });
            } else if let Some(&first) = parts.get(&place) {
                findings.push(OrderFinding::SamePlace { first, second: part, place });
            } else {
                parts.insert(place, part);
            }
        }
        if findings.is_empty() { Ok(parts) } else { Err(findings) }
    }

    /// Whether each stage has each action that it is to run once, and no other.
    fn complete(&self, parts: &BTreeMap<Place, usize>) -> Vec<OrderFinding> {
        let mut findings = Vec::new();
        let passes = |&place: &Place| self.passes.iter().map(move |&pass| ((place, pass), vec![]));
        let mut runs: BTreeMap<(Place, Pass), Vec<(u32, usize)>> =
            parts.keys().flat_map(passes).collect();
        for (stage, order) in self.orders.iter().enumerate() {
            for (at, &action) in order.iter().enumerate() {
                let place = Place { stage: stage as u32, chunk: action.chunk };
                match runs.get_mut(&(place, action.pass)) {
                    Some(run) if action.micro_batch < self.micro_batches => {
                        run.push((action.micro_batch, at));
                    }
                    _ => findings.push(OrderFinding::Unknown { stage, at, action }),
                }
            }
        }
        for ((place, pass), mut run) in runs {
            let stage = place.stage as usize;
            let action = |micro_batch| Action::new(pass, place.chunk, micro_batch);
            run.sort_unstable();
            let again = run.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1]);
            findings.extend(again.map(|(micro_batch, at)| OrderFinding::Repeated {
                stage,
                at,
                action: action(micro_batch),
            }));
            run.dedup_by_key(|(micro_batch, _)| *micro_batch);
            let count = self.micro_batches - run.len() as u32;
            if count > 0 {
                let in_place = (0..).zip(&run).take_while(|(i, (micro_batch, _))| i == micro_batch);
                let first = action(in_place.count() as u32);
                findings.push(OrderFinding::Missing { stage, first, count });
            }
        }
        findings
    }
}

/// A pass of a part.
type PartPass = (usize, Pass);

/// All stages on their way through their orders, which are complete.
struct Walk<'a> {
    pipeline: &'a Pipeline<'a>,
    parts: &'a BTreeMap<Place, usize>,
    /// The step of each action that is done, by [`Walk::slot`].
    done: Vec<Option<usize>>,
    /// How many actions each stage has done.
    reached: Vec<usize>,
    steps: Vec<Step>,
}

impl<'a> Walk<'a> {
    fn new(pipeline: &'a Pipeline<'a>, parts: &'a BTreeMap<Place, usize>) -> Self {
        let actions = pipeline.orders.iter().map(Vec::len).sum();
        Self {
            pipeline,
            parts,
            done: vec![None; actions],
            reached: vec![0; pipeline.orders.len()],
            steps: Vec::with_capacity(actions),
        }
    }

    fn run(mut self) -> Result<Vec<Step>, Vec<OrderFinding>> {
        let mut ready: VecDeque<usize> = (0..self.reached.len()).collect();
        while let Some(stage) = ready.pop_front() {
            while let Some(step) = self.next(stage) {
                self.reached[stage] += 1;
                let slot = self.slot((step.part, step.action.pass), step.action.micro_batch);
                self.done[slot] = Some(self.steps.len());
                self.steps.push(step);
                ready.extend(self.receiver(&step).filter(|&to| to != stage));
            }
        }
        if self.steps.len() == self.done.len() {
            return Ok(self.steps);
        }
        let stages = 0..self.reached.len();
        let early = stages.clone().flat_map(|stage| self.early(stage));
        Err(early.chain(stages.filter_map(|stage| self.stuck(stage))).collect())
    }

    /// Where the table has an action, of those that there are one each.
    fn slot(&self, (part, pass): PartPass, micro_batch: u32) -> usize {
        let passes = self.pipeline.passes;
        let pass = passes.iter().position(|&p| p == pass).unwrap_or_default();
        (part * passes.len() + pass) * self.pipeline.micro_batches as usize + micro_batch as usize
    }

    fn part(&self, stage: usize, action: Action) -> Option<usize> {
        self.parts.get(&Place { stage: stage as u32, chunk: action.chunk }).copied()
    }

    /// The pass that sends this one what it begins with.
    fn sender(&self, (part, pass): PartPass) -> Option<PartPass> {
        let from = match pass {
            Pass::Forward => part.checked_sub(1)?,
            Pass::Backward => Some(part + 1).filter(|&p| p < self.pipeline.places.len())?,
            Pass::Weights => return None,
        };
        Some((from, pass))
    }

    /// The pass of the same part that keeps what this one needs.
    fn keeper(&self, (part, pass): PartPass) -> Option<PartPass> {
        let keeper = match pass {
            Pass::Forward => return None,
            Pass::Backward => Pass::Forward,
            Pass::Weights => Pass::Backward,
        };
        self.pipeline.passes.contains(&keeper).then_some((part, keeper))
    }

    /// The stage that a step sends to.
    fn receiver(&self, step: &Step) -> Option<usize> {
        let part = match step.action.pass {
            Pass::Forward => step.part + 1,
            Pass::Backward => step.part.checked_sub(1)?,
            Pass::Weights => return None,
        };
        Some(self.pipeline.places.get(part)?.stage as usize)
    }

    /// The next step of a stage, if it has all that it needs.
    fn next(&self, stage: usize) -> Option<Step> {
        let action = *self.pipeline.orders[stage].get(self.reached[stage])?;
        let part = self.part(stage, action)?;
        let done = |needs: Option<PartPass>| match needs {
            // Nothing is needed.
            None => Some(None),
            Some(needs) => self.done[self.slot(needs, action.micro_batch)].map(Some),
        };
        let sent_by = done(self.sender((part, action.pass)))?;
        let kept_by = done(self.keeper((part, action.pass)))?;
        Some(Step { stage, part, action, sent_by, kept_by })
    }

    /// The stage's actions that need others which it runs later.
    fn early(&self, stage: usize) -> Vec<OrderFinding> {
        let order = &self.pipeline.orders[stage];
        let mut findings = Vec::new();
        let mut run = BTreeSet::new();
        for (at, &action) in order.iter().enumerate() {
            run.insert(action);
            let Some(part) = self.part(stage, action) else { continue };
            let needs = [self.sender((part, action.pass)), self.keeper((part, action.pass))];
            for (part, pass) in needs.into_iter().flatten() {
                let place = self.pipeline.places[part];
                let needs = Action::new(pass, place.chunk, action.micro_batch);
                if place.stage as usize == stage && !run.contains(&needs) {
                    findings.push(OrderFinding::Early { stage, at, action, needs });
                }
            }
        }
        findings
    }

    /// For what of another stage a stage waits.
    fn stuck(&self, stage: usize) -> Option<OrderFinding> {
        let at = self.reached[stage];
        let action = *self.pipeline.orders[stage].get(at)?;
        let part = self.part(stage, action)?;
        let (part, pass) = self.sender((part, action.pass))?;
        let place = self.pipeline.places[part];
        let of = place.stage as usize;
        let waits = of != stage && self.done[self.slot((part, pass), action.micro_batch)].is_none();
        let needs = Action::new(pass, place.chunk, action.micro_batch);
        waits.then_some(OrderFinding::Stuck { stage, at, action, of, needs })
    }
}
