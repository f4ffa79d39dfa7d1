//! Any legal strategy computes what the graph says: random graphs, meshes, strategies and prices,
//! partitioned, verified, and run on as many CPU ranks as the mesh has.

mod random;

use planc_codegen::{MemoryReport, partition};
use planc_ir::Tensor;
use planc_ir::program::verify::verify;
use proptest::prelude::*;
use random::{Case, Draw, Prices};

/// Reordered sums of numbers of this size differ by less.
fn assert_close(name: &str, found: &Tensor, expected: &Tensor) {
    assert_eq!(found.ty(), expected.ty(), "{name}");
    let (found, expected) = (found.to_f64s(), expected.to_f64s());
    let scale = expected.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
        let same = f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= 1e-9 * scale;
        assert!(same, "{name}[{i}] is {f}, expected {e}");
    }
}

fn check(choices: &[u32]) {
    let d = &mut Draw::new(choices);
    let mesh = random::mesh(d);
    let prices = Prices::draw(d);
    let case = Case::draw(d);
    let strategy = random::strategy(d, &case.graph, &mesh);

    let program = partition(&case.graph, &strategy, &prices).expect("a legal strategy");
    assert_eq!(verify(&program), [], "{program:?}");
    assert_eq!(program, partition(&case.graph, &strategy, &prices).expect("again"));
    let memory = MemoryReport::of(&program).expect("small");
    assert!(memory.bound_bytes() <= memory.arena_bytes);

    let found = planc_runtime::execute(&program, &case.weights, &case.constants, &case.inputs)
        .unwrap_or_else(|e| panic!("{e}\n{program:?}"));
    let expected = case.reference();
    assert_eq!(found.len(), expected.len());
    for ((name, found), expected) in found.iter().zip(&expected) {
        assert_close(name, found, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_strategy_computes_what_the_graph_says(
        choices in prop::collection::vec(any::<u32>(), 0..160)
    ) {
        check(&choices);
    }
}
