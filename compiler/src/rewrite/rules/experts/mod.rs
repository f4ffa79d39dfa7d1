//! Layers of experts, in each of the forms that exporters write.
//!
//! What the forms share is here: how the router's choices, the tokens and the experts' weights make one op,
//! and what stands between an expert's two layers.

mod at_run_time;
mod batched;
mod dense;
mod dispatched;
mod grouped;
mod masked;

pub use batched::batched;
pub use dense::dense;
pub use dispatched::dispatched;
pub use grouped::grouped;
pub use masked::masked;

use super::super::pattern::Walk;
use super::super::rewriter::Rewriter;
use super::{Interior, Raise};
use planc_ir::graph::{ValueId, elements};
use planc_ir::ops::Op;
use planc_ir::ops::mixture_of_experts::MixtureOfExperts;
use planc_ir::scalar::ScalarFn;
use planc_ir::{DType, Tensor};

/// Reshapes that are looked through.
const MAX_CHAIN: usize = 8;

/// A layer that was found.
#[derive(Debug)]
struct Layer {
    /// The tokens' elements, in order.
    x: ValueId,
    /// The experts that each token goes to, in order.
    indices: ValueId,
    /// How much each counts, in the same order.
    weights: ValueId,
    /// Experts of a token.
    choices: u64,
    /// What is between the layers.
    between: Between,
    /// The second layer.
    down: Matrices,
    interior: Interior,
}

/// What stands between an expert's layers.
#[derive(Debug)]
struct Between {
    f: ScalarFn,
    /// The gate and the up projection are the halves of one product.
    fused: bool,
    /// The products, gate first.
    projections: Vec<Projection>,
}

/// A product of something of each token with the matrix of an expert.
#[derive(Clone, Debug, PartialEq)]
struct Projection {
    of: ValueId,
    matrices: Matrices,
}

/// One matrix an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Matrices {
    /// `[experts, in, out]`.
    value: ValueId,
    /// `[experts, out, in]` instead.
    transposed: bool,
}

impl Matrices {
    /// Extents: experts, in, out.
    fn extents(self, rewriter: &Rewriter) -> Option<[u64; 3]> {
        match (rewriter.shape(self.value), self.transposed) {
            (&[experts, a, b], false) | (&[experts, b, a], true) => Some([experts, a, b]),
            _ => None,
        }
    }

    /// The matrices that these are transposes of, if they are.
    fn untransposed(self, rewriter: &Rewriter) -> Self {
        match rewriter.op(self.value) {
            Some((Op::Transpose(t), &[value])) if t.perm == [0, 2, 1] => {
                Self { value, transposed: !self.transposed }
            }
            _ => self,
        }
    }
}

impl Layer {
    /// The layer as one op that gives what `root` is.
    fn raise(self, rewriter: &mut Rewriter, root: ValueId) -> Option<Raise> {
        let (_, tokens) = rewriter.shape(root).split_last()?;
        let tokens = tokens.to_vec();
        let projections = &self.between.projections;
        let first = projections.first()?;
        let alike =
            |p: &Projection| p.of == first.of && p.matrices.transposed == first.matrices.transposed;
        if !projections.iter().all(alike) {
            return None;
        }
        let [experts, width, inner] = first.matrices.extents(rewriter)?;
        let [_, behind, _] = self.down.extents(rewriter)?;
        let fits = if self.between.fused { behind.checked_mul(2) } else { Some(behind) };
        if fits != Some(inner) {
            return None;
        }
        let op = MixtureOfExperts {
            experts,
            f: self.between.f,
            fused: self.between.fused,
            trans_in: first.matrices.transposed,
            trans_out: self.down.transposed,
        };
        let of_tokens = |last| [&tokens[..], &[last]].concat();
        let mut inputs = vec![
            rewriter.reshape(root, self.x, &of_tokens(width))?,
            rewriter.reshape(root, self.indices, &of_tokens(self.choices))?,
            rewriter.reshape(root, self.weights, &of_tokens(self.choices))?,
        ];
        for projection in projections {
            let Matrices { value, transposed } = projection.matrices;
            inputs.push(match (op.fused, transposed) {
                (false, _) => value,
                (true, true) => rewriter.reshape(root, value, &[experts, 2, behind, width])?,
                (true, false) => rewriter.reshape(root, value, &[experts, width, 2, behind])?,
            });
        }
        inputs.push(self.down.value);
        Some(Raise::new(op, inputs, self.interior))
    }
}

/// The same elements in the same order before they were reshaped. They are only looked at.
fn source(rewriter: &Rewriter, mut v: ValueId) -> ValueId {
    for _ in 0..MAX_CHAIN {
        match rewriter.op(v) {
            Some((Op::Reshape(_), &[x])) => v = x,
            _ => break,
        }
    }
    v
}

