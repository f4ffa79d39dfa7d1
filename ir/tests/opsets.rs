//! Operators whose attributes became inputs, or whose meaning changed: the old form decodes to what
//! the new one does.

#![allow(clippy::float_cmp, clippy::print_stderr, clippy::unwrap_used)] // a test may

use planc_ir::ops::decode::{Attribute, Decoder};
use planc_ir::ops::range::{Range, Scalar};
use planc_ir::ops::{Op, decoders};
use planc_ir::{DType, Graph, OpError, Tensor, TensorType};
use std::collections::BTreeMap;

/// A node with known inputs.
struct Node<'a> {
    op: &'a str,
    opset: i64,
    inputs: Vec<Option<Tensor>>,
    attributes: Vec<(&'a str, Attribute)>,
    outputs: usize,
}

fn node(op: &str, opset: i64, inputs: Vec<Tensor>) -> Node<'_> {
    let inputs = inputs.into_iter().map(Some).collect();
    Node { op, opset, inputs, attributes: Vec::new(), outputs: 1 }
}

impl<'a> Node<'a> {
    fn ints(mut self, name: &'a str, list: &[i64]) -> Self {
        self.attributes.push((name, Attribute::Ints(list.to_vec())));
        self
    }

    fn int(mut self, name: &'a str, x: i64) -> Self {
        self.attributes.push((name, Attribute::Int(x)));
        self
    }

    fn float(mut self, name: &'a str, x: f32) -> Self {
        self.attributes.push((name, Attribute::Float(x)));
        self
    }

    fn outputs(mut self, n: usize) -> Self {
        self.outputs = n;
        self
    }

    fn missing_input(mut self) -> Self {
        self.inputs.push(None);
        self
    }

    /// Everything is known, so decoding folds.
    fn decode(self) -> Result<Vec<Tensor>, OpError> {
        let entry = decoders()
            .filter(|e| e.domain.is_empty() && e.name == self.op && e.since <= self.opset)
            .max_by_key(|e| e.since)
            .unwrap_or_else(|| panic!("{} is not decoded at opset {}", self.op, self.opset));
        let mut graph = Graph::new("g");
        let inputs = self
            .inputs
            .into_iter()
            .map(|t| t.map(|t| graph.constant(format!("v{}", graph.values.len()), t)))
            .collect();
        let attributes: BTreeMap<String, Attribute> =
            self.attributes.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
        let mut decoder = Decoder {
            graph: &mut graph,
            name: "node",
            op_type: self.op,
            opset: self.opset,
            inputs,
            captured: 0,
            outputs: self.outputs,
            attributes,
            drops: false,
        };
        let outputs = (entry.decode)(&mut decoder)?;
        Ok(outputs.iter().map(|&v| graph.constant_of(v).expect("folded").clone()).collect())
    }
}

fn numbers(shape: &[u64]) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F32, shape), |i| (i as f64 * 0.7).sin()).unwrap()
}

fn list(x: &[i64]) -> Tensor {
    Tensor::vector(x.to_vec())
}

