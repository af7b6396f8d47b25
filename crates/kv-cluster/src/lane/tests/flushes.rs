//! Whom a flush is meant for, as nodes tell each other.

use super::*;

#[test]
fn nodes_tell_the_same_owners_by_the_same_views_alone() {
    // The front has no place in the group, and hears of its views later than the owner.
    let (mut front, mut owner, view) = front_and_owner();
    let earlier = front.lane.owners();
    assert_eq!(earlier, owner.lane.owners());
    // Nodes of other versions compare it, too.
    let mut bytes = vec![0, 0, 0, 0, 1];
    bytes.extend_from_slice(&1_u32.to_le_bytes());
    bytes.extend_from_slice(&1_u64.to_le_bytes());
    assert_eq!(earlier, cenote_codec::xxh3(&bytes));

    let next = view.without(|dead| dead == process(1));
    let next = next.expect("a parity is there");
    owner.adopt(&next);
    owner.turn();
    assert!(!owner.lane.is_here(0), "it passes a flush over");
    assert_eq!(front.lane.owners(), earlier);
    assert_ne!(owner.lane.owners(), earlier);
    front.adopt(&next);
    front.turn();
    assert_eq!(front.lane.owners(), owner.lane.owners());
}
