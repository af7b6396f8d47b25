//! What is done to extents, each by a machine of its own: slabs are relocated, or given up.
//!
//! Invariant: at most one thing is done to an extent at a time.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::acquires::{Granted, Purpose};
use super::context::Context;
use super::extent_reclaim::ExtentReclaim;
use super::fate::{Fate, Unmapped};
use super::mender::Mender;
use super::pace::{Load, Pacing, RELOCATIONS_MAX};
use super::relocation::stage::Relocation as RelocationView;
use super::relocation::{Relocation, Site};
use super::slab_drop::{SlabDrop, is_only_on_slabs};
use crate::directory::{HostIndex, Session, Snapshot, Stripe};
use crate::extents::LayoutId;
use crate::status::RepairStatus;

/// Everything that is done to extents of the volume.
pub(super) struct Repairer {
    tasks: BTreeMap<usize, Task>,
    pacing: Pacing,
    mender: Mender,
    // Extents that were unmapped, of which others have not been told yet.
    unmapped: Vec<Unmapped>,
}

/// What is done to one of them.
enum Task {
    Relocation(Box<Relocation>),
    Reclaim(ExtentReclaim),
    Drop(SlabDrop),
}

impl Task {
    fn step(&mut self, site: &mut Site<'_>, now: Time, unmapped: &mut Vec<Unmapped>) -> Fate {
        match self {
            Self::Relocation(relocation) => relocation.step(site, now),
            Self::Reclaim(reclaim) => reclaim.step(site.cx, unmapped),
            Self::Drop(drop) => drop.step(site.cx, now, unmapped),
        }
    }

    fn relocation(&self) -> Option<&Relocation> {
        match self {
            Self::Relocation(relocation) => Some(relocation),
            Self::Reclaim(_) | Self::Drop(_) => None,
        }
    }

    fn is_draining(&self) -> bool {
        match self {
            Self::Relocation(relocation) => relocation.is_draining(),
            Self::Reclaim(_) => true,
            Self::Drop(drop) => drop.is_draining(),
        }
    }

    fn pauses_until(&self) -> Option<Time> {
        match self {
            Self::Relocation(relocation) => relocation.pauses_until(),
            Self::Reclaim(_) => None,
            Self::Drop(drop) => drop.pauses_until(),
        }
    }
}

impl Repairer {
    pub fn new(mender: Mender, now: Time) -> Self {
        Self {
            tasks: BTreeMap::new(),
            pacing: Pacing::new(now),
            mender,
            unmapped: Vec::new(),
        }
    }

    /// Whether something is done to an extent.
    pub fn has(&self, extent: usize) -> bool {
        self.tasks.contains_key(&extent)
    }

    /// Whether something is done to an extent of a layout.
    pub fn has_any(&self, layout_id: LayoutId) -> bool {
        let mut extents = self.tasks.keys();
        extents.any(|&extent| LayoutId::of(extent) == layout_id)
    }

    /// Whether something waits for workers to leave an epoch.
    pub fn is_draining(&self) -> bool {
        self.tasks.values().any(Task::is_draining)
    }

    /// Whether pages are being looked through.
    pub fn is_mending(&self) -> bool {
        !self.mender.is_idle()
    }

    /// When the first that pauses goes on.
    pub fn pauses_until(&self) -> Option<Time> {
        self.tasks.values().filter_map(Task::pauses_until).min()
    }

    /// Extents that something is done to other than that they go back to the disk.
    pub fn rebuilding(&self) -> usize {
        let rebuilds = |task: &&Task| !matches!(task, Task::Drop(_));
        self.tasks.values().filter(rebuilds).count()
    }

    /// How fast slabs may be made.
    pub fn pacing(&mut self) -> &mut Pacing {
        &mut self.pacing
    }

    /// Slabs that are in no stripe any more and not given back yet.
    pub fn leaving(&self) -> impl Iterator<Item = (HostIndex, Window)> {
        self.relocations().filter_map(Relocation::leaving)
    }

    fn relocations(&self) -> impl Iterator<Item = &Relocation> {
        self.tasks.values().filter_map(Task::relocation)
    }

    /// An extent that was unmapped since the last call.
    pub fn take_unmapped(&mut self) -> Option<Unmapped> {
        self.unmapped.pop()
    }

