//! Giving slabs back because the machine needs its memory: what was prepared first, then what
//! nobody is there for any more, then what its clients use least.
//!
//! ```text
//! drawn (E+E') -> CHECK_ACTIVITY -> ACTIVITY, or none in time -> the E least active: EVICT
//!      -> DONE (Unmap) -> retired -> free
//! ```
//!
//! How many slabs there may be is [`Room`]'s to say; here is what brings their number down to it.
//! A slab that is asked back counts as gone for as long as its client shows that it works on it, so
//! a tick never asks for more than is missing (Z9). Asking is repeated by whoever calls
//! [`Ledger::wanted_back`].
//!
//! Invariants: no memory goes before DONE (I4), but an orphan's, and below the floor one slab at a
//! time; one round of questions at a time; when there is room again nothing stays asked for.
//! Paper: \[infiniswap17\] section 5.2. Decision 18.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::control::{Refusal, Reply, SlabActivity, Window};
use crate::eviction;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::pressure::Room;

use super::{Action, Grant, Ledger, Slab, SlabIndex};

/// Longest that a choice waits for clients to say how active their slabs are. A live one answers
/// within milliseconds.
pub const ACTIVITY_WAIT: Duration = Duration::from_secs(1);
/// Most slabs asked for in one round, so that the questions fit one message per client even when
/// all are one client's.
const BATCH_MAX: u32 = 64;
/// Below the floor a slab is taken when its client was asked this long ago, has given nothing back
/// since, and is silent or has declined; of any other one, after [`PATIENCE`]. Arbitrary: three
/// askings.
pub const UNANSWERED: Duration = Duration::from_secs(3);
/// Another slab is asked for in the place of one whose client has given nothing back for this
/// long. Arbitrary; the lease of a client that is gone ends at the same time.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A slab that is asked back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Asked {
    /// When it was asked for, or its client last gave one back.
    pub(super) since: Duration,
    /// Whether its client has given one back since.
    is_answered: bool,
    /// As its client said when it was chosen.
    activity: Option<u32>,
}

/// Slabs that this host asked its clients for, since it began to serve.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EvictionCounts {
    /// Asked for.
    pub asked: u64,
    /// Of those, given back by their client.
    pub done: u64,
    /// Taken from a client that did not answer.
    pub taken: u64,
}

/// What a host asks back, for whoever checks that it is no more than has to go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Demand {
    /// Slabs that clients were asked for so far.
    pub asked: u64,
    /// Of those, the ones that are on their way back.
    pub going: u32,
    /// Slabs that clients hold or wait for, those on their way included.
    pub claimed: u32,
    /// How many of these there is room for.
    pub slabs_max: u32,
}

/// What the ledger knows of its evictions.
#[derive(Debug, Default)]
pub(super) struct Evicting {
    round: Option<Round>,
    rounds: u64,
    counts: EvictionCounts,
    /// The slab that was taken last.
    taken: Option<SlabIndex>,
}

/// One batch of slabs that are looked at.
#[derive(Debug)]
struct Round {
    request: u64,
    asked_at: Duration,
    /// Slabs that are to go, E.
    count: u32,
    looked_at: Vec<LookedAt>,
}

#[derive(Debug)]
struct LookedAt {
    slab: SlabIndex,
    birth: u64,
    client: u128,
    is_answered: bool,
    activity: Option<u32>,
}

impl Ledger {
    /// What the machine has room for now. Call it after [`Ledger::handle_tick`]. `extra` slabs
    /// more are looked at than go; `seed` draws them.
    pub fn handle_room(&mut self, now: Duration, room: Room, extra: usize, seed: u64) {
        self.room = room;
        // A host that drains asks for everything anyway.
        if self.draining.is_none() {
            self.refuse_beyond_room();
            self.retire_surplus();
        }
        self.take_orphans_beyond_room(now);
        self.take_below_floor(now);
        if self.draining.is_none() {
            self.tend_evictions(now, extra, seed);
        }
        self.prepare_ahead(now);
    }

