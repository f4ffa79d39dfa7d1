//! Which weights are trained.

use super::TrainError;
use super::precision::Master;
use glob::Pattern;
use planc_ir::graph::{Graph, ValueDef, ValueId};
use std::collections::BTreeMap;

/// All floating-point weights but the frozen ones, in the model's order; a copy of a master goes by the
/// master's name. Why others are not trained is added to `untrained`.
///
/// # Errors
/// If a pattern is none, or freezes nothing.
pub fn candidates(
    graph: &Graph,
    masters: &BTreeMap<ValueId, Master>,
    frozen: &[String],
    untrained: &mut BTreeMap<String, &'static str>,
) -> Result<Vec<ValueId>, TrainError> {
    let parse = |pattern: &String| {
        Pattern::new(pattern)
            .map_err(|e| TrainError::Pattern { pattern: pattern.clone(), why: e.to_string() })
    };
    let patterns: Vec<Pattern> = frozen.iter().map(parse).collect::<Result<_, _>>()?;
    let mut used = vec![false; patterns.len()];
    let mut found = Vec::new();
    for value in graph.value_ids() {
        let v = graph.value(value);
        if !matches!(v.def, ValueDef::Weight(_)) || !v.ty.dtype.is_float() {
            continue;
        }
        let name = masters.get(&value).map_or(&v.name, |m| &m.name);
        match patterns.iter().position(|p| p.matches(name)) {
            Some(by) => {
                used[by] = true;
                untrained.insert(name.clone(), "frozen");
            }
            None => found.push(value),
        }
    }
    match used.iter().position(|used| !used) {
        Some(i) => Err(TrainError::FreezesNothing { pattern: frozen[i].clone() }),
        None => Ok(found),
    }
}
