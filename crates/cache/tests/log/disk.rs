//! A real file past the page cache, and a file system that is full.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote_cache::log::tiers::Tier;
use cenote_cache::log::tiers::memory::MemoryTier;
use cenote_cache::log::tiers::ssd::SsdTier;
use cenote_cache::log::{Answer, Checkpoint, Commit, Error, Secret, Session, Settings, Store};

use crate::values::{add, value_of};
use cenote_test_kit::Random;

pub fn settings() -> Settings {
    Settings {
        page_bytes: 4096,
        pages: 8,
        mutable_pages: 4,
        index_buckets: 256,
        index_buckets_max: 4096,
        overflow_buckets: 1024,
        sessions: 4,
        pending_max: 64,
        writes_max: 8,
        commit_point: 0,
        copies_reads: false,
    }
}

/// The file of a log in a folder, or why this machine has none past the page cache.
pub fn ssd(folder: &Path, is_new: bool) -> Option<Box<dyn Tier>> {
    let path = folder.join("log");
    let tier = if is_new {
        SsdTier::create(&path)
    } else {
        SsdTier::open(&path)
    };
    match tier {
        Ok(tier) => Some(Box::new(tier)),
        Err(error @ Error::Io { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn write(session: &mut Session, number: u64, value: &[u8]) -> Result<(), Error> {
    session.wait(&mut Vec::new(), |session| {
        session.upsert(&key(number), value)
    })
}

/// Reads all keys below `count`, many at a time, and returns what they have.
fn read_all(session: &mut Session, count: u64) -> Vec<Option<Vec<u8>>> {
    let mut found = vec![None; count as usize];
    let (mut tickets, mut ended) = (std::collections::HashMap::new(), Vec::new());
    for number in 0..count {
        let mut value = Vec::new();
        let read = |session: &mut Session| session.read(&key(number), &mut value);
        match session.wait(&mut ended, read).unwrap() {
            Answer::Done => found[number as usize] = Some(value),
            Answer::Absent => {}
            Answer::Pending(ticket) => drop(tickets.insert(ticket, number)),
        }
    }
    session.finish(&mut ended);
    for end in ended {
        found[tickets[&end.ticket] as usize] = end.result.unwrap();
    }
    found
}

/// What was copied of the index belongs to the cut: a later copy would name records behind it.
#[test]
fn a_checkpoint_whose_file_found_no_room_is_whole_when_it_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(tier) = ssd(folder.path(), true) else {
        return;
    };
    let (room, away) = (folder.path().join("room"), folder.path().join("away"));
    std::fs::create_dir(&room).unwrap();
    let file = room.join("checkpoint");
    let secret = Secret::random().unwrap();
    let (tiers, merge) = (vec![tier], Arc::new(add));
    let store = Store::create(settings(), secret, merge, tiers, Some(file.clone())).unwrap();
    let mut session = store.session().unwrap();
    for number in 0..100 {
        write(&mut session, number, &value_of(number)).unwrap();
    }
    std::fs::rename(&room, &away).unwrap();
    let mut point = Checkpoint::default();
    let mut advance = |session: &mut Session| {
        loop {
            match session.advance_checkpoint(&mut point) {
                Ok(None) | Err(Error::Busy) => session.poll(&mut Vec::new()),
                Ok(Some(end)) => return Ok(end),
                Err(error) => return Err(error),
            }
        }
    };
    let failed = advance(&mut session);
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    for number in 100..2000 {
        write(&mut session, number, &value_of(number)).unwrap();
    }
    std::fs::rename(&away, &room).unwrap();
    advance(&mut session).unwrap();
    drop(session);
    drop(store);
    let tiers = vec![ssd(folder.path(), false).unwrap()];
    let store = Store::recover(settings(), Arc::new(add), tiers, file).unwrap();
    let found = read_all(&mut store.session().unwrap(), 100);
    for (number, found) in found.into_iter().enumerate() {
        assert_eq!(found, Some(value_of(number as u64)), "key {number}");
    }
}

#[test]
fn what_does_not_fit_into_memory_is_read_back_from_the_disk_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let Some(tier) = ssd(folder.path(), true) else {
        return;
    };
    let file = folder.path().join("checkpoint");
    let cache: Box<dyn Tier> = Box::new(MemoryTier::new("cache", Some(64 << 10)));
    let secret = Secret::random().unwrap();
    let tiers = vec![cache, tier];
    let store =
        Store::create(settings(), secret, Arc::new(add), tiers, Some(file.clone())).unwrap();
    let mut session = store.session().unwrap();
    // Six times the memory and more; each key twice, so that compaction has something to drop.
    let mut random = Random(5);
    let mut numbers = vec![0; 5000];
    for round in 0..2 {
        for (number, value) in numbers.iter_mut().enumerate() {
            if round == 0 || number % 2 == 0 {
                *value = random.below(1 << 40);
                write(&mut session, number as u64, &value_of(*value)).unwrap();
            }
        }
    }
    let expected: Vec<_> = numbers
        .iter()
        .map(|number| Some(value_of(*number)))
        .collect();
    assert!(store.extent().head > 6 * 8 * 4096);
    assert_eq!(read_all(&mut session, 5000), expected);
    let compacted = session
        .compact(store.extent().head / 2, &mut Vec::new())
        .unwrap();
    assert!(
        compacted.moved > 0 && compacted.dropped > 0,
        "{compacted:?}"
    );
    assert_eq!(read_all(&mut session, 5000), expected);
    session.checkpoint(&mut Vec::new()).unwrap();
    for number in 0..100 {
        write(&mut session, number, b"newer value").unwrap();
    }
    session.commit(&mut Vec::new()).unwrap();
    write(&mut session, 5, b"not committed").unwrap();
    drop(session);
    drop(store);
    let tiers = vec![ssd(folder.path(), false).unwrap()];
    let store = Store::recover(settings(), Arc::new(add), tiers, file).unwrap();
    let mut session = store.session().unwrap();
    let found = read_all(&mut session, 5001);
    assert!(
        found[..100]
            .iter()
            .all(|value| value.as_deref() == Some(b"newer value"))
    );
    assert_eq!(found[100..5000], expected[100..]);
    assert_eq!(found[5000], None);
    // The space in front of the begin was given back.
    let data = std::fs::metadata(folder.path().join("log")).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&data) * 512;
    assert!(
        blocks + store.extent().begin <= data.len() + (64 << 10),
        "{blocks} of {}",
        data.len()
    );
}

#[test]
fn a_file_that_is_there_is_not_made_again_and_pages_have_whole_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let Some(tier) = ssd(folder.path(), true) else {
        return;
    };
    let again = SsdTier::create(&folder.path().join("log"));
    assert!(
        matches!(again, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists)
    );
    let small = Settings {
        page_bytes: 512,
        ..settings()
    };
    let secret = Secret::random().unwrap();
    let store = Store::create(small, secret, Arc::new(add), vec![tier], None);
    assert!(matches!(store, Err(Error::Settings(_))));
}

