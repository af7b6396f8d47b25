//! Making stripes whole: a lost slab is rebuilt on another host, in small steps.
//!
//! The relocation machine, chunk by chunk:
//! `FENCED` (writes in the chunk wait) `-> DRAINED` (no worker is left in an older epoch)
//! `-> FILLED` (the new host pulled k survivors and decoded) `-> ` next chunk
//! `-> PUBLISHED` (read like any other). Below the watermark writes reach the new slab too,
//! above it they are degraded, only inside the chunk do they wait. Reads go on throughout.
//!
//! The same fence and drain serve the reclaim of extents that were discarded whole, and slabs that
//! are moved (`slab_moves`): their copy is filled beside them, and takes their place when it is whole. In
//! protected volumes a chunk is `MENDING` where its sources are doubted (`mending`).
//!
//! Invariants: H3, no write is acknowledged against the lost slab between fence and publish;
//! a fence never outlives its repair; one repair per extent.
//! Paper: \[hydra22\] 4.2 (background slab regeneration).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::Window;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::backoff::Backoff;
use super::fill::{Fills, PAUSE};
use super::mapping::Purpose;
use super::pace::Load;
use super::slab_drops::Flush;
use super::{Control, Granted, pool_window};
use crate::directory::{HostIndex, Member, MemberState, Session, Snapshot};
use crate::fence::{Fence, Gate};

/// One extent being repaired or reclaimed.
pub(super) struct Repair {
    pub extent: usize,
    pub split: usize,
    /// Where in its stripe the slab is that is filled: at its split, or past the last one while
    /// what it replaces is still in use.
    pub slot: usize,
    pub target: Option<Session>,
    pub stage: Stage,
    /// What the disk is to end before the slabs of an extent go back to it.
    pub flush: Option<Flush>,
    /// Slab bytes of one fill of this chunk.
    pub fill_bytes: u64,
    /// Sources that the target could not read, for this chunk.
    pub shunned: u64,
    /// Whether nothing was fenced yet: the target reaches its sources first.
    pub is_trial: bool,
    /// Pauses since the last chunk that was filled.
    pub pauses: u32,
    /// When the stage began that is timed: the slab was asked for, the first chunk was fenced, the copy took
    /// its place.
    pub began: Time,
    /// First page of the chunk.
    pub chunk: u32,
    /// What lets writes into it.
    pub gate: Arc<Gate>,
    /// What came of the chunks before.
    pub backoff: Backoff,
    /// Slab bytes of the chunk that are filled.
    pub filled_bytes: u64,
    /// Most pages that are filled at a time, while sources disagree somewhere in the chunk.
    pub pages_max: u32,
    /// What that is in the chunk that is fenced next.
    pub pages_after: u32,
    /// Pages that were looked through last (`mending`).
    pub mended: Range<u32>,
    /// A page that is rebuilt from k sources, since nothing tells what it is.
    pub unjudged: Option<u32>,
    /// What traces have of it; ends with it.
    span: tracing::Span,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// A slab is on its way.
    Acquiring,
    /// Writers of the chunk are leaving.
    Draining { epoch: u64, start: u32, end: u32 },
    /// The target is at it.
    Filling(Fills),
    /// Nothing is fenced: no source could be read, or it goes on more slowly than it could.
    Pausing { until: Time, start: u32 },
    /// Nothing is fenced: as many chunks of other repairs are as may be.
    Queued { start: u32 },
    /// Nothing is fenced: pages are looked through.
    Mending { start: u32 },
    /// Writers of a wholly discarded extent are leaving.
    Reclaiming { epoch: u64 },
    /// Workers are leaving the slabs of an extent that goes back to the disk.
    Dropping { epoch: u64 },
    /// Nobody works with them any more; the disk is yet to end writes that they have.
    Flushing { until: Time },
    /// Readers of a slab that was moved are leaving it.
    Leaving {
        epoch: u64,
        session: Session,
        window: Window,
    },
}

