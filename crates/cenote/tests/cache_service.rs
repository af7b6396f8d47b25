//! A cache between processes: managers, hosts and clients that end, stop and come again.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use cenote_cache::service::question::{Answer, Question, Trouble};
use cenote_cache::service::{OpenError, ask};
use cenote_fabric::{Address, ClusterKey, FAILURE_TIMEOUT};
use cenote_kv_cluster::etcd::{Credentials, Etcd, EtcdServer, ServerError};
use serde_json::Value;
use support::cache_load::{CacheLoad, open, open_with};
use support::small_disk::SmallDisk;
use support::{Folder, cenote, runs, signal, wait_ended, well, words};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Hosts in a folder, each a failure domain, with slabs of 256 KiB.
fn up(hosts: u32) -> Folder {
    let folder = Folder::new();
    let hosts = hosts.to_string();
    folder
        .run(&["up", "--hosts", &hosts, "--memory", "16M", "--slab", "256K"])
        .expect(0);
    folder
}

/// A cache of 8 regions of 1 MiB.
fn create(folder: &Folder, copies: &str) {
    let arguments = ["--size", "8M", "--region", "1M", "--copies", copies];
    folder
        .run(&[&["cache", "create", "c0"][..], &arguments].concat())
        .expect(0);
}

fn status(folder: &Folder) -> Value {
    // A manager that has much to do does not answer in the time that a command waits.
    let ask = || folder.run(&["cache", "status", "c0", "--json"]);
    well::until("a status is told", ask, |_| true)
}

/// Asks until the status is as wanted.
fn until(folder: &Folder, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(folder);
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what}: {status:#}");
    }
}

fn is_whole(status: &Value) -> bool {
    status["whole"] == true
}

fn manager(folder: &Folder) -> u32 {
    let path = folder.path().join("caches/c0/pid");
    let text = fs::read_to_string(path).expect("a pid file");
    text.trim().parse().expect("a number")
}

fn kill_and_wait(pid: u32) {
    signal(pid, "KILL");
    wait_ended(pid);
}

/// The host that has most regions, and which regions these are not told: any.
fn busiest(status: &Value) -> String {
    let hosts = status["status"]["hosts"].as_array().expect("hosts").iter();
    let busiest = hosts.max_by_key(|host| host["regions"].as_u64().expect("a number"));
    busiest.expect("one at least")["name"]
        .as_str()
        .expect("a name")
        .to_owned()
}

#[test]
fn a_cache_is_made_used_measured_reshaped_and_deleted() {
    let folder = up(3);
    create(&folder, "1");
    let made = status(&folder);
    assert_eq!(made["status"]["regions"]["open"], 8);
    assert_eq!(folder.lent_bytes(), 8 << 20);

    let mut load = CacheLoad::open(folder.path(), "c0", 1);
    load.fill();
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    let arguments = words("cache bench c0 --duration 1s --threads 2 --json");
    let figures = folder.run(&arguments).expect(0).json();
    assert!(figures["requests"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["p99_us"].as_f64().unwrap() >= figures["p50_us"].as_f64().unwrap());
    drop(load);

    folder
        .run(&["cache", "reshape", "c0", "--size", "12M"])
        .expect(0);
    let mut load = CacheLoad::open(folder.path(), "c0", 2);
    assert_eq!(load.cache.len_bytes(), 12 << 20);
    load.fill();
    assert_eq!(load.check(), 0);
    folder
        .run(&["cache", "reshape", "c0", "--size", "4M"])
        .expect(0);
    // Until it was told, it reads what it knows.
    let deadline = Instant::now() + PATIENCE;
    let cut = loop {
        match load.cache.read(5 << 20, &mut [0; 8]) {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < deadline, "it is never told"),
        }
    };
    assert!(!cut.is_retryable(), "{cut}");
    drop(load);

    folder.run(&["cache", "delete", "c0"]).expect(0);
    assert_eq!(folder.lent_bytes(), 0);
    assert!(!folder.path().join("caches/c0").exists());
    let gone = folder.run(&["cache", "status", "c0"]).expect(1);
    assert!(gone.stderr.contains("there is no cache c0"), "{gone:#?}");
}

