//! Managers that agree on who is the last.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cenote_cache::service::journal::{Journal, JournalFile, Log};
use cenote_cache::service::question::{Answer, Question, Status};
use cenote_cache::service::{Agreement, Cache, CallError, Claim, Claimed, End, PROOF_LEASE, ask};

use super::{DEADLINE, Running, StartError, World, configuration};

/// What keeps managers apart, as a test says.
#[derive(Clone)]
struct Told(Arc<Mutex<Result<bool, String>>>);

impl Told {
    fn say(&self, answer: Result<bool, &str>) {
        *self.0.lock().unwrap() = answer.map_err(str::to_owned);
    }
}

impl Agreement for Told {
    fn claim(&mut self, last: u64) -> Result<Claimed, String> {
        Ok(Claimed {
            epoch: last + 1,
            may_have_rival: last > 0,
        })
    }

    fn is_last(&mut self, _: u64) -> Result<bool, String> {
        self.0.lock().unwrap().clone()
    }
}

impl World {
    /// Asks until the status is as wanted, while a client goes on.
    fn until(&self, cache: &mut Cache, wanted: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + DEADLINE;
        loop {
            cache.write(0, &[9; 1000]).expect("it is served");
            let (at, key) = (vec![self.address()], &self.key);
            match ask(at, key, &Question::Status, DEADLINE).unwrap() {
                Answer::Status(status) if wanted(&status) => return *status,
                status => assert!(Instant::now() < deadline, "{status:#?}"),
            }
        }
    }
}

/// The claim of a manager whose predecessor, elsewhere, has not heard of it yet.
struct Followed {
    journal: PathBuf,
    /// What the predecessor has its journal say after the claim.
    says: Duration,
}

impl Agreement for Followed {
    fn claim(&mut self, last: u64) -> Result<Claimed, String> {
        let mut log = JournalFile::new(&self.journal);
        let mut image = Journal::load(&mut log).unwrap().expect("there is one");
        image.duration = Some(self.says);
        Journal::begin(Box::new(log), image).unwrap();
        let (epoch, may_have_rival) = (last + 1, true);
        Ok(Claimed {
            epoch,
            may_have_rival,
        })
    }

    fn is_last(&mut self, _: u64) -> Result<bool, String> {
        Ok(true)
    }
}

/// One that says which managers began, and lets none of them.
#[derive(Clone, Default)]
struct Never(Arc<Mutex<Vec<u64>>>);

impl Agreement for Never {
    fn claim(&mut self, last: u64) -> Result<Claimed, String> {
        Ok(Claimed {
            epoch: last + 1,
            may_have_rival: false,
        })
    }

    fn is_last(&mut self, _: u64) -> Result<bool, String> {
        Ok(true)
    }

    fn begin(&mut self, epoch: u64) -> Result<bool, String> {
        self.0.lock().unwrap().push(epoch);
        Ok(false)
    }
}

#[test]
fn a_manager_has_begun_once_its_journal_has_the_epoch_and_another_did_not_come_before_it() {
    let mut world = World::new(1);
    let never = Never::default();
    let start = |world: &mut World| {
        let claim = Claim::Agreed(Box::new(never.clone()));
        world.start_with(configuration(0), claim).unwrap_err()
    };
    // Its address is taken.
    let refused = start(&mut world);
    assert!(matches!(refused, StartError::Fabric(_)), "{refused}");
    assert!(never.0.lock().unwrap().is_empty());
    world.manager.as_mut().and_then(Running::end);
    let refused = start(&mut world);
    assert!(refused.to_string().contains("another manager"), "{refused}");
    assert_eq!(*never.0.lock().unwrap(), [2]);
    let journal = world.folder.path().join("journal");
    let left = Journal::load(&mut JournalFile::new(&journal)).unwrap();
    assert_eq!(left.unwrap().epoch, 2);
}

#[test]
fn what_a_manager_elsewhere_writes_after_the_claim_of_the_next_one_is_kept() {
    let mut world = World::new(1);
    world.manager.as_mut().and_then(Running::end);
    let journal = world.folder.path().join("journal");
    let says = Duration::from_secs(7777);
    let claim = Claim::Agreed(Box::new(Followed {
        journal: journal.clone(),
        says,
    }));
    world.start_with(configuration(0), claim).unwrap();
    let left = Journal::load(&mut JournalFile::new(&journal))
        .unwrap()
        .unwrap();
    assert_eq!((left.epoch, left.duration), (2, Some(says)));
}

