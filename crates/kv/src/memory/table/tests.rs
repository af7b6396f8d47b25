use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// The hash of most tests.
fn key_hash(key: &[u8]) -> u64 {
    cenote_codec::xxh3(key)
}

fn table(hash: fn(&[u8]) -> u64) -> Table {
    Table::new(KeyHasher::given(hash))
}

/// More than a dozen segments hold.
const KEY_COUNT: u32 = 6000;

/// Keys of several lengths.
fn key(number: u32) -> Vec<u8> {
    let mut key = number.to_string().into_bytes();
    key.resize(key.len() + number as usize % 23, b'_');
    key
}

fn entry(seed: u32) -> Entry {
    Entry {
        client_flags: seed,
        expiry: seed.rotate_left(7),
        cas: u64::from(seed) << 48 | u64::from(seed.rotate_left(3)),
        address: (u64::from(seed) * 0x1_0003 % (1 << 40)) * 16,
        value_bytes: seed % 5000,
        marks: seed as u8,
        last_use: seed.rotate_left(11),
        was_hit: seed.is_multiple_of(3),
    }
}

/// Hashes whose top 24 bits are one of two.
fn crowded(key: &[u8]) -> u64 {
    let hash = key_hash(key);
    (hash & 1) << 63 | hash << 24 >> 24 & (u64::MAX >> 24)
}

/// Ever fewer hashes with more leading zeros, so that segments are of all depths.
fn skewed(key: &[u8]) -> u64 {
    let hash = key_hash(key);
    hash >> (hash % 8)
}

/// Eight hashes for all keys.
fn equal(key: &[u8]) -> u64 {
    key_hash(key) % 8
}

/// A run of keys, and what is done to each.
#[derive(Clone, Debug)]
struct Step {
    does: Does,
    first: u32,
    count: u32,
    seed: u32,
}

#[derive(Clone, Copy, Debug)]
enum Does {
    Put,
    Set,
    Remove,
    Use,
    Choose,
}

impl Step {
    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.first;
        (0..self.count).map(move |by| (first + by) % KEY_COUNT)
    }
}

fn steps(counts: std::ops::Range<u32>) -> impl Strategy<Value = Vec<Step>> {
    let does = prop_oneof![
        4 => Just(Does::Put),
        1 => Just(Does::Set),
        3 => Just(Does::Remove),
        1 => Just(Does::Use),
        1 => Just(Does::Choose),
    ];
    let step = (does, 0..KEY_COUNT, counts, any::<u32>());
    let step = step.prop_map(|(does, first, count, seed)| Step {
        does,
        first,
        count,
        seed,
    });
    prop::collection::vec(step, 1..14)
}

/// What a table must agree with.
#[derive(Default)]
struct Model {
    items: HashMap<Vec<u8>, Entry>,
    /// Those that were chosen to go.
    chosen: HashSet<Vec<u8>>,
}

impl Model {
    /// Does a step to both; every answer of the table is compared.
    fn apply(&mut self, table: &mut Table, step: &Step) {
        let hasher = table.hasher;
        for number in step.numbers() {
            let key = key(number);
            let hash = hasher.hash(&key);
            let new = entry(step.seed.wrapping_add(number));
            let slot = table.find(hash, &key);
            assert_eq!(slot.is_some(), self.items.contains_key(&key));
            match (step.does, slot) {
                (Does::Put, _) => {
                    let (slot, old) = table.put(hash, &key, &new);
                    assert_eq!(old, self.items.insert(key.clone(), new));
                    assert_eq!((table.entry(slot), table.key(slot)), (new, &key[..]));
                }
                (Does::Set, Some(slot)) => {
                    table.set(slot, &new);
                    self.items.insert(key, new);
                }
                (Does::Use, Some(slot)) => {
                    table.note_use(slot, step.seed);
                    let entry = self.items.get_mut(&key).unwrap();
                    (entry.last_use, entry.was_hit) = (step.seed, true);
                }
                (Does::Set | Does::Use, None) => {}
                (Does::Remove, _) => {
                    assert_eq!(table.remove(hash, &key), self.items.remove(&key));
                    self.chosen.remove(&key);
                }
                (Does::Choose, _) => match table.choose_coldest() {
                    Some(slot) => {
                        let key = table.key(slot).to_vec();
                        assert!(self.items.contains_key(&key) && self.chosen.insert(key));
                    }
                    None => assert_eq!(self.chosen.len(), self.items.len()),
                },
            }
        }
    }

