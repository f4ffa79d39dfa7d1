//! Plans with numbers changed at random are refused, or run to an end: no panic, no hang.

use super::orders::Kind;
use super::steps::{Pipeline, pipeline, weights};
use super::tied::{PARTS, batches, step};
use planc_ir::plan::{Channel, Stage};
use planc_runtime::{Executor, RunError};
use serde_json::Value;

/// A pseudo-random sequence.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

/// All numbers of a document.
fn numbers(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Number(_) => vec![value],
        Value::Array(items) => items.iter_mut().flat_map(numbers).collect(),
        Value::Object(items) => items.values_mut().flat_map(numbers).collect(),
        _ => vec![],
    }
}

#[test]
fn changed_numbers_are_refused_or_run() {
    let parts: [usize; PARTS] = [0, 1, 2, 3];
    let kind = Kind::Random { seed: 5, weights: true };
    let Pipeline { stages, channels } = pipeline((parts, &[0, 1, 1, 0]), kind, 3);
    let good = serde_json::to_value((&stages, &channels)).unwrap();
    let given = weights(&step().0);
    let (mut ran, mut refused) = (0, 0);
    let mut draw = Draw(7);
    for _ in 0..1500 {
        let mut changed = good.clone();
        // One list of small numbers is drawn as often as all the rest.
        let pointer =
            ["/0/0/program/order", "/0/1/program/passes", "/0/0/program/instrs", "/1", ""];
        let part = changed.pointer_mut(pointer[draw.below(pointer.len())]).unwrap();
        let mut all = numbers(part);
        let at = draw.below(all.len());
        let small = draw.below(8) as u64;
        let choices = [small, 0, 1, 256, u64::from(u32::MAX), 1 << 40, u64::MAX];
        *all[at] = choices[draw.below(choices.len())].into();
        let Ok((stages, channels)) = serde_json::from_value::<(Vec<Stage>, Vec<Channel>)>(changed)
        else {
            refused += 1;
            continue;
        };
        match Executor::of_stages(stages, &channels, &given, &given) {
            Ok(mut executor) => {
                let outcome = executor.step(&batches(0));
                assert!(!matches!(outcome, Err(RunError::Panic { .. })), "{outcome:?}");
                ran += 1;
            }
            Err(error) => {
                assert!(!matches!(error, RunError::Panic { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(ran > 20 && refused > 500, "{ran} ran, {refused} were refused");
}
