//! A medium for tests that keeps what is durable apart, and crashes where it is told to.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_fabric::{Region, RegionOptions};

use super::Medium;

/// Bytes of which each unit that was not fenced survives a crash, or does not.
#[derive(Debug)]
pub struct ModelMedium {
    state: Mutex<State>,
    /// Bytes of a unit: 8 for persistent memory, 512 for a disk.
    unit: usize,
    /// What clients read and may write; the bytes are in the state otherwise.
    memory: Option<Arc<Region>>,
}

#[derive(Clone, Debug)]
struct State {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Units that differ from what is durable, as far as anybody knows.
    dirty: BTreeSet<usize>,
    /// Units that were written back, as they were then.
    pending: BTreeMap<usize, Vec<u8>>,
    /// Write-backs and fences so far.
    boundaries: u64,
    /// The boundary at which it crashes.
    crash_at: Option<u64>,
}

impl ModelMedium {
    /// All zeros.
    #[must_use]
    pub fn new(len: usize, unit: usize) -> Self {
        Self::with(vec![0; len], unit)
    }

    fn with(image: Vec<u8>, unit: usize) -> Self {
        let state = State {
            live: image.clone(),
            durable: image,
            dirty: BTreeSet::new(),
            pending: BTreeMap::new(),
            boundaries: 0,
            crash_at: None,
        };
        Self {
            state: Mutex::new(state),
            unit,
            memory: None,
        }
    }

    /// The same as memory that clients may read, and write behind its back.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn shared(self) -> cenote_fabric::Result<Self> {
        let live = self.live(0..self.len() as usize);
        let memory = Region::create("model", live.len() as u64, RegionOptions::default())?;
        memory.write(0, &live).expect(OURS);
        Ok(Self {
            memory: Some(Arc::new(memory)),
            ..self
        })
    }

    fn live(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.read(range.start as u64, &mut bytes);
        bytes
    }

    /// Crashes instead of the write-back or fence of this number, counted from now.
    pub fn crash_at(&self, boundary: Option<u64>) {
        let mut state = self.lock();
        (state.boundaries, state.crash_at) = (0, boundary);
    }

    /// Write-backs and fences since it was told where to crash.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.lock().boundaries
    }

    /// What is there after a crash now: of what was not durable, `survives` says which units are.
    #[must_use]
    pub fn crashed(&self, mut survives: impl FnMut() -> bool) -> Self {
        let live = self.live(0..self.len() as usize);
        let state = self.lock();
        let mut image = state.durable.clone();
        let mut dirty = state.dirty.clone();
        if self.memory.is_some() {
            // Clients may have written anywhere.
            dirty.extend(0..image.len() / self.unit);
            dirty.retain(|unit| {
                let range = unit * self.unit..(unit + 1) * self.unit;
                live[range.clone()] != state.durable[range] || state.pending.contains_key(unit)
            });
        }
        for unit in &dirty {
            let range = unit * self.unit..(unit + 1) * self.unit;
            if survives() {
                image[range.clone()].copy_from_slice(&live[range]);
            } else if let Some(written) = state.pending.get(unit)
                && survives()
            {
                image[range].copy_from_slice(written);
            }
        }
        Self::with(image, self.unit)
    }

    /// What is there after its process was killed now: all that was written is seen, and a crash
    /// may still take what was not durable.
    #[must_use]
    pub fn killed(&self) -> Self {
        let killed = self.clone();
        let mut state = killed.lock();
        state.pending.clear();
        state.crash_at = None;
        drop(state);
        killed
    }

    fn units(&self, range: Range<u64>) -> Range<usize> {
        range.start as usize / self.unit..(range.end as usize).div_ceil(self.unit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for ModelMedium {
    fn clone(&self) -> Self {
        let mut state = self.lock().clone();
        if self.memory.is_some() {
            state.live = self.live(0..state.durable.len());
        }
        Self {
            state: Mutex::new(state),
            unit: self.unit,
            memory: None,
        }
    }
}

impl State {
    fn cross(&mut self) -> io::Result<()> {
        if self.crash_at.is_some_and(|at| self.boundaries >= at) {
            return Err(io::Error::other("crashed"));
        }
        self.boundaries += 1;
        Ok(())
    }
}

impl Medium for ModelMedium {
    fn len(&self) -> u64 {
        self.lock().durable.len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        match &self.memory {
            Some(memory) => memory.read(at, out).expect(OURS),
            None => out.copy_from_slice(&self.lock().live[at as usize..][..out.len()]),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let units = self.units(at..at + bytes.len() as u64);
        let mut state = self.lock();
        match &self.memory {
            Some(memory) => memory.write(at, bytes).expect(OURS),
            None => state.live[at as usize..][..bytes.len()].copy_from_slice(bytes),
        }
        state.dirty.extend(units);
    }

    fn store(&self, at: u64, value: u64) {
        assert!(at.is_multiple_of(8), "a word at {at}");
        self.write(at, &value.to_le_bytes());
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.lock();
        state.cross()?;
        for unit in self.units(range) {
            let at = unit * self.unit..(unit + 1) * self.unit;
            match &self.memory {
                Some(_) => state.pending.insert(unit, self.live(at)),
                None if state.dirty.contains(&unit) => {
                    let bytes = state.live[at].to_vec();
                    state.pending.insert(unit, bytes)
                }
                None => None,
            };
        }
        Ok(())
    }

    fn write_back_hint(&self, range: Range<u64>) -> io::Result<()> {
        match self.is_quick() {
            true => self.write_back(range),
            false => self.lock().cross(),
        }
    }

    fn fence(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.cross()?;
        for (unit, bytes) in std::mem::take(&mut state.pending) {
            let range = unit * self.unit..(unit + 1) * self.unit;
            let is_same = match &self.memory {
                Some(_) => self.live(range.clone()) == bytes,
                None => state.live[range.clone()] == bytes[..],
            };
            if is_same {
                state.dirty.remove(&unit);
            }
            state.durable[range].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn is_quick(&self) -> bool {
        self.unit == 8
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        self.memory.as_ref()
    }
}

/// Why memory is not gone.
const OURS: &str = "nobody truncates a model's memory";
