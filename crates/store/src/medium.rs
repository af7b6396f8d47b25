//! Where a pool lies: bytes that are written, written back, and durable after a fence.
//!
//! After a crash each unit that was written since the last fence is as it was or as it is, whatever was
//! written back: 8 bytes of persistent memory, a sector of 512 bytes of a disk. A unit that was written
//! back before a fence which returned is durable.
//!
//! A medium is used by several threads: a server's writes new objects while the persister waits in a
//! fence. Bytes that others may change are copied, never referred to.

mod file;
mod model;
mod pm;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use cenote_fabric::Region;

pub use file::FileMedium;
pub use model::ModelMedium;
pub use pm::PmMedium;

/// Durable bytes.
pub trait Medium: Send + Sync {
    /// Bytes of it.
    fn len(&self) -> u64;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, as they were last written.
    ///
    /// # Panics
    /// If the range passes the end.
    fn read(&self, at: u64, out: &mut [u8]);

    /// Changes some. Not durable. Who sees a later [`store`](Self::store) sees them.
    ///
    /// # Panics
    /// If the range passes the end.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Changes 8 bytes at a multiple of 8, at once.
    ///
    /// # Panics
    /// If they pass the end.
    fn store(&self, at: u64, value: u64);

    /// Begins to make a range durable.
    ///
    /// # Errors
    /// Those of the medium, after which nothing is known of the range.
    fn write_back(&self, range: Range<u64>) -> io::Result<()>;

    /// The same of what a crash may take without harm, such as that a version is durable: recovery finds
    /// that out. Of a medium on which this costs as much as a value it is durable by chance.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    fn write_back_hint(&self, range: Range<u64>) -> io::Result<()>;

    /// Returns when what was written back is durable.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    fn fence(&self) -> io::Result<()>;

    /// Says that the next [`end_fence`](Self::end_fence) is for what was written back until now.
    fn begin_fence(&self) {}

    /// The fence that was begun, where somebody else waits for it: what is written back meanwhile need not be
    /// durable, and would be written half made.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    fn end_fence(&self) -> io::Result<()> {
        self.fence()
    }

    /// Whether a fence takes no longer than telling another thread of it: who needs something durable
    /// does it himself then. Such a fence counts for what its own thread wrote back.
    fn is_quick(&self) -> bool;

    /// Its bytes as memory that clients may read, if it has any.
    fn memory(&self) -> Option<&Arc<Region>>;

    /// Bytes that were made durable so far, in whole units.
    fn written_bytes(&self) -> u64 {
        0
    }
}

