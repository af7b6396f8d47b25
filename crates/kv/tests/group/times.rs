//! The time that a partition begins with.

use std::sync::Arc;

use cenote_kv::engine::{Ask, Counters, Engine, Outcome, Sight};
use cenote_kv::group::member::Member;
use cenote_kv::group::view::View;
use cenote_kv::protocol::{Limits, whole};

use super::{Group, SHAPE, process};

#[test]
fn the_first_operation_of_a_partition_is_its_time() {
    let mut member = Member::new(process(0), SHAPE);
    let data = [process(0), process(1)];
    member.adopt(&View::first(SHAPE.scheme, &data, &[process(2), process(3)]));
    member.tick(1000, 1);
    let owner = member.owner(0).expect("it is the owner");
    assert_eq!((owner.last_xid(), owner.committed_xid()), (1, 0));
}

#[test]
fn an_item_that_is_stored_while_the_first_time_is_under_way_ends_by_it() {
    let mut group = Group::new();
    let now = group.now;
    group.member(0).tick(1000, now);
    let mut engine = Engine::new(Limits::default(), Arc::new(Counters::default()));
    let request = whole(b"set k 0 10 5\r\nvalue\r\n", Limits::default());
    let ask = Ask {
        request: &request.expect("it is one"),
        key: b"k",
        sight: Sight::Newest,
    };
    let owner = group.member(0).owner(0).expect("it is the owner");
    let outcome = engine.serve(owner, &ask, &mut Vec::new());
    assert_eq!(outcome, Outcome::Answered { waits_for: Some(2) });
    group.settle();
    for (second, is_there) in [(1009, true), (1010, false)] {
        group.member(0).owner(0).expect("as before").tick(second);
        group.settle();
        assert_eq!(group.read(0, 0, b"k").is_some(), is_there, "{second}");
    }
}
