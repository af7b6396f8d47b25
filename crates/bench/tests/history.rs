//! Histories of a real memcached, judged by Porcupine; and histories that it must refuse.

use std::time::Duration;

mod support;

use cenote_bench::history::{self, Answer, Ask, Operation, Options};
use cenote_test_kit::porcupine::{judge, judged};
use support::Memcached;

#[test]
fn memcached_is_linearizable_and_a_stale_read_in_its_history_is_not() {
    let judge = match judge(env!("CARGO_TARGET_TMPDIR")) {
        Ok(judge) => judge,
        Err(why) => return println!("skipped: {why}"),
    };
    let Some(server) = Memcached::start() else {
        return println!("skipped: memcached is not installed");
    };
    let options = Options {
        time: Duration::ZERO,
        at_least: 3000,
        rate: 2000,
        ..Options::new(vec![server.address()])
    };
    let mut operations = history::record(&options, || Ok(())).unwrap();
    let (code, words) = judged(&judge, |file| history::write_json(file, &operations));
    assert_eq!(code, 0, "{words}");
    for ask in [
        Ask::Get,
        Ask::Gets,
        Ask::Set,
        Ask::Add,
        Ask::Cas,
        Ask::Incr,
        Ask::Delete,
    ] {
        let of = operations.iter().filter(|one| one.ask == ask).count();
        assert!(of > 10, "{ask:?}: {of} of {}", operations.len());
    }
    let exists = operations.iter().filter(|one| one.answer == Answer::Exists);
    let stored = |one: &&Operation| one.ask == Ask::Cas && one.answer == Answer::Stored;
    assert!(exists.count() > 0 && operations.iter().filter(stored).count() > 0);

    // A read that returns what an earlier read of the key returned, with another value between.
    let (at, old) = stale_read(&operations).expect("a key has three values that were read");
    operations[at].value = Some(old);
    let (code, words) = judged(&judge, |file| history::write_json(file, &operations));
    assert_eq!(code, 1, "{words}");
    let key = &operations[at].key;
    assert!(
        words.contains(&format!("not linearizable: key {key},")),
        "{words}"
    );
}

/// A GET late in the history, and a value of its key from early in it.
fn stale_read(operations: &[Operation]) -> Option<(usize, u64)> {
    let reads = || {
        let all = operations.iter().enumerate();
        all.filter(|(_, one)| one.ask == Ask::Get && one.answer == Answer::Value)
    };
    let (at, late) = reads().next_back()?;
    let (_, early) = reads().find(|(_, one)| one.key == late.key && one.value != late.value)?;
    Some((at, early.value?))
}

/// An operation on one key, from one time to another.
fn operation(ask: Ask, argument: Option<u64>, answer: Answer, times: (u64, u64)) -> Operation {
    Operation {
        client: usize::try_from(times.0).unwrap(),
        key: "k".to_owned(),
        ask,
        argument,
        unique: None,
        answer,
        value: None,
        call_ns: times.0,
        return_ns: (answer != Answer::Unknown).then_some(times.1),
    }
}

fn set(value: u64, times: (u64, u64)) -> Operation {
    operation(Ask::Set, Some(value), Answer::Stored, times)
}

fn get(value: Option<u64>, times: (u64, u64)) -> Operation {
    let answer = value.map_or(Answer::Miss, |_| Answer::Value);
    Operation {
        value,
        ..operation(Ask::Get, None, answer, times)
    }
}

fn gets(value: u64, unique: u64, times: (u64, u64)) -> Operation {
    Operation {
        ask: Ask::Gets,
        unique: Some(unique),
        ..get(Some(value), times)
    }
}

fn cas(value: u64, unique: u64, answer: Answer, times: (u64, u64)) -> Operation {
    Operation {
        unique: Some(unique),
        ..operation(Ask::Cas, Some(value), answer, times)
    }
}

fn incr(by: u64, became: u64, times: (u64, u64)) -> Operation {
    Operation {
        value: Some(became),
        ..operation(Ask::Incr, Some(by), Answer::Value, times)
    }
}

#[test]
fn histories_are_judged_as_one_would_by_hand() {
    let judge = match judge(env!("CARGO_TARGET_TMPDIR")) {
        Ok(judge) => judge,
        Err(why) => return println!("skipped: {why}"),
    };
    let unknown = |value, at| operation(Ask::Set, Some(value), Answer::Unknown, (at, 0));
    let delete = |times| operation(Ask::Delete, None, Answer::Deleted, times);
    let right = [
        (
            "one after the other",
            vec![set(1, (0, 1)), get(Some(1), (2, 3))],
        ),
        (
            "a read beside a write sees either",
            vec![set(1, (0, 9)), get(None, (1, 2)), get(Some(1), (3, 4))],
        ),
        (
            "without an answer, in effect late",
            vec![unknown(1, 0), get(None, (1, 2)), get(Some(1), (3, 4))],
        ),
        (
            "without an answer, never in effect",
            vec![unknown(1, 0), set(2, (1, 2)), get(Some(2), (3, 4))],
        ),
        (
            "cas of the same",
            vec![
                set(1, (0, 1)),
                gets(1, 7, (2, 3)),
                cas(2, 7, Answer::Stored, (4, 5)),
            ],
        ),
        (
            "cas of another",
            vec![
                set(1, (0, 1)),
                gets(1, 7, (2, 3)),
                set(1, (4, 5)),
                cas(2, 7, Answer::Exists, (6, 7)),
            ],
        ),
        (
            "a sum",
            vec![
                set(1, (0, 1)),
                incr(2, 3, (2, 3)),
                delete((4, 5)),
                get(None, (6, 7)),
            ],
        ),
    ];
    for (what, operations) in right {
        let (code, words) = judged(&judge, |file| history::write_json(file, &operations));
        assert_eq!(code, 0, "{what}: {words}");
    }
    let wrong = [
        ("a lost write", vec![set(1, (0, 1)), get(None, (2, 3))]),
        (
            "a stale read",
            vec![set(1, (0, 1)), set(2, (2, 3)), get(Some(1), (4, 5))],
        ),
        (
            "a value of nobody",
            vec![set(1, (0, 1)), get(Some(9), (2, 3))],
        ),
        (
            "back and forth",
            vec![unknown(1, 0), get(Some(1), (1, 2)), get(None, (3, 4))],
        ),
        (
            "a cas over another's write",
            vec![
                set(1, (0, 1)),
                gets(1, 7, (2, 3)),
                set(1, (4, 5)),
                cas(2, 7, Answer::Stored, (6, 7)),
            ],
        ),
        (
            "two of the same number",
            vec![
                set(1, (0, 1)),
                gets(1, 7, (2, 3)),
                cas(2, 7, Answer::Stored, (4, 6)),
                cas(3, 7, Answer::Stored, (5, 7)),
            ],
        ),
        (
            "a lost sum",
            vec![set(1, (0, 1)), incr(1, 2, (2, 4)), incr(1, 2, (3, 5))],
        ),
        (
            "back from the dead",
            vec![set(1, (0, 1)), delete((2, 3)), get(Some(1), (4, 5))],
        ),
    ];
    for (what, operations) in wrong {
        let (code, words) = judged(&judge, |file| history::write_json(file, &operations));
        assert_eq!(code, 1, "{what}: {words}");
        assert!(
            words.starts_with("not linearizable: key k,"),
            "{what}: {words}"
        );
    }
}
