//! Where to cut: parts that take about as long as each other.

/// What cutting costs.
pub struct Chain {
    /// By forward node, the time of it and of what belongs to it in the backward phase.
    pub node_us: Vec<f64>,
    /// By forward node, the time for sending what crosses a cut before it, there and back.
    pub crossing_us: Vec<f64>,
}

impl Chain {
    /// The cuts into `parts` parts, none of them empty, of which the slowest takes the least time, what it
    /// receives included; `None` if there are fewer nodes.
    ///
    /// By dynamic programming over the end of the part: `best[p][j] = min over i of max(best[p - 1][i], us(i..j))`.
    /// As `us(i..j)` grows with `j` and `best` with `i`, but for crossings, only few `i` are looked at: those from
    /// the largest on, until a part alone takes longer than the best so far.
    pub fn cuts(&self, parts: usize) -> Option<Vec<usize>> {
        let n = self.node_us.len();
        if parts == 0 || n < parts {
            return None;
        }
        let mut until = vec![0.0; n + 1];
        for (i, us) in self.node_us.iter().enumerate() {
            until[i + 1] = until[i] + us;
        }
        let between = |i: usize, j: usize| until[j] - until[i];
        let part_us =
            |i: usize, j: usize| between(i, j) + if i == 0 { 0.0 } else { self.crossing_us[i] };
        let mut best: Vec<f64> = (0..=n).map(|j| part_us(0, j)).collect();
        best[0] = f64::INFINITY;
        let mut from: Vec<Vec<usize>> = Vec::with_capacity(parts);
        for p in 1..parts {
            let mut next = vec![f64::INFINITY; n + 1];
            let mut chosen = vec![0; n + 1];
            for j in p + 1..=n {
                for i in (p..j).rev() {
                    if between(i, j) >= next[j] {
                        break;
                    }
                    let us = best[i].max(part_us(i, j));
                    if us < next[j] {
                        (next[j], chosen[j]) = (us, i);
                    }
                }
            }
            best = next;
            from.push(chosen);
        }
        let mut cuts = Vec::with_capacity(parts - 1);
        let mut end = n;
        for chosen in from.iter().rev() {
            end = chosen[end];
            cuts.push(end);
        }
        cuts.reverse();
        Some(cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slowest(chain: &Chain, cuts: &[usize]) -> f64 {
        let ends: Vec<usize> =
            [0].into_iter().chain(cuts.iter().copied()).chain([chain.node_us.len()]).collect();
        let part = |w: &[usize]| {
            let crossing = if w[0] == 0 { 0.0 } else { chain.crossing_us[w[0]] };
            chain.node_us[w[0]..w[1]].iter().sum::<f64>() + crossing
        };
        ends.windows(2).map(part).fold(0.0, f64::max)
    }

    /// Every way to cut `from..n` into `parts` parts.
    fn all(from: usize, n: usize, parts: usize) -> Vec<Vec<usize>> {
        if parts == 1 {
            return vec![Vec::new()];
        }
        (from + 1..n)
            .flat_map(|cut| {
                let rest = all(cut, n, parts - 1);
                rest.into_iter().map(move |r| [vec![cut], r].concat())
            })
            .collect()
    }

    #[test]
    fn no_other_cuts_are_better() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let n = rng.usize(1..10);
            let mut us = || (0..n).map(|_| f64::from(rng.u32(0..20))).collect::<Vec<_>>();
            let chain = Chain { node_us: us(), crossing_us: us() };
            for parts in 1..=n {
                let cuts = chain.cuts(parts).expect("there are nodes enough");
                assert_eq!(cuts.len(), parts - 1);
                let found = slowest(&chain, &cuts);
                let others = all(0, n, parts);
                let best = others.iter().map(|c| slowest(&chain, c)).fold(f64::INFINITY, f64::min);
                assert_eq!(found.to_bits(), best.to_bits(), "{cuts:?}");
            }
            assert!(chain.cuts(n + 1).is_none());
        }
    }
}
