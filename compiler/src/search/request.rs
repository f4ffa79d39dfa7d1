//! What the solver is asked: plain data, without graphs, meshes or cost models.
//!
//! A request is a set of *decisions*, each of which takes one of its candidates, and of *edges*, each
//! of which prices how a value gets from where it is made to where it is used. The price depends on
//! candidates only through their *classes* (the sharding that they leave or need the value in), which
//! are few. An edge with several uses pays once for each distinct class that is used: consumers that
//! need a value in one form share the reshard.
//!
//! ```text
//! price(choice) = Σ_d cost_us[d][choice_d]
//!               + Σ_edges Σ_{t ∈ {class of each use}} us[class of from][t]
//! ```
//!
//! Memory is a set of rows, one for each point in time that could exceed the limit. A row counts the
//! bytes of the values that are held there, in the class that their maker leaves them in (*homes*) and
//! in the classes that they are resharded to (*forms*).

/// A choice among candidates.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What is decided, for messages.
    pub name: String,
    /// Cost of each candidate.
    pub cost_us: Vec<f64>,
}

/// Where an edge meets a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Index of the decision.
    pub decision: usize,
    /// The class of each of its candidates.
    pub class: Vec<usize>,
}

/// The way of a value from its maker to its users.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// The maker; classes are rows of `us`.
    pub from: End,
    /// The users; classes are columns of `us`.
    pub uses: Vec<End>,
    /// Price from class to class; `None` where there is no way.
    pub us: Vec<Vec<Option<f64>>>,
}

/// Bytes that a value holds while it is in the class of its maker.
#[derive(Clone, Debug, PartialEq)]
pub struct Home {
    /// The maker.
    pub decision: usize,
    /// Bytes for each of its candidates.
    pub bytes: Vec<u64>,
}

/// Bytes that the further forms of an edge's value hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// Index of the edge.
    pub edge: usize,
    /// Bytes from class to class: 0 where the form is the home itself.
    pub bytes: Vec<Vec<u64>>,
}

/// A point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryRow {
    /// Homes held: index into [`Memory::homes`], and how many of them.
    pub homes: Vec<(usize, u64)>,
    /// Forms held: index into [`Memory::forms`], and how many of them.
    pub forms: Vec<(usize, u64)>,
}

/// Limits on memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// What every row must stay within.
    pub limit_bytes: u64,
    /// What rows are made of.
    pub homes: Vec<Home>,
    /// What rows are made of.
    pub forms: Vec<Form>,
    /// The points in time that could exceed the limit.
    pub rows: Vec<MemoryRow>,
}

/// Everything that a solver needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The choices.
    pub decisions: Vec<Decision>,
    /// What ties them together.
    pub edges: Vec<Edge>,
    /// Limits; no rows where nothing can exceed them.
    pub memory: Memory,
}

/// One candidate for each decision.
pub type Choice = Vec<usize>;

