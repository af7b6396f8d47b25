//! Pages of a volume with a backing store: which are read from the disk, and when a write is on it.
//!
//! A write takes an entry of its page's lane, copies the page into the entry's buffer, and sends
//! that one buffer to the hosts and to the disk: hosts acknowledge it. Without slabs, or when they
//! fail under it, the disk does. What is acknowledged by the disk alone has its bit clear first. What the
//! disk refuses of a write that hosts failed under is held until its slabs are back, where they will be.
//!
//! A page that is read from the disk while its extent has slabs is given to them, under its claim:
//! the paper waits for its next write.
//!
//! While a slab of the stripe is away, and will be back, writes are the disk's, and reads of pages whose bits
//! stand take the other slabs or the disk. When it is back these bits are true as ever (decision 61).
//!
//! Invariants: the bit of a page is looked at and set in an epoch, so it is one of the slabs of
//! that epoch (soundness Z1, Z4); a page's writes join the lane in the order of its claims (Z2); a
//! write that failed at its hosts clears the bit before the disk's end counts (Z5).
//! Paper: \[infiniswap17\] 4.3 (write and read path).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_fabric::order_stores;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::stripe_of;
use super::{State, Worker};
use crate::backing::{DiskPart, Job, Kind as JobKind, Route, Store, Told};
use crate::{IoError, PAGE_BYTES};

impl Worker {
    /// Whether the page's newest bytes are to be had from hosts. In an epoch.
    pub(super) fn is_remote(&self, op: u16) -> bool {
        let page = self.ops[usize::from(op)].chunk.page;
        let store = self.core.backing.as_ref();
        store.is_none_or(|store| store.pages.remote.contains(page))
    }

    /// Whether the disk has refused the page's newest bytes and hosts have them. They are waited for where
    /// they will be back: a write of the page that the disk refuses, too, must not take the rest with it.
    pub(super) fn is_only_on_slabs(&self, op: u16) -> bool {
        let page = self.ops[usize::from(op)].chunk.page;
        let pages = &self.store().pages;
        pages.stale.contains(page) && pages.remote.contains(page)
    }

    fn store(&self) -> &Arc<Store> {
        let store = self.core.backing.as_ref();
        store.expect("only pages of a backed volume go to the disk")
    }

    fn lane(&self, op: u16) -> usize {
        self.store().lane_of(self.ops[usize::from(op)].chunk.page)
    }

    /// Has the disk read the page, behind every write of it that came before.
    pub(super) fn fetch(&mut self, op: u16) {
        self.leave(op);
        let lane = self.lane(op);
        let entries = &self.store().lanes[lane];
        // A write of part of the page goes on with an entry of its own: it does not read for nothing.
        if self.ops[usize::from(op)].claim.held && entries.writes.is_full() {
            return self.park(op);
        }
        let Some(entry) = entries.reads.take() else {
            return self.park(op);
        };
        let token = self.store().token(self.farewell.id, op);
        let state = &mut self.ops[usize::from(op)];
        (state.state, state.disk.token) = (State::Fetching, Some(token));
        let (kind, page) = (JobKind::Read, state.chunk.page);
        self.ops.at_disk += 1;
        let job = Job {
            kind,
            page,
            entry,
            token,
        };
        self.store().ask(lane, job, true);
    }

    /// Copies the page into an entry and puts it on its way to the disk; false when none is free.
    pub(super) fn stage(&mut self, op: u16, route: Route) -> bool {
        let lane = self.lane(op);
        let writes = &self.store().lanes[lane].writes;
        let Some(entry) = writes.take() else {
            return false;
        };
        // SAFETY: the page is whole, in the request's buffer or the operation's scratch; the entry's
        // buffer is this operation's alone until it is on its way.
        unsafe {
            let from = self.page_buffer(op);
            writes
                .buffer(entry)
                .copy_from_nonoverlapping(from, PAGE_BYTES);
        }
        writes.begin(entry, route);
        let token = self.store().token(self.farewell.id, op);
        let state = &mut self.ops[usize::from(op)];
        let page = state.chunk.page;
        state.disk.token = Some(token);
        state.disk.entry = (route == Route::Both).then_some(entry);
        let kind = JobKind::Write;
        let job = Job {
            kind,
            page,
            entry,
            token,
        };
        self.store().ask(lane, job, route == Route::Disk);
        true
    }

    /// Writes the page to the disk alone: no slab is there to take it, or one that is to be back misses it.
    /// Its bit stands until the disk has the page: what slabs have of it is the newest till then.
    pub(super) fn store_alone(&mut self, op: u16) {
        let is_mapped = stripe_of(&self.views, &self.ops[usize::from(op)]).is_some();
        self.leave(op);
        if !is_mapped && self.store().hot_slab == 0.0 {
            // Whether it is refused is for the next write: this one is the disk's.
            self.core.want(self.ops[usize::from(op)].place.extent);
        }
        self.protect(op);
        if !self.stage(op, Route::Disk) {
            return self.park(op);
        }
        self.list(op);
        self.ops[usize::from(op)].state = State::Storing;
        self.ops.at_disk += 1;
    }

