//! What a store does with its tiers: which are waited for, which are read, and what when one fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_cache::log::tiers::memory::{Fault, MemoryTier};
use cenote_cache::log::tiers::{Request, Tier};
use cenote_cache::log::{Answer, Commit, Error, Session, Settings, Store};

use crate::harness;
use crate::medium::{Disk, DiskTier};
use crate::values::{SECRET, add, value_of};

fn settings(commit_point: usize) -> Settings {
    Settings {
        overflow_buckets: 200,
        ..harness::settings(commit_point)
    }
}

/// A switch that the tiers of a test look at.
#[derive(Clone, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A tier that counts its reads, and refuses writes with `fault` while `is_down`.
pub fn tier(name: &str, is_down: &Switch, fault: Fault, reads: &Arc<AtomicU64>) -> Box<dyn Tier> {
    let (is_down, reads) = (is_down.clone(), Arc::clone(reads));
    let faults = move |request: &Request| match request {
        Request::Write { .. } if is_down.is_on() => fault,
        Request::Read { .. } => {
            reads.fetch_add(1, Ordering::Relaxed);
            Fault::None
        }
        _ => Fault::None,
    };
    Box::new(MemoryTier::with_faults(name, None, Box::new(faults)))
}

pub fn open(tiers: Vec<Box<dyn Tier>>, commit_point: usize) -> Session {
    let settings = settings(commit_point);
    let store = Store::create(settings, SECRET, Arc::new(add), tiers, None);
    store.unwrap().session().unwrap()
}

fn key(number: u64) -> [u8; 4] {
    (number as u32).to_be_bytes()
}

/// Writes keys until there is no room, however often it is tried; how many, and why no more.
pub fn fill(session: &mut Session, from: u64) -> (u64, Error) {
    for number in from..from + 10_000 {
        let mut refused = None;
        for _ in 0..50 {
            match session.upsert(&key(number), &value_of(number)) {
                Ok(()) => {
                    refused = None;
                    break;
                }
                Err(error) => refused = Some(error),
            }
            session.poll(&mut Vec::new());
        }
        if let Some(error) = refused {
            return (number, error);
        }
    }
    panic!("no end of room");
}

pub fn write(session: &mut Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let value = value_of(number);
        let upsert = |session: &mut Session| session.upsert(&key(number), &value);
        session.wait(&mut Vec::new(), upsert).unwrap();
    }
}

fn read(session: &mut Session, number: u64) -> Result<Option<Vec<u8>>, Error> {
    let (mut value, mut ended) = (Vec::new(), Vec::new());
    match session.read(&key(number), &mut value)? {
        Answer::Done => Ok(Some(value)),
        Answer::Absent => Ok(None),
        Answer::Pending(_) => {
            session.finish(&mut ended);
            ended.pop().expect("it ended").result
        }
    }
}

pub fn check(session: &mut Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(
            read(session, number).unwrap(),
            Some(value_of(number)),
            "{number}"
        );
    }
}

#[test]
fn pages_leave_memory_when_the_tiers_up_to_the_commit_point_have_them() {
    let (up, is_down, reads) = (Switch::default(), Switch::default(), Arc::default());
    is_down.set(true);
    for (commit_point, leaves) in [(0, true), (1, false)] {
        let cache = tier("cache", &up, Fault::None, &reads);
        let mut session = open(
            vec![cache, tier("disk", &is_down, Fault::Busy, &reads)],
            commit_point,
        );
        let (written, error) = fill(&mut session, 0);
        assert!(matches!(error, Error::Busy), "{error}");
        assert_eq!(session.store().extent().head > 0, leaves);
        check(&mut session, 0..written);
        is_down.set(false);
        write(&mut session, written..written + 100);
        is_down.set(true);
    }
}

#[test]
fn a_page_is_read_while_the_only_tier_that_had_it_is_lost_and_the_next_has_it_not_yet() {
    let (up, is_down, reads) = (Switch::default(), Switch::default(), Arc::default());
    is_down.set(true);
    let cache = tier("cache", &up, Fault::None, &reads);
    let mut session = open(vec![cache, tier("disk", &is_down, Fault::Busy, &reads)], 0);
    let (written, _) = fill(&mut session, 0);
    assert!(session.store().extent().head > 0);
    session.store().drop_tier(0);
    check(&mut session, 0..written);
    is_down.set(false);
    write(&mut session, written..written + 100);
    check(&mut session, 0..written + 100);
}

