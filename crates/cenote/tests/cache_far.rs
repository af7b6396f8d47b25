//! A cache on several machines: hosts, manager and clients are each in a network namespace of their
//! own, and links are cut. Needs root and iproute2; without them it is left out.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_cache::service::Cache;
use cenote_fabric::{Address, ClientId, ClusterKey, Connector, Hello, connector};
use cenote_proc::remote::Remote;
use cenote_proc::{CacheId, ProcedureId, Status};
use serde_json::Value;
use support::adder::ADD;
use support::cache_load::{CacheLoad, options};
use support::machines::{serve, write_cluster};
use support::net::{Killed, Net};
use support::{Ended, Folder, words};

const HOSTS: [(&str, &str); 3] = [
    ("h00", "10.77.0.10"),
    ("h01", "10.77.0.11"),
    ("h02", "10.77.0.12"),
];
const MANAGER: &str = "tcp:10.77.0.2:7100";
const DEADLINE: Duration = Duration::from_secs(120);
/// How long a request of these clients waits for what it does not reach.
const WAITS_FOR: Duration = Duration::from_secs(2);

const REGION_BYTES: u64 = 1 << 20;

/// A cache of 8 regions of 1 MiB.
struct World {
    // Ended in this order: the manager with its folder.
    folder: Folder,
    _hosts: Vec<Killed>,
    net: Net,
}

impl World {
    /// `None`, with the reason printed, where there cannot be any.
    fn new(hosts: usize, copies: &str) -> Option<Self> {
        let hosts = &HOSTS[..hosts];
        let machines = [
            ("manager", "10.77.0.2"),
            ("near", "10.77.0.3"),
            ("far", "10.77.0.4"),
        ];
        let net = Net::of(machines.into_iter().chain(hosts.iter().copied()))?;
        let folder = Folder::with_key();
        let owned = hosts
            .iter()
            .map(|(name, address)| ((*name).to_owned(), (*address).to_owned()));
        write_cluster(&folder, &owned.collect());
        let start = |(name, address): &(&str, &str)| start_host(&net, &folder, name, address);
        let hosts = hosts.iter().map(start).collect();
        let world = Self {
            folder,
            _hosts: hosts,
            net,
        };
        let create =
            format!("cache create c0 --size 8M --region 1M --copies {copies} --listen {MANAGER}");
        world.on("manager", &words(&create)).expect(0);
        Some(world)
    }

    /// A client on the manager's machine, which does something.
    fn client<R: Send>(&self, what: impl FnOnce(&mut Cache) -> R + Send) -> R {
        let key = ClusterKey::load(&self.folder.path().join("cluster.key")).expect("a key");
        let manager: Address = MANAGER.parse().expect("an address");
        self.net.inside("manager", || {
            let cache = Cache::open(vec![manager], &key, &options(DEADLINE));
            what(&mut cache.expect("a manager"))
        })
    }

    /// Runs a command on a machine.
    fn on(&self, machine: &str, arguments: &[&str]) -> Ended {
        let mut command = self.net.cenote(machine);
        command.args(arguments).args(["--dir", self.folder.str()]);
        Ended::from(command.output().expect("the binary runs"))
    }

    fn status(&self) -> Value {
        let status = words("cache status c0 --json");
        self.on("manager", &status).json()["status"].take()
    }

    /// Asks the third host to run a procedure: it reaches all others.
    fn run(&self, cache: CacheId, procedure: ProcedureId, argument: u64) -> Status {
        let key = ClusterKey::load(&self.folder.path().join("cluster.key")).expect("a key");
        let hello = Hello {
            client: ClientId(u128::from(argument) + 1),
            name: "a user of procedures".to_owned(),
        };
        let address = format!("tcp:{}:7000", HOSTS[2].1);
        let address: Address = address.parse().expect("an address");
        self.net.inside("manager", || {
            let session = connector(key).connect(&address, &hello, WAITS_FOR);
            let session = session.expect("a host");
            let opened = session.caller_opener()(WAITS_FOR).expect("a connection for calls");
            let mut remote = Remote::new(opened, 1);
            let ended = remote.run(cache, procedure, &argument.to_le_bytes());
            ended.expect("an answer").0
        })
    }

    /// A load on a machine, on one half of the cache, until it is told to stop.
    fn load(&self, machine: &str, half: u64, seen: &Seen) -> Outcome {
        let key = ClusterKey::load(&self.folder.path().join("cluster.key")).expect("a key");
        let manager: Address = MANAGER.parse().expect("an address");
        self.net.inside(machine, || {
            let cache = Cache::open(vec![manager], &key, &options(WAITS_FOR)).expect("a manager");
            let middle = cache.len_bytes() / 2;
            let mut load = CacheLoad::within(cache, half * middle..(half + 1) * middle, 31 + half);
            load.fill();
            while !seen.stop.load(Ordering::Relaxed) {
                load.step();
                seen.done.store(load.done, Ordering::Relaxed);
                seen.failed.store(load.failed, Ordering::Relaxed);
            }
            Outcome {
                empty: load.check(),
                lost: load.told_lost().len(),
                failed: load.failed,
                error: load.error,
            }
        })
    }
}