/// A manager that was killed while it wrote a checkpoint or its journal.
#[test]
fn what_a_killed_manager_left_half_written_goes_with_the_next_one_and_with_the_cache() {
    let folder = up(2);
    create(&folder, "1");
    let cache = folder.path().join("caches/c0");
    let drafts = [".checkpoint.1-0.new", ".journal.1-7.new"].map(|name| cache.join(name));
    folder.run(&["cache", "stop", "c0"]).expect(0);
    let own = cache.join(".checkpoint.new");
    for path in drafts.iter().chain([&own]) {
        fs::write(path, "half").expect("a file");
    }
    folder.run(&["cache", "start", "c0"]).expect(0);
    assert!(drafts.iter().all(|path| !path.exists()));
    assert!(own.exists(), "nobody's draft");
    fs::remove_file(own).expect("it is there");

    // Also what came while this one was the manager.
    let spec = cache.join(".cache.toml.1-0.new");
    for path in drafts.iter().chain([&spec]) {
        fs::write(path, "half").expect("a file");
    }
    folder.run(&["cache", "delete", "c0"]).expect(0);
    assert!(!cache.exists());
}

#[test]
fn a_second_manager_is_refused_and_the_next_one_goes_on() {
    let folder = up(3);
    create(&folder, "1");
    let first = manager(&folder);
    let second = folder.run(&["cache", "manage", "c0"]).expect(1);
    let said = format!("cache c0 already has a manager, process {first}");
    assert!(second.stderr.contains(&said), "{second:#?}");
    folder.run(&["cache", "start", "c0"]).expect(1);
    assert!(runs(first));

    let mut load = CacheLoad::open(folder.path(), "c0", 3);
    load.fill();
    kill_and_wait(first);
    let alone = folder.run(&["cache", "status", "c0"]).expect(1);
    assert!(
        alone.stderr.contains("try: cenote cache start c0"),
        "{alone:#?}"
    );
    folder.run(&["cache", "start", "c0"]).expect(0);
    // Requests wait for the next manager's leases, and all bytes are there.
    assert_eq!(load.check(), 0);
    load.run_for(Duration::from_millis(300));
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
    assert_eq!(
        until(&folder, "whole again", is_whole)["status"]["epoch"],
        2
    );
}

#[test]
fn with_one_copy_the_death_of_a_host_is_told_by_region_and_the_cache_is_whole_again() {
    let folder = up(4);
    create(&folder, "1");
    let mut load = CacheLoad::open(folder.path(), "c0", 4);
    load.fill();
    let made = status(&folder);
    let host = busiest(&made);
    let held = |status: &Value, name: &str| {
        let hosts = status["status"]["hosts"].as_array().expect("hosts").clone();
        let found = hosts.into_iter().find(|host| host["name"] == name);
        found.expect("it is there")["regions"]
            .as_u64()
            .expect("a number")
    };
    signal(folder.pid(&host), "KILL");
    let whole = until(&folder, "whole on the others", |status| {
        is_whole(status) && held(status, &host) == 0
    });
    let told = whole["status"]["losses"].as_array().expect("losses").len();
    assert!(told > 0, "{whole:#}");
    load.run_for(Duration::from_millis(300));
    load.check();
    assert_eq!(load.told_lost().len(), told, "{whole:#}");
}

#[test]
fn with_two_copies_the_death_of_hosts_one_after_the_other_loses_nothing() {
    let folder = up(5);
    create(&folder, "2");
    let mut load = CacheLoad::open(folder.path(), "c0", 5);
    load.fill();
    for _ in 0..2 {
        let host = busiest(&status(&folder));
        signal(folder.pid(&host), "KILL");
        load.run_for(Duration::from_millis(500));
        until(&folder, "two copies again", |status| {
            is_whole(status) && busiest(status) != host
        });
    }
    assert_eq!(load.check(), 0);
    assert!(load.told_lost().is_empty());
    assert_eq!(load.failed, 0);
}

#[test]
fn hosts_that_are_upgraded_one_after_the_other_keep_a_cache_of_one_copy() {
    let folder = up(3);
    create(&folder, "1");
    let mut load = CacheLoad::open(folder.path(), "c0", 8);
    load.fill();
    for host in ["h00", "h01", "h02"] {
        folder.run(&["host", "upgrade", host]).expect(0);
        load.run_for(Duration::from_millis(300));
        until(&folder, "it goes on", is_whole);
    }
    assert_eq!(load.check(), 0);
    assert!(load.told_lost().is_empty());
    let after = status(&folder);
    assert_eq!(
        after["status"]["losses"],
        Value::Array(Vec::new()),
        "{after:#}"
    );
}

