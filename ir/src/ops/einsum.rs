//! Contractions written as an equation.
//!
//! - **ONNX**: Einsum (since 12). What is a matrix product, or a sum and a permutation, becomes
//!   that.
//! - **Semantics**: `out[o..] = Σ_k Π_i in_i[..]`, each dimension named by a letter; a letter that
//!   the output lacks is summed. An extent of 1 is broadcast.
//! - **Split**: the equation is the factor rule. A letter that one operand has twice stays whole.
//!   Linear in each operand.

use super::decode::{Decoder, DecoderEntry};
use super::equation::{LETTERS, distinct, parse};
use super::lanes::floats;
use super::matmul::MatMul;
use super::fill::Fill;
use super::trilu::Trilu;
use super::{Build, OpDef, Vjp, Work, WorkKind, same_dtype};
use crate::graph::{TensorType, ValueId, elements};
use crate::program::Kernel;
use crate::sharding::{FactorId, FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::{strides, unravel};
use crate::{DType, EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// A contraction. Every dimension is one ASCII letter; there is no ellipsis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Einsum {
    /// The letters of each input.
    pub inputs: Vec<String>,
    /// The letters of the output.
    pub output: String,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[DecoderEntry::onnx("Einsum", 12, decode)];

/// Multiply-adds that one evaluation may run.
const MAX_ITERATIONS: u64 = 1 << 32;

fn decode(d: &mut Decoder<'_>) -> Result<Vec<ValueId>, OpError> {
    let inputs = d.all_inputs()?;
    let equation = d.string_or("equation", "")?;
    let ranks: Vec<usize> = inputs.iter().map(|&v| d.ty(v).rank()).collect();
    let op = parse(&equation, &ranks)?;
    Ok(vec![contract(d, op, &inputs)?])
}

/// The contraction, as a matrix product or a sum and a permutation if it is one.
fn contract(d: &mut impl Build, op: Einsum, inputs: &[ValueId]) -> Result<ValueId, OpError> {
    let types: Vec<TensorType> = inputs.iter().map(|&v| d.ty(v)).collect();
    let extents = op.extents(&types.iter().map(|t| &t.shape[..]).collect::<Vec<_>>())?;
    let simple = op.inputs.iter().all(|s| distinct(s))
        && op.inputs.iter().zip(&types).all(|(letters, t)| {
            letters.bytes().zip(&t.shape).all(|(l, &n)| extents[usize::from(l)] == n)
        });
    let result = match *inputs {
        [a, b] if simple => matrix_product(d, &op, a, b)?,
        [x] if simple => Some(sum_and_permute(d, &op, x)?),
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => d.push(op, inputs),
    }
}

/// Where a letter stands.
fn position(letters: &str, letter: char) -> Option<usize> {
    letters.chars().position(|l| l == letter)
}

/// The sum over letters that the output lacks, then a permutation.
fn sum_and_permute(d: &mut impl Build, op: &Einsum, x: ValueId) -> Result<ValueId, OpError> {
    let letters = &op.inputs[0];
    let summed: Vec<usize> =
        (0..letters.len()).filter(|&i| !op.output.contains(&letters[i..=i])).collect();
    let mut x = x;
    if !summed.is_empty() {
        x = d.reduce(ReduceKind::Sum, x, &summed)?;
        let kept = |i: &usize| !summed.contains(i);
        let shape = d.shape(x);
        let shape: Vec<u64> = (0..shape.len()).filter(kept).map(|i| shape[i]).collect();
        x = d.reshape(x, shape)?;
    }
    let left: String = letters.chars().filter(|&l| op.output.contains(l)).collect();
    let perm: Vec<usize> = op.output.chars().filter_map(|l| position(&left, l)).collect();
    d.transpose(x, &perm)
}

/// The contraction as a batched matrix product, if it has at most one row, one column and one
/// summed letter.
fn matrix_product<B: Build>(
    d: &mut B,
    op: &Einsum,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    let (left, right, out) = (&op.inputs[0], &op.inputs[1], &op.output);
    let of = |keep: &dyn Fn(char) -> bool| -> String {
        out.chars().chain(left.chars().filter(|&l| !out.contains(l))).filter(|&l| keep(l)).collect()
    };
    let batch = of(&|l| out.contains(l) && left.contains(l) && right.contains(l));
    let m = of(&|l| out.contains(l) && !right.contains(l));
    let n = of(&|l| out.contains(l) && !left.contains(l));
    let k = of(&|l| !out.contains(l) && right.contains(l));
    let used = batch.len() + k.len();
    let alone = left.len() != used + m.len() || right.len() != used + n.len();
    if alone || m.len().max(n.len()).max(k.len()) > 1 {
        return Ok(None);
    }
    // Brings an operand to [batch.., rows, columns]; a letter that is missing has extent 1.
    let arrange = |d: &mut B, x: ValueId, letters: &str, tail: [&str; 2]| {
        let order = [&batch, tail[0], tail[1]].concat();
        let perm: Vec<usize> = order.chars().filter_map(|l| position(letters, l)).collect();
        let x = d.transpose(x, &perm)?;
        let mut shape = d.shape(x);
        for (i, part) in tail.iter().enumerate() {
            if part.is_empty() {
                shape.insert(batch.len() + i, 1);
            }
        }
        d.reshape(x, shape)
    };
    let a = arrange(d, a, left, [&m, &k])?;
    let b = arrange(d, b, right, [&k, &n])?;
    let product = d.push(MatMul { trans_a: false, trans_b: false }, &[a, b])?;
    let order = [&batch[..], &m, &n].concat();
    let mut shape = d.shape(product);
    if n.is_empty() {
        shape.remove(batch.len() + 1);
    }
    if m.is_empty() {
        shape.remove(batch.len());
    }
    let product = d.reshape(product, shape)?;
    let perm: Vec<usize> = out.chars().filter_map(|l| position(&order, l)).collect();
    d.transpose(product, &perm).map(Some)
}

/// The identity matrix, of the element type of `like`.
fn identity(v: &mut Vjp<'_>, n: u64, like: ValueId) -> Result<ValueId, OpError> {
    let dtype = v.ty(like).dtype;
    let ones = v.push(Fill { dtype, shape: vec![n, n], value: 1.0 }, &[])?;
    let lower = v.push(Trilu { upper: false, k: 0 }, &[ones])?;
    v.push(Trilu { upper: true, k: 0 }, &[lower])
}

impl Einsum {
    /// The extent of each letter, indexed by its byte.
    fn extents(&self, shapes: &[&[u64]]) -> Result<[u64; 128], OpError> {
        let mut extents = [1; 128];
        if shapes.len() != self.inputs.len() {
            let expected = self.inputs.len().to_string();
            return Err(OpError::InputCount { expected, found: shapes.len() });
        }
        let letters = || self.inputs.iter().chain([&self.output]).flat_map(|s| s.chars());
        if !letters().all(|l| l.is_ascii_alphabetic()) {
            return Err(OpError::Invalid("the equation is not made of letters".into()));
        }
        for (index, (letters, shape)) in self.inputs.iter().zip(shapes).enumerate() {
            if letters.len() != shape.len() {
                let expected = letters.len().to_string();
                return Err(OpError::Rank { index, found: shape.len(), expected });
            }
            for (l, &n) in letters.bytes().zip(*shape) {
                let known = &mut extents[usize::from(l)];
                if *known != n && *known != 1 && n != 1 {
                    let why = format!("`{}` is both {known} and {n}", char::from(l));
                    return Err(OpError::BadAttribute { name: "equation", why });
                }
                *known = if *known == 1 { n } else { *known };
            }
        }
        Ok(extents)
    }

    /// Letters of the inputs that the output lacks, in order of appearance.
    fn summed(&self) -> String {
        let mut summed = String::new();
        for l in self.inputs.iter().flat_map(|s| s.chars()) {
            if !self.output.contains(l) && !summed.contains(l) {
                summed.push(l);
            }
        }
        summed
    }

    /// The gradient with respect to an operand: the contraction of the others with the result's gradient. A
    /// letter that stands twice in the operand takes the diagonal; one that stands nowhere else, or
    /// with an extent of 1, was broadcast to it.
    fn gradient(&self, v: &mut Vjp<'_>, g: ValueId, index: usize) -> Result<ValueId, OpError> {
        let shape = v.shape(v.inputs[index]);
        let (mut terms, mut operands) = (vec![self.output.clone()], vec![g]);
        for (i, letters) in self.inputs.iter().enumerate().filter(|(i, _)| *i != index) {
            terms.push(letters.clone());
            operands.push(v.inputs[i]);
        }
        let used = self.inputs.concat();
        let mut unused = LETTERS.chars().filter(|l| !used.contains(*l));
        let mut wanted: Vec<Option<char>> = Vec::new();
        for (letter, &n) in self.inputs[index].chars().zip(&shape) {
            wanted.push(if n == 1 {
                None
            } else if wanted.contains(&Some(letter)) {
                let second = unused.next().ok_or_else(|| OpError::NotDifferentiable {
                    why: "its equation leaves no letter for a diagonal".into(),
                })?;
                operands.push(identity(v, n, g)?);
                terms.push([letter, second].iter().collect());
                Some(second)
            } else {
                Some(letter)
            });
        }
        for letter in &mut wanted {
            *letter = letter.filter(|l| terms.iter().any(|term| term.contains(*l)));
        }
        let op = Self { inputs: terms, output: wanted.iter().flatten().collect() };
        let product = contract(v, op, &operands)?;
        let mut extents = v.shape(product).into_iter();
        let kept: Vec<u64> =
            wanted.iter().map(|l| l.and_then(|_| extents.next()).unwrap_or(1)).collect();
        let product = v.reshape(product, kept)?;
        v.expand(product, shape)
    }

    fn sizes(letters: &str, extents: &[u64; 128]) -> Vec<u64> {
        letters.bytes().map(|l| extents[usize::from(l)]).collect()
    }
}

impl OpDef for Einsum {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        let shapes: Vec<&[u64]> = inputs.iter().map(|t| &t.shape[..]).collect();
        let extents = self.extents(&shapes)?;
        let Some((first, rest)) = inputs.split_first() else {
            return Err(OpError::InputCount { expected: "1 or more".into(), found: 0 });
        };
        for t in rest {
            same_dtype(first, t)?;
        }
        if first.dtype == DType::Bool {
            return Err(OpError::UnsupportedType { found: first.dtype });
        }
        Ok(vec![TensorType::new(first.dtype, Self::sizes(&self.output, &extents))])
    }

    fn rule(&self, inputs: &[TensorType], outputs: &[TensorType]) -> FactorRule {
        let shapes: Vec<&[u64]> = inputs.iter().map(|t| &t.shape[..]).collect();
        let Ok(extents) = self.extents(&shapes) else {
            let ranks: Vec<usize> = inputs.iter().map(TensorType::rank).collect();
            return FactorRule::opaque(&ranks, &[outputs[0].rank()], "an equation of other types");
        };
        let mut rule = RuleBuilder::new();
        let twice = |l: char| self.inputs.iter().any(|s| s.matches(l).count() > 1);
        let mut factors: [Option<FactorId>; 128] = [None; 128];
        for l in self.output.chars().chain(self.summed().chars()) {
            let kind = if twice(l) {
                FactorKind::Whole
            } else if self.output.contains(l) {
                FactorKind::Parallel
            } else {
                FactorKind::Reduce(ReduceKind::Sum)
            };
            let Some(at) = LETTERS.find(l) else { continue };
            let factor = rule.factor(&LETTERS[at..=at], extents[l as usize], kind);
            factors[l as usize] = Some(factor);
        }
        for (letters, t) in self.inputs.iter().zip(inputs) {
            rule.input(letters.bytes().zip(&t.shape).map(|(l, &n)| {
                factors[usize::from(l)].filter(|_| extents[usize::from(l)] == n)
            }));
        }
        rule.output(self.output.bytes().map(|l| factors[usize::from(l)]));
        if inputs[0].dtype.is_float() {
            (0..inputs.len()).for_each(|i| rule.linear([i]));
        }
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let shapes: Vec<&[u64]> = inputs.iter().map(|t| &t.shape[..]).collect();
        let bytes = super::work::traffic(inputs, outputs);
        let extents = self.extents(&shapes).unwrap_or([1; 128]);
        let k = elements(&Self::sizes(&self.summed(), &extents));
        let flops = 2.0 * outputs[0].elements() as f64 * k as f64;
        let [a, b] = &self.inputs[..] else {
            return Work { kind: WorkKind::Memory, flops, bytes };
        };
        let of = |keep: &dyn Fn(char) -> bool| {
            let letters: String = self.output.chars().filter(|&l| keep(l)).collect();
            elements(&Self::sizes(&letters, &extents))
        };
        let batch = of(&|l| a.contains(l) && b.contains(l));
        let m = of(&|l| !b.contains(l));
        let n = of(&|l| !a.contains(l));
        Work { kind: WorkKind::Matmul { batch, m, n, k }, flops, bytes }
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let shapes: Vec<&[u64]> = inputs.iter().map(|t| t.shape()).collect();
        let extents = self.extents(&shapes).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let summed = self.summed();
        let (out, terms) = (Self::sizes(&self.output, &extents), Self::sizes(&summed, &extents));
        let iterations = elements(&out).saturating_mul(elements(&terms));
        if iterations > MAX_ITERATIONS {
            return Err(EvalError::TooLong { iterations, limit: MAX_ITERATIONS });
        }
        // For each input, how far a step along each letter moves in it.
        let steps = |letters: &str| -> Vec<Vec<usize>> {
            let along = |l: char, input: usize| {
                let strides = strides(shapes[input]);
                let own = self.inputs[input].chars().enumerate();
                own.filter(|&(i, m)| m == l && shapes[input][i] != 1)
                    .map(|(i, _)| strides[i])
                    .sum::<usize>()
            };
            (0..inputs.len())
                .map(|input| letters.chars().map(|l| along(l, input)).collect())
                .collect()
        };
        let offsets = |shape: &[u64], steps: &[Vec<usize>], i: usize| -> Vec<usize> {
            let coord = unravel(i, shape);
            let dot = |s: &Vec<usize>| coord.iter().zip(s).map(|(c, s)| c * s).sum();
            steps.iter().map(dot).collect()
        };
        let (out_steps, term_steps) = (steps(&self.output), steps(&summed));
        let count = elements(&terms) as usize;
        let term_offsets: Vec<Vec<usize>> =
            (0..count).map(|k| offsets(&terms, &term_steps, k)).collect();
        let ty = TensorType::new(inputs[0].dtype(), out.clone());
        let n = Tensor::zeros(ty.clone())?.len();
        if ty.dtype.is_float() {
            let data: Vec<Vec<f64>> = inputs.iter().map(|t| t.to_f64s()).collect();
            let sums: Vec<f64> = (0..n)
                .map(|i| {
                    let base = offsets(&out, &out_steps, i);
                    let term = |at: &Vec<usize>| -> f64 {
                        let parts = data.iter().zip(&base).zip(at);
                        parts.map(|((x, b), o)| x[b + o]).product()
                    };
                    term_offsets.iter().map(term).sum()
                })
                .collect();
            return Ok(vec![floats(&ty, &out, &sums)?]);
        }
        let sum = |i: usize| {
            let base = offsets(&out, &out_steps, i);
            term_offsets.iter().fold(0i128, |sum, at| {
                let parts = inputs.iter().zip(&base).zip(at);
                let product = parts
                    .fold(1i128, |p, ((t, b), o)| p.wrapping_mul(t.int_at(b + o)));
                sum.wrapping_add(product)
            })
        };
        Ok(vec![Tensor::from_int(ty.clone(), sum)?])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<Vec<Option<ValueId>>, OpError> {
        if !distinct(&self.output) {
            return Err(OpError::NotDifferentiable { why: "its result repeats a letter".into() });
        }
        let g = v.gradient()?;
        let of = |index| v.wants(index).then(|| self.gradient(v, g, index)).transpose();
        (0..self.inputs.len()).map(of).collect()
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
