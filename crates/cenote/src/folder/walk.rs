//! The way from the root to a folder: each name is opened relative to the folder before it and checked
//! before the next, so that nobody else can lead it elsewhere.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::{FolderError, Result, Sticky, check, check_owner, make, open_path, stat};

/// Most symbolic links on the way to a folder; as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// The way to a folder, one name after the other, each checked before the next.
pub(super) struct Walk {
    at: PathBuf,
    handle: OwnedFd,
    left: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    /// From the root, which is checked like all others.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let absolute = std::path::absolute(path).map_err(|error| FolderError::os(path, error))?;
        let at = PathBuf::from("/");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&at, flags, Mode::empty());
        let handle = handle.map_err(|error| FolderError::os(&at, error))?;
        check(
            &at,
            &stat(&at, &handle)?,
            FileType::Directory,
            Sticky::Harmless,
        )?;
        Ok(Self {
            at,
            handle,
            left: names(&absolute),
            links: 0,
        })
    }

    /// One name further; false at the end. Where there is nothing a private folder is made, if so
    /// wanted.
    fn step(&mut self, makes: bool) -> Result<bool> {
        let Some(name) = self.left.pop_front() else {
            return Ok(false);
        };
        if name == ".." {
            let above = self.at.parent().unwrap_or(Path::new("/")).to_owned();
            return self.turn(&above).map(|()| true);
        }
        let next = self.at.join(&name);
        let failed = |error| FolderError::os(&next, error);
        let handle = match open_path(&self.handle, &name) {
            Err(rustix::io::Errno::NOENT) if makes => {
                make(&self.handle, &name).map_err(failed)?;
                open_path(&self.handle, &name)
            }
            other => other,
        };
        let handle = handle.map_err(failed)?;
        let found = stat(&next, &handle)?;
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            check_owner(&next, &found)?;
            self.links += 1;
            if self.links > LINKS_MAX {
                return Err(failed(rustix::io::Errno::LOOP));
            }
            let target = rustix::fs::readlinkat(&handle, "", Vec::new()).map_err(failed)?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            let target = self.at.join(target);
            return self.turn(&target).map(|()| true);
        }
        check(&next, &found, FileType::Directory, Sticky::Harmless)?;
        (self.at, self.handle) = (next, handle);
        Ok(true)
    }

    /// Goes to another place from the root, before what is left.
    fn turn(&mut self, to: &Path) -> Result<()> {
        let mut again = Self::begin(to)?;
        again.left.append(&mut self.left);
        again.links = self.links;
        *self = again;
        Ok(())
    }

    /// Where it leads, without symbolic links, and the handle of that. What is missing is made if so
    /// wanted.
    pub(super) fn walk(mut self, makes: bool) -> Result<(PathBuf, OwnedFd)> {
        while self.step(makes)? {}
        Ok((self.at, self.handle))
    }
}

/// The names on an absolute path, with `..` where it is.
fn names(path: &Path) -> VecDeque<OsString> {
    let named = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(named).collect()
}
