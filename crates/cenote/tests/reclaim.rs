//! A machine that has memory again: what its own client has on hosts is reclaimed.
//!
//! Real swap, a real limit and a real program; the machine's memory is what a file says.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_block::swap::cgroup::MemoryCgroup;
use serde_json::Value;
use support::lab::{Lab, has_tools, wait_until};
use support::well::until;
use support::{Ended, Folder, cenote, words};

const MIB: u64 = 1 << 20;
/// Hosts that say what their machines have to spare; the slack is 2 MiB.
const TOLD: [&str; 6] = ["--headroom", "16M", "--slab", "1M", "--reclaim", "on"];
/// Free beside `lent` slabs, so that a host keeps its headroom and has next to nothing to spare.
fn just_enough(lent: u64) -> u64 {
    (lent + 18) << 10
}

/// Leaves as much memory to a host's machine, in KiB; `None`: all that it has.
fn leave(folder: &Folder, host: &str, available_kib: Option<u64>) {
    let file = folder.host(host).join("meminfo");
    let text = fs::read_to_string(&file).expect("the host's machine");
    let total = text.split_whitespace().nth(1).expect("a number").to_owned();
    let available = available_kib.map_or(total.clone(), |kib| kib.to_string());
    let next = file.with_extension("next");
    let text = format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n");
    fs::write(&next, text).expect("a file");
    fs::rename(&next, &file).expect("a file");
}

fn pressure(folder: &Folder, index: usize) -> Value {
    folder.status_of(&format!("h{index:02}"))["pressure"].take()
}

fn swap_status(folder: &Folder) -> Value {
    let ask = || folder.run(&["swap", "status", "--json"]);
    until("a status is told", ask, |_| true)
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Waits until most of what a program has too much is out: it is pressed out bit by bit.
fn wait_until_swapped(folder: &Folder) {
    wait_until(
        "more than 24 MiB are out",
        || number(&swap_status(folder)["used_bytes"]) > 24 * MIB,
        || swap_status(folder).to_string(),
    );
}

/// Fills its memory when it is told to, and checks each byte when it is told again.
const PROGRAM: &str = "
import sys
sys.stdin.readline()
pages = bytearray(int(sys.argv[1]))
for at in range(0, len(pages), 4096):
    pages[at:at + 8] = (at * 2654435761 % 2**64).to_bytes(8, 'little')
print('filled', flush=True)
for line in sys.stdin:
    wrong = sum(pages[at:at + 8] != (at * 2654435761 % 2**64).to_bytes(8, 'little')
                for at in range(0, len(pages), 4096))
    print('wrong', wrong, flush=True)
";

/// A program in a control group of its own.
struct Program {
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
    group: MemoryCgroup,
}

impl Program {
    fn filled(limit_bytes: u64, memory_bytes: u64) -> Self {
        let name = format!("cenote-test-reclaim-{}", std::process::id());
        let group = MemoryCgroup::create(&name, limit_bytes).expect("a control group");
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM, &memory_bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        group.add(child.id()).expect("it is there");
        let tell = child.stdin.take().expect("piped");
        let hear = BufReader::new(child.stdout.take().expect("piped"));
        let mut program = Self {
            child,
            tell,
            hear,
            group,
        };
        assert_eq!(program.ask(), "filled");
        program
    }

    /// Says a line and takes one.
    fn ask(&mut self) -> String {
        writeln!(self.tell, "go").expect("it listens");
        let mut line = String::new();
        self.hear.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One test at a time: swap is the machine's.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns swap off when a test ends, however it does: nothing else may end its server.
struct Swap<'a>(&'a Folder);

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let off = self.0.run(&["swap", "off"]);
        assert!(std::thread::panicking() || off.code == 0, "{off:?}");
    }
}

fn can_swap() -> bool {
    let lacks = |what: &str| {
        println!("skipped: {what} is missing");
        false
    };
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if MemoryCgroup::create("cenote-test-reclaim-probe", MIB).is_err() {
        return lacks("root, or memory cgroups");
    }
    if !std::path::Path::new("/dev/fuse").exists() && !std::path::Path::new("/dev/nbd0").exists() {
        return lacks("FUSE and nbd");
    }
    runs("python3") || lacks("python3")
}

#[test]
fn swap_that_is_on_is_not_turned_on_again_and_it_is_said_what_to_do() {
    if !can_swap() {
        return;
    }
    let _turn = turn();
    let folder = Folder::new();
    let up = ["up", "--hosts", "3", "--memory", "32M"];
    folder.run(&up).expect(0);
    let on = ["swap", "on", "--size", "16M", "--scheme", "plain"];
    folder.run(&on).expect(0);
    let swap = Swap(&folder);
    let before = swap_status(&folder);
    let again = folder.run(&on).expect(1);
    let pid = before["pid"].as_u64().expect("a number").to_string();
    assert!(again.stderr.contains(&pid), "{again:#?}");
    let try_this = "try: run cenote swap off first, or see cenote swap status";
    assert!(again.stderr.contains(try_this), "{again:#?}");
    assert!(!again.stderr.contains("doctor"), "{again:#?}");
    assert_eq!(swap_status(&folder)["device"], before["device"]);
    drop(swap);
    // It can be turned on again once it is off.
    folder.run(&on).expect(0);
    drop(Swap(&folder));
}

