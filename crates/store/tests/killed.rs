//! A process that is killed with SIGKILL while it writes to a real file: what it said is there.
//!
//! The child is this program again. It says each durable version on its standard output once the store
//! has said so; the parent kills it somewhere, damages what no object has, and opens the file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use cenote_store::{Condition, FileMedium, Pool, PoolConfig, Source};

const POOL_BYTES: u64 = 256 << 10;
const KEYS: u64 = 20;
const FILE: &str = "CENOTE_STORE_TEST_FILE";
const SEED: &str = "CENOTE_STORE_TEST_SEED";
/// Versions that a child writes at most: three times what the log holds.
const VERSIONS: u64 = 2_000;

fn rounds(count: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mut told_in_all = 0;
    for seed in 0..count {
        make(&path);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_process", "--nocapture"])
            .env(FILE, &path)
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Killed after so many were told, in the middle of the next.
        let patience = 1 + seed * 37 % 300;
        let mut told: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || loop {
            let line = lines.next()?.ok()?;
            // The harness of tests has lines of its own.
            let Some(words) = line.strip_prefix("told ") else {
                continue;
            };
            let numbers: Vec<u64> = words
                .split(' ')
                .filter_map(|one| one.parse().ok())
                .collect();
            if let [key, sequence, value] = numbers[..] {
                return Some((key, sequence, value));
            }
        };
        for _ in 0..patience {
            let Some((key, sequence, value)) = next() else {
                break;
            };
            told.insert(key, (sequence, value));
        }
        child.kill().unwrap();
        // What it said before it was gone counts as well.
        while let Some((key, sequence, value)) = next() {
            told.insert(key, (sequence, value));
        }
        let ended = child.wait().unwrap();
        assert!(
            ended.signal() == Some(9) || ended.success(),
            "seed {seed}: {ended}"
        );
        assert!(
            !told.is_empty(),
            "seed {seed}: it was killed before it began"
        );
        told_in_all += told.len();
        check(&path, seed, &told);
    }
    println!("{count} rounds, {told_in_all} keys told");
}

fn make(path: &Path) {
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    file.set_len(POOL_BYTES).unwrap();
    let config = PoolConfig {
        entry_count: 64,
        seed: 3,
    };
    Pool::create(FileMedium::open(file).unwrap(), config).unwrap();
}

fn open(path: &Path) -> FileMedium {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    FileMedium::open(file).unwrap()
}

fn check(path: &Path, seed: u64, told: &HashMap<u64, (u64, u64)>) {
    let (pool, _) = Pool::open(open(path)).unwrap();
    // Where the log is not, a disk may have anything.
    let file: File = OpenOptions::new().write(true).open(path).unwrap();
    for unused in pool.unused() {
        let noise: Vec<u8> = unused.clone().map(|at| (at * 31 + seed) as u8).collect();
        file.write_all_at(&noise, unused.start).unwrap();
    }
    drop(pool);

    let (mut pool, _) = Pool::open(open(path)).unwrap();
    for (key, (sequence, value)) in told {
        let version = pool.get(&name(*key)).unwrap();
        let version = version.unwrap_or_else(|| panic!("seed {seed}: key {key} is gone"));
        assert!(
            version.sequence >= *sequence,
            "seed {seed}: key {key} is older"
        );
        if version.sequence == *sequence {
            assert_eq!(version.value, value_of(*value), "seed {seed}: key {key}");
        }
    }
    // And it goes on.
    let next = pool
        .put_durable(b"next", b"value", Condition::Absent)
        .unwrap();
    assert!(told.values().all(|(sequence, _)| next.sequence > *sequence));
    assert_eq!(pool.get(b"next").unwrap().unwrap().value, b"value");
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn value_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 40)
}

#[test]
fn what_a_killed_process_said_is_there() {
    rounds(20);
}

mod long {
    #[test]
    fn what_a_killed_process_said_is_there_each_time() {
        super::rounds(200);
    }
}

/// Not a test of its own: the process that others start by running this program again.
#[test]
fn writer_process() {
    let (Some(path), Some(seed)) = (std::env::var_os(FILE), std::env::var_os(SEED)) else {
        return;
    };
    let seed: u64 = seed.to_str().unwrap().parse().unwrap();
    let (mut pool, _) = Pool::open(open(Path::new(&path))).unwrap();
    let mut out = std::io::stdout().lock();
    for number in 0..VERSIONS {
        let key = (number * 7 + seed) % KEYS;
        let value = value_of(number);
        if number % 3 == 0 {
            // Durable when it is read.
            let sum = Pool::<FileMedium>::checksum(&name(key), &value);
            let landing = Source::Landing(Box::new(value.clone()));
            pool.allocate(&name(key), value.len(), sum, landing, Condition::Always)
                .unwrap();
            assert_eq!(pool.get(&name(key)).unwrap().unwrap().value, value);
        } else {
            pool.put_durable(&name(key), &value, Condition::Always)
                .unwrap();
        }
        if pool.is_cleaning_due() {
            pool.clean(5).unwrap();
        }
        let sequence = pool.get(&name(key)).unwrap().unwrap().sequence;
        writeln!(out, "told {key} {sequence} {number}").unwrap();
        out.flush().unwrap();
    }
}
