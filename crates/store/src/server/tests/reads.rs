//! What reads, conditions and lists find while others write.

use super::*;
use crate::pool::{OBJECTS_READ, hash};
use crate::protocol::LIST_BYTES;

/// Of a key that is put all the time the newest version always waits.
#[test]
fn reads_and_conditions_end_though_newer_versions_keep_coming() {
    let mut bench = Bench::new(new_pool(32 << 20, DISK, 64), EFactory);
    // So much waits that no group has all of it: fences take their time.
    let large = vec![1; 1 << 20];
    for number in 0..4_u8 {
        bench.space(OTHER, &[number], &large);
    }
    let Some(Answer::Done { sequence }) = bench.put(ONE, b"key", b"first") else {
        panic!("it is put");
    };
    bench.step();
    assert!(bench.persister.is_in_fence());
    let put = |condition| Request::Put {
        condition,
        is_durable: false,
        key: b"key",
        value: b"by condition",
    };
    let locate = Request::Locate { key: b"key" };
    assert_eq!(bench.ask(OTHER, 7, locate), None);
    assert_eq!(
        bench.ask(OTHER, 8, put(Condition::Sequence(sequence))),
        None
    );
    assert_eq!(bench.ask(OTHER, 9, put(Condition::Absent)), None);
    let mut told = Vec::new();
    for fence in 1..=3_u8 {
        assert!(is_stored(bench.put(ONE, b"key", &[fence])));
        // It is known what comes next before that is durable.
        bench.step();
        bench.shard.end_fence();
        bench.step();
        assert!(bench.persister.is_in_fence());
        told.extend(bench.told());
    }
    told.sort_unstable();
    assert_eq!(told, [7, 8, 9]);
}

/// Its versions were given up, each once the next one led to it.
#[test]
fn requests_for_one_key_share_walks_of_its_versions() {
    let mut bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
    assert!(is_stored(bench.put(ONE, b"key", b"value")));
    bench.turn();
    let mut before = None;
    for _ in 0..1000 {
        let (taken, _) = bench.space(ONE, b"key", b"never");
        if let Some(before) = before.replace(taken) {
            let mut state = bench.shard.lock();
            state.give_up(&bench.shard.outboxes, before);
        }
    }
    let condition = Condition::Sequence(1);
    for peer in 0..1000 {
        let locate = Request::Locate { key: b"key" };
        let delete = Request::Delete {
            condition,
            key: b"key",
        };
        let request = if peer % 2 == 0 { locate } else { delete };
        assert_eq!(bench.ask(OTHER, peer, request), None);
        // Others put other keys meanwhile.
        assert!(is_stored(bench.put(ONE, b"other", b"")));
    }
    let read = OBJECTS_READ.get();
    bench.turn();
    let read = OBJECTS_READ.get() - read;
    assert_eq!(bench.told().len(), 1000);
    // A request for each walk would be a million for each look.
    assert!(read < 500_000, "{read} versions were read");
}

#[test]
fn a_get_is_answered_with_a_value_that_is_short_and_durable() {
    let mut bench = Bench::new(new_pool(8 << 20, DISK, 64), EFactory);
    let get = |bench: &Bench<ModelMedium>| bench.ask(OTHER, 7, Request::Get { key: b"key" });
    assert_eq!(get(&bench), Some(Answer::Absent));
    let short = vec![5; INLINE_BYTES_MAX];
    let Some(Answer::Done { sequence }) = bench.put(ONE, b"key", &short) else {
        panic!("it is put");
    };
    assert_eq!(get(&bench), None, "told once it is durable");
    bench.turn();
    assert_eq!(bench.told(), [7]);
    let value = short;
    assert_eq!(get(&bench), Some(Answer::Value { sequence, value }));

    let long = vec![6; INLINE_BYTES_MAX + 1];
    let (_, offset) = bench.space(ONE, b"key", &long);
    bench.area.region().write(offset, &long).unwrap();
    bench.turn();
    assert!(matches!(get(&bench), Some(Answer::Place { .. })));
}

/// Keys whose entries are in a row, from one place on.
fn keys_of_one_place(count: usize, places: u64) -> Vec<Vec<u8>> {
    let all = (0_u64..).map(|number| format!("{number:0>250}").into_bytes());
    let is_at_place = |key: &Vec<u8>| hash(7, key) % places == 40;
    all.filter(is_at_place).take(count).collect()
}

#[test]
fn a_list_beside_a_cleaning_misses_no_key() {
    const PLACES: u64 = 1024;
    // In the row, and some that found no place there.
    let keys = keys_of_one_place(140, PLACES);
    for gone in [0, 50, 126, 127] {
        let mut bench = Bench::new(new_pool(1 << 20, MEMORY, PLACES), EFactory);
        for key in &keys {
            assert!(is_stored(bench.put(ONE, key, b"value")));
        }
        bench.turn();
        assert!(is_stored(bench.delete(&keys[gone])));
        bench.turn();
        let (mut listed, mut next, mut parts) = (Vec::new(), Some(0), 0);
        while let Some(slot) = next {
            let prefix = &b""[..];
            let list = Request::List {
                shard: 0,
                slot,
                prefix,
            };
            let Some(Answer::Keys { next_slot, keys }) = bench.ask(ONE, 0, list) else {
                panic!("no list");
            };
            assert!(next_slot.is_none_or(|next| next > slot), "it goes on");
            let bytes: usize = keys.iter().map(|key| key.len() + 1).sum();
            assert!(bytes < 4 * LIST_BYTES);
            listed.extend(keys);
            next = next_slot;
            parts += 1;
            // Takes the deleted key's entry away: those behind it move up.
            assert!(is_stored(bench.ask(ONE, 0, Request::Clean { shard: 0 })));
            bench.turn();
        }
        assert!(parts > 2, "all in {parts} parts");
        listed.sort_unstable();
        listed.dedup();
        let mut there = keys.clone();
        there.remove(gone);
        assert_eq!(listed.len(), there.len(), "{gone} is gone");
        assert_eq!(listed, there);
    }
}
