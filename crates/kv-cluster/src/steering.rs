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
    /// The number of the view that was proposed, while the outcome is not known.
    proposed: Option<u32>,
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
        if self.proposed.is_some_and(|proposed| proposed <= number) {
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
        let is_last = self.proposed == Some(number);
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
        if self.proposed.is_some() {
            return None;
        }
        if at.decision == Decision::Late {
            // Also while somebody is missing: nothing was asked that may give a partition away.
            member.reopen();
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
        self.proposed = next.as_ref().map(|view| view.number);
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
mod tests {
    use super::super::detector::{Detector, Settings};
    use super::*;
    use cenote_kv::group::debts::Word;
    use cenote_kv::group::view::{Partition, Scheme};

    fn process(node: u32) -> Process {
        let incarnation = 1;
        Process { node, incarnation }
    }

    fn first() -> View {
        View::first(Scheme::Coded, &[process(0), process(1)], &[process(2)])
    }

    fn of(dead: &[Process], in_doubt: usize) -> Missing<'_> {
        Missing {
            dead,
            in_doubt,
            are_replaced: false,
        }
    }

    #[test]
    fn a_refusal_that_comes_late_says_nothing_of_the_next_proposal() {
        let mut steering = Steering {
            proposed: Some(5),
            ..Steering::default()
        };
        steering.note_view(4);
        assert_eq!(steering.proposed, Some(5), "an older view decides nothing");
        steering.note_view(5);
        assert_eq!(steering.proposed, None);
        // Another proposal is on its way when the first one's refusal comes.
        steering.proposed = Some(6);
        assert!(!steering.note_refusal(5));
        assert_eq!(steering.proposed, Some(6));
        assert!(steering.note_refusal(6));
        assert_eq!(steering.proposed, None);
    }

    #[test]
    fn more_than_the_code_bears_is_given_up_only_when_all_of_it_was_replaced() {
        let dead = [process(0), process(1)];
        let without = |are_replaced| {
            let missing = Missing {
                dead: &dead,
                in_doubt: 0,
                are_replaced,
            };
            Steering::default().without(process(2), &first(), missing, 0)
        };
        assert_eq!(without(false), None);
        let view = without(true).expect("they have ended");
        assert_ne!(view.lost(), 0);
        let one = Steering::default().without(process(1), &first(), of(&dead[..1], 0), 0);
        assert_eq!(
            one.expect("it is borne").partitions[0],
            Partition::Recovering(0)
        );
    }

    #[test]
    fn a_spare_that_came_to_no_place_is_tried_after_all_others() {
        let mut steering = Steering::default();
        let spares = [process(3), process(4), process(5)];
        let equal = |_| 0;
        assert_eq!(
            steering.pick(&spares, Some(4), 0, equal),
            Some(process(4)),
            "of the plan"
        );
        assert_eq!(steering.pick(&spares, None, 0, equal), Some(process(3)));
        for hung in [4, 3] {
            let vacant = first()
                .without(|dead| dead == process(2))
                .expect("it was in it");
            let joining = vacant.with_joining(0, process(hung)).expect("it is vacant");
            steering.note_newcomers(&joining, 0);
            let without = joining.without(|dead| dead == process(hung));
            steering.note_newcomers(&without.expect("it was in it"), 0);
        }
        assert_eq!(steering.pick(&spares, Some(4), 0, equal), Some(process(5)));
        let soon = TRIED_PAUSE_NS - 1;
        assert_eq!(steering.pick(&spares[..2], Some(3), soon, equal), None);
        let later = TRIED_PAUSE_NS;
        assert_eq!(
            steering.pick(&spares[..2], Some(3), later, equal),
            Some(process(4)),
            "longest ago"
        );
        // It comes to nothing once more: it is left alone for twice as long.
        let joining = first()
            .without(|dead| dead == process(2))
            .expect("it was in it");
        let joining = joining.with_joining(0, process(4)).expect("it is vacant");
        steering.note_newcomers(&joining, later);
        let without = joining.without(|dead| dead == process(4));
        steering.note_newcomers(&without.expect("it was in it"), later);
        let at = |now| steering.pick(&spares[1..2], None, now, equal);
        assert_eq!(at(3 * TRIED_PAUSE_NS - 1), None);
        assert_eq!(at(3 * TRIED_PAUSE_NS), Some(process(4)));
    }

    #[test]
    fn places_that_one_node_had_go_to_those_that_have_the_fewest() {
        let membership = Membership::new(process(0), Detector::new(Settings::default()));
        let spares = [process(0), process(6), process(7)];
        let picked = |group, places: &dyn Fn(Process) -> usize| {
            let at = Situation {
                group,
                nodes: 10,
                places,
                membership: &membership,
                homes: &[],
                is_spare: true,
                leave: Leave::No,
                decision: Decision::Soon,
                now: 0,
                instant: Instant::now(),
            };
            let load = |process| at.load(process);
            let picked = Steering::default().pick(&spares, Some(5), 0, load);
            picked.expect("some are there").node
        };
        // Each group has another one next to it.
        assert_eq!([1, 7, 8].map(|group| picked(group, &|_| 5)), [6, 7, 0]);
        assert_eq!(picked(13, &|_| 5), 6, "more groups than nodes");
        let but_for_the_last = |process: Process| 5 - usize::from(process.node == 7);
        assert_eq!(
            [1, 7, 8].map(|group| picked(group, &but_for_the_last)),
            [7; 3]
        );
    }

    #[test]
    fn who_may_be_cut_off_takes_nobody_out_before_that_is_known() {
        let five = [0, 1, 2, 3, 4].map(process);
        let view = View::first(Scheme::Coded, &five[..3], &five[3..]);
        let without = |dead, in_doubt| {
            let mut steering = Steering::default();
            steering.without(five[0], &view, of(dead, in_doubt), 0)
        };
        assert_eq!(without(&five[1..2], 3), None, "it hears nobody");
        assert_eq!(without(&five[1..2], 2), None, "it hears one of four");
        assert!(without(&five[1..2], 1).is_some(), "these are more");
        assert!(without(&five[1..3], 0).is_some());
        // Where two of three may die, the last one goes on once it knows.
        let view = View::first(Scheme::Replicated, &five[..1], &five[1..3]);
        let without = |dead, in_doubt| {
            let mut steering = Steering::default();
            steering.without(five[0], &view, of(dead, in_doubt), 0)
        };
        assert_eq!(without(&five[1..2], 1), None);
        assert!(without(&five[1..3], 0).is_some());
    }

    #[test]
    fn who_owes_the_same_for_too_long_is_missed_until_it_comes() {
        let mut steering = Steering::default();
        let ack = |xid| Awaited {
            process: process(2),
            partition: 0,
            what: Word::Ack(xid),
        };
        let mut hung = |view, xid, stood_still, now| {
            steering.note_owed(view, vec![ack(xid)], stood_still, now);
            steering.hung.clone()
        };
        assert_eq!(hung(1, 7, 0, 0), []);
        assert_eq!(hung(1, 7, 0, OWED_MAX_NS - 1), []);
        assert_eq!(hung(1, 7, 0, OWED_MAX_NS), [process(2)]);
        assert_eq!(hung(1, 8, 0, OWED_MAX_NS), [], "it goes on");
        assert_eq!(hung(2, 8, 0, 2 * OWED_MAX_NS), [], "of another view");
        // This side was not there to hear it.
        assert_eq!(hung(2, 8, OWED_MAX_NS, 3 * OWED_MAX_NS), []);
        assert_eq!(hung(2, 8, 0, 4 * OWED_MAX_NS), [process(2)]);
        steering.note_owed(2, Vec::new(), 0, 4 * OWED_MAX_NS);
        assert_eq!(steering.hung, []);
    }

    #[test]
    fn who_comes_later_in_the_view_waits_for_who_comes_before() {
        let mut steering = Steering::default();
        let dead = [process(2)];
        let mut at = |now| steering.without(process(1), &first(), of(&dead, 0), now);
        assert_eq!(at(7), None);
        assert_eq!(at(6 + RANK_NS), None);
        assert!(at(7 + RANK_NS).is_some());
    }
}
