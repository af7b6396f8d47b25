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

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::state::Page;
use crate::backing::{DiskPart, Job, Kind as JobKind, Route, Token};
use crate::worker::data_path::DataPath;
use crate::{IoError, PAGE_BYTES};

/// What an operation has to do with the disk of a backed volume.
#[derive(Clone, Copy, Default)]
pub(super) struct AtDisk {
    // Where a page that goes to the disk besides is, until no verb refers to it.
    entry: Option<u32>,
    // Names its job there.
    token: Option<Token>,
    /// Hosts have failed under its write, and may have part of the page.
    pub is_parted: bool,
}

impl AtDisk {
    /// Whether the page is in an entry of the disk's queue.
    pub fn is_in_entry(self) -> bool {
        self.entry.is_some()
    }
}

/// What the disk queue has not done. One that has ended refuses everything.
pub(super) fn error(path: &DataPath) -> IoError {
    match path.is_closed() {
        true => IoError::Closed,
        false => IoError::Disk,
    }
}

impl Page {
    /// Whether the page's newest bytes are to be had from hosts. In an epoch.
    pub(super) fn is_remote(&self, path: &DataPath) -> bool {
        let store = path.core.backing.as_ref();
        store.is_none_or(|store| store.pages.remote.contains(self.number))
    }

    /// Whether the disk has refused the page's newest bytes and hosts have them. They are waited for where
    /// they will be back: a write of the page that the disk refuses, too, must not take the rest with it.
    pub(super) fn is_only_on_slabs(&self, path: &DataPath) -> bool {
        let pages = &path.store().pages;
        pages.stale.contains(self.number) && pages.remote.contains(self.number)
    }

    fn lane(&self, path: &DataPath) -> usize {
        path.store().lane_of(self.number)
    }

    /// Hosts have the page: from here on it is read from them.
    pub(super) fn mark_remote(&self, path: &DataPath) {
        if let Some(store) = &path.core.backing {
            store.pages.remote.insert(self.number);
        }
    }

    /// Hosts may have part of the page.
    pub(super) fn unmark_remote(&self, path: &DataPath) {
        if let Some(store) = &path.core.backing {
            store.pages.remote.remove(self.number);
        }
    }

    /// No verb refers to the operation's entry any more.
    pub(super) fn release_entry(&mut self, path: &DataPath) {
        self.disk.token = None;
        if let Some(entry) = self.disk.entry.take() {
            self.memory.leave_entry();
            let lane = self.lane(path);
            path.store().lanes[lane].writes.end_hosts(entry);
        }
    }

    /// Whether the disk has done what the operation waits for, by the token that it named: once.
    pub(in crate::worker) fn take_told(&mut self, token: Token) -> bool {
        let is_own = self.disk.token == Some(token);
        if is_own {
            self.disk.token = None;
        }
        is_own
    }
}

/// The members that a page is given to that was read from the disk, if its extent has slabs by now: what
/// is read and never written again would be read from the disk for good. Under its claim, which it then
/// has; `None` when it does not go.
pub(super) fn claim_promotion(page: &mut Page, path: &mut DataPath) -> Option<u64> {
    let is_whole = page.memory.is_whole() && !page.is_scrub();
    if !is_whole || !page.try_claim_read(&path.core) {
        return None;
    }
    page.enter(path);
    if page.is_remote(path) {
        // They were away and are back, and have it.
        return None;
    }
    let index = page.place.index;
    let stripe = page.stripe(&path.views).filter(|stripe| {
        let is_whole =
            !stripe.has_unreachable() || is_injected(InjectedFault::MarkWhileUnreachable);
        stripe.is_there() && !stripe.fence.contains(index) && is_whole
    })?;
    Some(page.required(path, stripe))
}

/// Hosts have the page that was read from the disk too, or it stays the disk's.
pub(super) fn end_promotion(page: &Page, path: &DataPath) {
    let stripe = page.stripe(&path.views);
    let stripe = stripe.expect("it works in a mapped extent");
    // A slab that was skipped must be out of everybody's sight.
    if page.verbs.failed || !path.core.directory.is_settled(stripe.changed_in) {
        return;
    }
    // Whatever a write of it that ended unknown had left with them is gone.
    page.decide_tag(path);
    path.core.pages.marks.heal(page.number);
    page.mark_remote(path);
    let counters = &path.store().counters;
    counters.pages_promoted.fetch_add(1, Ordering::Relaxed);
}

/// Whether slabs are there that a page can be given to that the disk has refused, or will be back. Enters
/// the newest epoch.
pub(super) fn may_reach_slabs(page: &mut Page, path: &mut DataPath) -> bool {
    page.enter(path);
    let stripe = page.stripe(&path.views);
    stripe.is_some_and(|stripe| stripe.is_there() || stripe.has_unreachable())
}

/// Has the disk read the page, behind every write of it that came before; false when it cannot now.
/// Leaves the epoch.
pub(super) fn fetch(page: &mut Page, path: &mut DataPath) -> bool {
    page.leave(path);
    let lane = page.lane(path);
    let entries = &path.store().lanes[lane];
    // A write of part of the page goes on with an entry of its own: it does not read for nothing.
    if page.claim.held && entries.writes.is_full() {
        return false;
    }
    let Some(entry) = entries.reads.take() else {
        return false;
    };
    let job = job(page, path, JobKind::Read, entry);
    path.store().ask(lane, job, true);
    path.at_disk += 1;
    true
}

/// A job of the operation's, of which it hears the end.
fn job(page: &mut Page, path: &DataPath, kind: JobKind, entry: u32) -> Job {
    let token = path.store().token(path.worker, page.op);
    page.disk.token = Some(token);
    Job {
        kind,
        page: page.number,
        entry,
        token,
    }
}

/// Copies the page into an entry and puts it on its way to the disk; false when none is free.
pub(super) fn stage(page: &mut Page, path: &DataPath, route: Route) -> bool {
    let lane = page.lane(path);
    let writes = &path.store().lanes[lane].writes;
    let Some(entry) = writes.take() else {
        return false;
    };
    let buffer = writes.buffer(entry);
    // SAFETY: the page is whole, in the request's buffer or the operation's scratch; the entry's
    // buffer is this operation's alone until it is on its way.
    unsafe { buffer.copy_from_nonoverlapping(page.memory.page(), PAGE_BYTES) };
    writes.begin(entry, route);
    let job = job(page, path, JobKind::Write, entry);
    if route == Route::Both {
        page.disk.entry = Some(entry);
        page.memory.enter_entry(buffer);
    }
    path.store().ask(lane, job, route == Route::Disk);
    true
}

/// Hosts have failed under the write: its disk part is what acknowledges it. Leaves the epoch, with the
/// page in scratch: should the disk refuse it, hosts are to have it.
pub(super) fn await_disk(page: &mut Page, path: &mut DataPath) -> DiskPart {
    page.leave(path);
    let Some(entry) = page.disk.entry.take() else {
        // The disk has refused it, and its slabs are not awaited any more.
        return DiskPart::Ended { is_ok: false };
    };
    // SAFETY: the entry's buffer is a whole page, apart from the scratch; no verb is out, and the disk
    // only reads it.
    unsafe { page.memory.fill_scratch(page.memory.page()) };
    page.memory.leave_entry();
    page.memory.in_scratch = true;
    let lane = page.lane(path);
    let part = path.store().lanes[lane].writes.await_disk(entry);
    if part == DiskPart::Pending {
        path.store().hurry(lane);
        path.at_disk += 1;
    }
    part
}
