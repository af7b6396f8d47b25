//! Bringing a volume's pages to its other layout, where they are cut otherwise: the change of k in use.
//!
//! Of a volume with a backing store nothing is copied: its pages are read from there until they are written
//! next, and extents of the target are mapped as they become busy.
//!
//! Unit by unit; one is the pages of an extent of the larger k, which are those of several whole extents
//! of the other:
//!
//! `PREPARING` (the target's extents are mapped, whole, settled and in the journal) `-> MOVING` (chunk by
//! chunk, by the migrator's thread) `-> LEAVING` (the old extents, which hold nothing any more, are given back
//! as any empty ones are: `empty_extents`) `-> ` the next unit. After the last the volume has one layout.
//!
//! Invariants: no chunk is moved while something lost can be rebuilt; at most one unit is in both layouts; a
//! change that cannot go on waits, the volume serves, and it can be taken back.
//! Decision 32.

use std::ops::Range;
use std::sync::atomic::Ordering;

use cenote_fabric::Time;

use super::Control;
use super::fill::PAUSE;
use crate::core::Mapping;
use crate::directory::{Snapshot, Stripe};
use crate::extents::LayoutId;
use crate::kept::shape_of;
use crate::scheme::Cut;
use crate::{PAGE_BYTES, Scheme};

/// How far the pages are.
#[derive(Default)]
pub(super) struct Restripe {
    stage: Stage,
    /// First page of the unit.
    unit: u64,
    /// When a change is tried again that could not begin.
    begin_at: Time,
    /// When the one that is under way goes on.
    retry_at: Time,
    /// Whether the migrator is at a chunk, or about to be.
    is_out: bool,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Preparing,
    Moving {
        chunk: Range<u64>,
        is_asked: bool,
    },
    Leaving,
}

impl Restripe {
    /// Looks at every unit from the first on. What the migrator is at it ends.
    fn begin_again(&mut self) {
        *self = Self {
            is_out: self.is_out,
            ..Self::default()
        };
    }

    /// Whether pages are being moved.
    pub fn is_out(&self) -> bool {
        self.is_out
    }
}

impl Control {
    /// Has pages go where they are cut as `to` says, if they are not there. What cannot be done now is tried
    /// again by itself.
    pub(super) fn begin_restripe(&mut self, to: Scheme) {
        let layouts = &self.core.layouts;
        let now = layouts.target();
        if layouts.layout(now).cut() != Cut::of(to) {
            if !layouts.is_mixed() {
                if !self.lay_out(to) {
                    return;
                }
            } else if layouts.layout(now.other()).cut() == Cut::of(to) {
                // Back to where they came from.
                layouts.turn(now.other());
                self.restripe.begin_again();
            } else {
                // Two are there, and nobody was to ask for a third: it begins when that is over.
                return;
            }
        }
        let layouts = &self.core.layouts;
        layouts.set_parities(layouts.target(), to.r());
    }

    /// Lays out the other layout, once the next owner would know.
    fn lay_out(&mut self, to: Scheme) -> bool {
        let layout_id = self.core.layouts.target().other();
        if let Err(error) = self.core.layouts.prepare() {
            tracing::error!(%error, "no room to note which pages are restriped");
            return false;
        }
        if !self.record_layout(layout_id, Some(shape_of(to))) {
            return false;
        }
        let layouts = &self.core.layouts;
        let layout = layouts.layout_with(Cut::of(to));
        let count = usize::try_from(layout.extents_of(layouts.page_count()));
        let count = count.expect("checked before");
        // Before anybody finds a page there.
        self.core.codes.with(layout.cut(), to.r());
        self.core.directory.publish(|next| {
            next.extents.resize(layout_id, count, || None);
            true
        });
        layouts.set_parities(layout_id, to.r());
        layouts.begin(layout.cut());
        self.restripe.begin_again();
        true
    }

    /// Whether pages are to go where the volume's scheme has them, and have not begun to.
    pub(super) fn is_to_restripe(&self) -> bool {
        let scheme = self.core.resilience().scheme();
        self.core.layout().cut() != Cut::of(scheme)
    }

    /// Whether pages are on their way to the other layout.
    pub(super) fn is_restriping(&self) -> bool {
        self.core.layouts.is_mixed()
    }

