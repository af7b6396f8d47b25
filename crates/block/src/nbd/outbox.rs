//! Replies of one connection on their way out, in order.
//!
//! A piece is a head and a body; bodies lie in the buffers of their requests'
//! slots, so data is sent from where the queue put it. Whoever fills the outbox
//! bounds it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use super::wire::Head;

/// One reply, or one chunk of a structured reply.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) head: Head,
    pub(crate) body: Body,
    /// The slot to free when this piece is sent.
    pub(crate) releases: Option<u32>,
}

/// What follows a head.
#[derive(Debug)]
pub(crate) enum Body {
    Empty,
    Text(&'static str),
    /// Bytes `start .. end` of a slot's buffer.
    Slot {
        slot: u32,
        start: u32,
        end: u32,
    },
}

impl Piece {
    pub(crate) fn head_only(head: Head) -> Self {
        Self {
            head,
            body: Body::Empty,
            releases: None,
        }
    }

    fn body<'a, 'b: 'a>(&'a self, buffer_of: &impl Fn(u32) -> &'b [u8]) -> &'a [u8] {
        match self.body {
            Body::Empty => &[],
            Body::Text(text) => text.as_bytes(),
            Body::Slot { slot, start, end } => &buffer_of(slot)[start as usize..end as usize],
        }
    }

    fn len(&self) -> usize {
        let body_bytes = match self.body {
            Body::Empty => 0,
            Body::Text(text) => text.len(),
            Body::Slot { start, end, .. } => (end - start) as usize,
        };
        self.head.bytes().len() + body_bytes
    }
}

/// The pieces not yet sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent already.
    sent_bytes: usize,
}

/// Slices of one send: 64 replies with a body, of the 1024 slices that the kernel takes.
const SLICES_MAX: usize = 128;

impl Outbox {
    pub(crate) fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Has `send` send once, as much as it takes; adds to `released` every slot whose reply is out.
    /// Returns the bytes sent, and what `send` says of a next time.
    pub(crate) fn send<'b>(
        &mut self,
        send: impl FnOnce(&[IoSlice<'_>]) -> io::Result<(usize, bool)>,
        buffer_of: impl Fn(u32) -> &'b [u8],
        released: &mut Vec<u32>,
    ) -> io::Result<(usize, bool)> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut skip = self.sent_bytes;
        for piece in self.pieces.iter().take(SLICES_MAX / 2) {
            for part in [piece.head.bytes(), piece.body(&buffer_of)] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if part.len() > skipped {
                    slices[count] = IoSlice::new(&part[skipped..]);
                    count += 1;
                }
            }
        }
        let (sent, may_go_on) = send(&slices[..count])?;
        self.advance(sent, released);
        Ok((sent, may_go_on))
    }

    fn advance(&mut self, sent: usize, released: &mut Vec<u32>) {
        self.sent_bytes += sent;
        while let Some(first) = self.pieces.front() {
            let len = first.len();
            if self.sent_bytes < len {
                break;
            }
            self.sent_bytes -= len;
            released.extend(first.releases);
            self.pieces.pop_front();
        }
    }
}
