//! Procedures that write to a cache that `cenote cache create` made, while its regions move, a host
//! stands still, and its manager is killed and followed. With two copies hosts are killed as well.
//!
//! Each counter is added to by one thread, one request at a time. A request whose end says that it
//! may have run may run still, so its counter is left alone from then on; it may be one higher than
//! what was acknowledged. Any other is exactly that.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_cache::service::Cache;
use cenote_cache::service::question::Question;
use cenote_fabric::{ClientId, ClusterKey, Connector, Hello, Session, connector};
use cenote_proc::remote::Remote;
use cenote_proc::{CacheId, ECHO, ProcedureId, Status};
use serde_json::Value;
use support::adder::{ADD, BEGIN};
use support::cache_load::open;
use support::{Folder, signal, well, words};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
const REGION_BYTES: u64 = 1 << 20;
const REGIONS: u64 = 6;
const WORKERS: u64 = 3;
/// Counters of each thread. Few are left alone.
const COUNTERS: u64 = 200;

/// Adds once, and then asks for the bytes at its second argument.
const ADD_AND_FETCH: [&str; 2] = [
    BEGIN,
    r#"
        (i64.store (i32.const 65536)
            (i64.load (select (i32.const 65560) (i32.const 65568) (local.get $fault))))
        (i32.store (i32.const 65544) (i32.const 8))
        (select (i32.const 2) (i32.const 1) (local.get $fault))))"#,
];

#[derive(Clone, Copy, Default)]
struct Counter {
    acknowledged: u64,
    in_doubt: bool,
}

struct Worker {
    number: u64,
    folder: std::path::PathBuf,
    addresses: Vec<String>,
    to: (CacheId, ProcedureId),
    counters: Vec<Counter>,
    random: u64,
    shared: Arc<Shared>,
}

/// What threads are told, and tell.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Additions that were acknowledged.
    added: AtomicU64,
    /// That ended so on a host that knew the cache.
    out_of_bounds: AtomicU64,
}

/// A connection to one host's server threads.
struct User {
    remote: Remote,
    // Its end would end the connection.
    _session: Box<dyn Session>,
}

/// Counters of all threads are on all regions.
fn place(worker: u64, counter: u64) -> u64 {
    let at = counter * WORKERS + worker;
    at % REGIONS * REGION_BYTES + 4096 + at / REGIONS * 64
}

impl Worker {
    fn user(&self, address: &str) -> Option<User> {
        let key = ClusterKey::load(&self.folder.join("cluster.key")).expect("a key");
        let hello = Hello {
            client: ClientId(u128::from(std::process::id()) << 32 | u128::from(self.number)),
            name: "a user of procedures".to_owned(),
        };
        let patience = Duration::from_secs(2);
        let session = connector(key).connect(&address.parse().ok()?, &hello, patience);
        let session = session.ok()?;
        let mut remote = Remote::new(session.caller_opener()(patience).ok()?, 16);
        // A host that has no slab of the cache may not know it.
        let knows = remote.run(self.to.0, ECHO, b"").ok()?.0 == Status::Done;
        knows.then_some(User {
            remote,
            _session: session,
        })
    }

    fn draw(&mut self, end: usize) -> usize {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % end as u64).expect("small")
    }

    fn run(mut self) -> Vec<Counter> {
        let mut users: Vec<Option<User>> = self.addresses.iter().map(|_| None).collect();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let counter = self.draw(self.counters.len());
            if self.counters[counter].in_doubt {
                continue;
            }
            let host = self.draw(users.len());
            if users[host].is_none() {
                users[host] = self.user(&self.addresses[host]);
            }
            let Some(user) = &mut users[host] else {
                continue;
            };
            let argument = place(self.number, counter as u64).to_le_bytes();
            let known = &mut self.counters[counter];
            match user.remote.run(self.to.0, self.to.1, &argument) {
                Ok((Status::Done, _)) => {
                    known.acknowledged += 1;
                    self.shared.added.fetch_add(1, Ordering::Relaxed);
                }
                Ok((status, _)) => {
                    known.in_doubt = status.may_have_run();
                    if status == Status::OutOfBounds {
                        self.shared.out_of_bounds.fetch_add(1, Ordering::Relaxed);
                        users[host] = None;
                    }
                }
                Err(cut) => {
                    known.in_doubt = cut.may_have_run;
                    users[host] = None;
                }
            }
        }
        self.counters
    }
}

