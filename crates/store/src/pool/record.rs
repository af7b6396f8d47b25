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

    /// Whether one is on its way.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.next_space.is_some()
    }

    /// Leaves one sequence of those that may be given.
    #[cfg(test)]
    pub(crate) fn use_lease_up(&mut self) {
        self.next_sequence = self.space.ceiling - 1;
    }

    /// Ends what a group or a cleaning began that nobody ends any more.
    pub(super) fn await_record(&mut self) -> Result<(), StoreError> {
        if self.next_space.is_some() {
            self.guarded(|pool| pool.medium.fence())?;
            self.end_record();
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::ModelMedium;
    use crate::pool::{Cleaned, Condition, PoolConfig};

    fn new_pool() -> Pool<ModelMedium> {
        let config = PoolConfig {
            entry_count: 64,
            seed: 1,
        };
        Pool::create(ModelMedium::new(64 << 10, 512), config).unwrap()
    }

    fn reopened(pool: Pool<ModelMedium>) -> Pool<ModelMedium> {
        let medium = ModelMedium::clone(&pool.close().unwrap()).crashed(|| false);
        Pool::open(medium).unwrap().0
    }

    #[test]
    fn a_cleaning_begins_after_the_record_of_a_lease() {
        let mut pool = new_pool();
        pool.put_durable(b"key", b"value", Condition::Always)
            .unwrap();
        pool.use_lease_up();
        let group = pool.begin_group(1);
        let clean = |pool: &mut Pool<ModelMedium>| {
            let (batch, _) = pool.begin_clean(64).unwrap();
            let fenced = batch.write_back().and_then(|()| batch.fence());
            pool.end_clean(batch, fenced).unwrap()
        };
        assert_eq!(clean(&mut pool), Cleaned::Waiting);
        assert!(!pool.is_cleaning());
        let fenced = group.fence();
        pool.end_group(group, fenced).unwrap();
        assert!(!pool.is_lease_short());
        assert_eq!(clean(&mut pool), Cleaned::Going);
        assert!(pool.is_cleaning());
        while clean(&mut pool) != Cleaned::Done {}
        assert_eq!(reopened(pool).get(b"key").unwrap().unwrap().value, b"value");
    }

    #[test]
    fn a_pool_that_is_closed_while_a_record_is_on_its_way_opens_again() {
        let mut pool = new_pool();
        pool.use_lease_up();
        drop(pool.begin_group(1));
        let mut pool = reopened(pool);
        pool.put_durable(b"key", b"value", Condition::Always)
            .unwrap();
        drop(pool.begin_clean(64).unwrap());
        assert_eq!(reopened(pool).get(b"key").unwrap().unwrap().value, b"value");
    }
}
