//! The tiers of one store, shared by its threads: who holds what, and whose each answer is.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use foldhash::HashSet;

use super::{Request, Tier};

/// Who a request was started for: 0 is the flow of pages, others are sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inbox(pub usize);

/// How a request of an inbox ended.
#[derive(Debug)]
pub struct End {
    pub token: u64,
    pub result: io::Result<Vec<u8>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Started {
    /// It ends in its inbox.
    UnderWay,
    /// Again after a poll.
    Busy,
    /// The tier is lost.
    Lost,
}

/// All tiers, the fastest first.
pub struct Tiers {
    slots: Vec<Slot>,
    inboxes: Vec<Mutex<Vec<End>>>,
    started: AtomicU64,
}

struct Slot {
    device: Mutex<Device>,
    traits: RwLock<Traits>,
    /// First address that the tier has; `u64::MAX` when it is lost.
    start: AtomicU64,
    /// Behind the last one.
    until: AtomicU64,
    /// Reads that failed or had a wrong checksum.
    faults: AtomicU64,
    /// What a sync was to make durable may be gone, although the next one succeeds.
    has_sync_failed: AtomicBool,
}

/// What a tier says of itself.
struct Traits {
    name: String,
    is_durable: bool,
    capacity_bytes: Option<u64>,
}

impl Traits {
    fn of(tier: &dyn Tier) -> Self {
        Self {
            name: tier.name(),
            is_durable: tier.is_durable(),
            capacity_bytes: tier.capacity_bytes(),
        }
    }
}

struct Device {
    tier: Option<Box<dyn Tier>>,
    under_way: HashSet<u64>,
    /// The sync under way, one at a time: of two that overlap the system may tell an error to one
    /// only, and the other could have counted as a success before.
    sync: Option<u64>,
}

const LOST: u64 = u64::MAX;
const INBOX_SHIFT: u32 = 48;

impl Tiers {
    /// Tiers that hold nothing, and are written to from `from` on.
    pub fn new(tiers: Vec<Box<dyn Tier>>, inboxes: usize, from: u64) -> Self {
        let slot = |tier: Box<dyn Tier>| Slot {
            traits: RwLock::new(Traits::of(tier.as_ref())),
            start: AtomicU64::new(from),
            until: AtomicU64::new(from),
            faults: AtomicU64::new(0),
            has_sync_failed: AtomicBool::new(false),
            device: Mutex::new(Device {
                tier: Some(tier),
                under_way: HashSet::default(),
                sync: None,
            }),
        };
        Self {
            slots: tiers.into_iter().map(slot).collect(),
            inboxes: (0..inboxes).map(|_| Mutex::default()).collect(),
            started: AtomicU64::new(0),
        }
    }

    /// The tier had everything from `start` on when the store was opened.
    pub fn hold_from(&self, tier: usize, start: u64) {
        self.slots[tier].start.store(start, Ordering::Release);
    }

    pub fn count(&self) -> usize {
        self.slots.len()
    }

    pub fn name(&self, tier: usize) -> String {
        self.traits(tier).name.clone()
    }

    pub fn is_durable(&self, tier: usize) -> bool {
        self.traits(tier).is_durable && !self.is_lost(tier)
    }

    pub fn is_lost(&self, tier: usize) -> bool {
        self.slots[tier].start.load(Ordering::Acquire) == LOST
    }

    /// The slowest tier that is not lost.
    pub fn last(&self) -> Option<usize> {
        (0..self.count()).rev().find(|&tier| !self.is_lost(tier))
    }

    /// What the tier holds, or `None` when it is lost.
    pub fn range(&self, tier: usize) -> Option<std::ops::Range<u64>> {
        let slot = &self.slots[tier];
        let start = slot.start.load(Ordering::Acquire);
        (start != LOST).then(|| start..slot.until.load(Ordering::Acquire).max(start))
    }

    pub fn fault_count(&self, tier: usize) -> u64 {
        self.slots[tier].faults.load(Ordering::Relaxed)
    }

    /// A read of the tier failed, or returned what was not written.
    pub fn note_fault(&self, tier: usize) {
        self.slots[tier].faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a sync failed, whoever asked for it. Known before the next one begins.
    pub fn has_sync_failed(&self, tier: usize) -> bool {
        self.slots[tier].has_sync_failed.load(Ordering::Acquire)
    }

    /// The fastest tier from number `from` on that has `address`.
    pub fn holder(&self, address: u64, from: usize) -> Option<usize> {
        (from..self.slots.len())
            .find(|&tier| self.range(tier).is_some_and(|held| held.contains(&address)))
    }

    /// The tier has everything that it had, and what is up to `until` besides.
    pub fn extend(&self, tier: usize, until: u64) {
        self.slots[tier].until.fetch_max(until, Ordering::AcqRel);
    }

    /// The tier has nothing below `start` any more. No effect on one that is lost.
    pub fn forget_below(&self, tier: usize, start: u64) {
        let raise = |old: u64| (old < start).then_some(start);
        // An error says that it was above already.
        let held = &self.slots[tier].start;
        let _before = held.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise);
        self.extend(tier, start);
    }

