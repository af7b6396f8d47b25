//! The record of the head: which half of the log is in use, and which sequences may be given.
//!
//! It is written back with the pool, and counts once a fence has passed, which is waited for without it: a
//! disk's may take long. The record after it takes the place of the one before it, so one at a time is on
//! its way.

use std::io;

use super::{Pool, StoreError};
use crate::format::{LEASE, SEQUENCE_END, SPACE_BYTES, Space};
use crate::medium::Medium;

impl<M: Medium> Pool<M> {
    /// Writes a record, for who has the pool for himself.
    pub(super) fn set_space(&mut self, space: Space) -> Result<(), StoreError> {
        self.guarded(|pool| {
            pool.begin_record(space)?;
            pool.medium.fence()
        })?;
        self.end_record();
        Ok(())
    }

    /// Writes a record back; none is on its way.
    pub(super) fn begin_record(&mut self, space: Space) -> io::Result<()> {
        assert!(self.next_space.is_none(), "one record at a time");
        write(&*self.medium, space)?;
        self.next_space = Some(space);
        Ok(())
    }

    /// A fence has passed since the record was written back.
    pub(super) fn end_record(&mut self) {
        self.space = self.next_space.take().expect("it was begun");
    }

    /// Whether numbers of versions run out until a group has passed.
    #[must_use]
    pub fn is_lease_short(&self) -> bool {
        // At the end of all sequences there is no more to be leased.
        self.space.ceiling < SEQUENCE_END
            && self.space.ceiling.saturating_sub(self.next_sequence) < LEASE / 2
    }
}

/// Begins to make a record durable.
pub(super) fn write(medium: &impl Medium, space: Space) -> io::Result<()> {
    medium.write(space.at(), &space.encode());
    medium.write_back(space.at()..space.at() + SPACE_BYTES as u64)
}
