//! A process that writes and commits is killed at any moment; its log is opened again.
//!
//! Each of its threads sets keys to 1, 2, 3, ... in turn, and merges one into its counter after each.
//! What comes back is, for each thread, what it had done up to some point, and that is no earlier
//! than the last commit which the process had told.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_cache::log::{Answer, Secret, Session, Store};

use crate::disk::{settings, ssd};
use crate::values::{add, number_of, value_of};
use cenote_test_kit::Random;

/// Set for the process that is killed.
const FOLDER: &str = "CENOTE_TEST_KILLED";
const SEED: &str = "CENOTE_SEED";
const THREADS: u64 = 2;
/// Keys of each thread.
const KEYS: u64 = 500;
/// The key of a thread's counter.
const COUNTER: u64 = KEYS;

fn seed() -> Option<u64> {
    let given = std::env::var(SEED).ok()?;
    Some(given.parse().expect("CENOTE_SEED is a number"))
}

fn key(thread: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&thread.to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

fn open(folder: &Path) -> Option<Arc<Store>> {
    let file = folder.join("checkpoint");
    let is_new = !file.exists();
    let tiers = vec![ssd(folder, is_new)?];
    Some(if is_new {
        let secret = Secret::random().unwrap();
        Store::create(settings(), secret, Arc::new(add), tiers, Some(file)).unwrap()
    } else {
        Store::recover(settings(), Arc::new(add), tiers, file).unwrap()
    })
}

fn read(session: &mut Session, key: &[u8]) -> u64 {
    let (mut value, mut ended) = (Vec::new(), Vec::new());
    let answer = session.wait(&mut ended, |session| session.read(key, &mut value));
    let value = match answer.unwrap() {
        Answer::Done => Some(value),
        Answer::Absent => None,
        Answer::Pending(_) => {
            session.finish(&mut ended);
            ended.pop().unwrap().result.unwrap()
        }
    };
    value.map_or(0, |value| number_of(&value).unwrap())
}

/// How much each thread had done. Panics where that is no prefix.
fn progress(store: &Arc<Store>) -> [u64; THREADS as usize] {
    let mut session = store.session().unwrap();
    std::array::from_fn(|thread| {
        let thread = thread as u64;
        let has: Vec<u64> = (0..KEYS)
            .map(|number| read(&mut session, &key(thread, number)))
            .collect();
        let done = *has.iter().max().unwrap();
        for (number, has) in has.iter().enumerate() {
            // The last step at or before `done` that went to this key.
            let back = (done + KEYS - number as u64) % KEYS;
            let expected = done.saturating_sub(back);
            assert_eq!(*has, expected, "thread {thread}, key {number}, of {done}");
        }
        let counted = read(&mut session, &key(thread, COUNTER));
        assert!(
            counted == done || counted + 1 == done,
            "{counted} of {done}"
        );
        done
    })
}

/// The process that is killed: works until then.
fn work(folder: &Path) {
    let Some(store) = open(folder) else {
        return;
    };
    let begun = progress(&store);
    let done: [AtomicU64; 2] = begun.map(AtomicU64::new);
    let committed: [AtomicU64; 2] = begun.map(AtomicU64::new);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, done, committed) = (Arc::clone(&store), &done, &committed);
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                let mut ended = Vec::new();
                let mut step = done[thread as usize].load(Ordering::Relaxed);
                // The one of which it is not known whether it was counted.
                let counted = read(&mut session, &key(thread, COUNTER));
                for _ in counted..step {
                    count(&mut session, thread);
                }
                loop {
                    // A log that is never committed would only grow.
                    while step > committed[thread as usize].load(Ordering::Relaxed) + 3000 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    step += 1;
                    let upsert = |session: &mut Session| {
                        session.upsert(&key(thread, step % KEYS), &value_of(step))
                    };
                    session.wait(&mut ended, upsert).unwrap();
                    count(&mut session, thread);
                    done[thread as usize].store(step, Ordering::Release);
                }
            });
        }
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            let mut random = Random(seed().expect("its parent says it"));
            let mut ended = Vec::new();
            loop {
                let before: Vec<u64> = done.iter().map(|it| it.load(Ordering::Acquire)).collect();
                match random.below(6) {
                    0 => drop(session.checkpoint(&mut ended).unwrap()),
                    1 => {
                        let extent = store.extent();
                        let until = extent.head.min(extent.begin + 64 * 4096);
                        session.compact(until, &mut ended).unwrap();
                        continue;
                    }
                    _ => drop(session.commit(&mut ended).unwrap()),
                }
                for (committed, before) in committed.iter().zip(&before) {
                    committed.store(*before, Ordering::Relaxed);
                }
                let line = format!("committed {} {}\n", before[0], before[1]);
                std::io::stdout().write_all(line.as_bytes()).unwrap();
            }
        });
    });
}

fn count(session: &mut Session, thread: u64) {
    let mut ended = Vec::new();
    let merge = |session: &mut Session| session.merge(&key(thread, COUNTER), &1u64.to_le_bytes());
    session.wait(&mut ended, merge).unwrap();
    session.finish(&mut ended);
    assert!(ended.iter().all(|end| end.result.is_ok()), "{ended:?}");
}

#[test]
fn what_was_committed_is_there_after_a_kill() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return work(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    if ssd(&folder.path().join("."), true).is_none() {
        return;
    }
    std::fs::remove_file(folder.path().join("log")).unwrap();
    let seed = seed().unwrap_or(u64::from(std::process::id()));
    println!("{SEED}={seed}");
    let mut random = Random(seed);
    let mut promised = [0; THREADS as usize];
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "kills::what_was_committed_is_there_after_a_kill",
                "--nocapture",
            ])
            .env(FOLDER, folder.path())
            .env(SEED, (seed + round).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Some commits, and then some time more.
        let mut note = |line: &str| {
            // The harness of tests prints its own line before, without an end.
            let Some((_, numbers)) = line.split_once("committed ") else {
                return false;
            };
            let mut numbers = numbers.split(' ').map(|number| number.parse::<u64>());
            for promised in &mut promised {
                *promised = numbers
                    .next()
                    .expect("two")
                    .expect("a number")
                    .max(*promised);
            }
            true
        };
        let mut wanted = 1 + random.below(20);
        while wanted > 0 {
            let line = lines.next().expect("it runs until it is killed").unwrap();
            wanted -= u64::from(note(&line));
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it told before it died, whole lines only.
        for line in lines.map_while(Result::ok) {
            if line.split(' ').count() == 3 {
                note(&line);
            }
        }
        let store = open(folder.path()).unwrap();
        let done = progress(&store);
        for (done, promised) in done.iter().zip(promised) {
            assert!(
                *done >= promised,
                "round {round}: {done} of {promised} that were committed"
            );
        }
    }
    assert!(promised.iter().all(|promised| *promised > 0));
}
