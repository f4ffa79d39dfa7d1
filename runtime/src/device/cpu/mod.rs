//! Kernels on the CPU: one file a class of kernels.
//!
//! A kernel is a function of operands in memory; it knows no rank and no arena. f32 and f64 are
//! computed in their own type, f16 and bf16 in f32 (rounded when stored), integers in their own type,
//! wrapping. Long sums are accumulated in f64. The program's verifier guarantees that operands fit
//! their kernel.

mod attention;
mod attention_grad;
mod conv;
mod conv_transpose;
mod conv_weight_grad;
mod dropout;
mod elementary;
mod experts;
mod experts_grad;
mod gather;
mod gemm;
pub mod in_place;
mod lanes;
mod layout;
mod lrn;
mod map;
mod matmul;
mod normalize;
mod normalize_grad;
mod operand;
mod optimizer_step;
mod pool;
mod pool_grad;
mod reduce;
pub mod reference;
mod rotary;
mod softmax;
mod strided;
mod thin;
mod widen;
mod window;

pub use operand::{In, Out};
pub use reduce::{combine, fill_neutral};

use crate::KernelError;
use planc_ir::Tensor;
use planc_ir::program::Kernel;

/// Runs a kernel.
pub fn run(kernel: &Kernel, inputs: &[In<'_>], outputs: &mut [Out<'_>]) -> Result<(), KernelError> {
    if let Kernel::Reference { op } = kernel {
        let inputs: Vec<Tensor> = inputs.iter().map(reference::load).collect::<Result<_, _>>()?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let results = reference::evaluate(op, &inputs, outputs.len())?;
        let mut pairs = results.iter().zip(outputs);
        return pairs.try_for_each(|(result, out)| reference::store(op, result, out));
    }
    if let Kernel::OptimizerStep(step) = kernel {
        return optimizer_step::run(step, inputs, outputs);
    }
    if let Kernel::AttentionGrad(_) | Kernel::MixtureOfExpertsGrad(_) | Kernel::NormalizeGrad(_) =
        kernel
    {
        return run_all(kernel, inputs, outputs);
    }
    let [out] = outputs else {
        return Err(KernelError::Operands {
            kernel: "any",
            why: format!("{} results instead of one", outputs.len()),
        });
    };
    if out.bytes.is_empty() {
        return Ok(()); // its other extents may be too large to loop over
    }
    match (kernel, inputs) {
        (Kernel::Map { f }, _) => map::run(*f, inputs, out),
        (Kernel::MatMul { trans_a, trans_b }, [a, b]) => matmul::run(*trans_a, *trans_b, a, b, out),
        (Kernel::MatMulGrad, [x, y]) => matmul::sum_of_products(x, y, out),
        (Kernel::Copy, [x]) => layout::copy(x, out),
        (Kernel::Transpose { perm }, [x]) => layout::transpose(perm, x, out),
        (Kernel::Slice { starts, steps }, [x]) => layout::slice(starts, steps, x, out),
        (Kernel::Concat { axis }, _) => layout::concat(*axis, inputs, out),
        (Kernel::Pad { before, mode, value }, [x]) => layout::pad(before, *mode, *value, x, out),
        (Kernel::Fill { value }, []) => {
            layout::fill(*value, out);
            Ok(())
        }
        (Kernel::Reduce { kind, axes }, [x]) => reduce::run(*kind, axes, x, out),
        (Kernel::Softmax { axis, log }, [x]) => softmax::run(*axis, *log, x, out),
        (Kernel::Normalize { axis, epsilon, rms }, [x, scale]) => {
            normalize::run(*axis, *epsilon, *rms, x, scale, None, out)
        }
        (Kernel::Normalize { axis, epsilon, rms }, [x, scale, bias]) => {
            normalize::run(*axis, *epsilon, *rms, x, scale, Some(bias), out)
        }
        (Kernel::Attention(attention), [q, k, v]) => {
            attention::run(attention, [q, k, v], None, out)
        }
        (Kernel::Attention(attention), [q, k, v, mask]) => {
            attention::run(attention, [q, k, v], Some(mask), out)
        }
        (Kernel::MixtureOfExperts(layer), _) => experts::run(layer, inputs, out),
        (Kernel::RotaryEmbedding { interleaved }, [x, cos, sin]) => {
            rotary::run(*interleaved, x, cos, sin, out)
        }
        (Kernel::Conv { window, .. }, [x, weight]) => conv::run(window, x, weight, out),
        (Kernel::ConvTranspose(op), [x, weight]) => conv_transpose::run(&op.window, x, weight, out),
        (Kernel::ConvWeightGrad(op), [g, x]) => conv_weight_grad::run(&op.window, g, x, out),
        (Kernel::PoolGrad(op), _) => pool_grad::run(op, inputs, out),
        (Kernel::Dropout(op), [x, step]) => dropout::run(op, x, step, out),
        (Kernel::Pool { kind, extents, window }, [x]) => pool::run(*kind, extents, window, x, out),
        (Kernel::Lrn { size, alpha, beta, bias }, [x]) => {
            lrn::run(*size, *alpha, *beta, *bias, x, out)
        }
        (Kernel::Gather { axis }, [data, indices]) => gather::gather(*axis, data, indices, out),
        (Kernel::GatherGrad { axis }, [index, g]) => gather::gather_grad(*axis, index, g, out),
        (Kernel::GatherNd { batch_dims }, [data, indices]) => {
            gather::gather_nd(*batch_dims, data, indices, out)
        }
        _ => Err(mismatch(kernel, inputs)),
    }
}