/// What a load says of itself while it runs.
#[derive(Default)]
struct Seen {
    done: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    /// Waits until so many more requests ended well.
    fn wait_for(&self, what: &str, more: u64) {
        let enough = self.done.load(Ordering::Relaxed) + more;
        self.wait_until(what, |seen| seen.done.load(Ordering::Relaxed) >= enough);
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is_so(self) {
            let (done, failed) = (&self.done, &self.failed);
            assert!(
                Instant::now() < deadline,
                "{what}: {done:?}, {failed:?} failed"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends a load also where the test fails.
struct Stop<'a>(&'a Seen);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// How a load ended.
#[derive(Debug)]
struct Outcome {
    /// Records that were zeros in the end.
    empty: usize,
    /// Regions that were told to be lost.
    lost: usize,
    failed: u64,
    error: Option<String>,
}

fn start_host(net: &Net, folder: &Folder, name: &str, address: &str) -> Killed {
    let lends = ["--memory", "16M", "--slab", "256K"];
    serve(
        net.cenote(name),
        folder,
        name,
        &lends,
        &format!("{address}:7000"),
    )
    .0
}

#[test]
fn a_client_on_another_machine_whose_link_is_cut_gets_errors_and_comes_back_and_hinders_nobody() {
    let Some(world) = World::new(2, "1") else {
        return;
    };
    let bench = format!("cache bench c0 --manager {MANAGER} --duration 1s --json");
    let bench = words(&bench);
    // The far machine has the cluster file and the key: the cache's folder is the manager's.
    let far = Folder::new();
    for file in ["cluster.toml", "cluster.key"] {
        fs::copy(world.folder.path().join(file), far.path().join(file)).expect("a copy");
    }
    let mut command = world.net.cenote("far");
    command.args(&bench).args(["--dir", far.str()]);
    let figures = Ended::from(command.output().expect("the binary runs"));
    let figures = figures.expect(0).json();
    let addresses = &world.status()["addresses"];
    assert_eq!(addresses[1], MANAGER, "{addresses}");
    assert_eq!(figures["failed"], 0, "{figures}");
    assert!(
        figures["requests_per_second"].as_f64() > Some(1.0),
        "{figures}"
    );

    let (near, far) = (Seen::default(), Seen::default());
    let (near_end, far_end) = std::thread::scope(|scope| {
        let near_load = scope.spawn(|| world.load("near", 0, &near));
        let far_load = scope.spawn(|| world.load("far", 1, &far));
        let _stops = [Stop(&near), Stop(&far)];
        near.wait_for("the near load runs", 200);
        far.wait_for("the far load runs", 200);

        world.net.unplug("far");
        far.wait_until("it has errors", |far| {
            far.failed.load(Ordering::Relaxed) > 0
        });
        near.wait_for("the near load goes on beside it", 500);
        world.net.plug("far");
        far.wait_for("it is back", 200);
        near.wait_for("the near load goes on", 100);
        drop(_stops);
        let ends = [near_load, far_load].map(|load| load.join());
        let [near, far] =
            ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (near, far)
    });
    assert_eq!(
        (near_end.empty, near_end.lost, near_end.failed),
        (0, 0, 0),
        "{near_end:?}"
    );
    assert_eq!((far_end.empty, far_end.lost), (0, 0), "{far_end:?}");
    let error = far_end.error.expect("its link was cut");
    assert!(error.starts_with("region "), "{error}");
    assert_eq!(world.on("manager", &["cache", "delete", "c0"]).code, 0);
}

#[test]
fn two_hosts_that_do_not_reach_each_other_keep_no_region_from_being_written() {
    let Some(world) = World::new(3, "2") else {
        return;
    };
    let module = world.folder.path().join("add.wasm");
    std::fs::write(&module, wat::parse_str(ADD.concat()).expect("a module")).expect("a file");
    let put = format!("cache proc put add {} --write c0 --json", module.display());
    let put = world.on("manager", &words(&put)).expect(0).json();
    let add = ProcedureId(u32::try_from(put["id"].as_u64().expect("a number")).expect("32 bits"));
    let id = world.status()["id"]
        .as_str()
        .map(|id| u128::from_str_radix(id, 16));
    let cache = CacheId(id.expect("text").expect("a number"));
    let mut done = [0_u64; 8];
    let mut tried = [0_u64; 8];
    let mut add_to_all = |what: &str| {
        let deadline = Instant::now() + DEADLINE;
        for (region, (done, tried)) in done.iter_mut().zip(&mut tried).enumerate() {
            let before = *done;
            while *done == before {
                let address = region as u64 * REGION_BYTES + 4096;
                let status = world.run(cache, add, address);
                *tried += 1;
                *done += u64::from(status == Status::Done);
                assert!(
                    Instant::now() < deadline,
                    "{what}: region {region}: {status:?}"
                );
            }
        }
    };
    add_to_all("all reach each other");
    // Of those with no copy on the third.
    let shared = || {
        let hosts = world.status()["hosts"].take();
        let third = hosts.as_array().into_iter().flatten();
        let third = third.filter(|host| host["name"] == HOSTS[2].0);
        let regions: Vec<_> = third.map(|host| host["regions"].as_u64()).collect();
        8 - regions[0].expect("a number")
    };
    assert!(shared() > 0, "both hosts share regions");

    let [(one, first), (other, second), _] = HOSTS;
    world.net.mute(one, second);
    world.net.mute(other, first);
    add_to_all("two do not reach each other");
    assert_eq!(shared(), 0);
    add_to_all("nor do they share a region any more");
    world.net.unmute(one, second);
    world.net.unmute(other, first);
    add_to_all("they do again");

    world.client(|cache| {
        for region in 0..8 {
            assert_eq!(cache.losses(region), 0);
            let mut bytes = [0; 8];
            cache
                .read(region as u64 * REGION_BYTES + 4096, &mut bytes)
                .expect("read");
            let number = u64::from_le_bytes(bytes);
            assert!(
                (done[region]..=tried[region]).contains(&number),
                "{region}: {number}"
            );
        }
    });
}