#[test]
fn a_file_that_another_tier_has_is_refused_until_that_one_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let Some(tier) = ssd(folder.path(), true) else {
        return;
    };
    let path = folder.path().join("log");
    let error = SsdTier::open(&path).err().unwrap();
    assert!(
        error.to_string().contains(path.to_str().unwrap())
            && matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy),
        "{error}"
    );
    drop(tier);
    SsdTier::open(&path).unwrap();
}

/// Set for the process that gets no `io_uring`.
const REFUSED: &str = "CENOTE_TEST_NO_RING";

#[test]
fn a_system_that_refuses_io_uring_is_told_how_to_allow_it() {
    let Some(folder) = std::env::var_os(REFUSED) else {
        let folder = tempfile::tempdir().unwrap();
        // A ring is a file handle, and there will be none left.
        let output = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "disk::a_system_that_refuses_io_uring_is_told_how_to_allow_it",
            ])
            .env(REFUSED, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        return;
    };
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let refused = SsdTier::create(&Path::new(&folder).join("log"));
    drop(taken);
    let error = refused.err().unwrap();
    assert!(
        error.to_string().contains("kernel.io_uring_disabled"),
        "{error}"
    );
}

/// Set for the process that has a small file system of its own.
const SMALL: &str = "CENOTE_TEST_SMALL_DISK";

