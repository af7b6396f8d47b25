//! Opening what is behind a volume: a file that is made, or a device that is blank or was ours.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapOptions;

use super::device::{Device, Uring};
use crate::PAGE_BYTES;

/// A disk behind a volume, and how the volume's extents are mapped with it.
pub struct Backing {
    /// One per disk queue.
    pub devices: Vec<Box<dyn Device>>,
    /// Pages that each queue has on their way to the disk at most; a write that finds none free waits.
    pub entries: u32,
    /// An extent is mapped when its page I/Os per second, smoothed, pass this (`HotSlab`); with 0, on
    /// its first write.
    pub hot_slab: f64,
    /// And given back when they fall below this (`ColdSlab`); with 0, never.
    pub cold_slab: f64,
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Backing")
            .field("queues", &self.devices.len())
            .field("entries", &self.entries)
            .field("hot_slab", &self.hot_slab)
            .field("cold_slab", &self.cold_slab)
            .finish()
    }
}

/// Why a backing store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// The system refused.
    #[error("backing store {path}: {what}: {source}")]
    Os {
        /// The file or device.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// There is something in it that is not ours.
    #[error(
        "backing store {path}: it holds something else, which would be overwritten; name another, or remove what it holds"
    )]
    Foreign {
        /// The file or device.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("backing store {path}: another process uses it")]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// A device is too small.
    #[error("backing store {path}: {has_bytes} bytes, the volume needs {needed_bytes}")]
    Small {
        /// The device.
        path: PathBuf,
        /// What it has.
        has_bytes: u64,
        /// What the volume takes on it.
        needed_bytes: u64,
    },
    /// It is neither file nor block device.
    #[error("backing store {path}: neither a file nor a block device")]
    Kind {
        /// What was named.
        path: PathBuf,
    },
}

/// Pages in the first place of a queue; 16 MiB.
const ENTRIES: u32 = 4096;
/// As in the paper, table of parameters.
const HOT_SLAB: f64 = 20.0;
/// One queue keeps a disk busy; a second one lets reads of one extent pass the writes of another.
const QUEUES: usize = 2;
/// In the page after the volume's last: whose it is.
const SIGNATURE: &[u8; 16] = b"cenote backing 1";
/// What must be zero in front of a device that does not have the signature.
const BLANK_BYTES: usize = 1 << 16;

impl Backing {
    /// A file, made if there is none, or a block device, for a volume of `size_bytes`. Its content
    /// is given up: the volume decides what of it is read.
    ///
    /// # Errors
    /// [`BackingError`]; nothing of another's was changed then.
    pub fn open(path: &Path, size_bytes: u64) -> Result<Self, BackingError> {
        let file = Arc::new(open(path, size_bytes)?);
        let os = |source| BackingError::Os {
            path: path.to_owned(),
            what: "make an io_uring (sysctl kernel.io_uring_disabled, or the container, may forbid it)",
            source,
        };
        let devices: io::Result<Vec<Box<dyn Device>>> = (0..QUEUES)
            .map(|_| Ok(Box::new(Uring::new(Arc::clone(&file))?) as Box<dyn Device>))
            .collect();
        Ok(Self::over(devices.map_err(os)?))
    }

    /// The same over any devices, one per queue.
    #[must_use]
    pub fn over(devices: Vec<Box<dyn Device>>) -> Self {
        Self {
            devices,
            entries: ENTRIES,
            hot_slab: HOT_SLAB,
            cold_slab: 0.0,
        }
    }
}

/// Whether this system lets a volume have a backing store at all.
///
/// # Errors
/// It allows no `io_uring`.
pub fn backing_works() -> io::Result<()> {
    io_uring::IoUring::new(1).map(drop)
}

