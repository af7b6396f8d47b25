//! The relocation of one slab: it is made anew on another host, in small steps, and takes its place.
//!
//! Chunk by chunk:
//! `FENCED` (writes in the chunk wait) `-> DRAINED` (no worker is left in an older epoch)
//! `-> FILLED` (the new host pulled k survivors and decoded) `-> ` next chunk
//! `-> PUBLISHED` (read like any other). Below the watermark writes reach the new slab too,
//! above it they are degraded, only inside the chunk do they wait. Reads go on throughout.
//!
//! A slab that is lost is **rebuilt** in its own place. One that is there, and that its host wants back, is
//! **moved**: its copy is filled beside it, under the same fence and drain, and writes below the watermark
//! go to both. After `PUBLISHED` (the copy takes the slab's place) no worker is left in an older epoch, and then
//! it is `RETIRED` (unmapped, which tells its host that it is DONE). In protected volumes a chunk is `MENDING`
//! where its sources are doubted (`mender`).
//!
//! Invariants: H3, no write is acknowledged against the lost slab between fence and publish;
//! a fence never outlives its relocation; no byte of a slab is given up before its copy is read like any other.
//! Paper: \[hydra22\] 4.2 (background slab regeneration).

mod backoff;
mod chunk;
mod fill;
mod sources;
pub mod stage;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::acquires::Granted;
use super::context::Context;
use super::fate::Fate;
use super::mender::Mender;
use super::pace::Pacing;
use crate::core::Core;
use crate::directory::{HostIndex, Member, MemberState, Session, Stripe};
use crate::fence::Fence;
use backoff::Backoff;
use chunk::Chunk;
use fill::Fills;
use stage::RelocationStage;

/// One slab on its way to another host.
pub(super) struct Relocation {
    pub extent: usize,
    pub split: usize,
    /// Where in its stripe the slab is that is filled: at its split, or past the last one while
    /// what it replaces is still in use.
    slot: usize,
    target: Option<Session>,
    stage: Stage,
    /// When the stage began that is timed: the slab was asked for, the first chunk was fenced, the copy took
    /// its place.
    began: Time,
    chunk: Chunk,
    /// What came of the chunks before.
    backoff: Backoff,
    /// Pauses since the last chunk that was filled.
    pauses: u32,
    /// Most pages that are filled at a time in the chunk that is fenced next.
    pages_after: u32,
    /// Pages that were looked through last (`mender`).
    mended: Range<u32>,
    /// A page that is rebuilt from k sources, since nothing tells what it is.
    unjudged: Option<u32>,
    /// What traces have of it; ends with it.
    span: tracing::Span,
}

enum Stage {
    /// A slab is on its way.
    Acquiring,
    /// Writers of the chunk are leaving.
    Draining { epoch: u64, start: u32, end: u32 },
    /// The target is at it.
    Filling(Fills),
    /// Nothing is fenced: no source could be read, or the next owner would not find the slab.
    Pausing { until: Time, start: u32 },
    /// Nothing is fenced: it goes on more slowly than it could.
    Pacing { until: Time, start: u32 },
    /// Nothing is fenced: as many chunks of other relocations are as may be.
    Queued { start: u32 },
    /// Nothing is fenced: pages are looked through.
    Mending { start: u32 },
    /// Readers of a slab that was moved are leaving it.
    Leaving {
        epoch: u64,
        session: Session,
        window: Window,
    },
}

/// What something that is done to an extent works with.
pub(super) struct Site<'a> {
    pub cx: &'a mut Context,
    pub pacing: &'a mut Pacing,
    pub mender: &'a mut Mender,
    /// Chunks of other relocations that writes may wait for.
    pub fenced_besides: usize,
}

/// Pause before sources that failed are tried again, and before looking for space again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// A chunk takes milliseconds; a target that answers pings but takes this long is replaced.
const FILL_MAX: Duration = Duration::from_secs(10);

impl Relocation {
    /// Of a slab that is lost: a new one is on its way to its place.
    pub fn rebuild(extent: usize, split: usize, now: Time) -> Self {
        Self::new(extent, split, split, now)
    }

