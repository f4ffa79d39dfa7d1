//! The stages of a pipeline in the report.

use crate::compile::Compiled;

/// The stages to show, each with a heading; one for those after it that are split as it is.
pub fn distinct(compiled: &Compiled) -> Vec<(String, usize)> {
    let stages = &compiled.stages;
    if stages.len() == 1 {
        return vec![("mesh".to_string(), 0)];
    }
    let same = |a: usize, b: usize| {
        let (a, b) = (&stages[a].search.strategy, &stages[b].search.strategy);
        a.mesh == b.mesh && a.ops == b.ops
    };
    let mut shown = Vec::new();
    let mut first = 0;
    for next in 1..=stages.len() {
        if next < stages.len() && same(first, next) {
            continue;
        }
        let name = match next - first {
            1 => format!("stage {first}"),
            _ => format!("stages {first}-{}", next - 1),
        };
        shown.push((name, first));
        first = next;
    }
    shown
}
