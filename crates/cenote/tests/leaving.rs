//! Hosts that leave in peace, under a real load: drained, or replaced by another process.
//!
//! The load is that of [`support::lab`]: every byte is checked, and nothing may fail.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::gate::Gate;
use support::lab::{Lab, Load, has_tools, wait_until};
use support::nbd::Client;
use support::net::Killed;
use support::server::Server;
use support::{Ended, Folder, cenote, runs, signal, words};

/// Runs `cenote host ORDER HOST` and gives its process, so that the volume is watched meanwhile.
fn order(lab: &Lab, arguments: &[&str]) -> std::process::Child {
    cenote()
        .arg("host")
        .args(arguments)
        .args(["--json", "--dir", lab.folder.str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

/// Waits for an order's end while the volume stays whole.
fn expect_whole(lab: &Lab, mut ordered: std::process::Child) -> Value {
    lab.expect_whole_until(|| ordered.try_wait().expect("a child of ours").is_some());
    Ended::from(ordered.wait_with_output().expect("a child of ours"))
        .expect(0)
        .json()
}

/// A load that is checked block by block, small enough to be run once for each host.
fn small_load(lab: &Lab) -> Load {
    lab.fio_with(&words(
        "--rw=randwrite --bs=4k --iodepth=16 --size=64M --verify=crc32c --do_verify=1",
    ))
}

fn expect_nothing_lost(lab: &Lab) {
    lab.fio_with(&["--rw=read", "--bs=4k", "--size=64M", "--verify=crc32c"])
        .expect_clean();
    assert_eq!(lab.requests_failed(), 0);
}

fn slabs_of(lab: &Lab, host: &str) -> u64 {
    let status = lab.folder.status_of(host);
    let slabs = &status["slabs"];
    slabs["mapped"].as_u64().expect("a count") + slabs["orphaned"].as_u64().expect("a count")
}

#[test]
fn a_host_is_drained_under_load_and_ends() {
    if !has_tools() {
        return;
    }
    for (transport, scheme) in [("tcp", "rs:4+2"), ("shm", "rs:2+1")] {
        let lab = Lab::new(transport, scheme);
        let load = lab.fio();
        lab.wait_written(12_000);
        let victim = lab.members()[0].clone();
        let process = lab.folder.pid(&victim);
        let slabs = slabs_of(&lab, &victim);
        assert!(slabs > 0);

        let report = expect_whole(&lab, order(&lab, &["drain", &victim, "--stop"]));
        assert_eq!(report["drained"], true, "{report}");
        assert_eq!(report["slabs_left"], 0, "{report}");
        assert!(
            report["slabs_given_back"].as_u64() >= Some(slabs),
            "{report}"
        );
        wait_until("the host has ended", || !runs(process), String::new);

        load.expect_clean();
        assert!(!lab.members().contains(&victim));
        assert_eq!(lab.health(), "healthy");
        assert_eq!(lab.status()["counters"]["slabs_rebuilt"], 0);
        assert_eq!(lab.requests_failed(), 0);
    }
}

#[test]
fn a_host_that_may_not_be_spared_is_not_drained_and_lends_on() {
    if !has_tools() {
        return;
    }
    let lab = Lab::with_hosts(3, "tcp", "rs:2+1");
    small_load(&lab).expect_clean();
    let slabs = slabs_of(&lab, "h01");
    let ended = lab
        .folder
        .run(&["host", "drain", "h01", "--json"])
        .expect(1);
    let report = ended.json();
    assert_eq!(
        (&report["drained"], &report["slabs_left"]),
        (&false.into(), &slabs.into())
    );
    for said in ["no room", "v0", "lends again"] {
        assert!(ended.stderr.contains(said), "{ended:#?}");
    }
    assert_eq!(slabs_of(&lab, "h01"), slabs);
    assert_eq!(lab.health(), "healthy");
    expect_nothing_lost(&lab);
    // Too full a cluster is told before anything is begun.
    let full = Lab::with_hosts(4, "tcp", "mirror:2");
    full.fio_with(&["--rw=write", "--bs=64k", "--size=180M"])
        .expect_clean();
    let refused = full.folder.run(&["host", "drain", "h00"]).expect(1);
    assert!(
        refused.stderr.contains("nothing was changed"),
        "{refused:#?}"
    );
}

#[test]
fn a_drain_is_called_off_by_its_time_limit_and_by_hand() {
    if !has_tools() {
        return;
    }
    let lab = Lab::with_hosts(3, "shm", "rs:2+1");
    small_load(&lab).expect_clean();
    let late = lab
        .folder
        .run(&["host", "drain", "h00", "--timeout", "1s"])
        .expect(1);
    assert!(late.stderr.contains("within 1s"), "{late:#?}");
    // An empty host is drained at once, and lends nothing until it is told to.
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "16M"])
        .expect(0);
    let said = folder.run(&["host", "drain", "h01"]).expect(0).stdout;
    assert_eq!(said, "h01: drained: no slabs mapped\n");
    let draining = |name: &str| folder.status_of(name)["draining"].clone();
    assert_eq!(
        (draining("h00"), draining("h01")),
        (false.into(), true.into())
    );
    let table = folder.look(&[]).expect(0).stdout;
    assert!(table.contains("h01   draining"), "{table}");
    let cancel = ["host", "drain", "h01", "--cancel", "--json"];
    let report = folder.run(&cancel).expect(0).json();
    assert_eq!(
        (&report["host"], &report["drained"], &report["slabs_left"]),
        (&"h01".into(), &false.into(), &0.into())
    );
    assert_eq!(draining("h01"), false);
    let unknown = folder.run(&["host", "drain", "h07"]).expect(1);
    assert!(
        unknown.stderr.contains("use one of h00, h01"),
        "{unknown:#?}"
    );
}

/// Starts a host of the cluster again, where it was and as it was.
fn start_again(folder: &Folder, name: &str, program: &Path) -> Killed {
    let text = fs::read_to_string(folder.path().join("cluster.toml")).expect("a cluster file");
    let cluster: toml::Table = text.parse().expect("TOML");
    let mut hosts = cluster["host"].as_array().expect("hosts").iter();
    let host = hosts.find(|host| host["name"].as_str() == Some(name));
    let address = host.expect("a host")["address"].as_str().expect("text");
    let key = folder.path().join("host.key");
    fs::copy(folder.path().join("cluster.key"), &key).expect("a copy");
    let mut child = Command::new(program)
        .args(words(&format!(
            "host --name {name} --memory 96M --listen {address}"
        )))
        .arg("--key")
        .arg(key)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the host starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let host = Killed(child);
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    read.expect("a line of the host");
    assert!(line.starts_with(&format!("ready {name} at ")), "{line}");
    host
}

fn this_binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cenote"))
}

