//! The index beside a map, and under threads while it grows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::index::{BucketTag, Full, Index, TAG_BITS};

/// A place of an index that begins with four buckets. Few tags: many are met again.
fn place() -> impl Strategy<Value = BucketTag> {
    (0usize..4, 0u64..48).prop_map(|(bucket, tag)| BucketTag {
        bucket,
        tag: tag * 341 % (1 << TAG_BITS),
    })
}

#[derive(Clone, Debug)]
enum Op {
    Put(BucketTag),
    Find(BucketTag),
    Split,
    /// Everything below the address that so many puts ago had.
    Sweep(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => place().prop_map(Op::Put),
        4 => place().prop_map(Op::Find),
        1 => Just(Op::Split),
        1 => (0u64..60).prop_map(Op::Sweep),
    ]
}

/// What has a chain, by bucket and tag.
fn entries(index: &Index) -> BTreeMap<(usize, u64), u64> {
    let mut found = BTreeMap::new();
    index.for_each(|place, address| {
        let before = found.insert((place.bucket, place.tag), address);
        assert_eq!(before, None, "{place:?} has two entries");
    });
    found
}

proptest! {
    #[test]
    fn an_index_that_grows_answers_as_a_map(
        ops in proptest::collection::vec(op(), 1..300),
        overflow in 0usize..12,
        growth in 0u32..5,
    ) {
        let index = Index::new(4, 4 << growth, overflow);
        let mut model = BTreeMap::new();
        let mut address = 0;
        for op in ops {
            match op {
                Op::Put(place) => {
                    address += 8;
                    match index.find_or_add(place) {
                        Ok(entry) => {
                            let before = model.insert((place.bucket, place.tag), address);
                            // What was swept has an entry no more.
                            prop_assert_eq!(entry.address(), before.unwrap_or(0));
                            prop_assert!(entry.replace(address));
                        }
                        Err(Full) => prop_assert!(!model.contains_key(&(place.bucket, place.tag))),
                    }
                }
                Op::Find(place) => {
                    let found = index.find(place).map_or(0, |entry| entry.address());
                    prop_assert_eq!(found, *model.get(&(place.bucket, place.tag)).unwrap_or(&0));
                }
                Op::Split => index.split_next(),
                Op::Sweep(ago) => {
                    let begin = address.saturating_sub(ago * 8);
                    index.sweep(begin);
                    model.retain(|_, address| *address >= begin);
                }
            }
        }
        prop_assert_eq!(entries(&index), model);
        prop_assert!(index.bucket_count() <= 4 << growth);
    }
}

#[test]
fn an_index_has_a_bucket_for_three_entries_until_it_may_grow_no_more() {
    let index = Index::new(4, 64, 64);
    let mut state = 1_u64;
    for number in 1..=300 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let place = index.place(state ^ state >> 29);
        assert!(index.find_or_add(place).unwrap().replace(number * 8));
        let least = (entries(&index).len() / 3).clamp(4, 64);
        let most = least + 1;
        assert!((least..=most).contains(&index.bucket_count()) || index.bucket_count() == 64);
    }
    assert_eq!(index.bucket_count(), 64);
}

#[test]
fn an_index_grows_for_a_bucket_that_is_full_and_refuses_a_key_only_when_it_can_grow_no_more() {
    let index = Index::new(4, 4 << 4, 0);
    let add = |bucket, tag| index.find_or_add(BucketTag { bucket, tag }).map(drop);
    // Of its seven entries and one more a half moves when it is split, the last of the four.
    for tag in 0..8 {
        assert_eq!(add(3, tag), Ok(()), "{tag}");
    }
    assert_eq!(index.bucket_count(), 8);
    // These stay together however far it grows.
    for number in 0..7 {
        assert_eq!(add(0, number << 4), Ok(()), "{number}");
    }
    assert_eq!(add(0, 7 << 4), Err(Full));
    assert_eq!(index.bucket_count(), 64);
    for tag in 0..8 {
        assert!(index.find(BucketTag { bucket: 3, tag }).is_some(), "{tag}");
    }
}

/// Threads that own places count upwards in them while the index grows from one bucket to
/// thousands; others look for what has been there all the time.
#[test]
fn nothing_is_missed_while_the_index_grows_under_threads() {
    const THREADS: u64 = 3;
    const PLACES: u64 = 4000;
    let index = Index::new(1, 1 << 10, 4000);
    let place = |thread: u64, number: u64| BucketTag {
        bucket: 0,
        tag: thread * PLACES + number,
    };
    let old = BucketTag {
        bucket: 0,
        tag: THREADS * PLACES + 1,
    };
    assert!(index.find_or_add(old).unwrap().replace(8));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let index = &index;
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(index.find(old).map(|entry| entry.address()), Some(8));
            }
        });
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..PLACES {
                        // The one before is counted up, too: it moves now and then.
                        for at in [number, number.saturating_sub(1)] {
                            loop {
                                let entry = index.find_or_add(place(thread, at)).unwrap();
                                if entry.replace(entry.address() + 8) {
                                    break;
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(index.bucket_count() > 512, "{}", index.bucket_count());
    let found = entries(&index);
    for thread in 0..THREADS {
        for number in 0..PLACES {
            let times = match number {
                0 => 3,
                last if last == PLACES - 1 => 1,
                _ => 2,
            };
            let place = place(thread, number);
            assert_eq!(found[&(place.bucket, place.tag)], times * 8, "{place:?}");
        }
    }
    assert_eq!(found.len() as u64, THREADS * PLACES + 1);
}
