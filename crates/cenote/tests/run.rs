//! `cenote run` as a user runs it: real programs with a part of their memory here and the rest with
//! real hosts, of which two are killed in the middle.

#[path = "run/program.rs"]
mod program;
#[path = "run/refusals.rs"]
mod refusals;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::Program;
use support::nbd::Client;
use support::server::Server;
use support::{Folder, cenote, signal, words};

/// What this machine lacks for it.
fn lacks(tools: &[&str]) -> Option<String> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Some("x86-64 with glibc".to_owned());
    }
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } != 0 {
        return Some("root".to_owned());
    }
    if let Err(error) = cenote_pager::works() {
        return Some(error.to_string());
    }
    let is_there = |tool: &&&str| Command::new("which").arg(tool).output();
    let missing = (tools.iter()).find(|tool| !is_there(tool).is_ok_and(|o| o.status.success()));
    missing.map(|tool| (*tool).to_owned())
}

fn is_skipped(what: &str, tools: &[&str]) -> bool {
    let lacks = lacks(tools);
    if let Some(lacks) = &lacks {
        println!("skipped: {what} under cenote run: needs {lacks}");
    }
    lacks.is_some()
}

/// Twelve hosts of so much memory each.
fn cluster(memory: &str) -> Folder {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "12", "--memory", memory])
        .expect(0);
    folder
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    if is_skipped("a folder that was left", &[]) {
        return;
    }
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = cluster("16M");
    let start = |program: &str| {
        let line = format!(
            "run --dir {} --local 8M --size 64M -- {program}",
            folder.str()
        );
        let mut command = cenote();
        command.args(words(&line)).env("TMPDIR", temporary.path());
        command.stdout(Stdio::piped());
        command.spawn().expect("the binary runs")
    };
    let count = || {
        std::fs::read_dir(temporary.path())
            .expect("a folder")
            .count()
    };
    // Another program's folder, though it is called so, is not for us to remove.
    std::fs::create_dir(temporary.path().join("cenote-run-other")).expect("made");
    let mut first = start("cat /dev/zero");
    let mut out = first.stdout.take().expect("piped");
    out.read_exact(&mut [0]).expect("it runs");
    let mut second = start("true");
    assert!(second.wait().expect("its end").success());
    assert_eq!(count(), 2, "that of one that runs stays");
    signal(first.id(), "KILL");
    first.wait().expect("its end");
    assert_eq!(count(), 2);
    let mut third = start("true");
    assert!(third.wait().expect("its end").success());
    assert_eq!(count(), 1);
}

fn kill_two(folder: &Folder) {
    for host in ["h03", "h07"] {
        signal(folder.pid(host), "KILL");
    }
}

const MIB: u64 = 1 << 20;