    /// A client says how active slabs are that it was asked about.
    pub fn handle_activity(
        &mut self,
        now: Duration,
        client: u128,
        request: u64,
        slabs: &[SlabActivity],
    ) {
        let Some(mut round) = self.evicting.round.take() else {
            return;
        };
        if round.request == request {
            for looked_at in round.looked_at.iter_mut().filter(|l| l.client == client) {
                let grant = grant_of(&self.slabs, looked_at.slab, looked_at.birth);
                let said = slabs
                    .iter()
                    .find(|said| grant.is_some_and(|grant| grant.window == said.window));
                looked_at.is_answered = true;
                // A slab that its client does not use is left out: nothing is less active.
                looked_at.activity = Some(said.map_or(0, |said| said.milli));
            }
        }
        let is_answered = round.is_answered();
        self.evicting.round = Some(round);
        if is_answered && self.draining.is_none() {
            self.end_round(now);
        }
    }

    /// Slabs that are asked back for want of memory now.
    #[must_use]
    pub fn asked_back(&self) -> u32 {
        let asked = self.grants().filter(|(_, grant)| grant.asked.is_some());
        u32::try_from(asked.count()).expect("bounded by the slabs")
    }

    /// What came of asking so far.
    #[must_use]
    pub fn evictions(&self) -> EvictionCounts {
        self.evicting.counts
    }

    /// What the machine has room for, as last told.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Nobody could answer a host that was stopped, so that time does not count.
    pub(super) fn forgive_sleep(&mut self, now: Duration, slept: Duration) {
        let later = |time: Duration| now.min(time + slept);
        if let Some(round) = &mut self.evicting.round {
            round.asked_at = later(round.asked_at);
        }
        self.draining = self.draining.map(later);
        for slab in &mut self.slabs {
            if let Slab::Mapped(grant) = slab {
                grant.asked_again = grant.asked_again.map(later);
                if let Some(asked) = &mut grant.asked {
                    asked.since = later(asked.since);
                }
            }
        }
    }

    /// A client gives a slab back. If it was asked for, the client answers.
    pub(super) fn note_given_back(&mut self, now: Duration, slab: SlabIndex) {
        let Slab::Mapped(Grant { client, asked, .. }) = self.slabs[slab as usize] else {
            return;
        };
        self.leases.note_given_back(now, client);
        if asked.is_none() {
            return;
        }
        self.evicting.counts.done += 1;
        for slab in &mut self.slabs {
            if let Slab::Mapped(grant) = slab
                && grant.client == client
                && let Some(asked) = &mut grant.asked
            {
                asked.since = now;
                asked.is_answered = true;
            }
        }
    }

    /// Memory that nobody was given goes back where there is no room for it.
    pub(super) fn retire_surplus(&mut self) {
        let counts = self.counts();
        let surplus = if self.draining.is_some() {
            counts.prepared
        } else {
            (self.claimed(&counts) + counts.prepared).saturating_sub(self.room.slabs_max)
        };
        let prepared = (0..).zip(&mut self.slabs).filter_map(|(index, slab)| {
            let Slab::Prepared { window } = *slab else {
                return None;
            };
            Some((index, slab, window))
        });
        for (index, slab, window) in prepared.take(surplus as usize) {
            *slab = Slab::Retired {
                window,
                former: None,
            };
            let action = Action::Retire {
                slab: index,
                window,
            };
            self.actions.push_back(action);
        }
    }

    /// Slabs that clients hold or wait for, and there is no room for.
    fn excess(&self) -> u32 {
        let claimed = self.claimed(&self.counts());
        claimed.saturating_sub(self.room.slabs_max)
    }

    fn refuse_beyond_room(&mut self) {
        let excess = self.excess() as usize;
        for _ in 0..excess.min(self.waiting.len()) {
            let refused = self.waiting.pop_back().expect("not empty");
            let reply = Reply::Refused {
                request: refused.request,
                reason: Refusal::NoMemory,
            };
            self.send(refused.client, reply);
        }
        self.forget_idle_owners();
    }

