//! A folder that nobody else can change, held by a handle.
//!
//! A command that root runs in a folder of somebody else's does what that one wants: which process
//! is ended, which key is believed, which file is overwritten is written in it. So a folder is used
//! only when it is its user's own or root's and nobody else may write to it, and when nobody else
//! can put another in its place: the same holds for each folder above it, except that others may
//! write where the sticky bit keeps them from what is not theirs (`/tmp`). A symbolic link on the
//! way counts as what it is, a choice of its owner's.
//!
//! Everything inside is opened relative to the handle and never through a symbolic link. Paths
//! ([`Folder::path`], [`Folder::join`]) are for other programs, for sockets' addresses and for
//! people; they stay true for as long as root and this user want.
//!
//! Deliberately not here: what is in the files.

mod walk;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use walk::Walk;

use crate::shell::quoted;

/// A checked folder. Copies share the handle.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    handle: Arc<OwnedFd>,
}

/// Why a folder, or something in it, is not used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It belongs to neither this user nor root.
    #[error("{}: belongs to uid {owner}, who could change its content", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    /// Its group, or everybody, may write to it.
    #[error("{}: writable by others (mode {mode:04o})", path.display())]
    Shared { path: PathBuf, mode: u32 },
    /// A link, a device or a folder stands where something else is expected.
    #[error("{}: is {found}, not {wanted}", path.display())]
    Kind {
        path: PathBuf,
        found: &'static str,
        wanted: &'static str,
    },
    /// More than a file of ours ever has.
    #[error("{}: larger than {FILE_BYTES_MAX} bytes", path.display())]
    Long { path: PathBuf },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Os { path: PathBuf, source: io::Error },
}

/// Longest file that is read: a cluster file of 4096 hosts has less.
const FILE_BYTES_MAX: u64 = 4 << 20;

type Result<T> = std::result::Result<T, FolderError>;
/// Of one system call.
type Outcome<T> = std::result::Result<T, rustix::io::Errno>;

impl FolderError {
    fn os(path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Os {
            path: path.into(),
            source: source.into(),
        }
    }

    /// Whether there is nothing of that name.
    pub fn is_missing(&self) -> bool {
        self.io_kind() == Some(ErrorKind::NotFound)
    }

    /// Whether something of that name is there already.
    pub fn is_taken(&self) -> bool {
        self.io_kind() == Some(ErrorKind::AlreadyExists)
    }

    /// The system's reason, where it was the system that refused.
    pub fn io_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Os { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// What the reader can do about it; `None` where that depends on what was wanted.
    pub fn remedy(&self) -> Option<String> {
        let user = rustix::process::geteuid();
        match self {
            Self::Foreign { path, .. } => Some(format!(
                "use a folder of your own, such as ~/.cenote/well; or, if all its files are yours, \
                 chown -R {user} {}",
                quoted(path)
            )),
            Self::Shared { path, .. } => Some(format!(
                "chmod go-w {}, if its content is yours; or use a private folder, such as \
                 ~/.cenote/well",
                quoted(path)
            )),
            Self::Kind { path, .. } | Self::Long { path } => Some(format!(
                "check it with ls -l {}; remove it if it is not yours",
                quoted(path)
            )),
            Self::Os { path, source } if source.kind() == ErrorKind::PermissionDenied => {
                Some(format!(
                    "run as the user who owns {}, or use a folder of your own",
                    path.display()
                ))
            }
            Self::Os { .. } => None,
        }
    }
}

impl Folder {
    /// An existing folder.
    ///
    /// # Errors
    /// It is not there, or others may change it or what is above it.
    pub fn open(path: &Path) -> Result<Self> {
        let (path, handle) = Walk::begin(path)?.walk(false)?;
        Self::checked(path, handle)
    }

    /// The same, made for this user alone where there is none.
    ///
    /// # Errors
    /// As [`Folder::open`], or the system refuses.
    pub fn create(path: &Path) -> Result<Self> {
        let (path, handle) = Walk::begin(path)?.walk(true)?;
        Self::checked(path, handle)
    }

    /// Checks that nobody else can replace a socket at `path`: others may write to its folder only
    /// where the sticky bit keeps them from what is not theirs.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn check_for_socket(path: &Path) -> Result<()> {
        let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
        Walk::begin(parent.unwrap_or(Path::new(".")))?
            .walk(false)
            .map(drop)
    }

