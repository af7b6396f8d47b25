//! A medium that can hold some reads up, or panic in them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cenote_vfs::medium::model::ModelMedium;
use cenote_vfs::medium::{Medium, MediumError};

/// Reads of this length are gated. The database has none: its pages are powers of two.
pub const GATED_BYTES: usize = 3 * 4096;

pub struct Gate {
    medium: Arc<ModelMedium>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    rule: Rule,
    waiting: usize,
}

/// What happens to reads.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub enum Rule {
    #[default]
    Pass,
    Wait,
    Panic,
}

impl Gate {
    pub fn new(medium: Arc<ModelMedium>) -> Self {
        Self {
            medium,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub fn set(&self, rule: Rule) {
        self.state().rule = rule;
        self.changed.notify_all();
    }

    /// How many reads wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, len: usize) {
        if len != GATED_BYTES {
            return;
        }
        let mut state = self.state();
        state.waiting += 1;
        while state.rule == Rule::Wait {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        assert!(state.rule != Rule::Panic, "as ordered");
    }
}

impl Medium for Gate {
    fn size_bytes(&self) -> u64 {
        self.medium.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        self.pass(buffer.len());
        self.medium.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.medium.write(offset, bytes)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        self.medium.discard(offset, len_bytes)
    }

    fn sync(&self) -> Result<(), MediumError> {
        self.medium.sync()
    }

    fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        self.medium.allocation(offset, end)
    }

    fn has_memory(&self, offset: u64) -> (bool, u64) {
        self.medium.has_memory(offset)
    }
}