/// The same, and before they were rounded to other types of floats.
fn unrounded(rewriter: &Rewriter, v: ValueId) -> ValueId {
    let mut v = source(rewriter, v);
    for _ in 0..MAX_CHAIN {
        let next = source(rewriter, Walk::new(rewriter).uncast(v));
        if next == v {
            break;
        }
        v = next;
    }
    v
}

/// Steps through reshapes.
fn flat(walk: &mut Walk<'_>, mut v: ValueId) -> ValueId {
    while let Some(x) = walk.attempt(|w| match w.step(v)? {
        (Op::Reshape(_), &[x]) => Some(x),
        _ => None,
    }) {
        v = x;
    }
    v
}

/// Steps through reshapes and casts between floats.
fn flat_uncast(walk: &mut Walk<'_>, v: ValueId) -> ValueId {
    let mut at = v;
    loop {
        let flat = flat(walk, at);
        let next = walk.uncast(flat);
        if next == at {
            return at;
        }
        at = next;
    }
}

/// What is between the layers; `product` steps through a projection.
fn between<'a>(
    rewriter: &'a Rewriter,
    walk: &mut Walk<'a>,
    v: ValueId,
    product: impl Fn(&mut Walk<'a>, ValueId) -> Option<Projection>,
) -> Option<Between> {
    let v = flat(walk, v);
    let (Op::Map(map), operands) = walk.step(v)? else { return None };
    if matches!(map.f, ScalarFn::Cast(_) | ScalarFn::Identity) {
        return None;
    }
    match *operands {
        [x] => {
            let x = flat(walk, x);
            let projections = vec![product(walk, x)?];
            Some(Between { f: map.f, fused: false, projections })
        }
        [gate, up] if matches!(map.f, ScalarFn::Gated(_)) => {
            let halves = walk.attempt(|w| {
                let (gate, up) = (flat(w, gate), flat(w, up));
                let (of_gate, of_up) = (half(rewriter, w, gate, 0)?, half(rewriter, w, up, 1)?);
                (of_gate == of_up).then_some(of_gate)
            });
            if let Some(both) = halves {
                let columns = rewriter.shape(both).iter().rev().copied().find(|&n| n != 1);
                let both = flat(walk, both);
                let projection = product(walk, both)?;
                let whole = columns == Some(projection.matrices.extents(rewriter)?[2]);
                let projections = whole.then(|| vec![projection])?;
                return Some(Between { f: map.f, fused: true, projections });
            }
            let [gate, up] = [flat(walk, gate), flat(walk, up)];
            let projections = vec![product(walk, gate)?, product(walk, up)?];
            Some(Between { f: map.f, fused: false, projections })
        }
        _ => None,
    }
}

/// What a value is a half of: of its last dimension, or of the last that is not 1.
fn half(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId, which: u64) -> Option<ValueId> {
    let (Op::Slice(slice), &[x]) = walk.step(v)? else { return None };
    let (whole, part) = (rewriter.shape(x), rewriter.shape(v));
    let last = whole.iter().rposition(|&n| n != 1)?;
    let is_half = |dim: usize| {
        let cut = slice.cuts[dim].as_ref()?;
        let fits = cut.extent.checked_mul(2)? == whole[dim]
            && cut.step == 1
            && cut.start == i64::try_from(which * cut.extent).ok()?;
        fits.then_some(())
    };
    let whole_but_last = (0..whole.len()).all(|d| d == last || whole[d] == part[d]);
    is_half(last).filter(|()| whole_but_last).map(|()| x)
}

/// The products of all tokens, or of those that were sent to an expert, `[experts, n, in]`, with the
/// experts' matrices.
fn of_each_expert(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId) -> Option<Projection> {
    let (Op::MatMul(product), &[of, value]) = walk.step(v)? else { return None };
    let matrices = Matrices { value, transposed: product.trans_b };
    let [experts, ..] = matrices.extents(rewriter)?;
    let fits = !product.trans_a
        && rewriter.shape(of).len() == 3
        && rewriter.shape(v).first() == Some(&experts);
    fits.then(|| Projection { of, matrices: matrices.untransposed(rewriter) })
}

