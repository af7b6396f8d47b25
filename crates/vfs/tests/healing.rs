//! A medium that fails for a while and answers again: the file system comes back by itself, with
//! every change that was acknowledged, and nothing half done.

mod support;

use std::sync::Arc;

use cenote_vfs::label::Label;
use cenote_vfs::medium::MediumError;
use cenote_vfs::medium::model::{ModelMedium, Survival};
use cenote_vfs::{Files, FsError};
use proptest::prelude::*;
use support::{Model, Op, Pair, caller, compare, ops, same_bytes};

const SIZE_BYTES: u64 = 8 << 20;

/// Which of the models the file system is as.
fn find(files: &Files, models: &[Model]) -> Result<usize, String> {
    let mut why = String::new();
    for (at, model) in models.iter().enumerate() {
        match compare(files, model, &mut same_bytes) {
            Ok(()) => return Ok(at),
            Err(differs) => why = format!("{why}; {at}: {differs}"),
        }
    }
    Err(why)
}

/// Runs the requests while the medium fails under some and answers again.
fn heals(list: &[(Op, u8)]) {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    let mut pair = Pair::new(files);
    let data = Label::of_size(SIZE_BYTES).data_offset();
    let mut is_failing = false;
    for (number, (op, fate)) in list.iter().enumerate() {
        match fate {
            0 => {
                // Data is written or not; metadata may be, and nobody knows.
                medium.fail_wholly(MediumError::Io, data);
                is_failing = true;
            }
            1..3 if is_failing => {
                medium.fail(None);
                is_failing = false;
                pair.files.commit().expect("it answers again");
                let found = find(&pair.files, std::slice::from_ref(&pair.model));
                assert!(found.is_ok(), "request {number}: {found:?}");
            }
            _ => {}
        }
        let after = pair.foresee(op);
        if pair.run(op) {
            continue;
        }
        assert!(is_failing, "request {number}: {op:?}");
        if matches!(op, Op::Sync(_) | Op::Commit) {
            continue;
        }
        // What failed is done, or not at all; of a copy or a cut a part may be.
        medium.fail(None);
        is_failing = false;
        pair.files.commit().expect("it answers again");
        let found = find(&pair.files, &[pair.model.clone(), after.clone()]);
        match found {
            // What nobody holds goes once it can.
            Ok(_) if matches!(op, Op::Release) => pair.model = after,
            Ok(0) => {}
            Ok(_) => pair.model = after,
            Err(_) if matches!(op, Op::Copy(..) | Op::Cut(..) | Op::Allocate(..)) => return,
            Err(why) => panic!("request {number}, {op:?}: {why}"),
        }
    }
    medium.fail(None);
    pair.files.commit().expect("it answers again");
    let model = &mut pair.model;
    model.forget_held();
    let after = Arc::new(medium.crash(Survival::None));
    let again = Files::open(after, caller()).expect("a file system");
    let found = find(&again, std::slice::from_ref(model));
    assert!(found.is_ok(), "after a crash: {found:?}");
    let blocks = support::blocks_of_names(&again).expect("names");
    let usage = again.usage();
    assert_eq!(usage.total_blocks - usage.free_blocks, blocks);
}

#[test]
fn what_was_not_committed_when_the_medium_failed_is_committed_when_it_answers() {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    let synced = support::new_file(&files, b"synced", b"1").expect("a file");
    files.fsync(synced).expect("synced");
    let kept = support::new_file(&files, b"kept", b"2").expect("a file");
    medium.fail_wholly(MediumError::Io, 0);
    assert_eq!(files.fsync(kept), Err(FsError::Io));
    for _ in 0..3 {
        assert_eq!(files.commit(), Err(FsError::Io));
        let refused = support::new_file(&files, b"refused", b"3");
        assert_eq!(refused, Err(FsError::Io));
    }
    medium.fail(None);
    files.fsync(kept).expect("it answers again");
    let again = Arc::new(medium.crash(Survival::None));
    let again = Files::open(again, caller()).expect("a file system");
    for (name, bytes) in [(b"synced", &b"1"[..]), (b"kept\0\0", b"2")] {
        let name = name.split(|byte| *byte == 0).next().expect("a name");
        let (ino, _) = again.lookup(cenote_vfs::ROOT, name).expect("a file");
        assert_eq!(support::content(&again, ino).expect("bytes"), bytes);
    }
    let refused = again.lookup(cenote_vfs::ROOT, b"refused");
    assert_eq!(refused.map(drop), Err(FsError::NotFound));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_medium_that_answers_again_is_used_again(
        (list, fates) in ops(100).prop_flat_map(|list| {
            let count = list.len();
            (Just(list), proptest::collection::vec(0..12_u8, count))
        })
    ) {
        heals(&list.into_iter().zip(fates).collect::<Vec<_>>());
    }
}

mod long {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn a_medium_that_answers_again_is_used_again(
            (list, fates) in ops(200).prop_flat_map(|list| {
                let count = list.len();
                (Just(list), proptest::collection::vec(0..12_u8, count))
            })
        ) {
            heals(&list.into_iter().zip(fates).collect::<Vec<_>>());
        }
    }
}
