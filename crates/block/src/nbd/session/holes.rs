//! Answers that tell holes from data: reads in pieces, and block status.

use super::Session;
use crate::nbd::engine::Engine;
use crate::nbd::export::META_CONTEXT_ID;
use crate::nbd::outbox::{Body, Piece};
use crate::nbd::wire::{Framing, Head, RequestHeader, STATE_HOLE_ZERO, chunk, command_flag};

/// Extents in one BLOCK_STATUS reply; a client asks again for the rest.
const DESCRIPTORS_MAX: usize = 4096;
/// Bytes that one request has looked at; a client with 64-bit lengths asks again for the rest.
const STATUS_BYTES_MAX: u64 = 64 << 30;
/// Bytes of one extent query while descriptors are gathered.
const STATUS_STEP_BYTES: u64 = 64 << 20;
/// A small run is cheaper sent than announced in a chunk of its own.
const HOLE_BYTES_MIN: u64 = 16 << 10;

impl Session {
    /// Answers a READ of memory that nobody wrote without asking the queue.
    pub(super) fn answer_as_hole(&mut self, header: &RequestHeader, engine: &mut Engine) -> bool {
        if header.len_bytes == 0 {
            let head = match self.agreed.framing {
                Framing::Simple => Head::simple(header.cookie, None),
                framing => Head::chunk(framing, header, chunk::NONE, 0, true),
            };
            self.outbox.push(Piece::head_only(head));
            return true;
        }
        if !self.agreed.framing.has_chunks() {
            return false;
        }
        query_extents(self.agreed.export, header.offset, header.len_bytes, engine);
        let bytes = header.offset..header.offset + header.len_bytes;
        if engine.extents.iter().any(|extent| extent.allocated) || !self.place.may_read(&bytes) {
            return false;
        }
        engine.counters.read_bytes.add(header.len_bytes);
        let hole_bytes = header.len_bytes as u32;
        let head = Head::hole(self.agreed.framing, header, header.offset, hole_bytes, true);
        self.outbox.push(Piece::head_only(head));
        true
    }

    pub(super) fn block_status(&mut self, header: RequestHeader, engine: &mut Engine) {
        let one = header.flags & command_flag::REQ_ONE != 0;
        let examined_bytes = header.len_bytes.min(STATUS_BYTES_MAX);
        let end = header.offset + examined_bytes;
        // Runs are merged here, so one more than wanted shows that the last is whole.
        let wanted = if one { 1 } else { DESCRIPTORS_MAX };
        let mut runs = Descriptors::new(self.agreed.framing, wanted, engine);
        let mut at = header.offset;
        while at < end && !runs.is_full() {
            let step_bytes = (end - at).min(STATUS_STEP_BYTES);
            query_extents(self.agreed.export, at, step_bytes, engine);
            for extent in &engine.extents {
                let state = if extent.allocated { 0 } else { STATE_HOLE_ZERO };
                if !runs.add(extent.len_bytes, state) {
                    break;
                }
            }
            at += step_bytes;
        }
        let (kind, payload) = runs.finish();
        let len = payload.len() as u32;
        self.account.charge(payload.len());
        let slot = self.take_slot(header, payload.len());
        self.slots[slot as usize].buffer = payload;
        self.outbox.push(Piece {
            head: Head::chunk(self.agreed.framing, &header, kind, len, true),
            body: Body::Slot {
                slot,
                start: 0,
                end: len,
            },
            releases: Some(slot),
        });
    }

