//! More is lost than the code bears: what is left is served and protected on, and what is lost begins
//! again only where somebody says so.

use cenote_kv::group::process::Process;
use cenote_kv::group::progress::{Decision, Leave};
use cenote_kv::group::view::{Parity, Partition, View};

use super::{Group, LEASE_IS_OVER_NS, UNITS_ARE_LATE_NS, process};

impl Group {
    fn view(&self) -> View {
        let newest = self.members.values().filter_map(|member| member.view());
        let newest = newest.max_by_key(|view| view.number);
        newest.expect("a view").clone()
    }

    /// Processes die at once.
    fn lose(&mut self, nodes: &[u32]) {
        let view = self.view();
        let is_dead = |process: Process| nodes.contains(&process.node);
        self.members.retain(|process, _| !is_dead(*process));
        let next = view.without(is_dead).expect("they were in it");
        self.adopt(&next);
    }

    /// All that members would have next, with whoever is outside as a spare, until nobody wants more.
    fn recover(&mut self) {
        for _ in 0..100 {
            self.wait(LEASE_IS_OVER_NS);
            let (view, now) = (self.view(), self.now);
            let outside = self.members.keys().find(|process| !view.has(**process));
            let outside = outside.copied();
            let mut members = self.members.values_mut();
            let next = members
                .find_map(|member| member.propose(now, Leave::No, Decision::Soon, |_| outside));
            let Some(next) = next else { return };
            assert_eq!(next.number, view.number + 1);
            self.adopt(&next);
        }
        panic!("it does not come to an end: {:?}", self.view());
    }

    fn begin_reset(&mut self, partition: usize, node: u32) {
        self.start(node);
        let next = self.view().with_reset(partition, process(node));
        self.adopt(&next.expect("it is lost, and all else is calm"));
        self.recover();
    }

    fn store(&mut self, partition: usize, keys: std::ops::Range<u8>) {
        let owner = self.view().owner(partition).expect("it has one");
        for key in keys {
            self.propose(owner.node, partition, &[b'k', key], &[key; 900]);
            self.settle();
        }
    }

    fn check(&mut self, partition: usize, keys: std::ops::Range<u8>) {
        let owner = self.view().owner(partition).expect("it has one").node;
        for key in keys {
            let found = self.read(owner, partition, &[b'k', key]);
            assert_eq!(found, Some(vec![key; 900]), "key {key}");
        }
    }
}

#[test]
fn a_partition_that_was_recovered_before_the_others_were_lost_is_protected_again() {
    let mut group = Group::new();
    group.store(0, 0..20);
    group.store(1, 0..20);
    group.lose(&[0]);
    group.recover();
    group.lose(&[1, 3]);
    assert_eq!(group.view().lost(), 0b10);
    group.recover();
    group.check(0, 0..20);
    // The only parity that is left has become data. It is one again when others have that, and the
    // other slot is taken: no parity has anything of what is lost.
    (4..=5).for_each(|node| group.start(node));
    group.recover();
    let view = group.view();
    assert!(matches!(view.partitions[0], Partition::Home(_)), "{view:?}");
    let is_full = |parity: &Parity| matches!(parity, Parity::Full { .. });
    assert!(view.parities.iter().all(is_full), "{view:?}");
    assert!((0..2).all(|slot| !view.is_stale(slot)));
    group.store(0, 20..25);
    group.audit();

    let owner = view.owner(0).expect("it is at home").node;
    group.lose(&[owner]);
    group.recover();
    group.check(0, 0..25);
    group.start(6);
    group.recover();
    group.audit();

    // From scratch, and recovered as if nothing had been.
    group.begin_reset(1, 7);
    assert_eq!(group.read(7, 1, b"k\0"), None);
    group.store(1, 30..40);
    group.check(0, 0..25);
    group.audit();
    group.lose(&[7]);
    group.recover();
    group.check(1, 30..40);
    assert_eq!(group.view().lost(), 0);
}

#[test]
fn what_cannot_be_recovered_without_the_lost_is_given_up() {
    let mut group = Group::new();
    group.store(0, 0..20);
    group.store(1, 0..20);
    group.lose(&[0, 1, 3]);
    // One parity takes one partition over, and cannot tell its values from the other's.
    assert_eq!(group.view().lost(), 0b10);
    assert_eq!(group.view().owner(0), Some(process(2)));
    group.wait(LEASE_IS_OVER_NS + UNITS_ARE_LATE_NS);
    let missing = group
        .member(2)
        .owner(0)
        .expect("it owns it")
        .missing_units();
    assert!(missing > 0, "nothing was made up");
    // One starts from scratch while the other is not given up yet.
    group.begin_reset(1, 5);
    assert_eq!(group.view().lost(), 0b01);
    group.begin_reset(0, 4);
    group.start(6);
    group.recover();
    group.store(0, 50..60);
    group.store(1, 60..70);
    assert!(group.view().is_whole());
    group.audit();
    group.lose(&[4, 5]);
    group.recover();
    group.check(0, 50..60);
    group.check(1, 60..70);
}
