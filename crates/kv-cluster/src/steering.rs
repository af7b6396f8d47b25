//! When a group should have another view, as far as one member knows.
//!
//! Deaths come first: of those who have noticed them the first in the view says so at once, the others
//! only if nothing comes of it. Every other step is known to one member alone ([`Member::propose`]).
//! What is proposed is agreed on outside; until the outcome is known nothing else is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use cenote_kv::group::debts::Awaited;
use cenote_kv::group::member::Member;
use cenote_kv::group::process::Process;
use cenote_kv::group::progress::{Decision, GroupSlot, Leave};
use cenote_kv::group::view::View;

use super::NodeId;
use super::balance::HandOver;
use super::membership::Membership;

/// How long who comes later in the view leaves the word to who comes before.
const RANK_NS: u64 = 30_000_000;
/// Processes that are remembered as having been tried.
const TRIED_MAX: usize = 64;
/// How long one that came to nothing is not tried again, at first: somebody in the view may not reach it,
/// and each try is two views. Twice as long each time. Arbitrary.
const TRIED_PAUSE_NS: u64 = 1_000_000_000;
/// How often that is doubled.
const DOUBLINGS_MAX: u32 = 5;
/// How long a process that lives may owe the same word. Much longer than it takes to miss a dead one;
/// arbitrary beyond that.
const OWED_MAX_NS: u64 = 3_000_000_000;
/// Between two looks at what is owed. After twice that this lane stood still: others owe nothing for it.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// See the [module](self).
#[derive(Default)]
pub struct Steering {
    /// The view that was proposed, while the outcome is not known.
    proposed: Option<Proposed>,
    /// When the present deaths were noticed.
    noticed: Option<u64>,
    /// Processes that said what cannot be: the next view does without them.
    accused: Vec<Process>,
    /// What others owe in the view of this number, and since when.
    owed: (u32, BTreeMap<Awaited, u64>),
    looked_at: u64,
    /// Processes that have owed the same for too long, though they may live.
    hung: Vec<Process>,
    /// Processes that are on their way to a place.
    newcomers: Vec<Process>,
    /// Processes that were, and came to none, the last one first: others are tried before them.
    tried: VecDeque<Tried>,
    /// A partition that is to go to another process, if nothing else is to be done.
    hand_over: Option<HandOver>,
}

/// A view that was proposed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Proposed {
    number: u32,
    /// Who proposed it owns in it all that it owns in the present one.
    keeps_all: bool,
}

impl Proposed {
    fn new(next: &View, view: &View, me: Process) -> Self {
        let partitions = 0..view.partitions.len();
        let mut owned = partitions.filter(|index| view.owner(*index) == Some(me));
        Self {
            number: next.number,
            keeps_all: owned.all(|index| next.owner(index) == Some(me)),
        }
    }
}

struct Tried {
    process: Process,
    /// When it came to nothing.
    at: u64,
    /// How often before.
    times: u32,
}

impl Tried {
    /// Whether it may be tried again.
    fn is_over(&self, now: u64) -> bool {
        let pause = TRIED_PAUSE_NS << self.times.min(DOUBLINGS_MAX);
        now.saturating_sub(self.at) >= pause
    }
}

/// Processes of a view that are not as they should be.
#[derive(Clone, Copy)]
struct Missing<'a> {
    dead: &'a [Process],
    /// So many more may be about to be missed.
    in_doubt: usize,
    /// All of them have ended for sure: what only they had is lost.
    are_replaced: bool,
}

impl Steering {
    /// A view stands: whatever was proposed with its number or a smaller one is decided.
    pub fn note_view(&mut self, number: u32) {
        if self
            .proposed
            .is_some_and(|proposed| proposed.number <= number)
        {
            self.proposed = None;
        }
        self.noticed = None;
        // Of an older view: whoever is in the new one owes nothing yet.
        self.hung.clear();
    }

    /// A partition is to go to another process. It is tried once: where that cannot be now it is asked for again.
    pub fn hand_over(&mut self, next: HandOver) {
        self.hand_over = Some(next);
    }

    /// The view with which that begins, where all of the group and who is to have it are there.
    fn spread(
        &mut self,
        member: &Member,
        view: &View,
        missing: Missing<'_>,
        at: &Situation<'_>,
    ) -> Option<View> {
        let HandOver {
            view: number,
            partition,
            to,
            ..
        } = self.hand_over.take()?;
        let is_linked = |process: Process| {
            process == member.me() || at.membership.linked(NodeId(process.node)) == Some(process)
        };
        let mut inside = view.processes().into_iter();
        if number != view.number || missing.in_doubt > 0 || !is_linked(to) || !inside.all(is_linked)
        {
            return None;
        }
        member.hand_over(at.now, partition, to)
    }

