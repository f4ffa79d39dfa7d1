//! Memory for a price: bounds and feasible choices for a request with memory rows, without the solver.
//!
//! Instead of being limited, memory is paid for: with a price `λ_r ≥ 0` on each row,
//!
//! ```text
//! L(λ) = min over choices of  price(choice) + Σ_r λ_r · (bytes_r(choice) / limit - 1)
//! ```
//!
//! is no more than the optimum within the limit, and the minimum is a request without memory rows, which
//! is far easier: elimination solves it at once, or else the integer program, whose relaxation is nearly
//! always integral there. Prices follow the subgradient (Polyak's step): rows that are
//! over the limit get dearer, others cheaper. On the way, minimisers that stay within the limit are
//! answers; the best of them starts the integer program, or ends the search if the gap is small enough.

use super::eliminate::{Elimination, MOST_COMBINATIONS, eliminate};
use super::reduce::Reduced;
use super::request::{Choice, Memory, Request};
use super::solver::relative_gap;

/// Prices tried. The bound rarely moves after some twenty.
pub const ROUNDS: usize = 30;

/// What pricing memory comes to.
#[derive(Clone, Debug)]
pub struct Priced {
    /// The best choice met that stays within the limit, and its price.
    pub best: Option<(Choice, f64)>,
    /// No choice within the limit is cheaper.
    pub bound_us: f64,
}

impl Priced {
    /// Relative distance of the best choice to the bound; `None` without a choice.
    pub fn gap(&self) -> Option<f64> {
        self.best.as_ref().map(|(_, us)| relative_gap(*us, self.bound_us).max(0.0))
    }

    fn meet(&mut self, choice: &Choice, us: f64) {
        if self.best.as_ref().is_none_or(|(_, best)| us < *best) {
            self.best = Some((choice.clone(), us));
        }
    }
}

/// Solves a request without memory rows: an optimum, its price, and a bound. `None` if it cannot.
pub type Solve<'a> = &'a dyn Fn(&Request) -> Option<(Choice, f64, f64)>;

/// Prices memory until the gap is small enough, or the rounds are over; from `known`, a choice that
/// stays within the limit, if there is one. `None` if a priced request cannot be solved.
pub fn lagrange(
    request: &Request,
    known: Option<&Choice>,
    enough: f64,
    rounds: usize,
    solve: Solve<'_>,
) -> Option<Priced> {
    let limit = request.memory.limit_bytes.max(1) as f64;
    let mut priced = Priced { best: None, bound_us: 0.0 };
    if let Some(choice) = known
        && let Some(us) = request.price(choice)
    {
        priced.meet(choice, us);
    }
    let mut prices = vec![0.0; request.memory.rows.len()];
    let mut best_prices = prices.clone();
    let (mut damping, mut stalled) = (1.0, 0);
    for round in 0..rounds {
        let (choice, _, value) = solve(&with_prices(request, &prices, limit))?;
        let bound_us = value - prices.iter().sum::<f64>();
        if bound_us > priced.bound_us {
            (priced.bound_us, stalled) = (bound_us, 0);
            best_prices.clone_from(&prices);
        } else {
            stalled += 1;
        }
        let over: Vec<f64> = (request.memory.rows.iter().zip(&prices))
            .map(|(row, &price)| {
                let over = request.row_bytes(row, &choice) as f64 / limit - 1.0;
                // A row that is free and within the limit says nothing.
                if over <= 0.0 && price == 0.0 { 0.0 } else { over }
            })
            .collect();
        if over.iter().all(|&x| x <= 0.0)
            && let Some(us) = request.price(&choice)
        {
            priced.meet(&choice, us);
        }
        let length: f64 = over.iter().map(|x| x * x).sum();
        if priced.gap().is_some_and(|gap| gap <= enough) || length == 0.0 {
            break;
        }
        if stalled == 3 {
            (damping, stalled) = (damping / 2.0, 0);
            prices.clone_from(&best_prices);
        }
        // Until some choice fits, aim ever higher.
        let target = priced
            .best
            .as_ref()
            .map_or_else(|| priced.bound_us.max(1.0) * (1.1 + 0.1 * round as f64), |(_, us)| *us);
        let step = damping * (target - bound_us).max(0.0) / length;
        for (price, over) in prices.iter_mut().zip(over) {
            *price = (*price + step * over).max(0.0);
        }
    }
    Some(priced)
}