#[test]
fn the_first_page_is_compacted_while_the_only_tier_that_had_it_is_lost_and_the_next_has_it_not_yet()
{
    let (up, is_down, reads) = (Switch::default(), Switch::default(), Arc::default());
    is_down.set(true);
    let cache = tier("cache", &up, Fault::None, &reads);
    let mut session = open(vec![cache, tier("disk", &is_down, Fault::Busy, &reads)], 0);
    let mut written = 0;
    while session.store().extent().head == 0 {
        write(&mut session, written..written + 1);
        session.poll(&mut Vec::new());
        written += 1;
    }
    session.store().drop_tier(0);
    let head = session.store().extent().head;
    let compacted = session.compact(head, &mut Vec::new()).unwrap();
    assert!(
        compacted.moved > 0 && compacted.begin == head,
        "{compacted:?}"
    );
    check(&mut session, 0..written);
}

#[test]
fn reads_go_to_the_fastest_tier_that_has_the_address() {
    let up = Switch::default();
    let (of_cache, of_disk) = (Arc::default(), Arc::default());
    let cache = tier("cache", &up, Fault::None, &of_cache);
    let mut session = open(vec![cache, tier("disk", &up, Fault::None, &of_disk)], 1);
    write(&mut session, 0..100);
    check(&mut session, 0..50);
    assert!(of_cache.load(Ordering::Relaxed) >= 50);
    assert_eq!(of_disk.load(Ordering::Relaxed), 0);
    // One that is put in its place starts empty, and takes what is written from then on.
    session.store().drop_tier(0);
    check(&mut session, 0..50);
    assert!(of_disk.load(Ordering::Relaxed) >= 50);
    let of_new = Arc::default();
    let cache = tier("cache", &up, Fault::None, &of_new);
    session.store().restore_tier(0, cache).unwrap();
    check(&mut session, 0..50);
    assert_eq!(of_new.load(Ordering::Relaxed), 0);
    write(&mut session, 100..200);
    let before = of_disk.load(Ordering::Relaxed);
    check(&mut session, 120..150);
    assert!(of_new.load(Ordering::Relaxed) >= 30);
    assert_eq!(of_disk.load(Ordering::Relaxed), before);
}

#[test]
fn keys_that_find_no_room_take_none_of_the_index() {
    let settings = Settings {
        index_buckets_max: 1,
        overflow_buckets: 2,
        pages: 4,
        ..settings(0)
    };
    let store = Store::create(settings, SECRET, Arc::new(add), Vec::new(), None);
    let mut session = store.unwrap().session().unwrap();
    // Few keys of the longest values that fit.
    let mut long = 0;
    let value = vec![1; 180];
    while session.upsert(&key(long), &value).is_ok() {
        long += 1;
    }
    for number in 1000..3000 {
        let upsert = session.upsert(&key(number), &value).unwrap_err();
        assert!(matches!(upsert, Error::NoTier), "{number}: {upsert}");
        let merge = session.merge(&key(number), &[1; 8]);
        assert!(matches!(merge, Err(Error::NoTier)), "{number}: {merge:?}");
    }
}

#[test]
fn a_store_without_tiers_says_that_memory_is_full() {
    let mut session = open(Vec::new(), 0);
    let (written, error) = fill(&mut session, 0);
    assert!(matches!(error, Error::NoTier), "{error}");
    check(&mut session, 0..written);
}

