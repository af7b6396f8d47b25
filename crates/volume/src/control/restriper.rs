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
//! as any empty ones are: `extent_reclaim`) `-> ` the next unit. After the last the volume has one layout.
//!
//! Invariants: no chunk is moved while something lost can be rebuilt; at most one unit is in both layouts; a
//! change that cannot go on waits, the volume serves, and it can be taken back.
//! Decision 32.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;

use super::context::Context;
use super::mapper::Mapper;
use super::pace::Step;
use super::relocation::PAUSE;
use super::repairer::Repairer;
use crate::core::{Core, Mapping};
use crate::directory::{Snapshot, Stripe};
use crate::extents::LayoutId;
use crate::kept::shape_of;
use crate::scheme::Cut;
use crate::{PAGE_BYTES, Scheme};

/// How far the pages are.
#[derive(Default)]
pub(super) struct Restriper {
    stage: Stage,
    /// First page of the unit.
    unit: u64,
    /// When a change is tried again that could not begin.
    begin_at: Time,
    /// Whether the disk had no room for it.
    lacks_room: bool,
    /// When the one that is under way goes on.
    retry_at: Time,
    /// Whether the migrator is at a chunk, or about to be.
    is_out: bool,
}

/// Pause before room is looked for again on a full disk.
const RETRY: Duration = Duration::from_secs(1);

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

impl Restriper {
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

    /// Has pages go where they are cut as `to` says, if they are not there. What cannot be done now is tried
    /// again by itself.
    pub fn begin(&mut self, cx: &mut Context, to: Scheme) {
        let layouts = &cx.core.layouts;
        let now = layouts.target();
        if layouts.layout(now).cut() != Cut::of(to) {
            if !layouts.is_mixed() {
                if !self.lay_out(cx, to) {
                    return;
                }
            } else if layouts.layout(now.other()).cut() == Cut::of(to) {
                // Back to where they came from.
                layouts.turn(now.other());
                self.begin_again();
            } else {
                // Two are there, and nobody was to ask for a third: it begins when that is over.
                return;
            }
        }
        let layouts = &cx.core.layouts;
        layouts.set_parities(layouts.target(), to.r());
    }

    /// Lays out the other layout, once the next owner would know.
    fn lay_out(&mut self, cx: &mut Context, to: Scheme) -> bool {
        let layout_id = cx.core.layouts.target().other();
        if let Err(error) = cx.core.layouts.prepare() {
            if !std::mem::replace(&mut self.lacks_room, true) {
                tracing::error!(%error, "no room to note which pages are restriped; they wait for it");
            }
            self.begin_at = cx.now().after(RETRY);
            return false;
        }
        if std::mem::take(&mut self.lacks_room) {
            tracing::info!("there is room to note which pages are restriped");
        }
        let shape = Some(shape_of(to));
        if !cx.recorder.note_layout(cx.now(), layout_id, shape) {
            return false;
        }
        let layouts = &cx.core.layouts;
        let layout = layouts.layout_with(Cut::of(to));
        let count = usize::try_from(layout.extents_of(layouts.page_count()));
        let count = count.expect("checked before");
        // Before anybody finds a page there.
        cx.core.codes.with(layout.cut(), to.r());
        cx.core.directory.publish(|next| {
            next.extents.resize(layout_id, count, || None);
            true
        });
        layouts.set_parities(layout_id, to.r());
        layouts.begin(layout.cut());
        self.begin_again();
        true
    }

    /// Whether pages are to go where the volume's scheme has them, and have not begun to.
    pub fn is_to_begin(&self, core: &Core) -> bool {
        let scheme = core.resilience().scheme();
        core.layout().cut() != Cut::of(scheme)
    }

    /// Whether pages are on their way to the other layout.
    pub fn is_under_way(&self, core: &Core) -> bool {
        core.layouts.is_mixed()
    }

    /// Of the pages that hold data, how many are where they are to be; `None`: none is on its way.
    pub fn pages_moved(&self, core: &Core) -> Option<(u64, u64)> {
        let (layouts, written) = (&core.layouts, &core.pages.marks.written);
        let count = core.page_count();
        let done = match (self.is_under_way(core), self.is_to_begin(core)) {
            (true, _) => layouts.count_in(layouts.target(), written, 0, count),
            (false, true) => 0,
            (false, false) => return None,
        };
        Some((done, written.count(0, count)))
    }