impl Edge {
    /// The classes that are used under a choice, each once, in ascending order.
    fn used(&self, choice: &[usize]) -> Vec<usize> {
        let mut used: Vec<usize> = self.uses.iter().map(|u| u.class[choice[u.decision]]).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// The decisions that it touches, each once, in ascending order.
    pub fn decisions(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.uses.iter().map(|u| u.decision).chain([self.from.decision]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Its price under a choice, or `None` if there is no way.
    pub fn price(&self, choice: &[usize]) -> Option<f64> {
        let row = &self.us[self.from.class[choice[self.from.decision]]];
        self.used(choice).into_iter().map(|t| row[t]).sum()
    }
}

impl Request {
    /// The price of a choice, or `None` if some edge has no way.
    pub fn price(&self, choice: &[usize]) -> Option<f64> {
        let own: f64 = self.decisions.iter().zip(choice).map(|(d, &c)| d.cost_us[c]).sum();
        let edges: Option<f64> = self.edges.iter().map(|e| e.price(choice)).sum();
        edges.map(|e| own + e)
    }

    /// The bytes of a memory row under a choice.
    pub fn row_bytes(&self, row: &MemoryRow, choice: &[usize]) -> u64 {
        let memory = &self.memory;
        let homes = row.homes.iter().map(|&(h, n)| {
            let home = &memory.homes[h];
            n.saturating_mul(home.bytes[choice[home.decision]])
        });
        let forms = row.forms.iter().map(|&(f, n)| {
            let form = &memory.forms[f];
            let edge = &self.edges[form.edge];
            let bytes = &form.bytes[edge.from.class[choice[edge.from.decision]]];
            let all =
                edge.used(choice).into_iter().fold(0, |sum: u64, t| sum.saturating_add(bytes[t]));
            n.saturating_mul(all)
        });
        homes.chain(forms).fold(0, u64::saturating_add)
    }

    /// The largest row under a choice; 0 without rows.
    pub fn peak_bytes(&self, choice: &[usize]) -> u64 {
        self.memory.rows.iter().map(|r| self.row_bytes(r, choice)).max().unwrap_or(0)
    }

    /// Whether a choice stays within the memory limit.
    pub fn fits(&self, choice: &[usize]) -> bool {
        self.peak_bytes(choice) <= self.memory.limit_bytes || self.memory.rows.is_empty()
    }

    /// Number of candidates of all decisions.
    pub fn candidates(&self) -> usize {
        self.decisions.iter().map(|d| d.cost_us.len()).sum()
    }
}

#[cfg(test)]
pub mod random {
    //! Random requests small enough to enumerate.

    use super::*;

    /// A small generator of numbers (splitmix64): deterministic, no dependency.
    pub struct Rng(pub u64);

    impl Rng {
        /// The next number.
        pub fn next_u64(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        /// A number below `n`.
        pub fn below(&mut self, n: usize) -> usize {
            (self.next_u64() % n as u64) as usize
        }

        /// A cost with a fraction, often 0.
        pub fn cost(&mut self) -> f64 {
            if self.below(4) == 0 { 0.0 } else { self.below(10_000) as f64 / 64.0 }
        }
    }

    /// A random request: self-loops, shared uses, repeated uses and missing ways included.
    pub fn request(seed: u64, memory: bool) -> Request {
        let mut rng = Rng(seed);
        let n = 2 + rng.below(5);
        let decisions: Vec<Decision> = (0..n)
            .map(|i| Decision {
                name: format!("d{i}"),
                cost_us: (0..=rng.below(4)).map(|_| rng.cost()).collect(),
            })
            .collect();
        let mut edges = Vec::new();
        for _ in 0..n + rng.below(3) {
            let (rows, columns) = (1 + rng.below(3), 1 + rng.below(3));
            let end = |rng: &mut Rng, classes: usize| {
                let decision = rng.below(n);
                let class =
                    decisions[decision].cost_us.iter().map(|_| rng.below(classes)).collect();
                End { decision, class }
            };
            let from = end(&mut rng, rows);
            let uses = (0..=rng.below(3)).map(|_| end(&mut rng, columns)).collect();
            let us = (0..rows)
                .map(|_| (0..columns).map(|_| (rng.below(16) > 0).then(|| rng.cost())).collect())
                .collect();
            edges.push(Edge { from, uses, us });
        }
        let mut request = Request { decisions, edges, memory: Memory::default() };
        if memory {
            request.memory = random_memory(&mut rng, &request);
        }
        request
    }

    fn random_memory(rng: &mut Rng, request: &Request) -> Memory {
        let homes: Vec<Home> = request
            .decisions
            .iter()
            .enumerate()
            .map(|(decision, d)| Home {
                decision,
                bytes: d.cost_us.iter().map(|_| rng.below(100) as u64).collect(),
            })
            .collect();
        let forms: Vec<Form> = request
            .edges
            .iter()
            .enumerate()
            .map(|(edge, e)| Form {
                edge,
                bytes: e
                    .us
                    .iter()
                    .map(|r| r.iter().map(|_| rng.below(60) as u64).collect())
                    .collect(),
            })
            .collect();
        let rows = (0..=rng.below(3))
            .map(|_| MemoryRow {
                homes: (0..homes.len()).filter(|_| rng.below(3) > 0).map(|h| (h, 1)).collect(),
                forms: (0..forms.len()).filter(|_| rng.below(3) > 0).map(|f| (f, 2)).collect(),
            })
            .collect();
        Memory { limit_bytes: 200 + rng.below(500) as u64, homes, forms, rows }
    }

    /// The best choice that fits, by trying all of them.
    pub fn enumerate(request: &Request) -> Option<(Choice, f64)> {
        let mut best: Option<(Choice, f64)> = None;
        let mut choice = vec![0; request.decisions.len()];
        loop {
            if request.fits(&choice)
                && let Some(price) = request.price(&choice)
                && best.as_ref().is_none_or(|(_, b)| price < *b)
            {
                best = Some((choice.clone(), price));
            }
            let Some(i) = (0..choice.len())
                .rev()
                .find(|&i| choice[i] + 1 < request.decisions[i].cost_us.len())
            else {
                return best;
            };
            choice[i] += 1;
            choice[i + 1..].fill(0);
        }
    }
}
