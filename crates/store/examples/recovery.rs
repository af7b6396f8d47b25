//! How long a store takes to come back: by objects and by bytes, on an ordinary file.
//!
//! ```text
//! cargo run --release -p cenote-store --example recovery -- FOLDER
//! ```
//!
//! Each pool is filled, left as a killed process leaves it, and opened three times. Where the system lets it,
//! its file is dropped from memory first ("cold").

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cenote_store::{Condition, FileMedium, Medium, Pool, PoolConfig, Source};

/// Objects, and bytes of each value.
const POOLS: [(u64, usize); 4] = [
    (1_000_000, 64),
    (500_000, 512),
    (100_000, 4096),
    (16_384, 65_536),
];

fn main() {
    let folder = std::env::args()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    println!("| objects | bytes of a value | MiB of log | warm, ms | cold, ms |");
    println!("|---|---|---|---|---|");
    for (objects, value_bytes) in POOLS {
        let path = folder.join(format!("recovery-{}.pool", std::process::id()));
        let log_bytes = fill(&path, objects, value_bytes);
        let warm = median([(); 3].map(|()| open(&path, objects)));
        let cold = median([(); 3].map(|()| {
            let drop_it = std::fs::write("/proc/sys/vm/drop_caches", "1");
            drop_it.map_or(Duration::ZERO, |()| open(&path, objects))
        }));
        println!(
            "| {objects} | {value_bytes} | {} | {} | {} |",
            log_bytes >> 20,
            warm.as_millis(),
            cold.as_millis()
        );
        std::fs::remove_file(&path).expect("it is ours");
    }
}

fn median(mut times: [Duration; 3]) -> Duration {
    times.sort();
    times[1]
}

fn file(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).expect("a file of ours")
}

fn fill(path: &Path, objects: u64, value_bytes: usize) -> u64 {
    let object_bytes = (64 + 16 + value_bytes as u64).next_multiple_of(16);
    let file = file(path);
    // Two halves, and what is left over.
    let len = (2 * objects * object_bytes + (1 << 20)).next_multiple_of(4096);
    file.set_len(len).expect("room");
    let config = PoolConfig {
        entry_count: (objects * 2).next_power_of_two(),
        seed: 5,
    };
    let mut pool = Pool::create(FileMedium::open(file).expect("a pool"), config).expect("a pool");
    for number in 0..objects {
        let key = format!("key {number:011}");
        let value = vec![number as u8; value_bytes];
        let sum = Pool::<FileMedium>::checksum(key.as_bytes(), &value);
        let source = Source::Landing(Box::new(value));
        pool.allocate(key.as_bytes(), value_bytes, sum, source, Condition::Always)
            .expect("there is room");
        if number % 4096 == 4095 {
            pool.persist(4096).expect("a disk");
        }
    }
    pool.persist(usize::MAX).expect("a disk");
    // The last flags.
    pool.medium().fence().expect("a disk");
    pool.log_bytes().0
}

fn open(path: &Path, objects: u64) -> Duration {
    let began = Instant::now();
    let (_, recovered) = Pool::open(FileMedium::open(file(path)).expect("a pool")).expect("a pool");
    let took = began.elapsed();
    assert_eq!(recovered.objects, objects);
    took
}
