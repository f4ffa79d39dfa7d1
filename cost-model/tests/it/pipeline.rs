//! Simulated pipelines: the bubbles of the schedules' papers, to the last microsecond, and what holds of any times.

use planc_codegen::schedule::{self, Schedule, Shape};
use planc_cost_model::pipeline::simulate;
use planc_cost_model::{PartTimes, PipelineSimulation, PipelineTimes, Span};
use planc_ir::program::pipeline::{OrderFinding, Pipeline};
use planc_ir::program::{Action, Pass, Place};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
struct Case {
    schedule: Schedule,
    shape: Shape,
    places: Vec<Place>,
    orders: Vec<Vec<Action>>,
}

impl Case {
    fn new(schedule: Schedule, stages: u32, chunks: u32, micro_batches: u32) -> Self {
        let shape = Shape { stages, chunks, micro_batches };
        Self {
            schedule,
            shape,
            places: schedule::placement(schedule, shape).unwrap(),
            orders: schedule::order(schedule, shape).unwrap(),
        }
    }

    fn simulate(&self, times: &PipelineTimes) -> PipelineSimulation {
        let pipeline = Pipeline {
            places: &self.places,
            passes: self.schedule.passes(),
            micro_batches: self.shape.micro_batches,
            orders: &self.orders,
        };
        simulate(&pipeline, times).unwrap()
    }

    /// Every part takes the same time, and sends none.
    fn uniform(&self, forward_us: f64, backward_us: f64, weights_us: f64) -> PipelineSimulation {
        let part = PartTimes { forward_us, backward_us, weights_us, ..PartTimes::default() };
        let times = PipelineTimes { parts: vec![part; self.places.len()], update_us: vec![] };
        self.simulate(&times)
    }
}

/// A schedule of uniform stages takes the time of its work and of its bubble.
#[track_caller]
fn assert_takes(case: &Case, passes_us: (f64, f64, f64), bubble_us: f64) {
    let (forward_us, backward_us, weights_us) = passes_us;
    let simulation = case.uniform(forward_us, backward_us, weights_us);
    let shape = case.shape;
    let work_us =
        f64::from(shape.micro_batches * shape.chunks) * (forward_us + backward_us + weights_us);
    assert_eq!(simulation.total_us, work_us + bubble_us, "{} {shape:?}", case.schedule);
    assert!(simulation.busy_us.iter().all(|&us| us == work_us));
    let bubble = bubble_us / (work_us + bubble_us);
    assert!((simulation.bubble() - bubble).abs() < 1e-12, "{} {shape:?}", case.schedule);
}

fn shapes() -> impl Iterator<Item = (u32, u32)> {
    (1..=8).flat_map(|stages| (1..=24).map(move |micro_batches| (stages, micro_batches)))
}

#[test]
fn gpipe_and_one_forward_one_backward_lose_what_their_papers_say() {
    for (p, m) in shapes() {
        for schedule in [Schedule::GPipe, Schedule::OneFOneB] {
            for (forward_us, backward_us) in [(1.0, 2.0), (1.0, 1.0), (3.0, 5.0)] {
                let bubble_us = f64::from(p - 1) * (forward_us + backward_us);
                assert_takes(
                    &Case::new(schedule, p, 1, m),
                    (forward_us, backward_us, 0.0),
                    bubble_us,
                );
            }
        }
        assert_takes(
            &Case::new(Schedule::Inference, p, 1, m),
            (3.0, 0.0, 0.0),
            f64::from(p - 1) * 3.0,
        );
    }
}

/// The stages' time is that of their chunks together; chunks take a part of it, so the bubble is a part as well.
#[test]
fn interleaved_divides_the_bubble_by_the_chunks() {
    for (p, m) in shapes().filter(|(p, m)| m % p == 0) {
        for v in 2..=4 {
            let (stage_forward_us, stage_backward_us) = (12.0, 24.0);
            let chunk_us = (stage_forward_us / f64::from(v), stage_backward_us / f64::from(v), 0.0);
            let bubble_us =
                f64::from(p - 1) * (stage_forward_us + stage_backward_us) / f64::from(v);
            assert_takes(&Case::new(Schedule::Interleaved, p, v, m), chunk_us, bubble_us);
        }
    }
}

