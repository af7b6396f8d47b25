use super::super::detector::{Detector, Settings};
use super::*;
use cenote_kv::group::Bound;
use cenote_kv::group::debts::Word;
use cenote_kv::group::member::{Service, Shape};
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv::group::view::{Partition, Scheme};
use cenote_kv::memory::key_hash::KeyHasher;

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
    let proposed = |number| {
        let keeps_all = true;
        Some(Proposed { number, keeps_all })
    };
    let mut steering = Steering {
        proposed: proposed(5),
        ..Steering::default()
    };
    steering.note_view(4);
    assert_eq!(
        steering.proposed,
        proposed(5),
        "an older view decides nothing"
    );
    steering.note_view(5);
    assert_eq!(steering.proposed, None);
    // Another proposal is on its way when the first one's refusal comes.
    steering.proposed = proposed(6);
    assert!(!steering.note_refusal(5));
    assert_eq!(steering.proposed, proposed(6));
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

/// The first of three, which is to give its places up though nobody is there for them.
struct Leaving {
    steering: Steering,
    member: Member,
    membership: Membership,
}

impl Leaving {
    fn new() -> Self {
        let shape = Shape {
            scheme: Scheme::Coded,
            k: 2,
            m: 1,
            region_bytes: 1 << 20,
            evicts: false,
            service: Service::Online,
            bound: Bound::NONE,
            hasher: KeyHasher::new([7; 16]),
        };
        let mut member = Member::new(process(0), shape);
        member.adopt(&first());
        member.flush(1, false);
        Self {
            steering: Steering::default(),
            member,
            membership: Membership::new(process(0), Detector::new(Settings::default())),
        }
    }

    fn next(&mut self, dead: &[Process], decision: Decision) -> Option<View> {
        let at = Situation {
            group: 0,
            nodes: 3,
            places: &|_| 1,
            membership: &self.membership,
            homes: &[],
            is_spare: false,
            leave: Leave::Soon,
            decision,
            now: 1,
            instant: Instant::now(),
        };
        let next = self
            .steering
            .next(&mut self.member, &first(), of(dead, 0), &[], &at);
        self.member.flush(1, false);
        next
    }

    /// Begins an operation, which nobody acknowledges.
    fn remove(&mut self) -> Result<u64, Refusal> {
        let owner = self.member.owner(0).expect("it is the owner");
        owner.propose(1, b"a", Change::Remove)
    }
}

#[test]
fn while_nobody_decides_a_partition_is_served_unless_it_may_be_another_s() {
    // What is under way keeps it from giving the partition up; then somebody dies.
    let mut busy = Leaving::new();
    assert!(busy.remove().is_ok());
    assert_eq!(busy.next(&[], Decision::Soon), None);
    assert!(busy.remove().is_err(), "it is to go");
    let dead = [process(2)];
    assert!(busy.next(&dead, Decision::Soon).is_some());
    assert_eq!(busy.next(&dead, Decision::Soon), None, "not decided yet");
    assert!(busy.remove().is_err(), "it will be");
    assert_eq!(busy.next(&dead, Decision::Late), None);
    assert!(busy.remove().is_ok());

    let mut idle = Leaving::new();
    assert!(idle.next(&[], Decision::Soon).is_some());
    assert_eq!(idle.next(&[], Decision::Late), None);
    assert!(idle.remove().is_err(), "whose it is nobody knows");
}
