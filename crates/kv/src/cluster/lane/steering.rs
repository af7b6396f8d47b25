//! When a group should have another view, as far as one member knows.
//!
//! Deaths come first: of those who have noticed them the first in the view says so at once, the others
//! only if nothing comes of it. Every other step is known to one member alone ([`Member::propose`]).
//! What is wished for is agreed on outside; until the outcome is known nothing else is.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::super::NodeId;
use super::super::config::NodeState;
use super::super::detector::{Cause, State};
use super::super::node::Wish;
use super::Lane;
use crate::group::member::Member;
use crate::group::process::Process;
use crate::group::progress::{Leave, Place};
use crate::group::view::View;

/// How long who comes later in the view leaves the word to who comes before.
const RANK_NS: u64 = 30_000_000;
/// Processes that are remembered as having been tried.
const TRIED_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Steering {
    /// The number of the view that was wished for, while the outcome is not known.
    wished: Option<u32>,
    /// When the present deaths were noticed.
    noticed: Option<u64>,
    /// Processes that said what cannot be: the next view does without them.
    accused: Vec<Process>,
    /// Processes that are on their way to a place.
    newcomers: Vec<Process>,
    /// Processes that were, and came to none: others are tried before them.
    tried: VecDeque<Process>,
}

impl Steering {
    /// A view stands: whatever was wished for with its number or a smaller one is decided.
    pub(super) fn note_view(&mut self, number: u32) {
        if self.wished.is_some_and(|wished| wished <= number) {
            self.wished = None;
        }
        self.noticed = None;
    }

    /// Remembers who was to have a place and is not in the view any more.
    fn note_newcomers(&mut self, view: &View) {
        let present = view.newcomers();
        for process in std::mem::replace(&mut self.newcomers, present) {
            if !view.has(process) && !self.tried.contains(&process) {
                self.tried.truncate(TRIED_MAX - 1);
                self.tried.push_front(process);
            }
        }
    }

    /// Who is to have a place: the node of the plan if it is there, and rather one that was not tried.
    fn pick(&self, spares: &[Process], home: Option<u32>) -> Option<Process> {
        let rank = |process: &&Process| {
            let tried = self.tried.iter().position(|tried| tried == *process);
            // Of those that were tried the one for whom that is longest ago.
            let since = tried.map_or(TRIED_MAX, |at| at);
            (Reverse(since), Some(process.node) != home)
        };
        spares.iter().min_by_key(rank).copied()
    }

    /// Nothing has come of the wish for a view of this number. False if it is not the last wish: what
    /// became of that nobody knows yet.
    pub(super) fn note_refusal(&mut self, number: u32) -> bool {
        let is_last = self.wished == Some(number);
        if is_last {
            self.wished = None;
        }
        is_last
    }

    /// The view to wish for. `homes` are the nodes of the plan, data first; `may_lose` says that the
    /// dead are gone for sure, so that what only they had is lost.
    #[expect(
        clippy::too_many_arguments,
        reason = "what a decision rests on, all of it here"
    )]
    pub(super) fn next(
        &mut self,
        member: &mut Member,
        view: &View,
        dead: &[Process],
        spares: &[Process],
        homes: &[u32],
        may_lose: bool,
        leave: Leave,
        now: u64,
    ) -> Option<View> {
        if self.wished.is_some() {
            return None;
        }
        let next = if dead.is_empty() {
            self.noticed = None;
            let k = view.partitions.len();
            member.propose(now, leave, |place| {
                let home = match place {
                    Place::Data(index) => homes.get(index),
                    Place::Parity(slot) => homes.get(k + slot),
                };
                self.pick(spares, home.copied())
            })
        } else {
            self.without(member.me(), view, dead, may_lose, now)
        };
        self.wished = next.as_ref().map(|view| view.number);
        next
    }

    fn without(
        &mut self,
        me: Process,
        view: &View,
        dead: &[Process],
        may_lose: bool,
        now: u64,
    ) -> Option<View> {
        let alive: Vec<Process> = view
            .processes()
            .into_iter()
            .filter(|process| !dead.contains(process))
            .collect();
        let rank = alive.iter().position(|process| *process == me)?;
        let noticed = *self.noticed.get_or_insert(now);
        if now.saturating_sub(noticed) < rank as u64 * RANK_NS {
            return None;
        }
        let next = view.without(|process| dead.contains(&process))?;
        // More than the code bears: rather this side is cut off than all the others are dead.
        (next.lost() == view.lost() || may_lose).then_some(next)
    }
}

impl Lane {
    /// Whether a process of a view can be counted on.
    fn is_dead(&self, process: Process) -> bool {
        let node = NodeId(process.node);
        if process == self.me {
            return false;
        }
        let successor = self.registered.get(&node).map(|found| found.incarnation);
        if successor.is_some_and(|incarnation| incarnation > process.incarnation) {
            return true;
        }
        match self.detector.state(node) {
            Some(State::Alive) => self
                .linked
                .get(&node)
                .is_some_and(|linked| *linked != process),
            Some(State::Suspect(Cause::NeverMet)) | None => self.is_gone(process),
            Some(State::Suspect(_)) => true,
        }
    }

