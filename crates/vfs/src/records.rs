//! What the tables of the metadata hold: keys, values, and how redb stores each.
//!
//! Rows are tuples of redb's own types; the tables' names carry a number that changes with them.

use std::fmt::Debug;

use redb::TableDefinition;

use crate::FILE_BYTES_MAX;
use crate::medium::BLOCK_BYTES;

/// Most blocks of a file.
const FILE_BLOCKS_MAX: u64 = FILE_BYTES_MAX / BLOCK_BYTES;

/// Number of an inode; never given twice while a file system is mounted.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// A point in time, since 1970.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after them.
    pub nanos: u32,
}

/// An inode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inode {
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory 2 and one for each directory in it.
    pub nlink: u32,
    /// Which device it is, if it is one.
    pub rdev: u32,
    /// Size in bytes; of a directory its entries.
    pub size: u64,
    /// Blocks that its extents have.
    pub blocks: u64,
    /// Directory that it is in; of directories alone.
    pub parent: Ino,
    /// Last access, as far as a program set it.
    pub atime: Timestamp,
    /// Last change of its bytes.
    pub mtime: Timestamp,
    /// Last change of anything.
    pub ctime: Timestamp,
}

impl Inode {
    /// Kind, as `st_mode & S_IFMT`.
    #[must_use]
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// Whether its numbers are such as requests lead to. Sums with those of others then fit.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.size <= FILE_BYTES_MAX && self.blocks <= FILE_BLOCKS_MAX && self.nlink < u32::MAX
    }
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Its kind, as `st_mode & S_IFMT`.
    pub kind: u32,
}

/// A run of blocks of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Its first block in the data area.
    pub start: u64,
    /// Blocks in it, not 0.
    pub len: u64,
    /// Whether the blocks hold the file's bytes; if not, they are set aside and read as zeros.
    pub is_written: bool,
}

impl Extent {
    /// Whether a file may have it at block `block`, on a data area of `total_blocks`.
    #[must_use]
    pub fn is_sound(&self, block: u64, total_blocks: u64) -> bool {
        let is_within = |start: u64, end: u64| {
            let last = start.checked_add(self.len);
            last.is_some_and(|last| last <= end)
        };
        self.len > 0 && is_within(block, FILE_BLOCKS_MAX) && is_within(self.start, total_blocks)
    }

    /// Rows that writes may add to its own, where it is set aside and not written: with that one it
    /// makes a row for each block at most.
    #[must_use]
    pub fn rows_to_come(&self) -> u64 {
        match self.is_written {
            true => 0,
            false => self.len.saturating_sub(1),
        }
    }
}

