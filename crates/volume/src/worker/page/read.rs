//! Reading a page for a request, or scrubbing one for nobody.
//!
//! `Parked -> Gathering [-> Healing | Mending] -> (done)`; from a disk `Parked -> Fetching [-> Promoting] -> (done)`.
//!
//! A read takes no claim: it notes the claim's version, and is taken again if a writer was there
//! meanwhile. It moves on as soon as enough splits are there (`late`), and hands over what they
//! make once they were judged (`gather`).
//!
//! Invariant: a read returns k splits of one snapshot, with no writer in between. Pages that are
//! claimed are waited for, or read as `claim` says.

use cenote_fabric::order_stores;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::claim::{Claim, Landed};
use super::gather::Gather;
use super::state::{Next, Page, Then};
use super::{claim, disk, heal, protection};
use crate::worker::data_path::DataPath;
use crate::worker::switches::Work;

/// The read of a page.
#[derive(Clone, Copy)]
pub(super) struct Read {
    phase: Phase,
    gather: Gather,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Parked,
    /// Its splits are read.
    Gathering,
    /// Its page was read, and splits of it that were wrong are written again.
    Healing,
    /// Its page was read, of which the last write ended unknown, and is written again.
    Mending,
    /// The disk reads its page.
    Fetching,
    /// Its page was read from the disk, and goes to hosts as well.
    Promoting,
}

impl Default for Read {
    fn default() -> Self {
        Self {
            phase: Phase::Parked,
            gather: Gather {
                is_wide: false,
                is_optimistic: true,
            },
        }
    }
}

impl Read {
    pub fn begin(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        page.claim.landed = Landed::default();
        let claims = &path.core.pages.claims;
        let Some(version) = claims.version(page.number) else {
            return self.begin_in_flight(page, path);
        };
        // After the version: while that stays, so does the page.
        page.locate(&path.core);
        page.claim.version = version;
        if !path.core.pages.marks.written.contains(page.number) {
            if !page.is_unchanged(&path.core) {
                return Next::Park;
            }
            if !page.is_scrub() {
                page.memory.hand_over_zeros();
            }
            return Next::End(Ok(()));
        }
        self.gather(page, path)
    }

    /// Reads a page that is claimed, if it is in flight; else it waits.
    fn begin_in_flight(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        let (flights, claims) = (&path.core.pages.flights, &path.core.pages.claims);
        let flight = flights.find(claims, page.number);
        let Some(flight) = flight.filter(|_| !page.is_scrub()) else {
            return page.meet_claim(&path.core);
        };
        // Under its writer's claim nobody moves it.
        page.locate(&path.core);
        if let Some(write) = claim::own_writer(page, path, &flight) {
            // No host has a part in it, so there is nothing to compare.
            // SAFETY: a write that was acknowledged early has its whole page in its scratch until it ends.
            unsafe { page.memory.hand_over(write.scratch) };
            path.spend(Work::Copy);
            return Next::End(Ok(()));
        }
        page.claim = Claim::of_flight(&flight);
        self.gather(page, path)
    }

    fn gather(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.phase = Phase::Gathering;
        page.enter(path);
        let next = self.gather.ask(page, path);
        if next == Next::Wait {
            self.phase = Phase::Fetching;
        }
        next
    }

    /// Reads all there is of the page.
    pub fn widen(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        self.gather.is_wide = true;
        self.gather(page, path)
    }

    pub fn on_verbs(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        match self.phase {
            Phase::Gathering => self.end_gather(page, path),
            Phase::Healing => {
                // Before the page is given back: readers look then.
                order_stores();
                if !page.verbs.failed {
                    heal::count_healed(page, path);
                }
                // The splits are right again, or their hosts are gone: the read has succeeded either way.
                Next::End(Ok(()))
            }
            Phase::Mending => {
                // Before the marks, which readers look at.
                order_stores();
                heal::end_mending(page, path);
                Next::End(Ok(()))
            }
            Phase::Promoting => {
                // Before the bit, which readers look at.
                order_stores();
                disk::end_promotion(page, path);
                Next::End(Ok(()))
            }
            Phase::Parked | Phase::Fetching => unreachable!("no verb is out"),
        }
    }

    fn end_gather(&mut self, page: &mut Page, path: &mut DataPath) -> Next {
        if page.verbs.is_short() {
            path.count_repeat();
            page.leave(path);
            return self.begin(page, path);
        }
        if let Err(next) = self.gather.judge(page, path) {
            return next;
        }
        if !page.is_unchanged(&path.core) && !is_injected(InjectedFault::TornRead) {
            path.count_repeat();
            return Next::Apart(Then::Park);
        }
        if !page.memory.is_in_place() && !path.is_sealed() && !page.is_scrub() {
            // SAFETY: the scratch page is whole, and nothing lands in it any more.
            unsafe { page.memory.hand_over(page.memory.scratch()) };
            path.spend(Work::Copy);
        }
        if let Some(members) = heal::claim_doubtful(page, path) {
            return self.write(page, Phase::Mending, members);
        }
        match heal::claim_wrong(page, path) {
            Some(members) => self.write(page, Phase::Healing, members),
            None => Next::End(Ok(())),
        }
    }

    /// The disk has read the page into `bytes`.
    pub fn on_fetched(&mut self, page: &mut Page, path: &mut DataPath, bytes: *const u8) -> Next {
        if let Err(next) = protection::accept_fetched(page, path, bytes) {
            return next;
        }
        if !path.is_sealed() && !page.is_scrub() {
            // SAFETY: the disk's buffer is a whole page, which nobody writes before it is given back.
            unsafe { page.memory.hand_over(bytes) };
        }
        if !page.is_unchanged(&path.core) {
            path.count_repeat();
            return Next::Park;
        }
        let Some(members) = disk::claim_promotion(page, path) else {
            return Next::End(Ok(()));
        };
        // The request's buffer has what the user sees: of a sealed page no host's business.
        page.memory.in_scratch = path.is_sealed();
        self.write(page, Phase::Promoting, members)
    }

    /// Writes what was read to some members.
    fn write(&mut self, page: &mut Page, phase: Phase, members: u64) -> Next {
        self.phase = phase;
        page.verbs.reset();
        Next::Write { members }
    }

    pub fn park(&mut self) {
        self.phase = Phase::Parked;
    }

    /// Whether verbs of it are out that write.
    pub fn is_writing(&self) -> bool {
        matches!(
            self.phase,
            Phase::Healing | Phase::Mending | Phase::Promoting
        )
    }
}
