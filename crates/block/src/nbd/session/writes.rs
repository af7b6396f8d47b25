//! Requests that change bytes: payloads in pieces, discards, zeros; and CACHE, which works like them.
//!
//! A long WRITE is handed to the queue piece by piece while the rest of its payload is still coming,
//! so that a client has memory for what it has sent, not for what it has announced.

use cenote_volume::{IoError, Op};

use super::{STEP_BYTES, Session};
use crate::nbd::engine::Engine;
use crate::nbd::outbox::Piece;
use crate::nbd::wire::{RequestHeader, command, command_flag};

/// Longest piece of a WRITE. Arbitrary: many pages, and little memory for each connection.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// What the bytes after a header are for.
#[derive(Debug)]
pub(super) enum Payload {
    /// The next header.
    None,
    /// A WRITE.
    Fill {
        slot: u32,
        /// The piece that is being filled; empty while there is no memory for it.
        piece: Vec<u8>,
        filled: usize,
        /// Bytes of the request that come after this piece.
        behind: u64,
    },
    /// Nothing: the request was refused, and this is its answer.
    Skip { left: usize, answer: Piece },
}

impl Session {
    /// Whether payload bytes come next.
    pub(crate) fn awaits_payload(&self) -> bool {
        !matches!(self.payload, Payload::None)
    }

    /// Whether there is a place for payload bytes, as far as can be told without trying.
    pub(crate) fn has_room_for_payload(&self) -> bool {
        match &self.payload {
            Payload::Fill { piece, behind, .. } if piece.is_empty() => {
                self.held.is_empty() && self.account.has_room(piece_bytes(*behind))
            }
            _ => true,
        }
    }

    /// Makes a place for payload bytes that come next; false when there is no memory for them now.
    pub(crate) fn make_room_for_payload(&mut self, engine: &mut Engine) -> bool {
        let Payload::Fill {
            piece,
            filled,
            behind,
            ..
        } = &mut self.payload
        else {
            return true;
        };
        if !piece.is_empty() {
            return true;
        }
        let bytes = piece_bytes(*behind);
        if !self.held.is_empty() || !self.account.try_take(bytes) {
            return false;
        }
        (*piece, *filled) = (engine.buffers.take(bytes), 0);
        *behind -= bytes as u64;
        true
    }

    /// Copies or skips payload from the front of `input`; returns the bytes used.
    pub(crate) fn feed(&mut self, input: &[u8], engine: &mut Engine) -> usize {
        match &mut self.payload {
            Payload::None => 0,
            Payload::Fill { piece, filled, .. } => {
                let target = &mut piece[*filled..];
                let used = target.len().min(input.len());
                target[..used].copy_from_slice(&input[..used]);
                self.filled(used, engine);
                used
            }
            Payload::Skip { left, .. } => {
                let used = (*left).min(input.len());
                *left -= used;
                if *left == 0
                    && let Payload::Skip { answer, .. } =
                        std::mem::replace(&mut self.payload, Payload::None)
                {
                    self.outbox.push(answer);
                }
                used
            }
        }
    }

    /// Where the next bytes of a WRITE's payload go; empty when none are awaited.
    pub(crate) fn landing(&mut self) -> &mut [u8] {
        match &mut self.payload {
            Payload::Fill { piece, filled, .. } => &mut piece[*filled..],
            _ => &mut [],
        }
    }

    /// Says that `count` bytes were received into [`Session::landing`].
    pub(crate) fn filled(&mut self, count: usize, engine: &mut Engine) {
        let Payload::Fill {
            slot,
            piece,
            filled,
            behind,
        } = &mut self.payload
        else {
            return;
        };
        *filled += count;
        if piece.is_empty() || *filled < piece.len() {
            return;
        }
        let (slot, behind, piece) = (*slot, *behind, std::mem::take(piece));
        *filled = 0;
        let taken = &mut self.slots[slot as usize];
        let end = taken.header.offset + taken.header.len_bytes;
        let offset = end - behind - piece.len() as u64;
        if behind > 0 {
            taken.pieces += 1;
        } else {
            self.payload = Payload::None;
        }
        if self.slots[slot as usize].failed.is_some() {
            // The rest changes nothing about the answer.
            return self.end_piece(slot, piece, Ok(()), engine);
        }
        self.submit(slot, offset, Op::Write(piece), engine);
    }

