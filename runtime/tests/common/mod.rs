//! Programs written by hand.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use planc_ir::program::{ALIGNMENT, Buffer, BufferId, Instr, Kernel, Program, Slot};
use planc_ir::sharding::reshard::Step;
use planc_ir::sharding::{AxisId, DimSharding, Mesh, ReduceKind, Sharding};
use planc_ir::{DType, Tensor, TensorType};
use std::collections::BTreeMap;

/// A program under construction; every buffer has a place of its own.
pub struct Builder(pub Program);

impl Builder {
    pub fn new(mesh: Mesh) -> Self {
        Self(Program {
            mesh,
            buffers: Vec::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            constants: Vec::new(),
            accumulators: Vec::new(),
            passes: Vec::new(),
            order: Vec::new(),
            instrs: Vec::new(),
            micro_batches: None,
            carried: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 0,
        })
    }

    pub fn buffer(&mut self, name: &str, ty: TensorType, sharding: Sharding) -> BufferId {
        let largest = sharding.max_local_shape(&ty.shape, &self.0.mesh);
        let bytes = TensorType::new(ty.dtype, largest).bytes();
        let slot = Slot { offset: self.0.arena_bytes, bytes };
        self.0.arena_bytes += bytes.next_multiple_of(ALIGNMENT);
        self.0.buffers.push(Buffer {
            name: name.to_string(),
            ty,
            sharding,
            dynamic: false,
            copies: 1,
            slot,
        });
        BufferId(self.0.buffers.len() as u32 - 1)
    }

    pub fn input(&mut self, name: &str, ty: TensorType, sharding: Sharding) -> BufferId {
        let id = self.buffer(name, ty, sharding);
        self.0.inputs.push(id);
        id
    }

    pub fn weight(&mut self, name: &str, ty: TensorType, sharding: Sharding) -> BufferId {
        let id = self.buffer(name, ty, sharding);
        self.0.weights.push(id);
        id
    }

    pub fn kernel(&mut self, kernel: Kernel, inputs: &[BufferId], output: BufferId) {
        let node = format!("node{}", self.0.instrs.len());
        let (inputs, outputs) = (inputs.to_vec(), vec![output]);
        self.0.instrs.push(Instr::Kernel { node, kernel, inputs, outputs });
    }

    pub fn step(&mut self, step: Step, input: BufferId, output: BufferId) {
        self.0.instrs.push(Instr::Reshard { step, input, output });
    }

    pub fn output(&mut self, id: BufferId) {
        self.0.outputs.push(id);
    }
}

pub fn f32s(shape: impl Into<Vec<u64>>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

pub fn whole(rank: usize) -> Sharding {
    Sharding::replicated(rank)
}

/// Each dimension split by these axes.
pub fn split(dims: &[&[u8]]) -> Sharding {
    let dim =
        |axes: &&[u8]| DimSharding::split(axes.iter().map(|&a| AxisId(a)).collect::<Vec<_>>());
    Sharding { dims: dims.iter().map(dim).collect(), partial: Vec::new() }
}

/// The same, partial sums over some axes.
pub fn partial(dims: &[&[u8]], axes: &[u8], kind: ReduceKind) -> Sharding {
    Sharding { partial: axes.iter().map(|&a| (AxisId(a), kind)).collect(), ..split(dims) }
}

pub fn axes(ids: &[u8]) -> Vec<AxisId> {
    ids.iter().map(|&a| AxisId(a)).collect()
}

/// Small integers in a fixed but irregular order, so that sums are exact and wrong ones show.
pub fn numbers(ty: TensorType, seed: u64) -> Tensor {
    Tensor::from_int(ty, |i| {
        let x = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed << 17);
        i128::from((x >> 40) % 17) - 8
    })
    .unwrap()
}

pub fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> BTreeMap<String, Tensor> {
    tensors.into_iter().map(|(n, t)| (n.to_string(), t)).collect()
}

/// `a · b` of two matrices.
pub fn product(a: &Tensor, b: &Tensor) -> Tensor {
    let (m, k, n) = (a.shape()[0], a.shape()[1], b.shape()[1]);
    Tensor::from_f64(TensorType::new(a.dtype(), [m, n]), |at| {
        let (i, j) = (at / n as usize, at % n as usize);
        (0..k as usize).map(|l| a.f64_at(i * k as usize + l) * b.f64_at(l * n as usize + j)).sum()
    })
    .unwrap()
}
