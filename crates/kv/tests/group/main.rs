//! The protocol of a group, step by step: the normal path, a take-over, a move home. No chance in it.
//!
//! Two partitions and two parities: processes 0 and 1 have the data, 2 and 3 the parities.
//! Paper: \[cocytus16\] sections 3.4, 4.1 and 4.2.

mod chosen;
mod flushes;
mod loss;
mod memory;
mod times;

use std::collections::BTreeMap;

use cenote_kv::group::Bound;
use cenote_kv::group::Takeover;
use cenote_kv::group::audit::audit;
use cenote_kv::group::marks::Marks;
use cenote_kv::group::member::{Member, Outgoing, Service, Shape};
use cenote_kv::group::message::{MESSAGE_BYTES_MAX, Message, UNIT_BYTES};
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv::group::process::Process;
use cenote_kv::group::progress::{Decision, Leave};
use cenote_kv::group::view::{GroupSlot, Parity, Partition, Scheme, View};
use cenote_kv::group::wire::encode;
use cenote_kv::memory::key_hash::{KeyHasher, place_hash};

const SHAPE: Shape = Shape {
    scheme: Scheme::Coded,
    k: 2,
    m: 2,
    region_bytes: 8 * UNIT_BYTES,
    evicts: true,
    service: Service::Online,
    bound: Bound::NONE,
    hasher: KeyHasher::new([7; 16]),
};
/// Longer than a lease, in nanoseconds.
const LEASE_IS_OVER_NS: u64 = 150_000_000;
/// Longer than anybody waits for units, in nanoseconds.
const UNITS_ARE_LATE_NS: u64 = 250_000_000;

fn process(node: u32) -> Process {
    Process {
        node,
        incarnation: 1,
    }
}

/// Members whose links are perfect, and a clock.
struct Group {
    shape: Shape,
    members: BTreeMap<Process, Member>,
    now: u64,
    /// Units for who recovers, where they are held back.
    held: Option<Vec<(Process, Outgoing)>>,
}

impl Group {
    /// Everybody at home, and everything said that there is to say.
    fn new() -> Self {
        Self::of(SHAPE)
    }

    fn of(shape: Shape) -> Self {
        let mut group = Self {
            shape,
            members: BTreeMap::new(),
            now: 1_000_000_000,
            held: None,
        };
        (0..4).for_each(|node| group.start(node));
        let view = View::first(
            SHAPE.scheme,
            &[process(0), process(1)],
            &[process(2), process(3)],
        );
        group.adopt(&view);
        group
    }

    fn start(&mut self, node: u32) {
        let member = Member::new(process(node), self.shape.clone());
        self.members.insert(process(node), member);
    }

    fn member(&mut self, node: u32) -> &mut Member {
        self.members
            .get_mut(&process(node))
            .expect("a process that lives")
    }

    fn adopt(&mut self, view: &View) {
        self.members
            .values_mut()
            .for_each(|member| member.adopt(view));
        self.settle();
    }

    /// Delivers what has been said and what comes of it, until nobody says anything.
    fn settle(&mut self) {
        loop {
            let now = self.now;
            let mut said = Vec::new();
            for (from, member) in &mut self.members {
                member.flush(now, true);
                let messages = member.take_messages().into_iter();
                said.extend(messages.map(|message| (*from, message)));
            }
            if said.is_empty() {
                break;
            }
            for (from, outgoing) in said {
                let bytes = encode(0, outgoing.view, &outgoing.message).bytes();
                assert!(bytes <= MESSAGE_BYTES_MAX, "no link takes {bytes} bytes");
                let is_units = matches!(outgoing.message, Message::Units { .. });
                if let Some(held) = self.held.as_mut().filter(|_| is_units) {
                    held.push((from, outgoing));
                } else if let Some(member) = self.members.get_mut(&outgoing.to) {
                    member.handle(from, outgoing.view, outgoing.message, now);
                }
            }
        }
        for member in self.members.values_mut() {
            assert_eq!(member.failure(), None);
            assert_eq!(member.take_accused(), []);
        }
    }

    /// Time goes by.
    fn wait(&mut self, ns: u64) {
        self.now += ns;
        self.settle();
    }

