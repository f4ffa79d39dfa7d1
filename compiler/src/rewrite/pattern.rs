//! Walking backwards from a value through the nodes that make it.

use super::rewriter::Rewriter;
use planc_ir::DType;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::scalar::ScalarFn as F;

/// Values that a rule swallows: only nodes inside may read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interior(pub Vec<ValueId>);

/// Operands that a product may have before nobody wants to look at it.
const MAX_FACTORS: usize = 8;

/// Nodes of one kind in a row that are looked through.
pub const MAX_STEPS: usize = 16;

/// A walk. What it steps through is swallowed; what it peeks at is not.
#[derive(Debug)]
pub struct Walk<'a> {
    rewriter: &'a Rewriter,
    interior: Vec<ValueId>,
}

impl<'a> Walk<'a> {
    /// A walk that has not begun.
    pub const fn new(rewriter: &'a Rewriter) -> Self {
        Self { rewriter, interior: Vec::new() }
    }

    /// Tries a way; if it leads nowhere, it was not gone.
    pub fn attempt<T>(&mut self, way: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let mark = self.interior.len();
        let found = way(self);
        if found.is_none() {
            self.interior.truncate(mark);
        }
        found
    }

    /// The walk's interior, if nothing outside reads it.
    pub fn close(self, root: ValueId) -> Option<Interior> {
        self.rewriter.closed(root, Interior(self.interior))
    }

    /// Steps through the node that makes `v`.
    pub fn step(&mut self, v: ValueId) -> Option<(&'a Op, &'a [ValueId])> {
        let found = self.rewriter.op(v)?;
        self.interior.push(v);
        Some(found)
    }

    /// Steps through a node of several results, one of which is `v`: the op, its operands and its results.
    pub fn step_of_many(&mut self, v: ValueId) -> Option<(&'a Op, &'a [ValueId], &'a [ValueId])> {
        let node = self.rewriter.graph.node(self.rewriter.node(v)?);
        self.interior.extend(&node.outputs);
        Some((&node.op, &node.inputs, &node.outputs))
    }

    /// Steps through an elementwise function.
    pub fn map(&mut self, v: ValueId, f: F) -> Option<&'a [ValueId]> {
        match self.rewriter.op(v)? {
            (Op::Map(map), inputs) if map.f == f => {
                self.interior.push(v);
                Some(inputs)
            }
            _ => None,
        }
    }

    /// Steps through a function of one operand.
    pub fn unary(&mut self, v: ValueId, f: F) -> Option<ValueId> {
        self.map(v, f)?.first().copied()
    }

    /// Steps through a function of two operands.
    pub fn binary(&mut self, v: ValueId, f: F) -> Option<[ValueId; 2]> {
        self.map(v, f)?.try_into().ok()
    }

    /// Steps through a commutative function of a value and a number.
    pub fn with_number(&mut self, v: ValueId, f: F) -> Option<(ValueId, f64)> {
        self.attempt(|w| {
            let [a, b] = w.binary(v, f)?;
            let number = |x| w.rewriter.uniform(x);
            number(b).map(|n| (a, n)).or_else(|| number(a).map(|n| (b, n)))
        })
    }

    /// Steps through a multiplication with, or a division by, a number: the value and its factor.
    pub fn scaled(&mut self, v: ValueId) -> Option<(ValueId, f64)> {
        self.with_number(v, F::Mul).or_else(|| {
            self.attempt(|w| {
                let [x, by] = w.binary(v, F::Div)?;
                Some((x, 1.0 / w.rewriter.uniform(by)?))
            })
        })
    }

    /// Steps through casts between floating-point types.
    pub fn uncast(&mut self, mut v: ValueId) -> ValueId {
        for _ in 0..MAX_STEPS {
            let Some(x) = self.attempt(|w| {
                let (Op::Map(map), &[x]) = w.step(v)? else { return None };
                let float = |dtype: DType| dtype.is_float();
                let F::Cast(to) = map.f else { return None };
                (float(to) && float(w.rewriter.ty(x).dtype)).then_some(x)
            }) else {
                break;
            };
            v = x;
        }
        v
    }

    /// Steps through reshapes that only add or drop dimensions of 1.
    pub fn without_ones(&mut self, mut v: ValueId) -> ValueId {
        for _ in 0..MAX_STEPS {
            let Some(x) = self.attempt(|w| {
                let (Op::Reshape(_), &[x]) = w.step(v)? else { return None };
                let many = |v| w.rewriter.shape(v).iter().filter(|&&n| n != 1).collect::<Vec<_>>();
                (many(x) == many(v)).then_some(x)
            }) else {
                break;
            };
            v = x;
        }
        v
    }

    /// `x` of `x²`.
    pub fn square(&mut self, v: ValueId) -> Option<ValueId> {
        self.power(v, 2.0).or_else(|| {
            self.attempt(|w| w.binary(v, F::Mul).filter(|[a, b]| a == b).map(|[a, _]| a))
        })
    }

    /// `x` of `x` to this power.
    pub fn power(&mut self, v: ValueId, exponent: f64) -> Option<ValueId> {
        self.attempt(|w| {
            let [x, by] = w.binary(v, F::Pow)?;
            w.is(by, exponent).then_some(x)
        })
    }

    /// The factors of a product, values and a number. Values in `stop` are not taken apart.
    pub fn product(&mut self, v: ValueId, stop: &[ValueId]) -> Option<(Vec<ValueId>, f64)> {
        let (mut open, mut factors, mut number) = (vec![v], Vec::new(), 1.0);
        for _ in 0..MAX_STEPS {
            let Some(v) = open.pop() else { break };
            if open.len() + factors.len() > MAX_FACTORS {
                return None;
            }
            if stop.contains(&v) {
                factors.push(v);
            } else if let Some((x, by)) = self.scaled(v) {
                number *= by;
                open.push(x);
            } else if let Some(pair) = self.binary(v, F::Mul) {
                open.extend(pair);
            } else {
                factors.push(v);
            }
        }
        factors.sort_unstable();
        open.is_empty().then_some((factors, number))
    }

    /// A value's element type.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.rewriter.ty(v).dtype
    }

    /// Whether a value is known to be this number, as closely as its element type holds it.
    pub fn is(&self, v: ValueId, number: f64) -> bool {
        let close = |x| is_close(x, number, self.rewriter.ty(v).dtype);
        self.rewriter.uniform(v).is_some_and(close)
    }
}

/// Whether a number is another one, up to how an element type rounds it twice.
pub fn is_close(x: f64, y: f64, dtype: DType) -> bool {
    let tolerance = match dtype {
        DType::BF16 => 8e-3,
        DType::F16 => 1e-3,
        _ => 1e-6,
    };
    x == y || (x - y).abs() <= tolerance * y.abs()
}