    fn check(&self, table: &Table) {
        assert_eq!(table.len(), self.items.len());
        let slot_bytes = |key: &[u8]| 40 + key.len().div_ceil(8) as u64 * 8;
        let used: u64 = self.items.keys().map(|key| slot_bytes(key)).sum();
        assert_eq!(table.used_bytes(), used);
        let staying = self
            .items
            .iter()
            .filter(|(key, _)| !self.chosen.contains(*key));
        let space = |entry: &Entry| u64::from(entry.value_bytes.max(1)).div_ceil(16) * 16;
        let evictable: u64 = staying
            .map(|(key, entry)| slot_bytes(key) + space(entry))
            .sum();
        assert_eq!(table.evictable_bytes(), evictable);
        for (key, entry) in &self.items {
            let slot = table
                .find(table.hash_of(key), key)
                .expect("a key that was put");
            assert_eq!((table.key(slot), table.entry(slot)), (&key[..], *entry));
        }
        assert_eq!(table.index.resident_bytes(), table.index.counted_bytes());
    }
}

/// All of a table by stretches, and what is done in between.
fn walk(table: &mut Table, mut between: impl FnMut(&mut Table)) -> Vec<(u64, Vec<u8>, Entry)> {
    let mut shown = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let stretch = table.stretch(from);
        let end = stretch.next.unwrap_or(u64::MAX);
        assert!(
            stretch
                .items
                .iter()
                .all(|(hash, ..)| (from..=end).contains(hash))
        );
        assert!(stretch.items.is_sorted_by_key(|(hash, ..)| *hash));
        let items = stretch.items.into_iter();
        shown.extend(items.map(|(hash, key, entry)| (hash, key.to_vec(), entry)));
        assert!(
            stretch.next.is_none_or(|next| next > from),
            "the walk stands still"
        );
        next = stretch.next;
        between(table);
    }
    shown
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn holds_what_a_map_holds(
        steps in steps(1..4000),
        hash_of in prop_oneof![Just(key_hash as fn(&[u8]) -> u64), Just(crowded as _), Just(skewed as _)],
    ) {
        let mut table = table(hash_of);
        let mut model = Model::default();
        for step in &steps {
            model.apply(&mut table, step);
            model.check(&table);
        }
        let shown = walk(&mut table, |_| {});
        prop_assert_eq!(shown.len(), model.items.len());
        for (hash, key, entry) in shown {
            prop_assert_eq!(hash, hash_of(&key));
            prop_assert_eq!(Some(&entry), model.items.get(&key));
        }
    }

    #[test]
    fn keys_of_equal_hash_are_told_apart(steps in steps(1..60)) {
        let mut table = table(equal);
        let mut model = Model::default();
        for step in &steps {
            model.apply(&mut table, step);
        }
        model.check(&table);
    }

    #[test]
    fn a_walk_shows_what_is_there_all_the_time(
        stable in steps(1..4000),
        between in prop::collection::vec(steps(1..4000), 1..8),
        hash_of in prop_oneof![Just(key_hash as fn(&[u8]) -> u64), Just(skewed as _), Just(crowded as _)],
    ) {
        let mut table = table(hash_of);
        let mut model = Model::default();
        stable.iter().for_each(|step| model.apply(&mut table, step));
        let before: HashMap<_, _> = model.items.clone();
        let mut touched: HashSet<Vec<u8>> = HashSet::new();
        let mut rounds = between.iter();
        let shown = walk(&mut table, |table| {
            for step in rounds.next().into_iter().flatten() {
                touched.extend(step.numbers().map(key));
                model.apply(table, step);
            }
        });
        let shown: HashMap<_, _> = shown.into_iter().map(|(_, key, entry)| (key, entry)).collect();
        for (key, entry) in before.iter().filter(|(key, _)| !touched.contains(*key)) {
            prop_assert_eq!(shown.get(key), Some(entry));
        }
    }

    #[test]
    fn the_same_operations_make_the_same_items(steps in steps(1..2000), missing in 0..KEY_COUNT) {
        let (mut one, mut other) = (table(key_hash), table(key_hash));
        let (mut model, mut other_model) = (Model::default(), Model::default());
        for step in &steps {
            model.apply(&mut one, step);
            // Reads and choices are a process's own.
            if !matches!(step.does, Does::Use | Does::Choose) {
                other_model.apply(&mut other, step);
            }
        }
        prop_assert!(one.same_items(&other) && other.same_items(&one));
        let key = key(missing);
        let hash = key_hash(&key);
        let differs = match other.find(hash, &key) {
            Some(slot) => {
                let cas = other.entry(slot).cas ^ 1;
                other.set(slot, &Entry { cas, ..other.entry(slot) });
                other.find(hash, &key).is_some()
            }
            None => other.put(hash, &key, &entry(missing)).1.is_none(),
        };
        prop_assert!(differs && !one.same_items(&other) && !other.same_items(&one));
    }
}