    /// Whether a process has ended for sure: its node's lease in etcd has, or another process has its name.
    fn is_gone(&self, process: Process) -> bool {
        let node = NodeId(process.node);
        match self.registered.get(&node) {
            Some(found) => found.incarnation > process.incarnation,
            // One of whom nothing was heard yet is none that has ended: a view may come before that.
            None => self
                .ended
                .get(&node)
                .is_some_and(|ended| *ended >= process.incarnation),
        }
    }

    /// Nodes that may take a place in a group.
    fn spares(&self, view: &View) -> Vec<Process> {
        let inside = view.processes();
        let is_inside = |node: u32| inside.iter().any(|process| process.node == node);
        let mut spares: Vec<Process> = self
            .linked
            .values()
            .copied()
            .filter(|process| {
                let found = self.registered.get(&NodeId(process.node));
                found.is_some_and(|found| found.state == NodeState::Up) && !is_inside(process.node)
            })
            .collect();
        let own = self.shared.state();
        if own == NodeState::Up && !is_inside(self.me.node) {
            spares.push(self.me);
        }
        spares
    }

    pub(super) fn steer(&mut self, now: u64) {
        for at in 0..self.seats.len() {
            let seat = &self.seats[at];
            let Some(view) = seat.member.view().cloned() else {
                continue;
            };
            let dead: Vec<Process> = view
                .processes()
                .into_iter()
                .filter(|process| self.is_dead(*process) || seat.steering.accused.contains(process))
                .collect();
            let spares = self.spares(&view);
            let may_lose = dead.iter().all(|process| self.is_gone(*process));
            let homes = self.shared.homes(seat.group);
            self.seats[at].steering.note_newcomers(&view);
            let leave = self.shared.leave();
            let seat = &mut self.seats[at];
            let accused = seat.member.take_accused();
            for process in accused {
                tracing::error!(%process, group = seat.group, "says what cannot be");
                seat.steering.accused.push(process);
            }
            let inside = view.processes();
            seat.steering
                .accused
                .retain(|process| inside.contains(process));
            if let Some(failure) = seat.member.failure() {
                self.shared.fail(format!("group {}: {failure}", seat.group));
                continue;
            }
            let next = seat.steering.next(
                &mut seat.member,
                &view,
                &dead,
                &spares,
                &homes,
                may_lose,
                leave,
                now,
            );
            if let Some(view) = next {
                let group = seat.group;
                let dead = dead.iter().map(ToString::to_string).collect::<Vec<_>>();
                let dead = dead.join(" ");
                tracing::info!(group, number = view.number, dead, "wish for a view");
                self.shared.wish(Wish { group, view });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::view::{Partition, Scheme};

    fn process(node: u32) -> Process {
        let incarnation = 1;
        Process { node, incarnation }
    }

    fn first() -> View {
        View::first(Scheme::Coded, &[process(0), process(1)], &[process(2)])
    }

    #[test]
    fn a_refusal_that_comes_late_says_nothing_of_the_next_wish() {
        let mut steering = Steering {
            wished: Some(5),
            ..Steering::default()
        };
        steering.note_view(4);
        assert_eq!(steering.wished, Some(5), "an older view decides nothing");
        steering.note_view(5);
        assert_eq!(steering.wished, None);
        // Another wish is on its way when the first one's refusal comes.
        steering.wished = Some(6);
        assert!(!steering.note_refusal(5));
        assert_eq!(steering.wished, Some(6));
        assert!(steering.note_refusal(6));
        assert_eq!(steering.wished, None);
    }

    #[test]
    fn more_than_the_code_bears_is_given_up_only_when_it_is_gone_for_sure() {
        let dead = [process(0), process(1)];
        let without =
            |may_lose| Steering::default().without(process(2), &first(), &dead, may_lose, 0);
        assert_eq!(without(false), None);
        let view = without(true).expect("they are gone");
        assert_ne!(view.lost(), 0);
        let one = Steering::default().without(process(1), &first(), &dead[..1], false, 0);
        assert_eq!(
            one.expect("it is borne").partitions[0],
            Partition::Recovering(0)
        );
    }

    #[test]
    fn a_spare_that_came_to_no_place_is_tried_after_all_others() {
        let mut steering = Steering::default();
        let spares = [process(3), process(4), process(5)];
        assert_eq!(
            steering.pick(&spares, Some(4)),
            Some(process(4)),
            "of the plan"
        );
        assert_eq!(steering.pick(&spares, None), Some(process(3)));
        for hung in [4, 3] {
            let vacant = first()
                .without(|dead| dead == process(2))
                .expect("it was in it");
            let joining = vacant.with_joining(0, process(hung)).expect("it is vacant");
            steering.note_newcomers(&joining);
            let without = joining.without(|dead| dead == process(hung));
            steering.note_newcomers(&without.expect("it was in it"));
        }
        assert_eq!(steering.pick(&spares, Some(4)), Some(process(5)));
        assert_eq!(
            steering.pick(&spares[..2], Some(3)),
            Some(process(4)),
            "longest ago"
        );
    }

    #[test]
    fn who_comes_later_in_the_view_waits_for_who_comes_before() {
        let mut steering = Steering::default();
        let dead = [process(2)];
        let mut at = |now| steering.without(process(1), &first(), &dead, false, now);
        assert_eq!(at(7), None);
        assert_eq!(at(6 + RANK_NS), None);
        assert!(at(7 + RANK_NS).is_some());
    }
}