    /// Proposes a value, and says which operation that is.
    fn propose(&mut self, node: u32, partition: usize, key: &[u8], value: &[u8]) -> u64 {
        let change = Change::Put {
            client_flags: 0,
            expiry: 0,
            marks: Marks::NONE,
            value: &[value],
        };
        let owner = self.member(node).owner(partition).expect("it is the owner");
        let proposed = owner.propose(owner.hash_of(key), key, change);
        proposed.expect("there is room")
    }

    /// Process 0 dies, and a parity takes over what it had.
    fn lose_the_first(&mut self) -> View {
        self.members.remove(&process(0));
        let view = self.member(1).view().expect("the first view").clone();
        let view = view
            .without(|dead| dead == process(0))
            .expect("it was in it");
        assert_eq!(view.partitions[0], Partition::Recovering(0));
        assert_eq!(view.owner(0), Some(process(2)));
        self.adopt(&view);
        view
    }

    fn committed(&mut self, node: u32, partition: usize) -> u64 {
        let owner = self.member(node).owner(partition).expect("it is the owner");
        owner.committed_xid()
    }

    fn read(&mut self, node: u32, partition: usize, key: &[u8]) -> Option<Vec<u8>> {
        let now = self.now;
        assert!(self.member(node).may_read(partition, now));
        let owner = self.member(node).owner(partition).expect("it is the owner");
        let found = owner.committed(owner.hash_of(key), key)?;
        Some(
            owner
                .value(&found, |parts| parts.concat())
                .expect("it is here"),
        )
    }

    /// What a member would have next, with process 4 as a spare.
    fn proposal(&mut self, node: u32) -> View {
        let now = self.now;
        let spare = |_| Some(process(4));
        let member = self.member(node);
        let view = member.propose(now, Leave::No, Decision::Soon, spare);
        view.expect("there is a next step")
    }

    /// What a member that leaves would have next.
    fn parting(&mut self, node: u32, spare: Option<Process>) -> Option<View> {
        let now = self.now;
        let member = self.member(node);
        member.propose(now, Leave::Whole, Decision::Soon, |_| spare)
    }

    fn audit(&mut self) {
        let members: Vec<&Member> = self.members.values().collect();
        let newest = members.iter().filter_map(|member| member.view());
        let view = newest.max_by_key(|view| view.number).expect("a view");
        audit(view, &members).expect("all agree");
    }
}

#[test]
fn an_operation_is_committed_when_every_parity_has_acknowledged_it() {
    let mut group = Group::new();
    let xid = group.propose(0, 0, b"k", b"value");
    assert_eq!((xid, group.committed(0, 0)), (1, 0));

    // The owner says it to each parity, with nothing stable yet.
    let now = group.now;
    group.member(0).flush(now, false);
    let updates = group.member(0).take_messages();
    assert_eq!(updates.len(), 2);
    let mut acknowledgements = Vec::new();
    for update in updates {
        assert!(matches!(
            update.message,
            Message::Update {
                partition: 0,
                xid: 1,
                stable: 0,
                ..
            }
        ));
        let parity = group.member(update.to.node);
        parity.handle(process(0), update.view, update.message, now);
        for said in parity.take_messages() {
            assert_eq!(
                said.message,
                Message::Ack {
                    partition: 0,
                    xid: 1
                }
            );
            acknowledgements.push((update.to, said));
        }
    }

    // One acknowledgement is not enough, both are.
    for (index, (from, said)) in acknowledgements.into_iter().enumerate() {
        assert_eq!(group.committed(0, 0), 0, "after {index} acknowledgements");
        group.member(0).handle(from, said.view, said.message, now);
    }
    assert_eq!(group.committed(0, 0), 1);
    group.settle();
    assert_eq!(group.read(0, 0, b"k").as_deref(), Some(&b"value"[..]));

    // Parities are the sums of the data, and have the same keys.
    let view = group.member(0).view().expect("the first view").clone();
    let members: Vec<&Member> = group.members.values().collect();
    audit(&view, &members).expect("all agree");
}

