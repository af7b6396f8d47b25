//! What the page operations of one worker share: the volume, the views that they work in, memory, room for
//! what is checked, and chance. It posts nothing: operations say what is to be posted, and the engine does it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_fabric::Endpoint;

use super::guard::Guard;
use super::late_answers::LateAnswers;
use super::random::Random;
use super::scratch::Scratch;
use super::splits::Made;
use super::switches::{Switches, Work};
use super::views::{Expected, Views};
use crate::Resilience;
use crate::backing::Store;
use crate::core::Core;
use crate::directory::{Session, WorkerEpoch};
use crate::integrity::Tags;
use crate::limits::OPS_MAX;

/// What one worker's operations share.
pub(super) struct DataPath {
    pub core: Arc<Core>,
    /// The worker's number.
    pub worker: usize,
    pub views: Views,
    pub scratch: Scratch,
    pub guard: Guard,
    /// Hosts that owe answers nobody waits for.
    pub late: LateAnswers,
    /// Decides which splits are read.
    pub random: Random,
    pub switches: Switches,
    /// Hears of the processor's work, in a simulation.
    pub meter: Option<fn(Work)>,
    /// Writes that were acknowledged, and are not everywhere yet.
    pub landing: Vec<Landing>,
    /// Operations that wait for the disk.
    pub at_disk: usize,
    arrivals: Arrivals,
}

/// A write that was acknowledged before its end: its whole page is in the operation's scratch.
#[derive(Clone, Copy)]
pub(super) struct Landing {
    pub op: u16,
    pub page: u64,
    /// Its page, as long as it is here.
    pub scratch: *const u8,
}

/// Endpoints that were delivered and are not in use yet.
struct Arrivals {
    endpoints: Vec<(Session, Box<dyn Endpoint>)>,
    // Every endpoint so far completes its verbs when they are posted.
    all_inline: bool,
}

impl DataPath {
    pub fn new(core: Arc<Core>, worker: usize, epoch: WorkerEpoch, host_count: usize) -> Self {
        let parities = epoch.known().resilience.scheme().r();
        Self {
            worker,
            views: Views::new(epoch),
            scratch: Scratch::new(core.layout().cut(), parities),
            guard: Guard::new(),
            late: LateAnswers::new(host_count),
            random: Random::new(worker as u64),
            switches: Switches::default(),
            meter: None,
            landing: Vec::with_capacity(OPS_MAX),
            at_disk: 0,
            arrivals: Arrivals {
                endpoints: Vec::new(),
                all_inline: true,
            },
            core,
        }
    }

    #[inline]
    pub fn spend(&self, work: Work) {
        if let Some(meter) = self.meter {
            meter(work);
        }
    }

    /// What the client keeps of pages, where it does.
    #[inline]
    pub fn tags(&self) -> Option<&Tags> {
        self.core.pages.integrity.tags.as_ref()
    }

    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.core.pages.integrity.is_sealed()
    }

    #[inline]
    pub fn is_backed(&self) -> bool {
        self.core.backing.is_some()
    }

    /// The store behind the slabs of a volume that has one.
    ///
    /// # Panics
    /// Where there is none: only pages of a backed volume go to the disk.
    pub fn store(&self) -> &Arc<Store> {
        let store = self.core.backing.as_ref();
        store.expect("only pages of a backed volume go to the disk")
    }

    /// Enters the newest epoch for an operation on an extent: what it expects there of hosts.
    #[inline]
    pub fn enter(&mut self, extent: usize, has_failed: bool) -> Expected {
        if self.views.enter(extent, has_failed) {
            // Endpoints are delivered before anything granted on their session is published.
            self.collect_mail();
        }
        self.views.expected(extent)
    }

    /// Takes the endpoints that were delivered to the worker.
    pub fn collect_mail(&mut self) {
        for (session, endpoint) in self.core.mailboxes.collect(self.worker) {
            self.arrivals.all_inline &= endpoint.completes_at_once();
            self.arrivals.endpoints.push((session, endpoint));
        }
    }

    /// One of the endpoints that came, for the engine to adopt before it posts anything.
    #[inline]
    pub fn take_arrival(&mut self) -> Option<(Session, Box<dyn Endpoint>)> {
        self.arrivals.endpoints.pop()
    }

    /// Whether every verb completes when it is posted: nothing is ever on its way.
    #[inline]
    pub fn completes_at_once(&self) -> bool {
        self.arrivals.all_inline
    }

    /// As if some host took its time.
    #[cfg(test)]
    pub fn wait_for_answers(&mut self) {
        self.arrivals.all_inline = false;
    }

    /// Whether reads ask for more splits than they need.
    #[inline]
    pub fn binds_late(&self, resilience: Resilience) -> bool {
        resilience.read_splits() > resilience.scheme().k()
            && !self.completes_at_once()
            && self.switches.late_binding
    }

    /// Counts what it took to make a page.
    #[inline]
    pub fn note_made(&self, made: Made) {
        match made {
            Made::AsItLanded => {}
            Made::Copied => self.spend(Work::Copy),
            Made::Decoded => {
                let counters = &self.core.measures.counters;
                counters.pages_decoded.fetch_add(1, Ordering::Relaxed);
                self.spend(Work::Decode);
            }
        }
    }

    /// Counts a read that is taken again because a writer was in the way or a host failed.
    pub fn count_repeat(&self) {
        let counters = &self.core.measures.counters;
        counters.reads_repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the volume has ended.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.core.life.closed.load(Ordering::Acquire)
    }
}
