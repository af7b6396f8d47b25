//! What one receive brought of a connection and nobody has looked at yet.

use super::handshake::Handshake;

/// Received bytes that are not taken apart yet.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; INBOX_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn used(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for at most `max` bytes, never none: what is left over moves to the front.
    pub(super) fn space(&mut self, max: usize) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let end = self.bytes.len().min(self.end.saturating_add(max));
        &mut self.bytes[self.end..end]
    }

    pub(super) fn received(&mut self, count: usize) {
        self.end += count;
    }
}

/// Fifteen 4 KiB writes; more come with the next receive.
const INBOX_BYTES: usize = 64 << 10;
const _: () = assert!(INBOX_BYTES > Handshake::INPUT_BYTES_MAX);