#[test]
fn a_parity_takes_a_partition_over_and_gives_it_to_a_new_process() {
    let mut group = Group::new();
    let mut values = Vec::new();
    for number in 0..20_u8 {
        let (key, value) = (vec![b'k', number], vec![number; 900]);
        group.propose(0, 0, &key, &value);
        group.propose(1, 1, &key, &[number ^ 0xff; 700]);
        values.push((key, value));
        group.settle();
    }

    let view = group.lose_the_first();

    // A lease of the former owner may last: nothing is served before its end.
    let key = b"new";
    let now = group.now;
    assert!(!group.member(2).may_read(0, now));
    let owner = group.member(2).owner(0).expect("it took over");
    let refused = owner.propose(owner.hash_of(key), key, Change::Remove);
    assert_eq!(refused, Err(Refusal::Closed));
    group.wait(LEASE_IS_OVER_NS);
    let owner = group.member(2).owner(0).expect("it took over");
    assert_eq!(owner.missing_units(), 0);
    for (key, value) in &values {
        assert_eq!(group.read(2, 0, key).as_ref(), Some(value));
    }
    let now = group.now;
    let told: Vec<Takeover> = group.member(2).takeovers().copied().collect();
    let lease_over = told[0].lease_over;
    let began = now - LEASE_IS_OVER_NS;
    let expected = Takeover {
        partition: 0,
        view: view.number,
        began: Some(began),
        settled: Some(began),
        lease_over,
        served: Some(now),
        ended: Some(began),
        // 20 values, of 912 bytes with what they are rounded up by.
        rebuilt_bytes: 5 * UNIT_BYTES,
    };
    assert_eq!(told, [expected]);
    assert!((began..now).contains(&lease_over), "{lease_over}");
    group.propose(2, 0, b"new", b"while it was away");
    group.settle();

    // A new process comes, is told all keys, and becomes the owner.
    group.start(4);
    let view = group.proposal(2);
    assert!(matches!(
        view.partitions[0],
        Partition::Arriving { slot: 0, .. }
    ));
    group.adopt(&view);
    let view = group.proposal(2);
    assert!(matches!(view.partitions[0], Partition::Migrating { .. }));
    let now = group.now;
    assert!(!group.member(2).may_read(0, now), "it gave up its lease");
    group.adopt(&view);
    group.settle();

    // With all values it is at home, and the parity that held them joins again.
    let view = group.proposal(4);
    assert_eq!(view.partitions[0], Partition::Home(process(4)));
    assert!(matches!(view.parities[0], Parity::Joining { .. }));
    group.adopt(&view);
    let view = group.proposal(2);
    assert!(matches!(view.parities[0], Parity::Full { .. }));
    group.adopt(&view);
    for (key, value) in &values {
        assert_eq!(group.read(4, 0, key).as_ref(), Some(value));
    }
    let new = group.read(4, 0, b"new");
    assert_eq!(new.as_deref(), Some(&b"while it was away"[..]));
    let members: Vec<&Member> = group.members.values().collect();
    audit(&view, &members).expect("all agree");
}

#[test]
fn an_owner_that_leaves_is_succeeded_with_all_values_and_nobody_waits() {
    let mut group = Group::new();
    for number in 0..20_u8 {
        group.propose(0, 0, &[b'k', number], &[number; 900]);
        group.settle();
    }
    group.start(4);
    let view = group
        .parting(0, Some(process(4)))
        .expect("there is a spare");
    let handoff = view.handoff.expect("it is to succeed");
    assert_eq!(
        (handoff.place, handoff.process),
        (GroupSlot::Data(0), process(4))
    );
    assert_eq!(view.owner(0), Some(process(0)), "it serves until then");
    group.adopt(&view);
    // What changes meanwhile the handoff target has, too.
    for number in 0..10_u8 {
        group.propose(0, 0, &[b'k', number], &[number ^ 0xff; 900]);
    }
    assert_eq!(group.parting(0, None), None, "operations are under way");
    let key = b"late";
    let owner = group.member(0).owner(0).expect("it is the owner");
    let refused = owner.propose(owner.hash_of(key), key, Change::Remove);
    assert_eq!(refused, Err(Refusal::Closed), "it takes no more");
    group.settle();
    let view = group.parting(0, None).expect("all is committed");
    assert_eq!(view.partitions[0], Partition::Home(process(4)));
    let now = group.now;
    assert!(!group.member(0).may_read(0, now), "it gave up its lease");
    group.adopt(&view);
    assert!(group.member(0).owner(0).is_none());
    for number in 0..20_u8 {
        let value = match number {
            0..10 => vec![number ^ 0xff; 900],
            _ => vec![number; 900],
        };
        assert_eq!(group.read(4, 0, &[b'k', number]), Some(value), "{number}");
    }
    assert_eq!(group.now, now, "without waiting for a lease");
    group.audit();
}