impl Repair {
    pub fn new(extent: usize, split: usize, slot: usize, stage: Stage, now: Time) -> Self {
        Self {
            extent,
            split,
            slot,
            target: None,
            stage,
            flush: None,
            fill_bytes: 0,
            shunned: 0,
            is_trial: true,
            pauses: 0,
            chunk: 0,
            gate: Arc::new(Gate::new(Duration::ZERO)),
            backoff: Backoff::default(),
            filled_bytes: 0,
            pages_max: u32::MAX,
            pages_after: u32::MAX,
            mended: 0..0,
            unjudged: None,
            began: now,
            span: span_of(extent, split, slot, stage),
        }
    }

    /// Whether a slab is being filled, which is lost to it when it goes.
    fn is_filling(&self) -> bool {
        self.target.is_some() && !matches!(self.stage, Stage::Leaving { .. })
    }

    /// Whether what it replaces is still there.
    pub fn moves(&self) -> bool {
        self.slot != self.split
    }

    /// The slab that is in no stripe any more and not given back yet.
    pub fn leaving(&self) -> Option<(HostIndex, Window)> {
        match self.stage {
            Stage::Leaving {
                session, window, ..
            } => Some((session.host, window)),
            _ => None,
        }
    }
}

/// How often a drain is looked at: workers leave an epoch within microseconds.
pub(super) const DRAIN_POLL: Duration = Duration::from_micros(20);

/// Extents repaired at a time: while some wait for a host, a slab or a drain, others go on.
pub(super) const REPAIRS_MAX: usize = 4;

/// A chunk takes milliseconds; a target that answers pings but takes this long is replaced.
const FILL_MAX: Duration = Duration::from_secs(10);

impl Control {
    /// Whether something waits for workers to leave an epoch.
    pub(super) fn is_draining(&self) -> bool {
        let drains = |repair: &Repair| {
            matches!(
                repair.stage,
                Stage::Draining { .. }
                    | Stage::Reclaiming { .. }
                    | Stage::Dropping { .. }
                    | Stage::Leaving { .. }
            )
        };
        self.repairs.iter().any(drains) || self.is_giving_up()
    }

    /// When the first repair that pauses goes on.
    pub(super) fn pauses_until(&self) -> Option<Time> {
        let until = self.repairs.iter().filter_map(|repair| match repair.stage {
            Stage::Pausing { until, .. } | Stage::Flushing { until } => Some(until),
            _ => None,
        });
        until.min()
    }

    /// Looks at what the volume's users do, which says how fast repairs may go.
    pub(super) fn tend_pace(&mut self, now: Time) {
        if !self.pacing.is_due(now) {
            return;
        }
        let core = &self.core;
        let counters = &core.counters;
        let pages = [&counters.pages_read, &counters.pages_written];
        let load = Load {
            pages: pages
                .map(|pages| pages.load(Ordering::Relaxed))
                .iter()
                .sum(),
            timed: [core.timings.read.counts(), core.timings.write.counts()],
        };
        let pace = &core.pace;
        self.pacing.set(
            pace.limit.load(Ordering::Relaxed),
            pace.yields.load(Ordering::Relaxed),
        );
        let rebuilds = !self.repairs.is_empty() || self.restripe.is_out();
        self.pacing.handle_load(now, load, rebuilds);
    }

    /// Moves every repair on as far as it goes, then starts new ones.
    pub(super) fn step_repairs(&mut self) {
        let now = self.now();
        let mut extents: Vec<usize> = self.repairs.iter().map(|repair| repair.extent).collect();
        while let Some(extent) = extents.pop() {
            self.step_repair(extent, now);
        }
        self.give_up_surplus();
        if now >= self.repair_retry && !self.is_opening() {
            self.repair_retry = now.after(PAUSE);
            match self.core.backing {
                Some(_) => self.drop_the_lost(),
                None if is_injected(InjectedFault::LeaveLost) => {}
                None => self.reclaim_the_lost(),
            }
            self.reshape(now);
            self.start_repairs(now);
            self.start_moves(now);
            self.step_drops();
        }
    }

