//! A disk in memory that a test holds back, and has fail.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_volume::{Backing, Device, Transfer};

const PAGE: usize = 4096;

/// What every queue of the disk shares.
#[derive(Clone, Default)]
pub struct TestDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pages: BTreeMap<u64, [u8; PAGE]>,
    /// Writes end only when this is clear.
    holds_writes: bool,
    /// As if it were set for writes of these pages, alone or with others.
    held_pages: Vec<u64>,
    /// First pages of transfers that were held so far.
    held_at: Vec<u64>,
    /// Its queues do nothing, and take nothing in.
    is_stuck: bool,
    fails_writes: bool,
    fails_reads: bool,
    /// Writes of this page fail, alone or with others.
    bad_page: Option<u64>,
    /// Transfers that fail as they come, for want of memory, before others succeed.
    passing_failures: u32,
    /// One transfer ends at a time, in the order in which they began.
    is_slow: bool,
    reads: u64,
    writes: u64,
}

struct Queue {
    disk: TestDisk,
    under_way: Vec<Transfer>,
}

// SAFETY: the pointers of transfers are good on any thread until their end.
unsafe impl Send for Queue {}

impl TestDisk {
    /// A store of two queues over it, mapped on the first write unless told otherwise.
    pub fn backing(&self) -> Backing {
        let queue = || {
            let queue = Queue {
                disk: self.clone(),
                under_way: Vec::new(),
            };
            Box::new(queue) as Box<dyn Device>
        };
        Backing {
            hot_slab: 0.0,
            ..Backing::over(vec![queue(), queue()])
        }
    }

    /// What it has of a page.
    pub fn page(&self, page: u64) -> Option<[u8; PAGE]> {
        self.0.lock().unwrap().pages.get(&page).copied()
    }

    /// Has it say something else of a page.
    pub fn set_page(&self, page: u64, bytes: [u8; PAGE]) {
        self.0.lock().unwrap().pages.insert(page, bytes);
    }

    pub fn hold_writes(&self, holds: bool) {
        self.0.lock().unwrap().holds_writes = holds;
    }

    /// Writes of these pages, and of no others, do not end.
    pub fn hold_pages(&self, pages: &[u64]) {
        self.0.lock().unwrap().held_pages = pages.to_vec();
    }

    /// Whether a transfer that begins with this page was held.
    pub fn has_held(&self, page: u64) -> bool {
        self.0.lock().unwrap().held_at.contains(&page)
    }

    /// Its queues stand still, or go on.
    pub fn stick(&self, is_stuck: bool) {
        self.0.lock().unwrap().is_stuck = is_stuck;
    }

    pub fn fail_writes(&self, fails: bool) {
        self.0.lock().unwrap().fails_writes = fails;
    }

    pub fn fail_reads(&self, fails: bool) {
        self.0.lock().unwrap().fails_reads = fails;
    }

    pub fn break_page(&self, page: Option<u64>) {
        self.0.lock().unwrap().bad_page = page;
    }

    /// The next so many transfers fail for want of memory.
    pub fn run_short(&self, transfers: u32) {
        self.0.lock().unwrap().passing_failures = transfers;
    }

    /// Ends one transfer at a time.
    pub fn slow_down(&self) {
        self.0.lock().unwrap().is_slow = true;
    }

    /// Pages read and written so far.
    pub fn moved(&self) -> (u64, u64) {
        let state = self.0.lock().unwrap();
        (state.reads, state.writes)
    }

    /// First byte of a page on the disk.
    pub fn first_byte(&self, page: u64) -> Option<u8> {
        let state = self.0.lock().unwrap();
        state.pages.get(&page).map(|page| page[0])
    }
}

impl Device for Queue {
    unsafe fn start(&mut self, transfer: Transfer) {
        self.under_way.push(transfer);
    }

    fn wait(
        &mut self,
        bell: RawFd,
        may_block: bool,
        ended: &mut Vec<(u32, io::Result<()>)>,
    ) -> io::Result<()> {
        /// A test may let writes go without ringing.
        const LOOK: Duration = Duration::from_millis(1);
        loop {
            let mut state = self.disk.0.lock().unwrap();
            if state.is_stuck {
                drop(state);
                std::thread::sleep(LOOK);
                continue;
            }
            let mut held = Vec::new();
            if state.is_slow && !self.under_way.is_empty() {
                // First come, first served, and no more than one.
                let transfer = self.under_way.remove(0);
                ended.push((transfer.token, state.carry_out(&transfer)));
                return Ok(());
            }
            // Last come, first served: a disk keeps no order.
            while let Some(transfer) = self.under_way.pop() {
                if state.holds(&transfer) {
                    state.held_at.push(pages_of(&transfer).start);
                    held.push(transfer);
                } else {
                    ended.push((transfer.token, state.carry_out(&transfer)));
                }
            }
            drop(state);
            held.reverse();
            self.under_way = held;
            let mut fd = libc::pollfd {
                fd: bell,
                events: libc::POLLIN,
                revents: 0,
            };
            let millis = LOOK.as_millis() as i32 * i32::from(ended.is_empty() && may_block);
            // SAFETY: `fd` is one valid entry for the call.
            let rings = unsafe { libc::poll(&raw mut fd, 1, millis) } > 0;
            if rings || !ended.is_empty() || !may_block {
                return Ok(());
            }
        }
    }
}

/// The pages of a transfer.
fn pages_of(transfer: &Transfer) -> Range<u64> {
    let first = transfer.offset / PAGE as u64;
    first..first + u64::from(transfer.count)
}

impl State {
    fn holds(&self, transfer: &Transfer) -> bool {
        let pages = pages_of(transfer);
        let mut held = self.held_pages.iter();
        transfer.is_write && (self.holds_writes || held.any(|page| pages.contains(page)))
    }

    fn carry_out(&mut self, transfer: &Transfer) -> io::Result<()> {
        let fails = if transfer.is_write {
            self.fails_writes
        } else {
            self.fails_reads
        };
        if fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if self.passing_failures > 0 {
            self.passing_failures -= 1;
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let pages = pages_of(transfer);
        if transfer.is_write && self.bad_page.is_some_and(|bad| pages.contains(&bad)) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        // SAFETY: valid until the transfer's end, which the caller tells after this.
        let vectors =
            unsafe { std::slice::from_raw_parts(transfer.vectors, transfer.count as usize) };
        for (page, vector) in pages.zip(vectors) {
            assert_eq!(vector.iov_len, PAGE);
            // SAFETY: as above; of a read the buffer is this transfer's alone.
            unsafe {
                if transfer.is_write {
                    self.writes += 1;
                    let bytes = *vector.iov_base.cast::<[u8; PAGE]>();
                    self.pages.insert(page, bytes);
                } else {
                    self.reads += 1;
                    let bytes = self.pages.get(&page).copied().unwrap_or([0xee; PAGE]);
                    *vector.iov_base.cast::<[u8; PAGE]>() = bytes;
                }
            }
        }
        Ok(())
    }
}
