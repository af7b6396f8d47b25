//! Servers that a command leaves in the background once they serve.

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use support::nbd::Client;
use support::prometheus::faults;
use support::server::{Server, up};
use support::{Ended, Folder, cenote, run, runs, signal, wait_ended, words};

const NEW: [&str; 6] = ["--volume", "v0", "--size", "8M", "--scheme", "rs:2+1"];

fn serve(folder: &Folder, arguments: &[&str]) -> Ended {
    let socket = folder.path().join("nbd");
    let at = ["--socket", socket.to_str().expect("UTF-8"), "--background"];
    folder.run(&[&["nbd"], arguments, &at[..]].concat())
}

fn pid(folder: &Folder) -> u32 {
    let file = folder.path().join("servers/v0/pid");
    let text = fs::read_to_string(file).expect("a pid file");
    text.trim().parse().expect("a number")
}

#[test]
fn a_server_in_the_background_serves_when_the_command_returns() {
    let folder = Folder::new();
    up(&folder);
    let started = serve(&folder, &NEW).expect(0);
    let pid = pid(&folder);
    let log = folder.path().join("servers/v0/log");
    let end = format!(", log {}, pid {pid}\n", log.display());
    assert!(
        started
            .stdout
            .starts_with("ready v0 8M rs:2+1 at nbd+unix:"),
        "{started:?}"
    );
    assert!(started.stdout.ends_with(&end), "{started:?}");
    // At once: there is nothing to wait for.
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    client.write(4096, &[7; 4096]).expect("written");
    drop(client);

    let again = serve(&folder, &["--volume", "v0"]).expect(1);
    assert!(
        again
            .stderr
            .contains(&format!("volume v0: process {pid} already serves it")),
        "{again:?}"
    );
    let stop = format!("try: cenote volume stop v0 --dir {}", folder.str());
    assert!(again.stderr.contains(&stop), "{again:?}");
    assert!(runs(pid), "the first one serves on");
    let all = folder.run(&["volume", "status"]).expect(0);
    assert!(all.stdout.contains("v0      8M    rs:2+1"), "{all:?}");

    let stopped = folder.run(&["volume", "stop", "v0"]).expect(0);
    assert!(
        stopped.stdout.contains(&format!("process {pid} has ended")),
        "{stopped:?}"
    );
    assert!(!runs(pid));
    assert!(
        fs::read_to_string(log)
            .expect("a log")
            .contains("stopped; hosts keep")
    );
    folder.run(&["volume", "stop", "v0"]).expect(1);

    let idle = folder.run(&["volume", "status"]).expect(0);
    assert!(
        idle.stdout
            .contains("not in use: 3 slabs on 3 hosts for the next owner"),
        "{idle:?}"
    );
    let grown = folder
        .run(&["volume", "resize", "v0", "--size", "16M"])
        .expect(0);
    assert_eq!(grown.stdout, "v0: 16M, 8M before\n");
    // What was written is there for the next one.
    serve(&folder, &["--volume", "v0"]).expect(0);
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    assert_eq!(client.read(4096, 4096), Ok(vec![7; 4096]));
    drop(client);
    folder.run(&["volume", "stop", "v0"]).expect(0);
    let reset = folder.run(&["volume", "reset", "v0"]).expect(0);
    assert_eq!(
        reset.stdout,
        "v0: 3 slabs returned to 3 hosts; it is now empty\n"
    );
    let deleted = folder.run(&["volume", "delete", "v0"]).expect(0);
    assert_eq!(deleted.stdout, "v0: it was empty; the volume is deleted\n");
}

#[test]
fn who_stops_a_server_that_does_not_go_on_is_told_what_it_waits_for() {
    let folder = Folder::new();
    up(&folder);
    serve(&folder, &NEW).expect(0);
    let pid = pid(&folder);
    signal(pid, "STOP");
    let stop = ["volume", "stop", "v0", "--timeout", "3100ms"];
    let stopped = folder.run(&stop).expect(1);
    let told = format!("process {pid} is stopped; kill -CONT {pid} lets it exit\n");
    assert!(stopped.stderr.starts_with(&told), "{stopped:?}");
    assert!(
        stopped.stderr.contains("did not exit within"),
        "{stopped:?}"
    );
    signal(pid, "CONT");
    wait_ended(pid);
}