    /// Of a slab that is there, whose copy is put past the last of the stripe's `splits`.
    pub fn copy(extent: usize, split: usize, splits: usize, now: Time) -> Self {
        Self::new(extent, split, splits, now)
    }

    fn new(extent: usize, split: usize, slot: usize, now: Time) -> Self {
        Self {
            extent,
            split,
            slot,
            target: None,
            stage: Stage::Acquiring,
            began: now,
            chunk: Chunk::default(),
            backoff: Backoff::default(),
            pauses: 0,
            pages_after: u32::MAX,
            mended: 0..0,
            unjudged: None,
            span: span_of(extent, split, slot),
        }
    }

    /// Whether what it replaces is still there.
    fn moves(&self) -> bool {
        self.slot != self.split
    }

    /// Whether its slab is still to come.
    pub fn is_acquiring(&self) -> bool {
        matches!(self.stage, Stage::Acquiring)
    }

    /// Whether a slab is being filled, which is lost to it when it goes.
    fn is_filling(&self) -> bool {
        self.target.is_some() && !matches!(self.stage, Stage::Leaving { .. })
    }

    /// Whether it fills a slab of this session.
    pub fn fills_on(&self, session: Session) -> bool {
        self.target == Some(session) && self.is_filling()
    }

    /// Whether it cannot go on without this member of its stripe.
    pub fn depends_on(&self, core: &Core, member: usize) -> bool {
        let needs_original = self.split == member && !self.outlives_original(core);
        (needs_original || self.slot == member) && self.is_filling()
    }

    /// Whether its copy is whole, and has every write until it takes the place of its original.
    /// With a disk behind the volume writes may be acknowledged that reach no slab.
    fn outlives_original(&self, core: &Core) -> bool {
        if core.backing.is_some() {
            return false;
        }
        let snapshot = core.directory.snapshot();
        let stripe = snapshot.extents[self.extent].as_deref();
        let member = stripe.and_then(|stripe| stripe.members.get(self.slot)?.as_ref());
        let watermark = core.layout_of(self.extent).extent_end();
        member.is_some_and(|member| member.state == MemberState::Filling { watermark })
    }

    /// Whether it waits for workers to leave an epoch.
    pub fn is_draining(&self) -> bool {
        matches!(self.stage, Stage::Draining { .. } | Stage::Leaving { .. })
    }

    /// Whether writes may wait for its chunk.
    pub fn is_fenced(&self) -> bool {
        match self.stage {
            Stage::Draining { .. } => true,
            Stage::Filling(_) => !self.chunk.is_trial,
            _ => false,
        }
    }