#[test]
fn attributes_that_became_inputs() {
    let x = || numbers(&[2, 3, 4]);
    let thin = || numbers(&[2, 1, 3, 1]);
    let pairs: Vec<(Node<'_>, Node<'_>)> = vec![
        (
            node("Slice", 9, vec![x()])
                .ints("starts", &[1, -3])
                .ints("ends", &[99, -1])
                .ints("axes", &[1, 2]),
            node("Slice", 13, vec![x(), list(&[1, -3]), list(&[99, -1]), list(&[1, 2])]),
        ),
        (
            node("Clip", 6, vec![x()]).float("min", -0.5).float("max", 0.25),
            node("Clip", 11, vec![x(), Tensor::scalar(-0.5f32), Tensor::scalar(0.25f32)]),
        ),
        (node("Clip", 6, vec![x()]).float("max", 0.25), {
            let mut n = node("Clip", 12, vec![x()]).missing_input();
            n.inputs.push(Some(Tensor::scalar(0.25f32)));
            n
        }),
        (
            node("Squeeze", 11, vec![thin()]).ints("axes", &[1, -1]),
            node("Squeeze", 13, vec![thin(), list(&[1, -1])]),
        ),
        (
            node("Unsqueeze", 11, vec![x()]).ints("axes", &[0, -1]),
            node("Unsqueeze", 13, vec![x(), list(&[0, -1])]),
        ),
        (
            node("ReduceSum", 11, vec![x()]).ints("axes", &[-1]).int("keepdims", 0),
            node("ReduceSum", 13, vec![x(), list(&[-1])]).int("keepdims", 0),
        ),
        (
            node("ReduceMean", 13, vec![x()]).ints("axes", &[0, 2]),
            node("ReduceMean", 18, vec![x(), list(&[0, 2])]),
        ),
        (
            node("Split", 11, vec![x()]).int("axis", 2).ints("split", &[1, 3]).outputs(2),
            node("Split", 13, vec![x(), list(&[1, 3])]).int("axis", 2).outputs(2),
        ),
        (
            node("Split", 11, vec![x()]).int("axis", 2).outputs(2),
            node("Split", 18, vec![x()]).int("axis", 2).int("num_outputs", 2).outputs(2),
        ),
        (
            node("Pad", 10, vec![x()]).ints("pads", &[0, 1, 0, 0, 0, 2]).float("value", 3.0),
            node("Pad", 13, vec![x(), list(&[0, 1, 0, 0, 0, 2]), Tensor::scalar(3f32)]),
        ),
        (
            node("TopK", 9, vec![x()]).int("k", 2).outputs(2),
            node("TopK", 11, vec![x(), list(&[2])]).outputs(2),
        ),
    ];
    for (old, new) in pairs {
        let name = old.op;
        let (old, new) = (old.decode().unwrap(), new.decode().unwrap());
        assert_eq!(old, new, "{name}");
    }
}

#[test]
fn resizing_was_upsampling() {
    let x = || numbers(&[1, 2, 3, 4]);
    let text = |s: &str| Attribute::String(s.to_string());
    for mode in ["nearest", "linear"] {
        let scales = [1f32, 1.0, 2.0, 1.5];
        let input = || Tensor::vector(scales.to_vec());
        let mut attribute = node("Upsample", 7, vec![x()]);
        attribute.attributes.push(("scales", Attribute::Floats(scales.to_vec())));
        let mut nodes = vec![
            attribute,
            node("Upsample", 9, vec![x(), input()]),
            node("Resize", 10, vec![x(), input()]),
        ];
        for n in &mut nodes {
            n.attributes.push(("mode", text(mode)));
        }
        let mut new = node("Resize", 13, vec![x()]).missing_input();
        new.inputs.push(Some(input()));
        new.attributes = vec![
            ("mode", text(mode)),
            ("nearest_mode", text("floor")),
            ("coordinate_transformation_mode", text("asymmetric")),
        ];
        let expected = new.decode().unwrap();
        assert_eq!(expected[0].shape(), [1, 2, 6, 6]);
        for old in nodes {
            let (name, opset) = (old.op, old.opset);
            assert_eq!(old.decode().unwrap(), expected, "{name} {opset} {mode}");
        }
    }
}

