//! Kernels of gradients: derivatives of scalar functions, and rows added where they were looked up.

use crate::common::numbers;
use crate::{FLOATS, check, check_all, indices, numbers_of, run_on};
use planc_ir::ops::Op;
use planc_ir::ops::gather_grad::GatherGrad;
use planc_ir::ops::map::Map;
use planc_ir::program::{Kernel, Local};
use planc_ir::scalar::{ScalarFn, Slope};
use planc_ir::{DType, Tensor, TensorType};
use planc_runtime::region;

#[test]
fn slopes() {
    for slope in [
        Slope::Abs,
        Slope::Sqrt,
        Slope::Cos,
        Slope::Tanh,
        Slope::Erf,
        Slope::Relu,
        Slope::Sigmoid,
        Slope::HardSigmoid { alpha: 0.2 },
        Slope::HardSwish,
        Slope::LeakyRelu { alpha: 0.1 },
        Slope::Selu { alpha: 1.6, gamma: 1.1 },
        Slope::Softplus,
        Slope::Mish,
        Slope::Gelu,
        Slope::GeluTanh,
        Slope::Swish { alpha: 1.5 },
        Slope::Shrink { lambd: 0.5 },
    ] {
        let op = Op::from(Map { f: ScalarFn::Slope(slope) });
        check_all(&op, &FLOATS, &[&[3, 700], &[3, 700]]);
        check_all(&op, &FLOATS, &[&[4, 1], &[5, 1, 6]]);
    }
}

#[test]
fn rows_are_added_where_they_were_looked_up() {
    for dtype in FLOATS {
        let g = |shape: &[u64]| numbers_of(TensorType::new(dtype, shape), 5);
        let op = |axis, extent| GatherGrad { axis, extent };
        let at = indices(&[2, 2], &[0, -1, 3, 0]);
        check(op(0, 4), &[at.clone(), g(&[2, 2, 3])]);
        check(op(1, 5), &[at.clone(), g(&[3, 2, 2, 2])]);
        check(op(2, 4), &[at.cast(DType::I32).unwrap(), g(&[3, 2, 2, 2])]);
        check(op(1, 4), &[indices(&[], &[-2]), g(&[3, 2])]);
        check(op(0, 4), &[indices(&[0], &[]), g(&[0, 2])]);
        check(op(0, 4), &[indices(&[3], &[1, 1, 1]), g(&[3])]);
        for wrong in [4, -5, i64::MIN] {
            check(op(0, 4), &[indices(&[1], &[wrong]), g(&[1, 2])]);
        }
    }
}

/// Of many small terms none is lost, whatever the element type.
#[test]
fn long_sums_of_rows_do_not_drift() {
    let many = 5000;
    let g = Tensor::from_f64(TensorType::new(DType::F32, [many, 2]), |_| 0.1).unwrap();
    let at = indices(&[many], &vec![1; many as usize]);
    let out = TensorType::new(DType::F32, [3, 2]);
    let inputs = [(region::whole(at.ty()), at), (region::whole(g.ty()), g)];
    let sums = run_on(&Kernel::GatherGrad { axis: 0 }, &inputs, &region::whole(&out)).unwrap();
    let sum = f64::from((f64::from(0.1f32) * many as f64) as f32);
    assert_eq!(sums.to_f64s(), [0.0, 0.0, sum, sum, 0.0, 0.0]);
}

#[test]
fn parts_of_the_rows_are_laid_side_by_side() {
    let g = numbers(TensorType::new(DType::F32, [2, 5, 3]), 1);
    let index = indices(&[5], &[6, -7, 2, -1, 2]);
    let want = Op::from(GatherGrad { axis: 1, extent: 7 }).eval(&[&index, &g]).unwrap().remove(0);
    let inputs = [(region::whole(index.ty()), index), (region::whole(g.ty()), g)];
    for (start, end) in [(0, 3), (3, 3), (3, 7)] {
        let held = end - start;
        let part = Local {
            ty: TensorType::new(DType::F32, [2, held, 3]),
            start: vec![0, start, 0],
            global: vec![2, 7, 3],
        };
        let got = run_on(&Kernel::GatherGrad { axis: 1 }, &inputs, &part).unwrap();
        let width = 3 * held as usize;
        let from = |i: usize| i / width * 21 + start as usize * 3 + i % width;
        assert_eq!(got, want.select([2, held, 3], from).unwrap());
    }
}