/// A table: its types here, and redb's.
pub trait Rows: Debug + Send + Sync + 'static {
    /// Key.
    type Key: Clone + Debug + Ord + Send + Sync;
    /// Value.
    type Value: Clone + Debug + PartialEq + Send + Sync;
    /// Key, as redb has it.
    type StoredKey: redb::Key + 'static;
    /// Value, as redb has it.
    type StoredValue: redb::Value + 'static;

    /// Name and types of the table.
    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue>;

    /// To redb's key.
    fn store_key(key: &Self::Key) -> <Self::StoredKey as redb::Value>::SelfType<'_>;
    /// From redb's key.
    fn load_key(key: <Self::StoredKey as redb::Value>::SelfType<'_>) -> Self::Key;
    /// To redb's value.
    fn store(value: &Self::Value) -> <Self::StoredValue as redb::Value>::SelfType<'_>;
    /// From redb's value.
    fn load(value: <Self::StoredValue as redb::Value>::SelfType<'_>) -> Self::Value;
    /// About how many bytes the row takes, without what a tree adds.
    fn row_bytes(key: &Self::Key, value: &Self::Value) -> u64;
}

/// Inodes by number.
#[derive(Debug)]
pub struct Inodes;

impl Rows for Inodes {
    type Key = Ino;
    type Value = Inode;
    type StoredKey = u64;
    type StoredValue = (
        (u32, u32, u32, u32, u32),
        (u64, u64, u64),
        (i64, u32, i64, u32, i64, u32),
    );

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("inodes-1");

    fn store_key(key: &Ino) -> u64 {
        *key
    }

    fn load_key(key: u64) -> Ino {
        key
    }

    fn store(inode: &Inode) -> Self::StoredValue {
        let (a, m, c) = (inode.atime, inode.mtime, inode.ctime);
        (
            (inode.mode, inode.uid, inode.gid, inode.nlink, inode.rdev),
            (inode.size, inode.blocks, inode.parent),
            (a.seconds, a.nanos, m.seconds, m.nanos, c.seconds, c.nanos),
        )
    }

    fn load(stored: Self::StoredValue) -> Inode {
        let ((mode, uid, gid, nlink, rdev), (size, blocks, parent), times) = stored;
        let time = |seconds, nanos| Timestamp { seconds, nanos };
        Inode {
            mode,
            uid,
            gid,
            nlink,
            rdev,
            size,
            blocks,
            parent,
            atime: time(times.0, times.1),
            mtime: time(times.2, times.3),
            ctime: time(times.4, times.5),
        }
    }

    fn row_bytes(_: &Ino, _: &Inode) -> u64 {
        8 + 20 + 24 + 36
    }
}

/// Names by directory.
#[derive(Debug)]
pub struct Entries;

impl Rows for Entries {
    type Key = (Ino, Box<[u8]>);
    type Value = Entry;
    type StoredKey = (u64, &'static [u8]);
    type StoredValue = (u64, u32);

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("entries-1");

    fn store_key(key: &Self::Key) -> (u64, &[u8]) {
        (key.0, &key.1)
    }

    fn load_key(key: (u64, &[u8])) -> Self::Key {
        (key.0, key.1.into())
    }

    fn store(entry: &Entry) -> (u64, u32) {
        (entry.ino, entry.kind)
    }

    fn load((ino, kind): (u64, u32)) -> Entry {
        Entry { ino, kind }
    }

    fn row_bytes(key: &Self::Key, _: &Entry) -> u64 {
        8 + key.1.len() as u64 + 8 + 12
    }
}

/// Extents by file and first block in it; they do not overlap.
#[derive(Debug)]
pub struct Extents;

impl Rows for Extents {
    type Key = (Ino, u64);
    type Value = Extent;
    type StoredKey = (u64, u64);
    type StoredValue = (u64, u64, bool);

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("extents-1");

    fn store_key(key: &Self::Key) -> (u64, u64) {
        *key
    }

    fn load_key(key: (u64, u64)) -> Self::Key {
        key
    }

    fn store(extent: &Extent) -> (u64, u64, bool) {
        (extent.start, extent.len, extent.is_written)
    }

    fn load((start, len, is_written): (u64, u64, bool)) -> Extent {
        Extent {
            start,
            len,
            is_written,
        }
    }

    fn row_bytes(_: &Self::Key, _: &Extent) -> u64 {
        16 + 17
    }
}

/// Extended attributes by inode and name.
#[derive(Debug)]
pub struct Attributes;

impl Rows for Attributes {
    type Key = (Ino, Box<[u8]>);
    type Value = Box<[u8]>;
    type StoredKey = (u64, &'static [u8]);
    type StoredValue = &'static [u8];

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("attributes-1");

    fn store_key(key: &Self::Key) -> (u64, &[u8]) {
        (key.0, &key.1)
    }

    fn load_key(key: (u64, &[u8])) -> Self::Key {
        (key.0, key.1.into())
    }

    fn store(value: &Self::Value) -> &[u8] {
        value
    }

    fn load(value: &[u8]) -> Self::Value {
        value.into()
    }

    fn row_bytes(key: &Self::Key, value: &Self::Value) -> u64 {
        16 + key.1.len() as u64 + 8 + value.len() as u64
    }
}

/// Targets of symbolic links.
#[derive(Debug)]
pub struct Targets;

impl Rows for Targets {
    type Key = Ino;
    type Value = Box<[u8]>;
    type StoredKey = u64;
    type StoredValue = &'static [u8];

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("targets-1");

    fn store_key(key: &Ino) -> u64 {
        *key
    }

    fn load_key(key: u64) -> Ino {
        key
    }

    fn store(value: &Self::Value) -> &[u8] {
        value
    }

    fn load(value: &[u8]) -> Self::Value {
        value.into()
    }

    fn row_bytes(_: &Ino, value: &Self::Value) -> u64 {
        16 + value.len() as u64
    }
}

/// Inodes without a name that somebody may still use.
#[derive(Debug)]
pub struct Orphans;

impl Rows for Orphans {
    type Key = Ino;
    type Value = ();
    type StoredKey = u64;
    type StoredValue = ();

    const TABLE: TableDefinition<'static, Self::StoredKey, Self::StoredValue> =
        TableDefinition::new("orphans-1");

    fn store_key(key: &Ino) -> u64 {
        *key
    }

    fn load_key(key: u64) -> Ino {
        key
    }

    fn store((): &()) {}

    fn load((): ()) {}

    fn row_bytes(_: &Ino, (): &()) -> u64 {
        8
    }
}