#[test]
fn a_server_of_a_volume_without_a_name_is_stopped_by_the_name_that_it_says() {
    let folder = Folder::new();
    up(&folder);
    let started = serve(&folder, &["--size", "8M", "--scheme", "rs:2+1"]).expect(0);
    let name = started.stdout.split(' ').nth(1).expect("a name");
    let log = folder.path().join("servers").join(name).join("log");
    let log = format!(", log {}, pid ", log.display());
    assert!(started.stdout.contains(&log), "{started:?}");
    let mut client = Client::connect(&folder.path().join("nbd"), name);
    client.write(4096, &[7; 4096]).expect("written");
    drop(client);
    let stopped = folder.run(&["volume", "stop", name]).expect(0);
    assert!(
        stopped
            .stdout
            .ends_with("; the volume's content was deleted\n"),
        "{stopped:?}"
    );
    let left = folder.run(&["volume", "list", "--json"]).expect(0);
    assert_eq!(left.json(), serde_json::json!([]));
}

#[test]
fn a_server_that_ended_when_it_was_told_to_has_not_died() {
    let folder = Folder::new();
    up(&folder);
    let processes = || {
        let look = ["doctor", "--json", "--only", "processes"];
        let report = folder.run(&look).expect(0).json();
        report["findings"][0].clone()
    };
    serve(&folder, &NEW).expect(0);
    let ended = pid(&folder);
    assert_eq!(processes()["found"], "1 in the background");
    signal(ended, "TERM");
    wait_ended(ended);
    assert_eq!(processes()["found"], "0 in the background");
    assert_eq!(processes()["state"], "ok");
    // Nor has one that could not start: its command said so.
    let unknown = serve(&folder, &["--volume", "nobody"]).expect(1);
    assert!(unknown.stderr.contains("nobody"), "{unknown:?}");
    assert_eq!(processes()["state"], "ok");

    serve(&folder, &["--volume", "v0"]).expect(0);
    let killed = pid(&folder);
    signal(killed, "KILL");
    wait_ended(killed);
    assert_eq!(processes()["found"], "died: servers/v0");
}

#[test]
fn what_keeps_a_server_from_starting_is_said_by_the_command() {
    let folder = Folder::new();
    up(&folder);
    // In the words of the process behind it, and with its exit code.
    let unknown = serve(&folder, &["--volume", "nobody"]).expect(1);
    assert!(unknown.stderr.contains("nobody"), "{unknown:?}");
    assert!(unknown.stderr.contains("error: "), "{unknown:?}");
    assert_eq!(unknown.stdout, "");
    let nowhere = folder.run(&["nbd", "--volume", "v0", "--size", "8M", "--background"]);
    assert!(nowhere.expect(2).stderr.contains("no address to listen on"));
    // A server that was killed is no server.
    serve(&folder, &NEW).expect(0);
    let killed = pid(&folder);
    signal(killed, "KILL");
    wait_ended(killed);
    let none = folder.run(&["volume", "stop", "v0"]).expect(1);
    assert!(
        none.stderr.contains("has no server in the background"),
        "{none:?}"
    );
    serve(&folder, &["--volume", "v0"]).expect(0);
    folder.run(&["volume", "stop", "v0"]).expect(0);
}