    fn take_orphans_beyond_room(&mut self, now: Duration) {
        let mut orphans: Vec<_> = self.orphans().collect();
        orphans.sort_unstable();
        // Those that their clients are saving cost nothing.
        let missing = self.excess().saturating_sub(self.going(now));
        for (_, _, slab) in orphans.into_iter().take(missing as usize) {
            self.take_orphan(slab);
        }
    }

    /// Asks for what is missing, and no longer for what is not.
    fn tend_evictions(&mut self, now: Duration, extra: usize, seed: u64) {
        let excess = self.excess();
        let missing = excess.saturating_sub(self.counted(now));
        if missing == 0 {
            self.evicting.round = None;
            self.ask_no_longer(now, excess);
            return;
        }
        match &self.evicting.round {
            None => self.begin_round(now, missing.min(BATCH_MAX), extra, seed),
            Some(round) if now.saturating_sub(round.asked_at) >= ACTIVITY_WAIT => {
                self.end_round(now);
            }
            Some(_) => {}
        }
    }

    /// Slabs on their way back, of which no more are asked for in their stead (Z9).
    fn counted(&self, now: Duration) -> u32 {
        if is_injected(InjectedFault::AskTwice) {
            return 0;
        }
        self.going(now)
    }

    /// What is asked back, and what there is room for.
    #[must_use]
    pub fn demand(&self, now: Duration) -> Demand {
        Demand {
            asked: self.evicting.counts.asked,
            going: self.going(now),
            claimed: self.claimed(&self.counts()),
            slabs_max: self.room.slabs_max,
        }
    }

    /// Slabs that are on their way back as far as anybody can tell.
    fn going(&self, now: Duration) -> u32 {
        let going = self.grants().filter(|(_, grant)| is_going(grant, now));
        u32::try_from(going.count()).expect("bounded by the slabs")
    }

    /// Keeps `count` of the slabs that are on their way: first those whose clients have begun to
    /// give back, then those asked for first. When none is missing, those that are not on their way
    /// are let off as well.
    fn ask_no_longer(&mut self, now: Duration, count: u32) {
        let mut going: Vec<_> = self
            .grants()
            .filter(|(_, grant)| is_going(grant, now))
            .filter_map(|(slab, grant)| {
                let asked = grant.asked?;
                Some((!asked.is_answered, asked.since, slab))
            })
            .collect();
        going.sort_unstable();
        let kept: Vec<_> = going.into_iter().take(count as usize).collect();
        for (index, slab) in (0..).zip(&mut self.slabs) {
            let Slab::Mapped(grant) = slab else { continue };
            let is_kept = kept.iter().any(|&(.., kept)| kept == index);
            if grant.asked.is_some() && !is_kept && (count == 0 || is_going(grant, now)) {
                grant.asked = None;
                grant.declined = false;
            }
        }
    }

    /// Asks the clients of a few slabs more than must go how active each is.
    fn begin_round(&mut self, now: Duration, count: u32, extra: usize, seed: u64) {
        let can_go: Vec<(SlabIndex, Grant)> = self
            .grants()
            .filter(|(_, grant)| {
                let is_there = self.leases.is_connected(grant.client);
                is_there && grant.asked.is_none() && !grant.is_left
            })
            .map(|(slab, grant)| (slab, *grant))
            .collect();
        let drawn = eviction::draw(&can_go, count as usize, extra, seed);
        if drawn.is_empty() {
            return;
        }
        self.evicting.rounds += 1;
        let request = self.evicting.rounds;
        let windows = drawn.iter().map(|(_, grant)| (grant.client, grant.window));
        for (client, windows) in by_client(windows) {
            self.send(client, Reply::CheckActivity { request, windows });
        }
        let looked_at = drawn.into_iter().map(|(slab, grant)| LookedAt {
            slab,
            birth: grant.birth,
            client: grant.client,
            is_answered: false,
            activity: None,
        });
        self.evicting.round = Some(Round {
            request,
            asked_at: now,
            count,
            looked_at: looked_at.collect(),
        });
    }

