//! What follows a write whose connection broke: it may land late.

use super::*;
use crate::path::Loss;

#[test]
fn a_write_that_a_lost_connection_left_open_is_done_again_behind_a_fence() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    let lost = Failure::Lost(Loss::Closed);
    assert!(bench.end(0, Err(lost)).is_empty());
    assert!(bench.under_way(0).is_empty(), "it may land late");
    assert_eq!(bench.client.take_doubt(), Some((0, 1)));
    // Reads go on.
    let buffer = BytesMut::zeroed(8);
    let now = bench.now;
    bench.client.submit_read(now, 512, buffer, 2).unwrap();
    assert_eq!(bench.end(0, Ok(())), [2]);
    bench.renew();
    bench.tell(2, Access::Open, &[0]);
    bench.poll();
    assert_eq!(bench.under_way(0), [7]);
    assert_eq!(bench.end(0, Ok(())), [1]);
}

#[test]
fn no_write_follows_a_lost_connection_while_its_window_is_the_same_whatever_is_told() {
    let mut bench = Bench::new();
    bench.tell(5, Access::Open, &[0]);
    bench.write(0, 7, 1);
    bench.end(0, Err(Failure::Lost(Loss::Closed)));
    assert_eq!(bench.doubts(), [(0, 5)]);
    // A move begins and is given up: nothing was fenced off.
    bench.tell(6, Access::Frozen, &[0]);
    bench.tell(7, Access::Open, &[0]);
    bench.write(512, 8, 2);
    bench.poll();
    assert!(bench.under_way(0).is_empty(), "the first one may land yet");
    assert_eq!(bench.doubts(), [(0, 6), (0, 7)], "it is to be fenced off");
    bench.renew();
    bench.tell(8, Access::Open, &[0]);
    bench.poll();
    assert_eq!(bench.under_way(0), [7, 8]);
    assert!(bench.doubts().is_empty());
}

#[test]
fn no_write_follows_when_the_connection_breaks_after_other_things_were_told() {
    let mut bench = Bench::new();
    bench.tell(5, Access::Open, &[0]);
    bench.write(0, 7, 1);
    bench.tell(6, Access::Frozen, &[0]);
    bench.tell(7, Access::Open, &[0]);
    bench.end(0, Err(Failure::Lost(Loss::Closed)));
    assert!(bench.under_way(0).is_empty(), "the first one may land yet");
    assert_eq!(bench.doubts(), [(0, 7)]);
    // Given up by now: what follows waits all the same.
    assert!(bench.poll_for(31).iter().any(|ended| ended.token == 1));
    bench.client.handle_lease(bench.now, bench.now);
    bench.write(0, 8, 2);
    assert!(bench.under_way(0).is_empty());
    bench.renew();
    bench.tell(8, Access::Open, &[0]);
    bench.poll();
    assert_eq!(bench.under_way(0), [8]);
}

#[test]
fn a_window_that_is_left_keeps_writes_waiting_only_where_it_comes_back() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    bench.end(0, Err(Failure::Lost(Loss::Silent)));
    // The copy that it went to retires, and counts again as the other one is lost.
    bench.tell(2, Access::Frozen, &[1]);
    bench.tell(3, Access::Frozen, &[0]);
    bench.tell(4, Access::Open, &[0]);
    bench.poll();
    assert!(bench.under_way(0).is_empty());
    bench.tell(5, Access::Open, &[1]);
    bench.poll();
    assert_eq!(bench.under_way(1), [7], "nothing lands late there");
}

#[test]
fn of_two_copies_the_window_counts_in_which_the_write_was_under_way() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.write(0, 7, 1);
    bench.end(1, Ok(()));
    bench.end(0, Err(Failure::Lost(Loss::Closed)));
    bench.tell(2, Access::Open, &[0, 1]);
    bench.poll();
    assert!(bench.under_way(1).is_empty());
    bench.tell(3, Access::Open, &[1]);
    bench.poll();
    assert_eq!(bench.under_way(1), [7]);
}
