//! What all address spaces of a handler share: a worker of the volume, buffers, and the clock; and,
//! with other handlers, the volume's slots. A slot is free when nothing is under way for it, so
//! whichever handler takes it next writes after that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cenote_volume::{Done, Op, PAGE_BYTES, Request, Worker};

use super::ids::Ids;
use super::slots::{NONE, Slots};
use crate::reports::Failures;

/// Buffers that are kept for the next reads and writes.
const BUFFERS_MAX: usize = 256;

/// What a request is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    Read,
    Write,
}

/// The volume, for all address spaces.
pub struct Store {
    pub worker: Worker,
    slots: Arc<Mutex<Slots>>,
    pub ids: Ids,
    /// A page was refused for want of a slot: pages stay in this machine.
    pub is_full: bool,
    /// Requests that the worker had no room for.
    queued: VecDeque<Request>,
    pub failures: Failures,
    buffers: Vec<Vec<u8>>,
    started: Instant,
}

impl Store {
    pub fn new(worker: Worker, slots: Arc<Mutex<Slots>>, spaces_max: usize) -> Self {
        Self {
            worker,
            slots,
            ids: Ids::new(spaces_max),
            is_full: false,
            queued: VecDeque::new(),
            failures: Failures::default(),
            buffers: Vec::new(),
            started: Instant::now(),
        }
    }

    /// The slots, for as long as it takes to change them: other handlers wait.
    pub fn slots(&self) -> MutexGuard<'_, Slots> {
        let slots = self.slots.lock();
        slots.expect("a handler that panics ends the process")
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_else(|| vec![0; PAGE_BYTES])
    }

    pub fn keep(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buffer.len() == PAGE_BYTES {
            self.buffers.push(buffer);
        }
    }

    pub fn read(&mut self, space: u32, page: u32, slot: u32) {
        assert_ne!(slot, NONE, "page {page} of {space} is stored somewhere");
        let op = Op::Read(self.buffer());
        self.submit(tag(space, page, Purpose::Read), slot, op);
    }

    pub fn write(&mut self, space: u32, slot: u32, bytes: Vec<u8>) {
        self.submit(tag(space, slot, Purpose::Write), slot, Op::Write(bytes));
    }

    fn submit(&mut self, tag: u64, slot: u32, op: Op) {
        let offset = u64::from(slot) * PAGE_BYTES as u64;
        let request = Request { tag, offset, op };
        if !self.queued.is_empty() {
            self.queued.push_back(request);
        } else if let Err(back) = self.worker.submit(request) {
            self.queued.push_back(back);
        }
    }

    /// What has ended: its tag says what it was.
    pub fn ends(&mut self, done: &mut Vec<Done>) {
        self.worker.poll(done);
        while let Some(request) = self.queued.pop_front() {
            if let Err(back) = self.worker.submit(request) {
                self.queued.push_front(back);
                break;
            }
        }
    }
}

fn tag(space: u32, place: u32, purpose: Purpose) -> u64 {
    (purpose as u64) << 56 | u64::from(space) << 32 | u64::from(place)
}

/// Address space, page that is read or slot that is written, and purpose.
pub fn untag(tag: u64) -> (u32, u32, Purpose) {
    let purpose = match tag >> 56 {
        0 => Purpose::Read,
        _ => Purpose::Write,
    };
    ((tag >> 32) as u32 & 0x00ff_ffff, tag as u32, purpose)
}
