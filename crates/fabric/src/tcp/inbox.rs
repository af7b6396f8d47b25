//! Bytes that a socket gave: as they are, or records that are opened one by one.
//!
//! Nothing of a record is seen before its tag was checked. Records are opened where they lie.

use super::gather::Gather;
use crate::record::{RECORD_BYTES_MAX, RECORD_LENGTH_BYTES, RecordError, RecordOpener};

/// Where the buffer starts, behind the start of a memory page: to the first 16 bytes of a page
/// AMD's Zen 3 copies at half the speed (`rep movsb`), and large allocations start just there.
const SKEW_BYTES: usize = 1024;

pub(super) const PAGE_BYTES: usize = 4096;

/// One buffer of fixed size.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    /// Where it is filled from.
    base: usize,
    /// Bytes to be looked at: of one record, where there are records.
    start: usize,
    end: usize,
    /// Where the next record begins, and the end of what has come; both `end` without records.
    next: usize,
    received: usize,
    opener: Option<RecordOpener>,
}

impl Inbox {
    /// A buffer of `len_bytes`; `opener`: what comes is records.
    pub(super) fn new(len_bytes: usize, opener: Option<RecordOpener>) -> Self {
        assert!(len_bytes >= RECORD_BYTES_MAX, "a record is opened whole");
        // Room to move the start to the wanted place in a page.
        let bytes: Box<[u8]> = vec![0; len_bytes + PAGE_BYTES + SKEW_BYTES].into();
        let base = bytes.as_ptr().align_offset(PAGE_BYTES) + SKEW_BYTES;
        Self {
            bytes,
            base,
            start: base,
            end: base,
            next: base,
            received: base,
            opener,
        }
    }

    /// Whether what comes is records.
    pub(super) fn has_records(&self) -> bool {
        self.opener.is_some()
    }

    /// What is to be looked at.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Bytes that have come and are not looked at, sealed ones among them.
    pub(super) fn unread_bytes(&self) -> usize {
        (self.end - self.start) + (self.received - self.next)
    }

    /// Notes that the first `len_bytes` of what waits were looked at.
    pub(super) fn consume(&mut self, len_bytes: usize) {
        debug_assert!(len_bytes <= self.end - self.start);
        self.start += len_bytes;
    }

    /// Opens the next record once all before it is consumed; false: none is there whole.
    ///
    /// # Errors
    /// It is no record of this connection, which is of no more use.
    pub(super) fn next_record(&mut self) -> Result<bool, RecordError> {
        debug_assert_eq!(self.start, self.end, "a record is looked at to its end");
        let Some(opener) = &mut self.opener else {
            return Ok(false);
        };
        let come = &mut self.bytes[self.next..self.received];
        let Some(total) = RecordOpener::record_bytes(come)? else {
            return Ok(false);
        };
        let Some(record) = come.get_mut(..total) else {
            return Ok(false);
        };
        let body_bytes = opener.open(record)?.len();
        self.start = self.next + RECORD_LENGTH_BYTES;
        self.end = self.start + body_bytes;
        self.next += total;
        Ok(true)
    }

    /// Moves what is left to the front, so that there is room behind it.
    pub(super) fn make_room(&mut self) {
        let kept = if self.start == self.end {
            self.next
        } else {
            self.start
        };
        let shift = kept - self.base;
        if shift > 0 {
            self.bytes.copy_within(kept..self.received, self.base);
            self.next -= shift;
            self.received -= shift;
            if self.start == self.end {
                self.start = self.next;
                self.end = self.next;
            } else {
                self.start -= shift;
                self.end -= shift;
            }
        }
    }

    /// What is filled next.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.received..]
    }

    /// Appends the room to a list; returns how much it is.
    pub(super) fn list_room(&mut self, list: &mut Gather) -> usize {
        let room = self.room();
        list.push(room.as_mut_ptr(), room.len());
        room.len()
    }

    /// Notes that the room was filled with `len_bytes`.
    pub(super) fn add(&mut self, len_bytes: usize) {
        self.received += len_bytes;
        if self.opener.is_none() {
            self.end = self.received;
            self.next = self.received;
        }
    }
}
