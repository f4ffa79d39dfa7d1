//! The orders that schedules write: that the checker finds nothing in them, finds what is wrong in others, and that
//! they keep as much in memory as their papers say.

use planc_codegen::schedule::{self, MAX_ACTIONS, Schedule, ScheduleError, Shape};
use planc_ir::program::pipeline::{OrderFinding, Pipeline};
use planc_ir::program::under_way::copies;
use planc_ir::program::{Action, Pass, Place};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Two micro-batches, of which the second fills its copy while the first still needs the same one, if so many
/// copies are too few.
fn clash(order: &[Action], chunk: u32, from: Pass, to: Pass, copies: u32) -> Option<(u32, u32)> {
    let copies = copies.max(1);
    let mut holders = BTreeMap::new();
    for action in order.iter().filter(|a| a.chunk == chunk) {
        let copy = action.micro_batch % copies;
        if action.pass == from
            && let Some(holder) = holders.insert(copy, action.micro_batch)
            && holder != action.micro_batch
        {
            return Some((holder, action.micro_batch));
        }
        if action.pass == to && holders.get(&copy) == Some(&action.micro_batch) {
            holders.remove(&copy);
        }
    }
    None
}

/// A schedule of a shape.
#[derive(Debug)]
struct Case {
    schedule: Schedule,
    shape: Shape,
    places: Vec<Place>,
    orders: Vec<Vec<Action>>,
}

impl Case {
    fn new(schedule: Schedule, shape: Shape) -> Result<Self, ScheduleError> {
        let orders = schedule::order(schedule, shape)?;
        Ok(Self { schedule, shape, places: schedule::placement(schedule, shape)?, orders })
    }

    fn pipeline(&self) -> Pipeline<'_> {
        Pipeline {
            places: &self.places,
            passes: self.schedule.passes(),
            micro_batches: self.shape.micro_batches,
            orders: &self.orders,
        }
    }

    fn chunks(&self) -> std::ops::Range<u32> {
        0..self.shape.chunks
    }
}

