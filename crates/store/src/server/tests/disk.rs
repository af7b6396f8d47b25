//! What a disk is given to write, and what it has.

use std::collections::HashMap;
use std::fs::File;

use super::*;
use crate::medium::FileMedium;

const VALUE_BYTES: usize = 4096;
/// Bytes of an object of such a value, about.
const OBJECT_BYTES: u64 = VALUE_BYTES as u64 + 96;

fn bench() -> (Bench<FileMedium>, File) {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    // A half of the log has 32 MiB: it is cleaned when it has 24.
    file.set_len(64 << 20).unwrap();
    let config = PoolConfig {
        entry_count: 8192,
        seed: 7,
    };
    let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
    let pool = Pool::create(medium, config).unwrap();
    (Bench::new(pool, EFactory), file)
}

impl Bench<FileMedium> {
    fn written_bytes(&self) -> u64 {
        self.shard.medium.written_bytes()
    }

    /// Puts values of some keys, while each fence takes some turns of the persister.
    fn load(&mut self, keys: impl Iterator<Item = u32>) {
        for (count, key) in keys.enumerate() {
            while !is_stored(self.put(ONE, &key.to_le_bytes(), &[key as u8; VALUE_BYTES])) {
                // The log is full until more of it is cleaned.
                self.turn();
            }
            if count % 100 == 99 {
                // As when a landing fills up.
                self.shard.lock().wants_room = true;
                self.step();
            }
            if count % 1500 == 1499 && self.persister.is_in_fence() {
                self.shard.end_fence();
            }
        }
    }

    fn backlog(&self) -> usize {
        self.shard.lock().pool.backlog()
    }
}

#[test]
fn a_value_is_written_once_though_more_come_than_a_group_takes() {
    let (mut bench, _file) = bench();
    let before = bench.written_bytes();
    bench.load(0..4000);
    assert!(bench.backlog() > 1024, "the disk is behind");
    while bench.backlog() > 0 {
        bench.turn();
    }
    let written = bench.written_bytes() - before;
    let most = 4000 * OBJECT_BYTES * 11 / 10;
    assert!(written < most, "{written} bytes, {most} at most");
}

#[test]
fn what_comes_while_a_log_is_cleaned_is_written_once_as_well() {
    let (mut bench, _file) = bench();
    bench.load(0..2000);
    bench.turn();
    while !bench.shard.lock().pool.is_cleaning() {
        bench.load(0..700);
    }
    let before = bench.written_bytes();
    let mut puts = 0;
    while bench.shard.lock().pool.is_cleaning() {
        bench.load(1000..1700);
        puts += 700;
        bench.step();
    }
    while bench.backlog() > 0 {
        bench.turn();
    }
    let written = bench.written_bytes() - before;
    // What came, and copies of all, with what waited when it began.
    let most = (puts + 2000) * OBJECT_BYTES * 5 / 4;
    assert!(
        written < most,
        "{written} bytes, {most} at most, {puts} puts"
    );
}

/// One group in its fence, one behind it and copies of a cleaning: what counts as durable is in the file,
/// whichever of them are not.
#[test]
fn what_counts_as_durable_is_in_the_file_at_any_time() {
    let (mut bench, file) = bench();
    let mut puts: HashMap<u32, Vec<u64>> = HashMap::new();
    let (mut looks, mut was_cleaning) = (0, false);
    for count in 0..12_000_u32 {
        let key = count.wrapping_mul(0x9e37_79b9) % 1500;
        let stored = loop {
            // Of some, blocks have nothing of a header.
            let value = vec![count as u8; VALUE_BYTES * if count % 3 == 0 { 3 } else { 1 }];
            match bench.put(ONE, &key.to_le_bytes(), &value) {
                Some(Answer::Done { sequence }) => break sequence,
                _ => bench.turn(),
            }
        };
        puts.entry(key).or_default().push(stored);
        if count % 150 == 149 {
            bench.shard.lock().wants_room = true;
            bench.step();
        }
        if count % 1050 == 1049 && bench.persister.is_in_fence() {
            bench.shard.end_fence();
            bench.step();
        }
        let is_cleaning = bench.shard.lock().pool.is_cleaning();
        if count % 1050 == 1049 || is_cleaning != was_cleaning {
            let left = FileMedium::look(file.try_clone().unwrap()).unwrap();
            let (mut left, _) = Pool::open(left).unwrap();
            let state = bench.shard.lock();
            for (key, sequences) in &mut puts {
                let durable = sequences
                    .iter()
                    .rposition(|one| !state.pool.is_space_of(*one));
                let Some(durable) = durable else { continue };
                sequences.drain(..durable);
                let found = left.get(&key.to_le_bytes()).unwrap();
                let found = found.map(|version| version.sequence);
                assert!(
                    found >= Some(sequences[0]),
                    "key {key}: {found:?}, {sequences:?}"
                );
            }
            looks += 1;
        }
        was_cleaning = is_cleaning;
    }
    assert!(looks > 12, "{looks} looks: it was cleaned as well");
}