#[test]
fn a_manager_that_cannot_prove_that_it_is_the_last_leaves_the_journal_as_it_is() {
    let mut world = World::new(1);
    world.manager.as_mut().and_then(Running::end);
    let path = world.folder.path().join("journal");
    let journal = || std::fs::read(&path).unwrap();
    let before = journal();
    for (answer, why) in [(Ok(false), "another manager"), (Err("silence"), "silence")] {
        let told = Told(Arc::new(Mutex::new(Ok(true))));
        told.say(answer);
        let claim = Claim::Agreed(Box::new(told));
        let refused = world.start_with(configuration(0), claim).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert_eq!(journal(), before);
}

/// A disk that writes nothing further while `gate` is taken.
struct Slow {
    file: JournalFile,
    gate: Arc<Mutex<()>>,
    /// Whether something came to be written while it was.
    waited: Arc<AtomicBool>,
}

impl Log for Slow {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        self.file.read()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let is_taken = self.gate.try_lock().is_err();
        self.waited.fetch_or(is_taken, Ordering::Relaxed);
        drop(self.gate.lock().unwrap());
        self.file.append(bytes)
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.replace(bytes)
    }
}

#[test]
fn a_record_that_takes_longer_than_the_proof_is_told_to_nobody_before_the_next_one() {
    let mut world = World::new(1);
    world.manager.as_mut().and_then(Running::end);
    let told = Told(Arc::new(Mutex::new(Ok(true))));
    let gate = Arc::new(Mutex::new(()));
    let file = JournalFile::new(&world.folder.path().join("journal"));
    let waited = Arc::new(AtomicBool::new(false));
    let slow = Slow {
        file,
        gate: Arc::clone(&gate),
        waited: Arc::clone(&waited),
    };
    let claim = Claim::Agreed(Box::new(told.clone()));
    world
        .start_on(Box::new(slow), configuration(0), claim)
        .unwrap();
    let mut cache = world.open();
    world.until(&mut cache, |status| is_in_charge(status) && status.whole);
    let before = cache.len_bytes();

    let shut = gate.lock().unwrap();
    let (at, key) = (vec![world.address()], world.key.clone());
    let resize = Question::Resize { regions: 5 };
    let asking = std::thread::spawn(move || ask(at, &key, &resize, DEADLINE));
    let deadline = Instant::now() + DEADLINE;
    while !waited.load(Ordering::Relaxed) {
        assert!(Instant::now() < deadline, "nothing is to be written");
        std::thread::yield_now();
    }
    told.say(Err("nobody answers"));
    std::thread::sleep(PROOF_LEASE + Duration::from_millis(1500));
    drop(shut);
    world.until(&mut cache, |status| !is_in_charge(status));
    assert_eq!(cache.len_bytes(), before, "nobody was told");
    told.say(Ok(true));
    world.until(&mut cache, |status| is_in_charge(status) && status.whole);
    let deadline = Instant::now() + DEADLINE;
    while cache.len_bytes() == before {
        assert!(Instant::now() < deadline, "what was put off is told");
        cache.wait(Duration::from_millis(1)).unwrap();
    }
    drop(asking.join().unwrap());
}

fn is_in_charge(status: &Status) -> bool {
    status.troubles.is_empty()
}

#[test]
fn a_manager_without_a_proof_serves_and_changes_nothing_until_it_has_one_or_is_followed() {
    let mut world = World::new(2);
    world.manager.as_mut().and_then(Running::end);
    let told = Told(Arc::new(Mutex::new(Ok(true))));
    let claim = Claim::Agreed(Box::new(told.clone()));
    world.start_with(configuration(0), claim).unwrap();
    let mut cache = world.open();
    world.until(&mut cache, |status| is_in_charge(status) && status.whole);

    told.say(Err("nobody answers"));
    let cut = world.until(&mut cache, |status| !is_in_charge(status));
    let what = &cut.troubles[0].what;
    assert!(what.contains("(nobody answers)"), "{what}");
    let mut newcomer = world.open();
    newcomer.write(5000, &[7; 100]).expect("it is served");
    let mut bytes = [0; 100];
    cache.read(5000, &mut bytes).expect("it is served");
    assert_eq!(bytes, [7; 100], "both go by one table");
    let journal = || std::fs::read(world.folder.path().join("journal")).unwrap();
    let before = journal();
    let notice = Question::Notice {
        host: "h0".to_owned(),
        seconds: None,
    };
    for change in [Question::Resize { regions: 9 }, notice, Question::Delete] {
        let refused = ask(vec![world.address()], &world.key, &change, DEADLINE);
        assert!(matches!(refused, Err(CallError::Refused(_))), "{refused:?}");
    }
    // A host ends, and its regions would have to be placed elsewhere.
    world.daemons[0].end();
    let is_seen = |status: &Status| status.hosts.iter().any(|host| !host.up);
    let (status, deadline) = (Question::Status, Instant::now() + DEADLINE);
    loop {
        match ask(vec![world.address()], &world.key, &status, DEADLINE).unwrap() {
            Answer::Status(status) if is_seen(&status) => break,
            _ => assert!(Instant::now() < deadline),
        }
    }
    assert_eq!(journal(), before);

    told.say(Ok(true));
    world.until(&mut cache, |status| is_in_charge(status) && status.whole);
    assert_ne!(journal(), before, "what was put off is done");
    told.say(Ok(false));
    let thread = world.manager.as_mut().unwrap().thread.take().unwrap();
    assert_eq!(thread.join().unwrap(), End::Superseded);
}