#[test]
fn a_servers_metrics_have_histograms_of_latency_and_no_fault() {
    let folder = Folder::new();
    up(&folder);
    serve(&folder, &[&NEW[..], &["--metrics", "127.0.0.1:0"]].concat()).expect(0);
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    // One request of sixteen is timed.
    for page in 0..64 {
        client.write(page * 4096, &[7; 4096]).expect("written");
    }
    for page in 0..64 {
        client.read(page * 4096, 4096).expect("read");
    }
    let log = fs::read_to_string(folder.path().join("servers/v0/log")).expect("a log");
    let address = log
        .lines()
        .find_map(|line| line.strip_prefix("metrics at http://"));
    let address = address
        .and_then(|url| url.strip_suffix("/metrics"))
        .expect("it says so");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (_, page) = text.split_once("\r\n\r\n").expect("a page");
    assert_eq!(faults(page), Vec::<String>::new(), "{page}");
    let value = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {page}"))
            .trim()
            .parse()
            .expect("a number")
    };
    for kind in ["read", "write"] {
        let name = format!("cenote_volume_{kind}_latency_seconds");
        let count = value(&format!("{name}_count "));
        assert!(count >= 1.0, "{page}");
        assert_eq!(value(&format!("{name}_bucket{{le=\"+Inf\"}} ")), count);
        assert!(value(&format!("{name}_sum ")) > 0.0, "{page}");
    }
    assert!(page.contains("cenote_build_info{version="), "{page}");
    drop(client);
    folder.run(&["volume", "stop", "v0"]).expect(0);
}

#[test]
fn a_store_is_served_in_the_background() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (store, key, socket) = (at("store"), at("key"), format!("shm:{}", at("socket")));
    run(&["key", "new", "--out", &key]).expect(0);
    run(&["store", "create", &store, "--size", "4M"]).expect(0);
    let serve = format!("store serve {store} --listen {socket} --key {key} --background");
    let serve = words(&serve);
    let started = run(&serve).expect(0);
    assert!(started.stdout.starts_with("ready "), "{started:?}");
    let file = at("file");
    fs::write(&file, "hello").expect("a file");
    run(&["store", "put", &socket, "greeting", &file, "--key", &key]).expect(0);
    let pid = fs::read_to_string(at("store/pid")).expect("a pid file");
    let pid = pid.trim().parse().expect("a number");
    signal(pid, "TERM");
    wait_ended(pid);
    assert_eq!(
        run(&["store", "get", &store, "greeting"]).expect(0).stdout,
        "hello"
    );
}

#[test]
fn servers_without_a_name_that_start_at_once_are_all_known() {
    let folder = Folder::new();
    up(&folder);
    let start = |index: u32| {
        cenote()
            .args(words("nbd --size 1M --scheme plain --background"))
            .args(["--dir", folder.str(), "--socket"])
            .arg(folder.path().join(format!("nbd{index}")))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs")
    };
    let starts: Vec<_> = (0..8).map(start).collect();
    let started: Vec<_> = starts
        .into_iter()
        .map(|start| Ended::from(start.wait_with_output().expect("a child of ours")))
        .collect();
    for started in started {
        let started = started.expect(0);
        let name = started.stdout.split(' ').nth(1).expect("a name");
        folder.run(&["volume", "stop", name]).expect(0);
    }
}

