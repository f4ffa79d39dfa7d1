//! What is recomputed and gathered again, against trying every policy.

use super::support::{loss, model, options};
use planc::search::{SearchError, SearchOptions, search};
use planc::train::policy::{Asked, plan};
use planc::train::recompute::{Recompute, blocks, recompute};
use planc::train::step;
use planc_ir::sharding::Mesh;
use planc_tests::cost_model;
use planc_tests::training::CurveReference;

/// In between what keeping everything takes and what nothing fits in, the answer is that of the best policy, but for
/// the gap that it states, and no policy is quicker than the bound.
#[test]
fn no_policy_is_better() {
    let Some(reference) = CurveReference::load("gpt2-dynamo") else { return };
    let raised = model(&reference.model.path, &reference.batches[0]);
    let options =
        options(loss(reference.loss, &reference.output), &reference.curves["adamw"].recipe);
    let step = step(&raised, &options).expect("the step is made").graph;
    let cost = cost_model("H100", 2);
    let within = |memory_bytes: u64, gather_again: bool| SearchOptions {
        mesh: Some(Mesh::new([("device", 2)])),
        memory_bytes: Some(memory_bytes),
        gather_again,
        ..SearchOptions::default()
    };
    let free = search(&step, &cost, &within(u64::MAX, false)).expect("it is searched");
    let all = free.evaluation.memory_bytes;
    let whole = (0..=blocks(&step).len() as u32).map(Recompute::Blocks);
    let policies: Vec<Recompute> =
        [Recompute::Nothing, Recompute::Cheap].into_iter().chain(whole).collect();
    let (mut recomputed, mut impossible) = (0, 0);
    for percent in [30, 50, 80, 95] {
        let limit = all * percent / 100;
        let every = policies.iter().flat_map(|&what| {
            let graph = recompute(&step, what);
            [false, true].map(|again| search(&graph, &cost, &within(limit, again)))
        });
        let best = every
            .filter_map(|found| match found {
                Ok(found) => Some(found.evaluation.total_us),
                Err(SearchError::NothingFits { .. }) => None,
                Err(e) => panic!("{percent} %: {e}"),
            })
            .reduce(f64::min);
        let found = plan(&step, &cost, &within(limit, false), Asked::default(), &|_| ());
        let (Some(best), Ok(found)) = (best, &found) else {
            assert!(best.is_none(), "{percent} %: {best:?} {:?}", found.err());
            assert!(matches!(found, Err(SearchError::NothingFits { .. })), "{percent} %");
            impossible += 1;
            continue;
        };
        let (us, certificate) = (found.search.evaluation.total_us, &found.search.certificate);
        assert!(found.search.evaluation.memory_bytes <= limit, "{percent} %");
        assert!(us <= best * (1.0 + found.search.enough + 1e-9), "{percent} %: {us} {best}");
        assert!(certificate.bound_us <= best * (1.0 + 1e-9), "{percent} %: {certificate:?} {best}");
        recomputed += usize::from(found.recompute != Recompute::Nothing);
    }
    assert!(recomputed > 0 && impossible > 0, "{recomputed} recompute, {impossible} do not fit");
}
