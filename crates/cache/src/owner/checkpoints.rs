//! What a checkpoint asks of the owner: regions whose writes are held while they are copied, and memory that
//! is filled from a file before it counts.
//!
//! A held region is frozen and drained as before a move, and its one copy that is read has every write that
//! was acknowledged. It opens again when the checkpoint lets go of it, or takes too long, or when its
//! host is to go and another has room: a notice may be as short as a hold is long. It opens, too,
//! before a time in which nothing is decided.

use std::time::Duration;

use cenote_fabric::Time;

use super::region::{Access, Copy, Holding, Restoring, Target, Task};
use super::{Action, Owner};

/// How long writes of a region may be held. A region of 1 GiB takes some seconds.
pub const HOLD_MAX: Duration = Duration::from_secs(30);

/// What became of the wish to hold a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hold {
    /// Clients are told; see [`Owner::held`].
    Begun,
    /// It moves, its host is out of reach, or nobody would be told now: ask again.
    Busy,
    /// It has no bytes.
    Nothing,
    /// Its bytes are in the checkpoint before this one alone, and have not come back yet.
    Lost,
}

/// How the restoring of a region ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Restored {
    /// It is as in the checkpoint, of that time in milliseconds since 1970.
    As(u64),
    /// The checkpoint does not have it, or not whole: it begins empty.
    Missing,
    /// It could not be brought to its host, or not be read this time: it is tried again.
    Again,
}

/// A region to which nobody writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Held {
    /// Of its entry; as long as the region is held under it, its bytes stay.
    pub generation: u64,
    /// Where it is read.
    pub copy: Copy,
}

impl Owner {
    /// A region that is held is copied into a checkpoint, as it is at this time in milliseconds since 1970.
    pub fn handle_copied(&mut self, region: u32, taken_ms: u64) {
        self.outdated.note_copied(region, taken_ms);
    }

    /// A region is cut off: should it come again it comes empty, whatever checkpoints have of it.
    pub(super) fn forget_saved(&mut self, region: u32) {
        if let Some(taken_ms) = self.saved.remove(&region) {
            self.outdated.note_copied(region, taken_ms);
        }
        let copied = self.outdated.copied.remove(&region);
        if let Some(newest) = copied.max(self.outdated.unread_until) {
            let until = self.outdated.until.entry(region).or_default();
            *until = newest.max(*until);
        }
    }

    /// Begins to hold the writes of a region.
    pub fn handle_hold(&mut self, now: Time, region: usize) -> Hold {
        let Some(held) = self.regions.get(region) else {
            return Hold::Nothing;
        };
        if held.is_cut() {
            return Hold::Nothing;
        }
        if held.copies.is_empty() {
            return match self.is_saved(region) {
                true => Hold::Lost,
                false => Hold::Nothing,
            };
        }
        let is_up = |copy: &Copy| self.hosts[copy.host].is_up();
        let is_at_rest = matches!(held.task, Task::None)
            && held.access == Access::Open
            && !held.copies.iter().any(Copy::is_unlearned)
            && !self.is_renewing(region)
            // Who comes while nothing is carried out goes by what was told before.
            && self.recording.is_none()
            && !self.is_wary;
        // A write of a client that is gone may land late: it is fenced off first.
        let is_up = held.copies.first().is_some_and(is_up);
        if !is_at_rest || self.is_doubtful(region) || !is_up || self.is_to_move(region, now) {
            return Hold::Busy;
        }
        self.regions[region].task = Task::Held(Holding {
            until: now.after(HOLD_MAX),
        });
        self.publish(region, Access::Frozen);
        self.advance(now);
        Hold::Begun
    }

    /// Whether the region's writes are held, or about to be.
    #[must_use]
    pub fn is_holding(&self, region: usize) -> bool {
        let held = self.regions.get(region);
        held.is_some_and(|region| matches!(region.task, Task::Held(_)))
    }

    /// The region, once no client writes to it any more.
    #[must_use]
    pub fn held(&self, now: Time, region: usize) -> Option<Held> {
        if !self.is_holding(region) || self.is_doubtful(region) || !self.is_known(region, now) {
            return None;
        }
        let held = &self.regions[region];
        Some(Held {
            generation: held.generation,
            copy: held.copies.first()?.clone(),
        })
    }