#[test]
fn what_is_to_go_is_served_on_while_nobody_may_agree_on_it() {
    let with_target = || {
        let mut group = Group::new();
        group.propose(0, 0, b"k", b"value");
        group.settle();
        group.start(4);
        let view = group.parting(0, Some(process(4)));
        group.adopt(&view.expect("there is a spare"));
        group
    };
    let alone = || {
        let mut group = Group::new();
        group.propose(0, 0, b"k", b"value");
        group.settle();
        group
    };
    for mut group in [with_target(), alone()] {
        let now = group.now;
        let next = |group: &mut Group, decision| {
            let member = group.member(0);
            if decision == Decision::Late {
                member.reopen();
            }
            member.propose(now, Leave::Soon, decision, |_| None)
        };
        assert_eq!(next(&mut group, Decision::Late), None);
        assert_eq!(group.read(0, 0, b"k").as_deref(), Some(&b"value"[..]));
        // It has taken its last operation when those who agree are gone.
        let xid = group.propose(0, 0, b"k", b"another");
        assert_eq!(next(&mut group, Decision::Soon), None, "it is under way");
        assert_eq!(next(&mut group, Decision::Late), None);
        group.settle();
        assert_eq!(group.propose(0, 0, b"k", b"the last"), xid + 1);
        group.settle();
        assert_eq!(group.read(0, 0, b"k").as_deref(), Some(&b"the last"[..]));
        let view = next(&mut group, Decision::Soon).expect("nothing is under way");
        assert_ne!(view.owner(0), Some(process(0)));
    }
}

#[test]
fn a_parity_that_leaves_stays_until_another_has_all() {
    let mut group = Group::new();
    for number in 0..20_u8 {
        group.propose(1, 1, &[b'k', number], &[number; 900]);
        group.settle();
    }
    group.start(4);
    let view = group
        .parting(3, Some(process(4)))
        .expect("there is a spare");
    assert!(view.is_whole(), "no place is given up yet: {view:?}");
    group.adopt(&view);
    group.propose(1, 1, b"k\x01", b"changed");
    group.settle();
    let now = group.now;
    let view = group
        .member(4)
        .propose(now, Leave::No, Decision::Soon, |_| None);
    let view = view.expect("it was told all");
    assert_eq!(view.parities[1].process(), Some(process(4)));
    assert_eq!((view.is_whole(), view.has(process(3))), (true, false));
    group.adopt(&view);
    group.audit();
    // One that was to take a place over and dies leaves everything as it was.
    group.start(5);
    let view = group
        .parting(2, Some(process(5)))
        .expect("there is a spare");
    group.adopt(&view);
    let view = view
        .without(|dead| dead == process(5))
        .expect("it was in it");
    assert_eq!((view.is_whole(), view.handoff), (true, None));
    // If the one that leaves dies, the handoff target goes on as one that joins.
    group.members.remove(&process(5));
    group.adopt(&view);
    group.start(6);
    let view = group
        .parting(2, Some(process(6)))
        .expect("there is a spare");
    group.adopt(&view);
    let view = view
        .without(|dead| dead == process(2))
        .expect("it was in it");
    assert!(
        matches!(view.parities[0], Parity::Joining { process: found, .. } if found == process(6))
    );
    group.members.remove(&process(2));
    group.adopt(&view);
    let view = group
        .member(6)
        .propose(now, Leave::No, Decision::Soon, |_| None);
    group.adopt(&view.expect("it was told all"));
    group.audit();
}

