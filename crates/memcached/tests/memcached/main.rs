//! The parser and the replies against memcached itself: the same streams get the same answers.
//!
//! Needs memcached 1.6.18 (`apt-get install memcached`); without it the tests say that they are skipped.
//! `CENOTE_SEED` repeats a run.

mod items;
mod sockets;
mod store;
mod streams;

use std::hash::{BuildHasher, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use store::Server;
use streams::Random;

use cenote_kv::protocol::authentication::{self, Credentials, GateStep};
use cenote_kv::protocol::reply::{self, Answer};

/// The version whose answers the parser has.
const VERSION: &str = "1.6.18";
/// Streams of a run.
const ROUNDS: u64 = 400;
/// A peer that takes longer has answered something else.
const PATIENCE: Duration = Duration::from_secs(60);

/// A memcached of our own on a socket in a folder of our own.
struct Memcached {
    child: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Memcached {
    /// Nothing, with the reason printed, where there is none that this can be compared with.
    fn start(arguments: &[&str]) -> Option<Self> {
        let said = match Command::new("memcached").arg("-V").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(error) => {
                println!("skipped: memcached cannot be run: {error}");
                return None;
            }
        };
        if said != format!("memcached {VERSION}") {
            println!("skipped: this is {said}, and not memcached {VERSION}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        // Its threads that move items about refer to them, and are off: an item that somebody refers to
        // is not counted in place.
        let child = Command::new("memcached")
            .args(arguments)
            .args(["-o", "no_lru_maintainer,no_lru_crawler"])
            .args(["-B", "ascii", "-t", "1", "-m", "256", "-u", "root", "-s"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it has said its version");
        Some(Self {
            child,
            socket,
            _folder: folder,
        })
    }

    fn connect(&self) -> UnixStream {
        connect(&self.socket)
    }
}

fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                return stream;
            }
            Err(error) => assert!(start.elapsed() < PATIENCE, "connect: {error}"),
        }
        std::thread::yield_now();
    }
}

/// Reads up to and with `end`.
fn read_until(stream: &mut UnixStream, end: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    let mut piece = [0; 65536];
    while !said.ends_with(end) {
        let length = match stream.read(&mut piece) {
            // A read with a time limit is not begun again by the system.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            length => length.unwrap_or_else(|error| {
                panic!("after {:?}: {error}", String::from_utf8_lossy(&said));
            }),
        };
        assert!(
            length > 0,
            "closed after {:?}",
            String::from_utf8_lossy(&said)
        );
        said.extend_from_slice(&piece[..length]);
    }
    said
}

/// Lines without what time and memory make of them.
fn normal(said: &[u8]) -> Vec<Vec<u8>> {
    let lines = said.split(|byte| *byte == b'\n');
    lines.map(normal_line).collect()
}

fn normal_line(line: &[u8]) -> Vec<u8> {
    if line.starts_with(b"VERSION ") {
        return b"VERSION".to_vec();
    }
    let is_debug = line.starts_with(b"ME ");
    let is_meta = line.starts_with(b"HD ") || line.starts_with(b"VA ");
    let mut words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    for word in &mut words {
        if is_meta && word.starts_with(b"t") && word.len() > 3 {
            *word = b"t?";
        }
    }
    let changes = [&b"exp="[..], b"la=", b"cls=", b"size="];
    words.retain(|word| !is_debug || !changes.iter().any(|start| word.starts_with(start)));
    words.join(&b' ')
}

fn seed() -> u64 {
    match std::env::var("CENOTE_SEED") {
        Ok(seed) => seed.parse().expect("CENOTE_SEED is a number"),
        Err(_) => std::hash::RandomState::new().build_hasher().finish(),
    }
}