/// Where weights take the least time. Each micro-batch less than there are stages leaves one more gap unfilled.
#[test]
fn weights_apart_fill_most_of_the_bubble() {
    for (p, m) in shapes() {
        for (f, b, w) in [(1.0, 1.0, 1.0), (3.0, 3.0, 2.0), (2.0, 3.0, 2.0), (10.0, 13.0, 7.0)] {
            let bubble_us = f64::from(p - 1) * (f + b - w) + f64::from(p.saturating_sub(m)) * w;
            assert_takes(&Case::new(Schedule::ZeroBubble, p, 1, m), (f, b, w), bubble_us);
        }
    }
}

/// No stage waits between its first action and its last; the last stage begins when the first micro-batch is there.
#[test]
fn the_v_loses_no_more_than_the_way_to_the_last_stage() {
    for (p, m) in shapes().filter(|(p, m)| *m >= 2 * p - 1) {
        for (f, w) in [(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)] {
            let case = Case::new(Schedule::ZeroBubbleV, p, 2, m);
            assert_takes(&case, (f, f, w), f64::from(p - 1) * f);
        }
        let simulation = Case::new(Schedule::ZeroBubbleV, p, 2, m).uniform(1.0, 1.0, 1.0);
        for spans in &simulation.spans {
            assert!(spans.windows(2).all(|pair| pair[0].end_us == pair[1].start_us));
        }
    }
}

/// A picture as the schedules' documentation has it: a row a stage, a cell a microsecond.
fn draw(case: &Case, simulation: &PipelineSimulation) -> String {
    let width = if case.shape.chunks > 1 { 2 } else { 1 };
    let row = |spans: &Vec<Span>| {
        let mut cells = vec![format!("{:width$}", "."); simulation.total_us as usize];
        for Span { action, start_us, end_us } in spans {
            let first = match action.pass {
                Pass::Forward => b'0',
                Pass::Backward => b'a',
                Pass::Weights => b'A',
            };
            let letter = char::from(first + action.micro_batch as u8);
            let mark = if action.chunk == 1 { "'" } else { "" };
            cells[*start_us as usize..*end_us as usize]
                .fill(format!("{:width$}", format!("{letter}{mark}")));
        }
        format!("//! {}\n", cells.concat().trim_end())
    };
    simulation.spans.iter().map(row).collect()
}

/// What the schedules' documentation shows is what they do.
#[test]
fn pictures_show_what_is_simulated() {
    macro_rules! documented {
        ($file:literal) => {
            include_str!(concat!("../../../codegen/src/schedule/", $file, ".rs"))
        };
    }
    let pictures = [
        (Case::new(Schedule::GPipe, 3, 1, 4), 0.0, documented!("gpipe")),
        (Case::new(Schedule::OneFOneB, 3, 1, 4), 0.0, documented!("one_f_one_b")),
        (Case::new(Schedule::Interleaved, 2, 2, 4), 0.0, documented!("interleaved")),
        (Case::new(Schedule::ZeroBubble, 3, 1, 4), 1.0, documented!("zero_bubble")),
        (Case::new(Schedule::ZeroBubbleV, 3, 2, 5), 1.0, documented!("zero_bubble_v")),
        (Case::new(Schedule::Inference, 3, 1, 4), 0.0, documented!("inference")),
    ];
    for (case, weights_us, text) in pictures {
        let picture = draw(&case, &case.uniform(1.0, 2.0 - weights_us, weights_us));
        assert!(
            text.contains(&format!("```text\n{picture}//! ```\n")),
            "{}\n{picture}",
            case.schedule
        );
    }
}

