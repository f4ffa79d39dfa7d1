//! What must hold of any program that communicates beside compute.

use planc_cost_model::simulate::{instr_us, simulate};
use planc_cost_model::{Catalogue, Cluster, CostModel};
use planc_ir::program::{Buffer, BufferId, Instr, Kernel, MicroBatches, Program, Slot, streams};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisId, Mesh, ReduceKind, Sharding};
use planc_ir::{DType, TensorType};
use proptest::prelude::*;

/// What a program does next.
#[derive(Clone, Copy, Debug)]
enum Do {
    /// A kernel on so many elements.
    Kernel(u64),
    /// So many reductions of so many elements each, issued as one.
    Issue(usize, u64),
    /// Waits for the oldest issue in flight that is not before this one.
    Wait(usize),
}

struct Built(Program);

impl Built {
    fn buffer(&mut self, elements: u64, is_partial: bool) -> BufferId {
        let mut sharding = Sharding::replicated(1);
        if is_partial {
            sharding.partial.push((AxisId(0), ReduceKind::Sum));
        }
        self.0.buffers.push(Buffer {
            name: format!("b{}", self.0.buffers.len()),
            ty: TensorType::new(DType::F32, [elements]),
            sharding,
            dynamic: false,
            copies: 1,
            slot: Slot::default(),
        });
        BufferId(self.0.buffers.len() as u32 - 1)
    }
}

/// Eight ranks that do this; all that is in flight in the end is waited for.
fn program(actions: &[Do]) -> Program {
    let mut built = Built(Program {
        mesh: Mesh::new([("r", 8)]),
        buffers: Vec::new(),
        inputs: Vec::new(),
        weights: Vec::new(),
        constants: Vec::new(),
        accumulators: Vec::new(),
        passes: Vec::new(),
        order: Vec::new(),
        instrs: Vec::new(),
        micro_batches: None,
        carried: Vec::new(),
        outputs: Vec::new(),
        arena_bytes: 0,
    });
    let mut in_flight: Vec<BufferId> = Vec::new();
    for &action in actions {
        let instr = match action {
            Do::Kernel(elements) => {
                let (input, output) =
                    (built.buffer(elements, false), built.buffer(elements, false));
                Instr::Kernel {
                    node: "kernel".into(),
                    kernel: Kernel::Map { f: ScalarFn::Exp },
                    inputs: vec![input],
                    outputs: vec![output],
                }
            }
            Do::Issue(count, elements) => {
                let step = Step::AllReduce { axes: vec![AxisId(0)], kind: ReduceKind::Sum };
                let inputs: Vec<_> = (0..count).map(|_| built.buffer(elements, true)).collect();
                let outputs: Vec<_> = (0..count).map(|_| built.buffer(elements, false)).collect();
                in_flight.extend(outputs.last());
                Instr::Issue { steps: vec![step; count], inputs, outputs }
            }
            Do::Wait(which) => match in_flight.len() {
                0 => continue,
                n => {
                    Instr::Wait { buffer: in_flight.drain(..=which % n).next_back().expect("some") }
                }
            },
        };
        built.0.instrs.push(instr);
    }
    built.0.instrs.extend(in_flight.last().map(|&buffer| Instr::Wait { buffer }));
    built.0
}

/// The same, one after the other, and each reduction by itself.
fn serial(program: &Program) -> Program {
    let mut serial = program.clone();
    serial.instrs.clear();
    for instr in &program.instrs {
        match instr {
            Instr::Kernel { .. } => serial.instrs.push(instr.clone()),
            _ => serial.instrs.extend(instr.steps().map(|(step, input, output)| Instr::Reshard {
                step: step.clone(),
                input,
                output,
            })),
        }
    }
    serial
}

fn cluster() -> Cluster {
    Cluster::preset("dgx-a100:1", &Catalogue::shipped().expect("sound")).expect("known")
}

fn model(cluster: &Cluster) -> CostModel {
    CostModel::new(cluster, &Catalogue::shipped().expect("sound")).expect("sound")
}

fn elements() -> impl Strategy<Value = u64> {
    (8u32..26).prop_map(|magnitude| 1 << magnitude)
}