/// Runs a kernel that has several results.
fn run_all(kernel: &Kernel, inputs: &[In<'_>], outputs: &mut [Out<'_>]) -> Result<(), KernelError> {
    if outputs.iter().all(|out| out.bytes.is_empty()) {
        return Ok(()); // as above
    }
    match (kernel, inputs) {
        (Kernel::AttentionGrad(op), [g, q, k, v]) => {
            attention_grad::run(&op.attention, g, [q, k, v], None, outputs)
        }
        (Kernel::AttentionGrad(op), [g, q, k, v, mask]) => {
            attention_grad::run(&op.attention, g, [q, k, v], Some(mask), outputs)
        }
        (Kernel::MixtureOfExpertsGrad(op), _) => experts_grad::run(&op.layer, inputs, outputs),
        (Kernel::NormalizeGrad(op), [g, x, scale]) => normalize_grad::run(op, g, x, scale, outputs),
        _ => Err(mismatch(kernel, inputs)),
    }
}

fn mismatch(kernel: &Kernel, inputs: &[In<'_>]) -> KernelError {
    let why = format!("{} operands", inputs.len());
    KernelError::Operands { kernel: kernel_name(kernel), why }
}

fn kernel_name(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Map { .. } => "map",
        Kernel::MatMul { .. } => "matmul",
        Kernel::MatMulGrad => "matmul_grad",
        Kernel::Copy => "copy",
        Kernel::Transpose { .. } => "transpose",
        Kernel::Slice { .. } => "slice",
        Kernel::Concat { .. } => "concat",
        Kernel::Pad { .. } => "pad",
        Kernel::Fill { .. } => "fill",
        Kernel::Reduce { .. } => "reduce",
        Kernel::Softmax { .. } => "softmax",
        Kernel::Normalize { .. } => "normalize",
        Kernel::NormalizeGrad(_) => "normalize_grad",
        Kernel::Attention(_) => "attention",
        Kernel::AttentionGrad(_) => "attention_grad",
        Kernel::MixtureOfExperts(_) => "mixture_of_experts",
        Kernel::MixtureOfExpertsGrad(_) => "mixture_of_experts_grad",
        Kernel::RotaryEmbedding { .. } => "rotary_embedding",
        Kernel::OptimizerStep(_) => "optimizer_step",
        Kernel::Conv { .. } => "conv",
        Kernel::ConvTranspose(_) => "conv_transpose",
        Kernel::ConvWeightGrad(_) => "conv_weight_grad",
        Kernel::Pool { .. } => "pool",
        Kernel::PoolGrad(_) => "pool_grad",
        Kernel::Dropout(_) => "dropout",
        Kernel::Lrn { .. } => "lrn",
        Kernel::Gather { .. } => "gather",
        Kernel::GatherGrad { .. } => "gather_grad",
        Kernel::GatherNd { .. } => "gather_nd",
        Kernel::Reference { .. } => "reference",
    }
}
