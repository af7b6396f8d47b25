//! Standard output that nobody reads any more: commands end without a word, in good order.

mod support;

use std::path::Path;
use std::process::Command;

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
    let status = folder.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["lent_bytes"], 0, "{status}");
}

#[test]
fn commands_that_open_a_volume_close_it_without_a_word() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "4M", "--scheme", "plain",
        ])
        .expect(0);
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
    well.run(&["status"]).expect(0);
}