fn actions() -> impl Strategy<Value = Vec<Do>> {
    let action = prop_oneof![
        3 => elements().prop_map(Do::Kernel),
        2 => (1..4usize, elements()).prop_map(|(count, n)| Do::Issue(count, n)),
        1 => (0..4usize).prop_map(Do::Wait),
    ];
    proptest::collection::vec(action, 0..40)
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

proptest! {
    #[test]
    fn one_after_the_other_is_the_sum(actions in actions()) {
        let (costs, program) = (model(&cluster()), serial(&program(&actions)));
        let found = simulate(&program, &costs);
        let sum: f64 = program.instrs.iter().map(|i| instr_us(&program, i, &costs)).sum();
        prop_assert!(is_near(found.total_us, sum), "{found:?} {sum}");
        prop_assert!(is_near(found.serial_us(), sum), "{found:?} {sum}");
    }

    #[test]
    fn overlap_is_never_slower_than_the_sum_nor_faster_than_either(actions in actions()) {
        let (costs, program) = (model(&cluster()), program(&actions));
        let found = simulate(&program, &costs);
        let communication_us: f64 = found.communication_us.values().sum();
        let slack = 1e-9 * found.total_us;
        prop_assert!(found.total_us <= found.serial_us() + slack, "{found:?}");
        prop_assert!(found.total_us <= simulate(&serial(&program), &costs).total_us + slack);
        prop_assert!(found.total_us + slack >= found.compute_us.max(communication_us), "{found:?}");
    }

    #[test]
    fn more_bandwidth_is_never_slower(actions in actions(), factor in 1.0f64..4.0) {
        let (slow, program) = (cluster(), program(&actions));
        let mut fast = slow.clone();
        fast.nodes[0].intra.bandwidth_bytes_per_s *= factor;
        let us = |cluster| simulate(&program, &model(cluster)).total_us;
        prop_assert!(us(&fast) <= us(&slow) * (1.0 + 1e-12));
    }

    #[test]
    fn micro_batches_take_the_same_time(
        repeated in actions(), rest in actions(), count in 1u32..9,
    ) {
        let costs = model(&cluster());
        let (mut both, after) = (program(&repeated), program(&rest));
        let alone = [&both, &after].map(|p| simulate(p, &costs).total_us);
        let instrs = both.instrs.len();
        // Buffers of the second part are behind those of the first.
        let offset = both.buffers.len() as u32;
        let mut after_instrs = after.instrs;
        for instr in &mut after_instrs {
            let shift = |b: &mut BufferId| b.0 += offset;
            match instr {
                Instr::Kernel { inputs, outputs, .. } | Instr::Issue { inputs, outputs, .. } => {
                    inputs.iter_mut().chain(outputs).for_each(shift);
                }
                Instr::Wait { buffer }
                | Instr::Send { buffer, .. }
                | Instr::Receive { buffer, .. } => shift(buffer),
                Instr::Reshard { .. } => {}
            }
        }
        both.buffers.extend(after.buffers);
        both.instrs.extend(after_instrs);
        both.micro_batches = Some(MicroBatches { count, instrs });
        let found = simulate(&both, &costs).total_us;
        prop_assert!(is_near(found, f64::from(count) * alone[0] + alone[1]), "{found} {alone:?}");
    }
}

#[test]
fn a_kernel_beside_communication_is_slowed() {
    let costs = model(&cluster());
    let program =
        program(&[Do::Issue(1, 1 << 26), Do::Kernel(1 << 22), Do::Wait(0), Do::Kernel(1)]);
    let us: Vec<f64> = program.instrs.iter().map(|i| instr_us(&program, i, &costs)).collect();
    assert!(us[0] > 1.2 * us[1]);
    let found = simulate(&program, &costs);
    assert!(is_near(found.total_us, us[0] + us[3]), "{found:?} {us:?}");
    assert!(is_near(found.exposed_us(), us[0] - us[1]), "{found:?} {us:?}");

    // The other way round the kernel is the longer one: what is beside it costs a fifth of its length.
    let program = self::program(&[Do::Issue(1, 1 << 10), Do::Kernel(1 << 28)]);
    let us: Vec<f64> = program.instrs.iter().map(|i| instr_us(&program, i, &costs)).collect();
    let found = simulate(&program, &costs);
    assert!(is_near(found.total_us, us[1] + us[0] - us[0] / 1.2), "{found:?} {us:?}");
}

/// A bucket starts once, so it takes less than its reductions by themselves.
#[test]
fn buckets_start_once() {
    let costs = model(&cluster());
    let program = program(&[Do::Issue(3, 1 << 12)]);
    assert_eq!(streams::done(&program), [1, 1]);
    let (together, apart) =
        (simulate(&program, &costs).total_us, simulate(&serial(&program), &costs).total_us);
    assert!(together < 0.5 * apart, "{together} {apart}");
}