#[test]
fn a_disk_that_is_full_is_named_and_the_store_goes_on_when_it_has_grown() {
    if std::env::var_os(SMALL).is_none() {
        let folder = tempfile::tempdir().unwrap();
        // In a mount namespace of its own: nobody else sees it.
        let script = "mount -t tmpfs -o size=256k small \"$0\" && exec \"$@\"";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(folder.path())
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "disk::a_disk_that_is_full_is_named_and_the_store_goes_on_when_it_has_grown",
            ])
            .arg("--nocapture")
            .env(SMALL, folder.path())
            .output();
        let Ok(output) = output else {
            return println!("skipped: no unshare");
        };
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if text.contains("unshare failed") || text.contains("mount: ") {
            return println!("skipped: no mount namespace or file system of its own");
        }
        print!("{text}");
        assert!(output.status.success());
        return;
    }
    let folder = std::env::var_os(SMALL).unwrap();
    let folder = Path::new(&folder);
    let Some(tier) = ssd(folder, true) else {
        return;
    };
    let file = folder.join("checkpoint");
    let secret = Secret::random().unwrap();
    let store = Store::create(
        settings(),
        secret,
        Arc::new(add),
        vec![tier],
        Some(file.clone()),
    )
    .unwrap();
    let mut session = store.session().unwrap();
    let (mut written, mut commit) = (0, Commit::default());
    let is_full = |error: &Error| match error {
        Error::Storage { source, .. } => source.raw_os_error() == Some(libc::ENOSPC),
        _ => false,
    };
    let error = loop {
        match write(&mut session, written, &value_of(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        // One is always under way. It says why it does not end, while memory takes more.
        match session.advance_commit(&mut commit) {
            Ok(Some(_)) => commit = Commit::default(),
            Ok(None) | Err(Error::Busy) => {}
            Err(error) => assert!(is_full(&error), "{error}"),
        }
        assert!(written < 100_000, "the disk is never full");
    };
    assert!(is_full(&error), "{error}");
    let error = session.advance_commit(&mut commit).unwrap_err();
    assert!(commit.cut().is_some() && is_full(&error), "{error}");
    let expected: Vec<_> = (0..written).map(|number| Some(value_of(number))).collect();
    assert_eq!(read_all(&mut session, written), expected);
    let grown = Command::new("mount")
        .args(["-o", "remount,size=8m"])
        .arg(folder)
        .status();
    assert!(grown.unwrap().success());
    while write(&mut session, written, &value_of(written)).is_err() {
        session.poll(&mut Vec::new());
    }
    // What was refused goes on by itself, and so does the commit.
    while session
        .advance_commit(&mut commit)
        .is_ok_and(|end| end.is_none())
    {
        session.poll(&mut Vec::new());
    }
    session.advance_commit(&mut commit).unwrap();
    session.checkpoint(&mut Vec::new()).unwrap();
    drop(session);
    drop(store);
    let tiers = vec![ssd(folder, false).unwrap()];
    let store = Store::recover(settings(), Arc::new(add), tiers, file).unwrap();
    let expected: Vec<_> = (0..=written).map(|number| Some(value_of(number))).collect();
    assert_eq!(
        read_all(&mut store.session().unwrap(), written + 1),
        expected
    );
}
