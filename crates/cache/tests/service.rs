//! A cache's manager and its clients over sockets, with hosts that run here: what one client does to others.

#[path = "service/later_managers.rs"]
mod later_managers;
#[path = "service/leadership.rs"]
mod leadership;
#[path = "service/other_managers.rs"]
mod other_managers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_cache::Configuration;
use cenote_cache::links::HostConfig;
use cenote_cache::owner::{LEASE, Settings};
use cenote_cache::service::journal::{JournalFile, Log};
use cenote_cache::service::message::{ToClient, ToManager, VERSION};
use cenote_cache::service::question::{Answer, Question, Status};
use cenote_cache::service::{
    Cache, CallError, Claim, Config, End, Options, Server, StartError, Supply, Terms, ask,
};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Error, Hello, Incoming, Listen, Listener, Session,
    Waker, connector, wait,
};
use cenote_host::Daemon;
use cenote_pool::random::Random;
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
    /// Identity of the cache.
    cache: u128,
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
            cache: 0xcac4e,
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
            cache: self.cache,
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
        server.hear_hosts(&stop)?;
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
/// What the manager says next; `None` if it says nothing for so long.
fn next_within(session: &mut dyn Session, limit: Duration) -> Option<ToClient> {
    let deadline = Instant::now() + limit;
    loop {
        match session.receive().expect("it is not cut off") {
            Some(Incoming::Message(bytes)) => {
                return Some(ToClient::decode(&bytes, SLAB_BYTES).unwrap());
            }
            Some(_) => {}
            None if Instant::now() >= deadline => return None,
            None => {
                wait(session.fd().as_slice(), Some(Duration::from_millis(10))).unwrap();
            }
        }
    }
}

#[test]
fn a_cache_that_grows_a_thousandfold_keeps_clients_that_answer_for_each_region() {
    // A thread that gets no processor for as long as its lease is forgotten: then once more.
    let is_kept = (0..5).any(|_| is_kept_while_it_grows(&World::new(1)));
    assert!(is_kept, "its lease was over each time");
}

/// Whether a client is given its lease behind 4000 regions; false where it was forgotten before.
fn is_kept_while_it_grows(world: &World) -> bool {
    let mut session = world.session(7);
    let join = ToManager::Join { version: VERSION };
    session.send(&join.encode()).unwrap();
    // Who is forgotten hears of it when it says something, and of nothing else.
    let next = |session: &mut dyn Session| match next_within(session, 2 * LEASE) {
        Some(ToClient::Unknown) => None,
        message => message,
    };
    loop {
        match next(&mut *session) {
            Some(ToClient::Entry(entry)) if entry.region == 3 => break,
            Some(_) => {}
            None => return false,
        }
    }
    let resize = ToManager::Ask {
        number: 1,
        question: br#"{"ask":"resize","regions":4000}"#.to_vec(),
    };
    session.send(&resize.encode()).unwrap();
    let mut known = Vec::new();
    while known.len() < 4000 {
        match next(&mut *session) {
            Some(ToClient::Entry(entry)) => known.push((entry.region, entry.generation)),
            Some(_) => {}
            None => return false,
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
    loop {
        match next(&mut *session) {
            Some(ToClient::Lease { asked_at: 42 }) => return true,
            Some(_) => {}
            None => return false,
        }
    }
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