/// The policy as its paper has it, for so few keys that the ghost forgets none.
#[derive(Default)]
struct Policy {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghost: HashSet<u32>,
    /// Uses and bytes.
    facts: HashMap<u32, (u8, u64)>,
}

impl Policy {
    fn bytes(&self, queue: &VecDeque<u32>) -> u64 {
        queue.iter().map(|number| self.facts[number].1).sum()
    }

    fn put(&mut self, number: u32, bytes: u64) {
        if let Some((uses, of)) = self.facts.get_mut(&number) {
            (*uses, *of) = ((*uses + 1).min(3), bytes);
            return;
        }
        self.facts.insert(number, (0, bytes));
        if self.ghost.remove(&number) {
            self.main.push_back(number);
        } else {
            self.small.push_back(number);
        }
    }

    fn read(&mut self, number: u32) {
        if let Some((uses, _)) = self.facts.get_mut(&number) {
            *uses = (*uses + 1).min(3);
        }
    }

    fn remove(&mut self, number: u32) {
        self.facts.remove(&number);
        self.small.retain(|other| *other != number);
        self.main.retain(|other| *other != number);
    }

    fn evict(&mut self) -> Option<u32> {
        loop {
            let (small, main) = (self.bytes(&self.small), self.bytes(&self.main));
            if small * 10 >= small + main && small > 0 {
                let number = self.small.pop_front()?;
                if self.facts[&number].0 > 1 {
                    self.facts.get_mut(&number)?.0 = 0;
                    self.main.push_back(number);
                } else {
                    self.ghost.insert(number);
                    return Some(number);
                }
            } else {
                let number = self.main.pop_front()?;
                let uses = &mut self.facts.get_mut(&number)?.0;
                if *uses == 0 {
                    return Some(number);
                }
                *uses -= 1;
                self.main.push_back(number);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn goes_what_the_papers_policy_lets_go(
        steps in prop::collection::vec((0..8_u8, 0..15_u32, 0..700_u32), 1..300),
    ) {
        let mut table = table(key_hash);
        let mut policy = Policy::default();
        for (does, number, value_bytes) in steps {
            let name = key(number);
            let hash = key_hash(&name);
            match does {
                0..=2 => {
                    table.put(hash, &name, &Entry { value_bytes, ..Entry::default() });
                    let value = u64::from(value_bytes.max(1)).div_ceil(16) * 16;
                    policy.put(number, 40 + name.len().div_ceil(8) as u64 * 8 + value);
                }
                3..=5 => {
                    if let Some(slot) = table.find(hash, &name) {
                        table.note_use(slot, 1);
                    }
                    policy.read(number);
                }
                6 => {
                    table.remove(hash, &name);
                    policy.remove(number);
                }
                _ => {
                    let gone = table.choose_coldest().map(|slot| table.key(slot).to_vec());
                    let expected = policy.evict();
                    prop_assert_eq!(&gone, &expected.map(key));
                    if let (Some(name), Some(number)) = (gone, expected) {
                        table.remove(key_hash(&name), &name);
                        policy.facts.remove(&number);
                    }
                }
            }
        }
    }
}

/// Puts keys; those that are there are used.
fn put_all(table: &mut Table, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let key = key(number);
        let hash = table.hash_of(&key);
        match table.find(hash, &key) {
            Some(slot) => table.note_use(slot, 1),
            None => {
                table.put(hash, &key, &Entry::default());
            }
        }
    }
}

/// As [`put_all`] one after the other, with as many evictions as keep the table at `len`.
fn put_within(table: &mut Table, numbers: impl Iterator<Item = u32>, len: usize) {
    for number in numbers {
        put_all(table, std::iter::once(number));
        while table.len() > len {
            let slot = table.choose_coldest().expect("something to evict");
            let key = table.key(slot).to_vec();
            assert!(table.remove(table.hash_of(&key), &key).is_some());
        }
    }
}

fn has(table: &Table, number: u32) -> bool {
    let key = key(number);
    table.find(table.hash_of(&key), &key).is_some()
}

#[test]
fn segments_are_split_and_joined_again() {
    let mut table = table(key_hash);
    put_all(&mut table, 0..100_000);
    let full = table.resident_bytes() - table.records.resident_bytes();
    assert!(
        (100_000 * 5..100_000 * 13).contains(&full),
        "{full} bytes of index"
    );
    for number in 0..100_000 {
        let key = key(number);
        assert!(table.remove(key_hash(&key), &key).is_some());
    }
    let empty = table.resident_bytes();
    assert!(empty < full / 20, "{empty} of {full} bytes are left");
    put_all(&mut table, 0..10_000);
    assert!((0..10_000).all(|number| has(&table, number)));
}

#[test]
fn keys_that_come_in_place_of_others_stay_within_what_was_foreseen() {
    for keys in [8_000, 20_000, 27_000] {
        let mut table = table(key_hash);
        // Where a segment holds 370 keys on average it is split in the end, where it holds 300 it is not.
        put_within(&mut table, 0..keys, keys as usize);
        let (index, foreseen) = (table.index.resident_bytes(), table.index.churned_bytes());
        put_within(&mut table, keys..30 * keys, keys as usize);
        let grown = table.index.resident_bytes();
        assert!(
            grown <= foreseen,
            "{keys} keys: {grown} bytes, not {foreseen}"
        );
        // Nor is it far more than it needs.
        assert!(
            foreseen < 4 * index,
            "{keys} keys: {index} bytes, {foreseen} foreseen"
        );
    }
}

#[test]
fn a_segment_is_not_joined_with_a_part_of_its_other_half() {
    fn literal(key: &[u8]) -> u64 {
        u64::from_be_bytes(*key.first_chunk().unwrap())
    }
    let quarter =
        |quarter: u64| (0..400).map(move |number| (quarter << 62 | number << 40).to_be_bytes());
    let mut table = table(literal);
    for key in quarter(0).chain(quarter(1)).chain(quarter(2)) {
        table.put(literal(&key), &key, &Entry::default());
    }
    // The halves have one and two segments now. Few are left in the first quarter and in the upper half.
    for key in quarter(0).skip(5).chain(quarter(2).skip(5)) {
        assert!(table.remove(literal(&key), &key).is_some());
    }
    assert!(quarter(1).all(|key| table.find(literal(&key), &key).is_some()));
    assert_eq!(table.len(), 410);
}

#[test]
fn keys_chosen_to_fall_together_do_not_grow_the_directory() {
    let mut table = table(crowded);
    put_all(&mut table, 0..20_000);
    assert!((0..20_000).all(|number| has(&table, number)));
    let index = table.index.resident_bytes();
    assert!(index < 20_000 * 20, "{index} bytes of index");
}

#[test]
fn keys_that_fall_together_are_shown_in_pieces() {
    for hash in [crowded, equal] {
        let mut table = table(hash);
        put_all(&mut table, 0..20_000);
        let mut from = 0;
        let mut seen = 0;
        loop {
            let stretch = table.stretch(from);
            let bytes = |item: &(u64, &[u8], Entry)| item.1.len() + size_of::<Entry>();
            let bytes: Vec<usize> = stretch.items.iter().map(bytes).collect();
            // The last of a piece may be a run of keys of one hash, which are not parted.
            let last = stretch.items.last().map(|item| item.0);
            let run = stretch.items.iter().filter(|item| Some(item.0) == last);
            let before: usize = bytes[..bytes.len() - run.count()].iter().sum();
            assert!(before <= STRETCH_BYTES, "{before} bytes from {from:#x}");
            seen += bytes.len();
            match stretch.next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(seen, 20_000);
    }
}

#[test]
fn keys_that_are_used_outlast_a_scan() {
    let mut table = table(key_hash);
    put_within(&mut table, 0..1000, 1000);
    for _ in 0..3 {
        put_within(&mut table, 0..800, 1000);
    }
    put_within(&mut table, 10_000..60_000, 1000);
    let kept = (0..800).filter(|number| has(&table, *number)).count();
    assert!(kept > 780, "{kept} of 800 are left");
}

#[test]
fn a_key_that_comes_back_soon_stays() {
    let mut table = table(key_hash);
    put_within(&mut table, 0..1000, 1000);
    // The first 200 go, unused.
    put_within(&mut table, 1000..1200, 1000);
    assert!((0..200).all(|number| !has(&table, number)));
    // So many more come at once that all segments are split.
    put_all(&mut table, 10_000..16_000);
    put_within(&mut table, 0..50, 7050);
    put_within(&mut table, 20_000..28_000, 1000);
    let kept = (0..50).filter(|number| has(&table, *number)).count();
    assert_eq!(kept, 50);
    assert!(!has(&table, 207), "what never went has not come back");
}

#[test]
fn a_choice_passes_over_few() {
    let mut table = table(key_hash);
    // In the small queue, in order of insertion, and all used.
    for _ in 0..4 {
        put_all(&mut table, 0..500);
    }
    let slot = table.choose_coldest().unwrap();
    assert_eq!(table.key(slot), key(64));
}

#[test]
fn what_is_kept_is_chosen_again_later() {
    let mut table = table(key_hash);
    put_all(&mut table, 0..3);
    let slots: Vec<Slot> = (0..3).map(|_| table.choose_coldest().unwrap()).collect();
    assert_eq!(table.choose_coldest(), None);
    let in_order: Vec<&[u8]> = slots.iter().map(|slot| table.key(*slot)).collect();
    assert_eq!(in_order, [key(0), key(1), key(2)]);
    table.keep(slots[1]);
    table.keep(slots[1]);
    assert_eq!(table.choose_coldest(), Some(slots[1]));
    assert_eq!(table.choose_coldest(), None);
}

#[test]
fn keys_of_any_length_and_extreme_entries_come_back() {
    let mut table = table(key_hash);
    let most = Entry {
        client_flags: u32::MAX,
        expiry: u32::MAX,
        cas: u64::MAX,
        address: ((1 << 40) - 1) * 16,
        value_bytes: u32::MAX,
        marks: u8::MAX,
        last_use: u32::MAX,
        was_hit: true,
    };
    for length in 0..=KEY_BYTES_MAX {
        let key = vec![b'k'; length];
        table.put(key_hash(&key), &key, &most);
    }
    for length in 0..=KEY_BYTES_MAX {
        let key = vec![b'k'; length];
        let slot = table.find(key_hash(&key), &key).unwrap();
        assert_eq!((table.entry(slot), table.key(slot)), (most, &key[..]));
    }
    table.clear();
    assert!(table.is_empty() && table.find(key_hash(b"k"), b"k").is_none());
    assert_eq!(table.evictable_bytes(), 0);
}

#[test]
#[should_panic(expected = "of a value")]
fn an_address_between_units_is_refused() {
    let entry = Entry {
        address: 8,
        ..Entry::default()
    };
    table(key_hash).put(key_hash(b"k"), b"k", &entry);
}