    /// Where it is, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where something in it is, for other programs and for people.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The address of a socket in it, which leads through the handle. True while this lives.
    pub fn socket(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()).into()
    }

    /// A folder in it; `None`: there is none.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn sub(&self, name: &str) -> Result<Option<Self>> {
        let path = self.join(name);
        match open_path(self.handle.as_fd(), OsStr::new(name)) {
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(FolderError::os(path, error)),
            Ok(handle) => Self::checked(path, handle).map(Some),
        }
    }

    /// A folder in it, made for this user alone where there is none.
    ///
    /// # Errors
    /// As [`Folder::create`].
    pub fn make(&self, name: &str) -> Result<Self> {
        let path = self.join(name);
        make(self.handle.as_fd(), OsStr::new(name)).map_err(|e| FolderError::os(&path, e))?;
        let handle = open_path(self.handle.as_fd(), OsStr::new(name));
        Self::checked(path.clone(), handle.map_err(|e| FolderError::os(path, e))?)
    }

    /// The folders in a folder in it, by name; none where that is not there.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn subs(&self, name: &str) -> Result<Vec<(String, Self)>> {
        let each = self.each_sub(name)?.into_iter();
        each.map(|(name, folder)| Ok((name, folder?))).collect()
    }

    /// The same, for who goes on with the others where one of them cannot be used.
    ///
    /// # Errors
    /// As [`Folder::open`], of the folder that they are in.
    pub fn each_sub(&self, name: &str) -> Result<Vec<(String, Result<Self>)>> {
        let Some(above) = self.sub(name)? else {
            return Ok(Vec::new());
        };
        let names = above.names()?.into_iter();
        let found = names.filter_map(|name| {
            let folder = above.sub(&name).transpose()?;
            Some((name, folder))
        });
        Ok(found.collect())
    }

    fn checked(path: PathBuf, handle: OwnedFd) -> Result<Self> {
        check(
            &path,
            &stat(&path, &handle)?,
            FileType::Directory,
            Sticky::Writable,
        )?;
        Ok(Self {
            path,
            handle: Arc::new(handle),
        })
    }

    /// Keeps others who ask for the same out until the handle is dropped.
    ///
    /// # Errors
    /// The system refuses.
    pub fn lock(&self) -> Result<OwnedFd> {
        let failed = |error| FolderError::os(&self.path, error);
        let folder = self.listed().map_err(failed)?;
        rustix::fs::flock(&folder, FlockOperation::LockExclusive).map_err(failed)?;
        Ok(folder)
    }

    /// The same; `None` where somebody else has the lock.
    ///
    /// # Errors
    /// The system refuses.
    pub fn try_lock(&self) -> Result<Option<OwnedFd>> {
        let failed = |error| FolderError::os(&self.path, error);
        let folder = self.listed().map_err(failed)?;
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(folder)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The same, where the wait is not worth it any more once `unless` fails: it is asked before each try.
    ///
    /// # Errors
    /// The system refuses, or what `unless` says.
    pub fn lock_unless(&self, unless: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<OwnedFd> {
        loop {
            unless()?;
            if let Some(lock) = self.try_lock()? {
                return Ok(lock);
            }
            std::thread::sleep(LOCK_STEP);
        }
    }

    /// The names in it, sorted; those that are no UTF-8 are not ours.
    ///
    /// # Errors
    /// The system refuses.
    pub fn names(&self) -> Result<Vec<String>> {
        let failed = |error| FolderError::os(&self.path, error);
        let folder = self.listed().map_err(failed)?;
        let mut names = Vec::new();
        for entry in Dir::new(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether something of that name is there.
    ///
    /// # Errors
    /// The system does not say.
    pub fn has(&self, name: &str) -> Result<bool> {
        match rustix::fs::statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(FolderError::os(self.join(name), error)),
        }
    }

    /// Whether a file of that name is this one, which was opened under it before.
    ///
    /// # Errors
    /// The system does not say.
    pub fn is_at(&self, file: &File, name: &str) -> Result<bool> {
        let path = self.join(name);
        let opened = stat(&path, file)?;
        match rustix::fs::statat(&*self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(FolderError::os(path, error)),
        }
    }

    /// The text of a file that only this user and root can have written; `None`: there is none.
    ///
    /// # Errors
    /// Others may write it, it is no file or too long, or the system refuses.
    pub fn read(&self, name: &str) -> Result<Option<String>> {
        let Some(file) = self.existing_file(name)? else {
            return Ok(None);
        };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        let len = read.map_err(|error| FolderError::os(self.join(name), error))?;
        if len as u64 > FILE_BYTES_MAX {
            return Err(FolderError::Long {
                path: self.join(name),
            });
        }
        Ok(Some(text))
    }

    /// A file that is there, for reading; `None`: it is not.
    ///
    /// # Errors
    /// As [`Folder::read`].
    pub fn existing_file(&self, name: &str) -> Result<Option<File>> {
        match self.file(name, OFlags::RDONLY) {
            Err(error) if error.is_missing() => Ok(None),
            other => other.map(Some),
        }
    }

    /// A file of this user's alone, made where there is none and as it was where there is.
    ///
    /// # Errors
    /// As [`Folder::read`].
    pub fn open_file(&self, name: &str) -> Result<File> {
        self.file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// An empty file of this user's alone, in place of one that was there.
    ///
    /// # Errors
    /// As [`Folder::read`].
    pub fn empty_file(&self, name: &str) -> Result<File> {
        let file = self.open_file(name)?;
        file.set_len(0)
            .map_err(|error| FolderError::os(self.join(name), error))?;
        Ok(file)
    }

    fn file(&self, name: &str, flags: OFlags) -> Result<File> {
        let path = self.join(name);
        // NONBLOCK: a pipe that somebody left there is refused below, and not waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&*self.handle, name, flags, FILE) {
            Ok(file) => file,
            Err(rustix::io::Errno::LOOP) => {
                return Err(FolderError::Kind {
                    path,
                    found: "a symbolic link",
                    wanted: "a file",
                });
            }
            Err(error) => return Err(FolderError::os(path, error)),
        };
        check(
            &path,
            &stat(&path, &file)?,
            FileType::RegularFile,
            Sticky::Writable,
        )?;
        Ok(file.into())
    }

    /// Writes a file as a whole: whoever reads it, also after a power cut, finds what was there or
    /// all of this.
    ///
    /// # Errors
    /// The system refuses; what was there is as it was.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let mode = FILE.as_raw_mode();
        cenote_durable::replace_in(&*self.handle, name, text.as_bytes(), mode)
            .map_err(|error| FolderError::os(self.join(name), error))
    }

    /// The same, of a file that is not there yet.
    ///
    /// # Errors
    /// [`FolderError::is_taken`], or as [`Folder::write`].
    pub fn write_new(&self, name: &str, text: &str) -> Result<()> {
        let mode = FILE.as_raw_mode();
        cenote_durable::create_in(&*self.handle, name, text.as_bytes(), mode)
            .map_err(|error| FolderError::os(self.join(name), error))
    }

    /// Removes what processes left of a file when they were killed while they wrote it. Nobody writes it
    /// meanwhile.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove_drafts(&self, name: &str) -> Result<()> {
        cenote_durable::remove_drafts_in(&*self.handle, name)
            .map_err(|error| FolderError::os(&self.path, error))
    }

    /// The folder opened for more than a look at what is in it.
    fn listed(&self) -> Outcome<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&*self.handle, ".", flags, Mode::empty())
    }

    /// Removes a file or a socket; that it is not there is no error.
    ///
    /// # Errors
    /// It is there and stays.
    pub fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&*self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(FolderError::os(self.join(name), error)),
        }
    }

    /// Removes a file that says this; one that another process has put in its place meanwhile stays.
    /// Whether it was removed.
    ///
    /// # Errors
    /// As [`Folder::read`], or the system refuses.
    pub fn remove_if(&self, name: &str, text: &str) -> Result<bool> {
        let failed = |error| FolderError::os(self.join(name), error);
        // Aside first: what is looked at there nobody replaces.
        let aside = format!("{name}.{}.aside", std::process::id());
        match rustix::fs::renameat(&*self.handle, name, &*self.handle, &aside) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            Err(error) => return Err(failed(error)),
        }
        let is_it = self
            .read(&aside)
            .is_ok_and(|found| found.as_deref() == Some(text));
        if !is_it {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&*self.handle, &aside, &*self.handle, name, flags) {
                Ok(()) => return Ok(false),
                // A still newer one is there.
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        self.remove(&aside)?;
        Ok(is_it)
    }
}

