//! The remote tier over a cache that has a manager and real hosts, on both transports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_cache::Configuration;
use cenote_cache::links::HostConfig;
use cenote_cache::log::tiers::memory::{Fault, MemoryTier};
use cenote_cache::log::tiers::remote::RemoteTier;
use cenote_cache::log::tiers::{Ended, Request, Tier};
use cenote_cache::log::{Answer, Session, Settings, Store};
use cenote_cache::owner;
use cenote_cache::service::journal::JournalFile;
use cenote_cache::service::question::{self, Question};
use cenote_cache::service::{Cache, Claim, Config, Options, Server, Supply, Terms, ask};
use cenote_fabric::{Address, ClusterKey, Waker};
use cenote_host::Daemon;
use cenote_test_kit::host_config;

use crate::ring::Ring;
use crate::values::{SECRET, add, value_of};

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// A host is taken for dead after this: longer than one is late on a busy machine.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// A host that is told to stop has so long to be left; longer than it takes.
const GRACE: Duration = Duration::from_secs(600);
const SLAB_BYTES: u64 = 256 << 10;
const REGIONS: u32 = 4;
const PAGE_BYTES: usize = 4096;
/// So many of the newest records are in the cache, some in each region.
const IN_CACHE: u64 = 9_000;

/// A thread of this process that is told to end.
struct Running {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(waker: Waker, run: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self {
            stop,
            waker,
            thread: Some(std::thread::spawn(move || run(&stopped))),
        }
    }

    fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

/// Hosts and the manager of a cache, and its handle in a store of which everything is on a disk, too.
struct World {
    folder: tempfile::TempDir,
    key: ClusterKey,
    /// By name. The first is left in time when it is told to stop; others end at once, as if killed.
    hosts: BTreeMap<String, Running>,
    _manager: Running,
    disk_reads: Arc<AtomicU64>,
    store: Arc<Store>,
}

impl World {
    fn new(transport: &str, hosts: usize, copies: usize, give_up_after: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = ClusterKey::generate().unwrap();
        let (mut configs, mut daemons) = (Vec::new(), BTreeMap::new());
        for index in 0..hosts {
            let name = format!("h{index}");
            let address = match transport {
                "shm" => Address::Shm(folder.path().join(&name)),
                _ => "tcp:127.0.0.1:0".parse().unwrap(),
            };
            let mut daemon = start_host(&name, address, &key);
            if index == 0 {
                daemon.set_grace(GRACE);
            }
            let waker = daemon.waker();
            configs.push(HostConfig {
                address: daemon.addresses()[0].clone(),
                domain: name.clone(),
                name: name.clone(),
            });
            let run = move |stop: &AtomicBool| daemon.run(stop).map(drop).unwrap();
            daemons.insert(name, Running::start(waker, run));
        }
        let settings = owner::Settings {
            cache: 5,
            slab_bytes: SLAB_BYTES,
            slabs_per_region: 1,
            copies,
            give_up_after,
        };
        let configuration = Configuration {
            c: 1,
            s: 0,
            b: 1,
            q: 16,
        };
        let manager = Address::Shm(folder.path().join("manager"));
        let config = Config {
            settings,
            regions: REGIONS,
            duration: None,
            terms: Terms { configuration },
            hosts: configs,
            supply: Supply::Cluster(Box::new(|| None)),
            key: key.clone(),
            addresses: vec![manager.clone()],
            journal: Box::new(JournalFile::new(&folder.path().join("journal"))),
            checkpoint: None,
            claim: Claim::Lock,
            clock: || 1_000_000,
        };
        let mut server = Server::start(config, &AtomicBool::new(false)).unwrap();
        let _manager = Running::start(server.waker(), move |stop| {
            server.run(stop).map(drop).expect("it can wait");
        });
        wait_until_whole(&manager, &key);
        let options = Options {
            patience: DEADLINE,
            timeout: DEADLINE,
            ..Options::default()
        };
        let cache = Cache::open(vec![manager], &key, &options).unwrap();
        assert_eq!(cache.len_bytes(), u64::from(REGIONS) * SLAB_BYTES);
        let disk_reads = Arc::new(AtomicU64::new(0));
        Self {
            store: store(cache, &disk_reads),
            folder,
            key,
            hosts: daemons,
            _manager,
            disk_reads,
        }
    }

    fn manager(&self) -> Address {
        Address::Shm(self.folder.path().join("manager"))
    }

    fn disk_reads(&self) -> u64 {
        self.disk_reads.swap(0, Ordering::Relaxed)
    }

