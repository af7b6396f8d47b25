//! A cache whose manager gets its machines: by commands, as processes, from the cluster's file.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cache_load::CacheLoad;
use support::well::until;
use support::{Ended, Folder, runs, signal};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Gets a machine: a host with a session of its own, which is noted under the order's number. With a file `slow`,
/// it says nothing before there is a file `go`.
const GET: &str = r#"set -e
id=vm-${CENOTE_ORDER#*-}
m=$D/vm/$id
mkdir -p $m
setsid $PROGRAM host --name $id --listen shm:$m/s --memory $((CENOTE_MEMORY_BYTES / 1024))K \
    --slab $((CENOTE_SLAB_BYTES / 1024))K --grace 60s --key $D/cluster.key >$m/out 2>$m/err </dev/null &
echo $! >$m/pid
until grep -q ready $m/out; do sleep 0.05; done
echo "got $id" >>$D/log
if [ -f $D/slow ]; then until [ -f $D/go ]; do sleep 0.05; done; fi
echo "{\"id\":\"$id\",\"address\":\"shm:$m/s\"}"
"#;
const RELEASE: &str = r#"id=${CENOTE_MACHINE_ID:-vm-${CENOTE_ORDER#*-}}
echo "released $id" >>$D/log
[ -f $D/vm/$id/pid ] || exit 0
kill -9 $(cat $D/vm/$id/pid) 2>/dev/null
rm -f $D/vm/$id/pid
exit 0
"#;

struct Market {
    folder: Folder,
}

/// One type of a catalogue: name, provider, memory in MiB, price.
fn machine(name: &str, provider: &str, memory_mib: u32, price: &str) -> String {
    format!(
        "[[machine]]\nname = \"{name}\"\nprovider = \"{provider}\"\ncores = 1\nmemory_mib = {memory_mib}\n\
         price_per_hour = {price}\ncount = 3\n"
    )
}

impl Market {
    fn new(more: &str) -> Self {
        let folder = Folder::new();
        folder
            .run(&["up", "--hosts", "1", "--memory", "1M", "--slab", "256K"])
            .expect(0);
        let market = Self { folder };
        market.set_catalogue(more);
        market
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command's provider is `cloud`; prices are looked at each second.
    fn set_catalogue(&self, more: &str) {
        let head = format!(
            "D={}; PROGRAM={}\n",
            self.folder.str(),
            env!("CARGO_BIN_EXE_cenote")
        );
        let quoted = |script: &str| format!("'''{head}{script}'''");
        let text = format!(
            "look_every_s = 1\n[[provider]]\nname = \"cloud\"\nkind = \"command\"\nlimit_s = 20\n\
             acquire = [\"sh\", \"-c\", {}]\nrelease = [\"sh\", \"-c\", {}]\n{more}",
            quoted(GET),
            quoted(RELEASE)
        );
        let beside = self.path("machines.new");
        fs::write(&beside, text).expect("a file");
        fs::rename(beside, self.path("machines.toml")).expect("in one step");
    }

    /// A cache of 8 regions of 1 MiB.
    fn create(&self, more: &[&str]) -> Ended {
        let path = self.path("machines.toml");
        let catalogue = path.to_str().expect("UTF-8");
        let create = ["cache", "create", "c0", "--size", "8M", "--region", "1M"];
        let arguments = ["--slab", "256K", "--catalogue", catalogue];
        self.folder.run(&[&create[..], &arguments, more].concat())
    }

    fn status(&self) -> Value {
        let ask = || self.folder.run(&["cache", "status", "c0", "--json"]);
        until("a status is told", ask, |_| true)["status"].take()
    }

    /// Asks until the status is as wanted; a load goes on meanwhile.
    fn until(
        &self,
        load: &mut Option<CacheLoad>,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(load) = load {
                load.run_for(Duration::from_millis(50));
            }
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: {status:#} {}",
                self.log()
            );
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The processes of machines that commands got and did not take back.
    fn running(&self) -> Vec<u32> {
        let Ok(machines) = fs::read_dir(self.path("vm")) else {
            return Vec::new();
        };
        let pid = |path: PathBuf| fs::read_to_string(path.join("pid")).ok();
        let pids = machines.filter_map(|one| pid(one.expect("an entry").path()));
        let pids = pids.filter_map(|text| text.trim().parse().ok());
        pids.filter(|&pid| runs(pid)).collect()
    }

    fn pid(&self, id: &str) -> u32 {
        let text = fs::read_to_string(self.path("vm").join(id).join("pid")).expect("it was got");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Market {
    fn drop(&mut self) {
        fs::write(self.path("go"), "").expect("a file");
        if Path::new(&self.path("caches/c0")).exists() {
            drop(self.folder.run(&["cache", "delete", "c0"]));
        }
        for pid in self.running() {
            signal(pid, "KILL");
        }
    }
}

/// Its one machine that is used.
fn used(status: &Value) -> Vec<&str> {
    let machines = status["machines"].as_array().expect("machines").iter();
    let used = machines.filter(|one| one["state"] == "used");
    used.map(|one| one["id"].as_str().expect("an id")).collect()
}

fn is_only_on(status: &Value, id: &str) -> bool {
    let hosts = status["hosts"].as_array().expect("hosts").iter();
    let mut others = hosts.filter(|host| host["name"] != id);
    others.all(|host| host["regions"] == 0)
}

#[test]
fn a_machine_that_is_taken_back_is_followed_by_another_under_load() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    market.create(&[]).expect(0);
    let status = market.status();
    let [first] = used(&status)[..] else {
        panic!("{status:#}");
    };
    assert_eq!(status["price_per_hour"], 1.0);
    let mut load = CacheLoad::open(market.folder.path(), "c0", 11);
    load.fill();
    let mut load = Some(load);
    signal(market.pid(first), "TERM");
    let moved = market.until(&mut load, "on another machine", |status| {
        let machines = status["machines"].as_array().expect("machines");
        status["whole"] == true && machines.len() == 1 && machines[0]["id"] != first
    });
    assert!(is_only_on(&moved, used(&moved)[0]), "{moved:#}");
    let mut load = load.expect("it runs");
    assert_eq!(load.check(), 0, "{moved:#}");
    assert!(load.told_lost().is_empty());
    assert_eq!(load.failed, 0);
    assert!(
        market.log().contains(&format!("released {first}")),
        "{}",
        market.log()
    );
    drop(load);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new(), "{}", market.log());
}

#[test]
fn a_cluster_whose_caches_have_machines_is_not_ended_in_silence() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    market.create(&[]).expect(0);
    let running = market.running();
    assert_eq!(running.len(), 1);
    let refused = market.folder.run(&["down"]).expect(1);
    assert!(
        refused.stderr.contains("machines of cache c0: 1"),
        "{refused:#?}"
    );
    // Nothing was ended.
    assert_eq!(market.status()["whole"], true);
    assert_eq!(market.running(), running);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(market.running(), Vec::<u32>::new(), "{}", market.log());
    market.folder.run(&["down"]).expect(0);
}

#[test]
fn a_cheaper_machine_that_appears_is_moved_to() {
    let dear = machine("dear", "cloud", 12, "1");
    let market = Market::new(&dear);
    market.create(&[]).expect(0);
    let mut load = CacheLoad::open(market.folder.path(), "c0", 12);
    load.fill();
    let mut load = Some(load);
    market.set_catalogue(&(dear + &machine("cheap", "cloud", 8, "0.2")));
    let moved = market.until(&mut load, "on the cheap machine", |status| {
        let machines = status["machines"].as_array().expect("machines");
        status["whole"] == true && machines.len() == 1 && machines[0]["machine"] == "cheap"
    });
    assert_eq!(moved["price_per_hour"], 0.2, "{moved:#}");
    let mut load = load.expect("it runs");
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
    assert_eq!(market.running().len(), 1, "{}", market.log());
}

#[test]
fn a_machine_that_a_killed_manager_got_and_did_not_note_is_given_back() {
    let market = Market::new(&machine("small", "cloud", 12, "1"));
    fs::write(market.path("slow"), "").expect("a file");
    market.create(&["--limit", "0"]).expect(3);
    let deadline = Instant::now() + PATIENCE;
    while !market.log().contains("got ") {
        assert!(Instant::now() < deadline, "{}", market.log());
        std::thread::yield_now();
    }
    let unnoted = market.running();
    assert_eq!(unnoted.len(), 1);
    let ordered = market.status();
    assert_eq!(ordered["machines"][0]["state"], "ordered", "{ordered:#}");
    let manager = fs::read_to_string(market.path("caches/c0/pid")).expect("a pid file");
    let manager: u32 = manager.trim().parse().expect("a number");
    signal(manager, "KILL");
    while runs(manager) {
        assert!(Instant::now() < deadline, "it is still there");
        std::thread::yield_now();
    }
    fs::remove_file(market.path("slow")).expect("it was there");
    market.folder.run(&["cache", "start", "c0"]).expect(0);
    let whole = market.until(&mut None, "whole, and that one is gone", |status| {
        status["whole"] == true && !runs(unnoted[0])
    });
    assert_eq!(used(&whole), ["vm-2-1"], "{whole:#}");
    assert_eq!(market.running().len(), 1, "{}", market.log());
}

#[test]
fn a_provider_that_hangs_is_told_of_and_processes_are_got_that_outlive_the_manager() {
    let hang = "[[provider]]\nname = \"far\"\nkind = \"command\"\nlimit_s = 3\n\
        acquire = [\"sleep\", \"600\"]\nrelease = [\"true\"]\n\
        [[provider]]\nname = \"here\"\nkind = \"processes\"\n";
    let types = machine("cheap", "far", 12, "0.1") + &machine("local", "here", 12, "1");
    let market = Market::new(&(hang.to_owned() + &types));
    market.create(&[]).expect(0);
    // A host is there a moment before its machine is noted as used.
    let status = market.until(&mut None, "a machine is used", |status| {
        used(status).len() == 1
    });
    let troubles = status["troubles"].to_string();
    assert!(
        troubles.contains("far") && troubles.contains("not within 3s"),
        "{troubles}"
    );
    let text = market.folder.run(&["cache", "status", "c0"]);
    assert!(
        text.stdout.contains("far: sleep: not within 3s"),
        "{text:#?}"
    );
    let [id] = used(&status)[..] else {
        panic!("{status:#}");
    };
    let number = id.strip_prefix("c0-m").expect("a name of the cache's");
    let pid = market.path("caches/c0/machines").join(number).join("pid");
    let pid: u32 = fs::read_to_string(pid)
        .expect("noted")
        .trim()
        .parse()
        .expect("a number");
    let mut load = CacheLoad::open(market.folder.path(), "c0", 13);
    load.fill();
    market.folder.run(&["cache", "stop", "c0"]).expect(0);
    assert!(runs(pid), "what the cache holds is there");
    market.folder.run(&["cache", "start", "c0"]).expect(0);
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    drop(load);
    market.folder.run(&["cache", "delete", "c0"]).expect(0);
    assert!(!runs(pid), "it was ended");
}

#[test]
fn hosts_that_join_or_leave_the_cluster_file_are_used_or_left_by_clients_that_were_there_before() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "256K"])
        .expect(0);
    let file = folder.path().join("cluster.toml");
    let both = fs::read_to_string(&file).expect("a cluster file");
    let second = both.rfind("[[host]]").expect("two hosts");
    let begin = both.find("[[host]]").expect("two hosts");
    let put = |text: &str| {
        let beside = folder.path().join("cluster.new");
        fs::write(&beside, text).expect("a file");
        fs::rename(beside, &file).expect("in one step");
    };
    put(&both[..second]);
    let create = ["cache", "create", "c0", "--size", "6M", "--region", "1M"];
    folder.run(&create).expect(0);
    let mut load = CacheLoad::open(folder.path(), "c0", 14);
    load.fill();
    put(&both);
    let grown = folder
        .run(&["cache", "reshape", "c0", "--size", "7M"])
        .expect(0);
    drop(grown);
    // The first one leaves: all that this client wrote is on a host that it was told of later.
    put(&(both[..begin].to_owned() + &both[second..]));
    let deadline = Instant::now() + PATIENCE;
    loop {
        load.run_for(Duration::from_millis(50));
        let status = folder.run(&["cache", "status", "c0", "--json"]).json();
        if status["whole"] == true && is_only_on(&status["status"], "h01") {
            break;
        }
        assert!(Instant::now() < deadline, "{status:#}");
    }
    signal(folder.pid("h00"), "KILL");
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
}

