//! What a case gives: outputs, and what state becomes.

use super::Case;
use planc_ir::Tensor;
use planc_ir::program::Program;
use planc_runtime::{Executor, RunError};

impl Case {
    /// By evaluating op after op.
    pub fn reference(&self) -> Vec<Tensor> {
        let mut values: Vec<Option<Tensor>> = self
            .graph
            .values
            .iter()
            .map(|v| {
                [&self.inputs, &self.weights, &self.constants]
                    .into_iter()
                    .find_map(|known| known.get(&v.name).cloned())
            })
            .collect();
        for node in &self.graph.nodes {
            let inputs: Vec<&Tensor> =
                node.inputs.iter().map(|v| values[v.index()].as_ref().expect("in order")).collect();
            let results = node.op.eval(&inputs).expect("small and in range");
            for (v, t) in node.outputs.iter().zip(results) {
                values[v.index()] = Some(t);
            }
        }
        let next = self.graph.carried.iter().map(|c| &c.next);
        let all = self.graph.outputs.iter().chain(next);
        all.map(|v| values[v.index()].clone().expect("computed")).collect()
    }

    /// By running a program, with names.
    pub fn run(&self, program: &Program) -> Result<Vec<(String, Tensor)>, RunError> {
        let mut executor = Executor::new(program.clone(), &self.weights, &self.constants)?;
        let mut all = executor.run(&self.inputs)?;
        for c in &self.graph.carried {
            let state = self.graph.value(c.state);
            let bytes = executor.weight_bytes(&state.name)?;
            let tensor = Tensor::from_bytes(state.ty.clone(), &bytes).expect("a whole tensor");
            all.push((state.name.clone(), tensor));
        }
        Ok(all)
    }
}
