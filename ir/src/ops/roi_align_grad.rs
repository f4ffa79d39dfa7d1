//! The gradient of pooling over regions, with respect to the image.
//!
//! - **ONNX**: none; differentiating [`RoiAlign`] makes it.
//! - **Semantics**: inputs are the gradient of the result, the regions and their samples, and the image for
//!   maxima; the result is the gradient of the image. What a bin has got goes to the pixels of its points by their
//!   weights, or to the pixel of the first of its largest terms.
//! - **Split**: `r c bh bw, r 4, r -> n c h w`. Channels are parallel, regions give partial sums. Linear in the
//!   gradient.

use super::lanes::floats;
use super::roi_align::{RoiAlign, terms};
use super::{DecoderEntry, OpDef, Work, expect_gradient};
use crate::graph::{TensorType, elements};
use crate::program::Kernel;
use crate::sharding::{FactorKind, FactorRule, ReduceKind, RuleBuilder};
use crate::tensor::check_size;
use crate::{EvalError, OpError, Tensor};
use serde::{Deserialize, Serialize};

/// The gradient of a pooling over regions. Inputs: gradient, regions, samples, and the image for maxima.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoiAlignGrad {
    /// The pooling.
    pub align: RoiAlign,
    /// Samples, height and width of the image.
    pub image: [u64; 3],
}

/// ONNX operators decoded here.
pub const DECODERS: &[DecoderEntry] = &[];

impl RoiAlignGrad {
    /// The type of the image.
    fn x(&self, gradient: &TensorType) -> Result<TensorType, OpError> {
        let [n, height, width] = self.image;
        let &[_, channels, ..] = &gradient.shape[..] else {
            let found = gradient.rank();
            return Err(OpError::Rank { index: 0, found, expected: "4".into() });
        };
        Ok(TensorType::new(gradient.dtype, [n, channels, height, width]))
    }
}

impl OpDef for RoiAlignGrad {
    fn infer(
        &self,
        inputs: &[TensorType],
        _: &[Option<&Tensor>],
    ) -> Result<Vec<TensorType>, OpError> {
        super::expect_inputs(inputs, if self.align.largest { 4 } else { 3 })?;
        let x = self.x(&inputs[0])?;
        let operands = [x.clone(), inputs[1].clone(), inputs[2].clone()];
        expect_gradient(&inputs[0], &self.align.infer(&operands, &[])?[0])?;
        if let Some(given) = inputs.get(3) {
            expect_gradient(&x, given)?;
        }
        Ok(vec![x])
    }

    fn rule(&self, inputs: &[TensorType], _: &[TensorType]) -> FactorRule {
        let mut rule = RuleBuilder::new();
        let sum = FactorKind::Reduce(ReduceKind::Sum);
        let r = rule.factor("r", inputs[1].shape[0], sum);
        let c = rule.factor("c", inputs[0].shape[1], FactorKind::Parallel);
        rule.input([Some(r), Some(c), None, None]);
        rule.input([Some(r), None]);
        rule.input([Some(r)]);
        if self.align.largest {
            rule.input([None, Some(c), None, None]);
        }
        rule.output([None, Some(c), None, None]);
        rule.linear([0]);
        rule.build()
    }

    fn work(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Work {
        let points = self.align.points.max(1) as f64;
        let flops = inputs[0].elements() as f64 * 8.0 * points * points;
        Work::memory(inputs, outputs, 0.0).with_flops(flops)
    }

    fn eval(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let ty = self.x(inputs[0].ty()).map_err(|e| EvalError::Invalid(e.to_string()))?;
        let g = inputs[0].to_f64s();
        let mut dx = vec![0.0; check_size(&ty)?];
        let pixels = inputs.get(3).map(|x| x.to_f64s());
        let (channels, width) = (ty.shape[1] as usize, self.image[2] as usize);
        let area = elements(&self.image[1..]) as usize;
        let mut g = g.iter();
        for region in self.align.regions(inputs[1], inputs[2], self.image)? {
            for channel in 0..channels {
                let start = (region.sample * channels + channel) * area;
                let bins = region.rows.iter().flat_map(|ys| region.columns.iter().map(move |xs| (ys, xs)));
                for ((ys, xs), g) in bins.zip(&mut g) {
                    let weighed = terms(ys, xs, width);
                    if let Some(pixels) = &pixels {
                        let plane = &pixels[start..][..area];
                        let value = |t: Option<(usize, f64)>| t.map_or(0.0, |(at, w)| w * plane[at]);
                        let larger = |a, b| if value(b) > value(a) { b } else { a };
                        if let Some((at, w)) = weighed.reduce(larger).flatten() {
                            dx[start + at] += w * g;
                        }
                    } else {
                        let share = g / (ys.len() * xs.len()).max(1) as f64;
                        weighed.flatten().for_each(|(at, w)| dx[start + at] += w * share);
                    }
                }
            }
        }
        Ok(vec![floats(&ty, &ty.shape, &dx)?])
    }

    fn lower(&self) -> Kernel {
        Kernel::Reference { op: Box::new(self.clone().into()) }
    }
}