#[test]
fn of_two_servers_of_a_store_that_start_at_once_the_one_that_serves_is_known() {
    let folder = Folder::with_key();
    let store = folder.path().join("store");
    let store = store.to_str().expect("UTF-8");
    run(&["store", "create", store, "--size", "8M"]).expect(0);
    let start = |_| {
        let serve = ["store", "serve", store, "--listen", "tcp:127.0.0.1:0"];
        let key = folder.path().join("cluster.key");
        let mut command = cenote();
        command.args(serve).args(["--background", "--key"]).arg(key);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let starts = [0, 1].map(start);
    let mut ended =
        starts.map(|start| Ended::from(start.wait_with_output().expect("a child of ours")));
    ended.sort_by_key(|ended| ended.code);
    assert_eq!((ended[0].code, ended[1].code), (0, 1), "{ended:#?}");
    let serves = "already serves it in the background";
    assert!(ended[1].stderr.contains(serves), "{ended:#?}");
    let pid = fs::read_to_string(format!("{store}/pid")).expect("a pid file");
    let end = format!("pid {pid}");
    assert!(ended[0].stdout.ends_with(&end), "{ended:#?} and {pid}");
    let pid = pid.trim().parse().expect("a number");
    let check = run(&["store", "check", store]).expect(1);
    let stop = format!("try: kill {pid} stops its server; put, get, list and delete");
    assert!(check.stderr.contains(&stop), "{check:#?}");
    signal(pid, "TERM");
    wait_ended(pid);
    // The number may be another process's by the time that somebody reads it.
    assert!(!Path::new(store).join("pid").exists());
    run(&["store", "check", store]).expect(0);
}

#[test]
fn a_host_that_is_upgraded_is_no_lost_host_in_the_log() {
    let folder = Folder::new();
    up(&folder);
    // All four have a part of its page.
    let new = ["--volume", "v0", "--size", "4M", "--scheme", "rs:2+2"];
    serve(&folder, &new).expect(0);
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    client.write(4096, &[7; 4096]).expect("written");
    for host in ["h00", "h01", "h02", "h03"] {
        folder.run(&["host", "upgrade", host]).expect(0);
        // Its connection has ended by then, or this waits for it.
        assert_eq!(client.read(4096, 4096).expect("read"), [7; 4096]);
    }
    drop(client);
    folder.run(&["volume", "stop", "v0"]).expect(0);
    let log = fs::read_to_string(folder.path().join("servers/v0/log")).expect("a log");
    assert!(!log.contains("lost"), "{log}");
}

#[test]
fn a_resize_that_a_stopped_server_does_not_answer_is_not_said_to_have_failed() {
    let folder = Folder::new();
    up(&folder);
    serve(&folder, &NEW).expect(0);
    let pid = pid(&folder);
    signal(pid, "STOP");
    let resize = ["volume", "resize", "v0", "--size", "16M"];
    let asked = folder.run(&resize).expect(1);
    let told = "v0: its server does not answer, and may still carry the request out";
    assert!(asked.stderr.contains(told), "{asked:#?}");
    assert!(
        asked
            .stderr
            .contains("try: cenote volume list shows the size"),
        "{asked:#?}"
    );
    signal(pid, "CONT");
    // That is where it shows. Whoever asks next is answered after it.
    folder.run(&["volume", "status", "v0"]).expect(0);
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list[0]["size_bytes"], 16 << 20, "{list}");
    folder.run(&["volume", "stop", "v0"]).expect(0);
}

#[test]
fn down_force_ends_servers_in_the_background_and_names_those_that_go_on() {
    let folder = Folder::new();
    up(&folder);
    let socket = folder.path().join("other");
    let at = ["--socket", socket.to_str().expect("UTF-8"), "--background"];
    folder
        .run(&[&["nbd"], &NEW[..], &at[..]].concat())
        .expect(0);
    let first = pid(&folder);
    folder.create_volume("v1", "8M", "rs:2+1");
    let mut front = Server::start(&folder, &["--volume", "v1"]);
    front.ready();
    let refused = folder.run(&["down"]).expect(1);
    assert!(
        refused.stderr.contains("volumes in use: v0, v1"),
        "{refused:#?}"
    );
    let down = folder.run(&["down", "--force"]).expect(0);
    assert!(
        down.stdout.contains("servers of volumes ended: v0\n"),
        "{down:#?}"
    );
    let left = "left running, without hosts: servers of volumes v1\n";
    assert!(down.stderr.contains(left), "{down:#?}");
    assert!(!runs(first));
    front.end();
}

#[test]
fn down_force_names_the_process_of_a_server_that_does_not_end() {
    let folder = Folder::new();
    up(&folder);
    serve(&folder, &NEW).expect(0);
    let pid = pid(&folder);
    signal(pid, "STOP");
    let down = folder
        .run(&["down", "--force", "--timeout", "1s"])
        .expect(0);
    let left = format!("servers of volumes v0 (process {pid})\n");
    assert!(down.stderr.contains(&left), "{down:#?}");
    // It was asked to end.
    signal(pid, "CONT");
    wait_ended(pid);
}