/// What is sent takes its time between stages, beside what they run, and none within one.
#[test]
fn sends_delay_who_receives() {
    let part = PartTimes {
        forward_us: 1.0,
        backward_us: 2.0,
        send_forward_us: 0.5,
        send_backward_us: 0.25,
        ..PartTimes::default()
    };
    let times = PipelineTimes { parts: vec![part; 2], update_us: vec![3.0, 8.0] };
    let simulation = Case::new(Schedule::OneFOneB, 2, 1, 2).simulate(&times);
    let starts =
        |stage: usize| simulation.spans[stage].iter().map(|s| s.start_us).collect::<Vec<_>>();
    assert_eq!(starts(0), [0.0, 1.0, 4.75, 7.75]);
    assert_eq!(starts(1), [1.5, 2.5, 4.5, 5.5]);
    assert_eq!(simulation.end_us, [12.75, 15.5]);
    assert_eq!(simulation.busy_us, [9.0, 14.0]);
    assert_eq!(simulation.total_us, 15.5);
    assert_eq!(simulation.bubble(), 1.0 - 23.0 / 31.0);

    let times = PipelineTimes { parts: vec![part; 2], update_us: vec![] };
    let alone = Case::new(Schedule::Interleaved, 1, 2, 2).simulate(&times);
    assert_eq!(alone.total_us, 12.0);
    assert_eq!(alone.bubble(), 0.0);
}

#[test]
fn orders_that_never_end_are_not_simulated() {
    let mut case = Case::new(Schedule::GPipe, 2, 1, 2);
    case.orders[1].reverse();
    let pipeline = Pipeline {
        places: &case.places,
        passes: case.schedule.passes(),
        micro_batches: 2,
        orders: &case.orders,
    };
    let findings = simulate(&pipeline, &PipelineTimes::default()).unwrap_err();
    assert_eq!(findings, pipeline.check());
    assert!(findings.iter().any(|f| matches!(f, OrderFinding::Early { stage: 1, at: 0, .. })));
}

/// A schedule of a few stages, and any times.
fn any_case() -> impl Strategy<Value = (Case, PipelineTimes)> {
    let schedules = proptest::sample::select(Schedule::ALL.to_vec());
    let case =
        (schedules, 1..5_u32, 1..5_u32).prop_map(|(schedule, stages, groups)| match schedule {
            Schedule::Interleaved => Case::new(schedule, stages, 3, groups * stages),
            Schedule::ZeroBubbleV => Case::new(schedule, stages, 2, groups),
            _ => Case::new(schedule, stages, 1, groups),
        });
    case.prop_flat_map(|case| {
        let part = proptest::array::uniform5(0.0..10.0).prop_map(|[f, b, w, sf, sb]| PartTimes {
            forward_us: f,
            backward_us: b,
            weights_us: w,
            send_forward_us: sf,
            send_backward_us: sb,
        });
        let parts = proptest::collection::vec(part, case.places.len());
        let updates = proptest::collection::vec(0.0..10.0, case.orders.len());
        let times =
            (parts, updates).prop_map(|(parts, update_us)| PipelineTimes { parts, update_us });
        (Just(case), times)
    })
}

/// When what an action needs is there, by the spans of the simulation: the latest, and zero if it needs nothing.
fn ready_us(
    case: &Case,
    times: &PipelineTimes,
    ends_us: &BTreeMap<(usize, Pass, u32), f64>,
    part: usize,
    action: Action,
) -> f64 {
    let m = action.micro_batch;
    let sent = |from: usize, pass, send_us: f64| {
        let away = case.places[from].stage != case.places[part].stage;
        ends_us[&(from, pass, m)] + if away { send_us } else { 0.0 }
    };
    match action.pass {
        Pass::Forward if part == 0 => 0.0,
        Pass::Forward => sent(part - 1, Pass::Forward, times.parts[part - 1].send_forward_us),
        Pass::Backward if part + 1 == case.places.len() => ends_us[&(part, Pass::Forward, m)],
        Pass::Backward => sent(part + 1, Pass::Backward, times.parts[part + 1].send_backward_us)
            .max(ends_us[&(part, Pass::Forward, m)]),
        Pass::Weights => ends_us[&(part, Pass::Backward, m)],
    }
}

