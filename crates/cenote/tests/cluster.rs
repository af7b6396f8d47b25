//! Local clusters of real processes: up, status, down, and what can go wrong.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use support::lab::wait_until;
use support::{Ended, Folder, cenote, run, runs, signal, wait_ended, words};

fn up(folder: &Folder, hosts: &str, transport: &str) -> support::Ended {
    folder.run(&words(&format!(
        "up --hosts {hosts} --memory 4M --transport {transport}"
    )))
}

/// A whole life of twelve hosts.
fn cycle(transport: &str) {
    let folder = Folder::new();
    up(&folder, "12", transport).expect(0);
    let names: Vec<String> = (0..12).map(|index| format!("h{index:02}")).collect();
    let pids: Vec<u32> = names.iter().map(|name| folder.pid(name)).collect();
    assert!(pids.iter().all(|&pid| runs(pid)));

    let status = folder.look(&["--json"]).expect(0).json();
    assert_eq!(status["hosts_up"], 12);
    assert_eq!(status["memory_bytes"], 12 * (4 << 20));
    assert_eq!(status["lent_bytes"], 0);
    let hosts = status["hosts"].as_array().unwrap();
    for ((host, name), pid) in hosts.iter().zip(&names).zip(&pids) {
        assert_eq!(host["name"], *name);
        assert_eq!(host["pid"], *pid);
        assert_eq!(host["state"], "up");
        assert_eq!(
            host["status"]["clients_total"], 0,
            "asking is not using: {host}"
        );
        assert!(
            host["address"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{transport}:"))
        );
    }
    let cluster = folder.path().join("cluster.toml");
    let people = run(&["status", "--cluster", cluster.to_str().unwrap()]).expect(0);
    assert!(people.stdout.contains("12 of 12 hosts up"), "{people:#?}");

    let down = folder.run(&["down"]).expect(0);
    assert!(down.stdout.contains("12 hosts ended"), "{down:#?}");
    assert!(!pids.iter().any(|&pid| runs(pid)));
    assert!(!cluster.exists());
    let again = folder.run(&["down"]).expect(0);
    assert!(again.stdout.contains("already down"), "{again:#?}");
}

#[test]
fn twelve_hosts_go_up_answer_and_go_down_over_shm() {
    cycle("shm");
}

#[test]
fn twelve_hosts_go_up_answer_and_go_down_over_tcp() {
    cycle("tcp");
}

#[test]
fn up_twice_is_up_once_and_another_shape_is_refused() {
    let folder = Folder::new();
    up(&folder, "2", "shm").expect(0);
    let pid = folder.pid("h00");
    let again = up(&folder, "2", "shm").expect(0);
    assert!(again.stdout.contains("already up"), "{again:#?}");
    assert_eq!(folder.pid("h00"), pid);
    for (hosts, transport) in [("3", "shm"), ("2", "tcp")] {
        let other = up(&folder, hosts, transport).expect(1);
        assert!(other.stderr.contains("another cluster"), "{other:#?}");
        assert!(other.stderr.contains("try: cenote down"), "{other:#?}");
    }
    assert!(runs(pid));
}

/// Kills a process, and waits for its end, which takes a while on a busy machine.
fn kill(pid: u32) {
    signal(pid, "KILL");
    wait_ended(pid);
}

#[test]
fn a_killed_host_is_seen_and_the_cluster_goes_down_and_up_again() {
    let folder = Folder::new();
    up(&folder, "3", "shm").expect(0);
    kill(folder.pid("h01"));
    let status = folder.run(&["status", "--json"]).expect(3).json();
    assert_eq!(status["hosts_up"], 2);
    assert_eq!(status["hosts"][1]["state"], "ended");
    let down = folder.run(&["down"]).expect(0);
    assert!(down.stdout.contains("1 had already ended"), "{down:#?}");
    up(&folder, "3", "shm").expect(0);
}

#[test]
fn a_host_that_ended_is_started_again_where_it_was_by_the_same_command() {
    for transport in ["shm", "tcp"] {
        let folder = Folder::new();
        up(&folder, "3", transport).expect(0);
        let pids = ["h00", "h01", "h02"].map(|name| folder.pid(name));
        let cluster = std::fs::read(folder.path().join("cluster.toml")).unwrap();
        kill(pids[0]);
        kill(pids[2]);
        let other = folder
            .run(&["up", "--hosts", "3", "--memory", "8M"])
            .expect(1);
        assert!(other.stderr.contains("another cluster"), "{other:#?}");
        let mended = up(&folder, "3", transport).expect(0);
        let said = "2 of 3 hosts had died and were restarted empty: h00, h02";
        assert!(mended.stdout.contains(said), "{mended:#?}");
        assert_eq!(folder.pid("h01"), pids[1], "who runs is let be");
        let status = folder.look(&["--json"]).expect(0).json();
        assert_eq!(status["hosts_up"], 3);
        assert_eq!(
            std::fs::read(folder.path().join("cluster.toml")).unwrap(),
            cluster
        );
    }
}

/// Runs a command of the shell, with the binary under test as `$0`.
fn shell(script: &str) -> support::Ended {
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_cenote")]);
    support::Ended::from(shell.output().expect("bash runs"))
}

#[test]
fn too_few_descriptors_are_refused_at_the_start_and_a_low_soft_limit_is_raised() {
    let folder = Folder::new();
    let dir = folder.str();
    let up = format!("\"$0\" up --hosts 2 --memory 4M --dir {dir}");
    let refused = shell(&format!("ulimit -n 32; {up}")).expect(1);
    let said = "needs 196 open files, but the limit is 32";
    assert!(refused.stderr.contains(said), "{refused:#?}");
    assert!(refused.stderr.contains("ulimit -n 196"), "{refused:#?}");
    shell(&format!("ulimit -S -n 32; {up}")).expect(0);
    let status = folder.look(&["--json"]).expect(0).json();
    assert_eq!(status["hosts_up"], 2);
}

#[test]
fn a_reader_that_goes_away_ends_a_command_without_a_word() {
    let folder = Folder::new();
    up(&folder, "3", "shm").expect(0);
    let dir = folder.str();
    // Every line but the first is written to a pipe that nobody reads any more.
    for command in [
        format!("status --json --dir {dir}"),
        "completions bash".into(),
    ] {
        let ended = shell(&format!(
            "\"$0\" {command} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
        ));
        assert!([0, 141].contains(&ended.code), "{command}: {ended:#?}");
        assert_eq!(ended.stderr, "", "{command}");
    }
}

#[test]
fn a_cluster_of_which_nothing_runs_is_started_again_with_its_key() {
    let folder = Folder::new();
    up(&folder, "2", "shm").expect(0);
    let key = std::fs::read(folder.path().join("cluster.key")).unwrap();
    for name in ["h00", "h01"] {
        kill(folder.pid(name));
    }
    let again = up(&folder, "2", "shm").expect(0);
    assert!(again.stderr.contains("starting again"), "{again:#?}");
    assert_eq!(
        std::fs::read(folder.path().join("cluster.key")).unwrap(),
        key
    );
    folder.look(&[]).expect(0);
}

/// All hosts are killed, and are still giving their memory back when the cluster is started again.
#[test]
fn a_cluster_whose_hosts_end_while_it_is_looked_for_is_started_again() {
    let folder = Folder::new();
    up(&folder, "2", "shm").expect(0);
    let pids = ["h00", "h01"].map(|name| folder.pid(name));
    for pid in pids {
        signal(pid, "STOP");
    }
    let again = cenote()
        .args(words(&format!(
            "up --hosts 2 --memory 4M --dir {}",
            folder.str()
        )))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // It has seen both run.
    let fds = format!("/proc/{}/fd", again.id());
    let looked = || {
        let links = std::fs::read_dir(&fds).into_iter().flatten().flatten();
        let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains("[pidfd]"))
            .count()
            == 2
    };
    wait_until("it looks for hosts", looked, String::new);
    for pid in pids {
        signal(pid, "KILL");
    }
    let ended = Ended::from(again.wait_with_output().expect("a child")).expect(0);
    assert!(ended.stderr.contains("starting again"), "{ended:#?}");
    folder.look(&[]).expect(0);
}