fn open(path: &Path, size_bytes: u64) -> Result<File, BackingError> {
    let os = |what| {
        move |source| BackingError::Os {
            path: path.to_owned(),
            what,
            source,
        }
    };
    let needed_bytes = size_bytes + PAGE_BYTES as u64;
    let is_device = match path.metadata() {
        Ok(meta) if meta.file_type().is_block_device() => true,
        Ok(meta) if meta.is_file() => false,
        Ok(_) => return Err(BackingError::Kind { path: path.into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(os("look at it")(error)),
    };
    // Of a device, O_EXCL refuses one that is mounted or swapped to.
    let exclusive = if is_device { libc::O_EXCL } else { 0 };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(!is_device)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => BackingError::InUse { path: path.into() },
            Some(libc::EINVAL) => {
                os("open it past the page cache (does its file system do direct I/O?)")(error)
            }
            _ => os("open it")(error),
        })?;
    // SAFETY: the descriptor is open for the call.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(BackingError::InUse { path: path.into() });
    }
    let has_bytes = file.seek(SeekFrom::End(0)).map_err(os("measure it"))?;
    if is_device && has_bytes < needed_bytes {
        let path = path.to_owned();
        return Err(BackingError::Small {
            path,
            has_bytes,
            needed_bytes,
        });
    }
    if !(is_blank(&mut file, has_bytes, is_device).map_err(os("read it"))?
        || is_ours(&file, has_bytes, is_device, size_bytes).map_err(os("read it"))?)
    {
        return Err(BackingError::Foreign { path: path.into() });
    }
    if !is_device {
        reserve(&file, needed_bytes).map_err(os("reserve room for it"))?;
    }
    let mut page = buffer(PAGE_BYTES).map_err(os("get memory"))?;
    page[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
    file.write_all_at(&page, size_bytes)
        .map_err(os("write to it"))?;
    Ok(file)
}

/// Whether nothing is in it: a file that takes no room, or a device that begins with zeros.
fn is_blank(file: &mut File, has_bytes: u64, is_device: bool) -> io::Result<bool> {
    if !is_device {
        return Ok(file.metadata()?.blocks() == 0);
    }
    let len = has_bytes.min(BLANK_BYTES as u64);
    let len = usize::try_from(len)
        .expect("small")
        .next_multiple_of(PAGE_BYTES);
    let mut head = buffer(len.max(PAGE_BYTES))?;
    file.seek(SeekFrom::Start(0))?;
    let read = file.read(&mut head[..len])?;
    Ok(head[..read].iter().all(|&byte| byte == 0))
}

/// Whether the signature is where a volume of this size, or the file's own end, has it.
fn is_ours(file: &File, has_bytes: u64, is_device: bool, size_bytes: u64) -> io::Result<bool> {
    let page_bytes = PAGE_BYTES as u64;
    let at = if is_device {
        size_bytes
    } else {
        match has_bytes.checked_sub(page_bytes) {
            Some(at) if at.is_multiple_of(page_bytes) => at,
            _ => return Ok(false),
        }
    };
    let mut page = buffer(PAGE_BYTES)?;
    file.read_exact_at(&mut page, at)?;
    Ok(page.starts_with(SIGNATURE))
}

/// The size, with room on the disk for all of it: a disk that is full later cannot refuse a page.
fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    file.set_len(len_bytes)?;
    let len =
        libc::off_t::try_from(len_bytes).map_err(|_| io::Error::from(ErrorKind::FileTooLarge))?;
    // SAFETY: no pointers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Zeros on a page boundary, as direct I/O wants them.
fn buffer(len: usize) -> io::Result<memmap2::MmapMut> {
    MmapOptions::new().len(len).map_anon()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn folder() -> tempfile::TempDir {
        // Where builds go is a disk; /tmp may be memory, which does no direct I/O.
        let here = std::env::current_exe().unwrap();
        tempfile::tempdir_in(here.parent().unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_made_reserved_and_known_again() {
        let folder = folder();
        let path = folder.path().join("backing");
        drop(open(&path, SIZE).unwrap());
        assert_eq!(path.metadata().unwrap().len(), SIZE + PAGE_BYTES as u64);
        drop(open(&path, 2 * SIZE).unwrap());
        drop(open(&path, SIZE).unwrap());
    }

    #[test]
    fn what_is_not_ours_stays_as_it_is() {
        let folder = folder();
        let path = folder.path().join("thesis");
        let text = vec![b'x'; 3 * PAGE_BYTES];
        std::fs::write(&path, &text).unwrap();
        assert!(matches!(
            open(&path, SIZE),
            Err(BackingError::Foreign { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), text);
        assert!(matches!(
            open(folder.path(), SIZE),
            Err(BackingError::Kind { .. })
        ));
    }

    #[test]
    fn two_processes_do_not_share_one() {
        let folder = folder();
        let path = folder.path().join("backing");
        let first = open(&path, SIZE).unwrap();
        assert!(matches!(open(&path, SIZE), Err(BackingError::InUse { .. })));
        drop(first);
        open(&path, SIZE).unwrap();
    }
}