    /// Where the tier is to begin so that it holds no more than it has room for.
    pub fn start_in_capacity(&self, tier: usize) -> Option<u64> {
        let capacity = self.traits(tier).capacity_bytes?;
        let range = self.range(tier)?;
        let start = range.end.saturating_sub(capacity);
        (start > range.start).then_some(start)
    }

    pub fn token(&self, inbox: Inbox) -> u64 {
        let number = self.started.fetch_add(1, Ordering::Relaxed) & ((1 << INBOX_SHIFT) - 1);
        (inbox.0 as u64) << INBOX_SHIFT | number
    }

    pub fn start(&self, tier: usize, token: u64, request: Request) -> Started {
        let mut device = self.lock(tier);
        let is_sync = matches!(request, Request::Sync);
        let has_sync = device.sync.is_some();
        let Some(open) = &mut device.tier else {
            return Started::Lost;
        };
        if is_sync && has_sync || open.start(token, request).is_err() {
            return Started::Busy;
        }
        device.under_way.insert(token);
        if is_sync {
            device.sync = Some(token);
        }
        Started::UnderWay
    }

    /// Takes what ended from all tiers that nobody else is asking, and puts it into inboxes.
    pub fn poll(&self) {
        let mut ended = Vec::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let Ok(mut device) = slot.device.try_lock() else {
                continue;
            };
            let Some(open) = &mut device.tier else {
                continue;
            };
            let polled = open.poll(&mut ended);
            for end in ended.drain(..) {
                if device.under_way.remove(&end.token) {
                    self.end(number, &mut device, end.token, end.result);
                }
            }
            if polled.is_err() {
                // In the same turn: another tier may be in its place right after.
                self.take_out(number, &mut device);
            }
        }
    }

    /// Takes a tier out. What was under way ends with errors.
    pub fn lose(&self, tier: usize) {
        self.take_out(tier, &mut self.lock(tier));
    }

    fn take_out(&self, tier: usize, device: &mut Device) {
        self.slots[tier].start.store(LOST, Ordering::Release);
        device.tier = None;
        for token in std::mem::take(&mut device.under_way) {
            let result = Err(io::ErrorKind::NotConnected.into());
            self.end(tier, device, token, result);
        }
    }

    /// Puts a tier in the place of one that is lost. It starts empty at `from`.
    pub fn restore(&self, number: usize, tier: Box<dyn Tier>, from: u64) {
        let mut device = self.lock(number);
        let traits = self.slots[number].traits.write();
        *traits.expect("nobody panics with it") = Traits::of(tier.as_ref());
        device.tier = Some(tier);
        self.slots[number].until.store(from, Ordering::Release);
        self.slots[number].start.store(from, Ordering::Release);
    }

    /// Takes what ended for an inbox.
    pub fn take(&self, inbox: Inbox) -> Vec<End> {
        std::mem::take(&mut *self.inboxes[inbox.0].lock().expect("nobody panics with it"))
    }

    /// Notes the end of a request that is under way no more, and tells it to who started it.
    fn end(&self, tier: usize, device: &mut Device, token: u64, result: io::Result<Vec<u8>>) {
        if device.sync.take_if(|sync| *sync == token).is_some() && result.is_err() {
            let slot = &self.slots[tier];
            slot.has_sync_failed.store(true, Ordering::Release);
        }
        self.deliver(token, result);
    }

    fn deliver(&self, token: u64, result: io::Result<Vec<u8>>) {
        let inbox = &self.inboxes[(token >> INBOX_SHIFT) as usize];
        let mut inbox = inbox.lock().expect("nobody panics with it");
        inbox.push(End { token, result });
    }

    fn traits(&self, tier: usize) -> RwLockReadGuard<'_, Traits> {
        let traits = self.slots[tier].traits.read();
        traits.expect("nobody panics with it")
    }

    fn lock(&self, tier: usize) -> MutexGuard<'_, Device> {
        let device = self.slots[tier].device.lock();
        device.expect("a tier that panics ends the process")
    }
}
