//! Notices that values were written: they may name any version.

use super::*;
use crate::schemes::{Imm, Saw};

#[test]
fn a_notice_of_a_version_that_never_was_is_refused() {
    let bench = Bench::new(new_pool(1 << 20, MEMORY, 64), Saw);
    let incomplete = refused(Refusal::Incomplete);
    let is_refused = |sequence| {
        let reply = bench.shard.written(sequence, ONE, PeerId(1), bench.now);
        let Reply::Now(answer) = reply else {
            panic!("{sequence} is waited for");
        };
        assert_eq!(Some(answer), incomplete, "{sequence}");
    };
    let never = [0, 2, 3, 1 << 31, 1 << 32, (1 << 32) + 1, u64::MAX];
    never.into_iter().chain([1]).for_each(is_refused);
    // Nor once its client has a version, with the same low half or another.
    let (first, offset) = bench.space(ONE, b"key", b"value");
    never.into_iter().for_each(is_refused);
    bench.shard.medium.write(offset, b"value");
    assert_eq!(bench.told(), [0; 0]);
    assert!(is_stored(bench.settle(ONE, 0, first)));
    never.into_iter().for_each(is_refused);
}

#[test]
fn the_low_half_of_a_sequence_is_of_the_newest_that_was_given() {
    let bench = Bench::new(new_pool(1 << 20, MEMORY, 64), Imm);
    let of = |low| bench.shard.sequence_of(low);
    assert_eq!([0, 1, u32::MAX].map(of), [0, 0, 0]);
    for sequence in 1..=3 {
        assert_eq!(bench.space(ONE, b"key", b"value").0, sequence);
    }
    assert_eq!(
        [0, 1, 2, 3, 4, 1 << 31, u32::MAX].map(of),
        [0, 1, 2, 3, 0, 0, 0]
    );
}
