//! Opening a file system: making one on a blank medium, or taking over what the last owner left.
//!
//! What the last one did not finish is finished here: files without a name are deleted, and memory
//! of blocks that no file has is given back.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::{Caller, Files, State};
use crate::area::lock;
use crate::database::{Batch, Database, Snapshots, Tables, damaged};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::label::{Found, Label, SIZE_BYTES_MIN};
use crate::medium::{BLOCK_BYTES, Medium, MediumError};
use crate::range_locks::RangeLocks;
use crate::records::{Ino, Inode, ROOT};
use crate::space::{Run, Space};
use crate::table::Changes;
use crate::{FsError, Result};

/// Why there is no file system.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Too small for a file system.
    #[error("{size_bytes} bytes are too few for a file system, which takes {SIZE_BYTES_MIN}")]
    TooSmall {
        /// What there is.
        size_bytes: u64,
    },
    /// It holds something else, or a file system of another version.
    #[error("it holds something that is not a file system of this version")]
    Other,
    /// Two files have the same block, or the metadata is damaged.
    #[error("its metadata contradicts itself")]
    Damaged,
    /// It cannot be read or written.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// Its metadata cannot be read or written.
    #[error("its metadata cannot be read or written")]
    Metadata,
}

impl From<FsError> for OpenError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NoSpace => Self::Medium(MediumError::NoSpace),
            _ => Self::Metadata,
        }
    }
}

impl Files {
    /// Opens the file system on `medium`, or makes one where there is nothing; its root directory
    /// is the caller's then.
    ///
    /// # Errors
    /// [`OpenError`]; what is there was not changed, but for what an earlier owner left undone.
    pub fn open(medium: Arc<dyn Medium>, caller: Caller) -> Result<Self, OpenError> {
        let size_bytes = medium.size_bytes();
        let _span = tracing::info_span!("open files", cenote.bytes = size_bytes as i64).entered();
        if size_bytes < SIZE_BYTES_MIN {
            return Err(OpenError::TooSmall { size_bytes });
        }
        let label = match Label::find(&*medium)? {
            Found::Files(label) if label.is_whole => label,
            Found::Files(label) => Label {
                metadata_len: 0,
                ..label
            },
            Found::Blank => Label::of_size(size_bytes),
            Found::Other => return Err(OpenError::Other),
        };
        if !label.is_whole {
            label.write(&*medium)?;
        }
        let (data_offset, area_bytes) = (label.data_offset(), label.metadata_bytes);
        let label = Arc::new(Mutex::new(label));
        let database = Database::open(&medium, &label)?;
        if !lock(&label).is_whole {
            make_root(&database, caller)?;
            let mut label = lock(&label);
            label.is_whole = true;
            label.write(&*medium)?;
        }
        let snapshots = database.snapshots()?;
        let total_blocks = (size_bytes - data_offset) / BLOCK_BYTES;
        let (space, rows_to_come) = space_left(&snapshots, total_blocks)?;
        if snapshots.row_bytes > area_bytes {
            return Err(OpenError::Damaged);
        }
        let row_bytes = [snapshots.row_bytes, 0, 0];
        let database_bytes = lock(&label).metadata_len;
        let opening = database.opening().clone();
        let tables = Tables::new(snapshots);
        let newest = tables
            .inodes
            .last((Bound::Unbounded, Bound::Unbounded))?
            .filter(|(ino, _)| *ino < INO_END)
            .ok_or(OpenError::Damaged)?;
        // The next inodes would get what is left of others that were never there.
        if tables.last_named()? > newest.0 {
            return Err(OpenError::Damaged);
        }
        let files = Self {
            medium,
            label,
            data_offset,
            area_bytes,
            ranges: RangeLocks::default(),
            settled: AtomicU64::new(0),
            database: Mutex::new(database),
            state: Mutex::new(State {
                tables,
                space,
                lookups: HashMap::new(),
                writers: HashMap::new(),
                next_ino: newest.0 + 1,
                sequence: 0,
                durable: 0,
                row_bytes,
                rows_to_come,
                room_bytes: 0,
                rows_wanted: 0,
                pending: None,
                opening,
            }),
        };
        files.reserve(database_bytes);
        files.finish()?;
        Ok(files)
    }

    /// Does what the last owner left undone.
    fn finish(&self) -> Result<()> {
        if !is_injected(InjectedFault::OrphanForgotten) {
            self.close()?;
        }
        let free: Vec<Run> = self.state().space.runs().collect();
        for run in free {
            let (mut at, end) = (self.place(run.start), self.place(run.start + run.len));
            while at < end {
                let (is_held, to) = self.medium.allocation(at, end);
                if is_held {
                    let start = (at - self.data_offset) / BLOCK_BYTES;
                    let len = (to - at) / BLOCK_BYTES;
                    self.give_back(&[Run { start, len }]);
                }
                at = to;
            }
        }
        Ok(())
    }
}

/// No inode has this number or a larger one: a file system would have to make one each nanosecond for three
/// centuries. So a number may be added to.
const INO_END: Ino = 1 << 63;

/// What no file has of `total_blocks`, and how many rows writes to space set aside may add.
///
/// # Errors
/// `Damaged` where an extent is none, is outside, or has a block that another one has: of the data area or
/// of its file.
fn space_left(snapshots: &Snapshots, total_blocks: u64) -> Result<(Space, u64), OpenError> {
    let mut space = Space::new(total_blocks);
    let mut rows_to_come = 0;
    let mut is_damaged = false;
    // Rows come by file and block.
    let mut before = (0, 0);
    let read = snapshots.extents.each(|(ino, block), extent| {
        let (start, len) = (extent.start, extent.len);
        is_damaged = !extent.is_sound(block, total_blocks)
            || (ino, block) < before
            || !space.claim(Run { start, len });
        before = (ino, block.saturating_add(len));
        if !is_damaged {
            rows_to_come += extent.rows_to_come();
        }
        match is_damaged {
            true => Err(damaged(ino, "an extent")),
            false => Ok(()),
        }
    });
    match is_damaged {
        true => Err(OpenError::Damaged),
        false => Ok(read.map(|()| (space, rows_to_come))?),
    }
}

fn make_root(database: &Database, caller: Caller) -> Result<()> {
    let root = Inode {
        mode: libc::S_IFDIR | 0o755,
        uid: caller.uid,
        gid: caller.gid,
        nlink: 2,
        rdev: 0,
        size: 0,
        blocks: 0,
        parent: ROOT,
        atime: caller.now,
        mtime: caller.now,
        ctime: caller.now,
    };
    let batch = Batch {
        inodes: Arc::new(Changes::<crate::records::Inodes>::from([(
            ROOT,
            Some(root),
        )])),
        entries: Arc::default(),
        extents: Arc::default(),
        attributes: Arc::default(),
        targets: Arc::default(),
        orphans: Arc::default(),
    };
    database.apply(&batch).map(drop)
}

#[cfg(test)]
mod tests;
