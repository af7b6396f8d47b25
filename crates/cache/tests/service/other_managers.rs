//! Managers that are not those that a client wants: of another cache, silent, or kept from granting leases.

use std::io;

use super::*;

/// A journal that cannot be written while a test says so.
struct Refusing {
    file: JournalFile,
    refuses: Arc<AtomicBool>,
}

impl Log for Refusing {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        self.file.read()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.file.append(bytes),
        }
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.file.replace(bytes),
        }
    }
}

impl World {
    /// One whose manager's journal cannot be written while the flag is set.
    fn on_a_disk_that_can_refuse() -> (Self, Arc<AtomicBool>) {
        let mut world = Self::new(1);
        world.manager.as_mut().and_then(Running::end);
        let refuses = Arc::new(AtomicBool::new(false));
        let journal = Refusing {
            file: JournalFile::new(&world.folder.path().join("journal")),
            refuses: Arc::clone(&refuses),
        };
        world
            .start_on(Box::new(journal), configuration(0), Claim::Lock)
            .unwrap();
        (world, refuses)
    }
}

#[test]
fn who_asks_for_a_lease_while_the_journal_cannot_be_written_hears_that_its_manager_is_there() {
    let (world, refuses) = World::on_a_disk_that_can_refuse();
    let mut session = world.session(7);
    let join = ToManager::Join { version: VERSION };
    session.send(&join.encode()).unwrap();
    while !matches!(next_within(&mut *session, DEADLINE), Some(ToClient::Entry(entry)) if entry.region == 3)
    {
    }
    refuses.store(true, Ordering::Relaxed);
    let resize = ToManager::Ask {
        number: 1,
        question: br#"{"ask":"resize","regions":5}"#.to_vec(),
    };
    session.send(&resize.encode()).unwrap();
    let alive = ToManager::Alive { asked_at: 1 }.encode();
    let deadline = Instant::now() + DEADLINE;
    loop {
        session.send(&alive).unwrap();
        match next_within(&mut *session, Duration::from_millis(100)) {
            Some(ToClient::Welcome(_)) => return,
            _ => assert!(Instant::now() < deadline, "it hears nothing"),
        }
    }
}

#[test]
fn a_manager_that_says_nothing_is_left_for_the_one_at_the_next_address() {
    let world = World::new(1);
    let address = Address::Shm(world.folder.path().join("silent"));
    let mut listener = Listener::bind(std::slice::from_ref(&address), &world.key).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let run = move || {
        let mut events = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let some = Some(Duration::from_millis(10));
            listener.poll(some, &mut events).unwrap();
            events.clear();
        }
    };
    let _silent = Running {
        stop,
        waker: Waker::new().unwrap(),
        thread: Some(std::thread::spawn(run)),
    };
    let options = Options {
        timeout: DEADLINE,
        ..Options::default()
    };
    let addresses = vec![address, world.address()];
    let mut cache = Cache::open(addresses, &world.key, &options).expect("it finds the other one");
    cache.write(0, &[1; 10]).unwrap();
}

#[test]
fn a_handle_takes_nothing_from_another_cache_at_its_address() {
    let mut world = World::new(2);
    let options = Options {
        patience: Duration::from_secs(5),
        timeout: DEADLINE,
        ..Options::default()
    };
    let mut cache = Cache::open(vec![world.address()], &world.key, &options).unwrap();
    cache.write(REGION_BYTES, &[1; 10]).unwrap();
    world.manager.as_mut().and_then(Running::end);
    // Another cache, whose regions have had more generations.
    world.cache += 1;
    let journal = JournalFile::new(&world.folder.path().join("journal of the other"));
    world
        .start_on(Box::new(journal), configuration(0), Claim::Lock)
        .unwrap();
    let mut other = world.open();
    let deadline = Instant::now() + DEADLINE;
    for count in [1, 4].repeat(3) {
        // Who asks much in a short time is cut off, and asks again.
        while other.reshape(count).is_err() {
            assert!(Instant::now() < deadline, "it is never reshaped");
        }
    }
    while other.write(REGION_BYTES, &[7; 10]).is_err() {
        assert!(Instant::now() < deadline, "it is never whole");
    }
    // What the handle knew of its own cache is over by then.
    let over = Instant::now() + 2 * LEASE;
    let mut bytes = [0; 10];
    while Instant::now() < over {
        other.read(REGION_BYTES, &mut bytes).unwrap();
    }
    let written = Bytes::from_static(&[9; 10]);
    cache.submit_write(REGION_BYTES, written, 1).unwrap();
    let mut ended = Vec::new();
    while ended.is_empty() {
        cache.wait(Duration::from_millis(10)).unwrap();
        cache.poll(&mut ended);
        assert!(Instant::now() < deadline, "the write never ends");
    }
    assert!(ended[0].result.is_err(), "{:?}", ended[0].result);
    assert!(cache.is_gone());
    other.read(REGION_BYTES, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 10]);
}

#[test]
fn what_the_disk_refuses_is_not_said_to_be_done_and_refused_is_what_stays_undone() {
    let (world, refuses) = World::on_a_disk_that_can_refuse();
    let asked = |question: &Question| ask(vec![world.address()], &world.key, question, DEADLINE);
    let status = || match asked(&Question::Status) {
        Ok(Answer::Status(status)) => status,
        answer => panic!("{answer:?}"),
    };
    let wait_until = |what: &str, is_so: &dyn Fn(&Status) -> bool| {
        let deadline = Instant::now() + DEADLINE;
        while !is_so(&status()) {
            assert!(Instant::now() < deadline, "it is never {what}");
        }
    };
    // A new cache has no table yet.
    wait_until("whole", &|status| status.whole);
    refuses.store(true, Ordering::Relaxed);
    let answer = asked(&Question::Resize { regions: 3 });
    let is_to_come =
        matches!(&answer, Err(CallError::Pending(why)) if why.starts_with("not on the disk yet"));
    assert!(is_to_come, "{answer:?}");
    let host = || "h0".to_owned();
    let notice = Question::Notice {
        host: host(),
        seconds: None,
    };
    let withdrawal = Question::Withdraw { host: host() };
    let resize = Question::Resize { regions: 2 };
    for question in [notice, withdrawal, resize, Question::Delete] {
        let answer = asked(&question);
        match answer {
            Err(CallError::Refused(why)) if why.starts_with("nothing is changed") => {}
            answer => panic!("{question:?}: {answer:?}"),
        }
    }
    let ends_at = status().ends_at;
    assert_eq!(ends_at, None, "its deletion was refused");
    refuses.store(false, Ordering::Relaxed);
    wait_until("on the disk", &|status| status.journal_error.is_none());
    wait_until("whole", &|status| status.whole);
    let status = status();
    assert_eq!((status.regions.total, status.ending), (3, false));
}
