//! Layer, RMS and group norms.

use crate::build::Build;
use planc_ir::DType;
use planc_ir::graph::ValueId;
use planc_ir::ops::group_norm::GroupNorm;
use planc_ir::scalar::ScalarFn as F;

/// How exporters divide by the root.
#[derive(Clone, Copy, Debug)]
enum Division {
    Div,
    Reciprocal,
    OneOver,
    Power,
}

const ALL: [Division; 4] =
    [Division::Div, Division::Reciprocal, Division::OneOver, Division::Power];

fn normal(
    b: &mut Build,
    above: ValueId,
    below: ValueId,
    axes: &[usize],
    power: bool,
    by: Division,
) -> ValueId {
    let square = if power { b.with(F::Pow, below, 2.0) } else { b.map(F::Mul, &[below, below]) };
    let mean = b.mean(square, axes);
    let sum = b.with(F::Add, mean, 1e-5f32.into());
    if matches!(by, Division::Power) {
        let inverse = b.with(F::Pow, sum, -0.5);
        return b.map(F::Mul, &[inverse, above]);
    }
    let root = b.map(F::Sqrt, &[sum]);
    let inverse = match by {
        Division::Div => return b.map(F::Div, &[above, root]),
        Division::Reciprocal => b.map(F::Reciprocal, &[root]),
        _ => {
            let one = b.number(1.0);
            b.map(F::Div, &[one, root])
        }
    };
    b.map(F::Mul, &[above, inverse])
}

fn centred(b: &mut Build, x: ValueId, axes: &[usize]) -> ValueId {
    let mean = b.mean(x, axes);
    b.map(F::Sub, &[x, mean])
}

#[test]
fn rms_norms() {
    for (i, by) in ALL.into_iter().enumerate() {
        for axes in [vec![2], vec![1, 2]] {
            let mut b = Build::new();
            let x = b.input(&[2, 3, 7]);
            let inner = b.shape(x)[axes[0]..].to_vec();
            let scale = b.input(&inner);
            let y = normal(&mut b, x, x, &axes, i % 2 == 0, by);
            let y = b.map(F::Mul, &[scale, y]);
            assert_eq!(b.raised(y), ["Normalize"], "{by:?}");
        }
    }
}

#[test]
fn layer_norms() {
    for (i, by) in ALL.into_iter().enumerate() {
        for twice in [false, true] {
            let mut b = Build::new();
            let x = b.input(&[2, 3, 7]);
            let (scale, bias) = (b.input(&[7]), b.input(&[1, 7]));
            let above = centred(&mut b, x, &[2]);
            let below = if twice { centred(&mut b, x, &[2]) } else { above };
            let y = normal(&mut b, above, below, &[2], i % 2 == 1, by);
            let y = b.map(F::Mul, &[y, scale]);
            let y = b.map(F::Add, &[y, bias]);
            // The bias has a dimension too many.
            assert_eq!(b.raised(y), ["Reshape", "Normalize"], "{by:?}");
        }
    }
}

#[test]
fn a_modulated_norm_keeps_its_modulation() {
    let mut b = Build::new();
    let x = b.input(&[2, 3, 7]);
    let scale = b.input(&[2, 1, 7]);
    let above = centred(&mut b, x, &[2]);
    let y = normal(&mut b, above, above, &[2], true, Division::Div);
    let y = b.map(F::Mul, &[y, scale]);
    assert_eq!(b.raised(y), ["Normalize", "Map"]);
}

#[test]
fn norms_that_are_computed_wide() {
    let mut b = Build { dtype: DType::F32, ..Build::new() };
    let x = b.typed(DType::BF16, &[3, 8]);
    let scale = b.typed(DType::BF16, &[8]);
    let wide = b.map(F::Cast(DType::F32), &[x]);
    let y = normal(&mut b, wide, wide, &[1], true, Division::Reciprocal);
    let y = b.map(F::Cast(DType::BF16), &[y]);
    let y = b.map(F::Mul, &[scale, y]);
    assert_eq!(b.raised(y), ["Normalize"]);
}

#[test]
fn other_means_are_no_norms() {
    // Not over the last dimensions.
    let mut b = Build::new();
    let x = b.input(&[2, 3, 7]);
    let y = normal(&mut b, x, x, &[1], true, Division::Div);
    assert!(!b.raised(y).contains(&"Normalize"));
    // The deviation of one thing, and another thing.
    let mut b = Build::new();
    let (x, z) = (b.input(&[3, 7]), b.input(&[3, 7]));
    let y = normal(&mut b, x, z, &[1], true, Division::Div);
    assert!(!b.raised(y).contains(&"Normalize"));
    // A sum instead of a mean.
    let mut b = Build::new();
    let x = b.input(&[3, 7]);
    let square = b.with(F::Pow, x, 2.0);
    let mean = b.mean(square, &[1]);
    let sum = b.with(F::Mul, mean, 7.0);
    let sum = b.with(F::Add, sum, 1e-5);
    let root = b.map(F::Sqrt, &[sum]);
    let y = b.map(F::Div, &[x, root]);
    assert!(!b.raised(y).contains(&"Normalize"));
    // The variance is an output too.
    let mut b = Build::new();
    let x = b.input(&[3, 7]);
    let square = b.with(F::Pow, x, 2.0);
    let mean = b.mean(square, &[1]);
    let sum = b.with(F::Add, mean, 1e-5);
    let root = b.map(F::Sqrt, &[sum]);
    let y = b.map(F::Div, &[x, root]);
    b.graph.outputs.push(mean);
    assert!(!b.raised(y).contains(&"Normalize"));
}