#[test]
fn all_hosts_are_restarted_one_after_the_other_under_load() {
    if !has_tools() {
        return;
    }
    const HOSTS: u32 = 5;
    let lab = Lab::with_hosts(HOSTS, "tcp", "rs:2+1");
    let mut restarted = Vec::new();
    for index in 0..HOSTS {
        let name = format!("h{index:02}");
        let load = small_load(&lab);
        lab.wait_written(lab.written() + 2_000);
        let process = lab.folder.pid(&name);
        let report = expect_whole(&lab, order(&lab, &["drain", &name, "--stop"]));
        assert_eq!(report["drained"], true, "{report}");
        wait_until("the host has ended", || !runs(process), String::new);
        lab.wait_connected(&name, false);
        restarted.push(start_again(&lab.folder, &name, this_binary()));
        lab.wait_connected(&name, true);
        load.expect_clean();
    }
    expect_nothing_lost(&lab);
    assert_eq!(lab.status()["counters"]["slabs_rebuilt"], 0);
}

#[test]
fn all_hosts_are_upgraded_in_place_one_after_the_other_under_load() {
    if !has_tools() {
        return;
    }
    const HOSTS: u32 = 5;
    for transport in ["tcp", "shm"] {
        let lab = Lab::with_hosts(HOSTS, transport, "rs:2+1");
        small_load(&lab).expect_clean();
        for index in 0..HOSTS {
            let name = format!("h{index:02}");
            let load = small_load(&lab);
            lab.wait_written(lab.written() + 2_000);
            let process = lab.folder.pid(&name);
            let ended = order(&lab, &["upgrade", &name]).wait_with_output();
            Ended::from(ended.expect("a child of ours")).expect(0);
            assert!(runs(process), "the process is the same");
            lab.wait_healthy();
            load.expect_clean();
        }
        expect_nothing_lost(&lab);
        // Writes went on all the time, and every slab was taken back as it was.
        let counters = &lab.status()["counters"];
        let rebuilt = [&counters["slabs_rebuilt"], &counters["rebuilt_bytes"]];
        assert_eq!(rebuilt, [0, 0], "{transport}: {counters}");
    }
}

