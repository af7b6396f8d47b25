//! The disk behind a simulated client's volume: right, in no order, and now and then very late.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Time, sim};
use cenote_volume::{Backing, Device, PAGE_BYTES, Transfer};

use super::random::Random;

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
}

struct Queue {
    disk: Disk,
    index: usize,
    under_way: Vec<(Time, Transfer)>,
}

// SAFETY: the pointers of transfers are good on any thread until their end.
unsafe impl Send for Queue {}

/// Page reads and writes per second from which an extent is mapped: some are, some are not.
const HOT_SLAB: f64 = 2.0;
/// Few, so that writers wait for them while the disk is late.
const ENTRIES: u32 = 64;
const QUEUES: usize = 2;

impl Disk {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Queue {
    unsafe fn start(&mut self, transfer: Transfer) {
        let mut state = self.disk.lock();
        let takes_ns = match (state.steady_ns, state.random.below(100)) {
            (Some(steady), _) => steady,
            (None, 0..2) => state.random.between(10_000_000, 2_000_000_000),
            (None, 2..10) => state.random.between(1_000_000, 20_000_000),
            (None, _) => state.random.between(30_000, 300_000),
        };
        let due = Time(sim::now().0 + takes_ns);
        state.due[self.index] = state.due[self.index].min(due);
        self.under_way.push((due, transfer));
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
        self.under_way.retain(|(due, transfer)| {
            if *due > now {
                return true;
            }
            state.carry_out(transfer);
            ended.push((transfer.token, Ok(())));
            false
        });
        let next = self.under_way.iter().map(|(due, _)| *due).min();
        state.due[self.index] = next.unwrap_or(Time(u64::MAX));
        Ok(())
    }
}

impl State {
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