/// The numbers that the router chose, if it chose each at most once and among `experts`: the positions of
/// the largest elements of each row.
fn distinct_choices(rewriter: &Rewriter, v: ValueId, experts: u64) -> Option<(ValueId, u64)> {
    let v = source(rewriter, v);
    let node = rewriter.graph.node(rewriter.node(v)?);
    let (Op::TopK(top), [_, indices], &[scores]) = (&node.op, &node.outputs[..], &node.inputs[..])
    else {
        return None;
    };
    let shape = rewriter.shape(scores);
    let along_last = top.axis + 1 == shape.len() && shape.last() == Some(&experts);
    (along_last && *indices == v).then_some((v, top.k))
}

/// Whether all elements are 0.
fn is_zero(rewriter: &Rewriter, v: ValueId) -> bool {
    let filled = matches!(rewriter.op(v), Some((Op::Fill(fill), _)) if fill.value == 0.0);
    filled || rewriter.uniform(v) == Some(0.0)
}

/// The choices, `[tokens, choices]`, of which `one_hot` has one row each, of so many columns.
fn chosen(
    rewriter: &Rewriter,
    walk: &mut Walk<'_>,
    one_hot: ValueId,
    columns: u64,
) -> Option<ValueId> {
    let [a, b] = walk.binary(one_hot, ScalarFn::Equal)?;
    let chosen = match [a, b].map(|v| counts_along_last(rewriter, v, columns)) {
        [_, true] => a,
        [true, false] => b,
        [false, false] => return None,
    };
    if rewriter.shape(chosen).last() != Some(&1) {
        return None;
    }
    let chosen = flat(walk, chosen);
    // Negative numbers, which the router does not choose, would count from the back.
    let from_front = walk.attempt(|w| {
        let &[negative, _, chosen] = w.map(chosen, ScalarFn::Where)? else { return None };
        let [of, zero] = w.binary(negative, ScalarFn::Less)?;
        (of == chosen && w.is(zero, 0.0)).then_some(chosen)
    });
    Some(from_front.unwrap_or(chosen))
}

/// A truth value behind its conversions to numbers: casts, or 1 where it holds and 0 where not.
fn unconverted(rewriter: &Rewriter, walk: &mut Walk<'_>, mut v: ValueId) -> ValueId {
    while let Some(x) = walk.attempt(|w| match w.step(v)? {
        (Op::Map(map), &[x]) => matches!(map.f, ScalarFn::Cast(_)).then_some(x),
        (Op::Map(map), &[condition, one, zero]) => {
            let truth = map.f == ScalarFn::Where
                && w.is(one, 1.0)
                && w.is(zero, 0.0)
                && rewriter.shape(condition) == rewriter.shape(v);
            truth.then_some(condition)
        }
        _ => None,
    }) {
        v = x;
    }
    v
}

/// Whether a value counts 0, 1, 2 … up to `n` along its last dimension.
fn counts_along_last(rewriter: &Rewriter, v: ValueId, n: u64) -> bool {
    rewriter.shape(v).last() == Some(&n)
        && rewriter.graph.constant_of(v).is_some_and(|t| counts_to(t, n))
}

/// Whether the elements of a constant are 0, 1, 2 …, as many as `n`.
#[allow(clippy::float_cmp)] // exactness is what is asked
fn counts_to(tensor: &Tensor, n: u64) -> bool {
    tensor.len() as u64 == n && (0..tensor.len()).all(|i| tensor.f64_at(i) == i as f64)
}

/// The number up to which an element type holds all integers.
fn exact_up_to(dtype: DType) -> u64 {
    match dtype {
        DType::F64 => 1 << 53,
        DType::F32 => 1 << 24,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::I8 => i8::MAX as u64,
        DType::U8 => u64::from(u8::MAX),
        DType::I16 => i16::MAX as u64,
        DType::U16 => u64::from(u16::MAX),
        DType::Bool => 1,
        DType::I32 | DType::U32 | DType::I64 | DType::U64 => i32::MAX as u64,
    }
}

/// The factors of a product: one of full extents, and one that has a number for each of its rows.
fn weighted(rewriter: &Rewriter, walk: &mut Walk<'_>, v: ValueId) -> Option<(ValueId, ValueId)> {
    let [a, b] = walk.binary(v, ScalarFn::Mul)?;
    let shape = rewriter.shape(v);
    let (_, rows) = shape.split_last()?;
    let per_row = |x: ValueId| {
        let own = rewriter.shape(x);
        own.split_last().is_some_and(|(&last, own)| last == 1 && own == rows)
    };
    let full = |x: ValueId| rewriter.shape(x) == shape;
    if full(a) && per_row(b) { Some((a, b)) } else { (full(b) && per_row(a)).then_some((b, a)) }
}

/// How many rows a value has, its last dimension being one row.
fn rows(rewriter: &Rewriter, v: ValueId) -> Option<u64> {
    rewriter.shape(v).split_last().map(|(_, rows)| elements(rows))
}
