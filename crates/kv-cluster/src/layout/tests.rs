use proptest::prelude::*;

use super::*;

fn nodes(count: u32) -> Vec<NodeId> {
    (0..count).map(|index| NodeId(10 + index)).collect()
}

fn plan(code: &str, groups: usize, count: u32) -> Seats {
    Seats::plan(code.parse().unwrap(), groups, &nodes(count)).unwrap()
}

/// Nodes as in the paper's picture: one row per group.
fn rows(seats: &Seats) -> Vec<Vec<u32>> {
    let row = |group| {
        let players = seats.group(group).iter();
        players.map(|player| player.unwrap().0 - 10).collect()
    };
    (0..seats.groups()).map(row).collect()
}

#[test]
fn five_groups_of_3_and_2_rotate_over_five_nodes() {
    let seats = plan("3+2", 5, 5);
    assert_eq!(
        rows(&seats),
        [
            [0, 1, 2, 3, 4],
            [1, 2, 3, 4, 0],
            [2, 3, 4, 0, 1],
            [3, 4, 0, 1, 2],
            [4, 0, 1, 2, 3],
        ]
    );
}

#[test]
fn impossible_shapes_are_refused_with_their_reason() {
    let refused = |code: &str, groups, count| {
        let code: Code = code.parse().unwrap();
        Seats::plan(code, groups, &nodes(count)).unwrap_err()
    };
    assert_eq!(
        refused("3+2", 5, 4).to_string(),
        "code 3+2 needs 5 nodes, there are 4"
    );
    assert_eq!(refused("3+2", 0, 5), LayoutError::Groups(0));
    assert_eq!(refused("3+2", 4097, 5), LayoutError::Groups(4097));
    let twice = [NodeId(1), NodeId(2), NodeId(1)];
    assert_eq!(
        Seats::plan("1+1".parse().unwrap(), 1, &twice),
        Err(LayoutError::Twice(NodeId(1)))
    );
    for text in ["", "3", "3+", "+2", "3+2+1", "+3+2", "3+-2", "3 + 2", "a+b"] {
        assert_eq!(text.parse::<Code>(), Err(LayoutError::NoCode), "{text}");
    }
    for text in ["0+2", "33+8", "1+9", "41+0"] {
        let refused = text.parse::<Code>();
        assert!(matches!(refused, Err(LayoutError::Code { .. })), "{text}");
    }
    assert_eq!("3+2".parse::<Code>().unwrap().to_string(), "3+2");
}

#[test]
fn a_spare_takes_the_place_of_the_lost_node() {
    let planned = plan("3+2", 5, 5);
    let mut seats = planned.clone();
    seats.leave(NodeId(12));
    let lost = planned.of(NodeId(12));
    assert_eq!(seats.vacant(), lost);
    assert_eq!(seats.seats_for(NodeId(77), &planned, 5), lost);
    assert_eq!(seats.seats_for(NodeId(77), &planned, 2), lost[..2]);
    assert_eq!(seats.seats_for(NodeId(12), &planned, 5), lost);
    assert_eq!(seats.seats_for(NodeId(11), &planned, 9), [], "plays in all");

    let given = seats.fill(&[NodeId(77)]);
    assert_eq!(given.iter().map(|g| g.0).collect::<Vec<_>>(), lost);
    assert_eq!(seats.of(NodeId(77)), lost);
}

#[test]
fn a_returning_node_takes_its_own_slots_before_others() {
    let planned = plan("2+1", 6, 6);
    let mut seats = planned.clone();
    seats.leave(NodeId(10));
    seats.leave(NodeId(13));
    let home = planned.of(NodeId(13));
    assert_eq!(seats.seats_for(NodeId(13), &planned, home.len()), home);
}

#[test]
fn a_slot_that_nobody_may_play_stays_vacant() {
    let mut seats = plan("3+2", 5, 5);
    seats.leave(NodeId(10));
    let left: Vec<NodeId> = nodes(5)[1..].to_vec();
    assert_eq!(seats.fill(&left), []);
    assert_eq!(seats.vacant().len(), 5);
}

/// Slots, parity slots and first parity slots of each node.
fn roles(seats: &Seats, count: u32) -> Vec<(usize, usize, usize)> {
    let data = seats.code().data();
    nodes(count)
        .into_iter()
        .map(|node| {
            let mine = seats.of(node);
            let parities = mine.iter().filter(|seat| seat.slot >= data).count();
            let leads = mine.iter().filter(|seat| seat.slot == data).count();
            (mine.len(), parities, leads)
        })
        .collect()
}

fn spread(values: impl Iterator<Item = usize> + Clone) -> usize {
    values.clone().max().unwrap() - values.min().unwrap()
}

fn assert_apart(seats: &Seats) {
    for group in 0..seats.groups() {
        let mut players: Vec<_> = seats.group(group).iter().flatten().collect();
        let count = players.len();
        players.sort_unstable();
        players.dedup();
        assert_eq!(players.len(), count, "group {group} {seats:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_plan_is_balanced_and_no_node_plays_twice_in_a_group(
        data in 1_usize..7, parities in 0_usize..4, more in 0_u32..9, groups in 1_usize..60,
    ) {
        let code = Code::new(data, parities).unwrap();
        let count = u32::try_from(code.slots()).unwrap() + more;
        let seats = Seats::plan(code, groups, &nodes(count)).unwrap();
        prop_assert!(seats.vacant().is_empty());
        assert_apart(&seats);
        let roles = roles(&seats, count);
        prop_assert!(spread(roles.iter().map(|r| r.0)) <= 1, "{roles:?}");
        prop_assert!(spread(roles.iter().map(|r| r.1)) <= 2, "{roles:?}");
        prop_assert!(spread(roles.iter().map(|r| r.2)) <= 2, "{roles:?}");
    }

    #[test]
    fn a_whole_number_of_rounds_gives_all_nodes_the_same_and_spreads_the_leaders(
        data in 1_usize..7, parities in 1_usize..4, more in 0_u32..9, rounds in 1_usize..4,
    ) {
        let code = Code::new(data, parities).unwrap();
        let count = u32::try_from(code.slots()).unwrap() + more;
        let groups = rounds * count as usize;
        let seats = Seats::plan(code, groups, &nodes(count)).unwrap();
        for role in roles(&seats, count) {
            prop_assert_eq!(role, (rounds * code.slots(), rounds * parities, rounds));
        }
        for node in nodes(count) {
            let leaders: BTreeSet<_> = seats.of(node).iter()
                .map(|seat| seats.group(seat.group)[data])
                .collect();
            prop_assert_eq!(leaders.len(), code.slots(), "as many leaders as slots in a round");
        }
    }

    #[test]
    fn nodes_that_leave_and_come_never_meet_themselves(
        steps in proptest::collection::vec((0_u32..9, any::<bool>()), 0..24),
    ) {
        let planned = plan("3+2", 7, 7);
        let mut seats = planned.clone();
        for (node, leaves) in steps {
            let node = NodeId(10 + node);
            if leaves {
                seats.leave(node);
                prop_assert!(seats.of(node).is_empty());
                continue;
            }
            let before = seats.clone();
            let wanted = seats.seats_for(node, &planned, 5);
            for seat in &wanted {
                prop_assert_eq!(before.group(seat.group)[seat.slot], None);
                prop_assert!(!before.group(seat.group).contains(&Some(node)));
            }
            for (seat, player) in seats.fill(&[node]) {
                prop_assert_eq!(player, node);
                prop_assert_eq!(before.group(seat.group)[seat.slot], None, "only vacant ones");
            }
            assert_apart(&seats);
        }
    }
}
