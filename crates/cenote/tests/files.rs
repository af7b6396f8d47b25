//! `cenote mount` on a real cluster: real programs, kills of its process and of hosts, remounts.

mod support;

use std::fs::{self, File};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::server::Server;
use support::{Ended, Folder, cenote, signal, wait_ended};

/// A cluster and a folder to mount in.
struct Place {
    folder: Folder,
    // Not below the cluster's folder, which is only this user's.
    point: tempfile::TempDir,
}

const PATIENCE: Duration = Duration::from_secs(120);

impl Place {
    /// Ten hosts; `None` where nothing can be mounted.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root mounts");
            return None;
        }
        if File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_err()
        {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let folder = Folder::new();
        folder
            .run(&["up", "--hosts", "8", "--memory", "48M"])
            .expect(0);
        Some(Self {
            folder,
            point: tempfile::tempdir().expect("a folder"),
        })
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = cenote();
        command.arg("mount").arg(self.point.path()).args(arguments);
        command.args(["--dir", self.folder.str()]);
        command
    }

    /// Mounts in the foreground.
    fn mount(&self, arguments: &[&str]) -> Server {
        let mut server = Server::spawn(self.command(arguments));
        let line = server.ready();
        assert!(line.starts_with("ready "), "{line}");
        server
    }

    /// Runs to the end.
    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::from(self.command(arguments).output().expect("the binary runs"))
    }

    fn unmount(&self) {
        let status = Command::new("umount").arg(self.point.path()).status();
        assert!(status.expect("umount runs").success());
    }

    fn shell(&self, line: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.point.path());
        let output = command.output().expect("a shell");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whatever a test that failed left there.
        let mut unmount = Command::new("umount");
        unmount
            .arg("-l")
            .arg(self.point.path())
            .stderr(Stdio::null());
        drop(unmount.status());
    }
}

const NEW: [&str; 6] = ["--volume", "v", "--size", "64M", "--scheme", "rs:4+2"];
const OLD: [&str; 2] = ["--volume", "v"];

#[test]
fn files_stay_from_mount_to_mount_and_a_signal_unmounts() {
    let Some(place) = Place::new() else { return };
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
}

#[test]
fn a_signal_ends_it_while_a_program_has_files_open() {
    let Some(place) = Place::new() else { return };
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
fn what_cannot_be_mounted_says_so() {
    let Some(place) = Place::new() else { return };
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
    assert!(taken.contains("is a mount point already"), "{taken}");
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
        there.stderr.contains("volume v is there already"),
        "{there:?}"
    );
    let small = [
        "--volume",
        "w",
        "--size",
        "1M",
        "--scheme",
        "plain",
        "--background",
    ];
    let small = place.run(&small).expect(2);
    assert!(
        small.stderr.contains("too few for a file system"),
        "{small:?}"
    );
}

#[test]
fn a_volume_that_holds_something_else_is_left_alone() {
    let Some(place) = Place::new() else { return };
    let volume = [
        "volume", "create", "v", "--size", "64M", "--scheme", "mirror:2",
    ];
    place.folder.run(&volume).expect(0);
    let mut nbd = Server::start(&place.folder, &["--volume", "v"]);
    assert!(nbd.ready().starts_with("ready "));
    let uri = format!("nbd+unix:///v?socket={}/nbd", place.folder.str());
    let image = place.folder.path().join("image");
    fs::write(&image, vec![7; 64 << 20]).expect("an image");
    let copied = Command::new("nbdcopy").arg(&image).arg(uri).status();
    if !copied.is_ok_and(|status| status.success()) {
        println!("skipped: nbdcopy is not installed");
        return;
    }
    assert_eq!(nbd.end(), Some(0));
    let refused = place.run(&OLD).expect(1);
    assert!(refused.stderr.contains("not a file system"), "{refused:?}");
}

