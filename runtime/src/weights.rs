//! Where ranks get their weights from.

use crate::WeightError;
use crate::region::{self, for_each_run};
use planc_ir::program::Local;
use planc_ir::{Tensor, TensorType};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A source of weights. Ranks read from it at the same time, each only its own part.
pub trait Weights: Sync {
    /// Fills `out` with a part of a weight; returns how many bytes were read to that end.
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError>;
}

fn check_type(part: &Local, found: &TensorType) -> Result<(), WeightError> {
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

/// The weights of a model in its files. What a rank does not hold is never read.
///
/// Parts are read by position, run by run, straight to where they belong. A file that shrinks while
/// it is read gives an error, which a mapped one would not.
#[derive(Debug, Default)]
pub struct ModelFiles {
    weights: BTreeMap<String, (TensorType, Place)>,
}

#[derive(Debug)]
enum Place {
    File { file: Arc<File>, path: PathBuf, offset: u64 },
    Memory(Vec<u8>),
}

impl ModelFiles {
    /// Adds a weight that lies in a file, little-endian, row-major.
    pub fn add_file(
        &mut self,
        name: &str,
        ty: TensorType,
        (path, file): (&Path, &Arc<File>),
        offset: u64,
    ) {
        let place = Place::File { file: Arc::clone(file), path: path.to_path_buf(), offset };
        self.weights.insert(name.to_string(), (ty, place));
    }

    /// Adds a weight whose bytes are at hand.
    pub fn add_bytes(&mut self, name: &str, ty: TensorType, bytes: Vec<u8>) {
        self.weights.insert(name.to_string(), (ty, Place::Memory(bytes)));
    }
}

impl Weights for ModelFiles {
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError> {
        let (ty, place) = self.weights.get(name).ok_or(WeightError::Unknown)?;
        check_type(part, ty)?;
        let whole = region::whole(ty);
        match place {
            Place::Memory(bytes) => {
                region::copy(&whole, bytes, part, out);
                Ok(out.len() as u64)
            }
            Place::File { file, path, offset } => {
                let size = ty.dtype.bytes();
                let mut read = 0;
                for_each_run(&whole, part, |from, to, count| {
                    let bytes = count as u64 * size;
                    let begin = to * size as usize;
                    let to = &mut out[begin..begin + bytes as usize];
                    read += bytes;
                    read_at(file, to, offset + from as u64 * size)
                })
                .map_err(|source| WeightError::Io { path: path.clone(), source })?;
                Ok(read)
            }
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut out: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                out = &mut out[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}
