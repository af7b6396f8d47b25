//! A cache's manager and its clients over sockets, with hosts that run here: what one client does to others.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_cache::Configuration;
use cenote_cache::links::HostConfig;
use cenote_cache::owner::Settings;
use cenote_cache::random::Random;
use cenote_cache::service::journal::{Journal, JournalFile, Log};
use cenote_cache::service::message::{ToClient, ToManager, VERSION};
use cenote_cache::service::question::{Answer, Question, Status};
use cenote_cache::service::{
    Agreement, Cache, CallError, Claim, Claimed, Config, End, Options, PROOF_LEASE, Server,
    StartError, Supply, Terms, ask,
};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Error, Hello, Incoming, Session, Waker, connector,
    wait,
};
use cenote_host::Daemon;
use cenote_test_kit::host_config;

const SLAB_BYTES: u64 = 64 << 10;
const REGION_BYTES: u64 = 2 * SLAB_BYTES;
const DEADLINE: Duration = Duration::from_secs(60);

/// A thread of this process that is told to end.
struct Running<T> {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<T>>,
}

impl<T> Running<T> {
    fn end(&mut self) -> Option<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread
            .take()
            .map(|thread| thread.join().expect("no panic"))
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

struct World {
    folder: tempfile::TempDir,
    key: ClusterKey,
    hosts: Vec<HostConfig>,
    manager: Option<Running<End>>,
    daemons: Vec<Running<()>>,
}

impl World {
    fn new(hosts: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = ClusterKey::generate().unwrap();
        let (mut configs, mut daemons) = (Vec::new(), Vec::new());
        for index in 0..hosts {
            let name = format!("h{index}");
            let address = Address::Shm(folder.path().join(&name));
            let mut daemon = Daemon::start(cenote_host::Config {
                cache_threads: 1,
                ..host_config(&name, address, 32, SLAB_BYTES, &key)
            })
            .unwrap();
            configs.push(HostConfig {
                address: daemon.addresses()[0].clone(),
                domain: name.clone(),
                name,
            });
            let (stop, waker) = (Arc::new(AtomicBool::new(false)), daemon.waker());
            let stopped = Arc::clone(&stop);
            let run = move || daemon.run(&stopped).map(drop).unwrap();
            daemons.push(Running {
                stop,
                waker,
                thread: Some(std::thread::spawn(run)),
            });
        }
        let mut world = Self {
            folder,
            key,
            hosts: configs,
            manager: None,
            daemons,
        };
        world.start(configuration(0)).unwrap();
        world
    }

    fn address(&self) -> Address {
        Address::Shm(self.folder.path().join("manager"))
    }

    fn start(&mut self, configuration: Configuration) -> Result<(), StartError> {
        self.start_with(configuration, Claim::Lock)
    }

    fn start_with(&mut self, configuration: Configuration, claim: Claim) -> Result<(), StartError> {
        let journal = JournalFile::new(&self.folder.path().join("journal"));
        self.start_on(Box::new(journal), configuration, claim)
    }