impl Folder {
    /// Removes an empty folder in it; that it is not there is no error.
    ///
    /// # Errors
    /// It is there and stays.
    pub fn remove_folder(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&*self.handle, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(FolderError::os(self.join(name), error)),
        }
    }
}

/// Modes of what is made here: for this user alone.
/// Between two tries to lock a folder.
const LOCK_STEP: Duration = Duration::from_millis(2);
const PRIVATE: Mode = Mode::RWXU;
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);

fn open_path(folder: impl AsFd, name: &OsStr) -> Outcome<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Makes a folder for this user alone, unless something is there.
fn make(folder: impl AsFd, name: &OsStr) -> Outcome<()> {
    match rustix::fs::mkdirat(folder, name, PRIVATE) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn stat(path: &Path, handle: impl AsFd) -> Result<Stat> {
    rustix::fs::fstat(handle).map_err(|error| FolderError::os(path, error))
}

/// What the sticky bit of a folder that others may write to means to who asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sticky {
    /// What is in it and known stays in its place.
    Harmless,
    /// Others can still put something in it.
    Writable,
}

fn check(path: &Path, found: &Stat, wanted: FileType, sticky: Sticky) -> Result<()> {
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind != wanted {
        return Err(FolderError::Kind {
            path: path.to_owned(),
            found: described(kind),
            wanted: described(wanted),
        });
    }
    check_owner(path, found)?;
    let mode = Mode::from_raw_mode(found.st_mode);
    let is_shared = mode.intersects(Mode::WGRP | Mode::WOTH);
    if is_shared && (sticky == Sticky::Writable || !mode.contains(Mode::SVTX)) {
        return Err(FolderError::Shared {
            path: path.to_owned(),
            mode: mode.bits(),
        });
    }
    Ok(())
}

fn check_owner(path: &Path, found: &Stat) -> Result<()> {
    let (owner, user) = (found.st_uid, rustix::process::geteuid().as_raw());
    if owner == user || owner == 0 {
        return Ok(());
    }
    Err(FolderError::Foreign {
        path: path.to_owned(),
        owner,
    })
}

fn described(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::RegularFile => "a file",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something else",
    }
}

#[cfg(test)]
mod tests;
