//! A medium in memory that refuses what a test says.

use std::sync::{Mutex, PoisonError};

use super::model::ModelMedium;
use super::{Medium, MediumError};

/// The medium.
pub struct Faulty {
    pub inner: ModelMedium,
    refuse: Mutex<Refuse>,
}

/// Why an access is refused, if it is.
type Refuse = Box<dyn FnMut(Access) -> Option<MediumError> + Send>;

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
        }
    }

    /// Refuses what `refuse` says from now on.
    pub fn refuse(&self, refuse: impl FnMut(Access) -> Option<MediumError> + Send + 'static) {
        *self.refuse.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(refuse);
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
}