    /// When there is something to do for it again; `None`: something else says so.
    pub fn goes_on_at(&self, core: &Core) -> Option<Time> {
        let waits = self.is_under_way(core) && self.retry_at > Time(0);
        waits.then_some(self.retry_at)
    }

    /// Goes on as far as it goes.
    pub fn step(&mut self, cx: &mut Context, repairer: &mut Repairer, mapper: &Mapper) {
        let now = cx.now();
        if self.is_to_begin(&cx.core) && now >= self.begin_at {
            self.begin_at = now.after(PAUSE);
            let scheme = cx.core.resilience().scheme();
            self.begin(cx, scheme);
        }
        if !self.is_under_way(&cx.core) {
            return;
        }
        if let Some(is_whole) = cx.core.helpers.migrator.answer() {
            self.is_out = false;
            self.on_moved(cx, repairer, is_whole, now);
        }
        if now < self.retry_at {
            return;
        }
        self.retry_at = now.after(PAUSE);
        match self.stage.clone() {
            Stage::Preparing => self.prepare_unit(cx, repairer, mapper, now),
            Stage::Moving { is_asked: true, .. } => {}
            Stage::Moving { chunk, .. } => self.move_from(cx, repairer, chunk.start, now),
            Stage::Leaving => self.leave_unit(cx),
        }
    }

    /// Finds the next unit that has something in the old layout, and has the target's extents mapped.
    fn prepare_unit(
        &mut self,
        cx: &mut Context,
        repairer: &mut Repairer,
        mapper: &Mapper,
        now: Time,
    ) {
        let (target, count) = (cx.core.layouts.target(), cx.core.page_count());
        let old = target.other();
        let snapshot = cx.core.directory.snapshot();
        let unit = loop {
            let unit = unit_from(&cx.core, self.unit);
            if unit.is_empty() {
                return self.end(cx, repairer, mapper, &snapshot);
            }
            let mut extents = extents_of(&cx.core, old, &unit);
            let is_mapped = extents.any(|extent| snapshot.extents[extent].is_some());
            let layouts = &cx.core.layouts;
            if is_mapped || layouts.next_in(old, unit.start, unit.end).is_some() {
                break unit;
            }
            self.unit = unit.end.min(count);
        };
        // Of what the disk has nothing is copied: the target is mapped when it is busy.
        let copies = cx.core.backing.is_none();
        let is_ahead = cx.core.demand.mapped_ahead.load(Ordering::Acquire);
        let size_bytes = cx.core.size_bytes.load(Ordering::Acquire);
        let mut is_ready = true;
        for extent in extents_of(&cx.core, target, &unit).filter(|_| copies) {
            let pages = cx.core.pages(extent);
            let written = &cx.core.pages.marks.written;
            let is_wanted = is_ahead && pages.start * (PAGE_BYTES as u64) < size_bytes;
            if !is_wanted && written.next(pages.start, pages.end, true).is_none() {
                continue;
            }
            let stripe = snapshot.extents[extent].as_deref();
            if stripe.is_none() && cx.core.want(extent) == Mapping::Refused {
                tracing::debug!(extent, "no room for another cut of its pages yet");
            }
            is_ready &= stripe.is_some_and(|stripe| takes_pages(&cx.core, stripe));
        }
        if is_ready {
            self.move_from(cx, repairer, unit.start, now);
        }
    }

    /// Has the next chunk of the unit moved, in the pace of repairs.
    fn move_from(&mut self, cx: &Context, repairer: &mut Repairer, first: u64, now: Time) {
        let unit = unit_from(&cx.core, self.unit);
        let old = cx.core.layouts.target().other();
        let Some(first) = cx.core.layouts.next_in(old, first, unit.end) else {
            // Earlier ones may have been left behind.
            let is_done = cx.core.layouts.next_in(old, unit.start, unit.end).is_none();
            self.stage = if is_done {
                Stage::Leaving
            } else {
                Stage::Preparing
            };
            if is_done {
                self.leave_unit(cx);
            }
            return;
        };
        let is_alone = repairer.rebuilding() == 0;
        let pacing = repairer.pacing();
        let chunk = chunk_from(&cx.core, pacing.step(), first, unit.end);
        let waits = pacing.waits_until(now);
        let is_asked = is_alone && waits.is_none() && !self.is_out;
        if is_asked {
            let written = cx.core.pages.marks.written.count(chunk.start, chunk.end);
            pacing.note_chunk(now, written * PAGE_BYTES as u64);
            cx.core.helpers.migrator.ask(chunk.clone());
            self.is_out = true;
        } else if let Some(until) = waits {
            self.retry_at = until.min(now.after(PAUSE));
        }
        self.stage = Stage::Moving { chunk, is_asked };
    }

