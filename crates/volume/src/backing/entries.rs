//! Pages on their way to the disk: a bounded number of entries, each with a buffer of its own.
//!
//! One buffer serves the hosts and the disk. A word per entry says who still refers to it.
//!
//! Invariant I1: an entry is free only when neither the hosts nor the disk refer to its buffer.
//! Paper: \[infiniswap17\] 4.3 (dispatch queue entries).

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use cenote_pool::injected_faults::{InjectedFault, is_injected};
use crossbeam_queue::ArrayQueue;
use memmap2::{MmapOptions, MmapRaw};

use crate::PAGE_BYTES;

/// The disk has not ended with the buffer.
const DISK: u32 = 1;
/// Hosts have not ended with it.
const HOSTS: u32 = 2;
/// The page's operation waits for the disk.
const AWAITED: u32 = 4;
/// The disk reported an error.
const FAILED: u32 = 8;

/// Where the page of an entry goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// To hosts, which acknowledge it, and to the disk behind that.
    Both,
    /// To the disk, which acknowledges it.
    Disk,
}

/// What a write that failed at its hosts finds of its disk part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskPart {
    /// It goes on; its end will be told.
    Pending,
    /// It has ended, well or not.
    Ended {
        /// Whether the page is on the disk.
        is_ok: bool,
    },
}

/// The entries of one disk queue.
pub struct Entries {
    memory: MmapRaw,
    words: Box<[AtomicU32]>,
    free: ArrayQueue<u32>,
}

impl Entries {
    /// Entries whose buffers are there already: a process that swaps to itself gets no memory later.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(count: u32) -> io::Result<Self> {
        let len = count as usize * PAGE_BYTES;
        let mut map = MmapOptions::new().len(len).map_anon()?;
        map.fill(0);
        let free = ArrayQueue::new(count as usize);
        for entry in 0..count {
            if free.push(entry).is_err() {
                unreachable!("as large as there are entries");
            }
        }
        Ok(Self {
            memory: map.into(),
            words: (0..count).map(|_| AtomicU32::new(0)).collect(),
            free,
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Entries in use.
    pub fn used(&self) -> usize {
        self.words.len() - self.free.len()
    }

    /// Whether none is free.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Whether an operation waits for the disk's part.
    pub fn is_awaited(&self, entry: u32) -> bool {
        self.words[entry as usize].load(Ordering::Acquire) & AWAITED != 0
    }

    /// A free entry, now the caller's.
    pub fn take(&self) -> Option<u32> {
        self.free.pop()
    }

    /// The entry's page, on a page boundary, which lives as long as `self`. Whoever refers to the
    /// entry may read it; whoever took it may write it until it is on its way.
    pub fn buffer(&self, entry: u32) -> *mut u8 {
        let offset = entry as usize * PAGE_BYTES;
        assert!(offset < self.memory.len(), "no entry {entry}");
        self.memory.as_mut_ptr().wrapping_add(offset)
    }

    /// Gives back an entry that nobody else refers to.
    pub fn free(&self, entry: u32) {
        let is_early = is_injected(InjectedFault::FreeEarly);
        debug_assert!(is_early || self.words[entry as usize].load(Ordering::Relaxed) == 0);
        // One that is freed too early is freed again by the disk, and may be there twice.
        if self.free.push(entry).is_err() && !is_early {
            unreachable!("as large as there are entries");
        }
    }

    /// The entry is about to go where `route` says.
    pub fn begin(&self, entry: u32, route: Route) {
        let word = match route {
            Route::Both => DISK | HOSTS,
            Route::Disk => DISK | AWAITED,
        };
        self.words[entry as usize].store(word, Ordering::Release);
    }

    /// Hosts have the page, and no verb refers to the buffer any more.
    pub fn end_hosts(&self, entry: u32) {
        let before = self.words[entry as usize].fetch_and(!HOSTS, Ordering::AcqRel);
        if before & DISK == 0 {
            self.reset(entry);
        } else if is_injected(InjectedFault::FreeEarly) {
            self.free(entry);
        }
    }

    /// Hosts failed, and no verb refers to the buffer any more: the disk's part is all there is.
    pub fn await_disk(&self, entry: u32) -> DiskPart {
        let before = self.words[entry as usize].fetch_xor(HOSTS | AWAITED, Ordering::AcqRel);
        if before & DISK != 0 {
            return DiskPart::Pending;
        }
        self.reset(entry);
        DiskPart::Ended {
            is_ok: before & FAILED == 0,
        }
    }

    /// The disk has ended with the buffer; whether an operation waits to be told.
    pub fn end_disk(&self, entry: u32, is_ok: bool) -> bool {
        let word = &self.words[entry as usize];
        if !is_ok {
            word.fetch_or(FAILED, Ordering::AcqRel);
        }
        let before = word.fetch_and(!DISK, Ordering::AcqRel);
        if before & HOSTS == 0 {
            self.reset(entry);
        }
        before & AWAITED != 0
    }

    fn reset(&self, entry: u32) {
        self.words[entry as usize].store(0, Ordering::Release);
        self.free(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_free_only_when_both_have_ended_with_it() {
        let entries = Entries::new(1).unwrap();
        for disk_first in [true, false] {
            let entry = entries.take().unwrap();
            entries.begin(entry, Route::Both);
            assert_eq!(entries.take(), None);
            if disk_first {
                assert!(!entries.end_disk(entry, true));
                assert_eq!(entries.take(), None, "verbs may refer to it");
                entries.end_hosts(entry);
            } else {
                entries.end_hosts(entry);
                assert_eq!(entries.take(), None, "the disk may refer to it");
                assert!(!entries.end_disk(entry, true));
            }
            assert_eq!(entries.used(), 0);
        }
    }

    #[test]
    fn a_write_that_failed_at_its_hosts_ends_with_its_disk_part() {
        let entries = Entries::new(1).unwrap();
        for is_ok in [true, false] {
            let early = entries.take().unwrap();
            entries.begin(early, Route::Both);
            assert!(!entries.end_disk(early, is_ok));
            assert_eq!(entries.await_disk(early), DiskPart::Ended { is_ok });

            let late = entries.take().unwrap();
            entries.begin(late, Route::Both);
            assert_eq!(entries.await_disk(late), DiskPart::Pending);
            assert_eq!(entries.take(), None);
            assert!(entries.end_disk(late, is_ok), "somebody waits for it");
            assert_eq!(entries.used(), 0);
        }
    }

    #[test]
    fn a_write_to_the_disk_alone_is_awaited_from_the_start() {
        let entries = Entries::new(1).unwrap();
        let entry = entries.take().unwrap();
        entries.begin(entry, Route::Disk);
        assert!(entries.end_disk(entry, true));
        assert_eq!(entries.used(), 0);
    }

    #[test]
    fn buffers_are_whole_pages_apart() {
        let entries = Entries::new(3).unwrap();
        let first = entries.buffer(0) as usize;
        assert_eq!(first % PAGE_BYTES, 0);
        assert_eq!(entries.buffer(2) as usize - first, 2 * PAGE_BYTES);
    }
}