#[test]
fn swapped_pages_are_reclaimed_when_the_machine_has_room_for_them_and_their_group_too() {
    if !can_swap() {
        return;
    }
    let _turn = turn();
    let folder = Folder::new();
    // All of the swap and a margin fit into what such a machine has to spare: the kernel may push out
    // the whole program, and pages of others besides.
    let mut up = vec!["up", "--hosts", "6", "--memory", "192M"];
    up.extend(TOLD);
    folder.run(&up).expect(0);
    // 128 MiB in rs:4+2: 32 slabs of each host.
    for index in 0..6 {
        leave(&folder, &format!("h{index:02}"), Some(just_enough(32)));
    }
    let mut on = vec!["swap", "on", "--size", "128M", "--scheme", "rs:4+2"];
    on.extend(["--priority", "32000"]);
    folder.run(&on).expect(0);
    let swap = Swap(&folder);
    let mut program = Program::filled(32 * MIB, 112 * MIB);
    wait_until_swapped(&folder);

    // The machine has room, the program's group has not, also with what a version 1 group may have
    // for a moment beyond its limit: the kernel would kill for it.
    leave(&folder, "h00", None);
    wait_until(
        "the server has seen that the group is full",
        || {
            let log = folder.path().join("swap/swap.log");
            let log = fs::read_to_string(log).unwrap_or_default();
            log.contains("no room for them in") && number(&pressure(&folder, 0)["away_bytes"]) > 0
        },
        || format!("{} {}", pressure(&folder, 0), swap_status(&folder)),
    );
    let still = swap_status(&folder);
    assert_eq!(still["homecomings"], 0, "{still}");
    assert!(number(&still["used_bytes"]) > 24 * MIB, "{still}");

    program.group.set_limit(256 * MIB).expect("more");
    let mut home = Value::Null;
    wait_until(
        "the pages are home, and swap is on and empty",
        || {
            home = swap_status(&folder);
            number(&home["homecomings"]) > 0 && number(&home["used_bytes"]) < MIB
        },
        || format!("{} {}", pressure(&folder, 0), swap_status(&folder)),
    );
    assert!(number(&home["home_bytes"]) > 24 * MIB, "{home}");
    assert_eq!(
        (&home["errors"], &home["unreadable_pages"]),
        (&0.into(), &0.into())
    );
    assert_eq!(program.ask(), "wrong 0");
    let host = pressure(&folder, 0);
    assert!(number(&host["reclaims"]) >= 1, "{host}");
    wait_until(
        "the host has heard",
        || number(&pressure(&folder, 0)["away_bytes"]) < MIB,
        || pressure(&folder, 0).to_string(),
    );

    // And it is swap still. The kernel refuses a limit that it could not come down to in time.
    wait_until(
        "the group holds less",
        || program.group.set_limit(32 * MIB).is_ok(),
        || swap_status(&folder).to_string(),
    );
    assert_eq!(program.ask(), "wrong 0");
    wait_until_swapped(&folder);
    // Room for the end of it.
    program.group.set_limit(256 * MIB).expect("more");
    drop(swap);
    assert_eq!(program.ask(), "wrong 0");
}

#[test]
fn a_backed_volume_gives_up_slabs_that_nobody_uses_and_reads_its_disk() {
    if !has_tools() {
        return;
    }
    let mut told = TOLD.to_vec();
    told.extend(["--transport", "shm"]);
    let lab = Lab::backed_with(4, &told);
    for index in 1..4 {
        leave(&lab.folder, &format!("h{index:02}"), Some(just_enough(96)));
    }
    lab.fio().expect_clean();
    wait_until(
        "its slabs are given up",
        || {
            let status = lab.status();
            number(&status["counters"]["extents_reclaimed"]) > 0 && status["mapped_bytes"] == 0
        },
        || lab.status().to_string(),
    );
    let status = lab.status();
    assert!(
        number(&status["counters"]["reclaims_heard"]) > 0,
        "{status}"
    );
    lab.fio_with(&["--rw=read", "--bs=4k", "--size=192M", "--verify=crc32c"])
        .expect_clean();
    assert_eq!(lab.requests_failed(), 0);
}

#[test]
fn reclaim_can_be_turned_off() {
    let folder = Folder::new();
    let up = Ended::from(
        cenote()
            .args(["up", "--hosts", "1", "--memory", "64M", "--yield", "fixed"])
            .args(["--reclaim", "on", "--dir", folder.str()])
            .output()
            .expect("the binary runs"),
    );
    assert!(up.stderr.contains("--yield headroom"), "{up:?}");
    folder
        .run(&words("up --hosts 1 --memory 64M --yield reclaim"))
        .expect(0);
    let seen = pressure(&folder, 0);
    // A quarter of the 64 MiB that it lends; its machine is a file, so nothing is offered.
    assert_eq!(seen["headroom_bytes"], 16 * MIB, "{seen}");
    assert_eq!(
        (&seen["watched"], &seen["reclaims"]),
        (&true.into(), &0.into())
    );
}
