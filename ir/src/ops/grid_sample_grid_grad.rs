//! The gradient of sampling an image at given places, with respect to the places.
//!
//! - **ONNX**: none; differentiating [`GridSample`] makes it.
//! - **Semantics**: inputs are the gradient of the result, the image and the grid; the result is the gradient of the
//!   grid: how the weights of pixels change with a place. Where a place that was moved inside cannot
//!   move, it is 0.
//! - **Split**: `n c p.., n c s.., n p.. k -> n p.. k`. Samples and places are parallel, channels give partial
//!   sums. Linear in the gradient and in the image.

use super::grid_sample::{GridSample, number_of};
use super::{DecoderEntry, OpDef, Work, expect_gradient, expect_inputs, factors};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a sampling by the grid. Inputs: gradient, image, grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridSampleGridGrad {
    /// The sampling.
    pub sample: GridSample,
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl OpDef for GridSampleGridGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        expect_inputs(inputs, 3)?;
        expect_gradient(&inputs[0], &self.sample.infer(&inputs[1..], &[])?[0])?;
        Ok(vec![inputs[2].clone()])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let (g, x) = (&inputs[0].shape, &inputs[1]);
        let mut rule = RuleBuilder::new();
        let n = rule.factor("n", g[0], FactorKind::Parallel);
        let c = rule.factor("c", g[1], FactorKind::Reduce(ReduceKind::Sum));
        let places = factors::named(&mut rule, &factors::INDEX_DIMS, &g[2..], |_| false);
        let places = || places.iter().copied().map(Some);
        let grid = || std::iter::once(Some(n)).chain(places()).chain([None]);
        rule.input([Some(n), Some(c)].into_iter().chain(places()));
        rule.input([Some(n), Some(c)].into_iter().chain(std::iter::repeat_n(None, x.rank() - 2)));
        rule.input(grid());
        rule.output(grid());
        rule.linear([0]);
        rule.linear([1]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let dimensions = inputs[1].rank() - 2;
        let terms = inputs[0].elements() as f64 * self.sample.pixels_of_place(dimensions);
        Work::memory(inputs, outputs, 0.0).with_flops(2.0 * terms * dimensions as f64)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (g, x, grid) = (inputs[0].to_f64s(), inputs[1], inputs[2]);
        let mut dgrid = vec![0.0; grid.len()];
        let (channels, spatial) = (x.shape()[1] as usize, &x.shape()[2..]);
        let (area, pixels) = (elements(spatial) as usize, x.to_f64s());
        let places = elements(&inputs[0].shape()[2..]) as usize;
        for p in 0..g.len().checked_div(channels).unwrap_or(0) {
            let (sample, place) = (p / places, p % places);
            for d in 0..spatial.len() {
                let changes = self.sample.pixels(grid, p, spatial, Some(d));
                let of_plane = |plane: usize| {
                    let terms = changes.iter().map(|&(at, w)| w * pixels[plane * area + at]);
                    g[plane * places + place] * terms.sum::<f64>()
                };
                let planes = sample * channels..(sample + 1) * channels;
                dgrid[number_of(p, spatial.len(), d)] = planes.map(of_plane).sum();
            }
        }
        Ok(vec![Tensor::from_f64(grid.ty().clone(), |i| dgrid[i])?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
