//! Gradients of ops of random shapes.

use crate::difference::{Case, Tally, check};
use crate::random::Random;
use crate::samples::random_tensor;
use planc_ir::Tensor;
use planc_ir::ops::Op;
use planc_ir::ops::concat::Concat;
use planc_ir::ops::cum_prod::CumProd;
use planc_ir::ops::cumsum::CumSum;
use planc_ir::ops::expand::Expand;
use planc_ir::ops::gather::Gather;
use planc_ir::ops::gather_elements::GatherElements;
use planc_ir::ops::gather_nd::GatherNd;
use planc_ir::ops::lrn::Lrn;
use planc_ir::ops::map::Map;
use planc_ir::ops::matmul::MatMul;
use planc_ir::ops::pad::Pad;
use planc_ir::ops::reduce::Reduce;
use planc_ir::ops::reshape::Reshape;
use planc_ir::ops::reverse_sequence::ReverseSequence;
use planc_ir::ops::scatter::Update;
use planc_ir::ops::scatter_elements::ScatterElements;
use planc_ir::ops::scatter_nd::ScatterNd;
use planc_ir::ops::slice::{Cut, Slice};
use planc_ir::ops::softmax::Softmax;
use planc_ir::ops::top_k::TopK;
use planc_ir::ops::transpose::Transpose;
use planc_ir::ops::trilu::Trilu;
use planc_ir::program::kernel::PadMode;
use planc_ir::scalar::ScalarFn;
use planc_ir::sharding::ReduceKind;

const UPDATES: [Update; 5] = [Update::Set, Update::Add, Update::Mul, Update::Max, Update::Min];

/// Draws ops and operands.
struct Draw(Random);

impl Draw {
    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        (f64::midpoint(self.0.next(), 1.0) * n as f64) as u64
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn shape(&mut self, rank: usize) -> Vec<u64> {
        (0..rank).map(|_| 1 + self.below(4)).collect()
    }

