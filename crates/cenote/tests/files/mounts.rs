//! Mounts, remounts, refusals, and the end of more hosts than the scheme bears.

use std::fs::{self, File};
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::mount_rig::{MountRig, NEW, OLD, PATIENCE, Switch};
use crate::support::server::Server;
use crate::support::{Ended, cenote, signal, wait_ended, words};

#[test]
fn files_stay_from_mount_to_mount_and_a_signal_unmounts() {
    let Some(place) = MountRig::new() else { return };
    let mut server = place.mount(&NEW);
    place.shell("mkdir d; echo one > d/a; ln d/a b; ln -s d/a c");
    place.unmount();
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    let mut server = place.mount(&OLD);
    assert_eq!(place.shell("cat b c; stat -c %h b"), "one\none\n2\n");
    place.shell("echo two > d/a");
    assert_eq!(server.end(), Some(0));
    assert_eq!(
        fs::read_dir(place.point.path()).expect("a folder").count(),
        0
    );
    // In the background it returns when the files are there.
    let started = place.run(&[&OLD[..], &["--background"]].concat()).expect(0);
    assert!(
        started.stdout.starts_with("ready v 64M rs:4+2 at "),
        "{started:?}"
    );
    assert_eq!(place.shell("cat b"), "two\n");
    let pid = started
        .stdout
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|pid| pid.parse().ok());
    place.unmount();
    wait_ended(pid.expect("its number"));
    // It ended as it should: doctor has no reason to look why.
    let note = place.folder.path().join("servers/v/pid");
    assert!(!note.exists());
}

#[test]
fn other_users_see_files_if_allow_other_and_the_permissions_let_them() {
    const NOBODY: u32 = 65_534;
    let Some(place) = MountRig::new() else { return };
    let read = |name: &str| {
        let mut cat = Command::new("cat");
        cat.arg(place.at(name)).current_dir("/").env("LC_ALL", "C");
        Ended::from(cat.uid(NOBODY).gid(NOBODY).output().expect("it runs"))
    };
    let is_refused = |name: &str| {
        let refused = read(name).expect(1);
        assert!(refused.stderr.contains("Permission denied"), "{refused:?}");
    };
    let mut server = place.mount(&NEW);
    place.shell("umask 022; chmod 755 .; echo one > all; echo two > own; chmod 600 own");
    is_refused("all");
    assert_eq!(server.end(), Some(0));
    let allowed = [&OLD[..], &["--allow-other"]].concat();
    let mut server = place.mount(&allowed);
    assert_eq!(read("all").expect(0).stdout, "one\n");
    is_refused("own");
    assert_eq!(server.end(), Some(0));
    place
        .run(&[&allowed[..], &["--background"]].concat())
        .expect(0);
    assert_eq!(read("all").expect(0).stdout, "one\n");
    is_refused("own");
    place.unmount();
}