/// The longest of the ways that one micro-batch goes through the chain and back.
fn way_us(case: &Case, times: &PipelineTimes) -> f64 {
    let passes = case.schedule.passes();
    let send_us = |from: usize, to: usize, us: f64| {
        if case.places[from].stage == case.places[to].stage { 0.0 } else { us }
    };
    let (parts, last) = (&times.parts, times.parts.len() - 1);
    let mut us: f64 = parts.iter().map(|p| p.forward_us).sum();
    us += (0..last).map(|p| send_us(p, p + 1, parts[p].send_forward_us)).sum::<f64>();
    if passes.contains(&Pass::Backward) {
        us += parts.iter().map(|p| p.backward_us).sum::<f64>();
        us += (0..last).map(|p| send_us(p + 1, p, parts[p + 1].send_backward_us)).sum::<f64>();
    }
    if passes.contains(&Pass::Weights) {
        us += parts[0].weights_us;
    }
    us
}

proptest! {
    /// An action starts when its stage is free and what it needs is there, and not later.
    #[test]
    fn actions_start_as_soon_as_they_can((case, times) in any_case()) {
        let simulation = case.simulate(&times);
        let part_of = |stage: usize, chunk| {
            case.places.iter().position(|p| (p.stage as usize, p.chunk) == (stage, chunk)).unwrap()
        };
        let mut ends_us = BTreeMap::new();
        for (stage, spans) in simulation.spans.iter().enumerate() {
            for span in spans {
                let part = part_of(stage, span.action.chunk);
                ends_us.insert((part, span.action.pass, span.action.micro_batch), span.end_us);
            }
        }
        for (stage, spans) in simulation.spans.iter().enumerate() {
            let order: Vec<Action> = spans.iter().map(|s| s.action).collect();
            prop_assert_eq!(&order, &case.orders[stage]);
            let mut free_us: f64 = 0.0;
            let mut work_us = 0.0;
            for span in spans {
                let part = part_of(stage, span.action.chunk);
                let ready_us = ready_us(&case, &times, &ends_us, part, span.action);
                prop_assert_eq!(span.start_us, free_us.max(ready_us));
                let takes_us = times.parts[part].pass_us(span.action.pass);
                prop_assert_eq!(span.end_us, span.start_us + takes_us);
                work_us += takes_us;
                free_us = span.end_us;
            }
            prop_assert_eq!(simulation.end_us[stage], free_us + times.update_us[stage]);
            prop_assert_eq!(simulation.busy_us[stage], work_us + times.update_us[stage]);
        }
    }

    #[test]
    fn the_whole_takes_at_least_as_long_as_its_parts((case, times) in any_case()) {
        let simulation = case.simulate(&times);
        for (&end_us, &busy_us) in simulation.end_us.iter().zip(&simulation.busy_us) {
            prop_assert!(simulation.total_us >= end_us);
            prop_assert!(end_us >= busy_us - 1e-9);
        }
        prop_assert!(simulation.total_us >= way_us(&case, &times) - 1e-9);
        prop_assert!((-1e-12..1.0).contains(&simulation.bubble()));
    }

    /// Rounding included: sums and maxima of floating-point numbers are monotone.
    #[test]
    fn what_takes_longer_ends_no_earlier((case, times) in any_case(), at: prop::sample::Index, which in 0..6, more_us in 0.0..10.0) {
        let mut longer = times.clone();
        let part = at.index(times.parts.len());
        let time_us = match which {
            0 => &mut longer.parts[part].forward_us,
            1 => &mut longer.parts[part].backward_us,
            2 => &mut longer.parts[part].weights_us,
            3 => &mut longer.parts[part].send_forward_us,
            4 => &mut longer.parts[part].send_backward_us,
            _ => at.get_mut(&mut longer.update_us),
        };
        *time_us += more_us;
        let (before, after) = (case.simulate(&times), case.simulate(&longer));
        prop_assert!(after.total_us >= before.total_us);
        for (before, after) in before.spans.iter().flatten().zip(after.spans.iter().flatten()) {
            prop_assert!(after.start_us >= before.start_us && after.end_us >= before.end_us);
        }
    }
}