    /// Remembers who was to have a place and is not in the view any more.
    fn note_newcomers(&mut self, view: &View, now: u64) {
        let present = view.newcomers();
        for process in std::mem::replace(&mut self.newcomers, present) {
            let is_newcomer = self.newcomers.contains(&process);
            let before = self.tried.iter().position(|tried| tried.process == process);
            let before = before.filter(|_| !is_newcomer);
            let before = before.and_then(|index| self.tried.remove(index));
            if !view.has(process) {
                self.tried.truncate(TRIED_MAX - 1);
                self.tried.push_front(Tried {
                    process,
                    at: now,
                    times: before.map_or(0, |tried| tried.times + 1),
                });
            }
        }
    }

    /// Looks now and then at what others owe a member in its view.
    fn look(&mut self, member: &Member, view: &View, now: u64) {
        let gap = now.saturating_sub(self.looked_at);
        if gap >= LOOK_EVERY_NS {
            self.looked_at = now;
            let stood_still = gap.saturating_sub(2 * LOOK_EVERY_NS);
            self.note_owed(view.number, member.awaited(), stood_still, now);
        }
    }

    fn note_owed(&mut self, view: u32, owed: Vec<Awaited>, stood_still: u64, now: u64) {
        let (number, mut before) = std::mem::take(&mut self.owed);
        if number != view {
            before.clear();
        }
        let since = |word: Awaited| {
            let before = before.get(&word);
            let since = before.map_or(now, |since| now.min(since + stood_still));
            (word, since)
        };
        let present: BTreeMap<Awaited, u64> = owed.into_iter().map(since).collect();
        let known = std::mem::take(&mut self.hung);
        for (word, since) in &present {
            let process = word.process;
            if now - since >= OWED_MAX_NS && !self.hung.contains(&process) {
                self.hung.push(process);
                if !known.contains(&process) {
                    tracing::warn!(%process, ?word, "owes it for too long");
                }
            }
        }
        self.owed = (view, present);
    }

    /// Who is to have a place: rather one that was not tried, the node of the plan if it is there, and the one of the
    /// least load.
    fn pick<L: Ord>(
        &self,
        spares: &[Process],
        home: Option<u32>,
        now: u64,
        load: impl Fn(Process) -> L,
    ) -> Option<Process> {
        let tried = |process: &Process| {
            let mut all = self.tried.iter().enumerate();
            all.find(|(_, tried)| tried.process == *process)
        };
        let may_be =
            |process: &&Process| tried(process).is_none_or(|(_, tried)| tried.is_over(now));
        let rank = |process: &&Process| {
            // Of those that were tried the one for whom that is longest ago.
            let since = tried(process).map_or(TRIED_MAX, |(at, _)| at);
            let is_home = Some(process.node) == home;
            (Reverse(since), Reverse(is_home), load(**process))
        };
        spares.iter().filter(may_be).min_by_key(rank).copied()
    }

    /// Nothing has come of the proposal of a view of this number. False if it is not the last proposal: what
    /// became of that nobody knows yet.
    pub fn note_refusal(&mut self, number: u32) -> bool {
        let is_last = self
            .proposed
            .is_some_and(|proposed| proposed.number == number);
        if is_last {
            self.proposed = None;
        }
        is_last
    }

    /// The view to propose.
    fn next(
        &mut self,
        member: &mut Member,
        view: &View,
        missing: Missing<'_>,
        spares: &[Process],
        at: &Situation<'_>,
    ) -> Option<View> {
        let gives_away = self.proposed.is_some_and(|proposed| !proposed.keeps_all);
        if at.decision == Decision::Late && !gives_away {
            // Also while somebody is missing, and while it is not known whether they are taken out.
            member.reopen();
        }
        if self.proposed.is_some() {
            return None;
        }
        let next = if missing.dead.is_empty() {
            self.noticed = None;
            let k = view.partitions.len();
            let next = member.propose(at.now, at.leave, at.decision, |place| {
                let home = match place {
                    GroupSlot::Data(index) => at.homes.get(index),
                    GroupSlot::Parity(slot) => at.homes.get(k + slot),
                };
                let load = |process| at.load(process);
                self.pick(spares, home.copied(), at.now, load)
            });
            match next {
                None if at.leave == Leave::No => self.spread(member, view, missing, at),
                next => next,
            }
        } else {
            self.without(member.me(), view, missing, at.now)
        };
        self.proposed = next
            .as_ref()
            .map(|next| Proposed::new(next, view, member.me()));
        next
    }

