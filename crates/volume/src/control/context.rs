//! What every machine of the control thread works with, and what several of them do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use cenote_fabric::Time;
use cenote_pool::control::Window;
use cenote_pool::injected_faults::{InjectedFault, is_injected};
use cenote_pool::placement::Candidate;

use super::acquires::Acquires;
use super::hosts::Hosts;
use super::placement::{self, Placer, Placing};
use super::recorder::Recorder;
use super::reputations::Reputations;
use crate::core::Core;
use crate::directory::{HostIndex, Session};
use crate::{PAGE_BYTES, VolumeError};

/// The volume's shared state, its hosts, and who chooses among them.
pub(super) struct Context {
    pub core: Arc<Core>,
    pub hosts: Hosts,
    pub acquires: Acquires,
    pub placer: Placer,
    pub reputations: Reputations,
    pub recorder: Recorder,
    /// While the volume is being taken over: nobody reads, writes or repairs it.
    pub opening: Option<Opening>,
    /// When stripes are looked for again that something is to be done to.
    pub search_at: Time,
}

/// A volume that is being taken over.
pub(super) struct Opening {
    /// When it began, or a slab last came back.
    pub since: Time,
    /// Told how it ended; the simulator looks by itself.
    pub ended: Option<SyncSender<Result<(), VolumeError>>>,
}

impl Context {
    pub fn now(&self) -> Time {
        (self.core.clock)()
    }

    pub fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Something has changed by which more can be done to stripes: they are looked for in this turn.
    pub fn search_soon(&mut self) {
        self.search_at = Time(0);
    }

    /// Tells a host that a slab is no longer used.
    pub fn give_back(&mut self, session: Session, window: Window) {
        self.hosts.give_back(&self.recorder, session, window);
    }

    /// Has the journal say what has changed.
    pub fn record(&mut self) {
        if !self.is_opening() {
            self.recorder.note_changes(&self.core, &self.hosts);
        }
    }

    /// Hosts that may be asked for a slab now.
    pub fn candidates(&self, now: Time) -> Vec<Candidate> {
        let members = self.core.resilience().scheme().members();
        let all = placement::candidates(&self.hosts, now);
        self.reputations.avoid_excluded(all, members)
    }

    /// Which hosts slabs go to.
    pub fn placing(&self) -> Placing<'_> {
        Placing {
            placer: &self.placer,
            hosts: &self.hosts,
            acquires: &self.acquires,
            core: &self.core,
        }
    }

    /// Whether the pages' tags tell which of their splits are right.
    pub fn is_tagged(&self) -> bool {
        self.core.pages.integrity.tags.is_some() && !is_injected(InjectedFault::BelieveSources)
    }

    /// A slab could not be read: asks its host after it.
    pub fn ask_after(&mut self, extent: usize, split: usize) {
        let snapshot = self.core.directory.snapshot();
        let stripe = snapshot.extents[extent].as_ref();
        let member = stripe.and_then(|stripe| stripe.members.get(split)?.as_ref());
        if let Some(member) = member {
            self.hosts.compare_books(member.session.host);
        }
    }

    /// Writes go on without what is unreachable.
    pub fn give_up_unreachable(&mut self, extent: usize) {
        let mut gone = Vec::new();
        self.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[extent] else {
                return false;
            };
            let stripe = Arc::make_mut(stripe);
            gone = std::mem::take(&mut stripe.unreachable);
            stripe.changed_in = epoch;
            true
        });
        tracing::warn!(
            extent,
            slabs = gone.iter().flatten().count(),
            "slabs did not come back; the extent goes on without them"
        );
        // What their hosts still have of them is known to them alone.
        for slab in gone.into_iter().flatten() {
            self.hosts.compare_books(slab.host);
        }
        self.search_soon();
    }

    /// Has empty extents be looked for again.
    pub fn note_discarded(&self) {
        self.core.demand.discarded.store(true, Ordering::Release);
    }

    /// Tries again to reach hosts that are being replaced. Of those in whose place nobody came it says
    /// now what is lost.
    pub fn tend_returning(&mut self, now: Time) {
        for host in self.hosts.tend_returning(now) {
            tracing::warn!(host = %self.hosts.name(host), "lost host: no process came in its place");
            self.tell_loss(host);
        }
    }

    /// Says how much cannot be read, if that is anything, after a host is gone.
    pub fn tell_loss(&self, host: HostIndex) {
        if self.core.backing.is_some()
            || self.is_opening()
            // Its next process has what it held; if none comes, this is asked again.
            || self.hosts.is_being_replaced(host)
        {
            return;
        }
        let snapshot = self.core.directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let lost = mapped.filter(|(_, stripe)| stripe.as_deref().is_some_and(|s| !s.is_there()));
        let pages: u64 = lost.map(|(extent, _)| self.core.held_count(extent)).sum();
        if pages > 0 {
            let bytes = pages * PAGE_BYTES as u64;
            tracing::error!(host = %self.hosts.name(host), lost_bytes = bytes,
                "more hosts are gone than the volume's scheme bears: what they held is lost unless they come back with it");
        }
    }
}
