//! A cache whose manager listens for clients on other machines: hosts, manager and clients are each in a
//! network namespace of their own. Needs root and iproute2; without them it is left out.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_cache::service::Cache;
use cenote_fabric::{Address, ClusterKey};
use support::cache_load::{CacheLoad, options};
use support::machines::{serve, write_cluster};
use support::net::{Killed, Net};
use support::{Ended, Folder, words};

const HOSTS: [(&str, &str); 2] = [("h00", "10.77.0.10"), ("h01", "10.77.0.11")];
const MANAGER: &str = "tcp:10.77.0.2:7100";
const DEADLINE: Duration = Duration::from_secs(120);
/// How long a request of these clients waits for what it does not reach.
const WAITS_FOR: Duration = Duration::from_secs(2);

/// A cache of 8 regions.
struct World {
    // Ended in this order: the manager with its folder.
    folder: Folder,
    _hosts: Vec<Killed>,
    net: Net,
}

impl World {
    /// `None`, with the reason printed, where there cannot be any.
    fn new() -> Option<Self> {
        let machines = [
            ("manager", "10.77.0.2"),
            ("near", "10.77.0.3"),
            ("far", "10.77.0.4"),
        ];
        let net = Net::of(machines.into_iter().chain(HOSTS))?;
        let folder = Folder::with_key();
        let owned = HOSTS.map(|(name, address)| (name.to_owned(), address.to_owned()));
        write_cluster(&folder, &owned.into());
        let start = |(name, address)| start_host(&net, &folder, name, address);
        let hosts = HOSTS.into_iter().map(start).collect();
        let world = Self {
            folder,
            _hosts: hosts,
            net,
        };
        let create = ["cache", "create", "c0", "--size", "8M", "--region", "1M"];
        let ended = world.on("manager", &[&create[..], &["--listen", MANAGER]].concat());
        ended.expect(0);
        Some(world)
    }

    /// Runs a command on a machine.
    fn on(&self, machine: &str, arguments: &[&str]) -> Ended {
        let mut command = self.net.cenote(machine);
        command.args(arguments).args(["--dir", self.folder.str()]);
        Ended::from(command.output().expect("the binary runs"))
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
    let Some(world) = World::new() else {
        return;
    };
    let bench = format!("cache bench c0 --manager {MANAGER} --duration 1s --json");
    let bench = words(&bench);
    let figures = world.on("far", &bench).expect(0).json();
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