#[test]
fn slabs_in_front_of_a_disk_are_kept_when_all_hosts_are_upgraded_under_load() {
    if !has_tools() {
        return;
    }
    const HOSTS: u32 = 3;
    for transport in ["tcp", "shm"] {
        let lab = Lab::backed(HOSTS, transport);
        let backing = |name: &str| lab.status()["backing"][name].as_u64().expect("a counter");
        small_load(&lab).expect_clean();
        let upgrade = |name: &str| {
            let ended = order(&lab, &["upgrade", name]).wait_with_output();
            Ended::from(ended.expect("a child of ours")).expect(0);
        };
        for index in 0..HOSTS {
            let load = small_load(&lab);
            lab.wait_written(lab.written() + 2_000);
            upgrade(&format!("h{index:02}"));
            load.expect_clean();
            lab.wait_healthy();
        }
        let counters = &lab.status()["counters"];
        let lost = [&counters["slabs_dropped"], &counters["slabs_rebuilt"]];
        assert_eq!(lost, [0, 0], "{transport}: {counters}");

        // From here on nothing is written: what is read from hosts, is so because they kept it.
        expect_nothing_lost(&lab);
        let promoted = backing("pages_promoted");
        (0..HOSTS).for_each(|index| upgrade(&format!("h{index:02}")));
        let is_read_from_hosts = || {
            let before = backing("pages_read");
            expect_nothing_lost(&lab);
            backing("pages_read") == before
        };
        wait_until("hosts serve what they kept", is_read_from_hosts, || {
            lab.status().to_string()
        });
        let after = lab.status();
        assert_eq!(backing("pages_promoted"), promoted, "{transport}: {after}");
        assert_eq!(
            after["counters"]["slabs_dropped"], 0,
            "{transport}: {after}"
        );
    }
}

#[test]
fn what_a_host_held_that_does_not_come_back_in_time_is_rebuilt() {
    if !has_tools() {
        return;
    }
    let folder = Folder::new();
    let program = folder.path().join("cenote");
    fs::copy(this_binary(), &program).expect("a copy");
    let folder = Lab::cluster_of(folder, Command::new(&program), 5, &["--transport", "tcp"]);
    let lab = Lab::served(folder, "rs:2+1", cenote());
    small_load(&lab).expect_clean();
    // The next program says that it takes over, and then does not.
    let new = lab.folder.path().join("new");
    let script = "#!/bin/sh\n[ -n \"$CENOTE_HANDOVER_PROBE\" ]\n";
    fs::write(&new, script).expect("a script");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("a script");
    fs::rename(&new, &program).expect("on one file system");
    let victim = lab.members()[0].clone();
    let load = small_load(&lab);
    lab.wait_written(lab.written() + 2_000);
    signal(lab.folder.pid(&victim), "HUP");
    lab.wait_connected(&victim, false);
    load.expect_clean();
    lab.wait_healthy();
    assert!(!lab.members().contains(&victim));
    assert_ne!(lab.status()["counters"]["slabs_rebuilt"], 0);
    expect_nothing_lost(&lab);
}

#[test]
fn a_program_that_does_not_take_over_leaves_the_host_as_it_was() {
    let folder = Folder::new();
    folder
        .run(&words("up --hosts 1 --memory 16M --transport tcp"))
        .expect(0);
    // The host of a copy of the program, which is then replaced as a package manager does.
    let program = folder.path().join("cenote");
    let install = |from: &dyn Fn(&Path)| {
        let new = folder.path().join("new");
        from(&new);
        fs::rename(&new, &program).expect("on one file system");
    };
    let whole = |new: &Path| {
        fs::copy(this_binary(), new).expect("a copy");
    };
    install(&whole);
    signal(folder.pid("h00"), "TERM");
    wait_until("it has ended", || !runs(folder.pid("h00")), String::new);
    let host = start_again(&folder, "h00", &program);
    let process = host.0.id();

    let upgrade = || folder.run(&["host", "upgrade", "h00"]);
    install(&|new| {
        fs::write(new, "#!/bin/sh\necho too old >&2\nexit 1\n").expect("a script");
        fs::set_permissions(new, fs::Permissions::from_mode(0o755)).expect("a script");
    });
    let refused = upgrade().expect(1);
    assert!(refused.stderr.contains("was not upgraded"), "{refused:#?}");
    folder.look(&[]).expect(0);
    fs::remove_file(&program).expect("a file");
    upgrade().expect(1);
    folder.look(&[]).expect(0);
    install(&whole);
    // The next process would not start, and what is lent would be gone with this one.
    let key = folder.path().join("host.key");
    let aside = folder.path().join("aside.key");
    fs::rename(&key, &aside).expect("on one file system");
    upgrade().expect(1);
    folder.look(&[]).expect(0);
    fs::rename(&aside, &key).expect("on one file system");
    let upgraded = upgrade().expect(0);
    assert!(upgraded.stdout.contains("slabs kept"), "{upgraded:#?}");
    assert!(runs(process));
    signal(process, "HUP");
    wait_until(
        "it serves after SIGHUP",
        || folder.run(&["status"]).code == 0,
        String::new,
    );
}

