//! Checkpoints: the state of a training run in a file that appears whole or not at all.
//!
//! A checkpoint is a safetensors file `step-00000010.safetensors` that holds every tensor of state whole, under
//! its name, whatever the plan: a run may go on under another plan of the same model, on another number of
//! ranks. It is written under another name, forced to disk and renamed, so a run that is killed leaves the
//! last complete one. One run at a time writes into a folder.

use crate::safetensors_file::{self, SafetensorsError, SafetensorsFile, WriteError};
use crate::weights::check_type;
use crate::{RunError, Session, WeightError, Weights, region};
use planc_ir::TensorType;
use planc_ir::program::Local;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

const SUFFIX: &str = ".safetensors";

/// The key under which a checkpoint says how many steps led to it.
const STEP: &str = "step";

/// A checkpoint that cannot be written or used.
#[derive(Debug, Error)]
#[allow(missing_docs)] // the messages say it
pub enum CheckpointError {
    #[error("cannot access {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {why}", path.display())]
    Write { path: PathBuf, why: String },
    #[error(transparent)]
    File(#[from] SafetensorsError),
    #[error("{}: does not say how many steps led to it; it is not a checkpoint", path.display())]
    NoStep { path: PathBuf },
    #[error(
        "{}: `{name}` ({ty}) is missing; the checkpoint is one of another model or optimizer",
        path.display()
    )]
    Missing { path: PathBuf, name: String, ty: TensorType },
    #[error(
        "{}: holds `{name}`, which the plan does not train; the checkpoint is one of another model or \
         optimizer",
        path.display()
    )]
    Unknown { path: PathBuf, name: String },
    #[error("{}: `{name}` is {found}, the plan trains {expected}", path.display())]
    Type { path: PathBuf, name: String, expected: TensorType, found: TensorType },
    #[error(transparent)]
    Run(#[from] RunError),
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.to_path_buf();
    move |source| CheckpointError::Io { path, source }
}

/// Writes the session's state into a folder, which is made if it is not there; returns the file's path. Then
/// removes all checkpoints but the last `keep` (none, if that is 0).
pub fn save(session: &Session, folder: &Path, keep: usize) -> Result<PathBuf, CheckpointError> {
    fs::create_dir_all(folder).map_err(io_at(folder))?;
    remove_abandoned(folder)?;
    let name = format!("step-{:08}{SUFFIX}", session.steps_done());
    let (path, temporary) = (folder.join(&name), folder.join(format!(".{name}.tmp")));
    let file = File::create(&temporary).map_err(io_at(&temporary))?;
    let types = state_types(session)?;
    let types = types.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
    let step = session.steps_done().to_string();
    let contents = |name: &str| session.executor.weight_bytes(name);
    let written = safetensors_file::write(&file, &types, (STEP, &step), contents);
    written.map_err(|e| match e {
        WriteError::Contents(e) => CheckpointError::Run(e),
        WriteError::Io(source) => CheckpointError::Io { path: temporary.clone(), source },
        WriteError::Header(e) => {
            CheckpointError::Write { path: temporary.clone(), why: e.to_string() }
        }
    })?;
    file.sync_all().map_err(io_at(&temporary))?;
    fs::rename(&temporary, &path).map_err(io_at(&path))?;
    sync_folder(folder).map_err(io_at(folder))?;
    if keep > 0 {
        let all = list(folder)?;
        for (_, old) in &all[..all.len().saturating_sub(keep)] {
            fs::remove_file(old).map_err(io_at(old))?;
        }
    }
    Ok(path)
}

/// Takes over the state that a checkpoint holds; each rank reads only its parts. Nothing changes unless the
/// checkpoint holds exactly what the plan trains.
pub fn load(session: &mut Session, path: &Path) -> Result<(), CheckpointError> {
    let file = SafetensorsFile::open(path)?;
    let path_of = || path.to_path_buf();
    let step = file.metadata(STEP).and_then(|step| step.parse().ok());
    let step = step.ok_or_else(|| CheckpointError::NoStep { path: path_of() })?;
    let types = state_types(session)?;
    if let Some(name) = file.names().find(|&name| !types.contains_key(name)) {
        return Err(CheckpointError::Unknown { path: path_of(), name: name.to_string() });
    }
    for (name, ty) in &types {
        let (path, name, ty) = (path_of(), name.clone(), ty.clone());
        match file.tensor(&name) {
            None => return Err(CheckpointError::Missing { path, name, ty }),
            Some((found, _)) if *found != ty => {
                let found = found.clone();
                return Err(CheckpointError::Type { path, name, expected: ty, found });
            }
            Some(_) => {}
        }
    }
    let names: Vec<String> = types.into_keys().collect();
    session.executor.reload(&names, &file)?;
    session.steps_done = step;
    Ok(())
}

/// The last checkpoint in a folder, if there is one.
pub fn latest(folder: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    Ok(list(folder)?.pop().map(|(_, path)| path))
}

/// The checkpoints in a folder with their steps, in order; none if there is no such folder.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let names = names(folder)?;
    let step = |name: &String| -> Option<u64> {
        let digits = name.strip_prefix("step-")?.strip_suffix(SUFFIX)?;
        // A sign would parse as well.
        digits.bytes().all(|b| b.is_ascii_digit()).then_some(digits)?.parse().ok()
    };
    let mut all: Vec<_> =
        names.iter().filter_map(|name| Some((step(name)?, folder.join(name)))).collect();
    all.sort();
    Ok(all)
}

/// Removes what runs that were killed had begun to write.
fn remove_abandoned(folder: &Path) -> Result<(), CheckpointError> {
    for name in names(folder)? {
        if name.starts_with(".step-") && name.ends_with(&format!("{SUFFIX}.tmp")) {
            let path = folder.join(name);
            fs::remove_file(&path).map_err(io_at(&path))?;
        }
    }
    Ok(())
}

/// The names in a folder that are text; none if there is no such folder.
fn names(folder: &Path) -> Result<BTreeSet<String>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries.map_err(io_at(folder))?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        names.extend(entry.map_err(io_at(folder))?.file_name().into_string());
    }
    Ok(names)
}

/// Makes a rename in a folder last.
fn sync_folder(folder: &Path) -> io::Result<()> {
    // Elsewhere folders cannot be opened, and renames last.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// The tensors of state, by name.
fn state_types(session: &Session) -> Result<BTreeMap<String, TensorType>, RunError> {
    let ty = |name: &String| match session.executor.weight_type(name) {
        Some(ty) => Ok((name.clone(), ty.clone())),
        None => Err(RunError::NoWeight { name: name.clone() }),
    };
    session.training()?.state.iter().map(ty).collect()
}

impl Weights for SafetensorsFile {
    fn read(&self, name: &str, part: &Local, out: &mut [u8]) -> Result<u64, WeightError> {
        let (ty, bytes) = self.tensor(name).ok_or(WeightError::Unknown)?;
        check_type(part, ty)?;
        region::copy(&region::whole(ty), bytes, part, out);
        Ok(out.len() as u64)
    }
}