    fn step_repair(&mut self, extent: usize, now: Time) {
        let Some(at) = self.find_repair(extent) else {
            return;
        };
        match self.repairs[at].stage {
            Stage::Draining { epoch, start, end }
                if self.core.directory.is_settled(epoch) || is_injected(InjectedFault::NoDrain) =>
            {
                self.fill(at, start, end, now);
            }
            Stage::Reclaiming { epoch } if self.core.directory.is_settled(epoch) => {
                self.reclaim(at)
            }
            Stage::Dropping { epoch } if self.core.directory.is_settled(epoch) => {
                self.step_drop(at, now)
            }
            Stage::Flushing { until } if now >= until => self.step_drop(at, now),
            Stage::Leaving {
                epoch,
                session,
                window,
            } if self.core.directory.is_settled(epoch)
                || is_injected(InjectedFault::GiveBackUnsettled) =>
            {
                let repair = self.repairs.swap_remove(at);
                self.core.timings.leave.note(now.since(repair.began));
                self.give_back(session, window);
                self.repair_retry = Time(0);
            }
            Stage::Pausing { until, start } if now >= until => self.fence(at, start),
            Stage::Mending { start } if self.is_looked_through(extent) => self.fence(at, start),
            Stage::Queued { start } if self.fenced_besides(at) < self.pacing.step().chunks => {
                self.fence(at, start);
            }
            Stage::Filling(Fills { asked_at, .. }) => {
                let target = self.repairs[at]
                    .target
                    .expect("a filling repair has a target");
                if now.since(asked_at) > FILL_MAX || self.hosts[target.host].is_silent(now) {
                    self.abandon(at);
                }
            }
            Stage::Draining { .. }
            | Stage::Reclaiming { .. }
            | Stage::Dropping { .. }
            | Stage::Flushing { .. }
            | Stage::Leaving { .. }
            | Stage::Pausing { .. }
            | Stage::Mending { .. }
            | Stage::Queued { .. }
            | Stage::Acquiring => {}
        }
    }

    pub(super) fn find_repair(&self, extent: usize) -> Option<usize> {
        self.repairs
            .iter()
            .position(|repair| repair.extent == extent)
    }

    /// Repairs that fill slabs, or wait for them.
    pub(super) fn rebuilding(&self) -> usize {
        let drops = |stage| matches!(stage, Stage::Dropping { .. } | Stage::Flushing { .. });
        let rebuilds = |repair: &&Repair| !drops(repair.stage);
        self.repairs.iter().filter(rebuilds).count()
    }

    /// Looks for stripes with a missing member and starts on a few: on those with the fewest left first, so
    /// that what was lost comes before what an extent is to have besides (`reshape`).
    fn start_repairs(&mut self, now: Time) {
        let snapshot = self.core.directory.snapshot();
        if self.rebuilding() >= REPAIRS_MAX {
            self.repair_retry = Time(0);
            return;
        }
        for (extent, split) in incomplete(&snapshot) {
            if self.rebuilding() >= REPAIRS_MAX {
                self.repair_retry = Time(0);
                return;
            }
            let Some(stripe) = &snapshot.extents[extent] else {
                continue;
            };
            if stripe.has_unreachable() {
                continue;
            }
            if !stripe.is_there() || self.find_repair(extent).is_some() {
                continue;
            }
            let members = stripe.members.iter().flatten();
            let held: Vec<HostIndex> = members.map(|member| member.session.host).collect();
            let mut candidates = self.candidates(now);
            candidates.retain(|candidate| now >= self.hosts[candidate.host].no_repairs_until);
            let Some(host) = self.place_replacement(extent, &held, &candidates) else {
                continue;
            };
            self.repairs
                .push(Repair::new(extent, split, split, Stage::Acquiring, now));
            self.acquire(extent, split, host, Purpose::Repair);
        }
    }

    pub(super) fn repair_refused(&mut self, extent: usize) {
        self.repairs
            .retain(|repair| repair.extent != extent || !matches!(repair.stage, Stage::Acquiring));
    }

