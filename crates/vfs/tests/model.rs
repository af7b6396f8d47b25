//! Any list of requests leaves what a simple model says, now and after it was opened again.

mod support;

use std::sync::Arc;

use cenote_vfs::Files;
use cenote_vfs::medium::model::{ModelMedium, Survival};
use proptest::prelude::*;
use support::{Model, Op, Pair, caller, compare, ops, same_bytes};

const SIZE_BYTES: u64 = 8 << 20;

fn opened(medium: &Arc<ModelMedium>) -> Files {
    let medium = Arc::clone(medium);
    Files::open(medium, caller()).expect("a file system")
}

fn check(files: &Files, model: &Model) {
    let same = compare(files, model, &mut same_bytes);
    assert!(same.is_ok(), "{same:?}");
}

fn blocks_of(files: &Files) -> u64 {
    let usage = files.usage();
    usage.total_blocks - usage.free_blocks
}

fn equals_the_model(list: &[Op]) {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let mut pair = Pair::new(opened(&medium));
    for op in list {
        assert!(pair.run(op), "the medium does not fail");
        if matches!(op, Op::Commit) {
            check(&pair.files, &pair.model);
        }
    }
    check(&pair.files, &pair.model);
    assert!(pair.run(&Op::Release), "the medium does not fail");
    pair.files.close().expect("committed");
    check(&pair.files, &pair.model);
    let used = blocks_of(&pair.files);
    drop(pair.files);
    let after = Arc::new(medium.crash(Survival::None));
    let again = opened(&after);
    check(&again, &pair.model);
    // Nothing leaks, and nothing is free that a file has.
    assert_eq!(blocks_of(&again), used);
    let reserved = 64 * 4096;
    assert!(medium.held_bytes() < used * 4096 + SIZE_BYTES / 16 + reserved + (1 << 20));
}

#[test]
fn a_commit_writes_a_few_pages_whatever_it_carries() {
    // On a smaller one this would be several batches.
    let medium = Arc::new(ModelMedium::new(1 << 30));
    let files = opened(&medium);
    let mut before = medium.steps();
    let mut steps = Vec::new();
    for round in 0..20_u8 {
        for file in 0..round {
            let name = [b'a' + round, b'a' + file];
            support::new_file(&files, &name, &[1; 4096]).expect("a file");
        }
        files.commit().expect("committed");
        let now = medium.steps() - u64::from(round);
        steps.push(now - before);
        before = medium.steps();
    }
    println!("steps of commits of 0 to 19 new files: {steps:?}");
    assert!(steps.iter().all(|steps| *steps < 40), "{steps:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_requests_leave_what_the_model_says(list in ops(80)) {
        equals_the_model(&list);
    }
}

mod long {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_requests_leave_what_the_model_says(list in ops(200)) {
            equals_the_model(&list);
        }
    }
}
