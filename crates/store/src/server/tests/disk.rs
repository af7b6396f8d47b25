//! What a disk is given to write.

use super::*;
use crate::medium::FileMedium;

const VALUE_BYTES: usize = 4096;
/// Bytes of an object of such a value, about.
const OBJECT_BYTES: u64 = VALUE_BYTES as u64 + 96;

fn bench(len: u64) -> Bench<FileMedium> {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(len).unwrap();
    let config = PoolConfig {
        entry_count: 8192,
        seed: 7,
    };
    let pool = Pool::create(FileMedium::open(file).unwrap(), config).unwrap();
    Bench::new(pool, EFactory)
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
    let mut bench = bench(64 << 20);
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
    let mut bench = bench(64 << 20);
    // A half of the log has 32 MiB: it is cleaned when it has 24.
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