    /// When it goes on, if it pauses.
    pub fn pauses_until(&self) -> Option<Time> {
        match self.stage {
            Stage::Pausing { until, .. } | Stage::Pacing { until, .. } => Some(until),
            _ => None,
        }
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

    /// Pages of the extent that are filled; `None` when all are.
    pub fn filled_pages(&self) -> Option<u32> {
        match &self.stage {
            Stage::Draining { start, .. }
            | Stage::Pausing { start, .. }
            | Stage::Pacing { start, .. }
            | Stage::Mending { start }
            | Stage::Queued { start } => Some(*start),
            Stage::Filling(fills) => Some(fills.end),
            Stage::Acquiring => Some(0),
            Stage::Leaving { .. } => None,
        }
    }

    /// The host that fills, and how far its chunk is.
    pub fn at_work(&self) -> Option<(HostIndex, RelocationStage)> {
        let stage = match self.stage {
            Stage::Draining { .. } => RelocationStage::Fenced,
            Stage::Filling(_) => RelocationStage::Drained,
            _ => return None,
        };
        Some((self.target?.host, stage))
    }

    /// Goes on, if what it waits for has come.
    pub fn step(&mut self, site: &mut Site<'_>, now: Time) -> Fate {
        let directory = &site.cx.core.directory;
        match self.stage {
            Stage::Draining { epoch, start, end }
                if directory.is_settled(epoch) || is_injected(InjectedFault::NoDrain) =>
            {
                self.fill(site, start, end, now)
            }
            Stage::Leaving {
                epoch,
                session,
                window,
            } if directory.is_settled(epoch) || is_injected(InjectedFault::GiveBackUnsettled) => {
                site.cx
                    .core
                    .measures
                    .timings
                    .leave
                    .note(now.since(self.began));
                site.cx.give_back(session, window);
                site.cx.search_soon();
                Fate::Ended
            }
            Stage::Pausing { until, start } if now >= until => self.fence(site, start),
            // The pace may be another since it was asked.
            Stage::Pacing { until, start }
                if now >= until || site.pacing.waits_until(now).is_none() =>
            {
                self.fence(site, start)
            }
            Stage::Mending { start } if !site.mender.has(self.extent) => self.fence(site, start),
            Stage::Queued { start } if site.fenced_besides < site.pacing.step().chunks => {
                self.fence(site, start)
            }
            Stage::Filling(Fills { asked_at, .. }) => {
                let target = self.target.expect("a slab that is filled has a host");
                let is_silent = site.cx.hosts[target.host].is_silent(now);
                match now.since(asked_at) > FILL_MAX || is_silent {
                    true => self.abandon(site.cx),
                    false => Fate::GoesOn,
                }
            }
            Stage::Draining { .. }
            | Stage::Leaving { .. }
            | Stage::Pausing { .. }
            | Stage::Pacing { .. }
            | Stage::Mending { .. }
            | Stage::Queued { .. }
            | Stage::Acquiring => Fate::GoesOn,
        }
    }

    /// Whether a slab that has come for this split may take its place in the extent's stripe.
    pub fn takes(&self, split: usize, stripe: Option<&Stripe>) -> bool {
        // A slab that was to be moved and is lost meanwhile is rebuilt in its own place.
        let fits = |stripe: &Stripe| stripe.members[split].is_some() == self.moves();
        self.split == split && self.is_acquiring() && stripe.is_some_and(fits)
    }

    /// Its slab has come, and takes its place, empty.
    pub fn on_granted(&mut self, site: &mut Site<'_>, granted: Granted) -> Fate {
        let Self { extent, split, .. } = *self;
        let core = &site.cx.core;
        let moves = self.moves();
        if split < core.layout_of(extent).cut().k() && !moves {
            core.lose_data_split(extent);
        }
        let session = granted.session;
        let host = site.cx.hosts.name(session.host);
        self.span
            .record("cenote.volume", site.cx.hosts.volume_name());
        self.span.record("cenote.host", host);
        tracing::info!(extent, split, moves, %host, "regeneration starts");
        core.directory.publish_stripe(extent, |stripe| {
            let member = Some(granted.into_member(MemberState::Filling { watermark: 0 }));
            if moves {
                stripe.members.push(member);
                stripe.moved = Some(split);
            } else {
                stripe.members[split] = member;
            }
            true
        });
        let now = site.cx.now();
        self.target = Some(session);
        let asked_at = std::mem::replace(&mut self.began, now);
        core.measures.timings.place.note(now.since(asked_at));
        if is_injected(InjectedFault::PublishEarly) {
            let pages = core.layout_of(extent).extent_end();
            return self.fence(site, pages);
        }
        self.reach_sources(site, now)
    }

    /// The target has answered one of its fills.
    pub fn on_filled(&mut self, site: &mut Site<'_>, request: u64, result: FillResult) -> Fate {
        let Stage::Filling(fills) = &mut self.stage else {
            return Fate::GoesOn;
        };
        fills.left -= 1;
        match result {
            FillResult::Done if fills.is_trial => {}
            FillResult::Done => self.chunk.filled_bytes += fills.bytes_of(request),
            FillResult::SourceFailed { split } => {
                fills.failed = true;
                if !self.shun(site.cx, split) {
                    // Not one that it was told to read: no more of this.
                    return self.abandon(site.cx);
                }
            }
            FillResult::Disagree => fills.disagree = true,
            FillResult::TargetStale | FillResult::Bad => return self.abandon(site.cx),
        }
        self.end_fills(site)
    }

    /// Whether this host was asked for the fill.
    pub fn awaits(&self, host: HostIndex, request: u64) -> bool {
        let is_its = matches!(&self.stage, Stage::Filling(fills) if fills.contains(request));
        is_its && self.target.is_some_and(|target| target.host == host)
    }

    /// Puts a whole copy, which the next owner would find, in the place of the slab that it was
    /// made of. That one may be gone: the copy has every write that was acknowledged, unless a
    /// disk alone could do that meanwhile.
    fn replace(&mut self, cx: &mut Context) -> Fate {
        let Self { extent, split, .. } = *self;
        let is_backed = cx.core.backing.is_some();
        let mut replaced = None;
        let epoch = cx.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[extent] else {
                return false;
            };
            let is_there = stripe.members.last().is_some_and(Option::is_some);
            let has_all = stripe.members[split].is_some() || !is_backed;
            if stripe.moved != Some(split) || !is_there || !has_all {
                return false;
            }
            let stripe = Arc::make_mut(stripe);
            let copy = stripe.members.pop().flatten();
            let copy = copy.map(|member| Member {
                state: MemberState::Live,
                ..member
            });
            replaced = Some(std::mem::replace(&mut stripe.members[split], copy));
            // The slab may have gone since its copy was whole: it is awaited no longer.
            if let Some(slab) = stripe.unreachable.get_mut(split) {
                *slab = None;
            }
            stripe.is_out_of_reach &= !stripe.is_there();
            stripe.moved = None;
            stripe.fence = Fence::default();
            // Who still reads the slab must have left before a write that skips it counts.
            stripe.changed_in = epoch;
            true
        });
        let Some(replaced) = replaced else {
            return self.abandon(cx);
        };
        tracing::info!(extent, split, "slab moved");
        let counters = &cx.core.measures.counters;
        counters.slabs_moved.fetch_add(1, Ordering::Relaxed);
        let now = cx.now();
        let began = std::mem::replace(&mut self.began, now);
        cx.core.measures.timings.fill.note(now.since(began));
        let Some(replaced) = replaced else {
            // Gone before: there is nothing to give back.
            cx.search_soon();
            return Fate::Ended;
        };
        self.stage = Stage::Leaving {
            epoch,
            session: replaced.session,
            window: replaced.window.name(),
        };
        Fate::GoesOn
    }

    /// Ends what cannot go on: fence away, the unfinished slab dropped.
    pub fn abandon(&mut self, cx: &mut Context) -> Fate {
        self.span.record("otel.status_description", "abandoned");
        let mut dropped = None;
        // The journal may name it after all, by an attempt that failed or because it was whole: no
        // write counts without it before that is known.
        let is_unknown = cx.recorder.is_unknown();
        let watermark = cx.core.layout_of(self.extent).extent_end();
        let is_named =
            |member: &Member| is_unknown || member.state == MemberState::Filling { watermark };
        cx.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[self.extent] else {
                return false;
            };
            let stripe = Arc::make_mut(stripe);
            stripe.fence = Fence::default();
            let filling = |member: &Member| member.state != MemberState::Live;
            if let Some(slot) = stripe.members.get_mut(self.slot)
                && slot.as_ref().is_some_and(filling)
            {
                dropped = slot.take();
                if dropped.as_ref().is_some_and(is_named) {
                    stripe.changed_in = epoch;
                }
            }
            if self.moves() && stripe.moved.take().is_some() {
                stripe.members.truncate(self.slot);
            }
            true
        });
        if let Some(member) = dropped {
            cx.give_back(member.session, member.window.name());
        }
        cx.search_at = cx.now().after(PAUSE);
        Fate::Ended
    }
}

/// What is traced: what operators wait for.
fn span_of(extent: usize, split: usize, slot: usize) -> tracing::Span {
    tracing::info_span!(
        "relocate slab",
        otel.name = if slot == split {
            "rebuild slab"
        } else {
            "move slab"
        },
        cenote.extent = extent as i64,
        cenote.split = split as i64,
        cenote.host = tracing::field::Empty,
        cenote.volume = tracing::field::Empty,
        otel.status_description = tracing::field::Empty,
    )
}