    fn start_on(
        &mut self,
        journal: Box<dyn Log>,
        configuration: Configuration,
        claim: Claim,
    ) -> Result<(), StartError> {
        let settings = Settings {
            cache: 0xcac4e,
            slab_bytes: SLAB_BYTES,
            slabs_per_region: 2,
            copies: 1,
            give_up_after: Duration::from_secs(10),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let config = Config {
            settings,
            regions: 4,
            duration: None,
            terms: Terms { configuration },
            hosts: self.hosts.clone(),
            supply: Supply::Cluster(Box::new(|| None)),
            key: self.key.clone(),
            addresses: vec![self.address()],
            journal,
            checkpoint: None,
            claim,
            clock: || 1_000_000,
        };
        let mut server = Server::start(config, &stop)?;
        let waker = server.waker();
        let stopped = Arc::clone(&stop);
        let run = move || server.run(&stopped).expect("it can wait");
        self.manager = Some(Running {
            stop,
            waker,
            thread: Some(std::thread::spawn(run)),
        });
        Ok(())
    }

    fn open(&self) -> Cache {
        let options = Options {
            timeout: DEADLINE,
            ..Options::default()
        };
        Cache::open(vec![self.address()], &self.key, &options).expect("its manager runs")
    }

    fn session(&self, client: u128) -> Box<dyn Session> {
        let hello = Hello {
            client: ClientId(client),
            name: "strange".to_owned(),
        };
        connector(self.key.clone())
            .connect(&self.address(), &hello, DEADLINE)
            .unwrap()
    }
}

fn configuration(s: u32) -> Configuration {
    Configuration {
        c: 1,
        s,
        b: if s == 0 { 1 } else { 8 },
        q: 16,
    }
}

/// Says it as often as it takes until the manager ends the connection.
fn say_until_cut_off(session: &mut dyn Session, message: &ToManager, reads: bool) -> u64 {
    let deadline = Instant::now() + DEADLINE;
    let mut said = 0;
    loop {
        match session.send(&message.encode()) {
            Ok(()) => said += 1,
            // It takes no more for now.
            Err(Error::Bound(_)) => {
                wait(session.fd().as_slice(), Some(Duration::from_millis(1))).unwrap();
            }
            Err(_) => return said,
        }
        if reads {
            loop {
                match session.receive() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return said,
                }
            }
        }
        assert!(Instant::now() < deadline, "nobody cut it off after {said}");
    }
}

#[test]
fn who_floods_or_reads_nothing_is_cut_off_and_hinders_nobody() {
    let world = World::new(2);
    let mut cache = world.open();
    cache.write(100, &[7; 300_000]).unwrap();
    for (client, reads, message) in [
        (1, true, ToManager::Alive { asked_at: 1 }),
        (2, true, ToManager::Known(vec![(0, 1); 900])),
        (3, false, ask_status()),
        (4, true, ToManager::Join { version: VERSION }),
    ] {
        let mut session = world.session(client);
        let said = say_until_cut_off(&mut *session, &message, reads);
        assert!(said > 1, "client {client}");
        let mut bytes = [0; 300_000];
        cache.read(100, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
        cache.status().expect("the manager answers others");
    }
    assert!(cache.take_lost().is_none());
}

fn ask_status() -> ToManager {
    ToManager::Ask {
        number: 1,
        question: br#"{"ask":"status"}"#.to_vec(),
    }
}

#[test]
fn no_bytes_of_a_client_harm_the_manager() {
    let world = World::new(1);
    let mut cache = world.open();
    let mut random = Random::new(11);
    for client in 0..60 {
        let mut session = world.session(1000 + client);
        for _ in 0..20 {
            let len = usize::try_from(random.number() % 40).unwrap();
            let mut bytes: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
            if let Some(kind) = bytes.first_mut() {
                // Mostly of a kind that there is.
                *kind %= 8;
            }
            if session.send(&bytes).is_err() {
                break;
            }
        }
        while let Ok(Some(_)) = session.receive() {}
    }
    cache.write(0, b"here").unwrap();
    // What those clients began is fenced off first.
    let deadline = Instant::now() + DEADLINE;
    while !cache.status().unwrap().whole {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_of_another_version_is_refused_by_name() {
    let world = World::new(1);
    let mut session = world.session(9);
    let join = ToManager::Join {
        version: VERSION + 1,
    };
    session.send(&join.encode()).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let message = loop {
        match session.receive() {
            Ok(Some(Incoming::Message(bytes))) => break ToClient::decode(&bytes, 1).unwrap(),
            Ok(_) => drop(wait(session.fd().as_slice(), Some(Duration::from_millis(10))).unwrap()),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline);
    };
    let version = cenote_cache::service::message::Refusal::Version;
    assert_eq!(message, ToClient::Refused(version));
}

#[test]
fn many_requests_are_under_way_and_end_in_the_order_in_which_they_overlap() {
    let world = World::new(2);
    let mut cache = world.open();
    let (begin, end) = (REGION_BYTES - 50, REGION_BYTES + 50);
    for version in 1..=50_u64 {
        let bytes = Bytes::from(vec![u8::try_from(version).unwrap(); 100]);
        cache.submit_write(begin, bytes, version).unwrap();
    }
    cache.submit_read(begin, BytesMut::zeroed(100), 99).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let mut ended = Vec::new();
    while cache.outstanding() > 0 {
        cache.wait(Duration::from_millis(10)).unwrap();
        cache.poll(&mut ended);
        assert!(Instant::now() < deadline);
    }
    assert_eq!(ended.len(), 51);
    assert!(ended.iter().all(|one| one.result.is_ok()));
    let read = ended.iter().find(|one| one.token == 99).unwrap();
    assert_eq!(&read.buffer[..], [50; 100]);
    // One that blocks, while others are under way whose ends it keeps.
    cache
        .submit_write(end, Bytes::from_static(b"x"), 7)
        .unwrap();
    cache.read(begin, &mut [0; 10]).unwrap();
    let mut ended = Vec::new();
    while ended.is_empty() {
        cache.poll(&mut ended);
        assert!(Instant::now() < deadline);
    }
    assert_eq!(ended[0].token, 7);
}

#[test]
fn a_manager_is_followed_by_one_that_finds_what_it_left() {
    let mut world = World::new(2);
    let mut cache = world.open();
    cache.write(0, &[3; 500_000]).unwrap();
    let end = world.manager.as_mut().and_then(Running::end);
    assert_eq!(end, Some(End::Stopped));
    world.start(configuration(0)).unwrap();
    let mut bytes = vec![0; 500_000];
    cache.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 3));
    assert_eq!(cache.status().unwrap().epoch, 2);
    let refused = ask(
        vec![world.address()],
        &world.key,
        &Question::Resize { regions: 0 },
        DEADLINE,
    );
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("1 to 65536 regions")
    );
    let done = ask(
        vec![world.address()],
        &world.key,
        &Question::Delete,
        DEADLINE,
    )
    .unwrap();
    assert_eq!(done, Answer::Done);
    let manager = world.manager.as_mut().unwrap();
    let end = manager.thread.take().unwrap().join().unwrap();
    assert_eq!(end, End::Deleted);
}

#[test]
fn a_host_that_has_another_name_in_the_cluster_file_keeps_its_bytes() {
    let mut world = World::new(2);
    let mut cache = world.open();
    cache.write(0, &[5; 500_000]).unwrap();
    world.manager.as_mut().and_then(Running::end);
    "z".clone_into(&mut world.hosts[0].name);
    world.start(configuration(0)).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        let answer = ask(
            vec![world.address()],
            &world.key,
            &Question::Status,
            DEADLINE,
        );
        match answer.unwrap() {
            Answer::Status(status) if status.whole => break status,
            _ => assert!(Instant::now() < deadline, "it is never whole"),
        }
        cache.wait(Duration::from_millis(10)).unwrap();
    };
    let mut bytes = vec![0; 500_000];
    cache.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    assert!(cache.take_lost().is_none());
    let names: Vec<&str> = status.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["z", "h1"]);
}

