//! The plan as a document: layout, checksum, refusals, schema.
#![allow(clippy::unwrap_used)]

use planc_ir::plan::{
    Baseline, Certificate, Channel, Constant, FORMAT, ModelRef, Named, NodeStrategy, Plan,
    PlanError, Prediction, Semantics, Source, Stage, Training, Weight,
};
use planc_ir::program::{
    Action, Buffer, BufferId, CarriedBuffer, Instr, Kernel, MicroBatches, Pass, PassInstrs,
    Program, Slot,
};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{
    AxisId, AxisUse, DimSharding, FactorId, Mesh, OpStrategy, ReduceKind, Sharding,
};
use planc_ir::{DType, TensorType};
use serde_json::{Value, json};

fn ty(shape: &[u64]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A plan in which every kind of entry occurs. It need not be one that runs.
fn plan() -> Plan {
    let on = vec![AxisId(0)];
    let kind = ReduceKind::Sum;
    let steps = [
        Step::AllReduce { axes: on.clone(), kind },
        Step::ReduceScatter { axes: on.clone(), dim: 0, kind, unit: 1 },
        Step::AllGather { axes: on.clone(), dim: 0 },
        Step::AllToAll { axes: on.clone(), from: 0, to: 1, unit: 2 },
        Step::Slice { axes: on.clone(), dim: 1, unit: 1 },
        Step::ToPartial { axes: on.clone(), kind: ReduceKind::Max },
    ];
    let kernels = [
        Kernel::Copy,
        Kernel::MatMul { trans_a: false, trans_b: true },
        Kernel::Map { f: ScalarFn::LeakyRelu { alpha: f32::NEG_INFINITY } },
        Kernel::Fill { value: f64::NAN },
        Kernel::MatMulGrad,
    ];
    let instrs = kernels
        .into_iter()
        .map(|kernel| Instr::Kernel {
            node: "layer \"0\"\n".into(),
            kernel,
            inputs: vec![BufferId(0)],
            outputs: vec![BufferId(1)],
        })
        .chain(steps.into_iter().map(|step| Instr::Reshard {
            step,
            input: BufferId(0),
            output: BufferId(1),
        }))
        .chain([
            Instr::Issue {
                steps: vec![Step::AllReduce { axes: on, kind }],
                inputs: vec![BufferId(0)],
                outputs: vec![BufferId(1)],
            },
            Instr::Wait { buffer: BufferId(1) },
            Instr::Send { channel: 0, buffer: BufferId(0) },
            Instr::Receive { channel: 1, buffer: BufferId(1) },
        ])
        .collect();
    let mut mesh = Mesh::new([("data", 2), ("tensor", 3)]);
    mesh.axes[1].shares = Some(vec![1, 2, 1]);
    let split = DimSharding { axes: vec![AxisId(1)], unit: 64 };
    let buffer = |offset, partial| Buffer {
        name: "x".into(),
        ty: ty(&[4, 256]),
        sharding: Sharding { dims: vec![DimSharding::whole(), split.clone()], partial },
        dynamic: false,
        copies: 1,
        slot: Slot { offset, bytes: 4096 },
    };
    let dynamic = Buffer {
        name: "stacked".into(),
        ty: ty(&[]),
        sharding: Sharding::replicated(0),
        dynamic: true,
        copies: 3,
        slot: Slot::default(),
    };
    let program = Program {
        mesh,
        buffers: vec![buffer(0, vec![]), buffer(4096, vec![(AxisId(0), kind)]), dynamic],
        inputs: vec![BufferId(0)],
        weights: vec![],
        constants: vec![],
        accumulators: vec![BufferId(1)],
        instrs,
        passes: vec![PassInstrs { pass: Pass::Forward, chunk: 1, end: 3 }],
        order: vec![Action { pass: Pass::Forward, chunk: 1, micro_batch: 0 }],
        micro_batches: Some(MicroBatches { count: 2, instrs: 3 }),
        carried: vec![CarriedBuffer { state: BufferId(0), next: BufferId(1) }],
        outputs: vec![BufferId(1)],
        arena_bytes: 8192,
    };
    let uses = vec![AxisUse::Replicate, AxisUse::Split(FactorId(1)), AxisUse::Linear(0)];
    Plan {
        format: FORMAT,
        checksum: String::new(),
        model: ModelRef {
            name: "m".into(),
            file: "m.onnx".into(),
            digest: "00".into(),
            bindings: [("batch".to_string(), 4)].into(),
            parameters: 1024,
            flops: 2.0e21,
            inputs: vec![Named { name: "x".into(), ty: ty(&[4, 256]) }],
            outputs: vec![Named { name: "y".into(), ty: ty(&[]) }],
        },
        training: Some(Training {
            loss: "y".into(),
            labels: Some("labels".into()),
            learning_rate: "learning_rate".into(),
            micro_batches: 2,
            recipe: [("optimizer".to_string(), "SGD".to_string())].into(),
            state: vec!["w".into()],
            settings: json!({ "recompute": "nothing" }),
        }),
        cluster: json!({ "nodes": 1 }),
        semantics: Semantics::Exact,
        predicted: Prediction {
            total_us: 0.1 + 0.2,
            communication_us: [("all-reduce".to_string(), 1e-7)].into(),
            exposed_us: Some(1e-8),
            ..Prediction::default()
        },
        baselines: vec![Baseline {
            name: "data parallel".into(),
            mesh: "{data: 6}".into(),
            total_us: 3.5,
            memory_bytes: u64::MAX,
            fits: false,
        }],
        certificate: Certificate {
            objective_us: 1.0,
            bound_us: 1.0,
            gap: 0.0,
            status: "optimal".into(),
            solver: "s".into(),
            limits: [("nodes".to_string(), "none".to_string())].into(),
            evaluated_us: 1.0,
            space: [("columns".to_string(), 7)].into(),
        },
        stages: vec![Stage {
            first_rank: 0,
            strategy: vec![NodeStrategy {
                node: "layer".into(),
                op: "MatMul".into(),
                strategy: OpStrategy { axes: uses },
            }],
            program,
        }],
        channels: vec![Channel { value: "x".into(), from: 0, to: 1 }],
        weights: vec![
            Weight {
                name: "w".into(),
                ty: ty(&[2, 2]),
                source: Source::File { location: None, offset: 64 },
            },
            Weight {
                name: "v".into(),
                ty: ty(&[1]),
                source: Source::File { location: Some("v.data".into()), offset: 0 },
            },
            Weight { name: "u".into(), ty: ty(&[1]), source: Source::Inline("AAAAAA==".into()) },
            Weight { name: "m".into(), ty: ty(&[1]), source: Source::Fill(f64::INFINITY) },
            Weight {
                name: "narrow".into(),
                ty: ty(&[2]),
                source: Source::Cast { from: DType::BF16, source: Box::new(Source::Fill(0.5)) },
            },
        ],
        constants: vec![Constant { name: "c".into(), ty: ty(&[]), data: "AACAPw==".into() }],
    }
}

#[test]
fn a_plan_reads_back_as_it_was() {
    let text = plan().to_json().unwrap();
    let back = Plan::from_json(&text).unwrap();
    assert_eq!(back.to_json().unwrap(), text, "the same bytes again");
    // NaN equals nothing, so plans that hold it are compared without it.
    let without = |mut p: Plan| {
        p.checksum.clear();
        p.stages[0].program.instrs.remove(3);
        p
    };
    assert_eq!(without(back), without(plan()));
}

#[test]
fn every_entry_has_a_line_of_its_own() {
    let text = plan().to_json().unwrap();
    assert!(text.ends_with("}\n"));
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines[1], "\"format\": 1,");
    for (start, count) in [
        ("{\"kernel\":", 5),
        ("{\"reshard\":", 6),
        ("{\"name\":\"x\",\"dtype\":\"f32\",\"shape\":[4,256],\"sharding\":", 2),
        ("{\"name\":\"w\",", 1),
        ("{\"node\":\"layer\",", 1),
        ("{\"name\":\"data parallel\",", 1),
    ] {
        assert_eq!(lines.iter().filter(|l| l.starts_with(start)).count(), count, "{start}");
    }
    // Indentation follows the brackets.
    let mut depth = 0usize;
    for line in text.lines() {
        let inner = line.trim_start();
        if inner.starts_with(['}', ']']) {
            depth -= 1;
        }
        assert_eq!(line.len() - inner.len(), 2 * depth, "{line}");
        if inner.ends_with(['{', '[']) {
            depth += 1;
        }
    }
}

