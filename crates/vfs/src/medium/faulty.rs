//! A medium in memory that refuses what a test says.

use std::sync::{Mutex, PoisonError};

use super::model::ModelMedium;
use super::{Medium, MediumError};

/// The medium.
pub struct Faulty {
    pub inner: ModelMedium,
    refuse: Mutex<Refuse>,
    memory: Mutex<Memory>,
}

/// Why an access is refused, if it is.
type Refuse = Box<dyn FnMut(Access) -> Option<MediumError> + Send>;

/// Which bytes have memory, as [`Medium::has_memory`].
type Memory = Option<Box<dyn FnMut(u64) -> (bool, u64) + Send>>;

/// What is asked of it, from a byte on and so many bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    Read,
    Write(u64, u64),
    Discard(u64, u64),
    Reserve(u64, u64),
}

impl Faulty {
    /// A blank one that refuses nothing.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            inner: ModelMedium::new(size_bytes),
            refuse: Mutex::new(Box::new(|_| None)),
            memory: Mutex::default(),
        }
    }

    /// Refuses what `refuse` says from now on.
    pub fn refuse(&self, refuse: impl FnMut(Access) -> Option<MediumError> + Send + 'static) {
        *self.refuse.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(refuse);
    }

    /// Has memory as `memory` says from now on.
    pub fn have_memory(&self, memory: impl FnMut(u64) -> (bool, u64) + Send + 'static) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(memory));
    }

    fn ask(&self, access: Access) -> Result<(), MediumError> {
        let mut refuse = self.refuse.lock().unwrap_or_else(PoisonError::into_inner);
        refuse(access).map_or(Ok(()), Err)
    }
}

impl Medium for Faulty {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        self.ask(Access::Read)?;
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        self.ask(Access::Write(offset, bytes.len() as u64))?;
        self.inner.write(offset, bytes)
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        self.ask(Access::Discard(offset, len_bytes))?;
        self.inner.discard(offset, len_bytes)
    }

    fn reserve(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        self.ask(Access::Reserve(offset, len_bytes))
    }

    fn sync(&self) -> Result<(), MediumError> {
        self.inner.sync()
    }

    fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        self.inner.allocation(offset, end)
    }

    fn has_memory(&self, offset: u64) -> (bool, u64) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *memory {
            Some(memory) => memory(offset),
            None => self.inner.has_memory(offset),
        }
    }
}
