//! Small state files that stay complete through a full disk, a kill or a crash of the machine.
//!
//! A file is written under a temporary name, synced and renamed; then the folder is synced, which
//! makes the name durable. A reader finds all of the old bytes or all of the new ones, and a failed
//! attempt leaves nothing behind.
//!
//! Also here: [journals](journal), and preallocation for mapped files, where a store to a page without
//! disk space would kill the process by SIGBUS.

#![forbid(unsafe_code)]

pub mod journal;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FallocateFlags, Mode, OFlags, fallocate, fsync, openat, unlinkat};

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
    replace_after(folder, name, bytes, mode, || Ok(()))
}

/// As [`replace_in`], unless `look` ends in an error. It looks when the new bytes are on the disk,
/// which may take long, and only their name is to change.
fn replace_after(
    folder: impl AsFd,
    name: impl AsRef<OsStr>,
    bytes: &[u8],
    mode: u32,
    look: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let (folder, name) = (folder.as_fd(), name.as_ref());
    let draft = Draft::write(folder, name, bytes, mode)?;
    look()?;
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

/// Puts a copy of the file `from` in place of what is at `to`, which may be `from` itself: at any
/// time it is all of one or of the other. Through a link it goes to where that leads. What is no
/// file, as a pipe or a device, is written to.
///
/// # Errors
/// As [`replace`].
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let to = match to.canonicalize() {
        Ok(there) if there.is_file() => there,
        Ok(there) => return std::fs::copy(from, there).map(drop),
        // Not there yet, or out of reach: then the copy is as well.
        Err(_) => to.to_owned(),
    };
    let mut source = File::open(from)?;
    let mut copy = Replacement::begin(&to, 0o600)?;
    io::copy(&mut source, copy.file())?;
    copy.commit()
}

/// Has the name of a file survive a crash of the machine, as its synced bytes do. For one that was
/// made by other means than those here.
///
/// # Errors
/// The system refuses: a crash may take the file away.
pub fn keep_name(path: &Path) -> io::Result<()> {
    let (folder, _) = open_folder(path)?;
    sync(folder.as_fd())
}

/// As [`remove_drafts_in`], of the file at `path`.
///
/// # Errors
/// As [`remove_drafts_in`].
pub fn remove_drafts(path: &Path) -> io::Result<()> {
    let (folder, name) = open_folder(path)?;
    remove_drafts_in(folder, name)
}

/// Removes drafts of the file `name` that processes left in a folder when they were killed. Nobody else
/// writes that file meanwhile.
///
/// # Errors
/// The system refuses.
pub fn remove_drafts_in(folder: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<()> {
    let folder = folder.as_fd();
    for entry in Dir::new(open_listed(folder)?)? {
        let entry = entry?;
        let found = OsStr::from_bytes(entry.file_name().to_bytes());
        if is_draft_of(found, name.as_ref()) {
            match unlinkat(folder, found, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
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
    // tmpfs ends with an error when a signal comes meanwhile.
    let allocated = rustix::io::retry_on_intr(|| {
        fallocate(file, FallocateFlags::empty(), range.start, len_bytes)
    });
    match allocated {
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

/// A long file that is written bit by bit, and then put in place of what is at its path. Dropped before that,
/// it leaves nothing behind.
#[derive(Debug)]
pub struct Replacement {
    folder: OwnedFd,
    name: OsString,
    draft: OsString,
    file: File,
}

impl Replacement {
    /// An empty file beside `path`, in a folder that is there. `mode` is narrowed by the umask.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        let (folder, name) = open_folder(path)?;
        let draft = draft_name(name);
        let file = open_draft(folder.as_fd(), &draft, mode)?;
        let name = name.to_owned();
        Ok(Self {
            folder,
            name,
            draft,
            file,
        })
    }

    /// What is written so far; it may be written to anywhere.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts it in place, once. On success its bytes survive a crash of the machine.
    ///
    /// # Errors
    /// As [`replace`].
    pub fn commit(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        rustix::fs::renameat(&self.folder, &self.draft, &self.folder, &self.name)?;
        sync(self.folder.as_fd())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // It may have its other name by now.
        remove(self.folder.as_fd(), &self.draft);
    }
}

/// A name beside `name` that nobody else writes to.
fn draft_name(name: &OsStr) -> OsString {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let count = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}-{count}.new", std::process::id()));
    beside
}

/// Whether [`draft_name`] made a name of `name`, in any process.
fn is_draft_of(found: &OsStr, name: &OsStr) -> bool {
    let numbers = found
        .as_bytes()
        .strip_prefix(b".")
        .and_then(|rest| rest.strip_prefix(name.as_bytes()))
        .and_then(|rest| rest.strip_prefix(b"."))
        .and_then(|rest| rest.strip_suffix(b".new"));
    let mut parts = numbers
        .into_iter()
        .flat_map(|rest| rest.split(|&byte| byte == b'-'));
    let mut is_number = || matches!(parts.next(), Some(part) if !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    is_number() && is_number() && parts.next().is_none()
}

fn open_draft(folder: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<File> {
    // What a process of the same number left when it was killed is written over.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::from_raw_mode(mode))?.into())
}

/// Bytes on the disk under a name that nobody else writes to. It goes when this is dropped, unless
/// it was renamed.
struct Draft<'a> {
    folder: BorrowedFd<'a>,
    name: OsString,
}

impl<'a> Draft<'a> {
    fn write(folder: BorrowedFd<'a>, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<Self> {
        let draft = Self {
            folder,
            name: draft_name(name),
        };
        let mut file = open_draft(folder, &draft.name, mode)?;
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
    Ok(fsync(open_listed(folder)?)?)
}

/// The folder once more: the handle may be one that is only good for looking things up.
fn open_listed(folder: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(folder, ".", flags, Mode::empty())?)
}

#[cfg(test)]
mod tests;