#[test]
fn empty_lists_take_no_lines() {
    let mut p = plan();
    p.stages.clear();
    p.channels.clear();
    p.weights.clear();
    let text = p.to_json().unwrap();
    assert!(text.contains("\"stages\": [],\n  \"weights\": [],"), "{text}");
    assert_eq!(Plan::from_json(&text).unwrap().to_json().unwrap(), text);
}

#[test]
fn any_changed_byte_is_noticed() {
    let text = plan().to_json().unwrap();
    for at in (0..text.len()).step_by(7) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        let edited = String::from_utf8(bytes).unwrap();
        assert!(Plan::from_json(&edited).is_err(), "byte {at} of the plan changed");
    }
}

#[test]
fn a_plan_that_was_cut_short_is_refused() {
    let text = plan().to_json().unwrap();
    for end in (0..text.len() - 2).step_by(11) {
        let error = Plan::from_json(&text[..end]).unwrap_err();
        assert!(matches!(error, PlanError::Syntax(_)), "cut at {end}: {error}");
    }
}

#[test]
fn refusals_say_which_and_what_to_do() {
    let text = plan().to_json().unwrap();
    let error = |text: &str| Plan::from_json(text).unwrap_err();
    // The version counts before everything else: another version may look quite different.
    let e = error("{\"format\": 7, \"checksum\": \"\", \"something\": 1}");
    assert!(matches!(e, PlanError::Format { found: 7 }), "{e}");
    assert!(e.to_string().contains("format 7") && e.to_string().contains("plan the model again"));
    let e = error(&text.replacen("\"exact\"", "\"stale\"", 1));
    assert!(matches!(e, PlanError::Checksum), "{e}");
    assert!(matches!(error("{}"), PlanError::Syntax(_)));
    assert!(matches!(error(""), PlanError::Syntax(_)));
    assert!(matches!(error("[1]"), PlanError::Syntax(_)));
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.plan.json");
    plan().save(&path).unwrap();
    assert_eq!(Plan::load(&path).unwrap().to_json().unwrap(), plan().to_json().unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = folder.path().join("no").join("p.plan.json");
    assert!(matches!(plan().save(&nowhere), Err(PlanError::Io { .. })));
    assert!(matches!(Plan::load(&nowhere), Err(PlanError::Io { .. })));
}

/// Why a value does not follow a schema, by as much of JSON Schema as the plan's schema uses.
fn faults(schema: &Value, root: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fault = |why: String| found.push(format!("{at}: {why}"));
    for (keyword, rule) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "$schema" | "title" | "$defs" => {}
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                faults(target, root, value, at).into_iter().for_each(&mut fault);
            }
            "type" => {
                let is = match rule.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64(),
                    "boolean" => value.is_boolean(),
                    other => panic!("type {other}"),
                };
                if !is {
                    fault(format!("{value} is no {rule}"));
                }
            }
            "const" if value == rule => {}
            "enum" if rule.as_array().unwrap().contains(value) => {}
            "const" | "enum" => fault(format!("{value} is not {rule}")),
            "minimum" if value.as_u64() >= rule.as_u64() => {}
            "minimum" => fault(format!("{value} is less than {rule}")),
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.get(name.as_str().unwrap()).is_none() {
                        fault(format!("{name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().unwrap() {
                    if let Some(v) = value.get(name) {
                        let at = format!("{at}/{name}");
                        faults(inner, root, v, &at).into_iter().for_each(&mut fault);
                    }
                }
            }
            "additionalProperties" => {
                let known = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
                for (name, v) in value.as_object().into_iter().flatten() {
                    if rule == &json!(false) && !known(name) {
                        fault(format!("{name} is unknown"));
                    } else if rule.is_object() {
                        faults(rule, root, v, &format!("{at}/{name}"))
                            .into_iter()
                            .for_each(&mut fault);
                    }
                }
            }
            "minProperties" | "maxProperties" => {
                let (n, limit) = (value.as_object().map_or(0, |o| o.len() as u64), rule.as_u64());
                let ok =
                    if keyword == "minProperties" { Some(n) >= limit } else { Some(n) <= limit };
                if !ok {
                    fault(format!("{n} fields"));
                }
            }
            "items" => {
                for (i, v) in value.as_array().into_iter().flatten().enumerate() {
                    faults(rule, root, v, &format!("{at}/{i}")).into_iter().for_each(&mut fault);
                }
            }
            "prefixItems" => {
                for (i, (rule, v)) in
                    rule.as_array().unwrap().iter().zip(value.as_array().unwrap()).enumerate()
                {
                    faults(rule, root, v, &format!("{at}/{i}")).into_iter().for_each(&mut fault);
                }
            }
            "oneOf" => {
                let options = rule.as_array().unwrap();
                let n = options.iter().filter(|o| faults(o, root, value, at).is_empty()).count();
                if n != 1 {
                    fault(format!("{value} fits {n} alternatives"));
                }
            }
            other => panic!("the schema uses `{other}`, which this test does not know"),
        }
    }
    found
}

