//! What an op costs, in units that hardware profiles understand.

use crate::TensorType;

/// What bounds an op's time on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkKind {
    /// A (batched) matrix product `batch × [m, k] · [k, n]`, or what a convolution becomes as an
    /// implicit one.
    Matmul {
        /// Independent products.
        batch: u64,
        /// Rows of the left operand.
        m: u64,
        /// Columns of the right operand.
        n: u64,
        /// Contracted extent.
        k: u64,
    },
    /// A convolution as an implicit matrix product: `m` output positions × `n` output channels ×
    /// `k` = input channels × window, for each of `batch` groups.
    Conv {
        /// Groups.
        batch: u64,
        /// Output positions (batch × spatial).
        m: u64,
        /// Output channels of a group.
        n: u64,
        /// Input channels of a group × window.
        k: u64,
    },
    /// Attention: for each of `batch` heads `[queries, depth] · [depth, keys]`, a softmax, and
    /// `[queries, keys] · [keys, width]`. The scores stay on the chip.
    Attention {
        /// Independent heads.
        batch: u64,
        /// Queries of a head.
        queries: u64,
        /// Keys of a head.
        keys: u64,
        /// Elements of a query and of a key.
        depth: u64,
        /// Elements of a value.
        width: u64,
    },
    /// Bounded by memory traffic.
    Memory,
    /// Changes only the description of its input: no kernel runs.
    View,
}

impl WorkKind {
    /// Whether it is dominated by multiply-adds of matrices.
    pub const fn is_matrix(self) -> bool {
        matches!(self, Self::Matmul { .. } | Self::Conv { .. } | Self::Attention { .. })
    }
}

/// Arithmetic and traffic of one application of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// What bounds it.
    pub kind: WorkKind,
    /// Floating-point operations; a multiply-add counts 2.
    pub flops: f64,
    /// Bytes read and written, each operand once.
    pub bytes: f64,
}

impl Work {
    /// A convolution, or a gradient of one, as `batch × [m, k] · [k, n]`.
    pub fn conv([batch, m, n, k]: [u64; 4], inputs: &[TensorType], outputs: &[TensorType]) -> Self {
        Self {
            kind: WorkKind::Conv { batch, m, n, k },
            flops: 2.0 * batch as f64 * m as f64 * n as f64 * k as f64,
            bytes: traffic(inputs, outputs),
        }
    }

    /// A memory-bound op that does `flops_per_element` on each element of its first output and
    /// reads and writes every operand once.
    pub fn memory(inputs: &[TensorType], outputs: &[TensorType], flops_per_element: f64) -> Self {
        let elements = outputs.first().map_or(0, TensorType::elements);
        Self {
            kind: WorkKind::Memory,
            flops: elements as f64 * flops_per_element,
            bytes: traffic(inputs, outputs),
        }
    }

    /// The same with another count of floating-point operations.
    #[must_use]
    pub const fn with_flops(mut self, flops: f64) -> Self {
        self.flops = flops;
        self
    }

    /// No work at all.
    pub const fn view() -> Self {
        Self { kind: WorkKind::View, flops: 0.0, bytes: 0.0 }
    }
}

/// Bytes of all operands, each once.
pub fn traffic(inputs: &[TensorType], outputs: &[TensorType]) -> f64 {
    inputs.iter().chain(outputs).map(|t| t.bytes() as f64).sum()
}

/// The work of all nodes of a body together.
pub fn body_work(body: &crate::Graph) -> Work {
    let start = Work { kind: WorkKind::Memory, flops: 0.0, bytes: 0.0 };
    body.node_ids().filter(|&id| !body.is_dynamic(id)).fold(start, |sum, id| {
        let work = body.node(id).op.work(&body.input_types(id), &body.output_types(id));
        Work { kind: sum.kind, flops: sum.flops + work.flops, bytes: sum.bytes + work.bytes }
    })
}