#[test]
fn a_stopped_host_is_silent_and_is_killed_by_down() {
    let folder = Folder::new();
    up(&folder, "2", "shm").expect(0);
    let pid = folder.pid("h00");
    signal(pid, "STOP");
    let look = || {
        let look = ["status", "--json", "--timeout", "200ms"];
        folder.run(&look).expect(3).json()
    };
    // The other one may need longer than that for an answer, and is not silent for ever.
    let is_told = || {
        let status = look();
        assert_eq!(status["hosts"][0]["state"], "silent", "{status}");
        status["hosts"][1]["state"] == "up"
    };
    wait_until("one is silent, one is up", is_told, || look().to_string());
    let down = folder.run(&["down", "--timeout", "1s"]).expect(0);
    assert!(down.stdout.contains("1 of them killed"), "{down:#?}");
    assert!(!runs(pid));
}

/// Field 22 of `/proc/PID/stat`; none of these programs has a blank in its name.
fn start_ticks(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.split(' ').nth(21).unwrap().to_owned()
}

#[test]
fn down_never_touches_a_stranger_with_a_hosts_number() {
    let folder = Folder::new();
    up(&folder, "1", "shm").expect(0);
    let pid = folder.pid("h00");
    // Its start in clock ticks must be another: with a number of its own only that tells them apart.
    let mut stranger = loop {
        let mut some = Command::new("sleep").arg("600").spawn().unwrap();
        if start_ticks(some.id()) != start_ticks(pid) {
            break some;
        }
        some.kill().unwrap();
        some.wait().unwrap();
    };
    std::fs::write(
        folder.host("h00").join("pid"),
        format!("{}\n", stranger.id()),
    )
    .unwrap();
    let down = folder.run(&["down"]).expect(0);
    assert!(down.stdout.contains("0 hosts ended"), "{down:#?}");
    assert!(runs(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    signal(pid, "KILL");
}

#[test]
fn memory_that_is_not_there_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let refused = folder
        .run(&["up", "--hosts", "4", "--memory", "16T"])
        .expect(1);
    assert!(refused.stderr.contains("do not fit"), "{refused:#?}");
    assert!(refused.stderr.contains("try: use --memory"), "{refused:#?}");
    assert!(!folder.path().join("hosts").exists());
}

#[test]
fn a_host_that_cannot_start_shows_its_log_and_leaves_nothing_behind() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.host("h02")).unwrap();
    // A folder where the socket should be: this host alone cannot listen.
    std::fs::create_dir(folder.host("h02").join("socket")).unwrap();
    let failed = up(&folder, "4", "shm").expect(1);
    assert!(
        failed.stderr.contains("host h02 did not start"),
        "{failed:#?}"
    );
    assert!(failed.stderr.contains("the end of"), "{failed:#?}");
    assert!(!folder.path().join("cluster.toml").exists());
    for name in ["h00", "h01", "h03"] {
        assert!(!folder.host(name).join("pid").exists(), "{name}");
    }
    std::fs::remove_dir(folder.host("h02").join("socket")).unwrap();
}

