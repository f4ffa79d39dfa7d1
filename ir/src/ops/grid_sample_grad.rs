//! The gradient of sampling an image at given places, with respect to the image.
//!
//! - **ONNX**: none; differentiating [`GridSample`] makes it.
//! - **Semantics**: inputs are the gradient of the result and the grid. What a place has got goes to the pixels that
//!   it was made of, by their weights.
//! - **Split**: `n c p.., n p.. k -> n c s..`. Samples and channels are parallel, places give partial sums.
//!   Linear in the gradient.

use super::grid_sample::GridSample;
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs, factors};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::check_size;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a sampling by the image. Inputs: gradient, grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSampleGrad {
    /// The sampling.
    pub sample: GridSample,
    /// The spatial extents of the image.
    pub spatial: Vec<u64>,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl GridSampleGrad {
    /// The type of the image.
    fn x(&self, gradient: &TensorType) -> TensorType {
        let outer = &gradient.shape[..gradient.rank().min(2)];
        TensorType::new(gradient.dtype, [outer, &self.spatial].concat())
    }
}

impl OpDef for GridSampleGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 2)?;
        let x = self.x(&inputs[0]);
        let result = self.sample.infer(&[x.clone(), inputs[1].clone()], &[])?;
        expect_gradient(&inputs[0], &result[0])?;
        Ok(vec![x])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let g = &inputs[0].shape;
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", g[0], FactorKind::Parallel);
        let c = rule.factor("c", g[1], FactorKind::Parallel);
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let places = g[2..].iter().zip(factors::INDEX_DIMS);
        let places: Vec<_> = places.map(|(&p, name)| Some(rule.factor(name, p, sum))).collect();
        rule.input([Some(n), Some(c)].into_iter().chain(places.iter().copied()));
        rule.input(std::iter::once(Some(n)).chain(places).chain([None]));
        let image = std::iter::repeat_n(None, self.spatial.len());
        rule.output([Some(n), Some(c)].into_iter().chain(image));
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let terms = inputs[0].elements() as f64 * self.sample.pixels_of_place(self.spatial.len());
        Work::memory(inputs, outputs, 0.0).with_flops(2.0 * terms)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (g, grid) = (inputs[0].to_f64s(), inputs[1]);
        let ty = self.x(inputs[0].ty());
        let mut dx = vec![0.0; check_size(&ty)?];
        let (channels, area) = (ty.shape[1] as usize, elements(&self.spatial) as usize);
        let places = elements(&inputs[0].shape()[2..]) as usize;
        for p in 0..g.len().checked_div(channels).unwrap_or(0) {
            let pixels = self.sample.pixels(grid, p, &self.spatial, None);
            let (sample, place) = (p / places, p % places);
            for plane in sample * channels..(sample + 1) * channels {
                let g = g[plane * places + place];
                for &(at, w) in &pixels {
                    dx[plane * area + at] += w * g;
                }
            }
        }
        Ok(vec![Tensor::from_f64(ty, |i| dx[i])?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
