//! A value's way to its client: straight from where it lies, or through the replies.

use std::io::{ErrorKind, IoSlice};

use cenote_kv::engine::Reply;

use super::replies::Replies;
use super::transport::Transport;

/// Values from this length on are written from where they lie, if the client can take them.
const DIRECT_BYTES_MIN: usize = 8 << 10;
/// Parts of a value that are written at once at most.
const DIRECT_PARTS_MAX: usize = 6;

/// Where a value may be written from where it lies.
pub(super) struct Direct<'a> {
    pub(super) transport: &'a mut Transport,
    /// Becomes false when it takes no more.
    pub(super) is_writable: &'a mut bool,
    pub(super) written: &'a mut u64,
}

/// A reply that goes to its place, or straight to the client.
pub(super) struct Target<'a, 'b> {
    pub(super) replies: &'a mut Replies,
    pub(super) direct: Option<&'a mut Direct<'b>>,
    /// What follows a value: the line end, and the end of a retrieval of one key.
    pub(super) tail: &'static [u8],
    pub(super) has_value: bool,
}

impl Reply for Target<'_, '_> {
    fn text(&mut self) -> &mut Vec<u8> {
        self.replies.tail()
    }

    fn value(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.has_value = true;
        let mut taken = 0;
        if length >= DIRECT_BYTES_MIN
            && parts.len() <= DIRECT_PARTS_MAX
            && let Some(direct) = &mut self.direct
        {
            let mut slices = [IoSlice::new(&[]); DIRECT_PARTS_MAX + 2];
            slices[0] = IoSlice::new(self.replies.unsent());
            for (slice, part) in slices[1..].iter_mut().zip(parts) {
                *slice = IoSlice::new(part);
            }
            slices[parts.len() + 1] = IoSlice::new(self.tail);
            match direct.transport.write(&slices[..parts.len() + 2]) {
                Ok(written) => {
                    *direct.written += written as u64;
                    let text = self.replies.unsent().len().min(written);
                    self.replies.note_sent(text);
                    taken = written - text;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => *direct.is_writable = false,
                // It is met again where the rest is written, which a stream that is not writable is not:
                // the poll may have told of its end already.
                Err(_) => {}
            }
        }
        for part in parts.iter().copied().chain([self.tail]) {
            let skipped = taken.min(part.len());
            taken -= skipped;
            self.replies.tail().extend_from_slice(&part[skipped..]);
        }
    }

    fn bytes(&mut self, parts: &[&[u8]]) {
        self.replies.tail().bytes(parts);
    }
}