#[test]
fn recurrent_layers_take_the_batch_first_by_attribute() {
    let turned = |t: &Tensor, perm: &[i64]| {
        node("Transpose", 13, vec![t.clone()]).ints("perm", perm).decode().unwrap().remove(0)
    };
    let (x, state) = (numbers(&[4, 3, 2]), numbers(&[2, 3, 5]));
    let lstm = |x: Tensor, state: Tensor| {
        let mut n = node("LSTM", 14, vec![x, numbers(&[2, 20, 2]), numbers(&[2, 20, 5])]);
        n.inputs.extend([None, Some(Tensor::vector(vec![4i32, 2, 3]))]);
        n.inputs.extend([Some(state.clone()), Some(state)]);
        n.attributes.push(("direction", Attribute::String("bidirectional".into())));
        n.outputs(3)
    };
    let steps_first = lstm(x.clone(), state.clone()).decode().unwrap();
    let [x, state] = [&x, &state].map(|t| turned(t, &[1, 0, 2]));
    let batch_first = lstm(x, state).int("layout", 1).decode().unwrap();
    assert_eq!(turned(&steps_first[0], &[2, 0, 1, 3]), batch_first[0]);
    for i in [1, 2] {
        assert_eq!(turned(&steps_first[i], &[1, 0, 2]), batch_first[i]);
    }
}

#[test]
fn transforms_take_their_axis_as_an_input() {
    let x = || numbers(&[2, 6, 1]);
    let old = node("DFT", 17, vec![x()]).int("axis", 1).int("onesided", 1).decode().unwrap();
    let mut new = node("DFT", 20, vec![x()]).missing_input().int("onesided", 1);
    new.inputs.push(Some(Tensor::scalar(-2i64)));
    assert_eq!(old, new.decode().unwrap());
    assert_eq!(old[0].shape(), [2, 4, 2]);
}

#[test]
fn softmax_was_over_all_dimensions_from_its_axis() {
    let x = numbers(&[2, 3, 4]);
    let old = node("Softmax", 12, vec![x.clone()]).decode().unwrap().remove(0);
    let flat = x.reshape([2, 12]).unwrap();
    let new = node("Softmax", 13, vec![flat]).decode().unwrap().remove(0);
    assert_eq!(old.to_f64s(), new.to_f64s());
    assert_eq!(old.shape(), [2, 3, 4]);
}

#[test]
fn the_mask_of_dropout_had_the_inputs_type() {
    for (opset, dtype) in [(7, DType::F32), (10, DType::Bool), (13, DType::Bool)] {
        let out = node("Dropout", opset, vec![numbers(&[2])]).outputs(2).decode().unwrap();
        assert_eq!(out[1].dtype(), dtype, "opset {opset}");
        assert_eq!(out[1].to_f64s(), [1.0, 1.0]);
    }
}

#[test]
fn empty_axes_reduce_all_or_nothing() {
    let x = || Tensor::new([2, 2], vec![1f32, 2.0, 3.0, 4.0]).unwrap();
    let empty = || list(&[]);
    let all = node("ReduceSum", 13, vec![x(), empty()]).decode().unwrap().remove(0);
    assert_eq!(all, Tensor::new([1, 1], vec![10f32]).unwrap());
    let none = node("ReduceSum", 13, vec![x(), empty()]).int("noop_with_empty_axes", 1).decode();
    assert_eq!(none.unwrap().remove(0), x());
}

#[test]
fn uneven_splits_leave_less_to_the_last() {
    let parts = |n: u64, count: usize| -> Vec<u64> {
        let out = node("Split", 18, vec![numbers(&[n])])
            .int("num_outputs", count as i64)
            .outputs(count)
            .decode();
        out.unwrap().iter().map(|t| t.shape()[0]).collect()
    };
    assert_eq!(parts(7, 3), [3, 3, 1]);
    assert_eq!(parts(6, 3), [2, 2, 2]);
    assert!(node("Split", 13, vec![numbers(&[6]), list(&[2, 2])]).outputs(2).decode().is_err());
}

#[test]
fn slices_follow_pythons_rules() {
    // start, end, step of an axis of extent 5, and what is left of 0..5.
    for (start, end, step, expected) in [
        (1, 4, 1, vec![1, 2, 3]),
        (-2, i64::MAX, 1, vec![3, 4]),
        (i64::MIN, 2, 1, vec![0, 1]),
        (4, 0, -2, vec![4, 2]),
        (i64::MAX, i64::MIN, -1, vec![4, 3, 2, 1, 0]),
        (-1, -6, -3, vec![4, 1]),
        (3, 3, 1, vec![]),
        (0, 5, i64::MAX, vec![0]),
        (4, 1, 1, vec![]),
    ] {
        let one = |x| list(&[x]);
        let inputs = vec![list(&[0, 1, 2, 3, 4]), one(start), one(end), one(0), one(step)];
        let out = node("Slice", 13, inputs).decode().unwrap().remove(0);
        assert_eq!(out.to_i64s(), expected, "[{start}:{end}:{step}]");
    }
}

