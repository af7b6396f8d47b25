//! The protocol of a group, step by step: the normal path, a take-over, a move home. No chance in it.
//!
//! Two partitions and two parities: processes 0 and 1 have the data, 2 and 3 the parities.
//! Paper: \[cocytus16\] sections 3.4, 4.1 and 4.2.

use std::collections::BTreeMap;

use cenote_kv::group::Bound;
use cenote_kv::group::audit::audit;
use cenote_kv::group::marks::Marks;
use cenote_kv::group::member::{Member, Shape};
use cenote_kv::group::message::{Message, UNIT_BYTES};
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Parity, Partition, Scheme, View};
use cenote_kv::memory::footprint::{Footprint, Roles};
use cenote_kv::memory::table::key_hash;

const SHAPE: Shape = Shape {
    scheme: Scheme::Coded,
    k: 2,
    m: 2,
    region_bytes: 8 * UNIT_BYTES,
    evicts: true,
    bound: Bound::NONE,
};
/// Longer than a lease, in nanoseconds.
const LEASE_IS_OVER_NS: u64 = 150_000_000;

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
                if let Some(member) = self.members.get_mut(&outgoing.to) {
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
        let proposed = owner.propose(key_hash(key), key, change);
        proposed.expect("there is room")
    }

    fn committed(&mut self, node: u32, partition: usize) -> u64 {
        let owner = self.member(node).owner(partition).expect("it is the owner");
        owner.committed_xid()
    }

    fn read(&mut self, node: u32, partition: usize, key: &[u8]) -> Option<Vec<u8>> {
        let now = self.now;
        assert!(self.member(node).may_read(partition, now));
        let owner = self.member(node).owner(partition).expect("it is the owner");
        let found = owner.committed(key_hash(key), key)?;
        Some(
            owner
                .value(&found, |parts| parts.concat())
                .expect("it is here"),
        )
    }

    /// What a member would have next, with process 4 as a spare.
    fn proposal(&mut self, node: u32) -> View {
        let now = self.now;
        let view = self.member(node).propose(now, |_| Some(process(4)));
        view.expect("there is a next step")
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

    // Process 0 dies. A parity recovers what it had.
    group.members.remove(&process(0));
    let view = group.member(1).view().expect("the first view").clone();
    let view = view
        .without(|dead| dead == process(0))
        .expect("it was in it");
    assert_eq!(view.partitions[0], Partition::Recovering(0));
    assert_eq!(view.owner(0), Some(process(2)));
    group.adopt(&view);

    // A lease of the former owner may last: nothing is served before its end.
    let key = b"new";
    let now = group.now;
    assert!(!group.member(2).may_read(0, now));
    let owner = group.member(2).owner(0).expect("it took over");
    let refused = owner.propose(key_hash(key), key, Change::Remove);
    assert_eq!(refused, Err(Refusal::Closed));
    group.wait(LEASE_IS_OVER_NS);
    let owner = group.member(2).owner(0).expect("it took over");
    assert_eq!(owner.missing_units(), 0);
    for (key, value) in &values {
        assert_eq!(group.read(2, 0, key).as_ref(), Some(value));
    }
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

    // With all values it is at home, and the parity that held them joins anew.
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

/// Processes 0 and 1 play one data slot each, 2 and 3 a parity each; so much memory each of them has.
const NODE_BYTES: u64 = 24 << 20;

fn bounded(evicts: bool) -> Shape {
    let roles = Roles {
        data: 1,
        parity: 1,
        group_data: 2,
        are_copies: false,
    };
    let footprint = Footprint::new(NODE_BYTES, 0, roles).expect("it is enough");
    Shape {
        region_bytes: footprint.region_cap(0),
        evicts,
        bound: Bound {
            footprint: Some(footprint),
            pending_bytes: 1 << 20,
        },
        ..SHAPE
    }
}

impl Group {
    /// Memory of a node that would play both a data and a parity slot.
    fn taken(&self) -> u64 {
        let of = |node| {
            let memory = self.members[&process(node)].memory();
            memory.values + memory.parity + memory.tables
        };
        of(0).max(of(1)) + of(2).max(of(3))
    }

    /// Puts an item, as often as it takes; says whether there was room in the end.
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let partition = usize::from(key_hash(key) % 2 == 1);
        loop {
            let change = Change::Put {
                client_flags: 0,
                expiry: 0,
                marks: Marks::NONE,
                value: &[value],
            };
            let owner = self.member(partition as u32).owner(partition);
            let owner = owner.expect("it is the owner");
            match owner.propose(key_hash(key), key, change) {
                Ok(_) => return true,
                Err(Refusal::Busy) => self.settle(),
                Err(Refusal::NoSpace) => return false,
                Err(refusal) => panic!("{refusal:?}"),
            }
        }
    }

    fn fill(&mut self, kind: &str, count: u32, value: &[u8]) -> u32 {
        let mut refused = 0;
        for number in 0..count {
            let key = format!("{kind}{number:08}");
            refused += u32::from(!self.put(key.as_bytes(), value));
            if number % 64 == 0 {
                self.settle();
                let taken = self.taken();
                assert!(taken <= NODE_BYTES, "{taken} bytes after {key}");
            }
        }
        self.settle();
        refused
    }
}

#[test]
fn owners_let_items_go_ahead_of_what_their_parities_can_hold() {
    let mut group = Group::of(bounded(true));
    // Tables take most, then values do, then tables what is left.
    assert_eq!(group.fill("s", 150_000, b"0123456789"), 0);
    let tables = group.members[&process(2)].memory().tables;
    assert!(tables > NODE_BYTES / 3, "{tables}");
    assert_eq!(group.fill("l", 1_500, &[7; 30_000]), 0);
    let parity = group.members[&process(2)].memory().parity;
    assert!(parity > NODE_BYTES / 4, "{parity}");
    assert_eq!(group.fill("s", 60_000, b"0123456789"), 0);
    let members = group.members.values().collect::<Vec<_>>();
    let view = group.members[&process(0)].view().expect("there is one");
    assert_eq!(audit(view, &members), Ok(()));
}

#[test]
fn without_eviction_what_does_not_fit_is_refused_and_nothing_goes() {
    let mut group = Group::of(bounded(false));
    let count = 300_000;
    let refused = group.fill("s", count, b"0123456789");
    assert!((count / 10..count * 9 / 10).contains(&refused), "{refused}");
    let owners = [0, 1].map(|node| {
        let (_, owner) = group.members[&process(node)]
            .owned_partitions()
            .next()
            .expect("one");
        assert_eq!(owner.counts().evictions, 0);
        owner.replica().table().len()
    });
    assert_eq!(owners.iter().sum::<usize>(), (count - refused) as usize);
    // What goes makes room again.
    for number in 0..count {
        let key = format!("s{number:08}");
        let hash = key_hash(key.as_bytes());
        let partition = usize::from(hash % 2 == 1);
        let owner = group
            .member(partition as u32)
            .owner(partition)
            .expect("the owner");
        if owner.committed(hash, key.as_bytes()).is_some() {
            let removed = owner.propose(hash, key.as_bytes(), Change::Remove);
            removed.expect("there is nothing to be had");
        }
        if number % 64 == 0 {
            group.settle();
        }
    }
    assert_eq!(group.fill("t", 1_000, b"0123456789"), 0);
}
