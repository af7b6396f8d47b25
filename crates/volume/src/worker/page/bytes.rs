//! Where the bytes of an operation are, and making one kind of split from the other.

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::verbs::spare_of;
use crate::PAGE_BYTES;
use crate::worker::{Work, Worker};

impl Worker {
    /// Encodes the page's parities and posts them.
    pub(super) fn encode_page(&mut self, op: u16) {
        if is_injected(InjectedFault::EncodeByScheme) {
            let scheme = self.views.known().resilience.scheme();
            self.ops[usize::from(op)].view.parities = scheme.r() as u8;
        }
        let code = self.code(op).expect("only schemes with a code encode");
        // SAFETY: the page is the request's buffer or the scratch page, whole in both cases, and
        // nothing writes it while the operation lives; the parities are the rest of this
        // operation's own scratch block, which does not overlap the page.
        let (page, parities) = unsafe {
            (
                std::slice::from_raw_parts(self.page_buffer(op), PAGE_BYTES),
                std::slice::from_raw_parts_mut(self.parities(op), self.parity_bytes(op)),
            )
        };
        code.encode(page, parities);
        self.spend(Work::Encode);
    }

    /// Rebuilds in place the data splits that were not read; of copies, brings one that came.
    pub(super) fn reconstruct(&mut self, op: u16) {
        let present = self.ops[usize::from(op)].verbs.acked;
        let primary = self.ops[usize::from(op)].verbs.primary;
        if self.cut(op).k() == 1 && present & 1 << primary == 0 {
            let copy = present.trailing_zeros() as usize;
            let spare = spare_of(copy, primary).expect("it is not the one in the page");
            // SAFETY: the spare copies lie behind the page in the operation's scratch block, apart
            // from its page and from the request's buffer; nothing lands in either any more.
            unsafe {
                let from = self.parities(op).add(spare * PAGE_BYTES);
                self.page_buffer(op)
                    .copy_from_nonoverlapping(from, PAGE_BYTES);
            }
            self.spend(Work::Copy);
        }
        let data = (1 << self.cut(op).k()) - 1;
        let Some(code) = self.code(op).filter(|_| present & data != data) else {
            return;
        };
        // SAFETY: as in `post_parities`, and no verb of this operation is out, so nothing else
        // writes the page or the parities.
        let (page, parities) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.page_buffer(op), PAGE_BYTES),
                std::slice::from_raw_parts(self.parities(op), self.parity_bytes(op)),
            )
        };
        code.reconstruct(present, page, parities)
            .expect("k splits of a valid code are present");
        self.core
            .measures
            .counters
            .pages_decoded
            .fetch_add(1, Ordering::Relaxed);
        self.spend(Work::Decode);
    }

    /// Puts the request's bytes (zeros for a discard) over the page in scratch.
    pub(super) fn merge(&mut self, op: u16) {
        let (start, len_bytes) = (
            self.ops[usize::from(op)].chunk.start,
            self.ops[usize::from(op)].chunk.len_bytes,
        );
        // SAFETY: the chunk lies inside the scratch page; the request's buffer holds its bytes
        // and does not overlap the scratch.
        unsafe {
            let hole = self.scratch(op).add(start);
            if self.is_discard(op) {
                hole.write_bytes(0, len_bytes);
            } else {
                hole.copy_from_nonoverlapping(self.target(op), len_bytes);
            }
        }
    }

    /// This operation's page of scratch.
    pub(super) fn scratch(&self, op: u16) -> *mut u8 {
        self.scratch.page(self.ops[usize::from(op)].memory.block)
    }

    /// Where its parities are, or copies that land apart.
    pub(super) fn parities(&self, op: u16) -> *mut u8 {
        let op = &self.ops[usize::from(op)];
        self.scratch.parities(op.memory.block, op.place.cut)
    }

    pub(super) fn parity_bytes(&self, op: u16) -> usize {
        usize::from(self.ops[usize::from(op)].view.parities) * self.cut(op).split_bytes()
    }

    /// The chunk's bytes in the request's buffer.
    pub(super) fn target(&self, op: u16) -> *mut u8 {
        let op = &self.ops[usize::from(op)];
        // SAFETY: the chunk was cut from the request's range, so its offset lies inside the buffer.
        unsafe {
            self.requests[usize::from(op.request)]
                .buffer
                .add(op.chunk.buffer_offset)
        }
    }

    /// Whether the request's buffer is where the operation's page is.
    pub(super) fn is_in_place(&self, op: u16) -> bool {
        let op = &self.ops[usize::from(op)];
        op.chunk.len_bytes == PAGE_BYTES && !op.memory.in_scratch
    }

    /// The whole page: in its entry where it has one, in the request's buffer where it covers the
    /// page, in scratch otherwise.
    pub(super) fn page_buffer(&self, op: u16) -> *mut u8 {
        if let Some(buffer) = self.entry_buffer(op) {
            buffer
        } else if self.is_in_place(op) {
            self.target(op)
        } else {
            self.scratch(op)
        }
    }
}
