//! The process that serves the files killed under a writer that syncs, and hosts besides.

use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::mount_rig::{MountRig, NEW, OLD, PATIENCE};
use crate::support::{Folder, has, signal};

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

/// A writer with fsync, killed mounts, killed hosts: nothing that was synced is missing. What a round
/// does is its number's affair.
fn kills(rounds: Range<u64>, host_too: bool) {
    let Some(place) = MountRig::new() else { return };
    if !has(&["python3"]) {
        return;
    }
    let writer = script(&place.folder, "writer.py", WRITER);
    let checker = script(&place.folder, "checker.py", CHECKER);
    let log = place.folder.path().join("log");
    File::create(&log).expect("a log");
    let mut server = place.mount(&NEW);
    place.shell("for i in 0 1 2 3 4 5 6 7 8 9; do mkdir d$i; done; sync -f .");
    let first = rounds.start;
    for round in rounds {
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
        // Not before something was synced, and at any moment of a write or a commit then.
        let drawn = mix(round);
        let wanted = before + 20 + drawn % 70;
        let deadline = Instant::now() + PATIENCE;
        while lines() < wanted {
            assert!(Instant::now() < deadline, "round {round}: the writer hangs");
            std::thread::sleep(Duration::from_millis(3));
        }
        std::thread::sleep(Duration::from_micros(drawn / 70 % 40_000));
        if host_too && round < first + 2 {
            signal(place.folder.pid(&format!("h{:02}", round - first)), "KILL");
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
    kills(0..3, false);
}

#[test]
fn hosts_go_under_load_and_the_process_besides() {
    kills(0..2, true);
}

/// Spreads the bits of a number (the finalizer of splitmix64).
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

mod long {
    use super::*;

    /// Two hundred rounds, in stretches with a cluster each; `CENOTE_FILES_ROUNDS=60..90` runs some.
    #[test]
    fn nothing_synced_is_lost_when_the_process_is_killed_again_and_again() {
        let asked = std::env::var("CENOTE_FILES_ROUNDS").unwrap_or_else(|_| "0..200".to_owned());
        let (from, to) = asked.split_once("..").expect("FROM..TO");
        let round = |text: &str| text.parse::<u64>().expect("a round");
        let (mut from, to) = (round(from), round(to));
        while from < to {
            let end = to.min(from + 25);
            kills(from..end, true);
            println!("rounds {from}..{end}: nothing lost");
            from = end;
        }
    }
}
