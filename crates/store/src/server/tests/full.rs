//! Logs that are full.

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_store_that_is_full_to_the_brim_is_emptied_by_deletions() {
    let (full, busy) = (refused(Refusal::Full), refused(Refusal::Busy));
    let mut bench = Bench::new(new_pool(512 << 10, MEMORY, 8192), EFactory);
    let mut count = 0_u32;
    // Those without a value take no more room than deletions.
    for value in [&[7; 64][..], &[]] {
        loop {
            let put = bench.put(ONE, &count.to_le_bytes(), value);
            if put == full {
                break;
            } else if put == busy {
                bench.turn();
            } else {
                assert!(is_stored(put));
                count += 1;
            }
        }
    }
    bench.turn();
    assert!(count > 1000, "{count} values");
    for number in 0..count {
        loop {
            let deleted = bench.delete(&number.to_le_bytes());
            if is_stored(deleted.clone()) {
                break;
            }
            assert_eq!(deleted, busy, "{number} of {count}");
            bench.turn();
        }
    }
    assert_eq!(bench.shard.lock().pool.keys(b"").count(), 0);
    let put = bench.put(ONE, b"key", &[7; 100_000]);
    assert!(put == busy || is_stored(put));
    bench.turn();
    assert!(is_stored(bench.put(ONE, b"key", &[7; 100_000])));
}

/// Deletions of copies are such values.
#[test]
fn a_store_that_is_full_takes_small_values_in_place_of_large_ones() {
    let (full, busy) = (refused(Refusal::Full), refused(Refusal::Busy));
    let mut bench = Bench::new(new_pool(512 << 10, MEMORY, 1024), EFactory);
    let mut put = |number: u32, value: &[u8]| loop {
        let put = bench.put(ONE, &number.to_le_bytes(), value);
        if put != busy {
            return put;
        }
        bench.turn();
    };
    let mut count = 0;
    while is_stored(put(count, &[7; 1000])) {
        count += 1;
    }
    let mut other = count;
    while is_stored(put(other, &[7; 16])) {
        other += 1;
    }
    assert!(count > 200, "{count} values");
    assert_eq!(put(0, &[7; 17]), full, "it is no smaller than a deletion");
    for number in 0..count {
        assert!(is_stored(put(number, &[7; 16])), "{number} of {count}");
    }
    for number in 0..count / 2 {
        assert!(is_stored(put(number, &[7; 1000])), "{number} of {count}");
    }
}

/// It writes nothing, and asks again before what it has is given up.
#[test]
fn a_client_that_asks_for_space_for_ever_does_not_keep_the_log_from_being_cleaned() {
    const LOG_BYTES: usize = 512 << 10;
    let value = [7; 8000];
    let mut bench = Bench::new(new_pool(2 * LOG_BYTES, MEMORY, 256), EFactory);
    assert!(is_stored(bench.put(ONE, b"key", b"value")));
    bench.turn();
    let mut count = 0_usize;
    for _ in 0..40 {
        let request = Request::Space {
            condition: Condition::Always,
            value_bytes: 5,
            checksum: Model::checksum(b"key", b"never"),
            key: b"key",
        };
        bench.ask(ONE, 0, request);
        bench.now = bench.now.after(PATIENCE * 9 / 10);
        for _ in 0..40 {
            count += usize::from(is_stored(bench.put(OTHER, &[count as u8 % 8], &value)));
            bench.step();
        }
    }
    assert!(count * value.len() > 4 * LOG_BYTES, "{count} values");
    let (pool, key) = (&mut bench.shard.lock().pool, b"key");
    assert_eq!(pool.get(key).unwrap().unwrap().value, b"value");
}

/// Of the key `key`, whose value [`ONE`] replaces and never writes.
fn cleaning_that_waits() -> Bench<ModelMedium> {
    let mut bench = Bench::new(new_pool(1 << 20, MEMORY, 256), EFactory);
    assert!(is_stored(bench.put(ONE, b"key", b"value")));
    bench.turn();
    bench.space(ONE, b"key", b"never");
    bench.shard.lock().wants_cleaning = true;
    bench.turn();
    assert!(bench.shard.lock().pool.is_cleaning());
    bench
}

#[test]
fn a_key_that_cleaning_waits_for_is_deleted_at_once() {
    let mut bench = cleaning_that_waits();
    let put = bench.put(OTHER, b"key", b"other");
    assert_eq!(put, refused(Refusal::Busy));
    assert!(is_stored(bench.delete(b"key")));
    bench.turn();
    let pool = &mut bench.shard.lock().pool;
    assert!(!pool.is_cleaning(), "nothing is left to wait for");
    assert_eq!(pool.get(b"key").unwrap(), None);
}

#[test]
fn who_finds_the_log_full_while_it_is_cleaned_orders_no_other_cleaning() {
    let mut bench = cleaning_that_waits();
    let busy = refused(Refusal::Busy);
    let mut count = 0;
    while bench.put(OTHER, &[count], &[7; 50_000]) != busy {
        count += 1;
    }
    assert!(count > 5, "{count} values");
    assert!(!bench.shard.lock().wants_cleaning);
    assert!(is_stored(bench.delete(b"key")));
    bench.turn();
    let state = bench.shard.lock();
    assert!(!state.pool.is_cleaning() && state.pool.replaced_bytes() > 0);
}

/// Groups are smaller where somebody waits.
#[test]
fn who_is_refused_while_the_log_is_cleaned_waits_for_a_key_that_cleaning_waits_for_alone() {
    let bench = cleaning_that_waits();
    let (wanted, busy) = (|| bench.shard.lock().wanted.clone(), refused(Refusal::Busy));
    bench.shard.lock().pool.use_lease_up();
    bench.space(ONE, b"other", b"value");
    for _ in 0..10 {
        assert_eq!(bench.put(OTHER, b"other", b"value"), busy);
    }
    assert!(wanted().is_empty(), "{:?}", wanted());
    assert_eq!(bench.put(OTHER, b"key", b"value"), busy);
    let newest = bench.shard.lock().pool.newest_waiting(b"key").unwrap();
    assert_eq!(wanted(), BTreeSet::from([newest]));
}

/// However fast it puts, and however slow the disk is.
#[test]
fn values_in_calls_take_no_more_memory_than_their_client_s_landing_has() {
    let mut bench = Bench::new(new_pool(32 << 20, DISK, 64), EFactory);
    bench.area = Area::new(8 * INLINE_BYTES_MAX as u64).unwrap();
    let value = |number: u8| vec![number; INLINE_BYTES_MAX];
    let busy = refused(Refusal::Busy);
    for round in 0..3_u8 {
        let numbers = round * 8..round * 8 + 8;
        for number in numbers.clone() {
            assert!(is_stored(bench.put(ONE, &[number], &value(number))));
        }
        assert_eq!(bench.put(ONE, b"key", &value(0)), busy);
        assert_eq!(bench.put(ONE, b"key", b""), busy);
        // The persister was told.
        bench.turn();
        assert!(is_stored(bench.put(ONE, b"key", b"")));
        bench.turn();
    }
    for number in 0..24_u8 {
        let answer = bench.ask(OTHER, 0, Request::Get { key: &[number] });
        let is_whole = matches!(&answer, Some(Answer::Value { value, .. })
            if value[..] == [number; INLINE_BYTES_MAX]);
        assert!(is_whole, "{number}");
    }
}
