//! When partitions that were lost came to be served here, and how much of them was rebuilt.
//!
//! For whoever watches: nothing is decided by it. Times are those that [`Member::flush`] is given, so
//! each is that of the end of a turn.

use std::collections::VecDeque;

use super::member::Member;
use super::message::UNIT_BYTES;

/// Takeovers that are remembered.
const TAKEOVERS_MAX: usize = 16;

/// A partition that this process took over from one that was lost. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Takeover {
    /// Which.
    pub partition: usize,
    /// The view that says so.
    pub view: u32,
    /// The view was taken up.
    pub began: Option<u64>,
    /// All parities agree on what was acknowledged.
    pub settled: Option<u64>,
    /// The former owner's lease has surely run out; 0: it had none from here.
    pub lease_over: u64,
    /// Requests are answered from here on, reads included.
    pub served: Option<u64>,
    /// Every unit is there.
    pub ended: Option<u64>,
    /// Bytes of units that were solved for and are not all zero.
    pub rebuilt_bytes: u64,
}

impl Takeover {
    fn is_over(&self) -> bool {
        self.served.is_some() && self.ended.is_some()
    }
}

/// The latest takeovers of a member.
#[derive(Debug, Default)]
pub(super) struct Takeovers(VecDeque<Takeover>);

impl Takeovers {
    pub(super) fn begin(&mut self, partition: usize, view: u32) {
        if self.0.len() == TAKEOVERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Takeover {
            partition,
            view,
            ..Takeover::default()
        });
    }

    /// Units have been solved for.
    pub(super) fn note_units(&mut self, partition: usize, units: u64) {
        let mut latest = self.0.iter_mut().rev();
        if let Some(takeover) = latest.find(|takeover| takeover.partition == partition) {
            takeover.rebuilt_bytes += units * UNIT_BYTES;
        }
    }
}

impl Member {
    /// The partitions that it took over lately, oldest first.
    pub fn takeovers(&self) -> impl Iterator<Item = &Takeover> {
        self.takeovers.0.iter()
    }

    /// When a partition that all agree on may be served at last, while it is not.
    pub fn serves_at(&self) -> Option<u64> {
        let settled = self.takeovers.0.iter();
        let waiting = settled.filter(|one| one.settled.is_some() && one.served.is_none());
        waiting.map(|one| one.lease_over).min()
    }

    pub(super) fn note_takeovers(&mut self, now: u64) {
        let open = self.takeovers.0.iter_mut();
        for takeover in open.filter(|takeover| !takeover.is_over()) {
            let owned = self.owners.get(&takeover.partition);
            let Some(owned) = owned.filter(|owned| owned.owner.term() == takeover.view) else {
                continue;
            };
            takeover.began.get_or_insert(now);
            takeover.lease_over = owned.serves_from;
            if owned.settling.is_some() {
                continue;
            }
            takeover.settled.get_or_insert(now);
            if owned.is_served(now) && owned.owner.has_leave(now) {
                takeover.served.get_or_insert(now);
            }
            if owned.owner.missing_units() == 0 {
                takeover.ended.get_or_insert(now);
            }
        }
    }
}