    /// A slab for a repair has arrived: it takes its place, empty.
    pub(super) fn repair_granted(&mut self, extent: usize, split: usize, granted: Granted) {
        let snapshot = self.core.directory.snapshot();
        let fits = |repair: &Repair| {
            let stripe = snapshot.extents[extent].as_ref();
            // A slab that was to be moved and is lost meanwhile is rebuilt in its own place.
            repair.split == split
                && matches!(repair.stage, Stage::Acquiring)
                && stripe.is_some_and(|stripe| stripe.members[split].is_some() == repair.moves())
        };
        let Some(at) = self
            .find_repair(extent)
            .filter(|&at| fits(&self.repairs[at]))
        else {
            self.repair_refused(extent);
            return self.give_back(granted.session, pool_window(&granted.window.descriptor));
        };
        let Granted { session, window } = granted;
        let moves = self.repairs[at].moves();
        if split < self.core.layout_of(extent).cut().k() && !moves {
            self.tear_doubtful(extent);
        }
        tracing::info!(extent, split, moves, host = %self.hosts[session.host].config.name, "regeneration starts");
        self.core.directory.publish_stripe(extent, |stripe| {
            let member = Some(Member {
                session,
                birth: window.descriptor.generation.0,
                window,
                state: MemberState::Filling { watermark: 0 },
            });
            if moves {
                stripe.members.push(member);
                stripe.moved = Some(split);
            } else {
                stripe.members[split] = member;
            }
            true
        });
        let now = self.now();
        let repair = &mut self.repairs[at];
        repair.span.record("cenote.volume", &*self.hello.name);
        repair
            .span
            .record("cenote.host", &*self.hosts[session.host].config.name);
        repair.target = Some(session);
        let asked_at = std::mem::replace(&mut repair.began, now);
        self.core.timings.place.note(now.since(asked_at));
        if is_injected(InjectedFault::PublishEarly) {
            let pages = self.core.layout_of(extent).extent_end();
            return self.fence(at, pages);
        }
        self.reach_sources(at, now);
    }

    /// Ends a repair that cannot go on: fence away, the unfinished slab dropped.
    pub(super) fn abandon(&mut self, at: usize) {
        let repair = self.repairs.swap_remove(at);
        repair.span.record("otel.status_description", "abandoned");
        let mut dropped = None;
        // The journal may name it after all, by an attempt that failed: no write counts without it
        // before that is known.
        let is_named = self.is_record_unknown();
        self.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[repair.extent] else {
                return false;
            };
            let stripe = Arc::make_mut(stripe);
            stripe.fence = Fence::default();
            let filling = |member: &Member| member.state != MemberState::Live;
            if let Some(slot) = stripe.members.get_mut(repair.slot)
                && slot.as_ref().is_some_and(filling)
            {
                dropped = slot.take();
                if is_named {
                    stripe.changed_in = epoch;
                }
            }
            if repair.moves() && stripe.moved.take().is_some() {
                stripe.members.truncate(repair.slot);
            }
            true
        });
        if let Some(member) = dropped {
            self.give_back(member.session, pool_window(&member.window.descriptor));
        }
        self.repair_retry = self.now().after(PAUSE);
    }

    /// Ends the repairs whose target's session is gone.
    pub(super) fn lose_repairs(&mut self, session: Session) {
        let filled = |repair: &Repair| repair.target == Some(session) && repair.is_filling();
        while let Some(at) = self.repairs.iter().position(filled) {
            self.abandon(at);
        }
    }

    /// Ends the repair of a member that was dropped from the directory.
    pub(super) fn lose_repair_target(&mut self, extent: usize, split: usize) {
        let hit = |repair: &Repair| {
            let concerns = repair.split == split || repair.slot == split;
            repair.extent == extent && concerns && repair.is_filling()
        };
        if let Some(at) = self.repairs.iter().position(hit) {
            self.abandon(at);
        }
    }
}

/// What is traced of repairs: those that operators wait for.
fn span_of(extent: usize, split: usize, slot: usize, stage: Stage) -> tracing::Span {
    let (extent, moves) = (extent as i64, slot != split);
    match stage {
        Stage::Acquiring if moves => tracing::info_span!(
            "move slab",
            cenote.extent = extent,
            cenote.split = split as i64,
            cenote.host = tracing::field::Empty,
            cenote.volume = tracing::field::Empty,
            otel.status_description = tracing::field::Empty,
        ),
        Stage::Acquiring => tracing::info_span!(
            "rebuild slab",
            cenote.extent = extent,
            cenote.split = split as i64,
            cenote.host = tracing::field::Empty,
            cenote.volume = tracing::field::Empty,
            otel.status_description = tracing::field::Empty,
        ),
        Stage::Dropping { .. } => {
            tracing::info_span!("give extent back to disk", cenote.extent = extent)
        }
        _ => tracing::Span::none(),
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