#[test]
fn an_operator_s_notice_has_a_host_emptied_and_one_that_is_called_off_keeps_it() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "256K"])
        .expect(0);
    let create = ["cache", "create", "c0", "--size", "4M", "--region", "1M"];
    folder.run(&create).expect(0);
    let mut load = CacheLoad::open(folder.path(), "c0", 15);
    load.fill();
    let said = folder
        .run(&["host", "notice", "h00", "--grace", "100s", "--json"])
        .expect(0)
        .json();
    assert_eq!(
        (&said["leaving"], &said["within_ms"]),
        (&true.into(), &100_000.into()),
        "{said}"
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        load.run_for(Duration::from_millis(50));
        let status = folder.run(&["cache", "status", "c0", "--json"]).json();
        if status["whole"] == true && is_only_on(&status["status"], "h01") {
            break;
        }
        assert!(Instant::now() < deadline, "{status:#}");
    }
    folder
        .run(&["host", "notice", "h01", "--grace", "100s"])
        .expect(0);
    let stays = folder.run(&["host", "notice", "h01", "--cancel"]).expect(0);
    assert!(stays.stdout.contains("h01: stays"), "{stays:#?}");
    assert!(runs(folder.pid("h01")));
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    folder
        .run(&["host", "notice", "h01", "--grace", "0s"])
        .expect(2);
}
