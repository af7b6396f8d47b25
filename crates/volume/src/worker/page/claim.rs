//! What an operation has, or knows, of its page's claim; and reads of pages in flight, which are claimed:
//! acknowledged, and not landed everywhere (`early`).
//!
//! The read of a page in flight does not wait for the claim. Where the writer is this worker, its scratch
//! has the page: it is copied from there. From any other worker's, the splits that have landed are read,
//! as `flights` names them, and judged as in any read of the mode: a write is acknowledged after as many
//! splits as its mode compares.
//!
//! Invariants:
//! - A split that has not landed is not asked for: it may be old.
//! - The read counts if no other write of the page began meanwhile; it holds no writer up for that.
//! - Splits are read in the state of the stripe that they landed in. While that is another, while
//!   fewer have landed than the mode compares, and for scrubs, the page is waited for.
//!
//! Decision 29.

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::state::{Next, Page};
use crate::IoError;
use crate::core::Core;
use crate::directory::Stripe;
use crate::flights::Flight;
use crate::limits::OPS_MAX;
use crate::marks::Soundness;
use crate::worker::data_path::{DataPath, Landing};

/// What an operation has, or knows, of its page's claim.
#[derive(Clone, Copy, Default)]
pub(super) struct Claim {
    pub held: bool,
    /// The claim's version when a read began.
    pub version: u64,
    /// What it may read of a page in flight.
    pub landed: Landed,
    // Whether it has said that it waits for slabs that are out of reach.
    is_stranded: bool,
}

/// What a read may use of a page in flight; of any other page: everything.
#[derive(Clone, Copy, Default)]
pub(super) struct Landed {
    /// Splits that have landed; 0: the page is not in flight.
    splits: u64,
    /// In which state of its stripe.
    changed_in: u64,
    /// The claim's version, which is its writer's.
    version: u64,
}

impl Claim {
    pub fn new(held: bool) -> Self {
        Self {
            held,
            ..Self::default()
        }
    }

    /// Of a page in flight that is read.
    pub fn of_flight(flight: &Flight) -> Self {
        Self {
            held: false,
            // When its writer gives it back: not before may anything be written here.
            version: flight.version + 1,
            landed: Landed {
                splits: flight.splits,
                changed_in: flight.changed_in,
                version: flight.version,
            },
            is_stranded: false,
        }
    }
}

impl Landed {
    pub fn is_in_flight(self) -> bool {
        self.splits != 0
    }

    /// Those of `splits` that may be read.
    pub fn among(self, splits: u64) -> u64 {
        match self.splits {
            0 => splits,
            _ if is_injected(InjectedFault::ReadUnlanded) => splits,
            landed => splits & landed,
        }
    }
}

impl Page {
    /// How the page may be read: what has landed of a page in flight is of one version.
    #[inline]
    pub(super) fn soundness(&self, core: &Core) -> Soundness {
        if self.claim.landed.is_in_flight() {
            return Soundness::Sound;
        }
        core.pages.marks.soundness(self.number)
    }

    /// Whether nobody wrote the page since the read of it began, or none but its writer.
    #[inline]
    pub(super) fn is_unchanged(&self, core: &Core) -> bool {
        let Claim {
            version, landed, ..
        } = self.claim;
        let claims = &core.pages.claims;
        if !landed.is_in_flight() {
            return claims.unchanged(self.number, version);
        }
        is_injected(InjectedFault::ReadOvertaken)
            || claims.unchanged_in_flight(self.number, landed.version)
    }

    /// Claims the page for a read that goes on with a write, if nobody wrote it since the read began.
    pub(super) fn try_claim_read(&mut self, core: &Core) -> bool {
        let claims = &core.pages.claims;
        self.claim.held = claims.try_claim_at(self.number, self.claim.version);
        self.claim.held
    }

    /// Tells readers which splits of the page have landed, once it is acknowledged.
    pub(super) fn publish_landed(&self, path: &DataPath) {
        let stripe = self.stripe(&path.views);
        if let Some(stripe) = stripe.filter(|_| self.is_acknowledged() && self.claim.held) {
            let splits = self.verbs.acked & stripe.readable();
            let flights = &path.core.pages.flights;
            let writer = self.listing.slot();
            flights.publish(self.number, writer, stripe.changed_in, splits);
        }
    }

    /// Readers wait for the page from here on. Before its claim goes.
    #[inline]
    pub(super) fn withdraw_landed(&self, core: &Core) {
        if self.is_acknowledged() && self.claim.held {
            core.pages.flights.withdraw(self.number);
        }
    }

    /// Says whether the write waits for slabs that are out of reach. Under its claim.
    pub(super) fn set_stranded(&mut self, core: &Core, is_stranded: bool) {
        let was_stranded = std::mem::replace(&mut self.claim.is_stranded, is_stranded);
        if was_stranded != is_stranded {
            core.pages.claims.set_stranded(self.number, is_stranded);
        }
    }

    /// Whether it waits for slabs that are out of reach.
    pub(in crate::worker) fn is_stranded(&self) -> bool {
        self.claim.is_stranded
    }

    /// What becomes of an operation whose page another has claimed: it waits, but for nobody who waits for
    /// slabs that are out of reach.
    pub(super) fn meet_claim(&self, core: &Core) -> Next {
        match core.pages.claims.is_stranded(self.number) {
            true => Next::End(Err(IoError::Lost)),
            false => Next::Park,
        }
    }

    /// Gives the page's claim back, if it is held.
    #[inline]
    pub(super) fn unclaim(&mut self, core: &Core) {
        self.withdraw_landed(core);
        if std::mem::take(&mut self.claim.held) {
            self.set_stranded(core, false);
            core.pages.claims.release(self.number);
        }
    }
}

/// The write of this worker that has the page in its scratch as it was written.
pub(super) fn own_writer(page: &Page, path: &DataPath, flight: &Flight) -> Option<Landing> {
    if flight.writer / OPS_MAX != path.worker || path.is_sealed() {
        return None;
    }
    let mut landing = path.landing.iter().copied();
    landing
        .find(|write| usize::from(write.op) == flight.writer % OPS_MAX && write.page == page.number)
}

/// Of `readable` members those that a read may use; `None`: it has to wait. In an epoch.
#[inline]
pub(super) fn usable(page: &Page, path: &DataPath, readable: u64) -> Option<u64> {
    let landed = page.claim.landed;
    if !landed.is_in_flight() {
        return Some(readable);
    }
    let is_same = |stripe: &Stripe| stripe.changed_in == landed.changed_in;
    let usable = landed.among(readable);
    let resilience = page.resilience();
    let needed = if resilience.compares() {
        resilience.read_splits()
    } else {
        page.cut().k()
    };
    let is_enough = usable.count_ones() as usize >= needed;
    (page.stripe(&path.views).is_some_and(is_same) && is_enough).then_some(usable)
}