    /// Looks at what the volume's users do, which says how fast slabs may be made. `is_restriping`: pages are
    /// being copied besides.
    pub fn tend_pace(&mut self, cx: &Context, now: Time, is_restriping: bool) {
        if !self.pacing.is_due(now) {
            return;
        }
        let (counters, timings) = (&cx.core.measures.counters, &cx.core.measures.timings);
        let pages = [&counters.pages_read, &counters.pages_written];
        let load = Load {
            pages: pages
                .map(|pages| pages.load(Ordering::Relaxed))
                .iter()
                .sum(),
            timed: [timings.read.counts(), timings.write.counts()],
        };
        let pace = &cx.core.limits.pace;
        self.pacing.set(
            now,
            pace.limit.load(Ordering::Relaxed),
            pace.yields.load(Ordering::Relaxed),
        );
        let rebuilds = !self.tasks.is_empty() || is_restriping;
        self.pacing.handle_load(now, load, rebuilds);
    }

    /// Looks through some of the pages that relocations wait for.
    pub fn tend_mending(&mut self, cx: &mut Context) {
        self.mender.tend(cx);
    }

    /// Moves everything on as far as it goes.
    pub fn step(&mut self, cx: &mut Context, now: Time) {
        let extents: Vec<usize> = self.tasks.keys().copied().collect();
        for extent in extents {
            self.step_task(cx, extent, now);
        }
    }

    /// Ends the drops that nobody is in the way of: mostly at once, for workers leave an epoch within
    /// microseconds.
    pub fn step_drops(&mut self, cx: &mut Context, now: Time) {
        let drops = self.tasks.iter();
        let drops =
            drops.filter(|(_, task)| matches!(task, Task::Drop(drop) if drop.is_draining()));
        let extents: Vec<usize> = drops.map(|(&extent, _)| extent).collect();
        for extent in extents {
            self.step_task(cx, extent, now);
        }
    }

    fn step_task(&mut self, cx: &mut Context, extent: usize, now: Time) {
        let mut unmapped = std::mem::take(&mut self.unmapped);
        self.work_on(cx, extent, |task, site| task.step(site, now, &mut unmapped));
        self.unmapped = unmapped;
    }

