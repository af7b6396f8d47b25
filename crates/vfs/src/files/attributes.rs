//! Attributes of inodes, those of `stat` and the extended ones, and who has a file open to write.

use std::ops::Bound;

use super::data::without_privileges;
use super::{Caller, Files, State};
use crate::records::{Ino, Inode, Timestamp};
use crate::{FsError, NAME_BYTES_MAX, Result};

/// Which attributes change, and to what.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Changed {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the bytes.
    pub mtime: Option<Timestamp>,
    /// Last change of anything; that of the request if not given.
    pub ctime: Option<Timestamp>,
    /// A file that changes owner or size no longer runs as somebody else.
    pub drops_privileges: bool,
}

/// Whether an extended attribute may, or must, be there already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeMode {
    /// Either way.
    Set,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// Longest value of an extended attribute; the kernel's limit.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// What lets a program do more than its user; it does not outlast a change of the program.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

impl Files {
    /// Changes attributes; returns all of them.
    ///
    /// # Errors
    /// `NotFound`, `TooLarge`, `IsDirectory` and `Invalid` for a size, `Io`.
    pub fn set(&self, caller: &Caller, ino: Ino, changed: Changed) -> Result<Inode> {
        self.warm_inode(ino)?;
        if let Some(size) = changed.size {
            self.change(|| self.resize(ino, size))?;
        }
        if changed.uid.is_some() || changed.gid.is_some() || changed.size.is_some() {
            self.warm_attribute(ino, CAPABILITY)?;
        }
        self.alter(|state| {
            let mut inode = state.tables.inode(ino)?;
            let is_given = changed.uid.is_some() || changed.gid.is_some();
            if (is_given || changed.size.is_some()) && inode.is_file() {
                if changed.drops_privileges {
                    inode.mode = without_privileges(inode.mode);
                }
                state.drop_capabilities(ino)?;
            }
            if let Some(mode) = changed.mode {
                inode.mode = inode.kind() | (mode & 0o7777);
            }
            inode.uid = changed.uid.unwrap_or(inode.uid);
            inode.gid = changed.gid.unwrap_or(inode.gid);
            inode.atime = changed.atime.unwrap_or(inode.atime);
            if changed.size.is_some() {
                inode.mtime = caller.now;
            }
            inode.mtime = changed.mtime.unwrap_or(inode.mtime);
            inode.ctime = changed.ctime.unwrap_or(caller.now);
            state.put_inode(ino, inode);
            Ok(inode)
        })
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Io`.
    pub fn attribute(&self, ino: Ino, name: &[u8]) -> Result<Box<[u8]>> {
        self.warm_attribute(ino, name)?;
        let state = self.state();
        let value = state.tables.attributes.get(&(ino, name.into()))?;
        value.ok_or(FsError::NoAttribute)
    }

    /// Names of an inode's extended attributes.
    ///
    /// # Errors
    /// `Io`.
    pub fn attributes(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        self.warm_attributes(ino)?;
        self.state().attributes(ino)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` by `mode`; `NameTooLong`, `TooLarge`, `Unsupported`, `NoSpace`,
    /// `Io`.
    pub fn set_attribute(
        &self,
        caller: &Caller,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: AttributeMode,
    ) -> Result<()> {
        check_attribute(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        self.warm_inode(ino)?;
        self.warm_attribute(ino, name)?;
        self.alter(|state| {
            let mut inode = state.tables.inode(ino)?;
            let key = (ino, name.into());
            let is_there = state.tables.attributes.get(&key)?.is_some();
            match (mode, is_there) {
                (AttributeMode::Create, true) => return Err(FsError::Exists),
                (AttributeMode::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
            state.check_room((name.len() + value.len()) as u64)?;
            let bytes = state.tables.attributes.put(key, value.into());
            state.row_bytes[2] += bytes;
            inode.ctime = caller.now;
            state.put_inode(ino, inode);
            Ok(())
        })
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// `NoAttribute`, `Io`.
    pub fn remove_attribute(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.warm_inode(ino)?;
        self.warm_attribute(ino, name)?;
        self.alter(|state| {
            let mut inode = state.tables.inode(ino)?;
            let key = (ino, name.into());
            if state.tables.attributes.get(&key)?.is_none() {
                return Err(FsError::NoAttribute);
            }
            state.tables.attributes.remove(&key);
            inode.ctime = caller.now;
            state.put_inode(ino, inode);
            Ok(())
        })
    }

    /// Notes that a file was opened to be written; until [`Files::closed_to_write`] the kernel may
    /// hold bytes of it.
    pub fn opened_to_write(&self, ino: Ino) {
        *self.state().writers.entry(ino).or_default() += 1;
    }

    /// Notes that one who could write a file is gone.
    pub fn closed_to_write(&self, ino: Ino) {
        let mut state = self.state();
        if let Some(writers) = state.writers.get_mut(&ino) {
            *writers -= 1;
            if *writers == 0 {
                state.writers.remove(&ino);
            }
        }
    }
}

impl State {
    fn attributes(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        let mut names = Vec::new();
        let mut at: (Ino, Box<[u8]>) = (ino, Box::default());
        // No name is empty.
        let end: (Ino, Box<[u8]>) = (ino + 1, Box::default());
        loop {
            let rest = (Bound::Excluded(&at), Bound::Excluded(&end));
            let Some(((_, name), _)) = self.tables.attributes.first(rest)? else {
                return Ok(names);
            };
            names.push(name.clone());
            at = (ino, name);
        }
    }

    pub(super) fn remove_attributes(&mut self, ino: Ino) -> Result<()> {
        for name in self.attributes(ino)? {
            self.tables.attributes.remove(&(ino, name));
        }
        Ok(())
    }

    /// A program that was changed has no capabilities.
    pub(super) fn drop_capabilities(&mut self, ino: Ino) -> Result<()> {
        let key = (ino, CAPABILITY.into());
        if self.tables.attributes.get(&key)?.is_some() {
            self.tables.attributes.remove(&key);
        }
        Ok(())
    }
}

fn check_attribute(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let has_space = |space: &&[u8]| name.len() > space.len() && name.starts_with(space);
    match spaces.iter().any(has_space) {
        true => Ok(()),
        // Access control lists among them.
        false => Err(FsError::Unsupported),
    }
}