/// The fields of an object that may be left out.
fn optional(pointer: &str) -> &'static [&'static str] {
    match pointer.rsplit('/').next() {
        Some("") => &["training", "channels"],
        Some("training") => &["labels"],
        Some("program") => &["accumulators", "micro_batches", "passes", "order", "carried"],
        _ => &["shares", "location", "kind", "dynamic", "copies", "chunk", "exposed_us"],
    }
}

#[test]
fn the_schema_describes_what_is_written() {
    let schema: Value = serde_json::from_str(include_str!("../../docs/plan.schema.json")).unwrap();
    let written: Value = serde_json::from_str(&plan().to_json().unwrap()).unwrap();
    assert_eq!(faults(&schema, &schema, &written, ""), Vec::<String>::new());
    let mut refused = 0;
    let mut refuse = |pointer: &str, change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut edited = written.clone();
        change(edited.pointer_mut(pointer).unwrap().as_object_mut().unwrap());
        assert!(!faults(&schema, &schema, &edited, "").is_empty(), "{pointer} was changed");
        refused += 1;
    };
    let objects = [
        "",
        "/model",
        "/training",
        "/predicted",
        "/baselines/0",
        "/certificate",
        "/stages/0",
        "/weights/0",
        "/weights/0/file",
        "/weights/3",
        "/weights/4",
        "/weights/4/cast",
        "/weights/4/cast/source",
        "/constants/0",
        "/stages/0/strategy/0",
        "/stages/0/program",
        "/stages/0/program/micro_batches",
        "/stages/0/program/carried/0",
        "/stages/0/program/mesh",
        "/stages/0/program/mesh/axes/0",
        "/stages/0/program/buffers/0",
        "/stages/0/program/buffers/2",
        "/stages/0/program/buffers/0/sharding",
        "/stages/0/program/buffers/0/sharding/dims/0",
        "/stages/0/program/instrs/1/kernel",
        "/stages/0/program/instrs/5/reshard",
        "/stages/0/program/instrs/5/reshard/step/all_reduce",
        "/stages/0/program/instrs/11/issue",
        "/stages/0/program/instrs/12/wait",
        "/stages/0/program/instrs/13/send",
        "/stages/0/program/instrs/14/receive",
        "/stages/0/program/passes/0",
        "/stages/0/program/order/0",
        "/channels/0",
    ];
    for pointer in objects {
        refuse(pointer, &|o| {
            o.insert("unknown".into(), json!(1));
        });
        // Every field of the written plan is required, but those that say otherwise.
        for name in written.pointer(pointer).unwrap().as_object().unwrap().keys() {
            if !optional(pointer).contains(&name.as_str()) {
                refuse(pointer, &|o| {
                    o.remove(name);
                });
            }
        }
    }
    assert!(refused > 80, "{refused}");
}