    /// The migrator has answered.
    fn on_moved(&mut self, cx: &Context, repairer: &mut Repairer, is_whole: bool, now: Time) {
        let Stage::Moving { chunk, .. } = self.stage.clone() else {
            return;
        };
        if is_whole {
            return self.move_from(cx, repairer, chunk.end, now);
        }
        // Some extent may not be whole any more: it is looked at from the beginning.
        self.stage = Stage::Preparing;
        self.retry_at = now.after(PAUSE);
    }

    /// All of the unit is on the target: waits for its old extents to be given back.
    fn leave_unit(&mut self, cx: &Context) {
        let unit = unit_from(&cx.core, self.unit);
        let snapshot = cx.core.directory.snapshot();
        let mut old = extents_of(&cx.core, cx.core.layouts.target().other(), &unit);
        if old.any(|extent| snapshot.extents[extent].is_some()) {
            cx.note_discarded();
            return;
        }
        self.stage = Stage::Preparing;
        self.unit = unit.end;
        self.retry_at = cx.now();
    }

    /// Nothing is left in the old layout, unless a unit was passed by while it was written to.
    fn end(&mut self, cx: &mut Context, repairer: &Repairer, mapper: &Mapper, snapshot: &Snapshot) {
        let old = cx.core.layouts.target().other();
        let mut mapped = snapshot.extents.numbered();
        let is_mapped =
            mapped.any(|(extent, stripe)| LayoutId::of(extent) == old && stripe.is_some());
        let is_left = cx.core.layouts.next_in(old, 0, cx.core.page_count());
        self.begin_again();
        // A page may be on its way back from a change that was taken back.
        let is_busy = self.is_out
            || is_mapped
            || is_left.is_some()
            || mapper.has_any(old)
            || repairer.has_any(old)
            || cx.acquires.has_any(old);
        let is_known =
            cx.core.directory.is_settled(snapshot.epoch) && cx.core.is_journaled(snapshot.epoch);
        if is_busy || !is_known || !cx.recorder.note_layout(cx.now(), old, None) {
            return;
        }
        cx.core.layouts.end();
        // Extents were kept that lost all they had meanwhile.
        cx.note_discarded();
        tracing::info!(scheme = %cx.core.resilience().scheme(), "all pages are restriped");
    }
}

/// The pages of the unit that begins at `first`.
fn unit_from(core: &Core, first: u64) -> Range<u64> {
    let pages = LayoutId::BOTH.map(|layout_id| core.layouts.layout(layout_id).extent_pages());
    first..(first + pages[0].max(pages[1])).min(core.page_count())
}

/// Extents of a layout that pages are in.
fn extents_of(core: &Core, layout_id: LayoutId, pages: &Range<u64>) -> Range<usize> {
    let first = core.layouts.locate_in(layout_id, pages.start).extent;
    first..core.layouts.locate_in(layout_id, pages.end - 1).extent + 1
}

/// Pages from `first` on of which as many hold something as are copied at a time.
fn chunk_from(core: &Core, step: Step, first: u64, end: u64) -> Range<u64> {
    let bytes = step.fill_bytes * u64::from(step.fills);
    let pages = (bytes / PAGE_BYTES as u64).max(1);
    let written = core.pages.marks.written.next(first, end, true);
    first..written.map_or(end, |written| (written + pages).min(end))
}

/// Whether a stripe is whole, and the next owner would find all of it.
fn takes_pages(core: &Core, stripe: &Stripe) -> bool {
    let all = (1 << stripe.splits()) - 1;
    let is_whole = stripe.readable() & all == all && !stripe.has_unreachable();
    let changed_in = stripe.changed_in;
    is_whole && core.directory.is_settled(changed_in) && core.is_journaled(changed_in)
}
