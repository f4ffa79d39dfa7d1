//! The factor rule: what an op's dimensions mean, written like an einsum.
//!
//! `matmul: b m k, b k n -> b m n` has factors `b m k n`; `k` is a reduction. A rule is the only
//! description of how an op can be split. From it follow the shardings of operands and results for
//! any [`OpStrategy`].
//!
//! A dimension may be a product of factors (`reshape: (b s) h -> b s h`), the most significant
//! first. Then a factor may be split only if all more significant ones of that dimension are split
//! down to 1, since a rank holds one contiguous range; splitting a factor with less significant ones
//! behind it splits the dimension in units of their product.

use super::mesh::{AxisId, Mesh};
use super::spec::{DimSharding, ReduceKind, Sharding};
use super::strategy::{AxisUse, OpStrategy};

/// An index into [`FactorRule::factors`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct FactorId(pub u8);

impl FactorId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What splitting a factor means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// Each rank computes its part of the results; nothing is exchanged.
    Parallel,
    /// Ranks hold partial sums (maxima …) of the results that do not have the factor, and their parts of
    /// those that have it.
    Reduce(ReduceKind),
    /// Cannot be split: every rank needs all of it.
    Whole,
}

/// One factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Name as printed.
    pub name: &'static str,
    /// Extent.
    pub size: u64,
    /// What splitting it means.
    pub kind: FactorKind,
}

/// How an op may be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorRule {
    /// The factors.
    pub factors: Vec<Factor>,
    /// For each input, for each dimension, its factors, the most significant first. A dimension of
    /// extent 1 that is broadcast has none.
    pub inputs: Vec<Vec<Vec<FactorId>>>,
    /// The same for each output.
    pub outputs: Vec<Vec<Vec<FactorId>>>,
    /// Sets of inputs in which the op is linear *together*: if all inputs of a set are partial sums
    /// over an axis and the others are replicated over it, every output is a partial sum over it.
    /// `add: [{0, 1}]`, `mul: [{0}, {1}]`, `reshape: [{0}]`.
    pub linear: Vec<Vec<usize>>,
    /// Why the op cannot be split at all, if it cannot.
    pub opaque: Option<String>,
}

impl FactorRule {
    /// A rule of an op that can only be replicated, with the reason.
    pub fn opaque(input_ranks: &[usize], output_ranks: &[usize], why: impl Into<String>) -> Self {
        let whole = |ranks: &[usize]| ranks.iter().map(|&r| vec![Vec::new(); r]).collect();
        Self {
            factors: Vec::new(),
            inputs: whole(input_ranks),
            outputs: whole(output_ranks),
            linear: Vec::new(),
            opaque: Some(why.into()),
        }
    }

    /// Everything one mesh axis may do for this op, replication first: the candidates that the
    /// search combines. Factors of extent 1 are left out.
    pub fn axis_uses(&self) -> Vec<AxisUse> {
        let splits = self.factors.iter().enumerate().filter_map(|(i, f)| {
            (f.kind != FactorKind::Whole && f.size > 1).then_some(AxisUse::Split(FactorId(i as u8)))
        });
        let linear = (0..self.linear.len()).map(|i| AxisUse::Linear(i as u8));
        std::iter::once(AxisUse::Replicate).chain(splits).chain(linear).collect()
    }