/// Reads 8 bytes.
pub(crate) fn load(medium: &impl Medium, at: u64) -> u64 {
    let mut bytes = [0; 8];
    medium.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::no_threads::without_threads;
    use std::time::Duration;

    fn bytes(medium: &impl Medium, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        medium.read(at, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_fenced_survives_and_the_rest_may() {
        let medium = ModelMedium::new(64, 8);
        medium.write(0, &[1; 16]);
        medium.write_back(0..8).unwrap();
        medium.fence().unwrap();
        medium.write(0, &[2; 8]);
        let kept = medium.crashed(|| true);
        assert_eq!(bytes(&kept, 0, 16), [[2; 8], [1; 8]].concat());
        let lost = medium.crashed(|| false);
        assert_eq!(bytes(&lost, 0, 16), [[1; 8], [0; 8]].concat());
    }

    #[test]
    fn a_file_has_what_was_fenced() {
        // A length of whole blocks, and one for which the page cache is needed.
        for len in [4 << 20, (4 << 20) - 512] {
            let file = tempfile::tempfile_in("/var/tmp").unwrap();
            file.set_len(len).unwrap();
            let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
            medium.write(1000, &[7; 100]);
            medium.write(len - 5000, &[6; 5000]);
            medium.write(2 << 20, &[8; 10]);
            medium.write_back(1000..1100).unwrap();
            medium.write_back(len - 5000..len).unwrap();
            medium.fence().unwrap();
            let again = FileMedium::open(file).unwrap();
            assert_eq!(bytes(&again, 1000, 100), [7; 100]);
            assert_eq!(bytes(&again, len - 5000, 5000), [6; 5000]);
            assert_eq!(bytes(&again, 2 << 20, 10), [0; 10]);
        }
    }

    #[test]
    fn a_fence_that_was_begun_is_for_what_was_written_back_before_that() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(1 << 20).unwrap();
        let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
        medium.write_back(0..1 << 20).unwrap();
        medium.fence().unwrap();
        let written = |medium: &FileMedium| medium.written_bytes() / 4096 - 256;
        let write = |at: u64| {
            medium.write(at, &[7; 100]);
            medium.write_back(at..at + 100).unwrap();
        };
        write(8192);
        medium.begin_fence();
        write(16384);
        medium.end_fence().unwrap();
        assert_eq!(written(&medium), 1);
        medium.begin_fence();
        write(32768);
        // A whole fence takes what was begun along, and nothing is left of that.
        medium.fence().unwrap();
        assert_eq!(written(&medium), 3);
        medium.end_fence().unwrap();
        assert_eq!(written(&medium), 3);
        let again = FileMedium::look(file).unwrap();
        for at in [8192, 16384, 32768] {
            assert_eq!(bytes(&again, at, 100), [7; 100]);
        }
    }

    #[test]
    fn what_is_new_of_a_file_is_written_alone_if_it_is_much_and_with_its_chunk_if_not() {
        const BLOCK: u64 = 4096;
        const CHUNK: u64 = 256 * BLOCK;
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(4 * CHUNK).unwrap();
        let open = || FileMedium::open(file.try_clone().unwrap()).unwrap();
        let blocks_of = |medium: &FileMedium, at: u64, count: u64| {
            let before = medium.written_bytes();
            medium.write(at, &[5; 100]);
            medium.write_back(at..at + count * BLOCK).unwrap();
            medium.fence().unwrap();
            (medium.written_bytes() - before) / BLOCK
        };
        let medium = open();
        assert_eq!(blocks_of(&medium, 3 * BLOCK, 1), 256, "all of its chunk");
        assert_eq!(blocks_of(&medium, 9 * BLOCK, 1), 1);
        assert_eq!(blocks_of(&medium, CHUNK, 64), 64);
        assert_eq!(
            blocks_of(&medium, CHUNK + 66 * BLOCK, 70),
            72,
            "what is before"
        );
        drop(medium);
        let medium = open();
        assert_eq!(blocks_of(&medium, CHUNK + 100 * BLOCK, 100), 100);
        assert_eq!(
            blocks_of(&medium, CHUNK + 200 * BLOCK, 1),
            56,
            "the rest of it"
        );
        // From the end of a chunk that is in use through two that are not.
        assert_eq!(
            blocks_of(&medium, 2 * CHUNK - BLOCK, 1 + 256 + 1),
            1 + 256 + 256
        );
        let again = open();
        for at in [3, 9, 256, 256 + 66, 256 + 100, 256 + 200, 511] {
            assert_eq!(bytes(&again, at * BLOCK, 100), [5; 100], "block {at}");
        }
    }

    /// Has a fence write blocks that are far from each other.
    fn write_far() {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(16 << 20).unwrap();
        let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
        // All blocks were written once.
        medium.write_back(0..16 << 20).unwrap();
        medium.fence().unwrap();
        let far: Vec<u64> = (0..1100).map(|count| 16384 + count * 8192).collect();
        for at in &far {
            medium.write(*at, &[2]);
            medium.write_back(*at..*at + 1).unwrap();
            // With it or not.
            medium.write(*at + 4096, &[3]);
            medium.write_back_hint(*at + 4096..*at + 4097).unwrap();
        }
        medium.fence().unwrap();
        assert_eq!(medium.written_bytes(), (16 << 20) + 4096 * 1100);
        let file = FileMedium::look(file).unwrap();
        assert!(far.iter().all(|at| bytes(&file, *at, 1) == [2]));
    }

    #[test]
    fn blocks_that_are_far_from_each_other_are_written_by_several() {
        write_far();
    }

    #[test]
    fn a_fence_writes_what_threads_would_that_cannot_be_started() {
        let test = "medium::tests::a_fence_writes_what_threads_would_that_cannot_be_started";
        without_threads(test, write_far);
    }

    #[test]
    fn persistent_memory_has_what_was_fenced_in_its_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let medium = PmMedium::open(file.try_clone().unwrap().into(), Duration::ZERO).unwrap();
        medium.write(1000, &[7; 100]);
        medium.store(2048, 9);
        medium.write_back(1000..2056).unwrap();
        medium.fence().unwrap();
        assert_eq!(medium.written_bytes(), 18 * 64);
        let again = FileMedium::open(file).unwrap();
        assert_eq!(bytes(&again, 1000, 100), [7; 100]);
        assert_eq!(load(&again, 2048), 9);
    }

    #[test]
    fn a_file_of_no_whole_sectors_is_refused() {
        for len in [0, 511, 513] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            let error = FileMedium::open(file).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