/// A group norm as exporters write it: instances of groups.
fn group_norm(b: &mut Build, x: ValueId, groups: u64, scale: f64) -> ValueId {
    let shape = b.shape(x);
    let rest = shape.iter().product::<u64>() / shape[0] / groups;
    let grouped = b.reshape(x, &[shape[0], groups, rest]);
    let constant = |x: f64| {
        planc_ir::Tensor::from_f64(planc_ir::TensorType::new(DType::F64, [groups]), |_| x)
            .expect("small")
    };
    let (scale, bias) = (b.constant(constant(scale)), b.constant(constant(0.0)));
    let normal = b.push(GroupNorm { channels: 1, epsilon: 1e-5 }, &[grouped, scale, bias]);
    b.reshape(normal, &shape)
}

#[test]
fn group_norms() {
    for groups in [1, 2, 3, 6] {
        let mut b = Build::new();
        let x = b.input(&[2, 6, 3, 4]);
        let (scale, bias) = (b.input(&[6, 1, 1]), b.input(&[1, 6, 1, 1]));
        let y = group_norm(&mut b, x, groups, 1.0);
        let y = b.map(F::Mul, &[y, scale]);
        let y = b.map(F::Add, &[bias, y]);
        assert_eq!(b.raised(y), ["Reshape", "Reshape", "GroupNorm"]);
    }
}

#[test]
fn a_factor_of_each_position_stays_behind() {
    let mut b = Build::new();
    let x = b.input(&[2, 6, 3, 4]);
    let scale = b.input(&[3, 4]);
    let y = group_norm(&mut b, x, 2, 1.0);
    let y = b.map(F::Mul, &[y, scale]);
    assert_eq!(b.raised(y), ["GroupNorm", "Map"]);
}

/// Rows as channels of one sample, the mean and deviation through reshapes, nothing added: Keras.
#[test]
fn a_batch_norm_of_rows_is_a_layer_norm() {
    let mut b = Build::new();
    let x = b.input(&[2, 3, 7]);
    let (scale, bias) = (b.input(&[7]), b.input(&[7]));
    let rows = b.reshape(x, &[1, 6, 7, 1]);
    let mean = b.mean(rows, &[0, 2, 3]);
    let away = b.map(F::Sub, &[rows, mean]);
    let square = b.map(F::Mul, &[away, away]);
    let variance = b.mean(square, &[0, 2, 3]);
    let variance = b.reshape(variance, &[6]);
    let sum = b.with(F::Add, variance, 1e-3f32.into());
    let root = b.map(F::Sqrt, &[sum]);
    let ones = planc_ir::Tensor::vector(vec![1f64; 6]);
    let ones = b.constant(ones);
    let inverse = b.map(F::Div, &[ones, root]);
    let (mean, inverse) = (b.reshape(mean, &[6]), b.reshape(inverse, &[6, 1, 1]));
    let mean = b.reshape(mean, &[6, 1, 1]);
    let away = b.map(F::Sub, &[rows, mean]);
    let normal = b.map(F::Mul, &[away, inverse]);
    let zeros = b.constant(planc_ir::Tensor::new([6, 1, 1], vec![0f64; 6]).expect("small"));
    let normal = b.map(F::Add, &[normal, zeros]);
    let normal = b.reshape(normal, &[2, 3, 7]);
    let y = b.map(F::Mul, &[normal, scale]);
    let y = b.map(F::Add, &[y, bias]);
    assert_eq!(b.raised(y), ["Normalize"]);
}

#[test]
fn a_deviation_that_is_broadcast_otherwise_is_none() {
    // The mean of each row, subtracted from each column.
    let mut b = Build::new();
    let x = b.input(&[5, 5]);
    let square = b.with(F::Pow, x, 2.0);
    let mean = b.mean(square, &[1]);
    let sum = b.with(F::Add, mean, 1e-5);
    let sum = b.reshape(sum, &[5]);
    let root = b.map(F::Sqrt, &[sum]);
    let y = b.map(F::Div, &[x, root]);
    assert!(!b.raised(y).contains(&"Normalize"));
}
