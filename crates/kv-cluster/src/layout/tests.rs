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
        players.map(|player| player.0 - 10).collect()
    };
    (0..seats.groups.len()).map(row).collect()
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
    for text in [
        "0+2",
        "33+0",
        "33+4",
        "1+5",
        "32+5",
        "18446744073709551615+1",
    ] {
        let refused = text.parse::<Code>();
        assert!(matches!(refused, Err(LayoutError::Code { .. })), "{text}");
    }
    assert_eq!("32+4".parse::<Code>().unwrap().slots(), 36);
    assert_eq!("3+2".parse::<Code>().unwrap().to_string(), "3+2");
}

/// Slots, parity slots and first parity slots of each node.
fn roles(seats: &Seats, data: usize, count: u32) -> Vec<(usize, usize, usize)> {
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
    for group in 0..seats.groups.len() {
        let mut players: Vec<_> = seats.group(group).iter().collect();
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
        assert_apart(&seats);
        let roles = roles(&seats, data, count);
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
        for role in roles(&seats, data, count) {
            prop_assert_eq!(role, (rounds * code.slots(), rounds * parities, rounds));
        }
        for node in nodes(count) {
            let leaders: BTreeSet<_> = seats.of(node).iter()
                .map(|seat| seats.group(seat.group)[data])
                .collect();
            prop_assert_eq!(leaders.len(), code.slots(), "as many leaders as slots in a round");
        }
    }
}