    /// The first host is told that its machine is taken back, and is left while `work` goes on.
    fn take_first_host_back(&mut self, mut work: impl FnMut()) {
        assert!(
            self.regions_on("h0") > 0,
            "a host without a region is left at once"
        );
        self.hosts["h0"].tell_to_stop();
        let deadline = Instant::now() + DEADLINE;
        while !self.hosts["h0"].has_ended() {
            work();
            assert!(Instant::now() < deadline, "{:?}", self.store.tiers());
        }
    }

    /// The host that has the most regions ends, and nobody is told.
    fn kill_a_host(&mut self) {
        self.hosts.remove("h0");
        let names = self.hosts.keys().cloned();
        let fullest = names.max_by_key(|name| self.regions_on(name)).unwrap();
        assert!(self.regions_on(&fullest) > 0);
        self.hosts.remove(&fullest);
    }

    fn regions_on(&self, host: &str) -> usize {
        let status = status(&self.manager(), &self.key);
        let is_it = |one: &&question::Host| one.name == host;
        status.hosts.iter().find(is_it).map_or(0, |one| one.regions)
    }

    fn assert_no_faults(&self) {
        let tiers = self.store.tiers();
        assert!(tiers.iter().all(|tier| tier.fault_count == 0), "{tiers:?}");
    }
}

fn start_host(name: &str, address: Address, key: &ClusterKey) -> Daemon {
    Daemon::start(cenote_host::Config {
        clients_max: 8,
        cache_threads: 1,
        ..host_config(name, address, 8, SLAB_BYTES, key)
    })
    .unwrap()
}

fn status(manager: &Address, key: &ClusterKey) -> question::Status {
    let answer = ask(vec![manager.clone()], key, &Question::Status, DEADLINE).unwrap();
    let question::Answer::Status(status) = answer else {
        panic!("an answer to another question");
    };
    *status
}

/// Every region has its copies, on hosts that stay.
fn wait_until_whole(manager: &Address, key: &ClusterKey) {
    let deadline = Instant::now() + DEADLINE;
    while !status(manager, key).whole {
        assert!(Instant::now() < deadline, "{:?}", status(manager, key));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A store with the cache below memory, and below that a disk whose reads are counted.
fn store(cache: Cache, disk_reads: &Arc<AtomicU64>) -> Arc<Store> {
    let counted = Arc::clone(disk_reads);
    let disk = move |request: &Request| {
        if matches!(request, Request::Read { .. }) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    };
    let tiers: Vec<Box<dyn Tier>> = vec![
        Box::new(RemoteTier::new("cache", Box::new(cache), PAGE_BYTES)),
        Box::new(MemoryTier::with_faults("disk", None, Box::new(disk))),
    ];
    let settings = Settings {
        page_bytes: PAGE_BYTES,
        pages: 16,
        mutable_pages: 8,
        ..Settings::default()
    };
    Store::create(settings, SECRET, Arc::new(add), tiers, None).unwrap()
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

fn write(session: &mut Session, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let value = value_of(number);
        let upsert = |session: &mut Session| session.upsert(&key(number), &value);
        session.wait(&mut Vec::new(), upsert).unwrap();
    }
}

/// Reads every key, some at a time.
fn check(session: &mut Session, numbers: std::ops::Range<u64>) {
    let (mut value, mut ended) = (Vec::new(), Vec::new());
    let mut asked = std::collections::HashMap::new();
    for number in numbers {
        let read = |session: &mut Session| session.read(&key(number), &mut value);
        match session.wait(&mut ended, read).unwrap() {
            Answer::Done => assert_eq!(value, value_of(number)),
            Answer::Absent => panic!("{number} is gone"),
            Answer::Pending(ticket) => drop(asked.insert(ticket, number)),
        }
    }
    session.finish(&mut ended);
    for end in ended {
        let number = asked.remove(&end.ticket).unwrap();
        assert_eq!(end.result.unwrap(), Some(value_of(number)));
    }
    assert!(asked.is_empty());
}

fn losses_cost_time_alone(transport: &str) {
    let mut world = World::new(transport, 3, 1, GIVE_UP_AFTER);
    let mut session = world.store.session().unwrap();

    // About 700 KiB: all of it fits into the cache.
    write(&mut session, 0..7_500);
    check(&mut session, 0..7_500);
    assert_eq!(world.disk_reads(), 0, "{:?}", world.store.tiers());
    // As much again and again: the ring goes round, and the oldest come from the disk.
    write(&mut session, 7_500..22_500);
    check(&mut session, 0..22_500);
    let disk_reads = world.disk_reads();
    assert!((1..15_000).contains(&disk_reads), "{disk_reads}");

    // A machine is taken back: its regions move, and have what they had.
    let mut last = 22_500;
    world.take_first_host_back(|| {
        check(&mut session, last - IN_CACHE..last);
        write(&mut session, last..last + 50);
        last += 50;
    });
    check(&mut session, last - IN_CACHE..last);
    assert_eq!(world.disk_reads(), 0, "{:?}", world.store.tiers());

    // One of the two others is killed. What it had comes from the disk, and no read fails.
    world.kill_a_host();
    let deadline = Instant::now() + DEADLINE;
    while world.disk_reads() == 0 {
        check(&mut session, last - IN_CACHE..last);
        assert!(Instant::now() < deadline, "{:?}", world.store.tiers());
    }
    check(&mut session, 0..last);

    // Regions have memory on the last machine now: what is written goes there.
    wait_until_whole(&world.manager(), &world.key);
    write(&mut session, last..last + 15_000);
    last += 15_000;
    world.disk_reads();
    check(&mut session, last - 4_000..last);
    assert_eq!(world.disk_reads(), 0, "{:?}", world.store.tiers());
    world.assert_no_faults();

    // The cache is deleted: the store goes on without it.
    ask(
        vec![world.manager()],
        &world.key,
        &Question::Delete,
        DEADLINE,
    )
    .unwrap();
    let deadline = Instant::now() + DEADLINE;
    while world.store.tiers()[0].holds.is_some() {
        check(&mut session, last - IN_CACHE..last);
        assert!(Instant::now() < deadline, "{:?}", world.store.tiers());
    }
    write(&mut session, last..last + 1000);
    check(&mut session, 0..last + 1000);
}

#[test]
fn a_cache_on_shm_serves_what_memory_has_no_room_for_and_its_losses_cost_time_alone() {
    losses_cost_time_alone("shm");
}

#[test]
fn a_cache_on_tcp_serves_what_memory_has_no_room_for_and_its_losses_cost_time_alone() {
    losses_cost_time_alone("tcp");
}

#[test]
fn a_cache_of_two_copies_goes_on_without_the_disk_and_without_waiting_for_a_host_that_was_killed() {
    // Nobody takes a silent host for dead: who would wait for that would wait for ever.
    let never = Duration::from_secs(3600);
    let mut world = World::new("shm", 4, 2, never);
    let mut session = world.store.session().unwrap();
    write(&mut session, 0..7_500);
    world.take_first_host_back(|| check(&mut session, 0..7_500));
    wait_until_whole(&world.manager(), &world.key);
    world.kill_a_host();
    check(&mut session, 0..7_500);
    assert_eq!(world.disk_reads(), 0, "{:?}", world.store.tiers());
    world.assert_no_faults();
}

/// The ends of what was asked for, by token, however many polls they take.
fn ends(tier: &mut RemoteTier, count: usize) -> Vec<Ended> {
    let mut ended = Vec::new();
    while ended.len() < count {
        tier.poll(&mut ended).unwrap();
    }
    ended.sort_by_key(|end| end.token);
    ended
}

#[test]
fn a_page_is_there_until_another_has_its_place() {
    let ring = Box::new(Ring::new(4 * 256, 256, 3));
    let mut tier = RemoteTier::new("cache", ring, 256);
    let page = |byte: u8| {
        let mut page = cenote_cache::log::tiers::Buffer::zeroed(256);
        page.fill(byte);
        Arc::new(page)
    };
    for (token, byte) in [(1, 1), (2, 2)] {
        let address = u64::from(byte) * 256;
        let page = page(byte);
        tier.start(token, Request::Write { address, page }).unwrap();
    }
    assert!(ends(&mut tier, 2).iter().all(|end| end.result.is_ok()));
    let read = |address| Request::Read {
        address,
        len_bytes: 500,
    };
    tier.start(3, read(256 + 200)).unwrap();
    tier.start(4, read(5 * 256)).unwrap();
    let mut ended = ends(&mut tier, 2);
    // Behind the end of a page is another, which is not asked for.
    assert_eq!(ended[0].result.as_ref().unwrap(), &[1; 56]);
    let error = ended.remove(1).result.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    // The fifth page takes the place of the first.
    let (address, page) = (5 * 256, page(5));
    tier.start(5, Request::Write { address, page }).unwrap();
    tier.start(6, read(256)).unwrap();
    tier.start(7, read(512)).unwrap();
    let ended = ends(&mut tier, 3);
    let error = ended[1].result.as_ref().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(ended[2].result.as_ref().unwrap(), &[2; 256]);
}
