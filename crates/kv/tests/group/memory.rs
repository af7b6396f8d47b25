//! Memory that a group takes, within the bound of its nodes.

use cenote_kv::memory::footprint::{Footprint, Roles};

use super::*;

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
        let partition = usize::from(place_hash(key) % 2 == 1);
        loop {
            let change = Change::Put {
                client_flags: 0,
                expiry: 0,
                marks: Marks::NONE,
                value: &[value],
            };
            let owner = self.member(partition as u32).owner(partition);
            let owner = owner.expect("it is the owner");
            match owner.propose(owner.hash_of(key), key, change) {
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
    assert_eq!(group.fill("s", 400_000, b"0123456789"), 0);
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
        let partition = usize::from(place_hash(key.as_bytes()) % 2 == 1);
        let owner = group
            .member(partition as u32)
            .owner(partition)
            .expect("the owner");
        let hash = owner.hash_of(key.as_bytes());
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

#[test]
fn what_a_handoff_target_was_told_counts() {
    let mut group = Group::new();
    group.propose(0, 0, b"k", b"value");
    group.settle();
    group.start(4);
    let view = group.parting(0, Some(process(4)));
    group.adopt(&view.expect("there is a spare"));
    let [owner, target] = [0, 4].map(|node| group.members[&process(node)].memory());
    assert_ne!(owner.values, 0);
    assert_eq!(target, owner);
}

mod long {
    use super::*;

    /// A number below `bound`, by chance that is the same every time.
    fn chance(state: &mut u64, bound: usize) -> usize {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(*state >> 33).expect("31 bits") % bound
    }

    fn change<'a>(value: &'a [&'a [u8]]) -> Change<'a> {
        Change::Put {
            client_flags: 0,
            expiry: 0,
            marks: Marks::NONE,
            value,
        }
    }

    #[test]
    fn of_a_million_items_of_a_group_few_go_for_a_long_value() {
        let mut group = Group::of(Shape {
            region_bytes: 20 << 20,
            evicts: true,
            ..SHAPE
        });
        let evictions = |group: &mut Group| {
            let owner = group.member(0).owner(0).expect("it is the owner");
            owner.counts().evictions
        };
        // What lies side by side is of any age: half of all go, and come again.
        let (mut keys, mut state) = (Vec::new(), 1);
        let of_partition = |key: &String| place_hash(key.as_bytes()).is_multiple_of(2);
        let mut names = (0_u32..)
            .map(|number| format!("key {number}"))
            .filter(of_partition);
        while evictions(&mut group) == 0 {
            for key in names.by_ref().take(1000) {
                assert!(group.put(key.as_bytes(), b"16 bytes of text"));
                keys.push(key);
            }
            group.settle();
        }
        assert!(keys.len() > 1 << 20);
        let gone: Vec<String> = (0..keys.len() / 2)
            .map(|_| keys.swap_remove(chance(&mut state, keys.len())))
            .collect();
        for (number, key) in gone.iter().enumerate() {
            let owner = group.member(0).owner(0).expect("it is the owner");
            let removed = owner.propose(
                owner.hash_of(key.as_bytes()),
                key.as_bytes(),
                Change::Remove,
            );
            removed.expect("there is nothing to be had");
            if number % 1000 == 0 {
                group.settle();
            }
        }
        group.settle();
        for (number, key) in gone.iter().enumerate() {
            assert!(group.put(key.as_bytes(), b"16 bytes of text"));
            if number % 1000 == 0 {
                group.settle();
            }
        }
        group.settle();

        let before = evictions(&mut group);
        let long: &[u8] = &[8; 128 << 10];
        for turn in 0.. {
            assert!(turn < 10_000, "still no place");
            let owner = group.member(0).owner(0).expect("it is the owner");
            match owner.propose(owner.hash_of(b"long"), b"long", change(&[long])) {
                Ok(_) => break,
                Err(refusal) => assert_eq!(refusal, Refusal::Busy),
            }
            group.wait(10_000_000);
        }
        group.settle();
        let evicted = evictions(&mut group) - before;
        assert!(
            evicted < 100_000,
            "{evicted} of {}",
            keys.len() + gone.len()
        );
        group.audit();
    }
}
