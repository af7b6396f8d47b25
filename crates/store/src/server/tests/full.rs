//! Logs that are full.

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