    /// Of the pages that hold data, how many are where they are to be; `None`: none is on its way.
    pub(super) fn pages_moved(&self) -> Option<(u64, u64)> {
        let (layouts, written) = (&self.core.layouts, &self.core.marks.written);
        let count = self.core.page_count();
        let done = match (self.is_restriping(), self.is_to_restripe()) {
            (true, _) => layouts.count_in(layouts.target(), written, 0, count),
            (false, true) => 0,
            (false, false) => return None,
        };
        Some((done, written.count(0, count)))
    }

    /// When there is something to do for it again; `None`: something else says so.
    pub(super) fn crosses_at(&self) -> Option<Time> {
        let waits = self.is_restriping() && self.restripe.retry_at > Time(0);
        waits.then_some(self.restripe.retry_at)
    }

    /// Goes on as far as it goes.
    pub(super) fn step_restripe(&mut self) {
        let now = self.now();
        if self.is_opening() {
            return;
        }
        if self.is_to_restripe() && now >= self.restripe.begin_at {
            self.restripe.begin_at = now.after(PAUSE);
            self.begin_restripe(self.core.resilience().scheme());
        }
        if !self.is_restriping() {
            return;
        }
        self.note_restripe();
        if let Some(is_whole) = self.core.migrator.answer() {
            self.restripe.is_out = false;
            self.end_moved(is_whole, now);
        }
        if now < self.restripe.retry_at {
            return;
        }
        self.restripe.retry_at = now.after(PAUSE);
        match self.restripe.stage.clone() {
            Stage::Preparing => self.prepare_unit(now),
            Stage::Moving { is_asked: true, .. } => {}
            Stage::Moving { chunk, .. } => self.move_from(chunk.start, now),
            Stage::Leaving => self.leave_unit(),
        }
    }

    /// The pages of the unit that begins at `first`.
    fn unit_from(&self, first: u64) -> Range<u64> {
        let pages =
            LayoutId::BOTH.map(|layout_id| self.core.layouts.layout(layout_id).extent_pages());
        first..(first + pages[0].max(pages[1])).min(self.core.page_count())
    }

    /// Extents of a layout that pages are in.
    fn extents_of(&self, layout_id: LayoutId, pages: &Range<u64>) -> Range<usize> {
        let layouts = &self.core.layouts;
        let first = layouts.locate_in(layout_id, pages.start).extent;
        first..layouts.locate_in(layout_id, pages.end - 1).extent + 1
    }

    /// Finds the next unit that has something in the old layout, and has the target's extents mapped.
    fn prepare_unit(&mut self, now: Time) {
        let (target, count) = (self.core.layouts.target(), self.core.page_count());
        let old = target.other();
        let snapshot = self.core.directory.snapshot();
        let unit = loop {
            let unit = self.unit_from(self.restripe.unit);
            if unit.is_empty() {
                return self.end_restripe(&snapshot);
            }
            let mut extents = self.extents_of(old, &unit);
            let is_mapped = extents.any(|extent| snapshot.extents[extent].is_some());
            let layouts = &self.core.layouts;
            if is_mapped || layouts.next_in(old, unit.start, unit.end).is_some() {
                break unit;
            }
            self.restripe.unit = unit.end.min(count);
        };
        // Of what the disk has nothing is copied: the target is mapped when it is busy.
        let copies = self.core.backing.is_none();
        let is_ahead = self.core.mapped_ahead.load(Ordering::Acquire);
        let size_bytes = self.core.size_bytes.load(Ordering::Acquire);
        let mut is_ready = true;
        for extent in self.extents_of(target, &unit).filter(|_| copies) {
            let pages = self.core.pages(extent);
            let written = &self.core.marks.written;
            let is_wanted = is_ahead && pages.start * (PAGE_BYTES as u64) < size_bytes;
            if !is_wanted && written.next(pages.start, pages.end, true).is_none() {
                continue;
            }
            let stripe = snapshot.extents[extent].as_deref();
            if stripe.is_none() && self.core.want(extent) == Mapping::Refused {
                tracing::debug!(extent, "no room for another cut of its pages yet");
            }
            is_ready &= stripe.is_some_and(|stripe| self.takes_pages(stripe));
        }
        if is_ready {
            self.move_from(unit.start, now);
        }
    }