#[test]
fn shapes_that_cannot_be_are_errors() {
    let reshape = |shape: &[i64]| node("Reshape", 13, vec![numbers(&[2, 3]), list(shape)]).decode();
    assert_eq!(reshape(&[0, -1]).unwrap()[0].shape(), [2, 3]);
    assert_eq!(reshape(&[-1]).unwrap()[0].shape(), [6]);
    for bad in [&[-1, -1][..], &[4, -1], &[-2, 3], &[2, 3, 0], &[7], &[0, 0, 0], &[i64::MAX, 6]] {
        assert!(reshape(bad).is_err(), "{bad:?}");
    }
    let empty = node("Reshape", 14, vec![numbers(&[0, 3]), list(&[3, 0])]).int("allowzero", 1);
    assert_eq!(empty.decode().unwrap()[0].shape(), [3, 0]);
}

#[test]
fn ranges_count_what_comes_before_the_limit() {
    let range = |a: i64, b: i64, c: i64| {
        let inputs = [a, b, c].into_iter().map(Tensor::scalar).collect();
        node("Range", 11, inputs).decode().map(|out| out[0].to_i64s())
    };
    assert_eq!(range(3, 9, 3), Ok(vec![3, 6]));
    assert_eq!(range(10, 4, -2), Ok(vec![10, 8, 6]));
    assert_eq!(range(10, 4, 2), Ok(vec![]));
    assert_eq!(range(0, 7, 3), Ok(vec![0, 3, 6]));
    assert_eq!(range(i64::MAX - 3, i64::MAX, 2), Ok(vec![i64::MAX - 3, i64::MAX - 1]));
    let reals = [1.0f32, 2.0, 0.375].into_iter().map(Tensor::scalar).collect();
    let reals = node("Range", 11, reals).decode().unwrap().remove(0);
    assert_eq!(reals, Tensor::vector(vec![1.0f32, 1.375, 1.75]));
    assert!(node("Range", 11, [true; 3].map(Tensor::scalar).to_vec()).decode().is_err());
}

/// Such a model can be read, and fails when it runs.
#[test]
fn ranges_that_cannot_be_made_fail_when_they_are_evaluated() {
    let range = |dtype, [start, limit, delta]: [Scalar; 3]| {
        let op = Op::from(Range { dtype, start, limit, delta });
        let ty = op.infer(&[], &[]).unwrap().remove(0);
        (ty.shape[0], op.eval(&[]).unwrap_err().to_string())
    };
    let ints = |x: [i64; 3]| range(DType::I64, x.map(Scalar::Int));
    let floats = |x: [f64; 3]| range(DType::F32, x.map(Scalar::Float));
    let endless = |start, delta| {
        format!("a range from {start} to 5 in steps of {delta} has no number of elements")
    };
    assert_eq!(ints([0, 5, 0]), (0, endless("0", "0")));
    assert_eq!(floats([0.0, 5.0, -0.0]), (0, endless("0", "-0")));
    assert_eq!(floats([f64::NAN, 5.0, 1.0]), (0, endless("NaN", "1")));
    for (count, error) in [
        ints([i64::MIN, i64::MAX, 1]),
        ints([i64::MAX, i64::MIN, -1]),
        floats([0.0, f64::INFINITY, 1.0]),
        floats([0.0, 5.0, f64::MIN_POSITIVE]),
    ] {
        assert_eq!(count, u64::MAX);
        assert!(error.contains("more than the limit"), "{error}");
    }
}
