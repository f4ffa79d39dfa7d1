//! `planc trace`, and the traces of `planc run` and `planc train`.

use super::{data, planc, text};
use planc_ir::plan::Plan;
use planc_ir::program::{Instr, MicroBatches};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What times may differ by from rounding, in microseconds.
const EPSILON_US: f64 = 1e-6;

const MICRO_BATCHES: usize = 4;

/// Something that takes some time.
#[derive(Clone, Debug)]
struct Span {
    row: (u64, u64),
    name: String,
    category: String,
    start_us: f64,
    end_us: f64,
    instr: u64,
    micro_batch: Option<u64>,
    pass: Option<String>,
}

/// A trace that was read back.
struct Trace {
    text: String,
    spans: Vec<Span>,
    /// By row.
    threads: BTreeMap<(u64, u64), String>,
    processes: BTreeMap<u64, String>,
    /// Where and when each arrow begins and ends.
    arrows: Vec<[((u64, u64), f64); 2]>,
}

impl Trace {
    fn load(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("the trace is written");
        let json: Value = serde_json::from_str(&text).expect("a trace is JSON");
        let (mut spans, mut arrows) = (Vec::new(), BTreeMap::<u64, Vec<_>>::new());
        let (mut threads, mut processes) = (BTreeMap::new(), BTreeMap::new());
        for event in json["traceEvents"].as_array().expect("a list of events") {
            let number = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{event}"));
            let name = event["name"].as_str().expect("a name").to_string();
            let pid = event["pid"].as_u64().expect("a process");
            let row = (pid, event["tid"].as_u64().expect("a thread"));
            let named = || event["args"]["name"].as_str().expect("a name").to_string();
            match (event["ph"].as_str().expect("a phase"), name.as_str()) {
                ("M", "process_name") => drop(processes.insert(pid, named())),
                ("M", "thread_name") => drop(threads.insert(row, named())),
                ("M", _) => {}
                ("X", _) => spans.push(Span {
                    row,
                    name,
                    category: event["cat"].as_str().expect("a category").to_string(),
                    start_us: number("ts"),
                    end_us: number("ts") + number("dur"),
                    instr: event["args"]["instr"].as_u64().expect("an instruction"),
                    micro_batch: event["args"]["micro_batch"].as_u64(),
                    pass: event["args"]["pass"].as_str().map(str::to_string),
                }),
                (end @ ("s" | "f"), _) => {
                    assert!(end == "s" || event["bp"] == "e", "{event}");
                    let id = event["id"].as_u64().expect("an arrow");
                    arrows.entry(id).or_default().push((end == "f", (row, number("ts"))));
                }
                _ => panic!("{event}"),
            }
        }
        let arrows = arrows.into_values().map(|ends| match ends[..] {
            [(false, from), (true, to)] => [from, to],
            _ => panic!("an arrow has a start and an end: {ends:?}"),
        });
        Self { text, spans, threads, processes, arrows: arrows.collect() }
    }

    fn of(&self, category: &str) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |s| s.category == category)
    }

    fn end_us(&self) -> f64 {
        self.spans.iter().map(|s| s.end_us).fold(0.0, f64::max)
    }

    /// What runs in a row at a time.
    fn at(&self, (row, us): ((u64, u64), f64)) -> Vec<&Span> {
        let within = |s: &&Span| {
            s.row == row && s.start_us <= us + EPSILON_US && us <= s.end_us + EPSILON_US
        };
        self.spans.iter().filter(within).collect()
    }

    /// Each row is named, and does one thing after another.
    fn assert_rows(&self) {
        let mut rows: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
        self.spans.iter().for_each(|s| rows.entry(s.row).or_default().push(s));
        for (row, mut spans) in rows {
            assert!(self.threads.contains_key(&row) && self.processes.contains_key(&row.0));
            spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
            for pair in spans.windows(2) {
                assert!(pair[1].start_us >= pair[0].end_us - EPSILON_US, "{pair:?}");
            }
        }
    }

    /// Arrows lead from sends to receives of the same, and forward in time. How many there are.
    fn assert_arrows(&self) -> usize {
        for &[from, to] in &self.arrows {
            let is = |what: &'static str| {
                move |s: &&&Span| s.category == "transfer" && s.name.starts_with(what)
            };
            let (sends, receives) = (self.at(from), self.at(to));
            let value = |s: &Span, what: &str| s.name[what.len()..].to_string();
            let fits = sends.iter().filter(is("send ")).any(|send| {
                receives.iter().filter(is("receive ")).any(|receive| {
                    value(send, "send ") == value(receive, "receive ")
                        && send.micro_batch == receive.micro_batch
                        && receive.end_us >= send.start_us
                })
            });
            assert!(fits && from.1 <= to.1, "{from:?} {to:?}: {sends:?}, {receives:?}");
        }
        self.arrows.len()
    }

    /// Each kernel is there under its node's name as often as it runs on the ranks that are shown.
    fn assert_kernels(&self, plan: &Plan, ranks: impl Fn(u32) -> usize) {
        let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
        for stage in &plan.stages {
            let program = &stage.program;
            let repeated = program.micro_batches.map_or(program.instrs.len(), |m| m.instrs);
            let count = program.micro_batches.map_or(1, |m| m.count as usize);
            for (at, instr) in program.instrs.iter().enumerate() {
                if let Instr::Kernel { node, .. } = instr {
                    let times = if at < repeated { count } else { 1 };
                    *expected.entry(node).or_default() += times * ranks(program.mesh.ranks());
                }
            }
        }
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        self.of("kernel").for_each(|s| *found.entry(&s.name).or_default() += 1);
        assert_eq!(found, expected);
    }

    fn transfers(&self, what: &str) -> Vec<&Span> {
        self.of("transfer").filter(|s| s.name.starts_with(what)).collect()
    }
}

