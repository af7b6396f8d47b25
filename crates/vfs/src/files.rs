//! The file system: its tables and its space under one lock, which is never held over the medium's
//! I/O, and the commits that make changes durable.
//!
//! A request changes tables in memory, in one go; a commit takes all that was changed until then.
//! So what a crash leaves is the state after some request. A request that fails leaves nothing.
//!
//! Lock order: a range of a file, then the database, then the state.

mod attributes;
mod commits;
mod data;
mod directory;
mod extents;
mod holes;
mod names;
mod open;
mod space_use;
mod warm;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Result;
use crate::area::{Opening, lock};
use crate::database::{Database, Tables};
use crate::label::Label;
use crate::medium::{BLOCK_BYTES, Medium};
use crate::range_locks::RangeLocks;
use crate::records::{Ino, Inode, Timestamp};
use crate::space::Space;

use commits::Pending;

pub use attributes::{AttributeMode, Changed};
pub use data::{Seek, Write};
pub use directory::DirectoryEntry;
pub use names::{NewInode, RenameMode};
pub use open::OpenError;
pub use space_use::Usage;

/// A file system that is open.
pub struct Files {
    medium: Arc<dyn Medium>,
    label: Arc<Mutex<Label>>,
    data_offset: u64,
    /// Bytes of the metadata's area.
    area_bytes: u64,
    ranges: RangeLocks,
    /// Counts what may have given space back: ends of commits.
    settled: AtomicU64,
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
    /// Rows that writes to space set aside may add.
    rows_to_come: u64,
    /// Bytes of the metadata's area, from its beginning, that have memory.
    room_bytes: u64,
    /// Bytes of rows for which a request found no room; 0: none since that was looked at.
    rows_wanted: u64,
    /// A commit that has not ended well.
    pending: Option<Pending>,
    /// Whether the database can be used.
    opening: Opening,
}

impl Caller {
    /// Whether a file whose bytes it changes loses what lets it run as somebody else.
    pub(crate) fn drops_privileges(&self) -> bool {
        self.uid != 0
    }
}

impl Files {
    /// Where a block of the data area is on the medium.
    fn place(&self, block: u64) -> u64 {
        self.data_offset + block * BLOCK_BYTES
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        self.warm_inode(ino)?;
        self.state().tables.inode(ino)
    }
}

impl State {
    fn put_inode(&mut self, ino: Ino, inode: Inode) {
        self.sequence += 1;
        self.row_bytes[2] += self.tables.inodes.put(ino, inode);
    }

    /// Notes that an inode was told of.
    fn remember(&mut self, ino: Ino) {
        *self.lookups.entry(ino).or_default() += 1;
    }
}
