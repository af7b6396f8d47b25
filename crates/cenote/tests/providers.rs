//! Machines of each kind of provider, with hosts that are processes of the real binary.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_cache::links::{Caller, HostConfig};
use cenote_cache::providers::{
    Error, Machine, ProcessSettings, Processes, Program, Provider, Running, Wish, status_of,
};
use cenote_fabric::{ClientId, ClusterKey, Hello, connector};
use support::{Folder, run, runs};

/// Longer than any of it takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

fn wish() -> Wish {
    Wish {
        order: "o1".to_owned(),
        machine_type: "small".to_owned(),
        memory_bytes: 8 << 20,
        slab_bytes: 1 << 20,
        cores: 1,
        is_spot: false,
    }
}

fn caller(key: &Path) -> Caller {
    Caller {
        connector: Arc::new(connector(ClusterKey::load(key).expect("a key"))),
        hello: Hello {
            client: ClientId(9),
            name: "test".to_owned(),
        },
        with_data: false,
    }
}

/// Asks the machine's host how it is.
fn check(caller: &Caller, machine: &Machine) {
    let status = status_of(caller, &machine.host.address).expect("a host runs there");
    assert_eq!((status.memory_bytes, status.slab_bytes), (8 << 20, 1 << 20));
}

fn key(folder: &Path) -> std::path::PathBuf {
    let key = folder.join("cluster.key");
    run(&["key", "new", "--out", key.to_str().expect("UTF-8")]).expect(0);
    key
}

#[test]
fn processes_are_started_asked_and_ended() {
    for over_tcp in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let key = key(folder.path());
        let mut processes = Processes::new(ProcessSettings {
            program: env!("CARGO_BIN_EXE_cenote").into(),
            folder: folder.path().to_owned(),
            key: key.clone(),
            over_tcp,
            grace: Duration::from_secs(1),
            // Made where this may be done; a host runs without it otherwise.
            cgroup: Some("/sys/fs/cgroup".into()),
            count_max: 2,
        });
        let caller = caller(&key);
        let machines = [(); 2].map(|()| processes.acquire(&wish()).expect("a machine"));
        for machine in &machines {
            check(&caller, machine);
        }
        let none = processes.acquire(&wish()).expect_err("no more than two");
        assert!(matches!(none, Error::None { .. }), "{none}");
        let pids = machines
            .each_ref()
            .map(|machine| processes.pid(&machine.id));
        let [first, second] = pids.map(|pid| pid.expect("it runs"));
        let group = Path::new("/sys/fs/cgroup").join(&machines[0].id);
        processes.release(&machines[0]).expect("it ends");
        assert!(!runs(first) && runs(second));
        assert!(!group.exists(), "its cgroup goes with it");
        processes.release(&machines[0]).expect("once is enough");
        drop(processes);
        assert!(!runs(second));
    }
}

#[test]
fn a_host_that_does_not_start_is_no_machine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = |program: &str| {
        Processes::new(ProcessSettings {
            program: program.into(),
            folder: folder.path().to_owned(),
            key: folder.path().join("no.key"),
            over_tcp: true,
            grace: Duration::ZERO,
            cgroup: None,
            count_max: 2,
        })
    };
    let mut processes = start(env!("CARGO_BIN_EXE_cenote"));
    let error = processes.acquire(&wish()).expect_err("it has no key");
    assert!(matches!(error, Error::Nonsense { .. }), "{error}");
    let mut other = start("/bin/echo");
    let error = other.acquire(&wish()).expect_err("it is no host");
    assert!(error.to_string().contains("something else"), "{error}");
}

#[test]
fn hosts_that_run_are_taken_as_long_as_they_have_room() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "8M", "--slab", "1M"])
        .expect(0);
    let hosts: Vec<HostConfig> = ["h00", "h01", "gone"]
        .iter()
        .map(|name| HostConfig {
            name: (*name).to_owned(),
            address: format!("shm:{}/socket", folder.host(name).display())
                .parse()
                .expect("an address"),
            domain: (*name).to_owned(),
        })
        .collect();
    let caller = caller(&folder.path().join("cluster.key"));
    let mut running = Running::new(hosts, caller.clone());
    let machines = [(); 2].map(|()| running.acquire(&wish()).expect("a machine"));
    assert_ne!(machines[0].id, machines[1].id);
    check(&caller, &machines[0]);
    let none = running.acquire(&wish()).expect_err("both are taken");
    assert!(matches!(none, Error::None { .. }), "{none}");
    running.release(&machines[1]).expect("it is free again");
    let larger = Wish {
        memory_bytes: 9 << 20,
        ..wish()
    };
    assert!(running.acquire(&larger).is_err(), "it has less");
    let again = running.acquire(&wish()).expect("a machine");
    assert_eq!(again.id, machines[1].id);
}

#[test]
fn a_command_gets_a_machine_and_releases_it() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_cenote");
    let dir = folder.str();
    let acquire = format!(
        r#"{program} up --hosts 1 --memory $((CENOTE_MEMORY_BYTES / 1024))K \
            --slab $((CENOTE_SLAB_BYTES / 1024))K --dir {dir} >&2 &&
        echo "{{\"id\":\"h00\",\"address\":\"shm:{dir}/hosts/h00/socket\"}}""#
    );
    let release = format!("test $CENOTE_MACHINE_ID = h00 && {program} down --dir {dir}");
    let shell = |script: String| vec!["sh".to_owned(), "-c".to_owned(), script];
    let mut provider = Program {
        acquire: shell(acquire),
        release: shell(release),
        limit: LONG,
    };
    let machine = provider.acquire(&wish()).expect("a machine");
    check(&caller(&folder.path().join("cluster.key")), &machine);
    let pid = folder.pid("h00");
    assert!(runs(pid));
    provider.release(&machine).expect("it ends");
    assert!(!runs(pid));
}