    /// Begins a WRITE whose first piece has `taken_bytes` of the account.
    pub(super) fn begin_write(
        &mut self,
        header: RequestHeader,
        taken_bytes: usize,
        engine: &mut Engine,
    ) {
        let slot = self.take_slot(header, 0);
        self.slots[slot as usize].pieces = 1;
        self.writes_in_flight += 1;
        self.payload = Payload::Fill {
            slot,
            piece: engine.buffers.take(taken_bytes),
            filled: 0,
            behind: header.len_bytes - taken_bytes as u64,
        };
    }

    /// Ends a piece of a WRITE, and the WRITE with its last one.
    pub(super) fn end_piece(
        &mut self,
        slot: u32,
        piece: Vec<u8>,
        result: Result<(), IoError>,
        engine: &mut Engine,
    ) {
        self.account.give(piece.len());
        engine.buffers.give(piece);
        let taken = &mut self.slots[slot as usize];
        taken.pieces -= 1;
        taken.failed = taken.failed.or(result.err());
        if taken.pieces > 0 {
            return;
        }
        let result = taken.failed.map_or(Ok(()), Err);
        if result.is_ok() {
            engine.counters.written_bytes.add(taken.header.len_bytes);
        }
        self.finish(slot, result, engine);
    }

    /// Begins a TRIM or a WRITE_ZEROES.
    pub(super) fn discard(
        &mut self,
        header: RequestHeader,
        taken_bytes: usize,
        engine: &mut Engine,
    ) {
        self.writes_in_flight += 1;
        let len_bytes = header.len_bytes;
        let slot = self.take_slot(header, taken_bytes);
        let stays =
            header.command == command::WRITE_ZEROES && header.flags & command_flag::NO_HOLE != 0;
        if !stays {
            self.submit(slot, header.offset, Op::Discard { len_bytes }, engine);
            return;
        }
        self.slots[slot as usize].steps_left = len_bytes;
        let mut zeros = engine.buffers.take(taken_bytes);
        zeros.fill(0);
        self.step(slot, Op::Write(zeros), engine);
    }

    /// Begins a CACHE: bytes that a read would bring nearer are read, for nobody.
    pub(super) fn begin_cache(
        &mut self,
        header: RequestHeader,
        taken_bytes: usize,
        engine: &mut Engine,
    ) {
        if !engine.exports[self.agreed.export].disk.reads_bring_nearer() {
            self.account.give(taken_bytes);
            return self.answer_done(&header);
        }
        let slot = self.take_slot(header, taken_bytes);
        self.slots[slot as usize].steps_left = header.len_bytes;
        let buffer = engine.buffers.take(taken_bytes);
        self.step(slot, Op::Read(buffer), engine);
    }

    /// Does the next step of a request that goes in steps; a queue leaves a written buffer's bytes alone.
    pub(super) fn step(&mut self, slot: u32, mut op: Op, engine: &mut Engine) {
        let taken = &mut self.slots[slot as usize];
        let offset = taken.header.offset + taken.header.len_bytes - taken.steps_left;
        let step_bytes = taken.steps_left.min(STEP_BYTES);
        taken.steps_left -= step_bytes;
        if let Op::Read(buffer) | Op::Write(buffer) = &mut op {
            buffer.truncate(step_bytes as usize);
        }
        self.submit(slot, offset, op, engine);
    }
}

fn piece_bytes(behind: u64) -> usize {
    behind.min(PIECE_BYTES as u64) as usize
}
