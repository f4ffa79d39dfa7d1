//! Values that hold the elements of another in another order.
//!
//! Exporters transpose keys in several ways: by a transpose, by one that is merged with that of the heads,
//! by a reshape to three dimensions, a transpose and a reshape back. A [`View`] says what such a chain
//! does, in strides of the value that it starts from.

use super::rewriter::Rewriter;
use planc_ir::graph::ValueId;
use planc_ir::ops::Op;
use planc_ir::tensor::strides;

/// Layout nodes that are looked through.
const MAX_CHAIN: usize = 8;

/// Extents, and for each dimension the distance of its elements in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl View {
    /// A tensor as it is.
    fn whole(shape: &[u64]) -> Self {
        let strides = strides(shape).into_iter().map(|s| s as u64).collect();
        Self { shape: shape.to_vec(), strides }
    }

    fn transpose(&self, perm: &[usize]) -> Self {
        Self {
            shape: perm.iter().map(|&i| self.shape[i]).collect(),
            strides: perm.iter().map(|&i| self.strides[i]).collect(),
        }
    }

    /// The same elements under other extents; `None` if they do not lie at regular distances.
    fn reshape(&self, shape: &[u64]) -> Option<Self> {
        // Runs of dimensions that are one range of the source: extent and distance.
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (&n, &stride) in self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1) {
            match runs.last_mut() {
                Some(last) if last.1 == n.checked_mul(stride)? => *last = (last.0 * n, stride),
                _ => runs.push((n, stride)),
            }
        }
        // Each new dimension takes the back of the last run that is left.
        let mut strides = vec![0; shape.len()];
        let mut left = runs.pop();
        for (i, &n) in shape.iter().enumerate().rev() {
            if n == 1 {
                continue;
            }
            if left.is_some_and(|(extent, _)| extent == 1) {
                left = runs.pop();
            }
            let (extent, stride) = left?;
            if n == 0 || extent % n != 0 {
                return None;
            }
            strides[i] = stride;
            left = Some((extent / n, stride.checked_mul(n)?));
        }
        Some(Self { shape: shape.to_vec(), strides })
    }

    /// Whether two views hold the same elements; dimensions of 1 have no distance.
    fn same(&self, other: &Self) -> bool {
        let distance = |n: u64, s: u64| if n == 1 { 0 } else { s };
        let distances = |v: &Self| -> Vec<u64> {
            v.shape.iter().zip(&v.strides).map(|(&n, &s)| distance(n, s)).collect()
        };
        self.shape == other.shape && distances(self) == distances(other)
    }

    /// The permutation of `whole` that this view is, if it is one.
    fn permutation(&self, whole: &Self) -> Option<Vec<usize>> {
        let mut free: Vec<bool> = vec![true; whole.shape.len()];
        let perm: Option<Vec<usize>> = self
            .shape
            .iter()
            .zip(&self.strides)
            .map(|(&n, &s)| {
                let fits = |&i: &usize| {
                    free[i] && whole.shape[i] == n && (n == 1 || whole.strides[i] == s)
                };
                let found = (0..whole.shape.len()).find(fits)?;
                free[found] = false;
                Some(found)
            })
            .collect();
        perm.filter(|p| p.len() == whole.shape.len())
    }
}

/// `v` with its two last dimensions swapped: a value that exists already where one does, else one
/// transpose of the nearest.
pub fn swapped(rewriter: &mut Rewriter, root: ValueId, v: ValueId) -> Option<ValueId> {
    let rank = rewriter.shape(v).len();
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank.checked_sub(2)?, rank - 1);
    let chain = chain(rewriter, v);
    let views = chain.iter().map(|(source, steps)| {
        let whole = View::whole(rewriter.shape(*source));
        let end = view(&whole, steps);
        (*source, whole, end.map(|view| view.transpose(&swap)))
    });
    let views: Vec<_> = views.collect();
    if let Some((source, ..)) =
        views.iter().find(|(_, whole, view)| view.as_ref().is_some_and(|v| v.same(whole)))
    {
        return Some(*source);
    }
    let one = views
        .iter()
        .skip(1)
        .find_map(|(source, whole, view)| Some((*source, view.as_ref()?.permutation(whole)?)));
    let (source, perm) = one.unwrap_or((v, swap));
    rewriter.transpose(root, source, perm)
}