/// The number that the next item's cas number follows.
fn last_cas(stream: &mut UnixStream) -> u64 {
    stream
        .write_all(b"flush_all\r\nms probe 0 c\r\n\r\nmd probe\r\nmn\r\n")
        .expect("it reads");
    let said = String::from_utf8(read_until(stream, b"MN\r\n")).expect("text");
    let cas = said
        .split_once(" c")
        .and_then(|(_, rest)| rest.split_once('\r'));
    cas.expect("a cas number").0.parse().expect("a cas number")
}

#[test]
fn random_streams_get_the_answers_of_memcached() {
    let Some(memcached) = Memcached::start(&[]) else {
        return;
    };
    let seed = seed();
    println!("seed {seed}");
    let mut closed = 0;
    for round in 0..ROUNDS {
        let mut random = Random::new(seed.wrapping_add(round));
        let mut stream = memcached.connect();
        let mut server = Server::new(last_cas(&mut stream));
        let mut said = Vec::new();
        let mut asked = 0;
        while !server.is_closed && (asked < 40 || !server.is_idle()) {
            let bytes = if asked < 40 {
                streams::request(&mut random, server.last_cas())
            } else {
                b"\n".to_vec()
            };
            server.receive(&bytes);
            said.extend(bytes);
            asked += 1;
        }
        if server.is_closed {
            // What memcached still answers before it closes depends on when the bytes come.
            closed += 1;
            continue;
        }
        let end = format!("mg end Oend{round}\r\n");
        server.receive(end.as_bytes());
        said.extend(end.bytes());
        let ours = normal(&server.out);
        let mut writer = stream.try_clone().expect("a socket");
        let sent = said.clone();
        let writing = std::thread::spawn(move || writer.write_all(&sent));
        let theirs = read_until(&mut stream, format!("EN Oend{round}\r\n").as_bytes());
        writing.join().expect("it writes").expect("it reads");
        let theirs = normal(&theirs);
        assert_alike((seed, round), &ours, &theirs, &said);
    }
    assert!(
        closed < ROUNDS / 20,
        "{closed} of {ROUNDS} streams did not come to their end"
    );
}

/// Fails at the first line in which answers differ.
fn assert_alike((seed, round): (u64, u64), ours: &[Vec<u8>], theirs: &[Vec<u8>], asked: &[u8]) {
    let at = ours
        .iter()
        .zip(theirs)
        .position(|(ours, theirs)| ours != theirs);
    let at = at.unwrap_or(ours.len().min(theirs.len()));
    assert!(
        ours == theirs,
        "seed {seed} round {round}, line {at}\nours:   {:?}\ntheirs: {:?}\nasked: {}",
        text(ours, at),
        text(theirs, at),
        String::from_utf8_lossy(asked)
            .replace(&"x".repeat(100), "")
            .escape_debug()
    );
}

/// The lines around one.
fn text(lines: &[Vec<u8>], at: usize) -> Vec<String> {
    let lines = lines.iter().skip(at.saturating_sub(6)).take(9);
    lines
        .map(|line| String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned())
        .collect()
}

/// All that is answered to one stream, up to the connection's end.
fn whole_answer(memcached: &Memcached, said: &[u8]) -> Vec<u8> {
    let mut stream = memcached.connect();
    let mut answer = Vec::new();
    // It may close before it has read everything; then there is nothing to be told.
    if stream.write_all(said).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    answer
}

