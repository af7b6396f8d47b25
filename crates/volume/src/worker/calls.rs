//! What a worker can be asked for: requests whose end is told by a later poll, and such as run to their end on
//! the calling thread.

use std::ops::Range;
use std::time::Duration;

use super::Worker;
use super::order::Kind;
use super::page::give_up;
use super::requests::Slot;
use crate::marks::Unfinished;
use crate::{IoError, Request};

/// How long one that binds late waits for the host that it sent to last: an ordinary answer over loopback
/// and the wake-up by it, with room to spare.
const PATIENCE: Duration = Duration::from_micros(200);

impl Worker {
    /// Starts a request; its end comes out of [`Worker::poll`].
    ///
    /// # Errors
    /// Gives the request back when [`crate::REQUESTS_MAX`] are in flight: poll first.
    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        let Some(number) = self.requests.take_number() else {
            return Err(request);
        };
        self.start(number, Slot::of(request));
        Ok(())
    }

    /// Reads `buffer.len()` bytes at `offset`, to the end.
    ///
    /// # Errors
    /// Why not every byte could be read; the buffer's content is then unspecified.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), IoError> {
        let len_bytes = buffer.len() as u64;
        self.run(Slot::new(
            Kind::Read,
            buffer.as_mut_ptr(),
            offset,
            len_bytes,
        ))
    }

    /// Writes `bytes` at `offset`, to the acknowledgement of every member.
    ///
    /// # Errors
    /// Why not every byte could be written; pages of the range then hold old or new bytes, or are lost. After
    /// [`IoError::Lost`] the worker may still have some of them to write: it does so in later calls, once
    /// hosts answer again.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        // The pointer is only read through for a write.
        self.run(Slot::new(
            Kind::Write,
            bytes.as_ptr().cast_mut(),
            offset,
            bytes.len() as u64,
        ))
    }

    /// Makes `len_bytes` at `offset` read as zeros.
    ///
    /// # Errors
    /// Why an edge page could not be written.
    pub fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), IoError> {
        self.run(Slot::new(
            Kind::Discard,
            std::ptr::null_mut(),
            offset,
            len_bytes,
        ))
    }

    /// Compares all that hosts hold of one page, and writes again what is wrong of it.
    ///
    /// # Errors
    /// `Corrupt`: it cannot be told what is right. As [`Worker::read`] besides.
    pub fn scrub(&mut self, page: u64) -> Result<(), IoError> {
        self.run(Slot::scrub(page))
    }

    /// Begins a [`Worker::scrub`] whose end [`Worker::end_scrub`] tells, by whoever polls; `None` while too
    /// much is under way.
    pub(crate) fn begin_scrub(&mut self, page: u64) -> Option<u16> {
        let index = self.requests.take_number()?;
        self.start(index, Slot::scrub(page));
        Some(index)
    }

    /// How it ended, once it has.
    pub(crate) fn end_scrub(&mut self, request: u16) -> Option<Result<(), IoError>> {
        self.requests.end_of(request)
    }

    /// Does again what the last owner did not end. Before anything else of the volume is written.
    ///
    /// # Errors
    /// `Lost`, `NoSpace`, `Closed`: not now; it stays what is to be done, by the next owner if not by this one.
    /// `Corrupt`: what the page was to be is not what its tag says. The page is then as any whose write ended
    /// unknown.
    pub(crate) fn redo(&mut self, unfinished: Unfinished) -> Result<(), IoError> {
        let result = self.run(Slot::redoing(unfinished));
        self.settle_redo(unfinished, result)
    }

    /// Begins to redo a write; [`Worker::redone`] tells its end, by whoever polls.
    ///
    /// # Panics
    /// If [`crate::REQUESTS_MAX`] are in flight.
    pub fn submit_redo(&mut self, unfinished: Unfinished) -> u16 {
        let index = self
            .requests
            .take_number()
            .expect("nothing else is under way");
        self.start(index, Slot::redoing(unfinished));
        index
    }

    /// How a write that is redone ended, once it has. After `Lost` or `NoSpace` it is to be redone again before
    /// anything else is written, by the next owner if not by this one.
    pub fn redone(&mut self, request: u16, unfinished: Unfinished) -> Option<Result<(), IoError>> {
        let result = self.requests.end_of(request)?;
        Some(self.settle_redo(unfinished, result))
    }

    /// What can never be redone is marked, so that its place is free. What cannot be redone now stays: hosts
    /// may be back, or have memory, when the next owner tries.
    fn settle_redo(
        &mut self,
        unfinished: Unfinished,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        if let Err(error) = result
            && !matches!(error, IoError::Lost | IoError::NoSpace | IoError::Closed)
        {
            tracing::warn!(page = unfinished.page, %error, "a write that the last owner did not end cannot be redone");
            give_up(&self.engine.path.core, unfinished);
        }
        result
    }

    /// Brings pages to the layout where they are to be.
    ///
    /// # Errors
    /// Some are where they were, and may be tried again.
    pub(crate) fn move_pages(&mut self, pages: Range<u64>) -> Result<(), IoError> {
        self.run(Slot::moving(&pages))
    }

    /// Begins what [`Worker::move_pages`] does; its end comes out of [`Worker::moved`].
    ///
    /// # Panics
    /// If [`crate::REQUESTS_MAX`] are in flight.
    pub(crate) fn submit_move(&mut self, pages: Range<u64>) -> u16 {
        let request = self
            .requests
            .take_number()
            .expect("a migrator asks for little");
        self.start(request, Slot::moving(&pages));
        request
    }

    /// Makes progress without blocking; how a move ended, if it has.
    pub(crate) fn moved(&mut self, request: u16) -> Option<Result<(), IoError>> {
        self.drive();
        self.requests.end_of(request)
    }

    /// Makes progress without blocking.
    pub(crate) fn drive(&mut self) {
        self.turn(Duration::ZERO);
    }

    /// Runs one request with a borrowed buffer to its end.
    fn run(&mut self, slot: Slot) -> Result<(), IoError> {
        // A panic must not leave verbs behind that refer to the caller's buffer.
        let guard = AbortOnUnwind;
        let number = loop {
            match self.requests.take_number() {
                Some(number) => break number,
                None => self.turn(Duration::from_millis(1)),
            }
        };
        let is_read = slot.kind == Kind::Read;
        let path = &self.engine.path;
        let binds_late = is_read && path.binds_late(path.views.known().resilience);
        self.patience = if binds_late { PATIENCE } else { Duration::MAX };
        self.start(number, slot);
        let mut turns = 0;
        // Nobody polls when a write has returned: what was acknowledged early lands first.
        while !self.requests.is_over(number) || (self.engine.is_landing() && !is_read) {
            turns += 1;
            self.turn(self.wait_of(turns));
        }
        self.patience = Duration::MAX;
        std::mem::forget(guard);
        self.requests.end_timed(&self.engine.path.core, number)
    }

    /// How long the turn of this number waits for an arrival.
    fn wait_of(&self, turns: u32) -> Duration {
        /// Turns without progress before the thread blocks instead of spinning.
        const SPINS: u32 = 64;
        /// And turns after which it sleeps instead of yielding its core.
        const YIELDS: u32 = 512;
        let is_owed = self.engine.endpoints().outstanding() > 0;
        match turns {
            _ if is_owed && !self.engine.has_parked() && !self.requests.has_waiting() => {
                Duration::from_millis(100)
            }
            _ if is_owed => Duration::from_millis(1),
            ..SPINS => Duration::ZERO,
            SPINS..YIELDS => {
                std::thread::yield_now();
                Duration::ZERO
            }
            _ => Duration::from_millis(1),
        }
    }

    fn start(&mut self, number: u16, slot: Slot) {
        self.requests.begin(&self.engine.path.core, number, slot);
        self.advance();
    }
}

/// Aborts when dropped: stands on the stack while a borrowed buffer is in use.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
