//! Orders of passes, written out from their definitions, and random ones.

use planc_ir::program::{Action, Pass};

/// How orders come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One micro-batch after the other.
    Sequential,
    /// All forward, then all backward.
    Fill,
    /// Forward and backward in turn, as soon as both are there.
    InTurn,
    /// Whatever can run, as a seed decides; with passes for weights or without.
    Random { seed: u64, weights: bool },
}

/// Each stage's order, for parts of which part `p` is on stage `stage_of[p]`.
pub fn orders(kind: Kind, stage_of: &[usize], micro_batches: u32) -> Vec<Vec<Action>> {
    let stages = stage_of.iter().max().map_or(0, |s| s + 1);
    let weights = matches!(kind, Kind::Random { weights: true, .. });
    let mut state = match kind {
        Kind::Random { seed, .. } => seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        _ => 1,
    };
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % n
    };
    let parts = stage_of.len();
    // How many micro-batches each part has done, of each pass.
    let mut done = vec![[0u32; 3]; parts];
    let mut orders: Vec<Vec<Action>> = vec![Vec::new(); stages];
    loop {
        let mut can = Vec::new();
        for part in 0..parts {
            let [forward, backward, weight] = done[part];
            let limit = match kind {
                Kind::Sequential => done.iter().map(|d| d[1]).min().unwrap_or(0) + 1,
                Kind::InTurn => backward + (parts - part) as u32,
                _ => micro_batches,
            };
            let fed = part == 0 || done[part - 1][0] > forward;
            if forward < micro_batches.min(limit) && fed {
                can.push((Pass::Forward, part));
            }
            let filled = kind != Kind::Fill || done.iter().all(|d| d[0] == micro_batches);
            let returned = part + 1 == parts || done[part + 1][1] > backward;
            if backward < forward && returned && filled {
                can.push((Pass::Backward, part));
            }
            if weights && weight < backward {
                can.push((Pass::Weights, part));
            }
        }
        if can.is_empty() {
            return orders;
        }
        // Each stage does one thing at a time, in the known orders all of them at once.
        let of = |stage| can.iter().filter(move |(_, part)| stage_of[*part] == stage);
        let chosen: Vec<(Pass, usize)> = if matches!(kind, Kind::Random { .. }) {
            vec![can[below(can.len())]]
        } else {
            (0..stages).filter_map(|stage| of(stage).max().copied()).collect()
        };
        for (pass, part) in chosen {
            let which = match pass {
                Pass::Forward => 0,
                Pass::Backward => 1,
                Pass::Weights => 2,
            };
            let chunk = stage_of[..part].iter().filter(|&&s| s == stage_of[part]).count() as u32;
            let micro_batch = done[part][which];
            orders[stage_of[part]].push(Action { pass, chunk, micro_batch });
            done[part][which] += 1;
        }
    }
}

#[test]
fn known_orders_come_out() {
    let text = |orders: &[Action]| {
        let letter = |p| match p {
            Pass::Forward => 'f',
            Pass::Backward => 'b',
            Pass::Weights => 'w',
        };
        let actions = orders.iter().map(|a| format!("{}{}", letter(a.pass), a.micro_batch));
        actions.collect::<Vec<_>>().concat()
    };
    let of = |kind| -> Vec<String> { orders(kind, &[0, 1], 3).iter().map(|o| text(o)).collect() };
    assert_eq!(of(Kind::Sequential), ["f0b0f1b1f2b2"; 2]);
    assert_eq!(of(Kind::Fill), ["f0f1f2b0b1b2"; 2]);
    assert_eq!(of(Kind::InTurn), ["f0f1b0f2b1b2", "f0b0f1b1f2b2"]);
}
