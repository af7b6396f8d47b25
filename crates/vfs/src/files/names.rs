//! Names: making, finding, linking, renaming and removing what is in directories.
//!
//! A request changes everything that belongs together under one lock, so that a commit has all of
//! it or nothing. An inode whose last name goes becomes an orphan, and is purged once the kernel
//! has forgotten it, or by the next mount.

use super::{Caller, Files, State};
use crate::database::damaged;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::records::{Entry, Ino, Inode, ROOT};
use crate::{FsError, NAME_BYTES_MAX, Result, TARGET_BYTES_MAX};

/// What is to be made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NewInode<'a> {
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Which device, if it is one.
    pub rdev: u32,
    /// Where it leads, if it is a symbolic link.
    pub target: Option<&'a [u8]>,
}

/// What becomes of what has the new name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RenameMode {
    /// It goes.
    Replace,
    /// The rename fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// Most hard links of a file; arbitrary, what ext4 has.
const LINKS_MAX: u32 = 65_000;
/// Kernels send shorter ones than this; those that are longer than a name were looked up nowhere.
const ROW_BYTES: u64 = 160;

impl Files {
    /// Finds a name; the kernel is told of the inode, and forgets it some day.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Io`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<(Ino, Inode)> {
        check_length(name)?;
        self.warm(parent, name)?;
        let mut state = self.state();
        state.directory(parent)?;
        let entry = state.entry(parent, name)?.ok_or(FsError::NotFound)?;
        let inode = state.tables.inode(entry.ino)?;
        state.remember(entry.ino);
        Ok((entry.ino, inode))
    }

    /// Makes a file, a directory, a symbolic link or a special file; the kernel is told of it.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `NotFound`, `NotDirectory`, `NameTooLong`, `Io`.
    pub fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode<'_>,
    ) -> Result<(Ino, Inode)> {
        check_name(name)?;
        let target_bytes = new.target.map_or(0, <[u8]>::len);
        if target_bytes > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if new.target.is_some_and(<[u8]>::is_empty) {
            return Err(FsError::NotFound);
        }
        self.warm(parent, name)?;
        self.alter(|state| {
            state.check_room(ROW_BYTES + (name.len() + target_bytes) as u64)?;
            state.make(caller, parent, name, new)
        })
    }

    /// Gives a file another name; the kernel is told of it.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks`, and as [`Files::make`].
    pub fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<(Ino, Inode)> {
        check_name(name)?;
        self.warm(parent, name)?;
        self.warm_inode(ino)?;
        self.alter(|state| {
            let mut inode = state.tables.inode(ino)?;
            if inode.is_directory() {
                return Err(FsError::NotPermitted);
            }
            if inode.nlink >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
            if state.entry(parent, name)?.is_some() {
                return Err(FsError::Exists);
            }
            state.check_room(ROW_BYTES + name.len() as u64)?;
            let directory = state.directory(parent)?;
            if inode.nlink == 0 {
                // From a descriptor without a name (linkat of AT_EMPTY_PATH).
                state.tables.orphans.remove(&ino);
            }
            inode.nlink += 1;
            inode.ctime = caller.now;
            let kind = inode.kind();
            state.add(caller, (parent, directory), name, Entry { ino, kind })?;
            state.put_inode(ino, inode);
            state.remember(ino);
            Ok((ino, inode))
        })
    }

    /// Takes a name of something that is no directory away.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Io`.
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        check_length(name)?;
        self.warm(parent, name)?;
        self.alter(|state| {
            let directory = state.directory(parent)?;
            let entry = state.entry(parent, name)?.ok_or(FsError::NotFound)?;
            if entry.kind == libc::S_IFDIR {
                return Err(FsError::IsDirectory);
            }
            state.take(caller, (parent, directory), name)?;
            state.unlink(caller, entry.ino)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotDirectory`, `NotFound`, `Invalid` for `.`, `Io`.
    pub fn remove_directory(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => check_length(name)?,
        }
        self.warm(parent, name)?;
        self.alter(|state| {
            let directory = state.directory(parent)?;
            let entry = state.entry(parent, name)?.ok_or(FsError::NotFound)?;
            if state.directory(entry.ino)?.size > 0 {
                return Err(FsError::NotEmpty);
            }
            state.take(caller, (parent, directory), name)?;
            state.unlink(caller, entry.ino)
        })
    }

    /// Gives something another name, in the same directory or another.
    ///
    /// # Errors
    /// `Exists`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` for a directory into itself;
    /// `NoSpace` for a longer name, as [`Files::make`].
    pub fn rename(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        check_length(name)?;
        check_name(to_name)?;
        self.warm(parent, name)?;
        self.warm(to_parent, to_name)?;
        let added_bytes = to_name.len().saturating_sub(name.len()) as u64;
        let split = self.alter(|state| {
            // A name that is there already has its room.
            if added_bytes > 0 && state.entry(to_parent, to_name)?.is_none() {
                state.check_room(added_bytes)?;
            }
            let from = (parent, name);
            state.rename(caller, from, (to_parent, to_name), mode)
        })?;
        let Some(entry) = split else { return Ok(()) };
        self.commit()?;
        self.alter(|state| {
            let directory = state.directory(to_parent)?;
            state.add(caller, (to_parent, directory), to_name, entry)
        })
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn target(&self, ino: Ino) -> Result<Box<[u8]>> {
        self.warm_inode(ino)?;
        self.warm_target(ino)?;
        let state = self.state();
        if state.tables.inode(ino)?.kind() != libc::S_IFLNK {
            return Err(FsError::Invalid);
        }
        state.tables.targets.get(&ino)?.ok_or(FsError::Io)
    }

    /// The kernel has forgotten an inode as often as it was told of it.
    ///
    /// # Errors
    /// `Io` when a file without a name cannot be deleted yet.
    pub fn forget(&self, ino: Ino, count: u64) -> Result<()> {
        let is_orphan = {
            let mut state = self.state();
            if let Some(lookups) = state.lookups.get_mut(&ino) {
                *lookups = lookups.saturating_sub(count);
                if *lookups > 0 {
                    return Ok(());
                }
                state.lookups.remove(&ino);
            }
            ino != ROOT && state.tables.orphans.get(&ino)?.is_some()
        };
        if !is_orphan {
            return Ok(());
        }
        self.warm_all(ino)?;
        self.alter(|state| state.purge_orphan(ino))
    }
}

impl State {
    /// A directory that is still there.
    fn directory(&self, ino: Ino) -> Result<Inode> {
        let inode = self.tables.inode(ino)?;
        match inode.is_directory() {
            true if inode.nlink > 0 => Ok(inode),
            true => Err(FsError::NotFound),
            false => Err(FsError::NotDirectory),
        }
    }

    fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Entry>> {
        self.tables.entries.get(&(parent, name.into()))
    }

    fn make(
        &mut self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode<'_>,
    ) -> Result<(Ino, Inode)> {
        let directory = self.directory(parent)?;
        if self.entry(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let is_directory = new.mode & libc::S_IFMT == libc::S_IFDIR;
        let is_inherited = directory.mode & libc::S_ISGID != 0;
        let mut inode = Inode {
            mode: new.mode,
            uid: caller.uid,
            gid: match is_inherited {
                true => directory.gid,
                false => caller.gid,
            },
            nlink: if is_directory { 2 } else { 1 },
            rdev: new.rdev,
            size: new.target.map_or(0, |target| target.len() as u64),
            blocks: 0,
            parent: if is_directory { parent } else { 0 },
            atime: caller.now,
            mtime: caller.now,
            ctime: caller.now,
        };
        if is_directory && is_inherited {
            inode.mode |= libc::S_ISGID;
        }
        let ino = self.next_ino;
        self.next_ino += 1;
        let kind = inode.kind();
        self.add(caller, (parent, directory), name, Entry { ino, kind })?;
        self.put_inode(ino, inode);
        if let Some(target) = new.target {
            self.row_bytes[2] += self.tables.targets.put(ino, target.into());
        }
        self.remember(ino);
        Ok((ino, inode))
    }

    /// Adds a name to a directory.
    fn add(
        &mut self,
        caller: &Caller,
        (parent, mut directory): (Ino, Inode),
        name: &[u8],
        entry: Entry,
    ) -> Result<()> {
        directory.size += 1;
        if entry.kind == libc::S_IFDIR {
            directory.nlink += 1;
        }
        (directory.mtime, directory.ctime) = (caller.now, caller.now);
        self.row_bytes[2] += self.tables.entries.put((parent, name.into()), entry);
        self.put_inode(parent, directory);
        Ok(())
    }

    /// Takes a name away from a directory.
    fn take(
        &mut self,
        caller: &Caller,
        (parent, mut directory): (Ino, Inode),
        name: &[u8],
    ) -> Result<()> {
        let key = (parent, name.into());
        let entry = self.tables.entries.get(&key)?.ok_or(FsError::NotFound)?;
        directory.size = directory.size.saturating_sub(1);
        if entry.kind == libc::S_IFDIR {
            directory.nlink -= 1;
        }
        (directory.mtime, directory.ctime) = (caller.now, caller.now);
        self.tables.entries.remove(&key);
        self.put_inode(parent, directory);
        Ok(())
    }

    /// One name less; with the last one the inode becomes an orphan, or goes.
    fn unlink(&mut self, caller: &Caller, ino: Ino) -> Result<()> {
        let mut inode = self.tables.inode(ino)?;
        inode.nlink = match inode.is_directory() {
            true => 0,
            false => inode.nlink.saturating_sub(1),
        };
        inode.ctime = caller.now;
        self.put_inode(ino, inode);
        if inode.nlink > 0 {
            return Ok(());
        }
        if self.lookups.contains_key(&ino) {
            self.row_bytes[2] += self.tables.orphans.put(ino, ());
            return Ok(());
        }
        self.purge(ino)
    }

    /// As [`State::purge`], unless it was found again, or is gone by now.
    fn purge_orphan(&mut self, ino: Ino) -> Result<()> {
        let is_orphan = self.tables.orphans.get(&ino)?.is_some();
        match is_orphan && !self.lookups.contains_key(&ino) {
            true => self.purge(ino),
            false => Ok(()),
        }
    }

    /// Deletes an inode that nobody can reach any more, with all that it has.
    pub(super) fn purge(&mut self, ino: Ino) -> Result<()> {
        let inode = self.tables.inodes.get(&ino)?;
        if inode.is_none_or(|inode| inode.blocks > 0) {
            self.free_blocks_of(ino, 0, u64::MAX)?;
        }
        self.remove_attributes(ino)?;
        self.tables.targets.remove(&ino);
        self.tables.orphans.remove(&ino);
        self.tables.inodes.remove(&ino);
        self.writers.remove(&ino);
        self.sequence += 1;
        Ok(())
    }

    /// Renames; returns the entry that is still to be added where an injected fault has it in two.
    fn rename(
        &mut self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Entry>> {
        self.directory(parent)?;
        self.directory(to_parent)?;
        let moved = self.entry(parent, name)?.ok_or(FsError::NotFound)?;
        let replaced = self.entry(to_parent, to_name)?;
        match (mode, replaced) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if moved.kind == libc::S_IFDIR && self.is_within(to_parent, moved.ino)? {
            return Err(FsError::Invalid);
        }
        if let Some(other) = replaced {
            if other.ino == moved.ino {
                return Ok(None);
            }
            if mode == RenameMode::Exchange {
                if other.kind == libc::S_IFDIR && self.is_within(parent, other.ino)? {
                    return Err(FsError::Invalid);
                }
            } else {
                self.check_replaceable(moved, other)?;
            }
            let directory = self.directory(to_parent)?;
            self.take(caller, (to_parent, directory), to_name)?;
        }
        let directory = self.directory(parent)?;
        self.take(caller, (parent, directory), name)?;
        self.moved(caller, moved, to_parent)?;
        if is_injected(InjectedFault::RenameInTwo) && replaced.is_none() {
            return Ok(Some(moved));
        }
        let directory = self.directory(to_parent)?;
        self.add(caller, (to_parent, directory), to_name, moved)?;
        match (mode, replaced) {
            (RenameMode::Exchange, Some(other)) => {
                self.moved(caller, other, parent)?;
                let directory = self.directory(parent)?;
                self.add(caller, (parent, directory), name, other)?;
            }
            (_, Some(other)) => self.unlink(caller, other.ino)?,
            _ => {}
        }
        Ok(None)
    }

    /// Notes in what has moved that it did, and where it is.
    fn moved(&mut self, caller: &Caller, entry: Entry, parent: Ino) -> Result<()> {
        let mut inode = self.tables.inode(entry.ino)?;
        inode.ctime = caller.now;
        if inode.is_directory() {
            inode.parent = parent;
        }
        self.put_inode(entry.ino, inode);
        Ok(())
    }

    fn check_replaceable(&self, moved: Entry, replaced: Entry) -> Result<()> {
        let is_directory = |entry: Entry| entry.kind == libc::S_IFDIR;
        match (is_directory(moved), is_directory(replaced)) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) if self.directory(replaced.ino)?.size > 0 => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Whether directory `ino` is `ancestor`, or below it.
    fn is_within(&self, ino: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = ino;
        // Where parents go round in a circle, the walk comes back to one of those that it notes.
        let (mut noted, mut steps, mut steps_max) = (ROOT, 0_u64, 1);
        while at != ROOT {
            if at == ancestor {
                return Ok(true);
            }
            if at == noted {
                return Err(damaged(at, "its parent"));
            }
            if steps == steps_max {
                (noted, steps, steps_max) = (at, 0, steps_max * 2);
            }
            steps += 1;
            at = self.tables.inode(at)?.parent;
        }
        Ok(ancestor == ROOT)
    }
}

fn check_length(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::NotFound),
        len if len > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

/// A name that may be given to something.
fn check_name(name: &[u8]) -> Result<()> {
    check_length(name)?;
    match name {
        b"." | b".." => Err(FsError::Exists),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}