/// Writes numbered files with fsync until it is told to stop or an error comes; each line of its
/// output names one that is synced.
const WRITER: &str = "
import os, sys, hashlib
at, first = sys.argv[1], int(sys.argv[2])
for number in range(first, first + 100000):
    body = hashlib.sha256(str(number).encode()).digest() * (1 + number % 700)
    draft = f'{at}/draft{number}'
    with open(draft, 'wb') as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, f'{at}/d{number % 10}/{number}')
    fd = os.open(f'{at}/d{number % 10}', os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    if number % 3 == 2 and number > first + 20:
        gone = number - 20
        print('-', gone, flush=True)
        os.unlink(f'{at}/d{gone % 10}/{gone}')
    print('+', number, flush=True)
";

/// Checks that all that was synced is there, and whole.
const CHECKER: &str = "
import os, sys, hashlib
at = sys.argv[1]
there = set()
for line in open(sys.argv[2]):
    parts = line.split()
    if len(parts) != 2 or not line.endswith('\\n'):
        continue
    number = int(parts[1])
    there.add(number) if parts[0] == '+' else there.discard(number)
found = set()
for name in range(10):
    for entry in os.listdir(f'{at}/d{name}'):
        number = int(entry)
        body = open(f'{at}/d{name}/{entry}', 'rb').read()
        want = hashlib.sha256(str(number).encode()).digest() * (1 + number % 700)
        assert body == want, f'{entry} has {len(body)} bytes and not {len(want)}, or others'
        found.add(number)
lost = there - found
assert not lost, f'lost: {sorted(lost)[:5]}'
print(len(found))
";

fn script(folder: &Folder, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("a script");
    path
}

/// A writer with fsync, killed mounts, killed hosts: nothing that was synced is missing.
fn kills(rounds: u64, host_too: bool) {
    let Some(place) = Place::new() else { return };
    if Command::new("python3").arg("-V").output().is_err() {
        println!("skipped: python3 is not installed");
        return;
    }
    let writer = script(&place.folder, "writer.py", WRITER);
    let checker = script(&place.folder, "checker.py", CHECKER);
    let log = place.folder.path().join("log");
    File::create(&log).expect("a log");
    let mut server = place.mount(&NEW);
    place.shell("for i in 0 1 2 3 4 5 6 7 8 9; do mkdir d$i; done; sync -f .");
    for round in 0..rounds {
        let lines = || fs::read_to_string(&log).expect("a log").lines().count() as u64;
        let before = lines();
        let mut program = Command::new("python3");
        program
            .arg(&writer)
            .arg(place.point.path())
            .arg((round * 100_000).to_string());
        let out = File::options().append(true).open(&log).expect("a log");
        let mut child = program
            .stdout(out)
            .stderr(Stdio::null())
            .spawn()
            .expect("python3");
        // Never at the same moment, and not before something was synced.
        let wanted = before + 20 + 17 * (round % 4);
        let deadline = Instant::now() + PATIENCE;
        while lines() < wanted {
            assert!(Instant::now() < deadline, "round {round}: the writer hangs");
            std::thread::sleep(Duration::from_millis(3));
        }
        if host_too && round < 2 {
            signal(place.folder.pid(&format!("h{round:02}")), "KILL");
        }
        signal(server.child.id(), "KILL");
        server.child.wait().expect("a child of ours");
        child.wait().expect("the writer ends with its files");
        server = place.mount(&OLD);
        let checked = Command::new("python3")
            .arg(&checker)
            .arg(place.point.path())
            .arg(&log)
            .output()
            .expect("python3");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "round {round}: {said}");
        place.shell("rm -f draft*");
    }
    place.shell("rm -r d*; test -z \"$(ls -A)\"");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn nothing_synced_is_lost_when_the_process_is_killed() {
    kills(3, false);
}

#[test]
fn hosts_go_under_load_and_the_process_besides() {
    kills(2, true);
}

#[test]
fn more_hosts_lost_than_the_scheme_bears_is_an_error() {
    let Some(place) = Place::new() else { return };
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

mod long {
    use super::*;

    #[test]
    fn nothing_synced_is_lost_when_the_process_is_killed_again_and_again() {
        kills(25, true);
    }

    #[test]
    fn a_cluster_serves_builds_and_databases_while_hosts_go() {
        let Some(place) = Place::new() else { return };
        let mut server = place.mount(&NEW);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).display();
        place.shell(&format!("cp -a {from}/src tree; tar cf t.tar tree"));
        signal(place.folder.pid("h00"), "KILL");
        place.shell("mkdir out; tar xf t.tar -C out; diff -r tree out/tree");
        signal(place.folder.pid("h01"), "KILL");
        place.shell(&format!("diff -r {from}/src out/tree; rm -rf out"));
        assert_eq!(server.end(), Some(0));
        let mut server = place.mount(&OLD);
        place.shell(&format!("diff -r {from}/src tree"));
        assert_eq!(server.end(), Some(0));
    }
}