fn assert_good(output: &std::process::Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// What a verb that fails says: one line.
fn refused(folder: &Path, args: &[&str]) -> String {
    let output = planc(folder, args);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    assert!(said.starts_with("error: ") && said.trim_end().lines().count() == 1, "{said}");
    said
}

fn model() -> String {
    data().join("models/gpt2-dynamo/model.onnx").to_str().expect("a path").to_string()
}

/// Plans training steps of GPT-2 in a folder.
fn planned(folder: &Path, flags: &[&str]) -> Plan {
    let model = model();
    let step = ["--train", "--loss", "cross-entropy:logits", "--bind", "batch=8,seq=16"];
    let common = ["--micro-batches", "4", "--clip-norm", "1", "--out", "step.plan.json"];
    assert_good(&planc(folder, &[&[model.as_str()], &step[..], &common, flags].concat()));
    Plan::load(&folder.join("step.plan.json")).expect("a plan")
}

fn assert_total(trace: &Trace, plan: &Plan) {
    let (found, expected) = (trace.end_us(), plan.predicted.total_us);
    assert!((found - expected).abs() <= 1e-6 * expected, "{found}, not {expected}");
}

#[test]
fn a_pipeline_is_shown_as_it_is_predicted() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    for schedule in ["1f1b", "zb-h1", "interleaved", "zb-v"] {
        let plan = planned(folder, &["--gpus", "4", "--pipeline", "2", "--schedule", schedule]);
        let output = planc(folder, &["trace", "step.plan.json"]);
        assert_good(&output);
        assert!(text(&output.stdout).contains("step.trace.json"));
        let trace = Trace::load(&folder.join("step.trace.json"));
        assert_total(&trace, &plan);
        trace.assert_rows();
        trace.assert_kernels(&plan, |_| 1);
        let onnx = |s: &Span| s.name.contains("mlp.c_fc");
        assert!(trace.of("kernel").any(onnx), "kernels have the names of nodes");
        assert_eq!(trace.processes.len(), 2);

        let (sends, receives) = (trace.transfers("send "), trace.transfers("receive "));
        let once = plan.stages.iter().flat_map(|s| {
            let repeated = s.program.micro_batches.map_or(0, |m| m.instrs);
            s.program.instrs[repeated..].iter().filter(|i| matches!(i, Instr::Send { .. }))
        });
        let once = once.count();
        assert!(once > 0, "the norm is sent");
        let expected = once + (plan.channels.len() - once) * MICRO_BATCHES;
        assert_eq!((sends.len(), receives.len()), (expected, expected));
        assert_eq!(trace.assert_arrows(), expected);
        // Nothing that follows a receive begins before it is done. What is received last may be for another pass.
        let mut followed = 0;
        for receive in receives {
            let follows = |s: &&Span| {
                (s.row.0, s.micro_batch, &s.pass)
                    == (receive.row.0, receive.micro_batch, &receive.pass)
                    && s.instr > receive.instr
                    && s.category != "transfer"
            };
            let first = trace.spans.iter().filter(follows).map(|s| s.start_us).reduce(f64::min);
            let Some(first) = first else { continue };
            assert!(first >= receive.end_us - EPSILON_US, "{schedule}: {first} {receive:?}");
            followed += 1;
        }
        assert!(followed * 2 > expected, "{followed} of {expected}");
        let passes: BTreeSet<_> = trace.spans.iter().filter_map(|s| s.pass.clone()).collect();
        assert!(passes.contains("update"), "{passes:?}");
        assert_eq!(passes.contains("weights"), schedule == "zb-h1", "{passes:?}");
        assert_eq!(
            passes.contains("forward of chunk 1"),
            plan.stages[0].program.passes.iter().any(|p| p.chunk == 1)
        );

        assert_good(&planc(folder, &["trace", "step.plan.json", "--out", "again"]));
        let again = std::fs::read_to_string(folder.join("again")).expect("written");
        assert!(again == trace.text, "the same plan gives the same bytes");

        assert_good(&planc(folder, &["trace", "step.plan.json", "--ranks", "all", "--out", "all"]));
        let all = Trace::load(&folder.join("all"));
        all.assert_rows();
        all.assert_kernels(&plan, |ranks| ranks as usize);
        assert_eq!(all.processes.len(), 4);
        assert_total(&all, &plan);
        // Each rank that receives does so from some.
        assert!(all.assert_arrows() >= 2 * expected);
    }
}