#[test]
fn without_a_spare_a_partition_is_served_on_at_once_by_a_parity() {
    let mut group = Group::new();
    group.propose(0, 0, b"k", b"value");
    group.settle();
    let now = group.now;
    assert!(group.member(0).may_read(0, now));
    let view = group.parting(0, None).expect("the group bears it");
    assert_eq!(view.partitions[0], Partition::Recovering(0));
    assert_eq!((view.let_go, view.has(process(0))), (1, false));
    assert!(!group.member(0).may_read(0, now), "it gave up its lease");
    group.adopt(&view);
    assert_eq!(group.read(2, 0, b"k").as_deref(), Some(&b"value"[..]));
    assert_eq!(group.now, now, "without waiting for a lease");

    // Who has missed the view in which it was let go waits: it cannot know.
    let mut group = Group::new();
    group.propose(0, 0, b"k", b"value");
    group.settle();
    let now = group.now;
    assert!(group.member(0).may_read(0, now));
    let view = group.parting(0, None).expect("the group bears it");
    let view = view
        .without(|dead| dead == process(3))
        .expect("it was in it");
    group.adopt(&view);
    assert!(!group.member(2).may_read(0, now));

    // A second one waits for the first to be replaced, unless it ends soon.
    assert_eq!(group.parting(1, None), None);
    let soon = group
        .member(1)
        .propose(now, Leave::Soon, Decision::Soon, |_| None);
    assert_eq!(soon, None, "nobody is left who could recover both");
}

/// What becomes of a change in another partition while one is recovered, and after it.
fn commits_around_a_recovery(service: Service) -> [u64; 2] {
    let mut group = Group::of(Shape { service, ..SHAPE });
    group.propose(0, 0, b"k", &[1; 900]);
    group.propose(1, 1, b"k", &[2; 900]);
    group.settle();
    group.held = Some(Vec::new());
    group.lose_the_first();
    group.wait(LEASE_IS_OVER_NS);
    let missing = |group: &mut Group| {
        let owner = group.member(2).owner(0).expect("it took over");
        owner.missing_units()
    };
    assert!(missing(&mut group) > 0);

    assert_eq!(group.propose(1, 1, b"new", b"meanwhile"), 2);
    group.settle();
    assert_eq!(group.read(1, 1, b"k"), Some(vec![2; 900]), "reads go on");
    let while_missing = group.committed(1, 1);
    let owner = group.member(2).owner(0).expect("it took over");
    let changed = owner.propose(owner.hash_of(b"k"), b"k", Change::Remove);
    match service {
        Service::Online => assert!(changed.is_ok()),
        Service::Blocked => assert_eq!(changed, Err(Refusal::Closed)),
    }

    let now = group.now;
    for (from, outgoing) in group.held.take().expect("it was set") {
        let receiver = group.member(outgoing.to.node);
        receiver.handle(from, outgoing.view, outgoing.message, now);
    }
    // Units from before what has been applied since are asked for again.
    group.wait(UNITS_ARE_LATE_NS);
    assert_eq!(missing(&mut group), 0);
    [while_missing, group.committed(1, 1)]
}

#[test]
fn changes_wait_for_a_recovery_only_where_that_is_wanted() {
    assert_eq!(commits_around_a_recovery(Service::Online), [2, 2]);
    assert_eq!(commits_around_a_recovery(Service::Blocked), [1, 2]);
}

#[test]
fn reads_go_on_where_a_round_trip_takes_longer_than_the_time_between_two_questions() {
    const STEP_NS: u64 = 25_000_000;
    let mut group = Group::new();
    let mut late = Vec::new();
    for _ in 0..20 {
        group.now += STEP_NS;
        let now = group.now;
        let mut said = Vec::new();
        for (from, member) in &mut group.members {
            member.flush(now, false);
            let messages = member.take_messages().into_iter();
            said.extend(messages.map(|message| (*from, message)));
        }
        let is_answer = |(_, outgoing): &(Process, Outgoing)| {
            matches!(outgoing.message, Message::Answer { .. })
        };
        let (answers, mut said): (Vec<_>, Vec<_>) = said.into_iter().partition(is_answer);
        late.push(answers);
        // Those of two steps ago arrive.
        if late.len() > 2 {
            said.extend(late.remove(0));
        }
        for (from, outgoing) in said {
            let member = group.members.get_mut(&outgoing.to).expect("it lives");
            member.handle(from, outgoing.view, outgoing.message, now);
        }
        assert!(group.member(0).may_read(0, now));
    }
}