const BYTEARRAYS: &str = r#"
import sys
def page(i, r): return ((i * 2654435761 + r * 40503) % (1 << 32)).to_bytes(4, "little") * 1024
def fill(a, r):
    for i in range(len(a) // 4096): a[i * 4096:(i + 1) * 4096] = page(i, r)
def check(a, r):
    for i in range(len(a) // 4096): assert a[i * 4096:(i + 1) * 4096] == page(i, r), (i, r)
big = bytearray(48 << 20)
assert not any(big[::4096])
fill(big, 1)
small = [i * i for i in range(500000)]
names = {str(i): i for i in range(200000)}
print("filled", flush=True)
assert sys.stdin.readline() == "go on\n"
check(big, 1)
assert all(v == i * i for i, v in enumerate(small))
assert all(names[str(i)] == i for i in range(200000))
fill(big, 2)
big += b"x" * (16 << 20)
check(memoryview(big)[:48 << 20], 2)
assert big[48 << 20:] == b"x" * (16 << 20)
"#;

#[test]
fn python_at_a_quarter_of_its_memory_loses_nothing_when_two_hosts_die() {
    if is_skipped("Python", &["python3"]) {
        return;
    }
    let folder = cluster("64M");
    let program = ["python3", "-c", BYTEARRAYS];
    let mut program = Program::start(&folder, "24M", "320M", &program);
    program.expect_line("filled");
    kill_two(&folder);
    program.say("go on");
    program.ends_well(24 * MIB);
}

const ARRAYS: &str = r#"
import sys
import numpy as np
a = np.arange(6 << 20, dtype=np.float64)
b = np.random.default_rng(1).permutation(3 << 20)
print("filled", flush=True)
assert sys.stdin.readline() == "go on\n"
assert (a == np.arange(6 << 20)).all()
a *= 2
assert a.sum() == (6 << 20) * ((6 << 20) - 1)
b.sort()
assert (b == np.arange(3 << 20)).all()
m = a[:1 << 20].reshape(1024, 1024)
assert (m @ np.eye(1024) == m).all()
assert (m.T.copy().T == m).all()
"#;

#[test]
fn numpy_at_a_quarter_of_its_memory_loses_nothing_when_two_hosts_die() {
    // Debian's: others on the path may have no NumPy.
    let python = "/usr/bin/python3";
    if is_skipped("NumPy", &[python]) {
        return;
    }
    let imported = Command::new(python).args(["-c", "import numpy"]).output();
    if !imported.is_ok_and(|output| output.status.success()) {
        println!("skipped: NumPy under cenote run: needs python3-numpy");
        return;
    }
    let folder = cluster("64M");
    let program = ["env", "OPENBLAS_NUM_THREADS=1", python, "-c", ARRAYS];
    let mut program = Program::start(&folder, "32M", "320M", &program);
    program.expect_line("filled");
    kill_two(&folder);
    program.say("go on");
    program.ends_well(32 * MIB);
}

const SMALL_BLOCKS: &str = r#"
names = {str(i): i for i in range(400000)}
assert all(names[str(i)] == i for i in range(400000))
"#;

/// The most that libc's heap is made larger by at once, and more: small blocks are served all the same.
#[test]
fn small_blocks_are_served_whatever_the_size() {
    if is_skipped("Python", &["python3"]) {
        return;
    }
    let folder = cluster("64M");
    for size in ["512M", "4G", "16G"] {
        // Otherwise it has them from arenas of its own, which are mappings.
        let program = ["env", "PYTHONMALLOC=malloc", "python3", "-c", SMALL_BLOCKS];
        let program = Program::start(&folder, "16M", size, &program);
        program.ends_well(16 * MIB);
    }
}

#[test]
fn figures_that_nobody_reads_do_not_change_its_end() {
    if is_skipped("a shell", &["sh"]) {
        return;
    }
    let folder = cluster("16M");
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let line = format!("run --dir {} --local 8M --size 64M --verbose", folder.str());
    let mut command = cenote();
    command
        .args(words(&line))
        .args(["--", "sh", "-c", "exit 7"]);
    command.env("TMPDIR", temporary.path()).stderr(writer);
    assert_eq!(command.status().expect("the binary runs").code(), Some(7));
    let left = std::fs::read_dir(temporary.path()).expect("a folder");
    assert_eq!(left.count(), 0, "the program's library is removed");
}

#[test]
fn its_end_is_the_programs_and_signals_are_too() {
    if is_skipped("a shell", &["sh"]) {
        return;
    }
    let folder = cluster("16M");
    let (code, figures) = Program::start(&folder, "8M", "64M", &["sh", "-c", "exit 7"]).end();
    assert_eq!((code, &figures["lost"]), (7, &0.into()));
    let script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut program = Program::start(&folder, "8M", "64M", &["sh", "-c", script]);
    program.expect_line("ready");
    signal(program.child.id(), "TERM");
    program.expect_line("told");
    assert_eq!(program.end().0, 9);
    // One that comes before this process knows that the program runs.
    let script = "trap 'exit 9' TERM; kill -TERM $PPID; while :; do sleep 0.05; done";
    for _ in 0..5 {
        let program = Program::start(&folder, "8M", "64M", &["sh", "-c", script]);
        assert_eq!(program.end().0, 9);
    }
    let killed = Program::start(&folder, "8M", "64M", &["sh", "-c", "kill -KILL $$"]);
    assert_eq!(killed.end().0, 128 + 9);
    for wrong in [
        &["run", "--local", "1M", "--size", "64M", "--", "true"][..],
        &["run", "--local", "8M", "--size", "64M"],
        &words("run --local 8M --size 64M --handlers 9 -- true"),
    ] {
        assert_eq!(folder.run(wrong).code, 2);
    }
    let missing = format!("run --local 8M --size 64M --dir {}", folder.str());
    let missing = words(&missing);
    let missing = [&missing[..], &["--", "/nowhere/at/all"]].concat();
    assert_eq!(support::run(&missing).code, 1);
}

/// As `timeout` and a service manager do, and who presses ^C more than once.
#[test]
fn however_often_it_is_told_to_end_its_memory_goes_back() {
    if is_skipped("a shell", &["python3"]) {
        return;
    }
    let folder = cluster("16M");
    let script = "import time\nb = bytearray(48 << 20)\n\
                  for at in range(0, len(b), 4096): b[at] = 1\n\
                  print('ready', flush=True)\ntime.sleep(1000)";
    for _ in 0..3 {
        let mut program = Program::start(&folder, "8M", "64M", &["python3", "-c", script]);
        program.expect_line("ready");
        assert!(folder.lent_bytes() > 0);
        while program.child.try_wait().expect("its end").is_none() {
            signal(program.child.id(), "TERM");
        }
        let (code, _) = program.end();
        assert_eq!((code, folder.lent_bytes()), (128 + 15, 0));
    }
    let listed = folder.run(&["volume", "list"]).expect(0);
    assert!(!listed.stdout.contains("unnamed"), "{listed:#?}");
}

/// A port that nobody has.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn patiently<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(done) = what() {
            return done;
        }
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client of Redis: requests, and simple or bulk answers.
struct Redis(BufReader<std::net::TcpStream>);

impl Redis {
    fn connect(port: u16) -> Self {
        let stream = patiently(|| std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        stream.set_nodelay(true).expect("a socket");
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("a socket");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(*word);
            request.extend(b"\r\n");
        }
        self.0.get_mut().write_all(&request).expect("it listens");
    }

    fn answer(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        let line = line.trim_end();
        let Some(len) = line.strip_prefix('$') else {
            return line.as_bytes().to_vec();
        };
        let len: usize = len.parse().expect("a value");
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).expect("a value");
        value.truncate(len);
        value
    }

    fn ask(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        String::from_utf8_lossy(&self.answer()).into_owned()
    }

    /// All values, in batches.
    fn set_all(&mut self, round: u64) {
        for batch in 0..KEYS / BATCH {
            for key in batch * BATCH..(batch + 1) * BATCH {
                self.send(&[b"SET", name(key).as_bytes(), &value(key, round)]);
            }
            for _ in 0..BATCH {
                assert_eq!(self.answer(), b"+OK");
            }
        }
    }

    fn check_all(&mut self, round: u64) {
        for batch in 0..KEYS / BATCH {
            for key in batch * BATCH..(batch + 1) * BATCH {
                self.send(&[b"GET", name(key).as_bytes()]);
            }
            for key in batch * BATCH..(batch + 1) * BATCH {
                assert!(
                    self.answer() == value(key, round),
                    "key {key}, round {round}"
                );
            }
        }
    }
}