    pub(super) fn answer_read(&mut self, slot: u32, engine: &mut Engine) {
        let header = self.slots[slot as usize].header;
        let framing = self.agreed.framing;
        // No longer than the maximum.
        let (offset, len_bytes) = (header.offset, header.len_bytes as u32);
        let mut piece = |head, start, end, last| {
            self.outbox.push(Piece {
                head,
                body: Body::Slot { slot, start, end },
                releases: if last { Some(slot) } else { None },
            });
        };
        if !framing.has_chunks() {
            piece(Head::simple(header.cookie, None), 0, len_bytes, true);
            return;
        }
        let whole = header.flags & command_flag::DF != 0 || u64::from(len_bytes) <= HOLE_BYTES_MIN;
        if whole {
            let head = Head::data(framing, &header, offset, len_bytes, true);
            piece(head, 0, len_bytes, true);
            return;
        }
        // Asked now, not before the read: a run that is a hole now may be
        // answered as one whatever the read saw, and no list was kept meanwhile.
        query_extents(self.agreed.export, offset, u64::from(len_bytes), engine);
        for extent in &mut engine.extents {
            extent.allocated |= extent.len_bytes < HOLE_BYTES_MIN;
        }
        let mut start = 0;
        let mut runs = engine.extents.iter().peekable();
        while let Some(run) = runs.next() {
            let mut end = start + run.len_bytes as u32;
            while let Some(next) = runs.next_if(|next| next.allocated == run.allocated) {
                end += next.len_bytes as u32;
            }
            let (at, run_bytes, last) = (offset + u64::from(start), end - start, end == len_bytes);
            if run.allocated {
                let head = Head::data(framing, &header, at, run_bytes, last);
                piece(head, start, end, last);
            } else {
                let head = Head::hole(framing, &header, at, run_bytes, last);
                piece(head, end, end, last);
            }
            start = end;
        }
    }
}

fn query_extents(export: usize, offset: u64, len_bytes: u64, engine: &mut Engine) {
    engine.extents.clear();
    engine.exports[export]
        .disk
        .extents(offset, len_bytes, &mut engine.extents);
}

/// The payload of a BLOCK_STATUS chunk while it is put together: runs, neighbours merged.
struct Descriptors {
    framing: Framing,
    payload: Vec<u8>,
    wanted: usize,
    /// Runs so far, the one that was no longer wanted among them.
    count: usize,
    last: Option<(u64, u32)>,
}

impl Descriptors {
    fn new(framing: Framing, wanted: usize, engine: &mut Engine) -> Self {
        let mut payload = engine.buffers.take(8 + 16 * wanted);
        payload.clear();
        payload.extend(META_CONTEXT_ID.to_be_bytes());
        if framing == Framing::Extended {
            // The number of descriptors, once it is known.
            payload.extend(0u32.to_be_bytes());
        }
        Self {
            framing,
            payload,
            wanted,
            count: 0,
            last: None,
        }
    }

    fn is_full(&self) -> bool {
        self.count > self.wanted
    }

    /// Adds a run; false when it was one too many.
    fn add(&mut self, len_bytes: u64, state: u32) -> bool {
        match &mut self.last {
            Some((len, same)) if *same == state => {
                *len += len_bytes;
                return true;
            }
            _ => self.count += 1,
        }
        if self.is_full() {
            return false;
        }
        self.put_last();
        self.last = Some((len_bytes, state));
        true
    }

    fn put_last(&mut self) {
        let Some((len_bytes, state)) = self.last.take() else {
            return;
        };
        match self.framing {
            Framing::Extended => {
                self.payload.extend(len_bytes.to_be_bytes());
                self.payload.extend(u64::from(state).to_be_bytes());
            }
            // Of a request whose length has 32 bits.
            Framing::Simple | Framing::Structured => {
                self.payload.extend((len_bytes as u32).to_be_bytes());
                self.payload.extend(state.to_be_bytes());
            }
        }
    }

    /// The chunk's type and payload.
    fn finish(mut self) -> (u16, Vec<u8>) {
        self.put_last();
        match self.framing {
            Framing::Extended => {
                let count = self.count.min(self.wanted) as u32;
                self.payload[4..8].copy_from_slice(&count.to_be_bytes());
                (chunk::BLOCK_STATUS_EXTENDED, self.payload)
            }
            Framing::Simple | Framing::Structured => (chunk::BLOCK_STATUS, self.payload),
        }
    }
}