#[test]
fn what_no_tier_returns_right_is_an_error_of_that_read() {
    let torn = |request: &Request| match request {
        Request::Read { .. } => Fault::Torn(9),
        _ => Fault::None,
    };
    let disk = MemoryTier::with_faults("disk", None, Box::new(torn));
    let mut session = open(vec![Box::new(disk)], 0);
    write(&mut session, 0..100);
    let error = read(&mut session, 0).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { .. }) && error.is_corruption(),
        "{error}"
    );
    assert_eq!(read(&mut session, 99).unwrap(), Some(value_of(99)));
    // Compaction gives up no page that it could not read, the first one neither.
    let first_page = settings(0).page_bytes as u64;
    let error = session.compact(first_page, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    session.store().drop_tier(0);
    let error = read(&mut session, 0).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let error = session.compact(first_page, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert_eq!(session.store().extent().begin, 0);
}

#[test]
fn a_read_that_fails_ends_with_its_cause_and_is_no_corruption() {
    let open = |faults: [Option<Fault>; 2]| {
        let tier = |(name, fault): (_, Option<Fault>)| -> Box<dyn Tier> {
            let faults = move |request: &Request| match request {
                Request::Read { .. } => fault.unwrap_or(Fault::None),
                _ => Fault::None,
            };
            Box::new(MemoryTier::with_faults(name, None, Box::new(faults)))
        };
        let tiers = ["cache", "disk"].into_iter().zip(faults).map(tier);
        let mut session = open(tiers.collect(), 0);
        write(&mut session, 0..100);
        session
    };
    let fails = |kind| Some(Fault::Fail(kind));
    let (other, gone) = (std::io::ErrorKind::Other, std::io::ErrorKind::NotFound);
    for faults in [
        [fails(other), fails(gone)],
        [fails(gone), fails(other)],
        [Some(Fault::Torn(9)), fails(other)],
        [fails(other), Some(Fault::Torn(9))],
    ] {
        let error = read(&mut open(faults), 0).unwrap_err();
        let Error::Read { tier, source, .. } = &error else {
            panic!("{faults:?}: {error}");
        };
        let number = usize::from(tier == "disk");
        assert_eq!(faults[number], fails(source.kind()), "{faults:?}: {error}");
        assert!(!error.is_corruption());
    }
    let error = read(&mut open([fails(gone), fails(gone)]), 0).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let error = read(&mut open([fails(gone), Some(Fault::Torn(9))]), 0).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let mut session = open([fails(other), None]);
    check(&mut session, 0..100);
}

#[test]
fn operations_that_wait_are_bounded() {
    let never = |request: &Request| match request {
        Request::Read { .. } => Fault::Delay(100),
        _ => Fault::None,
    };
    let disk = MemoryTier::with_faults("disk", None, Box::new(never));
    let mut session = open(vec![Box::new(disk)], 0);
    write(&mut session, 0..100);
    for number in 0..8 {
        let answer = session.read(&key(number), &mut Vec::new()).unwrap();
        assert!(matches!(answer, Answer::Pending(_)));
    }
    assert!(matches!(
        session.read(&key(9), &mut Vec::new()),
        Err(Error::Busy)
    ));
    assert!(matches!(session.merge(&key(9), &[0; 8]), Err(Error::Busy)));
    assert_eq!(session.pending_count(), 8);
    let mut ended = Vec::new();
    session.finish(&mut ended);
    assert_eq!(ended.len(), 8);
}

#[test]
fn what_is_out_of_range_is_refused() {
    let mut session = open(Vec::new(), 0);
    assert!(matches!(
        session.upsert(b"", b"x"),
        Err(Error::KeyLength { .. })
    ));
    assert!(matches!(
        session.read(&[0; 1024], &mut Vec::new()),
        Err(Error::KeyLength { .. })
    ));
    let max = session.store().clone();
    let max = settings(0)
        .value_bytes_max(4)
        .min(max.extent().tail as usize + 1000);
    assert!(
        matches!(session.upsert(b"four", &vec![0; max + 1]), Err(Error::ValueLength { max: it }) if it == max)
    );
    session.upsert(b"four", &vec![7; max]).unwrap();
    let other = session.store().session().unwrap();
    assert!(matches!(
        session.store().session(),
        Err(Error::SessionsTaken)
    ));
    drop(other);
    assert!(session.store().session().is_ok());
    assert!(matches!(
        session.commit(&mut Vec::new()),
        Err(Error::NotDurable)
    ));
    let odd = Settings {
        pages: 3,
        ..settings(0)
    };
    assert!(matches!(odd.check(), Err(Error::Settings(_))));
}

#[test]
fn a_value_that_a_merge_makes_too_long_in_place_is_refused_and_the_old_one_stays() {
    // As many words as the longest value has, and one more byte than a header can tell of.
    let (longest, too_long) = ((1 << 22) - 1, 1 << 22);
    let settings = Settings {
        page_bytes: 8 << 20,
        ..settings(0)
    };
    let grow = move |_: Option<&[u8]>, _: &[u8], new: &mut Vec<u8>| new.resize(too_long, 1);
    let disk = Arc::new(Mutex::new(Disk::default()));
    let tier = || Box::new(DiskTier::new(Arc::clone(&disk), 1, u64::MAX));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let path = Some(file.clone());
    let store = Store::create(settings.clone(), SECRET, Arc::new(grow), vec![tier()], path);
    let mut session = store.unwrap().session().unwrap();
    let value = vec![7; longest];
    session.upsert(b"key", &value).unwrap();
    let merge = session.merge(b"key", b"");
    assert!(
        matches!(merge, Err(Error::ValueLength { max }) if max == longest),
        "{merge:?}"
    );
    let read = |session: &mut Session| {
        let (mut found, mut ended) = (Vec::new(), Vec::new());
        match session.read(b"key", &mut found).unwrap() {
            Answer::Pending(_) => {
                session.finish(&mut ended);
                ended.pop().expect("it ended").result.unwrap()
            }
            _ => Some(found),
        }
    };
    assert!(read(&mut session).as_deref() == Some(&value));
    session.commit(&mut Vec::new()).unwrap();
    drop(session);
    let store = Store::recover(settings, Arc::new(grow), vec![tier()], file);
    let mut session = store.unwrap().session().unwrap();
    assert!(read(&mut session).as_deref() == Some(&value));
}

#[test]
fn an_index_that_is_full_refuses_new_keys_and_serves_the_others() {
    let settings = Settings {
        index_buckets_max: 1,
        overflow_buckets: 0,
        ..settings(0)
    };
    let disk = MemoryTier::new("disk", None);
    let store = Store::create(settings, SECRET, Arc::new(add), vec![Box::new(disk)], None);
    let mut session = store.unwrap().session().unwrap();
    write(&mut session, 0..7);
    assert!(matches!(
        session.upsert(&key(7), b"12345678"),
        Err(Error::IndexFull)
    ));
    write(&mut session, 0..7);
    check(&mut session, 0..7);
}

#[test]
fn a_record_that_was_read_from_a_tier_is_in_memory_when_copies_are_asked_for() {
    for copies_reads in [false, true] {
        let reads = Arc::new(AtomicU64::new(0));
        let disk = tier("disk", &Switch::default(), Fault::None, &reads);
        let settings = Settings {
            copies_reads,
            ..settings(0)
        };
        let store = Store::create(settings, SECRET, Arc::new(add), vec![disk], None);
        let mut session = store.unwrap().session().unwrap();
        write(&mut session, 0..100);
        check(&mut session, 3..4);
        let before = reads.load(Ordering::Relaxed);
        assert!(before > 0, "it was not in memory");
        check(&mut session, 3..4);
        let is_read_again = reads.load(Ordering::Relaxed) > before;
        assert_eq!(is_read_again, !copies_reads);
        check(&mut session, 0..100);
    }
}

#[test]
fn many_keys_are_read_as_one_after_the_other() {
    let reads = Arc::new(AtomicU64::new(0));
    let disk = tier("disk", &Switch::default(), Fault::None, &reads);
    let settings = Settings {
        pending_max: 30,
        ..settings(0)
    };
    let store = Store::create(settings, SECRET, Arc::new(add), vec![disk], None);
    let mut session = store.unwrap().session().unwrap();
    write(&mut session, 0..100);
    session.delete(&key(97)).unwrap();
    // Keys that are there and in memory, that are on the disk, that are not there, and that are none.
    let mut keys: Vec<Vec<u8>> = (30..110).map(|number| key(number).to_vec()).collect();
    keys.insert(7, Vec::new());
    let number_at = |at: usize| 30 + at as u64 - u64::from(at > 7);
    let (mut seen, mut waiting) = (Vec::new(), Vec::new());
    session.read_many(&keys, |at, answer, value| {
        match answer {
            Ok(Answer::Done) => assert_eq!(value, value_of(number_at(at))),
            Ok(Answer::Absent) => assert!([97].contains(&number_at(at)) || number_at(at) > 99),
            Ok(Answer::Pending(ticket)) => waiting.push((ticket, number_at(at))),
            Err(Error::KeyLength { .. }) => assert_eq!(at, 7),
            Err(Error::Busy) => {}
            Err(error) => panic!("{error}"),
        }
        seen.push(at);
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..keys.len()).collect::<Vec<_>>());
    assert_eq!(waiting.len(), 30);
    let mut ended = Vec::new();
    session.finish(&mut ended);
    for end in ended {
        let (_, number) = waiting.iter().find(|(it, _)| *it == end.ticket).unwrap();
        assert_eq!(end.result.unwrap(), Some(value_of(*number)));
    }
}

/// The kernel tells of what it lost once; the next sync would succeed without it.
#[test]
fn nothing_is_durable_any_more_once_a_sync_has_failed() {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let tier = DiskTier::new(Arc::clone(&disk), 1, u64::MAX);
    let mut session = open(vec![Box::new(tier)], 0);
    let mut ended = Vec::new();
    write(&mut session, 0..100);
    session.commit(&mut ended).unwrap();
    write(&mut session, 100..200);
    disk.lock().unwrap().fails_sync = true;
    let mut commit = Commit::default();
    let failed = loop {
        match session.advance_commit(&mut commit) {
            Ok(None) => session.poll(&mut ended),
            ended => break ended,
        }
    };
    assert!(matches!(failed, Err(Error::Storage { .. })), "{failed:?}");
    let goes_on = session.advance_commit(&mut commit);
    assert!(matches!(goes_on, Err(Error::NotDurable)), "{goes_on:?}");
    for _ in 0..3 {
        let again = session.commit(&mut ended);
        assert!(matches!(again, Err(Error::NotDurable)), "{again:?}");
    }
    check(&mut session, 0..200);
}

#[test]
fn a_sync_that_failed_is_known_to_every_session_also_when_who_began_it_does_not_look() {
    for (seed, is_dropped) in (0..20).zip([false, true].into_iter().cycle()) {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let tier = DiskTier::new(Arc::clone(&disk), seed, u64::MAX);
        let mut first = Some(open(vec![Box::new(tier)], 0));
        let session = first.as_mut().unwrap();
        let mut second = session.store().session().unwrap();
        write(session, 0..100);
        disk.lock().unwrap().fails_sync = true;
        let mut commit = Commit::default();
        while disk.lock().unwrap().syncs == 0 {
            assert_eq!(session.advance_commit(&mut commit).unwrap(), None);
        }
        if is_dropped {
            first = None;
        }
        let other = second.commit(&mut Vec::new());
        assert!(matches!(other, Err(Error::NotDurable)), "{other:?}");
        drop(first);
    }
}

#[test]
fn a_key_that_does_not_fit_into_a_page_is_refused_and_the_longest_that_fits_is_not() {
    let mut session = open(Vec::new(), 0);
    let max = settings(0).key_bytes_max();
    let (fits, too_long) = (vec![1; max], vec![1; max + 1]);
    for _ in 0..2 {
        session.upsert(&fits, b"").unwrap();
        let mut value = Vec::new();
        assert!(matches!(session.read(&fits, &mut value), Ok(Answer::Done)));
        for key in [&too_long, &vec![1; 300]] {
            let refused = [
                session.upsert(key, b"").unwrap_err(),
                session.upsert(key, b"12345678").unwrap_err(),
                session.delete(key).unwrap_err(),
                session.merge(key, &[0; 8]).unwrap_err(),
                session.read(key, &mut value).unwrap_err(),
            ];
            for error in refused {
                assert!(
                    matches!(error, Error::KeyLength { max: it } if it == max),
                    "{error}"
                );
            }
        }
        session.delete(&fits).unwrap();
    }
}

#[test]
fn a_tier_in_the_place_of_a_lost_one_is_named_and_filled_as_its_own_size_asks() {
    let cache = |name: &str, pages: u64| -> Box<dyn Tier> {
        Box::new(MemoryTier::new(name, Some(pages * 256)))
    };
    let mut session = open(
        vec![cache("large", 64), Box::new(MemoryTier::new("disk", None))],
        0,
    );
    write(&mut session, 0..100);
    let store = Arc::clone(session.store());
    store.drop_tier(0);
    store.restore_tier(0, cache("small", 16)).unwrap();
    write(&mut session, 100..1000);
    let status = store.tiers().swap_remove(0);
    let held = status.holds.unwrap();
    assert_eq!(status.name, "small");
    assert!(
        held.start > 0 && held.end - held.start <= 16 * 256,
        "{held:?}"
    );
    check(&mut session, 0..1000);
}