/// The next message that is there within the deadline.
fn next_message(session: &mut dyn Session) -> ToClient {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match session.receive().expect("it is not cut off") {
            Some(Incoming::Message(bytes)) => return ToClient::decode(&bytes, SLAB_BYTES).unwrap(),
            Some(_) => {}
            None => {
                assert!(Instant::now() < deadline, "nothing comes");
                wait(session.fd().as_slice(), Some(Duration::from_millis(10))).unwrap();
            }
        }
    }
}

#[test]
fn a_cache_that_grows_a_thousandfold_keeps_clients_that_answer_for_each_region() {
    let world = World::new(1);
    let mut session = world.session(7);
    let join = ToManager::Join { version: VERSION };
    session.send(&join.encode()).unwrap();
    let first = |session: &mut dyn Session| {
        while !matches!(next_message(session), ToClient::Entry(entry) if entry.region == 3) {}
    };
    first(&mut *session);
    let resize = ToManager::Ask {
        number: 1,
        question: br#"{"ask":"resize","regions":4000}"#.to_vec(),
    };
    session.send(&resize.encode()).unwrap();
    let mut known = Vec::new();
    while known.len() < 4000 {
        if let ToClient::Entry(entry) = next_message(&mut *session) {
            known.push((entry.region, entry.generation));
        }
    }
    for part in known.chunks(1000) {
        let message = ToManager::Known(part.to_vec()).encode();
        while let Err(error) = session.send(&message) {
            assert!(matches!(error, Error::Bound(_)), "{error}");
            wait(session.fd().as_slice(), Some(Duration::from_millis(1))).unwrap();
        }
    }
    let alive = ToManager::Alive { asked_at: 42 }.encode();
    session.send(&alive).unwrap();
    while !matches!(
        next_message(&mut *session),
        ToClient::Lease { asked_at: 42 }
    ) {}
}

#[test]
fn who_has_a_cache_open_that_is_deleted_hears_of_it() {
    let mut world = World::new(1);
    let mut cache = world.open();
    let manager = vec![world.address()];
    ask(manager, &world.key, &Question::Delete, DEADLINE).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let thread = world.manager.as_mut().unwrap().thread.take().unwrap();
    assert_eq!(thread.join().unwrap(), End::Deleted);
    let mut state = cache.wait(Duration::from_millis(1));
    while state.is_ok() && Instant::now() < deadline {
        match cache.read(0, &mut [0; 10]) {
            Err(CallError::Gone) => return,
            _ => state = cache.wait(Duration::from_millis(1)),
        }
    }
    panic!("nobody told it: {state:?}");
}

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
}

impl Log for Slow {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        self.file.read()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
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
    let slow = Slow {
        file,
        gate: Arc::clone(&gate),
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
    // The question is at the manager once its thread waits for the disk, so nobody else is answered.
    std::thread::sleep(Duration::from_millis(500));
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