#[test]
fn a_second_host_on_one_address_is_told_so_and_the_first_stays() {
    let folder = Folder::new();
    up(&folder, "1", "shm").expect(0);
    let key = folder.path().join("cluster.key");
    let listen = format!("shm:{}", folder.host("h00").join("socket").display());
    let key = key.to_str().unwrap();
    let second = run(&words(&format!(
        "host --name x --memory 1M --key {key} --listen {listen}"
    )))
    .expect(1);
    assert!(second.stderr.contains("in use"), "{second:#?}");
    folder.look(&[]).expect(0);
}

#[test]
fn without_the_key_a_host_says_nothing() {
    let folder = Folder::new();
    up(&folder, "1", "tcp").expect(0);
    let key = folder.path().join("cluster.key");
    std::fs::remove_file(&key).unwrap();
    run(&["key", "new", "--out", key.to_str().unwrap()]).expect(0);
    let status = folder
        .run(&["status", "--json", "--timeout", "1s"])
        .expect(3)
        .json();
    assert_eq!(status["hosts"][0]["state"], "silent");
    assert!(status["hosts"][0]["status"].is_null());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    up(&folder, "1", "shm").expect(0);
    let key = folder.path().join("cluster.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let status = folder.run(&["status"]).expect(1);
    assert!(status.stderr.contains("try: chmod 600"), "{status:#?}");
}

/// A host in the foreground; killed when dropped.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        if self.0.kill().is_ok() {
            self.0.wait().expect("a child of ours");
        }
    }
}