#[test]
fn requests_come_over_io_uring_where_the_kernel_allows_it() {
    let Some(place) = MountRig::new() else { return };
    let (mut server, line) = place.mount_over(&NEW, "off");
    assert!(line.trim_end().ends_with(" over /dev/fuse"), "{line}");
    place.shell("echo one > a; sync a");
    assert_eq!(server.end(), Some(0));
    let _switch = match Switch::on() {
        Ok(switch) => switch,
        Err(lacks) => {
            println!("skipped: FUSE over io_uring: needs {lacks}");
            return;
        }
    };
    let (mut server, line) = place.mount_over(&OLD, "on");
    assert!(line.trim_end().ends_with(" over io_uring"), "{line}");
    assert_eq!(place.shell("cat a; echo two > a; sync a"), "one\n");
    signal(server.child.id(), "KILL");
    server.child.wait().expect("it ends");
    // The dead mount is taken away first.
    let (mut server, line) = place.mount_over(&OLD, "off");
    assert!(line.trim_end().ends_with(" over /dev/fuse"), "{line}");
    assert_eq!(place.shell("cat a"), "two\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_mount_whose_server_was_killed_is_found_though_the_kernel_remembers_it() {
    let Some(place) = MountRig::new() else { return };
    let point = place.point.path();
    let doctor = |more: &[&str]| {
        let mut command = cenote();
        command.args(["doctor", "--json", "--only", "mounts"]);
        let ended = command.args(more).output().expect("the binary runs");
        Ended::from(ended).expect(0).json()
    };
    let mut server = place.mount(&NEW);
    for _ in 0..2 {
        fs::metadata(point).expect("it is there");
    }
    signal(server.child.id(), "KILL");
    server.child.wait().expect("it ends");
    let report = doctor(&[]);
    let found = report["findings"][0]["found"].as_str().expect("text");
    assert!(found.contains(point.to_str().expect("UTF-8")), "{report:#}");
    let mut server = place.mount(&OLD);
    signal(server.child.id(), "KILL");
    server.child.wait().expect("it ends");
    let report = doctor(&["--fix"]);
    let did = report["mended"][0]["did"].as_str().expect("done");
    assert!(did.contains(point.to_str().expect("UTF-8")), "{report:#}");
    assert_eq!(report["findings"][0]["state"], "ok", "{report:#}");
    let mut server = place.mount(&OLD);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_mount_whose_server_is_stopped_is_told_and_not_waited_for() {
    let Some(place) = MountRig::new() else { return };
    let mut server = place.mount(&NEW);
    place.shell("echo one > a; sync a");
    signal(server.child.id(), "STOP");
    let refused = place.run(&OLD);
    signal(server.child.id(), "CONT");
    let refused = refused.expect(1);
    assert!(
        refused
            .stderr
            .contains("does not answer; it may be stopped"),
        "{refused:?}"
    );
    assert_eq!(place.shell("cat a"), "one\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_signal_ends_it_while_a_program_has_files_open() {
    let Some(place) = MountRig::new() else { return };
    let mut server = place.mount(&NEW);
    let mut user = Command::new("sh")
        .args([
            "-c",
            "exec 3>open; echo kept >&3; echo there; exec sleep 600",
        ])
        .current_dir(place.point.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut said = String::new();
    let out = user.stdout.take().expect("a pipe");
    std::io::BufReader::new(out)
        .read_line(&mut said)
        .expect("a line");
    assert_eq!(server.end(), Some(0));
    user.kill().expect("a child of ours");
    user.wait().expect("a child of ours");
    let mut server = place.mount(&OLD);
    assert_eq!(place.shell("cat open"), "kept\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn of_mounts_of_one_directory_that_begin_at_once_one_is_there() {
    let Some(place) = MountRig::new() else { return };
    for round in 0..5 {
        let starting = ["a", "b"].map(|name| {
            let name = format!("{name}{round}");
            let new = ["--volume", &name, "--size", "64M", "--scheme", "rs:4+2"];
            let mut command = place.command(&[&new[..], &["--background"]].concat());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("the binary runs")
        });
        let ended = starting.map(|child| child.wait_with_output().expect("it ends"));
        let refused = ended.iter().filter(|output| !output.status.success());
        let refused: Vec<_> = refused
            .map(|output| String::from_utf8_lossy(&output.stderr))
            .collect();
        assert_eq!(refused.len(), 1, "{ended:?}");
        let says_why = ["is already a mount point", "another process is mounting at"]
            .iter()
            .any(|why| refused[0].contains(why));
        assert!(says_why, "{refused:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let point = format!(" {} ", place.point.path().display());
        assert_eq!(mounts.matches(&point).count(), 1, "{mounts}");
        place.shell("echo one > file; cat file");
        place.unmount();
    }
}

#[test]
fn what_cannot_be_mounted_says_so() {
    let Some(place) = MountRig::new() else { return };
    let mut server = place.mount(&NEW);
    let other = tempfile::tempdir().expect("a folder");
    let at = |point: &Path| {
        let mut command = cenote();
        command
            .arg("mount")
            .arg(point)
            .args(OLD)
            .args(["--dir", place.folder.str()]);
        Ended::from(command.output().expect("the binary runs"))
            .expect(1)
            .stderr
    };
    let second = at(other.path());
    assert!(
        second.contains("volume v is in use by another process"),
        "{second}"
    );
    let taken = at(place.point.path());
    assert!(taken.contains("is already a mount point"), "{taken}");
    fs::write(other.path().join("file"), "x").expect("a file");
    let full = at(other.path());
    assert!(full.contains("is not empty"), "{full}");
    let file = at(&other.path().join("file"));
    assert!(file.contains("is not a directory"), "{file}");
    let none = at(&other.path().join("none"));
    assert!(none.contains("mkdir -p"), "{none}");
    assert_eq!(server.end(), Some(0));
    // The same in the background, in the words of the process behind it.
    let background = [&NEW[..], &["--background"]].concat();
    let there = place.run(&background).expect(1);
    assert!(
        there.stderr.contains("volume v already exists"),
        "{there:?}"
    );
    let small = words("--volume w --size 1M --scheme plain --background");
    let small = place.run(&small).expect(2);
    assert!(
        small.stderr.contains("too small for a file system"),
        "{small:?}"
    );
}

#[test]
fn a_volume_that_holds_something_else_is_left_alone() {
    if Command::new("nbdcopy").arg("--version").output().is_err() {
        return println!("skipped: nbdcopy is not installed");
    }
    let Some(place) = MountRig::new() else { return };
    let volume = words("volume create v --size 64M --scheme mirror:2");
    place.folder.run(&volume).expect(0);
    let mut nbd = Server::start(&place.folder, &["--volume", "v"]);
    assert!(nbd.ready().starts_with("ready "));
    let uri = format!("nbd+unix:///v?socket={}/nbd", place.folder.str());
    let image = place.folder.path().join("image");
    fs::write(&image, vec![7; 64 << 20]).expect("an image");
    let copied = Command::new("nbdcopy").arg(&image).arg(uri).status();
    assert!(copied.expect("it is installed").success());
    assert_eq!(nbd.end(), Some(0));
    let refused = place.run(&OLD).expect(1);
    assert!(refused.stderr.contains("not a file system"), "{refused:?}");
}

#[test]
fn more_hosts_lost_than_the_scheme_bears_is_an_error() {
    let Some(place) = MountRig::new() else { return };
    let mut server = place.mount(&["--volume", "v", "--size", "64M", "--scheme", "plain"]);
    let mut file = File::create(place.at("file")).expect("a file");
    file.write_all(&vec![5; 8 << 20]).expect("a write");
    file.sync_all().expect("synced");
    drop(file);
    for host in 0..8 {
        signal(place.folder.pid(&format!("h{host:02}")), "KILL");
    }
    // Until it is noticed that they are gone, a write is one that came just before.
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        let write = fs::write(place.at("more"), [1; 5000])
            .and_then(|()| File::open(place.at("more"))?.sync_all());
        match write {
            Ok(()) => assert!(Instant::now() < deadline, "nobody misses the hosts"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    signal(server.child.id(), "KILL");
    server.child.wait().expect("a child of ours");
}
