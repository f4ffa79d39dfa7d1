//! Kernels on the CPU: one file a class of kernels.
//!
//! A kernel is a function of operands in memory; it knows no rank and no arena. f32 and f64 are
//! computed in their own type, f16 and bf16 in f32 (rounded when stored), integers in their own type,
//! wrapping. Long sums are accumulated in f64. The program's verifier guarantees that operands fit
//! their kernel.

mod attention;
mod conv;
mod elementary;
mod experts;
mod gather;
mod gemm;
pub mod in_place;
mod lanes;
mod layout;
mod lrn;
mod map;
mod matmul;
mod normalize;
mod operand;
mod optimizer_step;
mod pool;
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
        (Kernel::Pool { kind, extents, window }, [x]) => pool::run(*kind, extents, window, x, out),
        (Kernel::Lrn { size, alpha, beta, bias }, [x]) => {
            lrn::run(*size, *alpha, *beta, *bias, x, out)
        }
        (Kernel::Gather { axis }, [data, indices]) => gather::gather(*axis, data, indices, out),
        (Kernel::GatherGrad { axis }, [index, g]) => gather::gather_grad(*axis, index, g, out),
        (Kernel::GatherNd { batch_dims }, [data, indices]) => {
            gather::gather_nd(*batch_dims, data, indices, out)
        }
        _ => Err(KernelError::Operands {
            kernel: kernel_name(kernel),
            why: format!("{} operands", inputs.len()),
        }),
    }
}

fn kernel_name(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Map { .. } => "map",
        Kernel::MatMul { .. } => "matmul",
        Kernel::Copy => "copy",
        Kernel::Transpose { .. } => "transpose",
        Kernel::Slice { .. } => "slice",
        Kernel::Concat { .. } => "concat",
        Kernel::Pad { .. } => "pad",
        Kernel::Fill { .. } => "fill",
        Kernel::Reduce { .. } => "reduce",
        Kernel::Softmax { .. } => "softmax",
        Kernel::Normalize { .. } => "normalize",
        Kernel::Attention(_) => "attention",
        Kernel::MixtureOfExperts(_) => "mixture_of_experts",
        Kernel::RotaryEmbedding { .. } => "rotary_embedding",
        Kernel::OptimizerStep(_) => "optimizer_step",
        Kernel::Conv { .. } => "conv",
        Kernel::Pool { .. } => "pool",
        Kernel::Lrn { .. } => "lrn",
        Kernel::Gather { .. } => "gather",
        Kernel::GatherGrad { .. } => "gather_grad",
        Kernel::GatherNd { .. } => "gather_nd",
        Kernel::Reference { .. } => "reference",
    }
}
