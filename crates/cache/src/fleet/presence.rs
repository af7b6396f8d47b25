//! Which machines are there, as their hosts stand, and which go back for it.

use std::time::Duration;

use cenote_fabric::Time;

use super::{Action, DOWN_LIMIT, Demand, Fleet, Held, Phase, machine_trouble};
use crate::owner::{HostIndex, HostSummary};

/// What a machine does not lend for so long is not counted on any more.
const SHORT_LIMIT: Duration = Duration::from_secs(10);
/// Where nobody looked for longer the manager stood still, or could not prove that it is in charge. Twenty
/// times what is between two looks.
const STANDSTILL: Duration = Duration::from_secs(1);

impl Fleet {
    /// Time in which nobody looked does not count against a machine: it may have come up, or back, and
    /// nobody connected to it.
    pub(super) fn note_time(&mut self, now: Time) {
        let gap = now.since(self.looked_at);
        self.looked_at = self.looked_at.max(now);
        if gap <= STANDSTILL {
            return;
        }
        for one in self.machines.values_mut() {
            let Phase::Used {
                use_until,
                down_since,
                short,
                ..
            } = &mut one.phase
            else {
                continue;
            };
            *use_until = use_until.after(gap);
            let since = down_since.iter_mut();
            for since in since.chain(short.iter_mut().map(|(since, _)| since)) {
                *since = since.after(gap).min(now);
            }
        }
    }

    /// Notes which machines are there, and gives back those that are empty or gone.
    pub(super) fn note_summaries(
        &mut self,
        now: Time,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) {
        // Who reaches none of its machines may be cut off itself: then none is given back for its
        // silence. A host that has ended is not silent: its address refused a connection, or the
        // owner gave it up while another was connected.
        let is_up =
            |one: &Held| matches!(one.phase, Phase::Used { host, .. } if summary(host).is_up);
        let is_connected = self.machines.values().any(is_up);
        let mut gone = Vec::new();
        for (&order, one) in &mut self.machines {
            let Phase::Used {
                host,
                use_until,
                was_up,
                down_since,
                is_surplus,
                short,
            } = &mut one.phase
            else {
                continue;
            };
            let there = summary(*host);
            if there.is_up {
                *down_since = None;
                if !std::mem::replace(was_up, true)
                    && self.penalties.remove(&one.kept.machine_type).is_some()
                {
                    self.troubles.remove(&one.kept.provider);
                }
                let room = u64::from(there.slabs) * self.shape.slab_bytes;
                if there.is_leaving {
                    // It lends nothing new, and all of it again if it stays.
                    *short = None;
                } else if let Some(room) = lasting_room(now, short, room, one.kept.memory_bytes) {
                    let what = format!("lends {} of {} bytes", room, one.kept.memory_bytes);
                    self.troubles.insert(machine_trouble(order), what);
                    one.kept.memory_bytes = room;
                    self.is_changed = true;
                }
            } else if *was_up {
                down_since.get_or_insert(now);
            }
            let is_unused = !*was_up && now >= *use_until;
            let is_down = down_since.is_some_and(|since| now.since(since) >= DOWN_LIMIT);
            let is_done =
                (*is_surplus || there.is_leaving || demand.regions == 0) && there.is_empty;
            let is_down = is_down && (there.has_ended || is_connected && there.is_empty);
            if is_unused && there.is_empty {
                let why = format!("machine {} does not come into use", one.kept.id);
                gone.push((order, *host, Some(why)));
            } else if is_done || is_down {
                gone.push((order, *host, None));
            } else if *is_surplus && !there.is_leaving {
                // It may wait for the journal since the tick before.
                let is_it = |action: &Action| matches!(action, Action::Empty(of) if of == host);
                if !self.actions.iter().any(is_it) {
                    self.actions.push_back(Action::Empty(*host));
                }
            }
        }
        for (order, host, why) in gone {
            self.troubles.remove(&machine_trouble(order));
            self.actions.push_back(Action::Drop(host));
            match why {
                Some(why) => self.handle_no_machine(now, order, None, &why),
                None => self.begin_release(now, order),
            }
        }
    }
}

/// What a machine lends for good, once that is less than was asked for.
fn lasting_room(
    now: Time,
    short: &mut Option<(Time, u64)>,
    room: u64,
    asked_for: u64,
) -> Option<u64> {
    if room >= asked_for {
        *short = None;
        return None;
    }
    // Slabs on their way to or from it are counted late: what counts is the most.
    let (since, most) = short.get_or_insert((now, room));
    *most = room.max(*most);
    (now.since(*since) >= SHORT_LIMIT).then_some(*most)
}