#[test]
fn a_host_that_is_drained_gives_its_regions_to_others_under_load() {
    let folder = up(4);
    create(&folder, "1");
    let mut load = CacheLoad::open(folder.path(), "c0", 6);
    load.fill();
    let host = busiest(&status(&folder));
    let mut drain = cenote()
        .args(["host", "drain", &host, "--dir", folder.str()])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        load.step();
        if let Some(ended) = drain.try_wait().expect("a child of ours") {
            break ended;
        }
        assert!(Instant::now() < deadline, "{:#}", status(&folder));
    };
    assert!(ended.success(), "{ended}");
    assert_eq!(load.check(), 0);
    assert_eq!(load.failed, 0);
    assert!(load.told_lost().is_empty());
    until(&folder, "whole", is_whole);
}

#[test]
fn requests_go_to_server_threads_where_the_configuration_has_some() {
    for transport in ["shm", "tcp"] {
        let folder = Folder::new();
        let memory = ["--hosts", "3", "--memory", "16M", "--slab", "256K"];
        folder
            .run(&[&["up", "--transport", transport][..], &memory].concat())
            .expect(0);
        let arguments = words("--size 8M --region 1M --configuration 2,1,8,4");
        folder
            .run(&[&["cache", "create", "c0"][..], &arguments].concat())
            .expect(0);
        let mut load = CacheLoad::open(folder.path(), "c0", 8);
        load.fill();
        assert_eq!(load.check(), 0);
        let figures = folder
            .run(&["cache", "bench", "c0", "--duration", "1s", "--json"])
            .expect(0)
            .json();
        assert_eq!((&figures["s"], &figures["threads"]), (&1.into(), &2.into()));
        assert!(figures["requests"].as_u64().unwrap() > 0, "{figures}");
        drop(load);
        folder.run(&["cache", "delete", "c0"]).expect(0);
    }
}

#[test]
fn one_without_the_key_gets_nothing() {
    let folder = up(2);
    create(&folder, "1");
    let stranger = ClusterKey::generate().expect("random bytes");
    let refused = open_with(folder.path(), "c0", &stranger, Duration::from_secs(2));
    assert!(matches!(refused, Err(OpenError::NoManager(_))));
    open(folder.path(), "c0").expect("with the key");
}

#[test]
fn a_cache_that_nobody_renews_ends_and_one_that_is_renewed_stays() {
    let folder = up(2);
    let arguments = ["--size", "2M", "--region", "1M", "--duration", "1h"];
    folder
        .run(&[&["cache", "create", "c0"][..], &arguments].concat())
        .expect(0);
    assert!(status(&folder)["status"]["ends_at"].is_u64());
    folder.run(&["cache", "renew", "c0"]).expect(0);
    assert!(status(&folder)["status"]["ends_at"].is_null());
    let pid = manager(&folder);
    folder
        .run(&["cache", "renew", "c0", "--duration", "1s"])
        .expect(0);
    wait_ended(pid);
    assert_eq!(folder.lent_bytes(), 0);
    assert!(!folder.path().join("caches/c0").exists());
}