    /// Lets writes of a region go on.
    pub fn handle_release(&mut self, now: Time, region: usize) {
        if self.is_holding(region) {
            self.open(region);
        }
        self.advance(now);
    }

    /// Lets go of a region whose checkpoint takes too long, that is to move, that a write of a
    /// client which is gone may still reach, or that could not be let go of later.
    pub(super) fn tend_hold(&mut self, region: usize, now: Time) {
        let Task::Held(holding) = &self.regions[region].task else {
            return;
        };
        if now >= holding.until {
            tracing::warn!(region, "a checkpoint takes too long: writes go on");
        } else if self.is_wary {
            tracing::info!(region, "a checkpoint waits: writes go on");
        } else if !self.is_doubtful(region) && !self.is_to_move(region, now) {
            return;
        }
        self.open(region);
    }

    /// Whether a copy is wanted back, and has somewhere to go.
    fn is_to_move(&self, region: usize, now: Time) -> bool {
        let leaving = self.regions[region].copies.iter();
        let mut leaving = leaving.filter(|copy| self.is_wanted_back(copy));
        leaving.any(|copy| self.choose(region, Some(copy.host), now).is_some())
    }

    /// A checkpoint may have been made before now, in milliseconds since 1970, of which nothing is known until it
    /// is used.
    pub fn expect_checkpoint(&mut self, now_ms: u64) {
        self.outdated.unread_until = Some(now_ms);
    }

    /// Which regions a checkpoint has, and when each was as it is there, in milliseconds since 1970. A region that
    /// is lost from now on comes back from it. Regions beyond the cache's end are left out, and what was cut off
    /// since.
    pub fn use_checkpoint(&mut self, saved: impl IntoIterator<Item = (u32, u64)>) {
        let count = self.regions.len();
        let is_there = |&(region, taken_ms): &(u32, u64)| {
            (region as usize) < count && !self.outdated.has(region, taken_ms)
        };
        self.saved = saved.into_iter().filter(is_there).collect();
        self.outdated.unread_until = None;
    }

    fn is_saved(&self, region: usize) -> bool {
        let number = u32::try_from(region).expect("at most 2^16 regions");
        self.saved.contains_key(&number)
    }

    /// Has new memory of a region filled from the checkpoint, if that has it. False: it is used as it is.
    pub(super) fn begin_restoring(&mut self, region: usize, target: &Target) -> bool {
        if !self.is_saved(region) {
            return false;
        }
        let number = u32::try_from(region).expect("at most 2^16 regions");
        self.requests += 1;
        let request = self.requests;
        self.actions.push_back(Action::Restore {
            request,
            region: number,
            host: target.copy.host,
            windows: target.copy.windows.clone(),
        });
        self.regions[region].task = Task::Restoring(Restoring {
            target: target.clone(),
            request,
        });
        true
    }

    /// The restoring of a region has ended.
    pub fn handle_restored(&mut self, now: Time, request: u64, restored: Restored) {
        let is_it = |task: &Task| matches!(task, Task::Restoring(r) if r.request == request);
        if let Some(region) = self.regions.iter().position(|region| is_it(&region.task)) {
            if restored == Restored::Missing {
                let number = u32::try_from(region).expect("at most 2^16 regions");
                self.saved.remove(&number);
            }
            match restored {
                Restored::As(taken_ms) => self.end_restoring(region, taken_ms),
                // What was written of it is not to be seen: it gets other memory.
                Restored::Missing => self.end_relocation(region, now),
                Restored::Again => self.end_failed(region, now),
            }
        }
        self.advance(now);
    }

    fn end_restoring(&mut self, region: usize, taken_ms: u64) {
        let restored = &mut self.regions[region];
        let Task::Restoring(restoring) = std::mem::take(&mut restored.task) else {
            unreachable!("it was found so");
        };
        restored.copies = vec![restoring.target.copy];
        restored.fell_back_ms = taken_ms;
        restored.make_sure();
        self.open(region);
    }
}

#[cfg(test)]
mod tests {
    use cenote_pool::control::Window;

    use super::*;
    use crate::owner::{HostIndex, Settings};

    const SLAB_BYTES: u64 = 1 << 20;
    const CLIENT: u64 = 1;