    /// Whether a stripe is whole, and the next owner would find all of it.
    fn takes_pages(&self, stripe: &Stripe) -> bool {
        let all = (1 << stripe.splits()) - 1;
        let is_whole = stripe.readable() & all == all && !stripe.has_unreachable();
        let changed_in = stripe.changed_in;
        let is_known =
            self.core.directory.is_settled(changed_in) && self.core.is_journaled(changed_in);
        is_whole && is_known
    }

    /// Has the next chunk of the unit moved, in the pace of repairs.
    fn move_from(&mut self, first: u64, now: Time) {
        let unit = self.unit_from(self.restripe.unit);
        let old = self.core.layouts.target().other();
        let Some(first) = self.core.layouts.next_in(old, first, unit.end) else {
            // Earlier ones may have been left behind.
            let is_done = self
                .core
                .layouts
                .next_in(old, unit.start, unit.end)
                .is_none();
            self.restripe.stage = if is_done {
                Stage::Leaving
            } else {
                Stage::Preparing
            };
            if is_done {
                self.leave_unit();
            }
            return;
        };
        let chunk = self.chunk_from(first, unit.end);
        let waits = self.pacing.waits_until(now);
        let is_asked = self.rebuilding() == 0 && waits.is_none() && !self.restripe.is_out;
        if is_asked {
            let written = self.core.marks.written.count(chunk.start, chunk.end);
            self.pacing.note_chunk(now, written * PAGE_BYTES as u64);
            self.core.migrator.ask(chunk.clone());
            self.restripe.is_out = true;
        } else if let Some(until) = waits {
            self.restripe.retry_at = until.min(now.after(PAUSE));
        }
        self.restripe.stage = Stage::Moving { chunk, is_asked };
    }

    /// Pages from `first` on of which as many hold something as are copied at a time.
    fn chunk_from(&self, first: u64, end: u64) -> Range<u64> {
        let step = self.pacing.step();
        let bytes = step.fill_bytes * u64::from(step.fills);
        let pages = (bytes / PAGE_BYTES as u64).max(1);
        let written = self.core.marks.written.next(first, end, true);
        first..written.map_or(end, |written| (written + pages).min(end))
    }

    /// The migrator has answered.
    fn end_moved(&mut self, is_whole: bool, now: Time) {
        let Stage::Moving { chunk, .. } = self.restripe.stage.clone() else {
            return;
        };
        if is_whole {
            return self.move_from(chunk.end, now);
        }
        // Some extent may not be whole any more: it is looked at from the beginning.
        self.restripe.stage = Stage::Preparing;
        self.restripe.retry_at = now.after(PAUSE);
    }

    /// All of the unit is on the target: waits for its old extents to be given back.
    fn leave_unit(&mut self) {
        let unit = self.unit_from(self.restripe.unit);
        let snapshot = self.core.directory.snapshot();
        let mut old = self.extents_of(self.core.layouts.target().other(), &unit);
        if old.any(|extent| snapshot.extents[extent].is_some()) {
            self.core.discarded.store(true, Ordering::Release);
            return;
        }
        self.restripe.stage = Stage::Preparing;
        self.restripe.unit = unit.end;
        self.restripe.retry_at = self.now();
    }

    /// Nothing is left in the old layout, unless a unit was passed by while it was written to.
    fn end_restripe(&mut self, snapshot: &Snapshot) {
        let old = self.core.layouts.target().other();
        let mut mapped = snapshot.extents.numbered();
        let is_mapped =
            mapped.any(|(extent, stripe)| LayoutId::of(extent) == old && stripe.is_some());
        let is_left = self.core.layouts.next_in(old, 0, self.core.page_count());
        self.restripe.begin_again();
        // A page may be on its way back from a change that was taken back.
        let is_busy = self.restripe.is_out
            || is_mapped
            || is_left.is_some()
            || self.jobs.keys().any(|&extent| LayoutId::of(extent) == old)
            || self
                .repairs
                .iter()
                .any(|repair| LayoutId::of(repair.extent) == old);
        let is_known = self.core.directory.is_settled(snapshot.epoch)
            && self.core.is_journaled(snapshot.epoch);
        if is_busy || !is_known || !self.record_layout(old, None) {
            return;
        }
        self.core.layouts.end();
        // Extents were kept that lost all they had meanwhile.
        self.core.discarded.store(true, Ordering::Release);
        tracing::info!(scheme = %self.core.resilience().scheme(), "all pages are restriped");
    }
}