#[test]
fn a_manager_with_an_old_journal_is_refused_where_managers_agree_at_etcd() {
    let folder = up(2);
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let etcd = match EtcdServer::start(elsewhere.path(), |_| {}) {
        Err(ServerError::Missing) => return println!("skipped: no etcd-server"),
        other => other.expect("etcd"),
    };
    let password = elsewhere.path().join("password");
    fs::write(&password, "open sesame\n").expect("a file");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("for us alone");
    let root = Credentials {
        name: "root".to_owned(),
        password: "open sesame".to_owned(),
    };
    let open = Etcd::new(etcd.url(), None).expect("an address");
    let open = open.patient(PATIENCE);
    open.enable_credentials(&root).expect("it asks from now on");
    let create = ["cache", "create", "c0", "--size", "2M", "--region", "1M"];
    let nobody = [&create[..], &["--etcd", etcd.url()]].concat();
    let refused = folder.run(&nobody).expect(1);
    assert!(!folder.path().join("caches/c0").exists(), "{refused:#?}");
    let who = ["--etcd-user", "root", "--etcd-password-file"];
    let who = [&who[..], &[password.to_str().expect("UTF-8")]].concat();
    let nowhere = folder.run(&[&create[..], &who].concat()).expect(2);
    assert!(nowhere.stderr.contains("--etcd URLS"), "{nowhere:#?}");
    folder.run(&[nobody, who].concat()).expect(0);
    let copy = Folder::new();
    let copied = std::process::Command::new("cp")
        .args(["-a", "caches", "cluster.toml", "cluster.key"])
        .arg(copy.path())
        .current_dir(folder.path())
        .status();
    assert!(copied.expect("cp runs").success());
    // What the copy says of a process is that of the other folder.
    fs::remove_file(copy.path().join("caches/c0/pid")).expect("it was copied");
    folder.run(&["cache", "stop", "c0"]).expect(0);
    folder.run(&["cache", "start", "c0"]).expect(0);
    let refused = copy.run(&["cache", "manage", "c0"]).expect(1);
    let said = "the journal here is that of manager 1, but manager 2 has started at";
    assert!(refused.stderr.contains(said), "{refused:#?}");
    until(&folder, "the other goes on", is_whole);
    folder.run(&["cache", "delete", "c0"]).expect(0);
}

#[test]
fn a_cluster_file_that_could_not_be_read_once_is_read_again() {
    let folder = up(1);
    create(&folder, "1");
    let at = |name: &str| folder.path().join(name);
    let key = ClusterKey::load(&at("cluster.key")).expect("a key");
    let socket = Address::Shm(at("caches/c0/socket"));
    let until = |what: &str, wanted: &dyn Fn(&[Trouble]) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = ask(vec![socket.clone()], &key, &Question::Status, PATIENCE);
            match asked.expect("it serves") {
                Answer::Status(status) if wanted(&status.troubles) => return,
                answer => assert!(Instant::now() < deadline, "{what}: {answer:#?}"),
            }
        }
    };
    until("no trouble", &<[_]>::is_empty);
    // The file is another one now, and what belongs to it is not there yet.
    fs::rename(at("cluster.key"), at("aside")).expect("it is there");
    let text = fs::read(at("cluster.toml")).expect("it is there");
    fs::write(at("cluster.toml"), text).expect("room");
    until("it is told", &|all| {
        all.iter().any(|one| one.with == "cluster file")
    });
    fs::rename(at("aside"), at("cluster.key")).expect("it is there");
    until("no trouble any more", &<[_]>::is_empty);
}

#[test]
fn a_full_disk_under_the_journal_is_told_and_loses_nothing() {
    lose_nothing_to_a_full_disk(Duration::ZERO);
}

/// The disk stays full for so long after the manager told of it.
fn lose_nothing_to_a_full_disk(time: Duration) {
    let hosts = up(4);
    let Some(disk) = SmallDisk::mount(&hosts, "1M") else {
        return;
    };
    // So many regions that their changes fill more than the rest of the journal's last page.
    let arguments = ["--size", "16M", "--region", "256K", "--copies", "2"];
    disk.run(&[&["cache", "create", "c0"][..], &arguments].concat())
        .expect(0);
    let ask = || {
        let ask = || disk.run(&["cache", "status", "c0", "--json"]);
        well::until("a status is told", ask, |_| true)
    };
    let wait = |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = ask();
            if wanted(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {status:#}");
        }
    };
    let mut load = CacheLoad::open(disk.path(), "c0", 7);
    load.fill();
    disk.fill();
    let host = busiest(&ask());
    signal(hosts.pid(&host), "KILL");
    wait("the journal's error is told", &|status| {
        status["status"]["journal_error"].is_string()
    });
    std::thread::sleep(time);
    disk.make_room();
    wait("whole again", &is_whole);
    assert_eq!(load.check(), 0);
    assert!(load.told_lost().is_empty());
    drop(load);
    disk.run(&["cache", "delete", "c0"]).expect(0);
    assert!(!Path::new(disk.path()).join("caches/c0").exists());
}

/// Where the load of another process finds its cache; it ends when there is a file `done`.
const LOAD: &str = "CENOTE_TEST_CACHE_LOAD";

