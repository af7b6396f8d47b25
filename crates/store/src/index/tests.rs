use std::collections::HashMap;

use super::*;

/// A key of a hash that the word leads to.
fn find(index: &Index, hash: u64) -> Option<u64> {
    let is_of_key = |word: Word| word.0 >> 32 == hash;
    match index.find(hash, &hash.to_le_bytes(), is_of_key) {
        Found::Entry { slot, .. } => Some(slot),
        Found::Free { .. } => None,
    }
}

fn add(index: &mut Index, hash: u64, round: u64) {
    let key = hash.to_le_bytes();
    let Found::Free { slot } = index.find(hash, &key, |_| false) else {
        panic!("it has no entry");
    };
    index.add(slot, hash, &key, word_of(hash, round));
}

fn word_of(hash: u64, round: u64) -> Word {
    Word(hash << 32 | round)
}

fn walk(index: &Index) -> Vec<u64> {
    let end = index.slot_count();
    let used = |slot| Some(index.next_used(slot)).filter(|next| *next < end);
    std::iter::successors(used(0), |slot| used(slot + 1)).collect()
}

#[test]
fn a_walk_passes_over_places_that_never_had_an_entry() {
    let index = Index::new(1 << 12).unwrap();
    assert_eq!(index.next_used(0), 1 << 12);
    for slot in [300, 3000] {
        index.set(slot, slot, Word(slot));
    }
    let stretches = (256..512).chain(2816..3072);
    assert_eq!(walk(&index), stretches.collect::<Vec<_>>());
    assert_eq!((index.hash(300), index.word(3000)), (300, Word(3000)));
    assert_eq!((index.hash(600), index.word(600)), (0, Word::default()));
}

#[test]
fn entries_are_found_whatever_was_taken_away() {
    // Hashes of any place, and of two of a large index, one of them at its end: more than walks
    // find.
    let spread: fn(u64) -> u64 = |key| 1 + key;
    let alike: fn(u64) -> u64 = |key| (1 + key) << 10 | (key % 2 * 1020);
    for (entry_count, hash_of, keys, most) in
        [(16_u64, spread, 40, 15), (1 << 10, alike, 700, 1000)]
    {
        let mut index = Index::new(entry_count).unwrap();
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut state = 7_u64;
        for round in 1..20_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let hash = hash_of((state >> 33) % keys);
            match find(&index, hash) {
                Some(slot) => {
                    index.remove(slot);
                    model.remove(&hash);
                }
                None if model.len() < most => {
                    add(&mut index, hash, round);
                    model.insert(hash, round);
                }
                None => {}
            }
            if entry_count > 16 && !round.is_multiple_of(100) {
                continue;
            }
            for key in 0..keys {
                let hash = hash_of(key);
                let found = find(&index, hash).map(|slot| index.word(slot));
                let expected = model.get(&hash).map(|round| word_of(hash, *round));
                assert_eq!(found, expected);
            }
            let mut seen = walk(&index);
            seen.retain(|slot| index.hash(*slot) != 0);
            assert_eq!(seen.len(), model.len(), "each is met once");
            for slot in 0..PROBE_COUNT {
                let again = ENTRIES_AT + (slot + entry_count) * ENTRY_BYTES;
                assert_eq!(index.hash(slot), index.load(again));
                assert_eq!(index.word(slot).0, index.load(again + 8));
            }
        }
    }
}

/// What a walk of a hash costs does not grow with the keys that have its place.
#[test]
fn keys_that_share_a_place_are_not_far_from_it() {
    let mut index = Index::new(1 << 12).unwrap();
    for key in 1..=2000_u64 {
        add(&mut index, key << 12 | 77, key);
    }
    let used = (0..1 << 12).filter(|slot| index.hash(*slot) != 0);
    assert_eq!(used.collect::<Vec<_>>(), (77..77 + 128).collect::<Vec<_>>());
    assert_eq!(index.slot_count(), (1 << 12) + 2000 - 128);
}