#[test]
fn steps_and_runs_without_a_pipeline_are_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let plan = planned(folder, &["--gpus", "4"]);
    assert_good(&planc(folder, &["trace", "step.plan.json", "--out", "t"]));
    let trace = Trace::load(&folder.join("t"));
    assert_total(&trace, &plan);
    trace.assert_rows();
    trace.assert_kernels(&plan, |_| 1);
    assert_eq!(trace.processes.len(), 1);
    assert!(trace.arrows.is_empty());

    let model = model();
    let planning =
        [model.as_str(), "--gpus", "2", "--bind", "batch=2,seq=9", "--out", "run.plan.json"];
    assert_good(&planc(folder, &planning));
    let plan = Plan::load(&folder.join("run.plan.json")).expect("a plan");
    assert_good(&planc(folder, &["trace", "run.plan.json"]));
    let trace = Trace::load(&folder.join("run.trace.json"));
    assert_total(&trace, &plan);
    trace.assert_kernels(&plan, |_| 1);

    assert_good(&planc(folder, &["run", "run.plan.json", "--model", &model, "--trace", "ran"]));
    let ran = Trace::load(&folder.join("ran"));
    ran.assert_rows();
    ran.assert_kernels(&plan, |ranks| ranks as usize);
    assert_eq!(ran.processes.len(), 2);
    assert!(ran.end_us() > 0.0);
}

#[test]
fn a_step_of_a_pipeline_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let plan = planned(folder, &["--gpus", "4", "--pipeline", "2"]);
    let data = data().join("training/gpt2-dynamo.batches.safetensors");
    let data = data.to_str().expect("a path");
    let model = model();
    let train = |more: &[&str]| {
        let common = ["train", "step.plan.json", "--data", data, "--model", &model, "--steps", "2"];
        let output = planc(folder, &[&common[..], more].concat());
        assert_good(&output);
        text(&output.stdout)
    };
    let without = train(&[]);
    assert_eq!(train(&["--trace", "t"]), without, "a trace changes nothing");
    let trace = Trace::load(&folder.join("t"));
    trace.assert_rows();
    trace.assert_kernels(&plan, |ranks| ranks as usize);
    assert_eq!(trace.processes.len(), 4);
    assert_eq!(trace.threads.len(), 4);
    assert!(trace.assert_arrows() > plan.channels.len());
}

#[test]
fn what_cannot_be_shown_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    assert!(refused(folder, &["trace", "none"]).contains("none"));
    std::fs::write(folder.join("odd"), "{}").expect("written");
    assert!(refused(folder, &["trace", "odd"]).contains("plan"));
    let plan = planned(folder, &["--gpus", "2", "--pipeline", "2"]);
    let trace = |plan: &Plan| {
        plan.save(&folder.join("x.plan.json")).expect("written");
        refused(folder, &["trace", "x.plan.json"])
    };
    assert!(refused(folder, &["trace", "step.plan.json", "--out", "no/t"]).contains("no/t"));

    let mut other = plan.clone();
    other.training.as_mut().expect("it trains").settings["pipeline"] = Value::Null;
    assert!(trace(&other).contains("does not say how its pipeline is cut"));
    let mut other = plan.clone();
    other.training.as_mut().expect("it trains").settings["pipeline"]["holders"] = [1, 0].into();
    assert!(trace(&other).contains("not those of a pipeline"));
    let mut other = plan.clone();
    other.stages[0].program.order.clear();
    assert!(trace(&other).contains("stage"));
    let mut other = plan.clone();
    other.cluster["nodes"][0]["devices"] = 1.into();
    assert!(trace(&other).contains("cluster"));

    let mut other = planned(folder, &["--gpus", "2"]);
    let program = &mut other.stages[0].program;
    let instrs = program.micro_batches.expect("micro-batches").instrs;
    program.micro_batches = Some(MicroBatches { count: u32::MAX, instrs });
    assert!(trace(&other).contains("at most 1000000 are written"));
}
