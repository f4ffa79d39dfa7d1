//! Recurrent layers, decoded into input projections and [`Recurrence`]s, one a direction.
//!
//! - **ONNX**: RNN, GRU, LSTM (since 7; batch first by attribute since 14).
//! - **Semantics**: the inputs of all steps are projected at once, `x · wᵀ + bias`; the recurrence
//!   does the rest. Results of two directions stand side by side.

use super::Build;
use super::concat::Concat;
use super::decode::{Decoder, DecoderEntry};
use super::fill::Fill;
use super::matmul::MatMul;
use super::recurrence::{Activation, Cell, Recurrence};
use crate::graph::ValueId;
use crate::scalar::ScalarFn as F;
use crate::{OpError, Tensor};

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[
    DecoderEntry::onnx("RNN", 7, |d| layer(d, Kind::Rnn)),
    DecoderEntry::onnx("GRU", 7, |d| layer(d, Kind::Gru)),
    DecoderEntry::onnx("LSTM", 7, |d| layer(d, Kind::Lstm)),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    /// The activations that a direction has if the node names none.
    const fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Rnn => &["Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// The extents that all operands share.
struct Extents {
    directions: u64,
    batch: u64,
    gates: u64,
    hidden: u64,
}

fn layer(d: &mut Decoder<'_>, kind: Kind) -> Result<Vec<ValueId>, OpError> {
    let batch_first = d.int_or("layout", 0)? != 0;
    let x = steps_first(d, 0, batch_first)?.ok_or(OpError::MissingInput { index: 0 })?;
    let directions: &[bool] = match d.string_or("direction", "forward")?.as_str() {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(bad("direction", format!("{other:?} is not known"))),
    };
    let extents = extents(d, x, directions.len() as u64)?;
    let cells = cells(d, kind, directions.len())?;
    let clip = d.float_or("clip", f32::INFINITY)?;
    let lengths = lengths(d, x);
    let initial = [steps_first(d, 5, batch_first)?, match kind {
        Kind::Lstm => steps_first(d, 6, batch_first)?,
        Kind::Rnn | Kind::Gru => None,
    }];

    let mut results: Vec<Vec<ValueId>> = Vec::new();
    for (i, (&reverse, cell)) in directions.iter().zip(cells).enumerate() {
        let i = i as u64;
        let (projected, recurrent_bias) = project(d, x, &cell, i, &extents)?;
        let recurrent = part(d, 2, i, &[extents.gates, extents.hidden])?;
        let mut inputs = vec![projected, recurrent, state(d, initial[0], i, &extents)?];
        match &cell {
            Cell::Lstm { peepholes, .. } => {
                inputs.push(state(d, initial[1], i, &extents)?);
                if *peepholes {
                    inputs.push(part(d, 7, i, &[extents.hidden.saturating_mul(3)])?);
                }
            }
            _ => inputs.extend(recurrent_bias),
        }
        inputs.extend(lengths);
        let op = Recurrence { cell, reverse, lengths: lengths.is_some(), clip };
        results.push(d.push_multi(op, &inputs)?);
    }
    (0..results[0].len()).map(|k| together(d, &results, k, batch_first)).collect()
}

fn bad(name: &'static str, why: String) -> OpError {
    OpError::BadAttribute { name, why }
}

/// An input of three dimensions with the batch as the second.
fn steps_first(
    d: &mut Decoder<'_>,
    index: usize,
    batch_first: bool,
) -> Result<Option<ValueId>, OpError> {
    let Some(v) = d.optional(index) else { return Ok(None) };
    let rank = d.ty(v).rank();
    if rank != 3 {
        return Err(OpError::Rank { index, found: rank, expected: "3".into() });
    }
    if batch_first { d.transpose(v, &[1, 0, 2]).map(Some) } else { Ok(Some(v)) }
}

fn extents(d: &Decoder<'_>, x: ValueId, directions: u64) -> Result<Extents, OpError> {
    let (w, r) = (d.ty(d.input(1)?), d.ty(d.input(2)?));
    let (&[_, batch, input], &[_, gates, hidden]) = (&d.shape(x)[..], &r.shape[..]) else {
        return Err(OpError::Rank { index: 2, found: r.rank(), expected: "3".into() });
    };
    if w.shape != [directions, gates, input] || r.shape[0] != directions {
        return Err(OpError::ShapeMismatch {
            lhs: w.shape,
            rhs: r.shape,
            why: "both weights have the node's directions and gates, the first the input's extent",
        });
    }
    if let Some(stated) = d.int("hidden_size")?.filter(|&n| u64::try_from(n) != Ok(hidden)) {
        return Err(bad("hidden_size", format!("{stated}, but the recurrent weight is {r}")));
    }
    Ok(Extents { directions, batch, gates, hidden })
}

/// The part of an input that belongs to a direction, as this shape.
fn part(d: &mut Decoder<'_>, index: usize, i: u64, shape: &[u64]) -> Result<ValueId, OpError> {
    let v = d.input(index)?;
    let found = d.shape(v);
    if found.get(1..) != Some(shape) || found[0] <= i {
        return Err(OpError::ShapeMismatch {
            lhs: found,
            rhs: shape.to_vec(),
            why: "each direction has its part of every operand",
        });
    }
    let v = d.slice(v, 0, i, i + 1)?;
    d.reshape(v, shape)
}

/// The projected inputs of a direction with what is known of the biases, and the recurrent bias if
/// the cell takes it by itself.
fn project(
    d: &mut Decoder<'_>,
    x: ValueId,
    cell: &Cell,
    i: u64,
    e: &Extents,
) -> Result<(ValueId, Option<ValueId>), OpError> {
    let width = d.shape(x)[2];
    let w = part(d, 1, i, &[e.gates, width])?;
    let projected = d.push(MatMul { trans_a: false, trans_b: true }, &[x, w])?;
    let apart = matches!(cell, Cell::Gru { linear_before_reset: true, .. });
    if d.optional(3).is_none() {
        let zero = Fill { dtype: d.ty(x).dtype, shape: vec![e.gates], value: 0.0 };
        return Ok((projected, if apart { Some(d.push(zero, &[])?) } else { None }));
    }
    let both = part(d, 3, i, &[e.gates.saturating_mul(2)])?;
    let [mut bias, recurrent] =
        [d.slice(both, 0, 0, e.gates)?, d.slice(both, 0, e.gates, e.gates.saturating_mul(2))?];
    if !apart {
        bias = d.map(F::Add, &[bias, recurrent])?;
    }
    Ok((d.map(F::Add, &[projected, bias])?, apart.then_some(recurrent)))
}

/// The initial state of a direction; 0 if there is none.
fn state(
    d: &mut Decoder<'_>,
    initial: Option<ValueId>,
    i: u64,
    e: &Extents,
) -> Result<ValueId, OpError> {
    let Some(v) = initial else {
        let dtype = d.ty(d.input(0)?).dtype;
        return d.push(Fill { dtype, shape: vec![e.batch, e.hidden], value: 0.0 }, &[]);
    };
    if d.shape(v) != [e.directions, e.batch, e.hidden] {
        return Err(OpError::ShapeMismatch {
            lhs: d.shape(v),
            rhs: vec![e.directions, e.batch, e.hidden],
            why: "there is one initial state for each direction and sequence",
        });
    }
    let v = d.slice(v, 0, i, i + 1)?;
    d.reshape(v, [e.batch, e.hidden])
}

/// The sequences' lengths, unless all are known to be the number of steps.
fn lengths(d: &Decoder<'_>, x: ValueId) -> Option<ValueId> {
    let v = d.optional(4)?;
    let steps = d.shape(x)[0];
    let full = |t: &Tensor| (0..t.len()).all(|i| t.int_at(i) == i128::from(steps));
    (!d.graph.constant_of(v).is_some_and(full)).then_some(v)
}

/// One result of all directions.
fn together(
    d: &mut Decoder<'_>,
    results: &[Vec<ValueId>],
    k: usize,
    batch_first: bool,
) -> Result<ValueId, OpError> {
    // All states have the direction behind the steps, last ones in front.
    let axis = usize::from(k == 0);
    let mut parts = Vec::with_capacity(results.len());
    for result in results {
        let mut shape = d.shape(result[k]);
        shape.insert(axis, 1);
        parts.push(d.reshape(result[k], shape)?);
    }
    let all = if parts.len() == 1 { parts[0] } else { d.push(Concat { axis }, &parts)? };
    match (batch_first, k) {
        (false, _) => Ok(all),
        (true, 0) => d.transpose(all, &[2, 0, 1, 3]),
        (true, _) => d.transpose(all, &[1, 0, 2]),
    }
}

/// The cell of each direction.
fn cells(d: &Decoder<'_>, kind: Kind, directions: usize) -> Result<Vec<Cell>, OpError> {
    let each = kind.activations();
    let names = d.strings("activations")?.unwrap_or_else(|| {
        let all = std::iter::repeat_n(each, directions).flatten();
        all.map(ToString::to_string).collect()
    });
    if names.len() != each.len() * directions {
        let why = format!("{} activations for {directions} directions", names.len());
        return Err(bad("activations", why));
    }
    let mut alphas = d.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = d.floats("activation_beta")?.unwrap_or_default().into_iter();
    let parsed = names.iter().map(|name| activation(name, &mut alphas, &mut betas));
    let mut parsed = parsed.collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut next = || parsed.next().unwrap_or_else(|| Activation::new(F::Identity));
    let linear_before_reset = d.int_or("linear_before_reset", 0)? != 0;
    let coupled = d.int_or("input_forget", 0)? != 0;
    let peepholes = d.optional(7).is_some();
    let cell = |_| match kind {
        Kind::Rnn => Cell::Rnn { f: next() },
        Kind::Gru => Cell::Gru { f: next(), g: next(), linear_before_reset },
        Kind::Lstm => Cell::Lstm { f: next(), g: next(), h: next(), coupled, peepholes },
    };
    Ok((0..directions).map(cell).collect())
}

/// An activation by its name, which the specification writes in several ways. Parameters lie in
/// lists from which each activation that has some takes its own.
fn activation(
    name: &str,
    alphas: &mut impl Iterator<Item = f32>,
    betas: &mut impl Iterator<Item = f32>,
) -> Result<Activation, OpError> {
    let mut alpha = |default| alphas.next().unwrap_or(default);
    let mut beta = |default| betas.next().unwrap_or(default);
    Ok(Activation::new(match name.to_ascii_lowercase().as_str() {
        "relu" => F::Relu,
        "tanh" => F::Tanh,
        "sigmoid" => F::Sigmoid,
        "softsign" => F::Softsign,
        "softplus" => F::Softplus,
        "leakyrelu" => F::LeakyRelu { alpha: alpha(0.01) },
        "thresholdedrelu" => F::ThresholdedRelu { alpha: alpha(1.0) },
        "elu" => F::Elu { alpha: alpha(1.0) },
        "hardsigmoid" => F::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) },
        "affine" => {
            let (outer, offset) = (alpha(1.0), beta(0.0));
            return Ok(Activation { outer, offset, ..Activation::new(F::Identity) });
        }
        "scaledtanh" => {
            let (outer, inner) = (alpha(1.0), beta(1.0));
            return Ok(Activation { inner, outer, ..Activation::new(F::Tanh) });
        }
        _ => return Err(bad("activations", format!("{name:?} is not known"))),
    }))
}
