//! Where ranks get their weights from.

use crate::region;
use crate::{RunError, WeightError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use planc_ir::plan::{Source, Weight};
use planc_ir::program::Local;
use planc_ir::weights::ModelFiles;
use planc_ir::{DType, Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;

/// A source of weights. Ranks read from it at the same time, each only its own part.
pub trait Weights: Sync {
    /// Fills `out` with a part of a weight; returns how many bytes were read to that end.
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError>;
}

pub(crate) fn check_type(part: &Local, found: &TensorType) -> Result<(), WeightError> {
    let expected = TensorType::new(part.ty.dtype, part.global.clone());
    if expected == *found {
        Ok(())
    } else {
        Err(WeightError::Type { expected, found: found.clone() })
    }
}

/// Weights in memory.
impl Weights for BTreeMap<String, Tensor> {
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError> {
        let tensor = self.get(name).ok_or(WeightError::Unknown)?;
        check_type(part, tensor.ty())?;
        region::copy(&region::whole(tensor.ty()), &tensor.to_bytes(), part, out);
        Ok(out.len() as u64)
    }
}

/// The weights that a plan lists. Files are mapped when a rank first reads from them, and only the
/// pages of its part are touched.
#[derive(Debug)]
pub struct PlanWeights {
    files: ModelFiles,
    weights: BTreeMap<String, (TensorType, Place)>,
}

#[derive(Debug)]
enum Place {
    File { location: Option<String>, offset: u64 },
    Memory(Vec<u8>),
    Fill(f64),
    Cast { from: DType, place: Box<Place> },
}

impl Place {
    fn new(name: &str, ty: &TensorType, source: &Source) -> Result<Self, RunError> {
        Ok(match source {
            Source::File { location, offset } => {
                Self::File { location: location.clone(), offset: *offset }
            }
            Source::Inline(data) => Self::Memory(decode("weight", name, ty, data)?),
            Source::Fill(value) => Self::Fill(*value),
            Source::Cast { from, source } => {
                let stored = TensorType::new(*from, ty.shape.clone());
                Self::Cast { from: *from, place: Box::new(Self::new(name, &stored, source)?) }
            }
        })
    }
}

impl PlanWeights {
    /// The weights of a plan for the model at `model`.
    pub fn new(model: &Path, weights: &[Weight]) -> Result<Self, RunError> {
        let weights = weights
            .iter()
            .map(|w| {
                let place = Place::new(&w.name, &w.ty, &w.source)?;
                Ok((w.name.clone(), (w.ty.clone(), place)))
            })
            .collect::<Result<_, RunError>>()?;
        Ok(Self { files: ModelFiles::new(model), weights })
    }
}

/// The bytes of a tensor that a plan holds.
pub(crate) fn decode(
    what: &'static str,
    name: &str,
    ty: &TensorType,
    data: &str,
) -> Result<Vec<u8>, RunError> {
    let unsound = |why| RunError::Contents { what, name: name.to_string(), why };
    let bytes = STANDARD.decode(data).map_err(|e| unsound(e.to_string()))?;
    if bytes.len() as u64 == ty.bytes() {
        Ok(bytes)
    } else {
        Err(unsound(format!("{} bytes for {ty}", bytes.len())))
    }
}

impl Weights for PlanWeights {
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError> {
        let (ty, place) = self.weights.get(name).ok_or(WeightError::Unknown)?;
        check_type(part, ty)?;
        self.fill(place, ty, part, out)?;
        Ok(out.len() as u64)
    }
}

impl PlanWeights {
    /// Fills `out` with a part of what lies at a place, a tensor of type `ty`.
    fn fill(
        &self,
        place: &Place,
        ty: &TensorType,
        part: &Local,
        out: &mut [u8],
    ) -> Result<(), WeightError> {
        let whole = region::whole(ty);
        match place {
            Place::Memory(bytes) => region::copy(&whole, bytes, part, out),
            Place::File { location, offset } => {
                let bytes = self.files.slice(location.as_deref(), *offset, ty.bytes())?;
                region::copy(&whole, &bytes, part, out);
            }
            Place::Fill(value) => {
                let element = Tensor::from_f64(TensorType::new(ty.dtype, []), |_| *value)?;
                let element = element.to_bytes();
                out.chunks_exact_mut(element.len()).for_each(|x| x.copy_from_slice(&element));
            }
            Place::Cast { from, place } => {
                let stored =
                    Local { ty: TensorType::new(*from, part.ty.shape.clone()), ..part.clone() };
                let mut bytes = vec![0; stored.ty.bytes() as usize];
                self.fill(place, &TensorType::new(*from, ty.shape.clone()), &stored, &mut bytes)?;
                let stored = Tensor::from_bytes(stored.ty, &bytes)?;
                let cast = Tensor::from_f64(part.ty.clone(), |i| stored.f64_at(i))?;
                out.copy_from_slice(&cast.to_bytes());
            }
        }
        Ok(())
    }
}
