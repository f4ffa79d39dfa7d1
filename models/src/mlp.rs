//! A multilayer perceptron: linear layers with ReLU between them.
//!
//! `y = W_n · relu(… relu(W_1 · x + b_1) …) + b_n`, each layer one Gemm with the weight stored
//! `[outputs, inputs]`, as torch does.
//!
//! Parameters, for features `d_0 = inputs`, `d_1 … d_{n-1} = hidden`, `d_n = outputs`:
//! `Σ d_i · d_{i+1} + d_{i+1}`.

use crate::builder::{Builder, Dim, int};
use crate::weights::Init;
use crate::{Default, Family, ModelError, Plan, Size};

pub(crate) const FAMILY: Family = Family {
    name: "mlp",
    summary: "linear layers with ReLU between them",
    sizes: &[
        (Size::Layers, Default::Is(3)),
        (Size::Hidden, Default::Is(1024)),
        (Size::Inputs, Default::Is(784)),
        (Size::Outputs, Default::Is(10)),
    ],
    tied: None,
    build,
};

fn build(b: &mut Builder, plan: &Plan) -> Result<(), ModelError> {
    let layers = plan.sizes.get(Size::Layers);
    let (inputs, outputs) = (plan.sizes.get(Size::Inputs), plan.sizes.get(Size::Outputs));
    let batch = plan.batch_dim();
    let mut x = b.input("x", b.dtype(), &[batch, Dim::Fixed(inputs)]);
    let mut width = inputs;
    for layer in 0..layers {
        let last = layer + 1 == layers;
        let next = if last { outputs } else { plan.sizes.get(Size::Hidden) };
        x = b.module(&format!("layers.{layer}"), |b| {
            let weight = b.parameter("weight", &[next, width], Init::matrix(width))?;
            let bias = b.parameter("bias", &[next], Init::bias())?;
            let y = b.node("Gemm", &[&x, &weight, &bias], vec![int("transB", 1)]);
            Ok(if last { y } else { b.node("Relu", &[&y], vec![]) })
        })?;
        width = next;
    }
    b.output(&x, "y", &[batch, Dim::Fixed(outputs)]);
    Ok(())
}
