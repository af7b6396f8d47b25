//! Several threads on one store, with pages so small that all of it moves all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_cache::log::injected_faults::{InjectedFault, inject};
use cenote_cache::log::tiers::Tier;
use cenote_cache::log::tiers::memory::{Fault, MemoryTier};
use cenote_cache::log::{Answer, Session, Settings, Store};

use crate::values::{SECRET, add, number_of, value_of};
use cenote_test_kit::Random;

fn settings() -> Settings {
    Settings {
        page_bytes: 1024,
        pages: 8,
        mutable_pages: 4,
        index_buckets: 4,
        index_buckets_max: 16,
        overflow_buckets: 16,
        sessions: 8,
        pending_max: 16,
        writes_max: 4,
        commit_point: 0,
        copies_reads: true,
    }
}

fn store() -> Arc<Store> {
    let delays = |seed| {
        let mut random = Random(seed);
        Box::new(move |_: &_| Fault::Delay(random.below(4) as u32))
    };
    let tiers: Vec<Box<dyn Tier>> = vec![
        Box::new(MemoryTier::with_faults("cache", Some(16 << 10), delays(1))),
        Box::new(MemoryTier::with_faults("disk", None, delays(2))),
    ];
    Store::create(settings(), SECRET, Arc::new(add), tiers, None).unwrap()
}

/// The number of a key, whatever has to be waited for.
fn read(session: &mut Session, key: &[u8]) -> Option<u64> {
    let (mut value, mut ended) = (Vec::new(), Vec::new());
    let answer = session.wait(&mut ended, |session| session.read(key, &mut value));
    match answer.unwrap() {
        Answer::Done => Some(number_of(&value).unwrap()),
        Answer::Absent => None,
        Answer::Pending(ticket) => {
            session.finish(&mut ended);
            let end = ended.into_iter().find(|end| end.ticket == ticket).unwrap();
            end.result.unwrap().map(|value| number_of(&value).unwrap())
        }
    }
}

/// Threads merge into few keys, while one of them compacts. What is missing at the end is an error.
pub fn count_with(mistake: Option<InjectedFault>, threads: u64, merges: u64) -> Result<(), String> {
    let store = store();
    let totals: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
    let at_once = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, totals, at_once) = (Arc::clone(&store), &totals, &at_once);
            scope.spawn(move || {
                inject(mistake);
                let mut session = store.session().unwrap();
                let mut random = Random(thread);
                let mut ended = Vec::new();
                at_once.wait();
                for number in 0..merges {
                    let key = random.below(totals.len() as u64);
                    // A sum changes its length, and with that its place in the log.
                    let operand = 1 + random.below(9);
                    let bytes = operand.to_le_bytes();
                    let merge = |session: &mut Session| session.merge(&[key as u8], &bytes);
                    session.wait(&mut ended, merge).unwrap();
                    totals[key as usize].fetch_add(operand, Ordering::Relaxed);
                    if thread == 0 && number % 500 == 499 {
                        let head = store.extent().head;
                        session.compact(head, &mut ended).unwrap();
                    }
                }
                session.finish(&mut ended);
                assert!(ended.iter().all(|end| end.result.is_ok()), "{ended:?}");
            });
        }
    });
    let mut session = store.session().unwrap();
    for (key, total) in totals.iter().enumerate() {
        let (found, total) = (
            read(&mut session, &[key as u8]),
            total.load(Ordering::Relaxed),
        );
        if found.unwrap_or(0) != total {
            return Err(format!("key {key} has {found:?}, {total} was merged"));
        }
    }
    Ok(())
}

#[test]
fn no_merge_is_lost_between_threads() {
    for _ in 0..5 {
        count_with(None, 4, 3000).unwrap();
    }
}

/// Writers own keys and count upwards; readers never see a key go back, or a value that is torn.
#[test]
fn readers_see_whole_values_that_never_go_back() {
    let store = store();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (store, is_over) = (Arc::clone(&store), &is_over);
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    let mut random = Random(seed);
                    let mut seen = [0; 16];
                    let mut reads = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let key = random.below(16);
                        let number = read(&mut session, &[key as u8]).unwrap_or(0);
                        assert!(number >= seen[key as usize], "key {key} went back");
                        seen[key as usize] = number;
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let store = Arc::clone(&store);
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    let mut random = Random(u64::from(writer) + 9);
                    let mut ended = Vec::new();
                    for number in 1..8000u64 {
                        let key = [random.below(8) as u8 * 2 + writer];
                        // Now in place and now not.
                        let value = value_of(number);
                        session
                            .wait(&mut ended, |session| session.upsert(&key, &value))
                            .unwrap();
                        if number % 1000 == 0 {
                            let head = session.store().extent().head;
                            session.compact(head, &mut ended).unwrap();
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    assert!(store.extent().begin > 0, "nothing was compacted");
}
