//! How much room there is, for data and for metadata.

use super::{Files, State};
use crate::medium::BLOCK_BYTES;
use crate::{FsError, Result};

/// What a file system has and what of it is taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Usage {
    /// Blocks for data.
    pub total_blocks: u64,
    /// Blocks that no file has.
    pub free_blocks: u64,
    /// Files that there could be, about.
    pub total_inodes: u64,
    /// Files that there could be besides, about.
    pub free_inodes: u64,
}

/// What rows and the copies of a commit may take, in parts of the area: the rest stays free. redb
/// doubles its file when it is full, and may then use its end before what is free below; from less
/// than half of the area that end is still within it.
const USED: u64 = 2;
/// Pages take so many times the bytes of their rows: after deletions trees are a third full at worst,
/// and a batch has its pages twice until it is durable.
const SPREAD: u64 = 4;
/// Bytes of rows that a file takes, about: an inode, a name of 20 bytes, an extent.
const FILE_BYTES: u64 = 180;

impl Files {
    /// What there is and what is taken.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let limit = self.row_bytes_max();
        let state = self.state();
        let used = state.row_bytes_used();
        Usage {
            total_blocks: state.space.total_blocks(),
            free_blocks: state.space.free_blocks() + state.space.waiting_blocks(),
            total_inodes: limit / FILE_BYTES,
            free_inodes: limit.saturating_sub(used) / FILE_BYTES,
        }
    }

    /// Takes in what the medium has grown by.
    pub fn follow_size(&self) {
        let size_bytes = self.medium.size_bytes();
        if let Some(data_bytes) = size_bytes.checked_sub(self.data_offset) {
            self.state().space.grow(data_bytes / BLOCK_BYTES);
        }
    }

    /// Most bytes of rows that requests which add something may lead to.
    pub(super) fn row_bytes_max(&self) -> u64 {
        self.area_bytes / USED / SPREAD
    }
}

impl State {
    /// Bytes of all rows, those of a commit under way twice.
    fn row_bytes_used(&self) -> u64 {
        let all = self.row_bytes.iter();
        all.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Checks that there is room for another file or attribute of `bytes`.
    pub(super) fn check_room(&self, bytes: u64, limit: u64) -> Result<()> {
        match self.row_bytes_used().saturating_add(bytes) <= limit {
            true => Ok(()),
            false => Err(FsError::NoSpace),
        }
    }
}
