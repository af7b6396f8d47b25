//! The file system: its tables and its space under one lock, which is never held over the medium's
//! I/O, and the commits that make changes durable.
//!
//! A request changes tables in memory, in one go; a commit takes all that was changed until then.
//! So what a crash leaves is the state after some request. Order of a commit: sync the data, make
//! the metadata durable, give the memory of freed blocks back, give the blocks again.
//!
//! Lock order: a range of a file, then the database, then the state.

mod attributes;
mod data;
mod directory;
mod extents;
mod names;
mod opening;
mod space_use;

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::area::lock;
use crate::database::{Database, Tables};
use crate::label::Label;
use crate::medium::{BLOCK_BYTES, Medium};
use crate::planted::{Planted, is_planted};
use crate::range_locks::RangeLocks;
use crate::records::{Ino, Inode, Timestamp};
use crate::space::{Run, Space};
use crate::{FsError, Result};

pub use attributes::{AttributeMode, Changed};
pub use data::{Seek, Write};
pub use directory::DirectoryEntry;
pub use names::{NewInode, RenameMode};
pub use opening::OpenError;
pub use space_use::Usage;

/// A file system that is open.
pub struct Files {
    medium: Arc<dyn Medium>,
    label: Arc<Mutex<Label>>,
    data_offset: u64,
    ranges: RangeLocks,
    database: Mutex<Database>,
    state: Mutex<State>,
}

/// Who asks, and when.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Caller {
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Time of the request.
    pub now: Timestamp,
}

/// All that requests change.
struct State {
    tables: Tables,
    space: Space,
    /// How often the kernel was told of an inode and has not forgotten it.
    lookups: HashMap<Ino, u64>,
    /// How many open files may write an inode.
    writers: HashMap<Ino, u32>,
    next_ino: Ino,
    /// Counts changes.
    sequence: u64,
    /// The last change that is durable.
    durable: u64,
    /// Bytes of rows: committed, being committed, and changed since.
    row_bytes: [u64; 3],
    /// A commit failed: nothing is changed any more.
    has_failed: bool,
}

/// Changed rows after which a request commits by itself; arbitrary, some 20 MiB of memory.
const CHANGED_MAX: usize = 64 << 10;

impl Files {
    /// Makes all changes until now durable.
    ///
    /// # Errors
    /// `Io`: which of them are durable is known after the next mount.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.state().sequence;
        self.commit_until(wanted)
    }

    /// Commits at least the changes up to `wanted`; one commit serves all who wait for it.
    fn commit_until(&self, wanted: u64) -> Result<()> {
        let database = lock(&self.database);
        let (batch, freed, sequence) = {
            let mut state = self.state();
            if state.has_failed {
                return Err(FsError::Io);
            }
            let is_done = state.durable >= wanted && !state.space.has_freed();
            if is_done || (state.tables.changed() == 0 && !state.space.has_freed()) {
                return Ok(());
            }
            let freed = state.space.take_freed();
            state.row_bytes[1] = std::mem::take(&mut state.row_bytes[2]);
            (state.tables.freeze(), freed, state.sequence)
        };
        let synced = match is_planted(Planted::MetadataBeforeData) {
            true => Ok(()),
            false => self.medium.sync().map_err(FsError::from),
        };
        let applied = synced.and_then(|()| database.apply(&batch));
        {
            let mut state = self.state();
            let Ok(snapshots) = applied else {
                state.has_failed = true;
                tracing::error!("metadata cannot be committed; nothing is changed until a mount");
                return Err(FsError::Io);
            };
            state.row_bytes[0] = snapshots.row_bytes;
            state.row_bytes[1] = 0;
            state.tables.thaw(snapshots);
            state.durable = sequence;
        }
        self.give_back(&freed);
        self.state().space.settle(&freed);
        Ok(())
    }

    /// Makes what was changed of one file durable, data and metadata.
    ///
    /// # Errors
    /// As [`Files::commit`].
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        let wanted = {
            let state = self.state();
            state.tables.inode(ino)?;
            state.sequence
        };
        // Bytes that were overwritten in place changed no table.
        self.medium.sync()?;
        self.commit_until(wanted)
    }

    /// Deletes files without a name, which nobody can reach any more, and commits.
    ///
    /// # Errors
    /// As [`Files::commit`].
    pub fn close(&self) -> Result<()> {
        let mut state = self.state();
        while let Some((ino, ())) = state.tables.orphans.next(Bound::Unbounded)? {
            state.purge(ino)?;
        }
        drop(state);
        self.commit()
    }

    /// Gives the memory of blocks back that no file has.
    fn give_back(&self, runs: &[Run]) {
        for run in runs {
            let offset = self.place(run.start);
            if let Err(error) = self.medium.discard(offset, run.len * BLOCK_BYTES) {
                // They are free all the same; the next mount tries again.
                tracing::warn!(%error, blocks = run.len, "give memory of freed blocks back");
            }
        }
    }

    /// Where a block of the data area is on the medium.
    fn place(&self, block: u64) -> u64 {
        self.data_offset + block * BLOCK_BYTES
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a request that changes something; once more after a commit where space that was freed
    /// may be what it lacks.
    fn change<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let mut outcome = run();
        if matches!(outcome, Err(FsError::NoSpace)) && self.is_space_coming() {
            self.commit()?;
            outcome = run();
        }
        if outcome.is_ok() && self.state().tables.changed() > CHANGED_MAX {
            // Whoever changes much waits for it.
            if let Err(error) = self.commit() {
                tracing::debug!(%error, "told by the next request");
            }
        }
        outcome
    }

    fn is_space_coming(&self) -> bool {
        let state = self.state();
        state.space.waiting_blocks() > 0 || state.tables.changed() > 0
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let snapshot = self.state().tables.inodes.snapshot();
        // So that nobody waits for the medium while the state is locked.
        snapshot.get(&ino)?;
        self.state().tables.inode(ino)
    }
}

impl State {
    /// Checks that changes can still be committed.
    fn writable(&self) -> Result<()> {
        match self.has_failed {
            true => Err(FsError::Io),
            false => Ok(()),
        }
    }

    fn put_inode(&mut self, ino: Ino, inode: Inode) {
        self.sequence += 1;
        self.row_bytes[2] += self.tables.inodes.put(ino, inode);
    }

    /// Notes that an inode was told of.
    fn remember(&mut self, ino: Ino) {
        *self.lookups.entry(ino).or_default() += 1;
    }
}
