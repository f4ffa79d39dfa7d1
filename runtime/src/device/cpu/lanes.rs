//! Folds of contiguous elements in several independent lanes, so that one addition need not wait for
//! the one before. The order is fixed: it depends on the number of elements alone.

const LANES: usize = 8;

/// Folds `x`: each lane by `step`, beginning with `neutral`, then the lanes by `join`.
#[inline]
pub fn fold<T: Copy, A: Copy>(
    x: &[T],
    neutral: A,
    step: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    let mut lanes = [neutral; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (a, &x) in lanes.iter_mut().zip(chunk) {
            *a = step(*a, x);
        }
    }
    for (a, &x) in lanes.iter_mut().zip(rest) {
        *a = step(*a, x);
    }
    lanes.into_iter().fold(neutral, join)
}

/// The sum of `f` over `x`.
#[inline]
pub fn sum<T: Copy>(x: &[T], f: impl Fn(T) -> f64) -> f64 {
    fold(x, 0.0, |a, x| a + f(x), |a, b| a + b)
}
