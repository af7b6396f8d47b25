//! Headers on their way to the medium, and what they say of those before them.
//!
//! Recovery walks from header to header. Each notes up to where headers were durable when it was
//! written: where one before that place cannot be read later, the medium has damaged it. One that
//! was on its way at a crash may be missing with headers behind it.

use std::io;
use std::ops::Range;

use super::{Pool, StoreError};
use crate::format::{FLAG_AT, HEADER_BYTES, Header};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::Medium;

/// Headers that were written back: all before a place, of the half that was in use in an epoch.
#[derive(Clone, Copy)]
pub(super) struct Headers {
    epoch: u64,
    to: u64,
}

impl<M: Medium> Pool<M> {
    pub(super) fn write_header(
        &mut self,
        at: u64,
        header: Header,
        key: &[u8],
    ) -> Result<(), StoreError> {
        let epoch = self.space.epoch;
        self.guarded(|pool| {
            let medium = &pool.medium;
            let mut encoded = header.encode(at, epoch, key);
            pool.notes.write(&mut encoded, at, epoch, pool.durable_to);
            // Before the header, without which nobody asks for it: what stands there may be a
            // client's.
            medium.store(at + FLAG_AT, 0);
            medium.write(at, &encoded);
            medium.write(at + HEADER_BYTES, key);
            let range = at..at + HEADER_BYTES + key.len() as u64;
            if is_injected(InjectedFault::HeaderNotWrittenBack) {
                return Ok(());
            }
            if !medium.is_quick() {
                pool.headers.push_back((header.sequence, range));
                return Ok(());
            }
            // A quick fence counts for its own thread alone, and the persister is another one.
            medium.write_back(range)?;
            medium.fence()?;
            pool.durable_to = at + header.object_bytes();
            Ok(())
        })
    }

    /// Begins to make headers durable that are in the log before a version, and its own: a walk of
    /// the log goes from one to the next. Headers behind it are written when their values are there
    /// as well.
    pub(super) fn write_back_headers(&mut self, until: u64) -> io::Result<Headers> {
        let is_before = |(sequence, _): &mut (u64, Range<u64>)| *sequence <= until;
        while let Some((_, range)) = self.headers.pop_front_if(is_before) {
            self.medium.write_back(range)?;
        }
        let to = match self.headers.front() {
            Some((_, next)) if self.is_in_use(next.start) => next.start,
            // Of the half that is left: none of the other one is written back.
            Some(_) => 0,
            None => self.tail,
        };
        Ok(Headers {
            epoch: self.space.epoch,
            to,
        })
    }

    /// A fence has passed since these were written back.
    pub(super) fn note_fenced(&mut self, headers: Headers) {
        if headers.epoch == self.space.epoch {
            self.durable_to = self.durable_to.max(headers.to);
        }
    }
}
