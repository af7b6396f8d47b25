//! Standard output that nobody reads any more: commands end without a word, in good order.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::well::Well;
use support::{Ended, Folder, cenote, runs};

/// How a command ended whose reader has gone before it prints, and what it said besides.
fn unread(folder: &Path, arguments: &str) -> Ended {
    unread_of(&format!("{arguments} --dir {}", folder.display()))
}

fn unread_of(arguments: &str) -> Ended {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let program = cenote();
    let mut command = Command::new(program.get_program());
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.args(arguments.split(' '));
    let output = command.stdout(writer).output().expect("the binary runs");
    use std::os::unix::process::ExitStatusExt as _;
    let code = output.status.code();
    Ended {
        // A shell says it so.
        code: code.unwrap_or_else(|| 128 + output.status.signal().expect("a signal")),
        stdout: String::new(),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

/// As of a process that SIGPIPE has ended.
const UNREAD: i32 = 128 + 13;

#[test]
fn servers_that_cannot_say_that_they_are_ready_end_and_leave_nothing_behind() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
    let serve = "nbd --size 4M --scheme plain --listen 127.0.0.1:0";
    let ended = unread(folder.path(), serve).expect(UNREAD);
    assert!(!ended.stderr.contains("error"), "{ended:#?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    let volumes = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(volumes, serde_json::json!([]), "its volume is forgotten");
    // What it had of the hosts is theirs again, since it ended in good order.
    assert_eq!(folder.lent_bytes(), 0);
}

#[test]
fn commands_that_open_a_volume_close_it_without_a_word() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
    folder.create_volume("v0", "4M", "plain");
    let ended = unread(folder.path(), "volume scrub v0").expect(UNREAD);
    assert_eq!(ended.stderr, "");
    // Nobody owns it, and nothing of it is in doubt.
    folder.run(&["volume", "scrub", "v0"]).expect(0);
}

#[test]
fn a_report_that_nobody_reads_is_no_failure_to_tell_of() {
    let ended = unread_of("bench codec --rounds 1").expect(UNREAD);
    assert!(!ended.stderr.contains("error"), "{ended:#?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
}

#[test]
fn what_prints_and_goes_on_elsewhere_is_not_held_up_by_its_reader() {
    let folder = Folder::new();
    let ended = unread(folder.path(), "up --hosts 3 --memory 16M").expect(UNREAD);
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    folder.run(&["status"]).expect(0);
    assert!(runs(folder.pid("h00")));
}

#[test]
fn a_store_whose_start_nobody_reads_is_up() {
    let well = Well::empty();
    let up = "kv up --nodes 3 --groups 3 --code 1+1 --memory 256M";
    let ended = unread(&well.path("."), up);
    if ended.stderr.contains("etcd-server") {
        println!("skipped: {}", ended.stderr);
        return;
    }
    let ended = ended.expect(UNREAD);
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    well.shown().expect(0);
}

#[test]
fn a_benchmark_that_is_told_to_stop_leaves_no_hosts_and_no_files() {
    let benchmarks: [(&[&str], &str); 2] = [
        (
            &["bench", "log", "--size", "12M", "--duration", "600s"],
            "TERM",
        ),
        (
            &["bench", "fabric", "--transport", "shm", "--rounds", "1000"],
            "INT",
        ),
    ];
    for (arguments, name) in benchmarks {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = cenote();
        command.args(arguments).env("TMPDIR", folder.path());
        if arguments.contains(&"log") {
            command.arg("--dir").arg(folder.path());
            command.arg("--peers").arg(folder.path().join("none"));
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = command.spawn().expect("the binary runs");
        let deadline = Instant::now() + Duration::from_secs(120);
        let hosts = loop {
            let hosts = pids_below(folder.path());
            if !hosts.is_empty() {
                break hosts;
            }
            assert!(Instant::now() < deadline, "no host was started");
            std::thread::sleep(Duration::from_millis(10));
        };
        support::signal(process.id(), name);
        let ended = process.wait_with_output().expect("it ends");
        let ended = Ended::from(ended).expect(1);
        assert!(ended.stderr.contains("interrupted"), "{ended:#?}");
        assert!(hosts.iter().all(|pid| !runs(*pid)), "{hosts:?}");
        let left: Vec<_> = std::fs::read_dir(folder.path())
            .expect("it is there")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What the files named `pid` in a folder and below it say.
fn pids_below(folder: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pids.extend(pids_below(&path));
        } else if path.ends_with("pid") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            pids.extend(text.trim().parse::<u32>());
        }
    }
    pids
}