/// Whether `v` is `source` with its two last dimensions swapped, the others merged or not.
pub fn is_swapped(rewriter: &Rewriter, v: ValueId, source: ValueId) -> bool {
    let chain = chain(rewriter, v);
    let Some((_, steps)) = chain.iter().find(|(found, _)| *found == source) else { return false };
    let whole = View::whole(rewriter.shape(source));
    let rank = rewriter.shape(v).len();
    let mut swap: Vec<usize> = (0..rank).collect();
    if rank < 2 {
        return false;
    }
    swap.swap(rank - 2, rank - 1);
    let end = view(&whole, steps).and_then(|v| v.transpose(&swap).reshape(&whole.shape));
    end.is_some_and(|end| end.same(&whole))
}

/// What steps, the last first, make of a view.
fn view(whole: &View, steps: &[Step]) -> Option<View> {
    steps.iter().rev().try_fold(whole.clone(), |view, step| match step {
        Step::Transpose(perm) => Some(view.transpose(perm)),
        Step::Reshape(shape) => view.reshape(shape),
    })
}

#[derive(Clone, Debug)]
enum Step {
    Transpose(Vec<usize>),
    Reshape(Vec<u64>),
}

/// `v` and the values that it is a layout of, the nearest first, each with the steps to `v`, the last
/// first.
fn chain(rewriter: &Rewriter, v: ValueId) -> Vec<(ValueId, Vec<Step>)> {
    let mut found = vec![(v, Vec::new())];
    let (mut at, mut steps) = (v, Vec::new());
    for _ in 0..MAX_CHAIN {
        let step = match rewriter.op(at) {
            Some((Op::Transpose(t), &[x])) => (x, Step::Transpose(t.perm.clone())),
            Some((Op::Reshape(r), &[x])) => (x, Step::Reshape(r.shape.clone())),
            _ => break,
        };
        at = step.0;
        steps.push(step.1);
        if !rewriter.is_static(at) {
            break;
        }
        found.push((at, steps.clone()));
    }
    found
}

/// Undoes the repetition of key heads for grouped queries: of `[b, h·g, t, d]` that repeats each head of
/// `[b, h, t, d]` `g` times in a row, the latter.
pub fn ungrouped(rewriter: &Rewriter, v: ValueId) -> Option<ValueId> {
    let &[b, heads, t, d] = rewriter.shape(v) else { return None };
    let (Op::Reshape(_), &[repeated]) = rewriter.op(v)? else { return None };
    let (Op::Expand(_), &[single]) = rewriter.op(repeated)? else { return None };
    let (Op::Reshape(_), &[x]) = rewriter.op(single)? else { return None };
    let &[_, kv_heads, _, _] = rewriter.shape(x) else { return None };
    let fits = rewriter.shape(x) == [b, kv_heads, t, d]
        && rewriter.shape(single) == [b, kv_heads, 1, t, d]
        && rewriter.shape(repeated) == [b, kv_heads, heads.checked_div(kv_heads)?, t, d]
        && rewriter.is_static(x);
    fits.then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_in_three_dimensions_is_one_in_four() {
        let whole = View::whole(&[2, 4, 8, 16]);
        let flat = whole.reshape(&[8, 8, 16]).unwrap().transpose(&[0, 2, 1]);
        let view = flat.reshape(&[2, 4, 16, 8]).unwrap().transpose(&[0, 1, 3, 2]);
        assert!(view.same(&whole));
    }

    #[test]
    fn what_is_not_regular_is_no_view() {
        let whole = View::whole(&[2, 3, 4]);
        assert_eq!(whole.transpose(&[1, 0, 2]).reshape(&[6, 4]), None);
        assert!(whole.transpose(&[1, 0, 2]).reshape(&[3, 1, 2, 2, 2]).is_some());
        assert_eq!(whole.reshape(&[4, 6]).unwrap().strides, [6, 1]);
        assert_eq!(View::whole(&[0, 3]).reshape(&[0, 3]), None);
    }

    #[test]
    fn a_permutation_is_found_again() {
        let whole = View::whole(&[2, 3, 1, 4]);
        let view = whole.transpose(&[2, 0, 3, 1]);
        assert_eq!(view.permutation(&whole), Some(vec![2, 0, 3, 1]));
        assert_eq!(whole.reshape(&[6, 4]).unwrap().permutation(&whole), None);
    }
}