    /// An owner of one region that is open, on the first of two hosts.
    fn owner() -> Owner {
        let settings = Settings {
            cache: 7,
            slab_bytes: SLAB_BYTES,
            slabs_per_region: 1,
            copies: 1,
            give_up_after: Duration::from_secs(10),
        };
        let mut owner = Owner::new(settings, 1, &[0, 1], Time(0));
        owner.handle_host_up(Time(0), 0, 8, &[]);
        assert!(owner.handle_client_joined(Time(0), CLIENT));
        grant(&mut owner, 0, 1);
        assert_eq!(owner.entries()[0].access, Access::Open);
        owner
    }

    /// Grants what is asked of a host.
    fn grant(owner: &mut Owner, host: HostIndex, id: u32) {
        let asked = std::iter::from_fn(|| owner.poll_action()).find_map(|action| match action {
            Action::Map {
                host: asked,
                request,
                ..
            } if asked == host => Some(request),
            _ => None,
        });
        let window = Window {
            id,
            generation: 1,
            len_bytes: SLAB_BYTES,
            rights: 7,
        };
        owner.handle_granted(Time(0), host, asked.expect("it was asked"), window);
    }

    #[test]
    fn a_region_is_held_once_its_clients_know_and_opens_when_it_is_let_go() {
        let mut owner = owner();
        assert_eq!(
            owner.handle_client_alive(Time(1), CLIENT),
            crate::owner::Renewal::Granted
        );
        assert_eq!(owner.handle_hold(Time(1), 0), Hold::Begun);
        assert_eq!(owner.handle_hold(Time(1), 0), Hold::Busy);
        assert_eq!(owner.handle_hold(Time(1), 1), Hold::Nothing);
        assert_eq!(owner.entries()[0].access, Access::Frozen);
        assert_eq!(owner.held(Time(1), 0), None, "a write may be under way");
        let generation = owner.entries()[0].generation;
        owner.handle_known(Time(2), CLIENT, 0, generation);
        let held = owner.held(Time(2), 0).unwrap();
        assert_eq!((held.generation, held.copy.host), (generation, 0));
        owner.handle_release(Time(3), 0);
        assert_eq!(owner.entries()[0].access, Access::Open);
        assert_eq!(owner.held(Time(3), 0), None);
    }

    #[test]
    fn what_was_cut_off_does_not_come_back_under_the_next_owner() {
        let mut owner = owner();
        owner.use_checkpoint([(0, 77)]);
        // Another checkpoint is being made, and ends after the region was cut off.
        owner.handle_copied(0, 80);
        owner.handle_resize(Time(1), 0);
        owner.use_checkpoint([(0, 80)]);
        owner.handle_resize(Time(1), 1);
        assert!(owner.saved.is_empty());
        let names = ["a".to_owned(), "b".to_owned()];
        let record = owner.record(&names);
        let next = |record: crate::owner::Record| {
            let next = Owner::recover(owner.settings, record, &[0, 1], Time(2));
            next.expect("it is sound")
        };
        let mut next = next(record);
        for (taken_ms, is_used) in [(77, false), (80, false), (81, true)] {
            next.use_checkpoint([(0, taken_ms)]);
            assert_eq!(next.saved.contains_key(&0), is_used, "{taken_ms}");
        }
        assert_eq!(next.record(&names).outdated, [(0, 80)].into());
    }

    #[test]
    fn what_was_cut_off_under_an_owner_that_could_not_read_the_checkpoint_does_not_come_back() {
        let mut owner = owner();
        owner.expect_checkpoint(80);
        owner.handle_resize(Time(1), 0);
        owner.handle_resize(Time(1), 1);
        let names = ["a".to_owned(), "b".to_owned()];
        let record = owner.record(&names);
        let mut next = Owner::recover(owner.settings, record, &[0, 1], Time(2)).unwrap();
        next.expect_checkpoint(90);
        next.use_checkpoint([(0, 77)]);
        assert!(next.saved.is_empty());
        next.use_checkpoint([(0, 81)]);
        assert!(next.saved.contains_key(&0));
    }

    #[test]
    fn a_checkpoint_that_does_not_go_on_holds_writes_for_so_long_only() {
        let mut owner = owner();
        assert_eq!(owner.handle_hold(Time(0), 0), Hold::Begun);
        let end = Time(0).after(HOLD_MAX);
        owner.handle_tick(Time(end.0 - 1));
        assert!(owner.held(Time(end.0 - 1), 0).is_some());
        owner.handle_tick(end);
        assert!(owner.held(end, 0).is_none());
        assert_eq!(owner.entries()[0].access, Access::Open);
    }

