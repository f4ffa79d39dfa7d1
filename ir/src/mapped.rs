//! Files as byte buffers that the operating system pages in when they are read.

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::path::Path;

/// Maps a file. Slices of the result stay valid for as long as they live, and cost no memory until
/// they are read.
///
/// # Errors
/// If the file cannot be opened or mapped.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    Ok(Bytes::from_owner(map_file(&file)?))
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private. As with every mapped file, another process that
    // truncates it while it is in use ends this one; models are files that nobody edits in place.
    unsafe { memmap2::Mmap::map(file) }
}
