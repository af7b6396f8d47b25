//! Opening what is behind a volume: a file that is made, or a device that is blank or was ours.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapOptions;

use super::device::{self, Device, HEADER_BYTES, Uring};
use crate::PAGE_BYTES;

/// A disk behind a volume, and how the volume's extents are mapped with it.
pub struct Backing {
    /// One per disk queue.
    pub devices: Vec<Box<dyn Device>>,
    /// Pages that each queue has on their way to the disk at most; a write that finds none free waits.
    pub entries: u32,
    /// An extent is mapped when its page I/Os per second, smoothed, pass this (`HotSlab`); with 0, with
    /// its next write.
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
/// In its first page: whose it is.
const SIGNATURE: &[u8; 16] = b"cenote backing 1";
/// What must be zero at both ends of a device that does not have the signature.
const BLANK_BYTES: u64 = 4 << 20;

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
    device::ring(1).map(drop)
}

fn open(path: &Path, size_bytes: u64) -> Result<File, BackingError> {
    let os = |what| {
        move |source| BackingError::Os {
            path: path.to_owned(),
            what,
            source,
        }
    };
    let needed_bytes = HEADER_BYTES + size_bytes;
    let is_device = match path.metadata() {
        Ok(meta) if meta.file_type().is_block_device() => true,
        Ok(meta) if meta.is_file() => false,
        Ok(_) => return Err(BackingError::Kind { path: path.into() }),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(os("look at it")(error)),
    };
    // Of a device, O_EXCL refuses one that is mounted or swapped to.
    let exclusive = if is_device { libc::O_EXCL } else { 0 };
    let file = OpenOptions::new()
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
    lock(&file).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => BackingError::InUse { path: path.into() },
        _ => os("lock it")(error),
    })?;
    let has_bytes = (&file).seek(SeekFrom::End(0)).map_err(os("measure it"))?;
    if is_device && has_bytes < needed_bytes {
        let path = path.to_owned();
        return Err(BackingError::Small {
            path,
            has_bytes,
            needed_bytes,
        });
    }
    let is_ours = has_bytes >= HEADER_BYTES && is_signed(&file).map_err(os("read it"))?;
    let is_blank = if is_device {
        has_blank_ends(&file, has_bytes)
    } else {
        has_no_data(&file, has_bytes)
    };
    if !is_ours && !is_blank.map_err(os("read it"))? {
        return Err(BackingError::Foreign { path: path.into() });
    }
    // First: what fails after it is known again.
    let mut page = buffer(PAGE_BYTES).map_err(os("get memory"))?;
    page[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
    file.write_all_at(&page, 0).map_err(os("write to it"))?;
    if !is_device {
        reserve(&file, needed_bytes).map_err(os("reserve room for it"))?;
    }
    Ok(file)
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_signed(file: &File) -> io::Result<bool> {
    let mut page = buffer(PAGE_BYTES)?;
    file.read_exact_at(&mut page, 0)?;
    Ok(page.starts_with(SIGNATURE))
}

/// Whether a device is zero where file systems, volume managers and partition tables begin, and
/// where they end.
fn has_blank_ends(file: &File, has_bytes: u64) -> io::Result<bool> {
    let len = has_bytes.min(BLANK_BYTES) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let mut bytes = buffer(usize::try_from(len).expect("small"))?;
    for at in [0, (has_bytes - len) / PAGE_BYTES as u64 * PAGE_BYTES as u64] {
        file.read_exact_at(&mut bytes, at)?;
        if bytes.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file is empty, or a hole from its beginning to its end.
fn has_no_data(file: &File, has_bytes: u64) -> io::Result<bool> {
    if has_bytes == 0 {
        return Ok(true);
    }
    // SAFETY: the descriptor is open for the call.
    let found = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
    Ok(found < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO))
}

/// The size, with room on the disk for all of it: a disk that is full later cannot refuse a page.
fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    file.set_len(len_bytes)?;
    cenote_durable::allocate(file, len_bytes)
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
        // Zeros in front, as of a file system whose first bytes are nobody's.
        let mut late = vec![0; 128 << 10];
        late[(64 << 10) + 64..][..8].copy_from_slice(b"_BHRfS_M");
        std::fs::write(&path, &late).unwrap();
        assert!(matches!(
            open(&path, SIZE),
            Err(BackingError::Foreign { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), late);
        assert!(matches!(
            open(folder.path(), SIZE),
            Err(BackingError::Kind { .. })
        ));
    }

    #[test]
    fn the_ends_of_a_device_are_looked_at() {
        let folder = folder();
        let path = folder.path().join("device");
        let len = 3 * BLANK_BYTES;
        let file = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .unwrap()
        };
        file().set_len(len).unwrap();
        assert!(has_blank_ends(&file(), len).unwrap());
        for at in [(64 << 10) + 64, len - 512] {
            file().write_all_at(b"something", at).unwrap();
            assert!(!has_blank_ends(&file(), len).unwrap(), "at {at}");
            file().write_all_at(&[0; 9], at).unwrap();
        }
        assert!(has_blank_ends(&file(), len).unwrap());
    }

    #[test]
    fn a_hole_is_blank_and_what_was_begun_is_ours() {
        let folder = folder();
        let path = folder.path().join("backing");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        drop(open(&path, SIZE).unwrap());
        // As if it had ended before there was room for all of it.
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(HEADER_BYTES)
            .unwrap();
        drop(open(&path, 2 * SIZE).unwrap());
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