    /// Asks for the least active of the slabs that were looked at.
    fn end_round(&mut self, now: Duration) {
        let Some(round) = self.evicting.round.take() else {
            return;
        };
        let missing = self.excess().saturating_sub(self.counted(now));
        let asked: Vec<_> = round
            .looked_at
            .iter()
            .filter(|looked_at| {
                let grant = grant_of(&self.slabs, looked_at.slab, looked_at.birth);
                grant.is_some_and(|grant| grant.asked.is_none())
            })
            .map(|looked_at| ((looked_at.slab, looked_at.activity), looked_at.activity))
            .collect();
        let chosen = eviction::least_active(&asked, missing.min(round.count) as usize);
        let mut windows = Vec::new();
        for (slab, activity) in chosen {
            let Slab::Mapped(grant) = &mut self.slabs[slab as usize] else {
                unreachable!("its grant was found above");
            };
            grant.asked = Some(Asked {
                since: now,
                is_answered: false,
                activity,
            });
            grant.declined = false;
            windows.push((grant.client, grant.window));
            self.evicting.counts.asked += 1;
        }
        if is_injected(InjectedFault::FreeBeforeDone) {
            for (client, window) in &windows {
                let slab = self.find(*client, *window).expect("it is asked back");
                self.retire(slab, false);
            }
        }
        for (client, windows) in by_client(windows) {
            self.send(client, Reply::Evict { windows });
        }
    }

    /// The machine is about to be out of memory, which would cost all that is lent: one slab goes
    /// whose client does not answer. The next one when its memory is back, if that was not enough.
    fn take_below_floor(&mut self, now: Duration) {
        let counts = self.counts();
        let with_memory = counts.mapped + counts.orphaned + counts.preparing + counts.prepared;
        let is_on_its_way =
            |slab: SlabIndex| matches!(self.slabs[slab as usize], Slab::Retired { .. });
        if with_memory <= self.room.slabs_floor || self.evicting.taken.is_some_and(is_on_its_way) {
            return;
        }
        let asked_by_drain = |client| {
            let begun = self.draining?;
            let gave_back = self.leases.gave_back(client);
            Some(Asked {
                since: gave_back.map_or(begun, |time| time.max(begun)),
                is_answered: false,
                activity: None,
            })
        };
        let unanswered = self.grants().filter_map(|(slab, grant)| {
            let asked = grant.asked.or_else(|| asked_by_drain(grant.client))?;
            // One that is there may be copying, and slabs are large.
            let is_there = self.leases.is_heard_of(now, grant.client, UNANSWERED);
            let may_copy = is_there && !grant.declined;
            let time = if may_copy { PATIENCE } else { UNANSWERED };
            let is_late = now.saturating_sub(asked.since) >= time;
            let activity = asked.activity.map_or(u64::MAX, u64::from);
            is_late.then_some((grant.declined, activity, grant.sequence, slab))
        });
        self.evicting.taken = unanswered.min().map(|(.., slab)| slab);
        if let Some(slab) = self.evicting.taken {
            self.evicting.counts.taken += 1;
            // Who is there hears of it: nobody may touch the slab for long, and it would be missed only
            // when it is needed.
            self.retire(slab, true);
        }
    }
}

impl Round {
    fn is_answered(&self) -> bool {
        self.looked_at.iter().all(|looked_at| looked_at.is_answered)
    }
}

/// Whether its client can be expected to give the slab back.
fn is_going(grant: &Grant, now: Duration) -> bool {
    grant
        .asked
        .is_some_and(|asked| !grant.declined && now.saturating_sub(asked.since) < PATIENCE)
}

/// The grant of a slab if it is still the one of that birth.
fn grant_of(slabs: &[Slab], slab: SlabIndex, birth: u64) -> Option<&Grant> {
    match &slabs[slab as usize] {
        Slab::Mapped(grant) if grant.birth == birth => Some(grant),
        _ => None,
    }
}

fn by_client(windows: impl IntoIterator<Item = (u128, Window)>) -> BTreeMap<u128, Vec<Window>> {
    let mut by_client = BTreeMap::<_, Vec<_>>::new();
    for (client, window) in windows {
        by_client.entry(client).or_default().push(window);
    }
    by_client
}
