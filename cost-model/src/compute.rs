//! Time of one op on one device.

use crate::error::CostError;
use crate::matmul::MatmulModel;
use crate::profile::Profile;
use planc_ir::DType;
use planc_ir::dtype;
use planc_ir::ops::{Work, WorkKind};

/// Vector operations that a softmax does on each score: scaling, masking, exponential, maximum and sum.
const SOFTMAX_FLOPS: f64 = 8.0;

/// A profile, made ready for millions of evaluations.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    name: String,
    launch_us: f64,
    bytes_per_us: f64,
    flops_per_us: f64,
    convolution_efficiency: f64,
    overlap_slowdown: f64,
    usable_bytes: u64,
    /// In the order of [`dtype::ALL`].
    matmul: Vec<MatmulModel>,
}

impl DeviceModel {
    /// From a profile.
    pub fn new(profile: &Profile) -> Result<Self, CostError> {
        profile.validate()?;
        let matmul = dtype::ALL.iter().map(|&d| {
            MatmulModel::new(profile, d).ok_or_else(|| CostError::BadProfile {
                profile: profile.name.clone(),
                why: format!("`matmul` has no entry for {d}"),
            })
        });
        Ok(Self {
            name: profile.name.clone(),
            launch_us: profile.launch_us.value,
            bytes_per_us: profile.memory.bandwidth_bytes_per_s.value / 1e6,
            flops_per_us: profile.vector_flops_per_s.value / 1e6,
            convolution_efficiency: profile.convolution_efficiency.value,
            overlap_slowdown: profile.overlap_slowdown.value,
            usable_bytes: profile.usable_bytes(),
            matmul: matmul.collect::<Result<_, _>>()?,
        })
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory that a plan may use.
    pub fn usable_bytes(&self) -> u64 {
        self.usable_bytes
    }

    /// By what factor kernels take longer while communication runs beside them.
    pub fn overlap_slowdown(&self) -> f64 {
        self.overlap_slowdown
    }

    /// Time of an op whose operands have elements of `dtype`.
    pub fn op_us(&self, work: &Work, dtype: DType) -> f64 {
        match work.kind {
            WorkKind::View => 0.0,
            WorkKind::Memory => {
                let arithmetic = work.flops / self.flops_per_us;
                self.launch_us + arithmetic.max(work.bytes / self.bytes_per_us)
            }
            WorkKind::Matmul { batch, m, n, k } => {
                self.product_us(dtype, [batch, m, n, k], work.bytes)
            }
            WorkKind::Attention { batch, queries, keys, depth, width } => {
                let scores = batch as f64 * queries as f64 * keys as f64;
                self.product_us(dtype, [batch, queries, keys, depth], work.bytes)
                    + self.product_us(dtype, [batch, queries, width, keys], 0.0)
                    + scores * SOFTMAX_FLOPS / self.flops_per_us
            }
            WorkKind::Conv { batch, m, n, k } => {
                self.product_us(dtype, [batch, m, n, k], work.bytes) / self.convolution_efficiency
            }
        }
    }

    /// Time to read and write `bytes` in all, by one kernel.
    pub fn traffic_us(&self, bytes: f64) -> f64 {
        self.launch_us + bytes / self.bytes_per_us
    }

    fn product_us(&self, dtype: DType, [batch, m, n, k]: [u64; 4], bytes: f64) -> f64 {
        self.matmul[dtype as usize].us(batch, m, n, k, bytes)
    }
}