const KEYS: u64 = 40_000;
const BATCH: u64 = 100;

fn name(key: u64) -> String {
    format!("key{key}")
}

fn value(key: u64, round: u64) -> Vec<u8> {
    let word = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
    word.to_le_bytes().repeat(140)
}

#[test]
fn a_snapshot_of_redis_is_what_was_there_when_it_forked() {
    if is_skipped("Redis", &["redis-server"]) {
        return;
    }
    let folder = cluster("64M");
    let files = tempfile::tempdir().expect("a folder");
    let dir = files.path().to_str().expect("UTF-8").to_owned();
    let redis = |port: u16| {
        format!(
            "redis-server --port {port} --bind 127.0.0.1 --dir {dir} --rdbcompression no \
             --loglevel warning"
        )
    };
    let unsaved = ["--save", ""];
    let at = port();
    let line = redis(at);
    let program = [&words(&line)[..], &unsaved].concat();
    let program = Program::start(&folder, "20M", "320M", &program);
    let mut client = Redis::connect(at);
    client.set_all(1);
    assert_eq!(client.ask(&[b"BGSAVE"]), "+Background saving started");
    // The child has forked: what comes now is not in its snapshot.
    client.set_all(2);
    kill_two(&folder);
    client.check_all(2);
    patiently(|| {
        let info = client.ask(&[b"INFO", b"persistence"]);
        info.contains("rdb_bgsave_in_progress:0").then(|| {
            assert!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
        })
    });
    client.check_all(2);
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    // What a child shares with its parent is counted twice.
    let figures = program.ends_well(40 * MIB);
    assert!(figures["spaces"].as_u64() >= Some(2), "{figures}");
    // Another server, without us, reads the snapshot.
    let at = port();
    let line = redis(at);
    let line = words(&line);
    let mut plain = Command::new(line[0])
        .args(&line[1..])
        .args(unsaved)
        .stdout(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut client = Redis::connect(at);
    patiently(|| client.ask(&[b"PING"]).starts_with("+PONG").then_some(()));
    client.check_all(1);
    client.send(&[b"SHUTDOWN", b"NOSAVE"]);
    plain.wait().expect("it ends");
}

/// More hosts are lost than the scheme bears: the program gets SIGBUS, and no other bytes.
#[test]
fn what_is_lost_is_sigbus() {
    if is_skipped("Python", &["python3"]) {
        return;
    }
    let folder = cluster("32M");
    let script = r#"
import sys
a = bytearray(b"\x07") * (40 << 20)
print("filled", flush=True)
sys.stdin.readline()
assert all(a[i] == 7 for i in range(0, len(a), 4096))
"#;
    let mut program = Program::start(&folder, "8M", "128M", &["python3", "-c", script]);
    program.expect_line("filled");
    for host in 0..12 {
        signal(folder.pid(&format!("h{host:02}")), "KILL");
    }
    program.say("go on");
    let (code, figures) = program.end();
    assert_eq!(code, 128 + libc::SIGBUS, "{figures}");
}

/// More hosts are lost than there have to be to take pages: what the program waits for is said.
#[test]
fn a_program_that_waits_for_hosts_is_no_riddle() {
    if is_skipped("Python", &["python3"]) {
        return;
    }
    let folder = cluster("32M");
    let script = r#"
import sys
print("ready", flush=True)
sys.stdin.readline()
a = bytearray(64 << 20)
for i in range(0, len(a), 4096): a[i] = 7
"#;
    let mut program = Program::start(&folder, "8M", "128M", &["python3", "-c", script]);
    program.expect_line("ready");
    for host in 0..5 {
        signal(folder.pid(&format!("h{host:02}")), "KILL");
    }
    program.say("go on");
    let stderr = program.child.stderr.take().expect("piped");
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    // It has a line each second.
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_it = |line: &String| line.contains("too few hosts take pages");
    let error = lines.find(|line| is_it(line) || Instant::now() > deadline);
    let error = error.filter(is_it).expect("it is said");
    assert!(error.contains("ERROR"), "{error}");
    assert!(error.contains("start hosts, or end the program"), "{error}");
    signal(program.child.id(), "TERM");
    assert!(!lines.any(|line| is_it(&line)));
    let status = program.child.wait().expect("its end");
    assert_eq!(status.code(), Some(128 + libc::SIGTERM));
}

/// More programs.
mod long {
    use super::*;

    #[test]
    fn sort_is_right() {
        if is_skipped("sort", &["sort", "python3"]) {
            return;
        }
        let folder = cluster("64M");
        let files = tempfile::tempdir().expect("a folder");
        let path = |name: &str| files.path().join(name).display().to_string();
        let (input, ours, theirs) = (path("input"), path("ours"), path("theirs"));
        let mut file = std::io::BufWriter::new(std::fs::File::create(&input).expect("made"));
        let mut state = 1_u64;
        for _ in 0..600_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            writeln!(
                file,
                "{:016x} and some words behind it",
                state ^ state >> 29
            )
            .expect("written");
        }
        drop(file);
        let sort = |output| ["sort", "--parallel=2", "-S", "96M", "-o", output];
        let mut program = sort(ours.as_str()).to_vec();
        program.push(&input);
        Program::start(&folder, "16M", "256M", &program).ends_well(16 * MIB);
        let status = Command::new("sort")
            .args(&sort(&theirs)[1..])
            .arg(&input)
            .status()
            .expect("it runs");
        assert!(status.success());
        let read = |path: &str| std::fs::read(path).expect("there");
        assert!(read(&ours) == read(&theirs));
    }

    #[test]
    fn memcached_keeps_every_value() {
        if is_skipped("memcached", &["memcached"]) {
            return;
        }
        let folder = cluster("64M");
        let at = port();
        let line = format!("memcached -u root -m 96 -t 2 -p {at} -l 127.0.0.1");
        let program = Program::start(&folder, "20M", "320M", &words(&line));
        let address = ([127, 0, 0, 1], at).into();
        let mut client = patiently(|| support::memcached::connect(address).ok());
        for round in 0..2 {
            for key in 0..KEYS {
                let set = format!("set {}", name(key));
                let request = support::memcached::with_value(&set, &value(key, round), "");
                assert_eq!(client.ask(&request).expect("an answer"), "STORED");
            }
            if round == 0 {
                kill_two(&folder);
            }
            for key in 0..KEYS {
                let seen = client.get(&name(key)).expect("it listens");
                let seen = seen.unwrap_or_else(|| panic!("key {key} is gone"));
                assert!(seen == value(key, round), "key {key}, round {round}");
            }
        }
        signal(program.child.id(), "TERM");
        program.ends_well(20 * MIB);
    }
}