/// Every schedule for 1 to 8 stages and 1 to 24 micro-batches.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for schedule in Schedule::ALL {
        let chunks = match schedule {
            Schedule::Interleaved => 2..=4,
            Schedule::ZeroBubbleV => 2..=2,
            _ => 1..=1,
        };
        for chunks in chunks {
            for stages in 1..=8 {
                for micro_batches in 1..=24 {
                    match Case::new(schedule, Shape { stages, chunks, micro_batches }) {
                        Ok(case) => cases.push(case),
                        Err(ScheduleError::Groups { .. }) => assert_ne!(micro_batches % stages, 0),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
    }
    cases
}

/// The most chunks for a micro-batch that a stage has under way at once, from one pass to another.
fn most(order: &[Action], from: Pass, to: Pass) -> usize {
    let mut under_way = BTreeSet::new();
    let mut most = 0;
    for action in order {
        let of = (action.chunk, action.micro_batch);
        if action.pass == from {
            under_way.insert(of);
            most = most.max(under_way.len());
        }
        if action.pass == to {
            under_way.remove(&of);
        }
    }
    most
}

#[test]
fn every_schedule_comes_to_an_end() {
    let cases = cases();
    assert!(cases.len() > 1000, "{} cases", cases.len());
    for case in &cases {
        assert_eq!(case.pipeline().check(), [], "{} {:?}", case.schedule, case.shape);
    }
}

#[test]
fn passes_take_micro_batches_in_their_order() {
    for case in cases() {
        for order in &case.orders {
            for chunk in case.chunks() {
                for &pass in case.schedule.passes() {
                    let of = |a: &&Action| a.chunk == chunk && a.pass == pass;
                    let run: Vec<u32> = order.iter().filter(of).map(|a| a.micro_batch).collect();
                    assert!(run.iter().copied().eq(0..case.shape.micro_batches), "{run:?}");
                }
            }
        }
    }
}

#[test]
fn a_sequence_runs_all_after_what_they_need() {
    for case in cases() {
        let steps = case.pipeline().sequence().unwrap();
        assert_eq!(steps.len(), case.orders.iter().map(Vec::len).sum::<usize>());
        let last = case.places.len() - 1;
        for (at, step) in steps.iter().enumerate() {
            let place = case.places[step.part];
            assert_eq!((place.stage as usize, place.chunk), (step.stage, step.action.chunk));
            let sent = step.sent_by.map(|s| (s, steps[s].part, steps[s].action));
            let kept = step.kept_by.map(|s| (s, steps[s].part, steps[s].action));
            for (before, _, action) in [sent, kept].into_iter().flatten() {
                assert!(before < at);
                assert_eq!(action.micro_batch, step.action.micro_batch);
            }
            let of = |step: Option<(usize, usize, Action)>| step.map(|(_, part, a)| (part, a.pass));
            let (sent, kept) = (of(sent), of(kept));
            let part = step.part;
            match step.action.pass {
                Pass::Forward => {
                    assert_eq!(sent, (part > 0).then(|| (part - 1, Pass::Forward)));
                    assert_eq!(kept, None);
                }
                Pass::Backward => {
                    assert_eq!(sent, (part < last).then_some((part + 1, Pass::Backward)));
                    assert_eq!(kept, Some((part, Pass::Forward)));
                }
                Pass::Weights => {
                    assert_eq!(sent, None);
                    assert_eq!(kept, Some((part, Pass::Backward)));
                }
            }
        }
    }
}

/// Micro-batches under way are as many as the papers say, and consecutive: no fewer copies would do.
#[test]
fn under_way_are_as_many_as_the_papers_say() {
    for case in cases() {
        let Shape { stages: p, chunks: v, micro_batches: m } = case.shape;
        let ends = *case.schedule.passes().last().unwrap();
        for (s, order) in (0..).zip(&case.orders) {
            let (to_backward, to_end) = (
                most(order, Pass::Forward, Pass::Backward) as u32,
                most(order, Pass::Forward, ends) as u32,
            );
            let at = format!("{} {:?} stage {s}", case.schedule, case.shape);
            match case.schedule {
                Schedule::GPipe => assert_eq!(to_end, m, "{at}"),
                Schedule::OneFOneB => assert_eq!(to_end, m.min(p - s), "{at}"),
                Schedule::Interleaved => {
                    assert_eq!(to_end, (v * m).min(2 * (p - 1 - s) + (v - 1) * p + 1), "{at}");
                }
                Schedule::ZeroBubble => {
                    assert_eq!(to_backward, m.min(p - s), "{at}");
                    assert_eq!(most(order, Pass::Backward, ends) as u32, m.min(s + 1), "{at}");
                    assert_eq!(to_end, m.min(p), "{at}");
                }
                Schedule::ZeroBubbleV => {
                    assert!(to_end <= 2 * p, "{at}: {to_end}");
                    assert!(m < 2 * p - 1 || to_end == 2 * p, "{at}: {to_end}");
                }
                Schedule::Inference => assert_eq!(to_end, 1, "{at}"),
            }
            for chunk in case.chunks() {
                let of_chunk: Vec<Action> =
                    order.iter().copied().filter(|a| a.chunk == chunk).collect();
                for (from, to) in
                    [(Pass::Forward, Pass::Backward), (Pass::Forward, ends), (Pass::Backward, ends)]
                {
                    if !case.schedule.passes().contains(&to) || from >= to {
                        continue;
                    }
                    let least = copies(order, chunk, from, to);
                    assert_eq!(least as usize, most(&of_chunk, from, to), "{at} {from} {to}");
                    assert_eq!(clash(order, chunk, from, to, least), None, "{at} {from} {to}");
                    if least > 1 {
                        assert!(clash(order, chunk, from, to, least - 1).is_some(), "{at}");
                    }
                }
            }
        }
    }
}

#[test]
fn copies_of_an_order_that_skips_are_the_window() {
    let f = |m| Action::new(Pass::Forward, 0, m);
    let b = |m| Action::new(Pass::Backward, 0, m);
    let order = [f(0), f(4), b(0), f(u32::MAX), b(4), b(u32::MAX)];
    assert_eq!(copies(&order, 0, Pass::Forward, Pass::Backward), u32::MAX - 3);
    assert_eq!(copies(&order[..3], 0, Pass::Forward, Pass::Backward), 5);
    assert_eq!(clash(&order, 0, Pass::Forward, Pass::Backward, 4), Some((0, 4)));
    assert_eq!(clash(&order, 0, Pass::Forward, Pass::Backward, 5), None);
    assert_eq!(clash(&order, 0, Pass::Forward, Pass::Backward, 0), Some((0, 4)));
    assert_eq!(copies(&order, 1, Pass::Forward, Pass::Backward), 1);
}

/// An action that is dropped, doubled, or of a micro-batch that there is not is found, and nothing else is said.
#[test]
fn whatever_is_changed_is_found() {
    for mut case in cases().into_iter().filter(|c| c.shape.micro_batches <= 8) {
        for stage in 0..case.orders.len() {
            let whole = case.orders[stage].clone();
            for at in 0..whole.len() {
                let action = whole[at];
                let mut try_order = |order: Vec<Action>| {
                    case.orders[stage] = order;
                    let findings = case.pipeline().check();
                    case.orders[stage].clone_from(&whole);
                    findings
                };

                let mut order = whole.clone();
                order.remove(at);
                assert_eq!(
                    try_order(order),
                    [OrderFinding::Missing { stage, first: action, count: 1 }]
                );

                let mut order = whole.clone();
                order.push(action);
                assert_eq!(
                    try_order(order),
                    [OrderFinding::Repeated { stage, at: whole.len(), action }]
                );

                let mut order = whole.clone();
                order[at].micro_batch += 100;
                let wrong = order[at];
                assert_eq!(
                    try_order(order),
                    [
                        OrderFinding::Unknown { stage, at, action: wrong },
                        OrderFinding::Missing { stage, first: action, count: 1 },
                    ]
                );
            }
        }
    }
}

/// Swaps: of what needs one another on one stage, and of what makes two stages wait for each other.
#[test]
fn orders_that_never_end_are_found() {
    let shape = Shape { stages: 3, chunks: 1, micro_batches: 4 };
    let mut case = Case::new(Schedule::ZeroBubble, shape).unwrap();
    let find = |order: &[Action], action| order.iter().position(|a| *a == action).unwrap();
    let (b0, w0) = (Action::new(Pass::Backward, 0, 0), Action::new(Pass::Weights, 0, 0));
    let order = &mut case.orders[2];
    let (at, later) = (find(order, b0), find(order, w0));
    order.swap(at, later);
    let findings = case.pipeline().check();
    assert_eq!(findings[0], OrderFinding::Early { stage: 2, at, action: w0, needs: b0 });
    // The stages before wait for what the last never sends.
    let stuck = |f: &OrderFinding| match f {
        OrderFinding::Stuck { stage, of, .. } => Some((*stage, *of)),
        _ => None,
    };
    assert_eq!(findings.iter().filter_map(stuck).collect::<Vec<_>>(), [(0, 1), (1, 2)]);

    // Two stages: one gives the second micro-batch only after the way back of the first, the other goes back only
    // after it has both.
    let places = [0, 1].map(|stage| Place { stage, chunk: 0 });
    let f = |m| Action::new(Pass::Forward, 0, m);
    let b = |m| Action::new(Pass::Backward, 0, m);
    let orders = [vec![f(0), b(0), f(1), b(1)], vec![f(0), f(1), b(0), b(1)]];
    let passes = [Pass::Forward, Pass::Backward];
    let pipeline = Pipeline { places: &places, passes: &passes, micro_batches: 2, orders: &orders };
    let findings = pipeline.check();
    assert_eq!(
        findings,
        [
            OrderFinding::Stuck { stage: 0, at: 1, action: b(0), of: 1, needs: b(0) },
            OrderFinding::Stuck { stage: 1, at: 1, action: f(1), of: 0, needs: f(1) },
        ]
    );
    assert_eq!(
        findings[0].to_string(),
        "stage 0 waits for ever at action 1: backward of chunk 0 for micro-batch 0 needs backward of chunk 0 for \
         micro-batch 0 of stage 1"
    );
}

/// Whether all stages come to an end, by trying again and again what any of them is to run next.
fn ends(case: &Case) -> bool {
    let passes = case.schedule.passes();
    let part_of = |stage: usize, chunk| {
        let place = Place { stage: stage as u32, chunk };
        case.places.iter().position(|p| *p == place).expect("every chunk of an order is a part")
    };
    let mut done = BTreeSet::new();
    let mut left: Vec<&[Action]> = case.orders.iter().map(Vec::as_slice).collect();
    loop {
        let before = done.len();
        for (stage, left) in left.iter_mut().enumerate() {
            while let Some((action, rest)) = left.split_first() {
                let (part, m) = (part_of(stage, action.chunk), action.micro_batch);
                let ready = match action.pass {
                    Pass::Forward => part == 0 || done.contains(&(part - 1, Pass::Forward, m)),
                    Pass::Backward => {
                        done.contains(&(part, Pass::Forward, m))
                            && (part + 1 == case.places.len()
                                || done.contains(&(part + 1, Pass::Backward, m)))
                    }
                    Pass::Weights => done.contains(&(part, Pass::Backward, m)),
                };
                if !ready {
                    break;
                }
                assert!(passes.contains(&action.pass));
                done.insert((part, action.pass, m));
                *left = rest;
            }
        }
        if done.len() == before {
            return left.iter().all(|left| left.is_empty());
        }
    }
}

/// Whatever two neighbours trade places, the checker says what trying says; both come out often.
#[test]
fn neighbours_that_trade_places_are_judged_rightly() {
    let (mut fine, mut wrong) = (0, 0);
    for mut case in cases().into_iter().filter(|c| c.shape.micro_batches <= 6) {
        for stage in 0..case.orders.len() {
            for at in 1..case.orders[stage].len() {
                let (first, second) = (case.orders[stage][at - 1], case.orders[stage][at]);
                case.orders[stage].swap(at - 1, at);
                let findings = case.pipeline().check();
                assert_eq!(findings.is_empty(), ends(&case), "{findings:?}");
                let same = (first.chunk, first.micro_batch) == (second.chunk, second.micro_batch);
                if same && first.pass < second.pass {
                    let needs = first;
                    let early = OrderFinding::Early { stage, at: at - 1, action: second, needs };
                    assert!(findings.contains(&early), "{findings:?}");
                }
                *(if findings.is_empty() { &mut fine } else { &mut wrong }) += 1;
                case.orders[stage].swap(at - 1, at);
            }
        }
    }
    assert!(fine > 1000 && wrong > 1000, "{fine} fine, {wrong} wrong");
}

/// A schedule of a few stages.
fn any_case() -> impl Strategy<Value = Case> {
    let schedules = proptest::sample::select(Schedule::ALL.to_vec());
    (schedules, 1..5_u32, 1..5_u32).prop_map(|(schedule, stages, groups)| {
        let (chunks, micro_batches) = match schedule {
            Schedule::Interleaved => (3, groups * stages),
            Schedule::ZeroBubbleV => (2, groups),
            _ => (1, groups),
        };
        Case::new(schedule, Shape { stages, chunks, micro_batches })
            .expect("the shape is the schedule's")
    })
}

proptest! {
    #[test]
    fn actions_that_trade_places_are_judged_rightly(
        mut case in any_case(),
        swaps in proptest::collection::vec(any::<[proptest::sample::Index; 3]>(), 1..4),
    ) {
        for [stage, one, other] in swaps {
            let order = stage.get_mut(&mut case.orders);
            let (one, other) = (one.index(order.len()), other.index(order.len()));
            order.swap(one, other);
        }
        let findings = case.pipeline().check();
        prop_assert_eq!(findings.is_empty(), ends(&case), "{:?}", findings);
    }
}

#[test]
fn places_and_passes_are_checked() {
    let orders = [vec![], vec![]];
    let check = |places: &[Place]| {
        Pipeline { places, passes: &[Pass::Forward], micro_batches: u32::MAX, orders: &orders }
            .check()
    };
    let place = |stage, chunk| Place { stage, chunk };
    assert_eq!(
        check(&[place(0, 0), place(2, 0), place(0, 0)]),
        [
            OrderFinding::NoStage { part: 1, stage: 2, stages: 2 },
            OrderFinding::SamePlace { first: 0, second: 2, place: place(0, 0) },
        ]
    );
    // Nothing is set aside for micro-batches that no order has.
    assert_eq!(
        check(&[place(1, 7)]),
        [OrderFinding::Missing {
            stage: 1,
            first: Action::new(Pass::Forward, 7, 0),
            count: u32::MAX
        }]
    );
    assert_eq!(check(&[]), []);
    let passes = [Pass::Forward, Pass::Backward, Pass::Forward];
    let twice = Pipeline { places: &[], passes: &passes, micro_batches: 1, orders: &orders };
    assert_eq!(twice.check(), [OrderFinding::SamePass { pass: Pass::Forward }]);
}

#[test]
fn places_go_round_or_down_and_up() {
    let places = |schedule| {
        let shape = Shape { stages: 3, chunks: 2, micro_batches: 3 };
        let places = schedule::placement(schedule, shape).unwrap();
        places.into_iter().map(|p| (p.stage, p.chunk)).collect::<Vec<_>>()
    };
    assert_eq!(places(Schedule::Interleaved), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
    assert_eq!(places(Schedule::ZeroBubbleV), [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]);
}

#[test]
fn names_are_read_back() {
    for schedule in Schedule::ALL {
        assert_eq!(schedule.name().parse(), Ok(schedule));
    }
    let error = "2f2b".parse::<Schedule>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown schedule `2f2b`; known schedules: gpipe, 1f1b, interleaved, zb-h1, zb-v, inference"
    );
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let order = |schedule, stages, chunks, micro_batches| {
        schedule::order(schedule, Shape { stages, chunks, micro_batches }).unwrap_err().to_string()
    };
    let groups = order(Schedule::Interleaved, 4, 2, 6);
    assert!(groups.contains("6 are no multiple of 4"), "{groups}");
    let chunks = order(Schedule::ZeroBubbleV, 4, 3, 6);
    assert!(chunks.contains("`zb-v` takes two chunks on a stage, not 3"), "{chunks}");
    assert!(order(Schedule::OneFOneB, 4, 2, 6).contains("one chunk"));
    assert!(order(Schedule::GPipe, 0, 1, 6).contains("at least one stage"));
    for schedule in Schedule::ALL {
        let chunks = if order(schedule, 1 << 20, 1, 1 << 30).contains("takes") { 2 } else { 1 };
        for (stages, micro_batches) in [(1 << 20, 1 << 30), (u32::MAX, u32::MAX)] {
            let error = order(schedule, stages, chunks, micro_batches);
            assert!(error.contains(&MAX_ACTIONS.to_string()), "{error}");
        }
    }
    // What is left out of an order takes time to write as well.
    assert!(order(Schedule::ZeroBubbleV, 1 << 21, 2, 1).contains("more than"));
}