    /// Has something done to an extent go on, if there is anything.
    fn work_on(
        &mut self,
        cx: &mut Context,
        extent: usize,
        work: impl FnOnce(&mut Task, &mut Site<'_>) -> Fate,
    ) {
        let Some(mut task) = self.tasks.remove(&extent) else {
            return;
        };
        let fenced = self.relocations().filter(|other| other.is_fenced());
        let mut site = Site {
            fenced_besides: fenced.count(),
            cx,
            pacing: &mut self.pacing,
            mender: &mut self.mender,
        };
        if work(&mut task, &mut site) == Fate::GoesOn {
            self.tasks.insert(extent, task);
        }
    }

    fn work_on_relocation(
        &mut self,
        cx: &mut Context,
        extent: usize,
        work: impl FnOnce(&mut Relocation, &mut Site<'_>) -> Fate,
    ) {
        self.work_on(cx, extent, |task, site| match task {
            Task::Relocation(relocation) => work(relocation, site),
            Task::Reclaim(_) | Task::Drop(_) => Fate::GoesOn,
        });
    }

    /// Looks for stripes with a missing member and starts on a few: on those with the fewest left first, so
    /// that what was lost comes before what an extent is to have besides (`reshaper`).
    pub fn rebuild_the_incomplete(&mut self, cx: &mut Context, now: Time) {
        if self.rebuilding() >= RELOCATIONS_MAX {
            return cx.search_soon();
        }
        let snapshot = cx.core.directory.snapshot();
        for (extent, split) in incomplete(&snapshot) {
            if self.rebuilding() >= RELOCATIONS_MAX {
                return cx.search_soon();
            }
            let Some(stripe) = &snapshot.extents[extent] else {
                continue;
            };
            if stripe.has_unreachable() || !stripe.is_there() || self.has(extent) {
                continue;
            }
            let members = stripe.members.iter().flatten();
            let held: Vec<HostIndex> = members.map(|member| member.session.host).collect();
            let mut candidates = cx.candidates(now);
            candidates.retain(|candidate| now >= cx.hosts[candidate.host].no_repairs_until);
            let placing = cx.placing();
            let Some(host) = placing.replacement(extent, &held, &candidates) else {
                continue;
            };
            self.relocate(cx, Relocation::rebuild(extent, split, now), host);
        }
    }

    /// Begins to relocate a slab to a host.
    pub fn relocate(&mut self, cx: &mut Context, relocation: Relocation, host: HostIndex) {
        let Relocation { extent, split, .. } = relocation;
        let task = Task::Relocation(Box::new(relocation));
        let before = self.tasks.insert(extent, task);
        debug_assert!(before.is_none(), "something is done to the extent already");
        let acquires = &mut cx.acquires;
        acquires.begin(&mut cx.hosts, extent, split, host, Purpose::Repair);
    }

    /// A slab for a relocation has come; one that nobody waits for goes back.
    pub fn on_granted(&mut self, cx: &mut Context, extent: usize, split: usize, granted: Granted) {
        let snapshot = cx.core.directory.snapshot();
        // It was asked for a while ago: its layout may have gone since.
        let stripe = snapshot.extents.get(extent).and_then(Option::as_deref);
        let relocation = self.tasks.get(&extent).and_then(Task::relocation);
        if relocation.is_some_and(|relocation| relocation.takes(split, stripe)) {
            self.work_on_relocation(cx, extent, |relocation, site| {
                relocation.on_granted(site, granted)
            });
        } else {
            self.on_refused(extent);
            cx.give_back(granted.session, granted.slab());
        }
    }

    /// No slab will come for a relocation of an extent, or it is of no use any more.
    pub fn on_refused(&mut self, extent: usize) {
        let relocation = self.tasks.get(&extent).and_then(Task::relocation);
        if relocation.is_some_and(Relocation::is_acquiring) {
            self.tasks.remove(&extent);
        }
    }

    /// A target has answered a fill.
    pub fn on_filled(
        &mut self,
        cx: &mut Context,
        host: HostIndex,
        request: u64,
        result: FillResult,
    ) {
        let found = self.relocations().find(|it| it.awaits(host, request));
        if let Some(extent) = found.map(|relocation| relocation.extent) {
            self.work_on_relocation(cx, extent, |relocation, site| {
                relocation.on_filled(site, request, result)
            });
        }
    }

    /// Ends the relocations whose target's session is gone.
    pub fn lose_session(&mut self, cx: &mut Context, session: Session) {
        let filled = self.relocations().filter(|it| it.fills_on(session));
        let extents: Vec<usize> = filled.map(|relocation| relocation.extent).collect();
        for extent in extents {
            self.work_on_relocation(cx, extent, |relocation, site| relocation.abandon(site.cx));
        }
    }

    /// Ends the relocation that still needs a member which was dropped from the directory.
    pub fn lose_member(&mut self, cx: &mut Context, extent: usize, member: usize) {
        let relocation = self.tasks.get(&extent).and_then(Task::relocation);
        if relocation.is_some_and(|relocation| relocation.depends_on(&cx.core, member)) {
            self.work_on_relocation(cx, extent, |relocation, site| relocation.abandon(site.cx));
        }
    }

    /// Whether an extent's slabs may go: everything is on the disk, or on its way there.
    pub fn may_drop(&self, cx: &Context, extent: usize) -> bool {
        let is_backed = cx.core.backing.is_some();
        is_backed && !is_only_on_slabs(&cx.core, extent) && !self.has(extent)
    }

    /// Begins to have an extent's pages be those of the backing store alone.
    pub fn drop_slabs(&mut self, cx: &Context, extent: usize) {
        if let Some(drop) = SlabDrop::begin(&cx.core, extent) {
            self.tasks.insert(extent, Task::Drop(drop));
        }
    }

    /// Begins to unmap an extent that holds nothing, or can never be read again.
    pub fn reclaim(&mut self, cx: &Context, extent: usize) {
        let reclaim = ExtentReclaim::begin(&cx.core, extent);
        self.tasks.insert(extent, Task::Reclaim(reclaim));
    }

    /// Begins to give up extents that have too few slabs left to be read, those counted that are awaited.
    pub fn give_up_the_lost(&mut self, cx: &mut Context) {
        let snapshot = cx.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let Some(stripe) = stripe.as_deref() else {
                continue;
            };
            match cx.core.backing.is_some() {
                true => self.drop_if_lost(cx, extent, stripe),
                false if is_injected(InjectedFault::LeaveLost) => {}
                false => self.reclaim_if_lost(cx, extent, stripe),
            }
        }
    }

    fn drop_if_lost(&mut self, cx: &Context, extent: usize, stripe: &Stripe) {
        if !stripe.is_past_hope() {
            return;
        }
        // A slab that is still to come is of no use any more; it goes back when it does.
        self.on_refused(extent);
        if !self.has(extent) {
            tracing::warn!(
                extent,
                "slabs lost: its pages are read from the backing store"
            );
            self.drop_slabs(cx, extent);
        }
    }

    /// Silence is not death: while slabs that hold current data may come back in such a number that pages
    /// can be read, the extent stays as it is (decision 44).
    fn reclaim_if_lost(&mut self, cx: &mut Context, extent: usize, stripe: &Stripe) {
        let is_lost = !stripe.is_there() || stripe.is_past_hope();
        // Of what holds nothing, nothing need come back.
        if !is_lost || (!stripe.is_past_hope() && cx.core.holds(extent)) {
            return;
        }
        // A slab that is still to come is of no use any more; it goes back when it does.
        self.on_refused(extent);
        if self.has(extent) {
            return;
        }
        if stripe.has_unreachable() {
            cx.give_up_unreachable(extent);
        }
        self.reclaim(cx, extent);
    }

    /// Begins to unmap every mapped extent in which no page is written.
    pub fn reclaim_the_empty(&mut self, cx: &Context) {
        let snapshot = cx.core.directory.snapshot();
        let layouts = &cx.core.layouts;
        for (extent, stripe) in snapshot.extents.numbered() {
            let Some(stripe) = stripe.as_deref() else {
                continue;
            };
            // What is mapped for pages that are yet to come stays, unless it is lost.
            let is_target = layouts.is_mixed() && LayoutId::of(extent) == layouts.target();
            let is_awaiting = is_target && stripe.is_there();
            if is_awaiting || cx.core.holds(extent) {
                continue;
            }
            // Until its slabs are back or given up, or what is done to it has ended.
            if stripe.has_unreachable() || self.has(extent) {
                cx.note_discarded();
                continue;
            }
            self.reclaim(cx, extent);
        }
    }

    /// Where the relocations stand that have a slab to fill; for simulators.
    pub fn at_work(&self) -> Vec<RelocationView> {
        let at_work = self.relocations().filter_map(|relocation| {
            let (target, stage) = relocation.at_work()?;
            Some(RelocationView {
                extent: relocation.extent,
                split: relocation.split,
                target,
                stage,
            })
        });
        at_work.collect()
    }

    /// For status.
    pub fn status(&self, cx: &Context) -> RepairStatus {
        let (rate, timings) = (self.pacing.rate(), &cx.core.measures.timings);
        let counters = &cx.core.measures.counters;
        RepairStatus {
            bytes_per_s: rate.is_finite().then_some(rate as u64),
            place: timings.place.values(),
            fill: timings.fill.values(),
            leave: timings.leave.values(),
            fence_waits: timings.fence.values(),
            fence_passes: counters.fence_passes.load(Ordering::Relaxed),
            chunks_void: counters.chunks_void.load(Ordering::Relaxed),
        }
    }

    /// Share of the slab that is filled, when one of the extent is being relocated; for status.
    pub fn progress(&self, cx: &Context, extent: usize) -> Option<f64> {
        let relocation = self.tasks.get(&extent)?.relocation()?;
        let done = relocation.filled_pages()?;
        Some(f64::from(done) / f64::from(cx.core.layout_of(extent).extent_end()))
    }
}

/// Extents that lack members, those with the fewest left first, and the first split that each lacks.
fn incomplete(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let mapped = snapshot.extents.numbered();
    let mut lacking: Vec<(usize, usize, usize)> = mapped
        .filter_map(|(extent, stripe)| {
            let stripe = stripe.as_deref()?;
            let mut splits = stripe.members.iter().take(stripe.splits());
            let split = splits.position(Option::is_none)?;
            let left = stripe.readable().count_ones() as usize;
            Some((left.saturating_sub(stripe.cut.k()), extent, split))
        })
        .collect();
    lacking.sort_unstable();
    let lacking = lacking.into_iter();
    lacking.map(|(_, extent, split)| (extent, split)).collect()
}