#[test]
fn a_host_that_is_told_to_end_while_it_upgrades_ends() {
    let folder = Folder::with_key();
    let path = |name: &str| folder.path().join(name);
    let [program, next, asked, go_on] = ["cenote", "next", "asked", "go-on"].map(path);
    fs::copy(this_binary(), &program).expect("a copy");
    let line = "host --name h00 --memory 16M --listen tcp:127.0.0.1:0 --key";
    // As nohup leaves it to these tests, it would be ignored.
    let mut child = Command::new("env")
        .arg("--default-signal=HUP")
        .arg(&program)
        .args(words(line))
        .arg(path("cluster.key"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the host starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut host = Killed(child);
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    assert!(read.is_ok() && line.starts_with("ready h00 at "), "{line}");
    // It takes its time to say whether it would start.
    let script = format!(
        "#!/bin/sh\nif [ -n \"$CENOTE_HANDOVER_PROBE\" ]; then\n  touch {}\n  \
         while [ ! -e {} ]; do sleep 0.01; done\nfi\nexec {} \"$@\"\n",
        asked.display(),
        go_on.display(),
        this_binary().display()
    );
    fs::write(&next, script).expect("a script");
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).expect("a script");
    fs::rename(&next, &program).expect("on one file system");
    signal(host.0.id(), "HUP");
    wait_until("it asks", || asked.exists(), String::new);
    signal(host.0.id(), "TERM");
    fs::write(&go_on, "").expect("a file");
    let mut ended = || host.0.try_wait().expect("a child of ours").is_some();
    wait_until("the host has ended", &mut ended, String::new);
    assert_eq!(host.0.wait().expect("a child of ours").code(), Some(0));
}

#[test]
fn a_host_that_drains_unseen_lends_again_and_else_that_is_said() {
    let folder = Folder::new();
    folder
        .run(&words("up --hosts 1 --memory 16M --transport tcp"))
        .expect(0);
    folder.create_volume("v0", "4M", "plain");
    let mut server = Server::start(&folder, &["--volume", "v0"]);
    assert!(server.ready().starts_with("ready v0"));
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    client.write(0, &[7; 4096]).expect("written");
    let status = folder.look(&["--json"]).expect(0).json();
    let address = status["hosts"][0]["address"].as_str().expect("an address");
    let address = address.strip_prefix("tcp:").expect("over tcp");
    let gate = Gate::to(address.parse().expect("an address"));
    let through = format!("tcp:{}", gate.address());
    let key = folder.path().join("cluster.key");
    // It gives nothing back, and declines nothing.
    signal(server.child.id(), "STOP");
    let is_draining = || folder.status_of("h00")["draining"] == true;
    for is_back in [true, false] {
        let mut command = cenote();
        command.args(["host", "drain", &through, "--stop", "--json", "--key"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let drain = command.arg(&key).spawn().expect("the binary runs");
        wait_until("it drains", is_draining, String::new);
        gate.shut();
        if is_back {
            gate.open();
        }
        let ended = Ended::from(drain.wait_with_output().expect("a child of ours")).expect(1);
        let report = ended.json();
        assert_eq!(report["drained"], false, "{report}");
        let said = match is_back {
            true => "it lends again".to_owned(),
            false => format!("it may still be draining: cenote host drain {through} --cancel"),
        };
        assert!(ended.stderr.contains(&said), "{ended:#?}");
        let reason = report["reason"].as_str().expect("a reason");
        assert!(reason.contains(&said), "{report}");
        assert_ne!(is_draining(), is_back);
    }
    folder.run(&["host", "drain", "h00", "--cancel"]).expect(0);
    assert!(!is_draining());
}
