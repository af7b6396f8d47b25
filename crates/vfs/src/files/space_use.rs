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
/// What an extent's row takes.
pub(super) const EXTENT_BYTES: u64 = 33;

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
    /// Bytes of all rows, those of a commit under way twice, and of those that writes to space set aside
    /// may add.
    fn row_bytes_used(&self) -> u64 {
        let to_come = self.rows_to_come.saturating_mul(EXTENT_BYTES);
        let all = self.row_bytes.iter();
        all.fold(to_come, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Checks that there is room for another file or attribute of `bytes`.
    pub(super) fn check_room(&self, bytes: u64, limit: u64) -> Result<()> {
        match self.row_bytes_used().saturating_add(bytes) <= limit {
            true => Ok(()),
            false => Err(FsError::NoSpace),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::files::{Caller, NewInode, Write};
    use crate::medium::model::{ModelMedium, Survival};
    use crate::records::ROOT;

    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

    fn make(files: &Files, name: &[u8]) -> Result<u64> {
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        let made = files.make(&Caller::default(), ROOT, name, new);
        made.map(|(ino, _)| ino)
    }

    /// Makes files until there is no room for one.
    fn fill_with_names(files: &Files, prefix: char) {
        for number in 0.. {
            let name = format!("{prefix}{number:0>200}");
            if let Err(error) = make(files, name.as_bytes()) {
                assert_eq!(error, FsError::NoSpace);
                break;
            }
        }
    }

    /// Commits what was let through, and looks whether its rows are within their bound.
    fn check_rows(files: &Files) {
        files.commit().expect("what was let through can be kept");
        let (used, limit) = (files.state().row_bytes_used(), files.row_bytes_max());
        assert!(used <= limit, "{used} of {limit}");
    }

    #[test]
    fn rows_of_extents_that_are_parted_stay_within_their_bound() {
        let caller = Caller::default();
        let medium = Arc::new(ModelMedium::new(16 << 20));
        let files = Files::open(medium.clone(), caller).expect("a file system");
        let ino = make(&files, b"f").expect("a file");
        let blocks = files.usage().free_blocks * 9 / 10;
        let place = |block: u64| block * BLOCK_BYTES;
        let all = (0, place(blocks));
        let set_aside = files.allocate(&caller, ino, all, 0);
        set_aside.expect("nearly all of the space can be set aside");
        fill_with_names(&files, 'a');
        check_rows(&files);

        // What was set aside for writes is there, however they part it, also for the next owner.
        let write = |files: &Files, block| {
            let how = Write::default();
            let written = files.write(&caller, ino, place(block), &[7; 4096], how);
            written.expect("a write to space that was set aside");
        };
        let (half, full) = (blocks / 2, blocks);
        (1..half).step_by(2).for_each(|block| write(&files, block));
        check_rows(&files);
        drop(files);
        let medium = Arc::new(medium.crash(Survival::All));
        let files = Files::open(medium, caller).expect("a file system");
        check_rows(&files);
        (half..full)
            .step_by(2)
            .for_each(|block| write(&files, block));
        check_rows(&files);
        (0..full).for_each(|block| write(&files, block));
        check_rows(&files);
        assert_eq!(files.state().rows_to_come, 0);

        // All is one extent now. Holes that part it have room until names have taken it.
        fill_with_names(&files, 'b');
        let punched = (1..blocks)
            .step_by(2)
            .map(|block| files.allocate(&caller, ino, (place(block), BLOCK_BYTES), PUNCH))
            .take_while(Result::is_ok)
            .count();
        assert!(punched < 100, "{punched}");
        check_rows(&files);
        // One at the end adds no row.
        let last = files.allocate(&caller, ino, (place(blocks - 1), BLOCK_BYTES), PUNCH);
        last.expect("a hole");
        check_rows(&files);
    }

    #[test]
    fn space_that_was_set_aside_and_freed_leaves_its_room_to_others() {
        let caller = Caller::default();
        let medium = Arc::new(ModelMedium::new(16 << 20));
        let files = Files::open(medium, caller).expect("a file system");
        let ino = make(&files, b"f").expect("a file");
        let all = (0, 8 << 20);
        files.allocate(&caller, ino, all, 0).expect("space");
        assert_eq!(files.state().rows_to_come, 2047);
        let too_much = files.allocate(&caller, ino, (0, 1 << 30), 0);
        assert_eq!(too_much, Err(FsError::NoSpace));
        assert_eq!(files.state().rows_to_come, 2047);
        let hole = (BLOCK_BYTES, 2 * BLOCK_BYTES);
        files.allocate(&caller, ino, hole, PUNCH).expect("a hole");
        assert_eq!(files.state().rows_to_come, 2044);
        files.resize(ino, 0).expect("a cut");
        assert_eq!(files.state().rows_to_come, 0);
    }
}
