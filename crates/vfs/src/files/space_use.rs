//! How much room there is, for data and for metadata.

use std::sync::atomic::Ordering;

use super::{Files, State};
use crate::area::lock;
use crate::medium::{BLOCK_BYTES, MediumError};
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
/// Of the area, the part that gets memory at a time, beginning with the first; arbitrary: little beside
/// what a volume of a few times its hosts' memory has.
const ROOM_SHARE: u64 = 16;
/// Least bytes of that; arbitrary: a batch may be a thousand rows then, and no volume below 1 GiB notices.
const ROOM_BYTES_MIN: u64 = 64 << 20;
/// Bytes of rows that a file takes, about: an inode, a name of 20 bytes, an extent.
const FILE_BYTES: u64 = 180;
/// What an extent's row takes.
pub(super) const EXTENT_BYTES: u64 = 33;

impl Files {
    /// What there is and what is taken.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let limit = self.row_bytes_most();
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

    /// Most bytes of rows that there may ever be.
    fn row_bytes_most(&self) -> u64 {
        rows_in(self.area_bytes)
    }

    /// Gets memory for more of the metadata's area where that is what requests lacked; whether there is
    /// more room now.
    ///
    /// Data may take the last memory of a volume. A commit that then needs a part of the area that was
    /// never written to would fail, and without commits nothing can be deleted. So rows stay within what
    /// the beginning of the area bears that has memory.
    pub(super) fn make_room(&self) -> bool {
        let wanted = self.state().rows_wanted;
        if wanted == 0 || wanted > self.row_bytes_most() {
            return false;
        }
        // No commit writes to what is reserved meanwhile, and who lacks room as well waits for it.
        let _database = lock(&self.database);
        let before = self.state().room_bytes;
        let room_bytes = self.room_for(wanted);
        if room_bytes > before {
            let start = self.data_offset - self.area_bytes;
            let reserved = self.medium.reserve(start + before, room_bytes - before);
            if let Err(error) = reserved {
                // Said where it was met; the request tells it.
                tracing::debug!(%error, "get memory for more metadata");
                self.state().rows_wanted = 0;
                return false;
            }
        }
        let mut state = self.state();
        (state.room_bytes, state.rows_wanted) = (room_bytes.max(before), 0);
        // Others may have been refused meanwhile.
        self.settled.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The part of the area that is to have memory before so many bytes of rows are in it.
    fn room_for(&self, row_bytes: u64) -> u64 {
        let step = (self.area_bytes / ROOM_SHARE).max(ROOM_BYTES_MIN);
        let bytes = row_bytes.saturating_mul(USED * SPREAD).max(1);
        let room_bytes = bytes.div_ceil(step).saturating_mul(step);
        room_bytes.min(self.area_bytes)
    }

    /// Gets memory for the part of the area that a database of `database_bytes` may use, at the mount; for
    /// less where there is less. Without any nothing can be added until there is.
    pub(super) fn reserve(&self, database_bytes: u64) {
        let start = self.data_offset - self.area_bytes;
        let needed = database_bytes.min(self.area_bytes);
        let wanted = self.room_for(self.state().row_bytes_used()).max(needed);
        let mut room_bytes = wanted;
        while room_bytes > 0 {
            room_bytes = match self.medium.reserve(start, room_bytes) {
                Ok(()) => break,
                Err(MediumError::NoSpace) => room_bytes / 2 / BLOCK_BYTES * BLOCK_BYTES,
                // Less is no better; a request that needs some asks again.
                Err(MediumError::Io) => 0,
            };
        }
        if room_bytes < wanted {
            tracing::warn!(
                room_bytes,
                wanted,
                "metadata has less memory than it may need"
            );
        }
        self.state().room_bytes = room_bytes;
    }
}

/// Most bytes of rows in so much of an area.
fn rows_in(area_bytes: u64) -> u64 {
    area_bytes / USED / SPREAD
}

impl State {
    /// Bytes of all rows, those of a commit under way twice, and of those that writes to space set aside
    /// may add.
    pub(super) fn row_bytes_used(&self) -> u64 {
        let to_come = self.rows_to_come.saturating_mul(EXTENT_BYTES);
        let all = self.row_bytes.iter();
        all.fold(to_come, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Checks that there is room for another file or attribute of `bytes`.
    pub(super) fn check_room(&mut self, bytes: u64) -> Result<()> {
        let wanted = self.row_bytes_used().saturating_add(bytes);
        if wanted <= self.row_bytes_max() {
            return Ok(());
        }
        self.rows_wanted = wanted;
        Err(FsError::NoSpace)
    }

    /// Most bytes of rows that requests which add something may lead to.
    fn row_bytes_max(&self) -> u64 {
        rows_in(self.room_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::files::{Caller, NewInode, Write};
    use crate::medium::MediumError;
    use crate::medium::faulty::{Access, Faulty};
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
        let (used, limit) = (files.state().row_bytes_used(), files.row_bytes_most());
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

    /// Extents of a medium that gets memory for all of one with the first write there, until there is none.
    struct Extents {
        mapped: Mutex<BTreeSet<u64>>,
        is_full: AtomicBool,
    }

    impl Extents {
        const BYTES: u64 = 64 << 10;

        fn take(&self, offset: u64, len_bytes: u64) -> Option<MediumError> {
            let mut mapped = self.mapped.lock().expect("no panic");
            let wanted = offset / Self::BYTES..(offset + len_bytes).div_ceil(Self::BYTES);
            let mut new = wanted.filter(|extent| !mapped.contains(extent)).peekable();
            if self.is_full.load(Ordering::Relaxed) && new.peek().is_some() {
                return Some(MediumError::NoSpace);
            }
            let new: Vec<u64> = new.collect();
            mapped.extend(new);
            None
        }

        fn has_memory(&self, offset: u64) -> (bool, u64) {
            let extent = offset / Self::BYTES;
            let mapped = self.mapped.lock().expect("no panic");
            (mapped.contains(&extent), (extent + 1) * Self::BYTES)
        }
    }

    /// A file system whose medium has memory until it is told that there is none.
    fn on_extents() -> (Files, Arc<Extents>) {
        let medium = Arc::new(Faulty::new(64 << 20));
        let extents = Arc::new(Extents {
            mapped: Mutex::default(),
            is_full: AtomicBool::new(false),
        });
        let asked = Arc::clone(&extents);
        medium.refuse(move |access| match access {
            Access::Write(offset, len) | Access::Reserve(offset, len) => asked.take(offset, len),
            Access::Read | Access::Discard(..) => None,
        });
        let asked = Arc::clone(&extents);
        medium.have_memory(move |offset| asked.has_memory(offset));
        let files = Files::open(medium, Caller::default()).expect("a file system");
        (files, extents)
    }

    #[test]
    fn names_can_be_added_and_deleted_when_data_has_taken_the_last_memory() {
        let caller = Caller::default();
        let (files, extents) = on_extents();
        let ino = make(&files, b"big").expect("a file");
        let bytes = vec![7; 1 << 20];
        let how = Write::default();
        let written = files.write(&caller, ino, 0, &bytes, how);
        written.expect("a write while there is memory");
        extents.is_full.store(true, Ordering::Relaxed);
        let refused = files.write(&caller, ino, 32 << 20, &bytes, how);
        assert_eq!(refused, Err(FsError::NoSpace));
        fill_with_names(&files, 'a');
        check_rows(&files);
        files.unlink(&caller, ROOT, b"big").expect("a deletion");
        files.forget(ino, 1).expect("nobody has it");
        files.commit().expect("the deletion is kept");
    }

    #[test]
    fn space_that_was_set_aside_can_be_written_when_others_have_taken_the_last_memory() {
        const BYTES: u64 = 4 << 20;
        let caller = Caller::default();
        let (files, extents) = on_extents();
        let ino = make(&files, b"f").expect("a file");
        let set_aside = files.allocate(&caller, ino, (0, BYTES), 0);
        set_aside.expect("space while there is memory");
        extents.is_full.store(true, Ordering::Relaxed);
        let (bytes, how) = (vec![7; BYTES as usize], Write::default());
        let written = files.write(&caller, ino, 0, &bytes, how);
        written.expect("a write to space that was set aside");
        // What there is no memory for is refused, and is still free.
        let free_blocks = files.usage().free_blocks;
        let refused = files.allocate(&caller, ino, (BYTES, 2 * BYTES), 0);
        assert_eq!(refused, Err(FsError::NoSpace));
        assert_eq!(files.usage().free_blocks, free_blocks);
    }

    #[test]
    fn blocks_that_have_memory_are_taken_where_there_is_none_for_others() {
        let caller = Caller::default();
        let (files, extents) = on_extents();
        let how = Write::default();
        // Of each extent of a file one block stays.
        let old = make(&files, b"old").expect("a file");
        let count = (4 << 20) / Extents::BYTES;
        let bytes = vec![7; 4 << 20];
        files.write(&caller, old, 0, &bytes, how).expect("memory");
        let per_extent = Extents::BYTES / BLOCK_BYTES;
        for extent in 0..count {
            let hole = (extent * per_extent + 1, per_extent - 1);
            let hole = (hole.0 * BLOCK_BYTES, hole.1 * BLOCK_BYTES);
            files.allocate(&caller, old, hole, PUNCH).expect("a hole");
        }
        files.commit().expect("a commit");
        extents.is_full.store(true, Ordering::Relaxed);
        // Only there is room: in one write, in many, and for space that is set aside.
        let third = count * (per_extent - 1) / 3 * BLOCK_BYTES;
        let new: Vec<u8> = (0..third).map(|at| (at / 100) as u8).collect();
        let [whole, parts, aside] =
            [&b"whole"[..], b"parts", b"aside"].map(|name| make(&files, name).expect("a file"));
        let whole_written = files.write(&caller, whole, 0, &new, how);
        whole_written.expect("memory is there");
        for (number, part) in new.chunks(12_345).enumerate() {
            let offset = number as u64 * 12_345;
            let written = files.write(&caller, parts, offset, part, how);
            written.expect("memory is there");
        }
        let set_aside = files.allocate(&caller, aside, (0, third), 0);
        set_aside.expect("memory is there");
        let aside_written = files.write(&caller, aside, 0, &new, how);
        aside_written.expect("it was set aside");
        for ino in [whole, parts, aside] {
            let mut read = vec![0; new.len()];
            assert_eq!(files.read(ino, 0, &mut read), Ok(new.len()));
            assert!(read == new);
        }
        // What there is no memory for is refused, and takes nothing.
        let free_blocks = files.usage().free_blocks;
        let refused = files.write(&caller, whole, third, &bytes, how);
        assert_eq!(refused, Err(FsError::NoSpace));
        assert_eq!(files.usage().free_blocks, free_blocks);
        files.commit().expect("a commit");
        assert_eq!(files.usage().free_blocks, files.state().space.free_blocks());
    }

    #[test]
    fn memory_that_no_commit_will_give_back_is_asked_for_once() {
        let caller = Caller::default();
        let medium = Arc::new(Faulty::new(16 << 30));
        let files = Files::open(medium.clone(), caller).expect("a file system");
        let ino = make(&files, b"f").expect("a file");
        let other = make(&files, b"other").expect("a file");
        files.commit().expect("a commit");
        let asked = Arc::new(AtomicUsize::new(0));
        let (times, data_offset) = (Arc::clone(&asked), files.data_offset);
        medium.refuse(move |access| match access {
            Access::Reserve(offset, _) if offset >= data_offset => {
                times.fetch_add(1, Ordering::Relaxed);
                Some(MediumError::NoSpace)
            }
            _ => None,
        });
        let set_aside = || files.allocate(&caller, ino, (0, 1 << 20), 0);
        assert_eq!(set_aside(), Err(FsError::NoSpace));
        assert_eq!(asked.swap(0, Ordering::Relaxed), 1);
        let (bytes, how) = ([7; BLOCK_BYTES as usize], Write::default());
        files.write(&caller, other, 0, &bytes, how).expect("room");
        let punched = files.allocate(&caller, other, (0, BLOCK_BYTES), PUNCH);
        punched.expect("a hole");
        assert_eq!(set_aside(), Err(FsError::NoSpace));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "again after a commit");
    }

    #[test]
    fn rows_that_need_more_of_the_area_get_memory_for_it_or_are_refused() {
        const GIB: u64 = 1 << 30;
        let caller = Caller::default();
        const STEP: u64 = GIB / ROOM_SHARE;
        let medium = Arc::new(Faulty::new(16 * GIB));
        medium.refuse(|access| match access {
            Access::Reserve(_, len) if len > STEP / 4 => Some(MediumError::NoSpace),
            _ => None,
        });
        let files = Files::open(medium.clone(), caller).expect("a file system");
        let ino = make(&files, b"f").expect("a file");
        assert_eq!(files.state().room_bytes, STEP / 4, "what there was");
        let is_reserve = |access: Access| matches!(access, Access::Reserve(..));
        medium.refuse(move |access| is_reserve(access).then_some(MediumError::NoSpace));
        let set_aside = || files.allocate(&caller, ino, (0, 8 * GIB), 0);
        assert_eq!(set_aside(), Err(FsError::NoSpace));
        let (start, data_offset) = (BLOCK_BYTES, files.data_offset);
        medium.refuse(move |access| match access {
            Access::Reserve(offset, len) if offset < data_offset => {
                assert_eq!((offset, len), (start + STEP / 4, 9 * STEP - STEP / 4));
                None
            }
            _ => None,
        });
        assert_eq!(set_aside(), Ok(false));
        assert_eq!(files.state().room_bytes, 9 * STEP);
        files.commit().expect("a commit");
        medium.refuse(|_| None);
        drop(files);
        let files = Files::open(medium, caller);
        assert!(matches!(files, Ok(files) if files.state().room_bytes == 9 * STEP));
    }
}