    /// Hosts have failed under the write: its disk part is what acknowledges it.
    pub(super) fn await_disk(&mut self, op: u16) {
        self.leave(op);
        self.keep_page(op);
        let Some(entry) = self.ops[usize::from(op)].disk.entry.take() else {
            // The disk has refused it, and its slabs are not awaited any more.
            return self.end_store(op, false);
        };
        let lane = self.lane(op);
        match self.store().lanes[lane].writes.await_disk(entry) {
            DiskPart::Ended { is_ok } => self.end_store(op, is_ok),
            DiskPart::Pending => {
                self.store().hurry(lane);
                self.ops[usize::from(op)].state = State::Storing;
                self.ops.at_disk += 1;
            }
        }
    }

    /// Keeps the page of a write whose entry is given away: should the disk refuse it, hosts are to have it.
    fn keep_page(&mut self, op: u16) {
        let Some(entry) = self.entry_buffer(op) else {
            return;
        };
        // SAFETY: the entry's buffer and the scratch begin with a whole page each; no verb is out, and the
        // disk only reads the buffer.
        unsafe { self.scratch(op).copy_from_nonoverlapping(entry, PAGE_BYTES) };
        self.ops[usize::from(op)].memory.in_scratch = true;
    }

    /// Hosts have the page: from here on it is read from them.
    pub(super) fn mark_remote(&self, op: u16) {
        if let Some(store) = &self.core.backing {
            store
                .pages
                .remote
                .insert(self.ops[usize::from(op)].chunk.page);
        }
    }

    /// Hosts may have part of the page.
    pub(super) fn unmark_remote(&self, op: u16) {
        if let Some(store) = &self.core.backing {
            store
                .pages
                .remote
                .remove(self.ops[usize::from(op)].chunk.page);
        }
    }

    /// Writes that will not go on: hosts may have part of their pages, in slabs that may be taken back, or the
    /// disk may yet take what it has. It is what these pages are read from.
    pub(in crate::worker) fn unmark_unended(&self) {
        for (op, state) in (0..).zip(self.ops.iter()) {
            let writes = matches!(
                state.state,
                State::Writing | State::Holding | State::Storing
            );
            if writes && !state.aim.is_move {
                self.unmark_remote(op);
            }
        }
    }

    /// No verb refers to the operation's entry any more.
    pub(super) fn release_entry(&mut self, op: u16) {
        self.ops[usize::from(op)].disk.token = None;
        if let Some(entry) = self.ops[usize::from(op)].disk.entry.take() {
            let lane = self.lane(op);
            self.store().lanes[lane].writes.end_hosts(entry);
        }
    }

    /// Where the operation's page is, once it is in an entry.
    pub(super) fn entry_buffer(&self, op: u16) -> Option<*mut u8> {
        let entry = self.ops[usize::from(op)].disk.entry?;
        Some(self.store().lanes[self.lane(op)].writes.buffer(entry))
    }

    /// Takes in what the disk queues have ended.
    pub(in crate::worker) fn hear_disk(&mut self) {
        let Some(store) = &self.core.backing else {
            return;
        };
        let id = self.farewell.id;
        if !store.has_told(id) {
            return;
        }
        let store = Arc::clone(store);
        store.hear(id);
        while let Some(told) = store.told(id) {
            self.on_told(&store, told);
        }
    }

    fn on_told(&mut self, store: &Store, told: Told) {
        let op = told.token.op();
        if self.ops[usize::from(op)].disk.token == Some(told.token) {
            self.ops[usize::from(op)].disk.token = None;
            self.ops.at_disk -= 1;
            match told.read {
                Some((lane, entry)) => {
                    let buffer = store.lanes[lane].reads.buffer(entry);
                    self.end_fetch(op, buffer, told.is_ok);
                }
                None => self.end_store(op, told.is_ok),
            }
        }
        // Also of an operation of an earlier worker of this number.
        if let Some((lane, entry)) = told.read {
            store.lanes[lane].reads.free(entry);
        }
    }

    /// The disk has read the page.
    fn end_fetch(&mut self, op: u16, page: *const u8, is_ok: bool) {
        if !is_ok && self.is_only_on_slabs(op) {
            // The disk refused the write before it, which hosts have.
            return self.park(op);
        }
        if !is_ok {
            return self.finish(op, Err(self.disk_error()));
        }
        let at = usize::from(op);
        if !self.judge_fetched(op, page) {
            return;
        }
        if self.ops[at].claim.held {
            if !self.core.pages.integrity.is_sealed() {
                // SAFETY: the scratch begins with a whole page, and so does the entry's buffer.
                unsafe { self.scratch(op).copy_from_nonoverlapping(page, PAGE_BYTES) };
            }
            self.merge(op);
            return self.begin_scatter(op);
        }
        let (start, len_bytes) = (self.ops[at].chunk.start, self.ops[at].chunk.len_bytes);
        if !self.core.pages.integrity.is_sealed() && !self.is_scrub(op) {
            // SAFETY: the chunk lies inside the page, and the target is its part of the request's buffer.
            unsafe {
                self.target(op)
                    .copy_from_nonoverlapping(page.add(start), len_bytes)
            };
        }
        if !self.is_unchanged(op) {
            self.count_repeat();
            return self.park(op);
        }
        if !self.begin_promotion(op) {
            self.finish(op, Ok(()));
        }
    }

