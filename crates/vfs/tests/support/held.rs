//! A medium whose reads, or whose syncs, can be held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_vfs::medium::model::ModelMedium;
use cenote_vfs::medium::{Medium, MediumError};

#[derive(Clone, Copy, Eq, PartialEq)]
pub enum What {
    Reads,
    Syncs,
}

pub struct Held {
    medium: ModelMedium,
    what: What,
    holds: AtomicBool,
    is_held: AtomicBool,
}

impl Held {
    /// Lets everything through, for now.
    pub fn new(medium: ModelMedium, what: What) -> Arc<Self> {
        Arc::new(Self {
            medium,
            what,
            holds: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
        })
    }

    pub fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::SeqCst);
    }

    /// Whether something was held up.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    fn pass(&self, what: What) {
        let patience = Instant::now() + Duration::from_secs(60);
        while what == self.what && self.holds.load(Ordering::SeqCst) {
            self.is_held.store(true, Ordering::SeqCst);
            assert!(Instant::now() < patience, "held up for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Medium for Held {
    fn size_bytes(&self) -> u64 {
        self.medium.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        self.pass(What::Reads);
        self.medium.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.medium.write(offset, bytes)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        self.medium.discard(offset, len_bytes)
    }

    fn sync(&self) -> Result<(), MediumError> {
        self.pass(What::Syncs);
        self.medium.sync()
    }

    fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        self.medium.allocation(offset, end)
    }

    fn has_memory(&self, offset: u64) -> (bool, u64) {
        self.medium.has_memory(offset)
    }
}