    #[test]
    fn a_region_whose_host_is_to_go_is_let_go_and_moves_if_there_is_room() {
        let mut owner = owner();
        assert_eq!(owner.handle_hold(Time(0), 0), Hold::Begun);
        owner.handle_notice(Time(0), 0, Some(Time(0).after(HOLD_MAX)));
        assert!(owner.is_holding(0), "a checkpoint is all that can save it");
        owner.handle_host_up(Time(0), 1, 8, &[]);
        assert!(!owner.is_holding(0));
        assert_eq!(owner.stage(0), crate::owner::Stage::Placing);
        assert_eq!(
            owner.handle_hold(Time(0), 0),
            Hold::Busy,
            "until it has moved"
        );
    }

    #[test]
    fn a_host_that_ends_ends_the_hold_and_the_region_is_restored_before_it_opens() {
        let mut owner = owner();
        owner.use_checkpoint([(0, 77), (5, 78)]);
        assert_eq!(owner.handle_hold(Time(0), 0), Hold::Begun);
        owner.handle_host_ended(Time(0), 0);
        assert!(owner.held(Time(0), 0).is_none());
        let clients_gone = Time(0).after(crate::owner::LEASE * 2);
        owner.handle_tick(clients_gone);
        assert_eq!(
            (owner.entries()[0].losses, owner.entries()[0].access),
            (1, Access::Absent)
        );
        owner.handle_host_up(clients_gone, 1, 8, &[]);
        assert_eq!(owner.handle_hold(clients_gone, 0), Hold::Lost);
        grant(&mut owner, 1, 9);
        assert_eq!(owner.handle_hold(clients_gone, 0), Hold::Lost, "restoring");
        let restore = std::iter::from_fn(|| owner.poll_action()).find_map(|action| match action {
            Action::Restore { request, host, .. } => Some((request, host)),
            _ => None,
        });
        let (request, host) = restore.expect("it is to come back");
        assert_eq!((host, owner.entries()[0].access), (1, Access::Absent));
        owner.handle_restored(clients_gone, request + 1, Restored::As(77));
        assert_eq!(owner.entries()[0].access, Access::Absent, "another's end");
        owner.handle_restored(clients_gone, request, Restored::As(77));
        let entry = &owner.entries()[0];
        assert_eq!(
            (entry.access, entry.fell_back_ms, entry.losses),
            (Access::Open, 77, 1)
        );
        assert!(owner.is_settled());
        assert_eq!(owner.handle_hold(clients_gone, 0), Hold::Begun);
    }

    /// The second host gives memory of that number; the request to restore the region there.
    fn restore(owner: &mut Owner, now: Time, id: u32) -> Option<u64> {
        owner.handle_tick(now);
        grant(owner, 1, id);
        std::iter::from_fn(|| owner.poll_action()).find_map(|action| match action {
            Action::Restore { request, .. } => Some(request),
            _ => None,
        })
    }

    #[test]
    fn memory_that_was_restored_in_part_is_given_back_and_the_region_restored_again_or_empty() {
        let mut owner = owner();
        owner.use_checkpoint([(0, 77)]);
        owner.handle_host_ended(Time(0), 0);
        let mut now = Time(0).after(crate::owner::LEASE * 2);
        owner.handle_host_up(now, 1, 8, &[]);
        // A host that could not be reached says nothing of the checkpoint.
        for (id, end) in [(9, Restored::Again), (10, Restored::Missing)] {
            let request = restore(&mut owner, now, id);
            owner.handle_restored(now, request.expect("it is in the checkpoint"), end);
            let is_unmap =
                |action| matches!(action, Action::Unmap { window, .. } if window.id == id);
            let mut actions = std::iter::from_fn(|| owner.poll_action());
            assert!(actions.any(is_unmap), "what was written is not to be seen");
            assert_eq!(owner.entries()[0].access, Access::Absent);
            // What failed is not tried again at once.
            now = now.after(Duration::from_secs(1));
        }
        assert_eq!(restore(&mut owner, now, 11), None, "it is in no checkpoint");
        let entry = &owner.entries()[0];
        assert_eq!((entry.access, entry.fell_back_ms), (Access::Open, 0));
    }
}
