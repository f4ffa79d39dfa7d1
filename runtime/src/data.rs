//! Training data: a safetensors file that holds the inputs of micro-batches one after the other.

use crate::safetensors_file::{SafetensorsError, SafetensorsFile};
use planc_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;
use thiserror::Error;

/// A file that does not hold what a plan takes.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum DataError {
    #[error(transparent)]
    File(#[from] SafetensorsError),
    #[error("the data has no tensor `{name}`, which the plan takes as {ty}; it has {}", found.join(", "))]
    Missing { name: String, ty: TensorType, found: Vec<String> },
    #[error(
        "`{name}` is {found} in the data, the plan takes {expected}: expected that with one more dimension \
         in front, or a multiple of its first dimension"
    )]
    Type { name: String, expected: TensorType, found: TensorType },
    #[error("`{name}` holds no batch")]
    Empty { name: String },
    #[error(
        "`{name}` holds {batches} batches, `{other}` {other_batches}; all must hold as many, or one"
    )]
    Batches { name: String, batches: u64, other: String, other_batches: u64 },
    #[error("`{name}`: {source}")]
    Tensor { name: String, source: planc_ir::EvalError },
}

/// The inputs of micro-batches, in a file.
#[derive(Debug)]
pub struct TrainingData {
    file: SafetensorsFile,
    /// By name, the type in a batch and how many batches there are.
    inputs: BTreeMap<String, (TensorType, u64)>,
    batches: u64,
}

impl TrainingData {
    /// Opens a file and checks that it holds the inputs. A tensor has one dimension more than the input, in
    /// front, or its first extent is a multiple of the input's: it holds that many batches. All hold equally
    /// many, or one, which then serves in every batch. Tensors that are no inputs are not looked at.
    pub fn open(path: &Path, inputs: &BTreeMap<&str, &TensorType>) -> Result<Self, DataError> {
        let file = SafetensorsFile::open(path)?;
        let mut counted = BTreeMap::new();
        let mut most: Option<(String, u64)> = None;
        for (&name, &ty) in inputs {
            let (name, expected) = (name.to_string(), ty.clone());
            let Some((found, _)) = file.tensor(&name) else {
                let found = file.names().map(String::from).collect();
                return Err(DataError::Missing { name, ty: expected, found });
            };
            let Some(batches) = batches(found, ty) else {
                let found = found.clone();
                return Err(DataError::Type { name, expected, found });
            };
            match &most {
                _ if batches == 0 => return Err(DataError::Empty { name }),
                Some((other, other_batches)) if *other_batches > 1 => {
                    if batches > 1 && batches != *other_batches {
                        let (other, other_batches) = (other.clone(), *other_batches);
                        return Err(DataError::Batches { name, batches, other, other_batches });
                    }
                }
                _ => most = Some((name.clone(), batches)),
            }
            counted.insert(name, (expected, batches));
        }
        Ok(Self { file, inputs: counted, batches: most.map_or(1, |(_, n)| n) })
    }

    /// How many batches there are.
    pub const fn batches(&self) -> u64 {
        self.batches
    }

    /// The inputs of batch `n`; after the last comes the first again.
    pub fn batch(&self, n: u64) -> Result<BTreeMap<String, Tensor>, DataError> {
        let tensor = |(name, (ty, batches)): (&String, &(TensorType, u64))| {
            let bytes = self.file.tensor(name).map_or(&[][..], |(_, bytes)| bytes);
            let length = ty.bytes() as usize;
            let begin = (n % batches) as usize * length;
            match Tensor::from_bytes(ty.clone(), &bytes[begin..begin + length]) {
                Ok(tensor) => Ok((name.clone(), tensor)),
                Err(source) => Err(DataError::Tensor { name: name.clone(), source }),
            }
        };
        self.inputs.iter().map(tensor).collect()
    }
}

/// How many batches of type `ty` a tensor of type `found` holds.
fn batches(found: &TensorType, ty: &TensorType) -> Option<u64> {
    if found.dtype != ty.dtype {
        return None;
    }
    match (&found.shape[..], &ty.shape[..]) {
        ([n, rest @ ..], shape) if rest == shape => Some(*n),
        ([all, rest @ ..], [rows, shape @ ..]) if rest == shape => match all.checked_rem(*rows) {
            None => (all == rows).then_some(1), // without elements
            Some(rest) => (rest == 0).then_some(all / rows),
        },
        (found, shape) => (found == shape).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planc_ir::DType;

    #[test]
    fn batches_lie_behind_each_other() {
        let f32s = |shape: &[u64]| TensorType::new(DType::F32, shape);
        for (found, ty, expected) in [
            (&[7, 2, 3][..], &[2, 3][..], Some(7)),
            (&[6, 3], &[2, 3], Some(3)),
            (&[2, 3], &[2, 3], Some(1)),
            (&[5, 3], &[2, 3], None),
            (&[6, 4], &[2, 3], None),
            (&[4, 1, 2, 3], &[2, 3], None),
            (&[4], &[], Some(4)),
            (&[], &[], Some(1)),
            (&[], &[2], None),
            (&[0, 3], &[2, 3], Some(0)),
            (&[0, 3], &[0, 3], Some(1)),
            (&[1, 3], &[0, 3], None),
        ] {
            assert_eq!(batches(&f32s(found), &f32s(ty)), expected, "{found:?} {ty:?}");
        }
        assert_eq!(batches(&f32s(&[4]), &TensorType::new(DType::I64, [2])), None);
    }
}
