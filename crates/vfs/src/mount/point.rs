//! The directory that a file system is shown in: what may be mounted on, and unmounting.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::mount_table::{self, Mounted};

/// Begins what `mount` shows as the source.
pub(super) const SOURCE: &str = "cenote:";

/// A directory that can be mounted on.
#[derive(Clone, Debug)]
pub struct MountPoint(PathBuf);

/// Why a directory cannot be mounted on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    /// It is not there, or cannot be looked at.
    #[error("{}: {source}", path.display())]
    Os {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// What is in it would be hidden.
    #[error("{} is not empty, and what is in it would be hidden", .0.display())]
    NotEmpty(PathBuf),
    /// A file system is mounted there.
    #[error("{} is already a mount point", .0.display())]
    Mounted(PathBuf),
    /// Another process is about to mount something there.
    #[error("another process is mounting at {}", .0.display())]
    Claimed(PathBuf),
    /// The process that served it was killed, and the mount could not be taken away.
    #[error("{} is the mount of a process that is gone", .0.display())]
    Stale(PathBuf),
}

impl MountPoint {
    /// Checks `path`; what a killed process left mounted there is taken away.
    ///
    /// # Errors
    /// [`PointError`].
    pub fn new(path: &Path) -> Result<Self, PointError> {
        let os = |source| PointError::Os {
            path: path.to_owned(),
            source,
        };
        let absolute = std::path::absolute(path).map_err(os)?;
        let found = match mount_table::look(&absolute) {
            Err(error) if mount_table::is_dead(&error) => {
                if !is_ours(&absolute) || detach(&absolute).is_err() {
                    return Err(PointError::Stale(absolute));
                }
                tracing::warn!(path = %absolute.display(), "took a mount away whose process is gone");
                fs::metadata(&absolute)
            }
            _ => fs::metadata(&absolute),
        };
        if !found.map_err(os)?.is_dir() {
            return Err(PointError::NotDirectory(absolute));
        }
        let canonical = absolute.canonicalize().map_err(os)?;
        if is_mounted(&canonical) {
            return Err(PointError::Mounted(canonical));
        }
        if fs::read_dir(&canonical).map_err(os)?.next().is_some() {
            return Err(PointError::NotEmpty(canonical));
        }
        Ok(Self(canonical))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Has a directory for oneself, until this is closed: of processes that mount there at the same
/// moment one is first, and the others see its mount.
///
/// # Errors
/// [`PointError::Mounted`], [`PointError::Claimed`], [`PointError::Os`].
pub(super) fn claim(path: &Path) -> Result<fs::File, PointError> {
    // Not of what is mounted there, whose server may be asked for it.
    unless_mounted(path)?;
    let directory = fs::File::open(path).map_err(|source| PointError::Os {
        path: path.to_owned(),
        source,
    })?;
    hold(&directory, path)?;
    Ok(directory)
}

/// Locks a directory that nothing was mounted on when it was opened, unless something is by now.
pub(super) fn hold(directory: &fs::File, path: &Path) -> Result<(), PointError> {
    // A file system without locks has none that another process holds.
    if let Err(fs::TryLockError::WouldBlock) = directory.try_lock() {
        return Err(PointError::Claimed(path.to_owned()));
    }
    unless_mounted(path)
}

fn unless_mounted(path: &Path) -> Result<(), PointError> {
    match is_mounted(path) {
        true => Err(PointError::Mounted(path.to_owned())),
        false => Ok(()),
    }
}

fn is_mounted(path: &Path) -> bool {
    Mounted::all().iter().any(|mounted| mounted.path() == path)
}

/// Whether the uppermost mount there is one of this program's.
fn is_ours(path: &Path) -> bool {
    // A stale mount has no canonical path; its parent's will do.
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let path = parent.map_or_else(|| path.to_owned(), |parent| parent.join(name));
    let all = Mounted::all();
    let last = all.iter().rev().find(|mounted| mounted.path() == path);
    last.is_some_and(Mounted::is_ours)
}

/// Where a file system was mounted, and how to find it when a folder above was renamed since. Keeps
/// nothing open: the mount would be in use.
#[derive(Debug)]
pub(super) struct MountRecord {
    path: PathBuf,
    /// `None` where the system does not tell.
    mounted: Option<Mounted>,
}

impl MountRecord {
    /// Of what has just been mounted at `path`.
    pub(super) fn new(path: PathBuf) -> Self {
        let all = Mounted::all();
        let here = |mounted: &&Mounted| mounted.path() == path && mounted.is_ours();
        let mounted = all.iter().rev().find(here).cloned();
        Self { path, mounted }
    }

    /// Where it is now; `None` when it is mounted nowhere any more.
    pub(super) fn now(&self) -> Option<PathBuf> {
        let all = Mounted::all();
        let Some(mounted) = self.mounted.as_ref().filter(|_| !all.is_empty()) else {
            return Some(self.path.clone());
        };
        Some(mounted.among(&all)?.path().to_owned())
    }

    /// Takes it away where it is left though its connection has ended, as after `umount -f` of files in
    /// use. The kernel gives its numbers to others once it is gone: what answers is another's.
    ///
    /// # Errors
    /// It is there still.
    pub(super) fn take_away_dead(&self) -> io::Result<()> {
        let all = Mounted::all();
        let Some(left) = self.mounted.as_ref().and_then(|known| known.among(&all)) else {
            return Ok(());
        };
        match mount_table::look(left.path()) {
            Err(error) if mount_table::is_dead(&error) => left.take_away_if_dead(),
            _ => Ok(()),
        }
    }
}

/// Has the kernel write back what it cached of the file system that is mounted at `path`.
pub(super) fn write_back(path: &Path) -> io::Result<()> {
    let directory = fs::File::open(path)?;
    // SAFETY: the descriptor is open for the call.
    match unsafe { libc::syncfs(directory.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Unmounts; where files are still open, the mount goes now and the rest with them.
pub(super) fn unmount(path: &Path) -> io::Result<()> {
    match umount2(path, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(_) => detach(path),
        done => done,
    }
}

/// Ends the connection of the file system that is mounted at `path`, and unmounts it: whoever waits
/// for an answer is told that there is none. A user who may not has it detached.
pub(super) fn abort(path: &Path) -> io::Result<()> {
    match umount2(path, libc::MNT_FORCE) {
        Ok(()) => Ok(()),
        // It may still be in use; its connection is over nevertheless.
        Err(_) => detach(path),
    }
}

fn detach(path: &Path) -> io::Result<()> {
    match umount2(path, libc::MNT_DETACH) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => detach_as_user(path, error),
        done => done,
    }
}

/// A user's own mount, which only the helper may take away; else the error that was there without it.
pub(super) fn detach_as_user(path: &Path, refused: io::Error) -> io::Result<()> {
    let status = Command::new("fusermount3").arg("-uz").arg(path).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(refused),
    }
}

pub(super) fn umount2(path: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a live C string for the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_empty_directory_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(MountPoint::new(folder.path()).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "x").expect("a file");
        let refused = MountPoint::new(&file).expect_err("a file");
        assert!(matches!(refused, PointError::NotDirectory(_)), "{refused}");
        let refused = MountPoint::new(folder.path()).expect_err("a full folder");
        assert!(matches!(refused, PointError::NotEmpty(_)), "{refused}");
        let refused = MountPoint::new(&folder.path().join("none")).expect_err("nothing");
        assert!(matches!(refused, PointError::Os { .. }), "{refused}");
        let refused = MountPoint::new(Path::new("/proc")).expect_err("a mount point");
        assert!(matches!(refused, PointError::Mounted(_)), "{refused}");
    }
}