    fn without(
        &mut self,
        me: Process,
        view: &View,
        missing: Missing<'_>,
        now: u64,
    ) -> Option<View> {
        let dead = missing.dead;
        let alive: Vec<Process> = view
            .processes()
            .into_iter()
            .filter(|process| !dead.contains(process))
            .collect();
        // Rather this side is cut off and does not know it yet: it must not take out those who are right.
        let heard = alive.len() - missing.in_doubt.min(alive.len());
        if missing.in_doubt > 0 && heard <= dead.len() + missing.in_doubt {
            return None;
        }
        let rank = alive.iter().position(|process| *process == me)?;
        let noticed = *self.noticed.get_or_insert(now);
        if now.saturating_sub(noticed) < rank as u64 * RANK_NS {
            return None;
        }
        let next = view.without(|process| dead.contains(&process))?;
        // More than the code bears: rather this side is cut off than all the others are dead, and what they have
        // is there again when they are.
        (next.lost() == view.lost() || missing.are_replaced).then_some(next)
    }
}

/// What a decision rests on beside the member and its view.
pub struct Situation<'a> {
    /// Number of the group.
    pub group: usize,
    /// Nodes of the plan, whether they are there or not.
    pub nodes: usize,
    /// How many places a process has in all groups, as far as this node knows.
    pub places: &'a dyn Fn(Process) -> usize,
    /// Who is there.
    pub membership: &'a Membership,
    /// Nodes of the plan, by slot of the group, data first.
    pub homes: &'a [u32],
    /// This process may take a place, too.
    pub is_spare: bool,
    /// Whether it gives its places up.
    pub leave: Leave,
    /// When what it proposes is decided.
    pub decision: Decision,
    /// Nanoseconds of the clock that leases use.
    pub now: u64,
    /// The same moment, by the detector's clock.
    pub instant: Instant,
}

impl Situation<'_> {
    /// What speaks against one more place for a process: those that it has, and how far it is from the group in a
    /// ring of all nodes. So groups that lack the same node at the same time take different ones.
    fn load(&self, process: Process) -> (usize, usize) {
        let (nodes, node) = (self.nodes.max(1), process.node as usize);
        let distance = (node + nodes - self.group % nodes) % nodes;
        ((self.places)(process), distance)
    }
}

impl Steering {
    /// The view that a member proposes now, if any. It is not asked again before the outcome was noted.
    pub fn decide(&mut self, member: &mut Member, at: &Situation<'_>) -> Option<View> {
        let view = member.view()?.clone();
        let inside = view.processes();
        self.note_newcomers(&view, at.now);
        self.look(member, &view, at.now);
        for process in member.take_accused() {
            tracing::error!(%process, "says what cannot be");
            self.accused.push(process);
        }
        self.accused.retain(|process| inside.contains(process));
        if member.failure().is_some() {
            return None;
        }
        let is_missing = |process: &Process| {
            let is_named = self.accused.contains(process) || self.hung.contains(process);
            is_named || at.membership.is_dead(*process)
        };
        let dead: Vec<Process> = inside.iter().copied().filter(is_missing).collect();
        let is_in_doubt = |process: &&Process| {
            !dead.contains(process) && at.membership.is_in_doubt(**process, at.instant)
        };
        let missing = Missing {
            in_doubt: inside.iter().filter(is_in_doubt).count(),
            are_replaced: dead
                .iter()
                .all(|process| at.membership.is_replaced(*process)),
            dead: &dead,
        };
        let mut spares = at.membership.spares(&view);
        let me = member.me();
        if at.is_spare && !inside.iter().any(|process| process.node == me.node) {
            spares.push(me);
        }
        let next = self.next(member, &view, missing, &spares, at);
        if let Some(next) = &next {
            let dead: Vec<String> = dead.iter().map(ToString::to_string).collect();
            let dead = dead.join(" ");
            tracing::info!(number = next.number, dead, "propose a view");
        }
        next
    }
}

#[cfg(test)]
mod tests;
