//! Asking for views, and refusing what must not be served, for each group of a lane.

use std::cell::LazyCell;
use std::time::Instant;

use cenote_kv::group::process::Process;
use cenote_kv::group::progress::Decision;

use super::super::NodeId;
use super::super::config::NodeState;
use super::super::membership::Refused;
use super::super::node::Proposal;
use super::super::steering::Situation;
use super::Lane;

/// Between two looks at what is refused by a node that is registered: it is so for the words of errors alone.
const REFUSE_EVERY_NS: u64 = 5_000_000;
/// Who has not looked for so long stood still: longer than a turn lasts and its lane then sleeps.
const STILL_NS: u64 = 100_000_000;

impl Lane {
    /// Looks again at what it refuses before something is served. Whether that is known: a node that stood still
    /// and may have been counted out since has to hear first who is gone.
    pub(super) fn knows_what_to_refuse(&mut self, now: u64) -> bool {
        let since = now.saturating_sub(self.refused_at);
        if since < REFUSE_EVERY_NS {
            return true;
        }
        let lease = self.shared.registration_lease.lease_at(now);
        if since >= STILL_NS && !self.membership.is_registered(lease) {
            return false;
        }
        self.refuse(now);
        true
    }

    /// Looks again at what this node refuses. It comes when what has arrived is taken, and before any of it is
    /// answered.
    pub(super) fn refuse(&mut self, now: u64) {
        let lease = self.shared.registration_lease.lease_at(now);
        let is_due = now.saturating_sub(self.refused_at) >= REFUSE_EVERY_NS;
        if self.membership.is_registered(lease) && !is_due {
            return;
        }
        self.refused_at = now;
        for seat in &mut self.seats {
            let refused = match seat.member.view() {
                Some(view) => self.membership.refused(view, lease),
                None => Refused::default(),
            };
            if refused.why != seat.refused.why {
                let group = seat.group;
                match refused.why {
                    Some(why) => tracing::warn!(group, ?why, "refuse requests"),
                    None => tracing::info!(group, "serve again"),
                }
            }
            seat.refused = refused;
        }
    }

    /// Refuses flushes for owners of what it refuses that cannot be reached.
    pub(super) fn refuse_flushes(&mut self) {
        let refusing = self.seats.iter().filter(|seat| seat.refused.why.is_some());
        for seat in refusing {
            let Some(view) = seat.member.view() else {
                continue;
            };
            for partition in 0..view.partitions.len() {
                let owner = view.owner(partition);
                if let (Some(owner), Some(why)) = (owner, seat.refused.of(partition)) {
                    self.forwarding.refuse_flushes(NodeId(owner.node), why);
                }
            }
        }
    }

    pub(super) fn steer(&mut self, now: u64) {
        let instant = Instant::now();
        let decision = match self.shared.registration_lease.is_fresh(now) {
            true => Decision::Soon,
            false => Decision::Late,
        };
        let is_spare = self.shared.state() == NodeState::Up;
        let leave = self.shared.leave();
        let places = LazyCell::new(|| self.shared.places());
        let places = |process: Process| places.get(&process.node).copied().unwrap_or(0);
        for seat in &mut self.seats {
            let situation = Situation {
                group: seat.group,
                nodes: self.config.nodes.len(),
                places: &places,
                membership: &self.membership,
                homes: self.shared.homes(seat.group),
                is_spare,
                leave,
                decision,
                now,
                instant,
            };
            let next = seat.steering.decide(&mut seat.member, &situation);
            if let Some(failure) = seat.member.failure() {
                self.shared.fail(format!("group {}: {failure}", seat.group));
            }
            if let Some(view) = next {
                let group = seat.group;
                self.shared.propose(Proposal { group, view });
            }
        }
    }
}
