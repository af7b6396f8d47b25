//! The disk behind a simulated client's volume: in no order, now and then very late, and ill for a while.
//!
//! What it takes it keeps. While it is ill it is slow, or full, or refuses some of what it is asked for; it notes
//! which pages it refused and when, against which requests that fail are held (`client::refused`).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Time, sim};
use cenote_measure::random::Random;
use cenote_volume::{Backing, Device, PAGE_BYTES, Transfer};

/// How a disk is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mood {
    /// It does what it is asked.
    Well,
    /// Everything takes long.
    Slow,
    /// There is no room for pages that it does not have (ENOSPC).
    Full,
    /// It refuses so many transfers of a hundred (EIO).
    Refuses {
        /// 0 to 100.
        percent: u64,
    },
}

/// Since when the disk lacks the newest bytes of a page, which it refused, and until when.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stale {
    /// When it refused them.
    pub since: Time,
    /// `Time(u64::MAX)`: still.
    pub until: Time,
}

/// A disk; its queues share it.
#[derive(Clone)]
pub struct Disk(Arc<Mutex<State>>);

struct State {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    random: Random,
    /// By queue: when something of it ends next.
    due: Vec<Time>,
    /// What every transfer takes; `None`: what is drawn.
    steady_ns: Option<u64>,
    mood: Mood,
    /// By page.
    stale: BTreeMap<u64, Stale>,
    /// Pages of which it refused a transfer, and when last.
    refused: BTreeMap<u64, Time>,
    /// Transfers that it refused.
    refusals: u64,
}

struct Queue {
    disk: Disk,
    index: usize,
    under_way: Vec<Flight>,
}

struct Flight {
    begun: Time,
    due: Time,
    transfer: Transfer,
}

// SAFETY: the pointers of transfers are good on any thread until their end.
unsafe impl Send for Queue {}

/// Page reads and writes per second from which an extent is mapped: some are, some are not.
const HOT_SLAB: f64 = 2.0;
/// Few, so that writers wait for them while the disk is late.
const ENTRIES: u32 = 64;
const QUEUES: usize = 2;

impl Disk {
    /// One whose times are drawn from a seed.
    pub fn new(seed: u64) -> Self {
        Self::taking(seed, None)
    }

    /// One that takes as long for everything.
    pub fn steady(seed: u64, takes_ns: u64) -> Self {
        Self::taking(seed, Some(takes_ns))
    }

    fn taking(seed: u64, steady_ns: Option<u64>) -> Self {
        Self(Arc::new(Mutex::new(State {
            steady_ns,
            pages: BTreeMap::new(),
            random: Random::new(seed),
            due: vec![Time(u64::MAX); QUEUES],
            mood: Mood::Well,
            stale: BTreeMap::new(),
            refused: BTreeMap::new(),
            refusals: 0,
        })))
    }

    /// For a volume.
    pub fn backing(&self) -> Backing {
        let queue = |index| {
            let queue = Queue {
                disk: self.clone(),
                index,
                under_way: Vec::new(),
            };
            Box::new(queue) as Box<dyn Device>
        };
        Backing {
            entries: ENTRIES,
            hot_slab: HOT_SLAB,
            ..Backing::over((0..QUEUES).map(queue).collect())
        }
    }

    /// When something ends next.
    pub fn due(&self) -> Time {
        let state = self.lock();
        state.due.iter().copied().min().unwrap_or(Time(u64::MAX))
    }

    /// From now on it is so. What is under way is carried out as it is when it ends.
    pub fn set_mood(&self, mood: Mood) {
        self.lock().mood = mood;
    }

    /// Transfers that it refused so far.
    pub fn refusals(&self) -> u64 {
        self.lock().refusals
    }

    /// Whether it has refused a transfer of one of these pages since a time.
    pub fn has_refused(&self, pages: Range<u64>, since: Time) -> bool {
        let state = self.lock();
        let mut refused = state.refused.range(pages);
        refused.any(|(_, &at)| at >= since)
    }

