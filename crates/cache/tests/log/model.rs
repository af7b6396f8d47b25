//! Any list of operations: every answer is one that the model allows.

use proptest::prelude::*;

use crate::harness::{Conditions, Harness, Op};
use crate::values::KEYS;
use cenote_test_kit::Random;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..KEYS).prop_map(Op::Read),
        6 => (0..KEYS, 0u64..1000).prop_map(|(key, number)| Op::Upsert(key, number)),
        4 => (0..KEYS, 1u64..9).prop_map(|(key, operand)| Op::Merge(key, operand)),
        1 => (0..KEYS).prop_map(Op::Delete),
        2 => (0u8..8).prop_map(Op::Poll),
        1 => Just(Op::Commit),
        1 => Just(Op::Checkpoint),
        1 => (0u8..9).prop_map(Op::Compact),
        1 => prop_oneof![Just(Op::LoseCache), Just(Op::RestoreCache)],
        1 => any::<u64>().prop_map(Op::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_one_that_a_map_would_give(
        seed in any::<u64>(),
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        let conditions = Conditions::random(&mut Random(seed));
        let outcome = Harness::new(conditions).run(&ops);
        prop_assert!(outcome.is_ok(), "{conditions:?}: {}", outcome.unwrap_err());
    }
}

#[test]
fn long_lives_of_stores_keep_every_promise() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let conditions = Conditions::random(&mut random);
        let ops: Vec<Op> = (0..600).map(|_| Op::random(&mut random)).collect();
        let outcome = Harness::new(conditions).run(&ops);
        assert!(
            outcome.is_ok(),
            "seed {seed}, {conditions:?}: {}",
            outcome.unwrap_err()
        );
    }
}
