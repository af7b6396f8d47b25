//! Small state files that are whole whatever happens: a full disk, a kill, a crash of the machine.
//!
//! A file is written beside under a name of its own, synced, and given its name; then the folder is
//! synced, since the name is on the disk once that is. Whoever opens it finds all of the old bytes
//! or all of the new ones, and an attempt that fails leaves nothing behind.
//!
//! Also here: room for files that are mapped, where a store to a page that the disk has no room for
//! kills the process by SIGBUS.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, fsync, openat, unlinkat};

/// Puts `bytes` in place of what the file at `path` holds, if it is there. `mode` is narrowed by the
/// umask. On success the bytes survive a crash of the machine.
///
/// # Errors
/// The system refuses. The file is as it was, unless its folder could not be synced: then either
/// the old bytes or the new ones survive a crash.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (folder, name) = open_folder(path)?;
    replace_in(&folder, name, bytes, mode)
}

/// As [`replace`], for a file that is not there yet.
///
/// # Errors
/// `AlreadyExists`; or the system refuses, and there is no file.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (folder, name) = open_folder(path)?;
    create_in(&folder, name, bytes, mode)
}

/// As [`replace`], of the file `name` in a folder.
///
/// # Errors
/// As [`replace`].
pub fn replace_in(
    folder: impl AsFd,
    name: impl AsRef<OsStr>,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    let (folder, name) = (folder.as_fd(), name.as_ref());
    let draft = Draft::write(folder, name, bytes, mode)?;
    rustix::fs::renameat(folder, &draft.name, folder, name)?;
    sync(folder)
}

/// As [`create`], of the file `name` in a folder.
///
/// # Errors
/// As [`create`].
pub fn create_in(
    folder: impl AsFd,
    name: impl AsRef<OsStr>,
    bytes: &[u8],
    mode: u32,
) -> io::Result<()> {
    let (folder, name) = (folder.as_fd(), name.as_ref());
    let draft = Draft::write(folder, name, bytes, mode)?;
    // Whoever was faster keeps it.
    rustix::fs::linkat(folder, &draft.name, folder, name, AtFlags::empty())?;
    drop(draft);
    sync(folder).inspect_err(|_| {
        // The caller is told that there is none; the first error is the one to tell.
        remove(folder, name);
    })
}

/// Has the disk keep room for the first `len_bytes` of a file, holes included. What is in it stays.
///
/// # Errors
/// `StorageFull` or `QuotaExceeded`, or the system refuses for another reason. The file may be
/// longer than before.
pub fn allocate(file: &File, len_bytes: u64) -> io::Result<()> {
    allocate_range(file, 0..len_bytes)
}

/// As [`allocate`], of bytes `range` of a file. Nobody stores to them meanwhile: where the file system cannot
/// be asked, they are read and written. The others may be in use.
///
/// # Errors
/// As [`allocate`].
pub fn allocate_range(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let len_bytes = range.end - range.start;
    match fallocate(file, FallocateFlags::empty(), range.start, len_bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => fill_holes(file, range),
        Err(error) => Err(error.into()),
    }
}

/// Has the disk keep room where the file system cannot be asked to: every block is written to, at its first
/// byte of the range.
fn fill_holes(file: &File, range: Range<u64>) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let (len_bytes, end) = (range.end, file.metadata()?.len());
    let mut byte = [0];
    let blocks = (range.start / BLOCK_BYTES..).map(|block| block * BLOCK_BYTES);
    for block in blocks.take_while(|&block| block < len_bytes) {
        let offset = block.max(range.start);
        byte[0] = 0;
        if offset < end {
            file.read_at(&mut byte, offset)?;
        }
        file.write_at(&byte, offset)?;
    }
    if end < len_bytes {
        file.set_len(len_bytes)?;
    }
    // A file system that gives room late refuses here.
    file.sync_data()
}

/// No file system of Linux has smaller blocks than this that could be left out.
const BLOCK_BYTES: u64 = 512;

/// Bytes on the disk under a name that nobody else writes to. It goes when this is dropped, unless
/// it was renamed.
struct Draft<'a> {
    folder: BorrowedFd<'a>,
    name: OsString,
}

impl<'a> Draft<'a> {
    fn write(folder: BorrowedFd<'a>, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<Self> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let count = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}-{count}.new", std::process::id()));
        let draft = Self {
            folder,
            name: beside,
        };
        // What a process of the same number left when it was killed is written over.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, &draft.name, flags, Mode::from_raw_mode(mode))?;
        let mut file = File::from(file);
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(draft)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // It may have its other name by now.
        remove(self.folder, &self.name);
    }
}

/// The folder of a file, and the file's name there.
fn open_folder(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok((File::open(folder)?.into(), name))
}

/// Takes a name away that may not be there.
fn remove(folder: BorrowedFd<'_>, name: &OsStr) {
    drop(unlinkat(folder, name, AtFlags::empty()).map_err(io::Error::from));
}

/// The names in a folder are on the disk once this returned.
fn sync(folder: BorrowedFd<'_>) -> io::Result<()> {
    // The handle may be one that is only good for looking things up.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fsync(openat(folder, ".", flags, Mode::empty())?)?)
}

#[cfg(test)]
mod tests;