    /// When it last lacked the newest bytes of one of these pages, if it did at a time or later.
    pub fn stale(&self, pages: Range<u64>, at: Time) -> Option<Stale> {
        let state = self.lock();
        let stale = state.stale.range(pages).map(|(_, stale)| *stale);
        let stale = stale.filter(|stale| stale.until >= at);
        stale.min_by_key(|stale| stale.since)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Queue {
    unsafe fn start(&mut self, transfer: Transfer) {
        let mut state = self.disk.lock();
        let begun = sim::now();
        let is_slow = state.mood == Mood::Slow;
        let takes_ns = match (state.steady_ns, state.random.below(100)) {
            (Some(steady), _) => steady,
            _ if is_slow => state.random.between(100_000_000, 1_000_000_000),
            (None, 0..2) => state.random.between(10_000_000, 2_000_000_000),
            (None, 2..10) => state.random.between(1_000_000, 20_000_000),
            (None, _) => state.random.between(30_000, 300_000),
        };
        let due = Time(begun.0 + takes_ns);
        state.due[self.index] = state.due[self.index].min(due);
        self.under_way.push(Flight {
            begun,
            due,
            transfer,
        });
    }

    fn wait(
        &mut self,
        _bell: RawFd,
        _may_block: bool,
        ended: &mut Vec<(u32, io::Result<()>)>,
    ) -> io::Result<()> {
        let now = sim::now();
        let mut state = self.disk.lock();
        // Bytes move at the very end: a buffer that changed meanwhile shows.
        self.under_way.retain(|flight| {
            if flight.due > now {
                return true;
            }
            let result = state.end(flight, now);
            ended.push((flight.transfer.token, result));
            false
        });
        let next = self.under_way.iter().map(|flight| flight.due).min();
        state.due[self.index] = next.unwrap_or(Time(u64::MAX));
        Ok(())
    }
}

impl State {
    /// Carries a transfer out, or refuses it.
    fn end(&mut self, flight: &Flight, now: Time) -> io::Result<()> {
        let transfer = &flight.transfer;
        let first = transfer.offset / PAGE_BYTES as u64;
        let pages = first..first + u64::from(transfer.count);
        let errno = self.refusal(transfer, pages.clone());
        if errno.is_none() {
            self.carry_out(transfer);
        }
        for page in pages.clone() {
            if errno.is_some() {
                self.refused.insert(page, now);
            }
            let stale = self.stale.get_mut(&page);
            match (transfer.is_write, errno.is_some(), stale) {
                (true, false, Some(stale)) => stale.until = stale.until.min(now),
                // Each page of a run that is refused is tried by itself.
                (true, true, _) if transfer.count == 1 => {
                    // Of what was written while it was under way nothing is on the disk either.
                    let since = flight.begun;
                    let until = Time(u64::MAX);
                    self.stale.insert(page, Stale { since, until });
                }
                _ => {}
            }
        }
        let Some(errno) = errno else {
            return Ok(());
        };
        self.refusals += 1;
        Err(io::Error::from_raw_os_error(errno))
    }

    fn refusal(&mut self, transfer: &Transfer, mut pages: Range<u64>) -> Option<i32> {
        match self.mood {
            Mood::Well | Mood::Slow => None,
            Mood::Full => {
                let lacks = pages.any(|page| !self.pages.contains_key(&page));
                (transfer.is_write && lacks).then_some(libc::ENOSPC)
            }
            Mood::Refuses { percent } => self.random.percent(percent).then_some(libc::EIO),
        }
    }

    fn carry_out(&mut self, transfer: &Transfer) {
        let first = transfer.offset / PAGE_BYTES as u64;
        let count = transfer.count as usize;
        // SAFETY: valid until the transfer's end, which is told after this.
        let vectors = unsafe { std::slice::from_raw_parts(transfer.vectors, count) };
        for (page, vector) in (first..).zip(vectors) {
            let buffer = vector.iov_base.cast::<[u8; PAGE_BYTES]>();
            // SAFETY: as above; a page each, and of a read this transfer's alone.
            unsafe {
                if transfer.is_write {
                    self.pages.insert(page, Box::new(*buffer));
                } else {
                    // What nobody wrote is anything.
                    let bytes = self.pages.get(&page);
                    *buffer = bytes.map_or([0xdd; PAGE_BYTES], |bytes| **bytes);
                }
            }
        }
    }
}