#[test]
fn metrics_have_units_and_help_and_the_host_ends_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("k");
    run(&["key", "new", "--out", key.to_str().unwrap()]).expect(0);
    let listen = format!("shm:{}", folder.path().join("socket").display());
    let mut host = Foreground(
        cenote()
            .args(words("host --name m --memory 4M --metrics 127.0.0.1:0"))
            .args(["--listen", &listen, "--key", key.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let line = |stream: &mut dyn Read| {
        let mut text = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            text.push(byte[0]);
        }
        String::from_utf8(text).unwrap()
    };
    let ready = line(host.0.stdout.as_mut().unwrap());
    assert_eq!(ready, format!("ready m at {listen}"));
    let mut said = String::new();
    while !said.starts_with("metrics at http://") {
        said = line(host.0.stderr.as_mut().unwrap());
    }
    let address = said
        .strip_prefix("metrics at http://")
        .unwrap()
        .strip_suffix("/metrics")
        .unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(
        text.contains("\ncenote_host_memory_bytes 4194304\n"),
        "{text}"
    );
    let (_, page) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(support::prometheus::faults(page), Vec::<String>::new());
    signal(host.0.id(), "TERM");
    assert!(host.0.wait().unwrap().success());
}

#[test]
fn a_cluster_keeps_how_pages_travel_for_those_who_do_not_say() {
    let folder = Folder::new();
    let up = words("up --hosts 3 --memory 16M --transport tcp");
    let plain = [&up[..], &["--page-traffic", "plain"]].concat();
    folder.run(&plain).expect(0);
    folder.run(&plain).expect(0);
    folder.run(&up).expect(1);
    let file = folder.path().join("cluster.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("page_traffic = \"plain\""), "{text}");
    folder.create_volume("v0", "4M", "plain");
    folder.run(&["volume", "scrub", "v0"]).expect(0);
    // It is what commands ask for that have no flag, and a host that demands more turns them away.
    folder.run(&["down"]).expect(0);
    folder.run(&up).expect(0);
    let encrypted = std::fs::read_to_string(&file).unwrap();
    assert!(!encrypted.contains("page_traffic"), "{encrypted}");
    let told = |how: &str| {
        std::fs::write(&file, format!("page_traffic = \"{how}\"\n{encrypted}")).unwrap();
        folder.run(&["volume", "scrub", "v0"])
    };
    let turned_away = told("plain").expect(1);
    assert!(
        turned_away.stderr.contains("protected so little"),
        "{turned_away:#?}"
    );
    assert_eq!(told("encrypted").expect(0).stderr, "");
    let wrong = told("hidden").expect(1);
    assert!(
        wrong.stderr.contains("cluster.toml: page_traffic"),
        "{wrong:#?}"
    );
    std::fs::write(&file, encrypted).unwrap();
}

#[test]
fn a_host_that_calls_itself_something_else_than_the_cluster_file_is_shown() {
    let folder = Folder::new();
    folder.run(&words("up --hosts 2 --memory 16M")).expect(0);
    let file = folder.path().join("cluster.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let looked = || {
        let status = folder.run(&["status"]).expect(0).stdout;
        let doctor = ["doctor", "--json", "--only", "hosts"];
        let doctor = folder.run(&doctor).json()["findings"].to_string();
        [status, doctor]
    };
    let said = "its own configuration says name h01; the cluster file is what counts";
    assert!(looked().iter().all(|shown| !shown.contains(said)));
    // A domain that the host was not told of is the file's business alone.
    let text = text.replace("domain = \"h01\"", "domain = \"rack1\"");
    std::fs::write(&file, &text).unwrap();
    assert!(
        looked()
            .iter()
            .all(|shown| !shown.contains("its own configuration"))
    );
    std::fs::write(&file, text.replace("name = \"h01\"", "name = \"other\"")).unwrap();
    for shown in looked() {
        assert!(shown.contains(&format!("other: {said}")), "{shown}");
    }
    std::fs::write(&file, text).unwrap();
}