    /// The shardings of all inputs and all outputs under a strategy, or `None` if the strategy is
    /// not legal (a factor split that one operand cannot express).
    ///
    /// `input_shapes` and `output_shapes` are the global extents.
    pub fn shardings(
        &self,
        mesh: &Mesh,
        strategy: &OpStrategy,
        input_shapes: &[&[u64]],
        output_shapes: &[&[u64]],
    ) -> Option<(Vec<Sharding>, Vec<Sharding>)> {
        if strategy.axes.len() != mesh.rank() {
            return None;
        }
        let mut split: Vec<Vec<AxisId>> = vec![Vec::new(); self.factors.len()];
        for (axis, usage) in mesh.axis_ids().zip(&strategy.axes) {
            match *usage {
                AxisUse::Replicate => {}
                AxisUse::Split(f) => {
                    let factor = self.factors.get(f.index())?;
                    if factor.kind == FactorKind::Whole {
                        return None;
                    }
                    split[f.index()].push(axis);
                }
                AxisUse::Linear(mode) => {
                    self.linear.get(mode as usize)?;
                }
            }
        }
        let side = |dims: &[Vec<Vec<FactorId>>], shapes: &[&[u64]], input: bool| {
            dims.iter()
                .zip(shapes)
                .enumerate()
                .map(|(i, (dims, shape))| {
                    let has = |f: FactorId| dims.iter().flatten().any(|&g| g == f);
                    let dims_split = dims
                        .iter()
                        .map(|factors| self.dim_sharding(mesh, factors, &split))
                        .collect::<Option<Vec<_>>>()?;
                    let partial = mesh
                        .axis_ids()
                        .zip(&strategy.axes)
                        .filter_map(|(axis, usage)| match *usage {
                            AxisUse::Split(f) => match self.factors[f.index()].kind {
                                FactorKind::Reduce(kind) if !input && !has(f) => Some((axis, kind)),
                                _ => None,
                            },
                            AxisUse::Linear(mode) => (!input
                                || self.linear[mode as usize].contains(&i))
                            .then_some((axis, ReduceKind::Sum)),
                            AxisUse::Replicate => None,
                        })
                        .collect();
                    Some(Sharding { dims: dims_split, partial }.canonical(shape, mesh))
                })
                .collect::<Option<Vec<_>>>()
        };
        Some((side(&self.inputs, input_shapes, true)?, side(&self.outputs, output_shapes, false)?))
    }

    fn dim_sharding(
        &self,
        mesh: &Mesh,
        factors: &[FactorId],
        split: &[Vec<AxisId>],
    ) -> Option<DimSharding> {
        let mut axes = Vec::new();
        let mut unit = 1u64;
        let mut open = true; // whether all factors so far are split down to 1
        for &f in factors {
            let size = self.factors[f.index()].size;
            let by = &split[f.index()];
            if by.is_empty() {
                unit = unit.checked_mul(size)?;
                open &= size == 1;
            } else {
                if !open {
                    return None;
                }
                axes.extend_from_slice(by);
                unit = 1;
                open = u64::from(mesh.group_size(by)) == size
                    && by.iter().all(|&a| mesh.axis(a).shares.is_none());
            }
        }
        // Trailing factors form the unit only if something before them is split.
        Some(if axes.is_empty() { DimSharding::whole() } else { DimSharding { axes, unit } })
    }
}

/// Builds a [`FactorRule`] operand by operand.
#[derive(Debug)]
pub struct RuleBuilder(FactorRule);

impl Default for RuleBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl RuleBuilder {
    /// A rule without factors.
    pub fn new() -> Self {
        Self(FactorRule {
            factors: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            linear: Vec::new(),
            opaque: None,
        })
    }

    /// Adds a factor.
    pub fn factor(&mut self, name: &'static str, size: u64, kind: FactorKind) -> FactorId {
        self.0.factors.push(Factor { name, size, kind });
        FactorId((self.0.factors.len() - 1) as u8)
    }

    /// Adds the next input: one entry a dimension; `None` for a dimension that has no factor.
    pub fn input(&mut self, dims: impl IntoIterator<Item = Option<FactorId>>) {
        self.0.inputs.push(dims.into_iter().map(|f| f.into_iter().collect()).collect());
    }

    /// Adds the next output.
    pub fn output(&mut self, dims: impl IntoIterator<Item = Option<FactorId>>) {
        self.0.outputs.push(dims.into_iter().map(|f| f.into_iter().collect()).collect());
    }

    /// Adds the next input, each dimension a product of factors.
    pub fn input_products(&mut self, dims: Vec<Vec<FactorId>>) {
        self.0.inputs.push(dims);
    }

    /// Adds the next output, each dimension a product of factors.
    pub fn output_products(&mut self, dims: Vec<Vec<FactorId>>) {
        self.0.outputs.push(dims);
    }

    /// Says that the op is linear in these inputs together.
    pub fn linear(&mut self, inputs: impl Into<Vec<usize>>) {
        self.0.linear.push(inputs.into());
    }

    /// The rule.
    pub fn build(self) -> FactorRule {
        self.0
    }
}