/// A request in which each row's memory costs its price a limit, and nothing is limited.
fn with_prices(request: &Request, prices: &[f64], limit: f64) -> Request {
    let mut priced = Request { memory: Memory::default(), ..request.clone() };
    let memory = &request.memory;
    for (row, &price) in memory.rows.iter().zip(prices).filter(|(_, p)| **p > 0.0) {
        for &(home, count) in &row.homes {
            let home = &memory.homes[home];
            let costs = &mut priced.decisions[home.decision].cost_us;
            for (cost, &bytes) in costs.iter_mut().zip(&home.bytes) {
                *cost += price * count as f64 * bytes as f64 / limit;
            }
        }
        for &(form, count) in &row.forms {
            let form = &memory.forms[form];
            let all = priced.edges[form.edge].us.iter_mut().zip(&form.bytes);
            for (us, &bytes) in all.flat_map(|(us, bytes)| us.iter_mut().zip(bytes)) {
                *us = us.map(|us| us + price * count as f64 * bytes as f64 / limit);
            }
        }
    }
    priced
}

/// Solves a request by elimination alone.
pub fn by_elimination(request: &Request) -> Option<(Choice, f64, f64)> {
    let reduced = Reduced::new(request)?;
    match eliminate(&reduced.request, MOST_COMBINATIONS) {
        Elimination::Optimum(choice, us) => {
            let us = us + reduced.constant_us;
            Some((reduced.restore(&choice), us, us))
        }
        Elimination::Impossible | Elimination::TooLarge => None,
    }
}

/// The least that a memory row takes under any choice, and such a choice.
pub fn leanest(request: &Request, row: usize, solve: Solve<'_>) -> Option<(Choice, u64)> {
    let row = &request.memory.rows[row];
    let mut free = request.clone();
    free.memory.rows = vec![row.clone()];
    free.decisions.iter_mut().for_each(|d| d.cost_us.fill(0.0));
    let prices = free.edges.iter_mut().flat_map(|e| &mut e.us).flatten().flatten();
    prices.for_each(|us| *us = 0.0);
    let (choice, _, bound) = solve(&with_prices(&free, &[LEAST_SCALE], 1.0))?;
    Some((choice, (bound / LEAST_SCALE) as u64))
}

/// Microseconds a byte, so that bytes are numbers as solvers like them.
const LEAST_SCALE: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::super::request::random::{enumerate, request};
    use super::*;

    #[test]
    fn bounds_hold_and_choices_fit() {
        let (mut closed, mut met, mut feasible) = (0, 0, 0);
        for seed in 0..600 {
            let request = request(seed, true);
            let Some((_, best)) = enumerate(&request) else { continue };
            feasible += 1;
            let priced = lagrange(&request, None, 0.0, ROUNDS, &by_elimination).unwrap();
            assert!(priced.bound_us <= best * (1.0 + 1e-9), "seed {seed}: {priced:?} {best}");
            if let Some((choice, us)) = &priced.best {
                assert!(request.fits(choice), "seed {seed}");
                assert_eq!(request.price(choice), Some(*us), "seed {seed}");
                assert!(*us >= best * (1.0 - 1e-9), "seed {seed}");
                met += 1;
            }
            closed += usize::from(priced.gap().is_some_and(|g| g < 1e-9));
        }
        assert!(met * 10 > feasible * 8, "most find a choice: {met} of {feasible}");
        assert!(closed * 2 > feasible, "most close the gap: {closed} of {feasible}");
    }
}