    /// Gives hosts a page that was read from the disk, if its extent has slabs by now: what is read
    /// and never written again would be read from the disk for good. False when it does not go.
    fn begin_promotion(&mut self, op: u16) -> bool {
        let at = usize::from(op);
        let (page, version, index) = (
            self.ops[at].chunk.page,
            self.ops[at].claim.version,
            self.ops[at].place.index,
        );
        let is_whole = self.ops[at].chunk.len_bytes == PAGE_BYTES && !self.is_scrub(op);
        if !is_whole || !self.core.pages.claims.try_claim_at(page, version) {
            return false;
        }
        self.ops[at].claim.held = true;
        self.enter(op);
        if self.is_remote(op) {
            // They were away and are back, and have it.
            return false;
        }
        let stripe = stripe_of(&self.views, &self.ops[at]).filter(|stripe| {
            let is_whole =
                !stripe.has_unreachable() || is_injected(InjectedFault::MarkWhileUnreachable);
            stripe.is_there() && !stripe.fence.contains(index) && is_whole
        });
        let Some(members) = stripe.map(|stripe| self.required(stripe, index)) else {
            return false;
        };
        let state = &mut self.ops[at];
        state.state = State::Promoting;
        state.verbs.reset();
        // The request's buffer has what the user sees: of a sealed page no host's business.
        state.memory.in_scratch = self.core.pages.integrity.is_sealed();
        self.scatter(op, members);
        true
    }

    /// Hosts have the page too, or it stays the disk's: the read has succeeded either way.
    pub(super) fn end_promotion(&mut self, op: u16) {
        // Before the bit, which readers look at.
        order_stores();
        let op_state = &self.ops[usize::from(op)];
        let stripe = stripe_of(&self.views, op_state).expect("it works in a mapped extent");
        // A slab that was skipped must be out of everybody's sight.
        if !op_state.verbs.failed && self.core.directory.is_settled(stripe.changed_in) {
            // Whatever a write of it that ended unknown had left with them is gone.
            self.decide_tag(op);
            self.core.pages.marks.heal(op_state.chunk.page);
            self.mark_remote(op);
            self.store()
                .counters
                .pages_promoted
                .fetch_add(1, Ordering::Relaxed);
        }
        self.finish(op, Ok(()));
    }

    /// The disk has written the page, or refused it.
    fn end_store(&mut self, op: u16, is_ok: bool) {
        if is_ok {
            let is_parted = self.ops[usize::from(op)].disk.is_parted;
            let mistake = if is_parted {
                InjectedFault::KeepBitFailed
            } else {
                InjectedFault::KeepBitAway
            };
            if !is_injected(mistake) {
                self.unmark_remote(op);
            }
        } else if self.ops[usize::from(op)].disk.is_parted && self.may_reach_slabs(op) {
            return self.hold(op);
        } else if is_injected(InjectedFault::ClearBitRefused) {
            self.unmark_remote(op);
        } else if !self.ops[usize::from(op)].disk.is_parted && self.is_remote(op) {
            self.retract(op);
        }
        let result = if is_ok {
            Ok(())
        } else {
            Err(self.disk_error())
        };
        self.finish(op, result);
    }

    /// No host has anything of a write that the disk has refused: what slabs have of the page is as it was.
    fn retract(&mut self, op: u16) {
        let slot = self.list_slot(op);
        if std::mem::take(&mut self.ops[usize::from(op)].listing.listed) {
            if let Some(tags) = &self.core.pages.integrity.tags {
                tags.retract(slot);
            }
            self.core.pages.marks.retract_write(slot);
        }
    }

    /// Whether slabs are there that a page can be given to that the disk has refused, or will be back. Enters
    /// the newest epoch.
    fn may_reach_slabs(&mut self, op: u16) -> bool {
        self.enter(op);
        let stripe = stripe_of(&self.views, &self.ops[usize::from(op)]);
        stripe.is_some_and(|stripe| stripe.is_there() || stripe.has_unreachable())
    }

    /// A disk queue that has ended refuses everything.
    fn disk_error(&self) -> IoError {
        match self.core.life.closed.load(Ordering::Acquire) {
            true => IoError::Closed,
            false => IoError::Disk,
        }
    }

    /// Nothing of an operation that will not go on waits for the disk.
    pub(in crate::worker) fn forget_disk(&mut self) {
        for op in 0..self.ops.len() {
            self.release_entry(u16::try_from(op).expect("OPS_MAX fits"));
        }
        self.ops.at_disk = 0;
        if let Some(store) = &self.core.backing {
            store.disown(self.farewell.id);
        }
    }
}