fn status(folder: &Folder) -> Value {
    let ask = || folder.run(&["cache", "status", "c0", "--json"]);
    well::until("a status is told", ask, |_| true)["status"].take()
}

/// Waits until the cache is as it should be.
fn until(folder: &Folder, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(folder);
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Shared {
    /// Waits until so many more additions were acknowledged.
    fn until_added(&self, count: u64) {
        let enough = self.added.load(Ordering::Relaxed) + count;
        let deadline = Instant::now() + PATIENCE;
        while self.added.load(Ordering::Relaxed) < enough {
            assert!(Instant::now() < deadline, "nothing is added any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn text(host: &Value, of: &str) -> String {
    host[of].as_str().expect("text").to_owned()
}

fn regions_of(status: &Value, name: &str) -> u64 {
    let hosts = status["hosts"].as_array().expect("hosts");
    let host = hosts.iter().find(|host| text(host, "name") == name);
    host.expect("it is listed")["regions"]
        .as_u64()
        .expect("a number")
}

/// The host with the most regions but for some.
fn fullest(status: &Value, but: &[&str]) -> String {
    let hosts = status["hosts"].as_array().expect("hosts").iter();
    let names = hosts.map(|host| text(host, "name"));
    let others = names.filter(|name| !but.contains(&name.as_str()));
    others
        .max_by_key(|name| regions_of(status, name))
        .expect("one is left")
}

fn notice(cache: &mut Cache, host: &str) {
    let notice = Question::Notice {
        host: host.to_owned(),
        seconds: Some(120),
    };
    cache.ask(&notice).expect("taken");
}

fn begin(folder: &Folder, transport: &str, copies: &str) -> (Vec<String>, (CacheId, ProcedureId)) {
    let cluster = ["--hosts", "4", "--memory", "16M", "--slab", "256K"];
    folder
        .run(&[&["up"][..], &cluster, &["--transport", transport]].concat())
        .expect(0);
    let create = format!("cache create c0 --size 6M --region 1M --copies {copies}");
    folder.run(&words(&create)).expect(0);
    let whole = until(folder, |status| status["whole"] == true);
    let id = u128::from_str_radix(whole["id"].as_str().expect("text"), 16).expect("a number");
    let hosts = whole["hosts"].as_array().expect("hosts").iter();
    let addresses = hosts.map(|host| text(host, "address")).collect();
    let procedure = put(folder, "add", ADD);
    (addresses, (CacheId(id), procedure))
}

fn compiled(folder: &Folder, name: &str, text: [&str; 2]) -> PathBuf {
    let module = folder.path().join(name).with_extension("wasm");
    let bytes = wat::parse_str(text.concat()).expect("a module");
    std::fs::write(&module, bytes).expect("a file");
    module
}

fn put(folder: &Folder, name: &str, text: [&str; 2]) -> ProcedureId {
    let module = compiled(folder, name, text);
    let module = module.to_str().expect("UTF-8");
    let put = format!("cache proc put {name} {module} --write c0 --json");
    let put = folder.run(&words(&put)).expect(0).json();
    ProcedureId(u32::try_from(put["id"].as_u64().expect("a number")).expect("32 bits"))
}

fn start(
    folder: &Path,
    addresses: &[String],
    to: (CacheId, ProcedureId),
    shared: &Arc<Shared>,
) -> Vec<JoinHandle<Vec<Counter>>> {
    let counters = usize::try_from(COUNTERS).expect("small");
    let worker = |number| Worker {
        number,
        folder: folder.to_owned(),
        addresses: addresses.to_vec(),
        to,
        counters: vec![Counter::default(); counters],
        random: 0x9e37_79b9_7f4a_7c15 ^ number,
        shared: Arc::clone(shared),
    };
    let workers = (0..WORKERS).map(worker);
    workers
        .map(|worker| std::thread::spawn(move || worker.run()))
        .collect()
}

/// What the counters say is what was acknowledged.
fn check(cache: &mut Cache, worker: u64, counters: &[Counter]) {
    for (counter, known) in (0..).zip(counters) {
        let at = place(worker, counter);
        let region = usize::try_from(at / REGION_BYTES).expect("small");
        // A host that stands still for ten seconds is given up, and its regions with it.
        assert_eq!(
            cache.losses(region),
            0,
            "the machine is too busy for this test"
        );
        let mut bytes = [0; 8];
        cache.read(at, &mut bytes).expect("read");
        let value = u64::from_le_bytes(bytes);
        let most = known.acknowledged + u64::from(known.in_doubt);
        assert!(
            (known.acknowledged..=most).contains(&value),
            "counter {counter} of thread {worker} is {value}; {} additions were acknowledged",
            known.acknowledged
        );
    }
}

fn add_through_it_all(transport: &str) {
    let folder = Folder::new();
    let (addresses, to) = begin(&folder, transport, "1");
    let shared = Arc::<Shared>::default();
    let workers = start(folder.path(), &addresses, to, &shared);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    shared.until_added(200);

    // Under notice its regions move; additions go on, and after them at the new places.
    let first = fullest(&status(&folder), &[]);
    notice(&mut cache, &first);
    until(&folder, |status| regions_of(status, &first) == 0);
    shared.until_added(200);

    // A host stands still. What moves meanwhile waits for its lease, once.
    let stopped = fullest(&status(&folder), &[&first]);
    let second = fullest(&status(&folder), &[&first, &stopped]);
    signal(folder.pid(&stopped), "STOP");
    notice(&mut cache, &second);
    until(&folder, |status| regions_of(status, &second) == 0);
    signal(folder.pid(&stopped), "CONT");
    shared.until_added(200);

    // Hosts write for what is left of their leases, and wait for the next manager.
    replace_manager(&folder);
    shared.until_added(200);
    until(&folder, |status| status["regions"]["open"] == REGIONS);

    let in_doubt = end(&mut cache, &shared, workers);
    few(transport, &shared, in_doubt);
}

/// Hosts are upgraded, die, stand still and leave, and the manager is followed; then the second
/// copies alone are read.
fn add_to_two_copies(transport: &str) {
    let folder = Folder::new();
    let (addresses, to) = begin(&folder, transport, "2");
    let shared = Arc::<Shared>::default();
    let workers = start(folder.path(), &addresses, to, &shared);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    shared.until_added(200);

    // Upgraded in place they have their memory, and know nothing of what they had sent.
    let hosts = status(&folder)["hosts"].as_array().expect("hosts").clone();
    for host in &hosts {
        signal(folder.pid(&text(host, "name")), "HUP");
        shared.until_added(50);
    }

    let killed = fullest(&status(&folder), &[]);
    signal(folder.pid(&killed), "KILL");
    let is_whole = |status: &Value| status["whole"] == true;
    until(&folder, |status| {
        regions_of(status, &killed) == 0 && is_whole(status)
    });
    shared.until_added(200);

    // Longer than a lease, and than its peers wait for an answer.
    let stopped = fullest(&status(&folder), &[&killed]);
    signal(folder.pid(&stopped), "STOP");
    std::thread::sleep(Duration::from_secs(3));
    signal(folder.pid(&stopped), "CONT");
    shared.until_added(200);

    replace_manager(&folder);
    shared.until_added(200);

    until(&folder, is_whole);
    let left = fullest(&status(&folder), &[&killed]);
    notice(&mut cache, &left);
    until(&folder, |status| regions_of(status, &left) == 0);
    shared.until_added(200);
    until(&folder, is_whole);

    shared.stop.store(true, Ordering::Relaxed);
    let counters = workers
        .into_iter()
        .map(|worker| worker.join().expect("it does not panic"));
    let counters: Vec<_> = counters.collect();
    let second = fullest(&status(&folder), &[&killed, &left]);
    signal(folder.pid(&second), "KILL");
    until(&folder, |status| regions_of(status, &second) == 0);
    few(transport, &shared, check_all(&mut cache, &counters));
}

/// Kills the cache's manager, and starts the next one.
fn replace_manager(folder: &Folder) {
    let pid = std::fs::read_to_string(folder.path().join("caches/c0/pid")).expect("a pid file");
    signal(pid.trim().parse().expect("a number"), "KILL");
    folder.run(&["cache", "start", "c0"]).expect(0);
}

fn few(transport: &str, shared: &Shared, in_doubt: usize) {
    let added = shared.added.load(Ordering::Relaxed);
    println!("{transport}: {added} additions acknowledged, {in_doubt} counters in doubt");
    let all = usize::try_from(WORKERS * COUNTERS).expect("small");
    assert!(in_doubt < all / 4, "{in_doubt} of {all} counters in doubt");
}

/// Ends the threads, and looks at what they added; how many counters are in doubt.
fn end(cache: &mut Cache, shared: &Shared, workers: Vec<JoinHandle<Vec<Counter>>>) -> usize {
    shared.stop.store(true, Ordering::Relaxed);
    let counters = workers
        .into_iter()
        .map(|worker| worker.join().expect("it does not panic"));
    check_all(cache, &counters.collect::<Vec<_>>())
}

/// Looks at what all threads added; how many counters are in doubt.
fn check_all(cache: &mut Cache, counters: &[Vec<Counter>]) -> usize {
    for (worker, counters) in (0..).zip(counters) {
        check(cache, worker, counters);
    }
    let in_doubt = counters.iter().flatten().filter(|counter| counter.in_doubt);
    in_doubt.count()
}

#[test]
fn no_acknowledged_addition_is_lost_or_made_twice_over_shm() {
    add_through_it_all("shm");
}

#[test]
fn no_acknowledged_addition_is_lost_or_made_twice_over_tcp() {
    add_through_it_all("tcp");
}

#[test]
fn no_acknowledged_addition_to_two_copies_is_lost_with_one_over_shm() {
    add_to_two_copies("shm");
}

#[test]
fn no_acknowledged_addition_to_two_copies_is_lost_with_one_over_tcp() {
    add_to_two_copies("tcp");
}

#[test]
fn additions_to_a_cache_that_becomes_longer_are_never_out_of_bounds() {
    let folder = Folder::new();
    let (addresses, to) = begin(&folder, "shm", "1");
    let shared = Arc::<Shared>::default();
    let workers = start(folder.path(), &addresses, to, &shared);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    for regions in REGIONS + 1..=REGIONS + 4 {
        shared.until_added(100);
        let size = format!("{regions}M");
        let reshape = ["cache", "reshape", "c0", "--size", &size];
        folder.run(&reshape).expect(0);
        until(&folder, |status| status["regions"]["open"] == regions);
    }
    shared.until_added(100);
    end(&mut cache, &shared, workers);
    assert_eq!(shared.out_of_bounds.load(Ordering::Relaxed), 0);
}

/// Of an address past the end hosts say what they say of a cache that they do not know.
#[test]
fn one_request_from_the_command_line_runs_once_wherever_it_ends() {
    let folder = Folder::new();
    begin(&folder, "shm", "1");
    put(&folder, "once", ADD_AND_FETCH);
    let end = (REGIONS * REGION_BYTES).to_string();
    let run = ["cache", "proc", "run", "once", "c0", "4096", &end];
    let run = folder.run(&run).expect(1);
    assert!(run.stderr.contains("it may have run"), "{run:#?}");
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    let mut bytes = [0; 8];
    cache.read(4096, &mut bytes).expect("read");
    assert_eq!(u64::from_le_bytes(bytes), 1);
}