#[test]
fn lines_at_the_limits_get_the_answers_of_memcached() {
    let Some(memcached) = Memcached::start(&[]) else {
        return;
    };
    let keys = |count: usize| " key".repeat(count);
    let wide = "k".repeat(250);
    for said in [
        "x".repeat(20_000),
        format!("{}\r\nmn\r\n", "x".repeat(40_000)),
        format!("gat 0{}\r\nmn\r\n", keys(700)),
        format!("get{}\r\nmn\r\n", keys(20_000)),
        format!("{}gets{}\r\nmn\r\n", " ".repeat(100), keys(20_000)),
        format!("mg {wide} v\r\nmg {wide}k v\r\n"),
        format!("set {wide} 0 0 1\r\nx\r\nget {wide}\r\n"),
        format!(
            "set b 0 0 {}\r\n{}\r\nmn\r\n",
            1_048_516,
            "x".repeat(1_048_516)
        ),
        format!(
            "set b 0 0 {}\r\n{}\r\nmn\r\n",
            1_048_517,
            "x".repeat(1_048_517)
        ),
        format!(
            "set b 1 0 {}\r\n{}\r\nmn\r\n",
            1_048_512,
            "x".repeat(1_048_512)
        ),
        format!(
            "set b 1 0 {}\r\n{}\r\nmn\r\n",
            1_048_513,
            "x".repeat(1_048_513)
        ),
        "\n\r\n\r\r\na\r\nmn".to_owned(),
    ] {
        let mut server = Server::new(0);
        server.receive(said.as_bytes());
        let theirs = whole_answer(&memcached, said.as_bytes());
        let theirs = String::from_utf8_lossy(&theirs);
        let ours = String::from_utf8_lossy(&server.out);
        assert!(
            ours == theirs,
            "{:?}: {ours:?} {theirs:?}",
            &said[..said.len().min(300)]
        );
    }
}

#[test]
fn clients_are_let_in_as_memcached_lets_them_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("users");
    let users = b"ada:secret\nbob:pass:word\n";
    std::fs::write(&file, users).expect("a file");
    let file = file.to_str().expect("a name");
    let Some(memcached) = Memcached::start(&["-Y", file]) else {
        return;
    };
    let credentials = Credentials::parse(users).expect("users");
    // Each piece waits for the answer to the one before: memcached answers the last of several at once.
    for pieces in [
        &["set any 0 0 10\r\nada secret\r\nmn\r\n"][..],
        &["set any x y 13\nbob pass:word\r\nmn\r\n"],
        &["set any 0 0 13\nada secret no\r\nmn\r\n"],
        &[
            "get a\r\n",
            "mn\r\n",
            "set any 0 0 10\r\nada secret\r\n",
            "mn\r\n",
        ],
        &["set any 0 0\r\n", "set any 0 0 x\r\n", "add any 0 0 10\r\n"],
        &[
            "set any 0 0 10\r\nada Secret\r\n",
            "set any 0 0 9\r\nada secre\r\n",
        ],
        &["set any 0 0 3\r\nada\r\n", "set any 0 0 0\r\n\n\n"],
        &["set any 0 0 12\r\nada secret  \r\nmn\r\n"],
        &[
            "set any 0 0 10 noreply\r\nbob secret\r\n",
            "set any 0 0 0\r\n\r\n",
        ],
        &["  set any 0 0 10\r\nada secret\r\nmn\r\n", "nonsense\r\n"],
    ] {
        let mut stream = memcached.connect();
        let mut server = Server::new(0);
        let mut is_known = false;
        for piece in pieces {
            server.out.clear();
            let mut rest = piece.as_bytes();
            if !is_known {
                rest = match authentication::gate(rest, &credentials) {
                    GateStep::Admitted { taken } => {
                        is_known = true;
                        reply::answer(&mut server.out, Answer::Stored);
                        &rest[taken..]
                    }
                    GateStep::Refused { error, taken } => {
                        reply::error(&mut server.out, error);
                        &rest[taken..]
                    }
                    step => panic!("{piece:?} is {step:?}"),
                };
            }
            server.receive(rest);
            stream.write_all(piece.as_bytes()).expect("it reads");
            let mut theirs = vec![0; server.out.len()];
            stream.read_exact(&mut theirs).expect("it answers");
            let ours = String::from_utf8_lossy(&server.out);
            assert_eq!(ours, String::from_utf8_lossy(&theirs), "{piece:?}");
        }
        stream.shutdown(Shutdown::Write).expect("a socket");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("its end");
        assert_eq!(String::from_utf8_lossy(&rest), "", "{pieces:?}");
    }
}