/// Not a test of its own: what [`Client`] runs.
#[test]
fn a_load_in_a_process_of_its_own() {
    let Some(folder) = std::env::var_os(LOAD) else {
        return;
    };
    let folder = Path::new(&folder);
    let mut load = CacheLoad::open(folder, "c0", u64::from(std::process::id()));
    load.fill();
    while !folder.join("done").exists() {
        load.run_for(Duration::from_millis(50));
    }
    let lost = load.check();
    let told = load.told_lost();
    println!(
        "lost {lost} told {} failed {} done {}",
        told.len(),
        load.failed,
        load.done
    );
}

/// A process with a checked load on cache c0 of a folder.
struct Client(std::process::Child);

impl Client {
    fn start(folder: &Folder) -> Self {
        let program = std::env::current_exe().expect("this test");
        let child = std::process::Command::new(program)
            .args(["--exact", "a_load_in_a_process_of_its_own", "--nocapture"])
            .env(LOAD, folder.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        Self(child)
    }

    /// What it found in the end.
    fn end(mut self, folder: &Folder) -> String {
        fs::write(folder.path().join("done"), "").expect("a file");
        let stdout = self.0.stdout.take().expect("it is piped");
        let said = std::io::read_to_string(stdout).expect("UTF-8");
        let ended = self.0.wait().expect("a child of ours");
        assert!(ended.success(), "{said}");
        // The test's name may stand before it.
        let found = said
            .lines()
            .find_map(|line| line.find("lost ").map(|at| &line[at..]));
        found.unwrap_or_else(|| panic!("{said}")).to_owned()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Stops and kills managers, hosts and clients at random moments for so many rounds.
fn soak(rounds: u32, seed: u64) {
    println!("CENOTE_SEED={seed}");
    let mut random = cenote_pool::random::Random::new(seed);
    let mut draw = |end: u64| random.number() % end;
    let folder = up(5);
    create(&folder, "2");
    let client = Client::start(&folder);
    for round in 0..rounds {
        let host = format!("h{:02}", draw(5));
        let (who, pid) = match draw(4) {
            0 => ("manager", manager(&folder)),
            1 | 2 => ("host", folder.pid(&host)),
            _ => ("client", client.0.id()),
        };
        let pause = Duration::from_millis(20 + draw(3500));
        println!("round {round}: {who} {pid} stops for {pause:?}");
        signal(pid, "STOP");
        std::thread::sleep(pause);
        signal(pid, "CONT");
        // A host that was stopped may be about to be taken for dead: until then the cache counts as whole.
        std::thread::sleep(FAILURE_TIMEOUT * 2);
        match draw(6) {
            0 => {
                println!("and the manager is killed");
                kill_and_wait(manager(&folder));
                folder.run(&["cache", "start", "c0"]).expect(0);
            }
            1 => {
                println!("and {host} is killed");
                kill_and_wait(folder.pid(&host));
                let arguments = ["up", "--hosts", "5", "--memory", "16M", "--slab", "256K"];
                folder.run(&arguments).expect(0);
            }
            _ => {}
        }
        // The next fault finds two copies of everything: one domain at a time is what they bear.
        until(&folder, "whole", is_whole);
    }
    let found = client.end(&folder);
    assert!(
        found.starts_with("lost 0 told 0 failed 0 "),
        "seed {seed}: {found}"
    );
    let done = found.rsplit(' ').next().expect("a number");
    assert!(done.parse::<u64>().expect("a number") > 0, "{found}");
}

#[test]
fn with_two_copies_nothing_is_lost_while_processes_stop_and_die() {
    let given = std::env::var("CENOTE_SEED").ok();
    let given = given.map(|text| text.parse().expect("CENOTE_SEED is a number"));
    soak(6, given.unwrap_or(u64::from(std::process::id())));
}

mod long {
    use super::*;

    #[test]
    fn a_disk_that_is_full_for_longer_than_anything_is_waited_for_loses_nothing() {
        lose_nothing_to_a_full_disk(Duration::from_secs(25));
    }

    #[test]
    fn with_two_copies_nothing_is_lost_while_processes_stop_and_die_for_long() {
        for seed in 1..=3 {
            soak(30, seed);
        }
    }
}
