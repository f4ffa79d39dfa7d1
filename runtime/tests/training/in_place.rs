//! Elementwise kernels whose result lies where an operand lies.

use crate::common::{Builder, f32s, named, numbers, whole};
use planc_ir::ops::{Op, map::Map};
use planc_ir::program::verify::verify;
use planc_ir::program::{CarriedBuffer, Kernel};
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::Mesh;
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::Executor;
use std::collections::BTreeMap;

/// `state = f(.., state, ..)`, run twice: what it is then, and the bytes that were copied.
fn twice(f: ScalarFn, state: &Tensor, operands: &[Option<Tensor>]) -> (Tensor, u64) {
    let mut p = Builder::new(Mesh::new([("a", 1)]));
    let old = p.weight("state", state.ty().clone(), whole(state.ty().rank()));
    let mut inputs = BTreeMap::new();
    let ids: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, operand)| match operand {
            None => old,
            Some(t) => {
                inputs.insert(format!("x{i}"), t.clone());
                p.input(&format!("x{i}"), t.ty().clone(), whole(t.ty().rank()))
            }
        })
        .collect();
    let new = p.buffer("next", state.ty().clone(), whole(state.ty().rank()));
    p.0.buffers[new.index()].slot = p.0.buffers[old.index()].slot;
    p.kernel(Kernel::Map { f }, &ids, new);
    p.0.carried.push(CarriedBuffer { state: old, next: new });
    assert_eq!(verify(&p.0), []);
    let weights = named([("state", state.clone())]);
    let mut executor = Executor::new(p.0, &weights, &BTreeMap::new()).unwrap();
    executor.run(&inputs).unwrap();
    executor.run(&inputs).unwrap();
    let bytes = executor.weight_bytes("state").unwrap();
    let copied = executor.memory_use().copied_bytes;
    (Tensor::from_bytes(state.ty().clone(), &bytes).unwrap(), copied)
}

fn check(f: ScalarFn, state: &Tensor, operands: &[Option<Tensor>]) {
    let mut expected = state.clone();
    for _ in 0..2 {
        let inputs: Vec<&Tensor> =
            operands.iter().map(|o| o.as_ref().unwrap_or(&expected)).collect();
        expected = Op::from(Map { f }).eval(&inputs).unwrap().remove(0);
    }
    let (found, copied) = twice(f, state, operands);
    assert_eq!(found, expected, "{f:?} of {}", state.ty());
    assert_eq!(copied, 0, "{f:?} of {}", state.ty());
}

#[test]
fn maps_write_over_their_operand_without_a_copy() {
    for shape in
        [vec![], vec![1], vec![5], vec![4096], vec![10_007], vec![3, 5000], vec![70, 33, 5]]
    {
        for dtype in [DType::F32, DType::BF16, DType::I32, DType::F64] {
            let ty = |shape: &[u64]| TensorType::new(dtype, shape);
            let state = numbers(ty(&shape), 1);
            let own = Some(numbers(ty(&shape), 2));
            check(ScalarFn::Add, &state, &[None, own.clone()]);
            check(ScalarFn::Sub, &state, &[own, None]);
            check(ScalarFn::Add, &state, &[None, None]);
            check(ScalarFn::Sub, &state, &[Some(numbers(ty(&[]), 3)), None]);
            check(ScalarFn::Neg, &state, &[None]);
            if shape.len() > 1 {
                // Rows, columns, and what lies between.
                let row = numbers(ty(&shape[1..]), 4);
                check(ScalarFn::Sub, &state, &[None, Some(row)]);
                let mut column = shape.clone();
                *column.last_mut().unwrap() = 1;
                check(ScalarFn::Sub, &state, &[Some(numbers(ty(&column), 5)), None]);
                column[0] = 1;
                column[1] = shape[1];
                check(ScalarFn::Max, &state, &[Some(numbers(ty(&column), 6)), None]);
            }
        }
    }
    let flags = Tensor::new([5000], (0..5000).map(|i| i % 3 == 0).collect::<Vec<bool>>()).unwrap();
    let (x, y) = (numbers(f32s([5000]), 1), numbers(f32s([5000]), 2));
    check(ScalarFn::Where, &x, &[Some(flags.clone()), None, Some(y)]);
    check(ScalarFn::Not, &flags, &[None]);
}