    /// Some of the dimensions, in order.
    fn some(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|_| self.coin()).collect()
    }

    fn floats(&mut self, shape: &[u64]) -> Tensor {
        random_tensor(&mut self.0, shape)
    }

    /// Indices into an axis of extent `n`, from either end.
    fn indices(&mut self, shape: &[u64], n: u64) -> Tensor {
        let count = shape.iter().product::<u64>();
        let values = (0..count).map(|_| self.below(2 * n) as i64 - n as i64).collect();
        Tensor::new(shape, values).unwrap()
    }

    /// A shape that broadcasts to this one.
    fn narrower(&mut self, shape: &[u64]) -> Vec<u64> {
        let skip = self.below(shape.len() as u64 + 1) as usize;
        shape[skip..].iter().map(|&n| if self.coin() { 1 } else { n }).collect()
    }

    fn cut(&mut self, n: u64) -> Cut {
        let step = self.pick(&[1, 2, 3, -1, -2, -3i64]);
        let extent = 1 + self.below(n.div_ceil(step.unsigned_abs()));
        let reach = (extent - 1) * step.unsigned_abs();
        let low = self.below(n - reach);
        Cut { start: if step > 0 { low } else { low + reach } as i64, step, extent }
    }

    /// Widths of padding that leave something, as far as the mode can pad.
    fn pad(&mut self, shape: &[u64]) -> Pad {
        let mode = self.pick(&[PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap]);
        let width = |d: &mut Self, n: u64| d.below(4) as i64 - i64::from(n > 2);
        let before = shape.iter().map(|&n| width(self, n)).collect();
        let after = shape.iter().map(|&n| width(self, n)).collect();
        Pad { before, after, mode, value: 0.7 }
    }

    fn case(&mut self, kind: usize) -> Case {
        let rank = 1 + self.below(3) as usize;
        let shape = self.shape(rank);
        let axis = self.below(rank as u64) as usize;
        let n = shape[axis];
        let mut inputs = vec![self.floats(&shape)];
        let (a, b) = (self.coin(), self.coin());
        let op: Op = match kind {
            0 => {
                let narrow = self.narrower(&shape);
                inputs.push(self.floats(&narrow));
                if a {
                    inputs.reverse();
                }
                let f = self.pick(&[ScalarFn::Add, ScalarFn::Sub, ScalarFn::Mul, ScalarFn::Max]);
                Map { f }.into()
            }
            1 => {
                let narrow = self.narrower(&shape);
                inputs = vec![self.floats(&narrow)];
                Expand { shape }.into()
            }
            2 => {
                let kinds = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];
                Reduce { kind: self.pick(&kinds), axes: self.some(rank), keep: a }.into()
            }
            3 => CumSum { axis, exclusive: a, reverse: b }.into(),
            4 => CumProd { axis, exclusive: a, reverse: b }.into(),
            5 => Softmax { axis, log: a }.into(),
            6 => Reshape { shape: vec![shape.iter().product(), 1] }.into(),
            7 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.rotate_left(axis);
                if a {
                    perm.reverse();
                }
                Transpose { perm }.into()
            }
            8 => {
                for _ in 0..self.below(3) {
                    let mut other = shape.clone();
                    other[axis] = self.below(4);
                    inputs.push(self.floats(&other));
                }
                Concat { axis }.into()
            }
            9 => {
                let long: Vec<u64> = shape.iter().map(|n| 2 * n + 1).collect();
                inputs = vec![self.floats(&long)];
                let cuts = long.iter().map(|&n| self.coin().then(|| self.cut(n))).collect();
                Slice { cuts }.into()
            }
            10 => self.pad(&shape).into(),
            11 => {
                let rank = self.below(3) as usize;
                let many = self.shape(rank);
                inputs.push(self.indices(&many, n));
                Gather { axis }.into()
            }
            12 | 13 => {
                let mut many: Vec<u64> = shape.iter().map(|&n| 1 + self.below(n)).collect();
                many[axis] = self.below(6);
                inputs.push(self.indices(&many, n));
                if kind == 12 {
                    GatherElements { axis }.into()
                } else {
                    inputs.push(self.floats(&many));
                    ScatterElements { axis, update: self.pick(&UPDATES) }.into()
                }
            }
            14 => {
                let q = 1 + self.below((rank - axis) as u64);
                let low = shape[axis..axis + q as usize].iter().copied().min().unwrap();
                let many = [&shape[..axis], &[1 + self.below(3), q]].concat();
                inputs.push(self.indices(&many, low));
                GatherNd { batch_dims: axis }.into()
            }
            15 => {
                let q = 1 + axis;
                let low = shape[..q].iter().copied().min().unwrap();
                let positions = [1 + self.below(3), 1 + self.below(3)];
                inputs.push(self.indices(&[&positions[..], &[q as u64]].concat(), low));
                let rest = [&positions[..], &shape[q..]].concat();
                inputs.push(self.floats(&rest));
                ScatterNd { update: self.pick(&UPDATES) }.into()
            }
            16 => TopK { axis, k: 1 + self.below(n), largest: a }.into(),
            17 => {
                let steps = 1 + self.below(5);
                inputs = vec![self.floats(&[&[steps], &shape[..]].concat())];
                let batch = shape[axis];
                let lengths: Vec<i64> = (0..batch).map(|_| self.below(steps + 1) as i64).collect();
                inputs.push(Tensor::vector(lengths));
                ReverseSequence { time: 0, batch: axis + 1 }.into()
            }
            18 => {
                inputs = vec![self.floats(&[&[2], &shape[..]].concat())];
                Trilu { upper: a, k: self.below(5) as i64 - 2 }.into()
            }
            19 => {
                inputs = vec![self.floats(&[&[2, 5], &shape[..]].concat())];
                Lrn { size: 1 + self.below(7), alpha: 0.6, beta: 0.7, bias: 1.2 }.into()
            }
            _ => {
                let [m, n, k] = [1, 2, 3].map(|n| n + self.below(2));
                let x = if a { [k, m] } else { [m, k] };
                let y = if b { [n, k] } else { [k, n] };
                let batch = self.narrower(&shape);
                let (x, y) = ([&shape[..], &x].concat(), [&batch[..], &y].concat());
                inputs = vec![self.floats(&x), self.floats(&y)];
                MatMul { trans_a: a, trans_b: b }.into()
            }
        };
        Case::new(op, inputs)
    }
}

#[test]
fn ops_of_random_shapes_have_the_gradient_that_differences_show() {
    let (mut draw, mut random, mut tally) = (Draw(Random(21)), Random(22), Tally::default());
    for round in 0..40 * 21 {
        let case = draw.case(round % 21);
        check(&case, &mut random, &mut tally).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    }
    tally.assert_mostly_compared();
}
