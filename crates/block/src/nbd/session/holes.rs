//! Answers that tell holes from data: reads in pieces, and block status.

use super::Session;
use crate::nbd::engine::Engine;
use crate::nbd::export::META_CONTEXT_ID;
use crate::nbd::outbox::{Body, Piece};
use crate::nbd::wire::{Head, RequestHeader, STATE_HOLE_ZERO, chunk, command_flag};

/// Extents in one BLOCK_STATUS reply; a client asks again for the rest.
const DESCRIPTORS_MAX: usize = 4096;
/// Bytes of one extent query while descriptors are gathered.
const STATUS_STEP_BYTES: u64 = 64 << 20;
/// A small run is cheaper sent than announced in a chunk of its own.
const HOLE_BYTES_MIN: u64 = 16 << 10;

impl Session {
    /// Answers a READ of memory that nobody wrote without asking the queue.
    pub(super) fn answer_as_hole(&mut self, header: &RequestHeader, engine: &mut Engine) -> bool {
        if header.len_bytes == 0 {
            let head = match self.agreed.structured {
                true => Head::chunk(header.cookie, chunk::NONE, 0, true),
                false => Head::simple(header.cookie, None),
            };
            self.outbox.push(Piece::head_only(head));
            return true;
        }
        if !self.agreed.structured {
            return false;
        }
        query_extents(
            self.agreed.export,
            header.offset,
            u64::from(header.len_bytes),
            engine,
        );
        if engine.extents.iter().any(|extent| extent.allocated) {
            return false;
        }
        engine.counters.read_bytes.add(u64::from(header.len_bytes));
        let head = Head::hole(header.cookie, header.offset, header.len_bytes, true);
        self.outbox.push(Piece::head_only(head));
        true
    }

    pub(super) fn block_status(&mut self, header: RequestHeader, engine: &mut Engine) {
        let one = header.flags & command_flag::REQ_ONE != 0;
        let end = header.offset + u64::from(header.len_bytes);
        // Runs are merged here, so one more than wanted shows that the last is whole.
        let wanted = if one { 1 } else { DESCRIPTORS_MAX };
        let mut payload = engine.buffers.take(4 + 8 * wanted);
        payload.clear();
        payload.extend(META_CONTEXT_ID.to_be_bytes());
        let (mut count, mut last) = (0, None);
        let mut at = header.offset;
        while at < end && count <= wanted {
            let step_bytes = (end - at).min(STATUS_STEP_BYTES);
            query_extents(self.agreed.export, at, step_bytes, engine);
            for extent in &engine.extents {
                let state = if extent.allocated { 0 } else { STATE_HOLE_ZERO };
                if last != Some(state) {
                    count += 1;
                    if count > wanted {
                        break;
                    }
                    last = Some(state);
                    payload.extend(0u32.to_be_bytes());
                    payload.extend(state.to_be_bytes());
                }
                lengthen_last(&mut payload, extent.len_bytes as u32);
            }
            at += step_bytes;
        }
        let len = payload.len() as u32;
        let slot = self.take_slot(header, payload.len());
        self.slots[slot as usize].buffer = payload;
        self.outbox.push(Piece {
            head: Head::chunk(header.cookie, chunk::BLOCK_STATUS, len, true),
            body: Body::Slot {
                slot,
                start: 0,
                end: len,
            },
            releases: Some(slot),
        });
    }

    pub(super) fn answer_read(&mut self, slot: u32, engine: &mut Engine) {
        let RequestHeader {
            cookie,
            offset,
            len_bytes,
            flags,
            ..
        } = self.slots[slot as usize].header;
        let mut piece = |head, start, end, last| {
            self.outbox.push(Piece {
                head,
                body: Body::Slot { slot, start, end },
                releases: if last { Some(slot) } else { None },
            });
        };
        if !self.agreed.structured {
            piece(Head::simple(cookie, None), 0, len_bytes, true);
            return;
        }
        let whole = flags & command_flag::DF != 0 || u64::from(len_bytes) <= HOLE_BYTES_MIN;
        if whole {
            let head = Head::data(cookie, offset, len_bytes, true);
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
                piece(Head::data(cookie, at, run_bytes, last), start, end, last);
            } else {
                piece(Head::hole(cookie, at, run_bytes, last), end, end, last);
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

/// Adds to the length of the last descriptor of a BLOCK_STATUS payload.
fn lengthen_last(payload: &mut [u8], len_bytes: u32) {
    let at = payload.len() - 8;
    if let Some(field) = payload[at..].first_chunk_mut::<4>() {
        *field = (u32::from_be_bytes(*field) + len_bytes).to_be_bytes();
    }
}
