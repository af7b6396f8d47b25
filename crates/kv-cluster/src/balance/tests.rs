//! Which partition goes where, and when: by small clusters, and by drawn ones until they are even.

use cenote_kv::group::view::{Parity, Scheme};
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn process(node: u32) -> Process {
    let incarnation = 1;
    Process { node, incarnation }
}

fn up(nodes: u32) -> Vec<Process> {
    (0..nodes).map(process).collect()
}

/// A group of these nodes, data first.
fn group(data: &[u32], parities: &[u32]) -> View {
    let all = |nodes: &[u32]| -> Vec<Process> { nodes.iter().copied().map(process).collect() };
    View::first(Scheme::Coded, &all(data), &all(parities))
}

fn decide(views: &[View], up: &[Process]) -> Option<HandOver> {
    next(&views.iter().collect::<Vec<_>>(), up)
}

fn owned(views: &[View], node: u32) -> usize {
    let owners = views
        .iter()
        .flat_map(|view| (0..view.partitions.len()).map(|one| view.owner(one)));
    owners.filter(|owner| *owner == Some(process(node))).count()
}

/// What comes of a decision.
fn done(views: &mut [View], next: HandOver) {
    let view = &mut views[next.group];
    let begun = match view.slot_of(next.to) {
        Some(_) => view.with_exchange(next.partition, next.to),
        None => view.with_handoff(
            cenote_kv::group::view::GroupSlot::Data(next.partition),
            next.to,
        ),
    };
    *view = begun
        .and_then(|view| view.with_succession())
        .expect("all is whole");
}

#[test]
fn who_owns_nothing_gets_a_partition_of_who_owns_most() {
    // Node 2 is a parity of all groups.
    let views = [
        group(&[0, 1], &[2]),
        group(&[0, 1], &[2]),
        group(&[1, 0], &[2]),
    ];
    let next = decide(&views, &up(3)).expect("3, 3 and 0");
    assert_eq!((next.group, next.partition, next.view), (0, 0, 1));
    assert_eq!((next.from, next.to), (process(0), process(2)));
    // One that is in no group comes first where it has less to do.
    let next = decide(&views, &up(4)).expect("3, 3, 0 and 0");
    assert_eq!(next.to, process(3));
}

#[test]
fn a_difference_of_one_stays() {
    let views = [group(&[0, 1], &[2]), group(&[1, 2], &[0])];
    assert_eq!(decide(&views, &up(3)), None, "1, 2 and 1");
}

#[test]
fn nothing_moves_while_something_is_missing_on_its_way_or_leaves() {
    let whole = [group(&[0, 1], &[2]), group(&[0, 1], &[2])];
    assert!(decide(&whole, &up(3)).is_some());
    let gone = [process(0), process(1)];
    assert_eq!(decide(&whole, &gone), None, "node 2 is not there or leaves");
    let other = Process {
        incarnation: 2,
        ..process(2)
    };
    assert_eq!(
        decide(&whole, &[process(0), process(1), other]),
        None,
        "it is another one"
    );
    let mut broken = whole.clone();
    broken[1].parities[0] = Parity::Vacant;
    assert_eq!(decide(&broken, &up(3)), None, "a parity is missing");
    let lost = whole[1]
        .without(|one| one == process(1))
        .expect("it was in it");
    assert_eq!(
        decide(&[whole[0].clone(), lost], &up(3)),
        None,
        "one is recovered"
    );
    let moving = whole[1].with_exchange(0, process(2)).expect("it is whole");
    assert_eq!(
        decide(&[whole[0].clone(), moving], &up(3)),
        None,
        "one is on its way"
    );
}

#[test]
fn quiet_comes_first_and_a_longer_one_after_a_loss() {
    let mut balance = Balance::default();
    assert!(!balance.is_due(0));
    assert!(!balance.is_due(5 * SECOND - 1));
    assert!(balance.is_due(5 * SECOND));
    balance.note_loss();
    balance.note_change();
    assert!(!balance.is_due(6 * SECOND));
    assert!(!balance.is_due(16 * SECOND - 1));
    assert!(balance.is_due(16 * SECOND));
    balance.pause(16 * SECOND);
    assert!(!balance.is_due(21 * SECOND - 1) && balance.is_due(21 * SECOND));
    balance.rest();
    assert!(!balance.is_due(1000 * SECOND));
    balance.note_change();
    assert!(!balance.is_due(1000 * SECOND) && balance.is_due(1005 * SECOND));
}

proptest! {
    /// Each step makes it more even and none is undone. Where every node is in every group all own their share in the
    /// end, whoever plays what at first.
    #[test]
    fn owners_are_spread_in_few_steps(
        k in 1_usize..4, m in 1_usize..3, groups in 1_usize..8, spares in 0_usize..3,
        orders in prop::collection::vec(any::<u64>(), 8),
    ) {
        let nodes = u32::try_from(k + m + spares).expect("few");
        let mut views: Vec<View> = (0..groups).map(|index| {
            let mut order: Vec<u32> = (0..nodes).collect();
            order.sort_by_key(|node| orders[index].rotate_left(node * 11).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            group(&order[..k], &order[k..k + m])
        }).collect();
        let all = up(nodes);
        let squares = |views: &[View]| (0..nodes).map(|node| owned(views, node).pow(2)).sum::<usize>();
        let mut steps = 0;
        while let Some(next) = decide(&views, &all) {
            let before = squares(&views);
            done(&mut views, next);
            prop_assert!(squares(&views) < before);
            steps += 1;
        }
        prop_assert!(steps <= k * groups);
        let counts: Vec<usize> = (0..nodes).map(|node| owned(&views, node)).collect();
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        if spares == 0 {
            prop_assert!(most - least < 2, "{counts:?}");
        }
    }
}
