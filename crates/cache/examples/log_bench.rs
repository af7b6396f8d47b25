//! Reads per second and thread of a log store that is all in memory, and of one that is not.
//!
//! `cargo run --release -p cenote-cache --example log_bench -- [THREADS] [SECONDS] [KEYS] [DISK]`
//!
//! Records have a key of 8 bytes and a value of 16, and take 40 in the log. Without `DISK`, a path
//! for a new file, all of it is in memory; with it memory has a sixth. Rates are per second of a
//! thread's processor time, and per second of the clock: on a machine that others use they differ.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_cache::log::load::{Choice, Load, Request};
use cenote_cache::log::tiers::ssd::SsdTier;
use cenote_cache::log::{Answer, Error, Secret, Session, Settings, Store, Tier};
use rustix::time::{ClockId, clock_gettime};

const RECORD_BYTES: u64 = 40;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let text = arguments.get(at);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let (threads, seconds, keys) = (number(0, 1), number(1, 3), number(2, 1_000_000));
    let log_bytes = keys * RECORD_BYTES;
    let disk = arguments.get(3);
    let pages = if disk.is_some() {
        log_bytes / 6
    } else {
        log_bytes
    } >> 20;
    let pages = (pages as usize + 8).next_power_of_two();
    let settings = Settings {
        pages,
        mutable_pages: pages - 4,
        index_buckets: (keys as usize / 3).next_power_of_two() >> 6,
        index_buckets_max: (keys as usize / 3).next_power_of_two(),
        overflow_buckets: keys as usize / 4 + 64,
        ..Settings::default()
    };
    let tiers: Vec<Box<dyn Tier>> = match disk {
        Some(path) => vec![Box::new(SsdTier::create(Path::new(path))?)],
        None => Vec::new(),
    };
    let merge =
        |_: Option<&[u8]>, operand: &[u8], new: &mut Vec<u8>| new.extend_from_slice(operand);
    let store = Store::create(settings, Secret::random()?, Arc::new(merge), tiers, None)?;
    let mut session = store.session()?;
    let began = Instant::now();
    for key in 0..keys {
        let upsert = |session: &mut Session| session.upsert(&key.to_le_bytes(), &[key as u8; 16]);
        session.wait(&mut Vec::new(), upsert)?;
    }
    println!(
        "load: {:.2} M upserts/s",
        keys as f64 / began.elapsed().as_secs_f64() / 1e6
    );
    println!(
        "memory: {} MiB, log: {} MiB",
        pages,
        store.extent().tail >> 20
    );
    for (name, choice, reads, batch) in [
        ("uniform reads", Choice::Uniform, 1.0, 1),
        ("uniform reads, 32 at a time", Choice::Uniform, 1.0, 32),
        ("zipf 0.99 reads", Choice::Zipf(0.99), 1.0, 1),
        ("zipf 0.99 reads, 32 at a time", Choice::Zipf(0.99), 1.0, 32),
        ("zipf 0.99, half upserts", Choice::Zipf(0.99), 0.5, 1),
    ] {
        let is_over = AtomicBool::new(false);
        let counts: Vec<(u64, f64)> = std::thread::scope(|scope| {
            let run = |seed| {
                let load = Load::new(keys, choice, reads, 1.0 - reads, seed);
                let (store, is_over) = (&store, &is_over);
                scope.spawn(move || run(store, load, batch, is_over))
            };
            let workers: Vec<_> = (0..threads).map(run).collect();
            std::thread::sleep(Duration::from_secs(seconds));
            is_over.store(true, Ordering::Relaxed);
            workers
                .into_iter()
                .map(|it| it.join().expect("it ends"))
                .collect()
        });
        for (count, processor_seconds) in counts {
            let count = count as f64 / 1e6;
            let (of_processor, of_clock) = (count / processor_seconds, count / seconds as f64);
            println!("{name}: {of_processor:.2} M per processor second, {of_clock:.2} M/s");
        }
    }
    Ok(())
}

/// Does what the load says until it is over; how many operations ended, and the processor time.
fn run(store: &Arc<Store>, mut load: Load, batch: usize, is_over: &AtomicBool) -> (u64, f64) {
    let began = processor_seconds();
    let mut session = store.session().expect("a session is free");
    let (mut value, mut ended, mut count) = (Vec::new(), Vec::new(), 0);
    let mut keys = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..256 / batch * usize::from(batch > 1) {
            keys.clear();
            keys.extend((0..batch).map(|_| load.next_key().to_le_bytes()));
            let mut busy = false;
            session.read_many(&keys, |_, answer, _| match answer {
                Ok(Answer::Pending(_)) => {}
                Ok(_) => count += 1,
                Err(Error::Busy) => busy = true,
                Err(error) => panic!("{error}"),
            });
            if busy {
                session.poll(&mut ended);
            }
        }
        for _ in 0..256 * usize::from(batch == 1) {
            let result = match load.next_request() {
                Request::Read(key) => session.read(&key.to_le_bytes(), &mut value),
                Request::Upsert(key) | Request::Merge(key) => session
                    .upsert(&key.to_le_bytes(), &[7; 16])
                    .map(|()| Answer::Done),
            };
            match result {
                Ok(Answer::Pending(_)) => {}
                Ok(_) => count += 1,
                Err(Error::Busy) => session.poll(&mut ended),
                Err(error) => panic!("{error}"),
            }
        }
        session.poll(&mut ended);
        count += ended.len() as u64;
        assert!(ended.drain(..).all(|end| end.result.is_ok()));
    }
    session.finish(&mut ended);
    (count, processor_seconds() - began)
}

/// What this thread has used.
fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
