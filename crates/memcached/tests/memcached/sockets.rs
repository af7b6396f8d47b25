//! `cenote-memcached` beside memcached, over sockets: the same bytes, cut anywhere, get the same answers.
//!
//! Cas numbers differ: here they count all operations of a partition. Streams name none that could be
//! an item's; a test of its own has each server compare with its own.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use super::streams::{self, Random};
use super::{Memcached, Server, assert_alike, connect, normal, read_until, seed, text};

/// Streams of a run.
const ROUNDS: u64 = 150;

/// A server of ours on a socket in a folder of its own.
struct Ours {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Ours {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(env!("CARGO_BIN_EXE_cenote-memcached"))
            .args(["-t", "3", "-m", "256", "-u", "root", "-s"])
            .arg(folder.path().join("socket"))
            .stdin(Stdio::null())
            // Streams may ask for a log of themselves.
            .stderr(Stdio::null())
            .spawn()
            .expect("it is built");
        Self { child, folder }
    }

    fn connect(&self) -> UnixStream {
        connect(&self.folder.path().join("socket"))
    }
}

/// Lines without cas numbers and what else the servers may choose.
fn without_cas(said: &[u8]) -> Vec<Vec<u8>> {
    let lines = normal(said).into_iter().map(|line| {
        let mut words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        match words[0] {
            b"VALUE" => words.truncate(4),
            b"HD" | b"VA" | b"ME" => {
                let is_cas = |word: &[u8]| {
                    let digits = word.strip_prefix(b"cas=").or(word.strip_prefix(b"c"));
                    let digits = digits.map(<[u8]>::trim_ascii_end);
                    digits
                        .is_some_and(|text| !text.is_empty() && text.iter().all(u8::is_ascii_digit))
                };
                words.retain(|word| !is_cas(word));
            }
            _ => {}
        }
        words.join(&b' ').trim_ascii_end().to_vec()
    });
    lines.collect()
}

/// Sends bytes in pieces of any length, and reads up to an end.
fn ask(stream: &mut UnixStream, said: &[u8], end: &[u8], random: &mut Random) -> Vec<u8> {
    let mut pieces = Vec::new();
    let mut rest = said;
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(rest.len().min(1 + random.below(4000)));
        pieces.push(piece.to_vec());
        rest = tail;
    }
    let mut writer = stream.try_clone().expect("a socket");
    let writing =
        std::thread::spawn(move || pieces.iter().try_for_each(|piece| writer.write_all(piece)));
    let answer = read_until(stream, end);
    writing.join().expect("it writes").expect("it reads");
    answer
}

#[test]
fn random_streams_over_sockets_get_the_answers_of_memcached() {
    let Some(memcached) = Memcached::start(&[]) else {
        return;
    };
    let server = Ours::start();
    let seed = seed();
    println!("seed {seed}");
    for round in 0..ROUNDS {
        let mut random = Random::new(seed.wrapping_add(round));
        let mut model = Server::new(0);
        let mut said = b"flush_all\r\n".to_vec();
        for asked in 0.. {
            let bytes = if asked < 40 {
                streams::request(&mut random, 0)
            } else if model.is_idle() {
                break;
            } else {
                b"\n".to_vec()
            };
            model.receive(&bytes);
            said.extend(bytes);
        }
        if model.is_closed {
            continue;
        }
        said.extend(format!("mg end Oend{round}\r\n").bytes());
        let end = format!("EN Oend{round}\r\n");
        let theirs = ask(&mut memcached.connect(), &said, end.as_bytes(), &mut random);
        let ours = ask(&mut server.connect(), &said, end.as_bytes(), &mut random);
        let (ours, theirs) = (without_cas(&ours), without_cas(&theirs));
        assert_alike((seed, round), &ours, &theirs, &said);
    }
}

/// The cas number of an item, 0 if there is none.
fn cas_of(stream: &mut UnixStream, key: &str) -> u64 {
    write!(stream, "mg {key} c\r\nmn\r\n").expect("it reads");
    let said = String::from_utf8(read_until(stream, b"MN\r\n")).expect("text");
    let Some((_, rest)) = said.split_once(" c") else {
        return 0;
    };
    let end = rest.find(|character: char| !character.is_ascii_digit());
    rest[..end.expect("a line has an end")]
        .parse()
        .expect("a number")
}

#[test]
fn cas_numbers_compare_as_those_of_memcached() {
    let Some(memcached) = Memcached::start(&[]) else {
        return;
    };
    let server = Ours::start();
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut streams = [server.connect(), memcached.connect()];
    for stream in &mut streams {
        // 0 compares with nothing: no number below an item's is 0.
        let said = "set other 0 0 1\r\nx\r\n".repeat(9) + "mn\r\n";
        stream.write_all(said.as_bytes()).expect("it reads");
        read_until(stream, b"MN\r\n");
    }
    for step in 0..3000 {
        let key = ["a", "b", "c"][random.below(3)];
        // Equal, smaller or greater: at least by as much as an item's own number can differ.
        let compared = random.below(4);
        let template = [
            "cas KEY 1 0 2 CAS\r\nxy\r\n",
            "ms KEY 2 CCAS c\r\nzz\r\n",
            "ms KEY 2 CCAS I T1000\r\nii\r\n",
            "ms KEY 1 CCAS MA\r\na\r\n",
            "md KEY CCAS\r\n",
            "md KEY CCAS I\r\n",
            "ma KEY CCAS N0 J5\r\n",
            "set KEY 0 0 1\r\n7\r\n",
            "incr KEY 1\r\n",
            "md KEY I\r\n",
            "mg KEY v f h R1500 N4000\r\n",
        ][random.below(11)];
        let mut answers = Vec::new();
        for stream in &mut streams {
            let cas = cas_of(stream, key);
            let cas = match compared {
                0 | 1 => cas,
                2 => cas.saturating_sub(1),
                _ => cas + 1,
            };
            let said = template
                .replace("KEY", key)
                .replace("CAS", &cas.to_string());
            let said = said + "mn\r\n";
            stream.write_all(said.as_bytes()).expect("it reads");
            answers.push(without_cas(&read_until(stream, b"MN\r\n")));
        }
        assert_eq!(
            text(&answers[0], 0),
            text(&answers[1], 0),
            "seed {seed} step {step}: {template:?} {compared}"
        );
    }
}

/// Lines of a dump, in any order, without what time and memory make of them.
fn dumped(said: &[u8]) -> Vec<String> {
    let said = String::from_utf8(said.to_vec()).expect("keys are encoded");
    let lines = said.lines().map(|line| {
        let chosen = ["la=", "cas="];
        let is_own = |word: &&str| !chosen.iter().any(|name| word.starts_with(name));
        line.split(' ').filter(is_own).collect::<Vec<_>>().join(" ")
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_crawler_answers_as_that_of_memcached() {
    let Some(memcached) = Memcached::start(&[]) else {
        return;
    };
    let server = Ours::start();
    let ask_one = |mut stream: UnixStream, said: &[u8], end: &[u8]| {
        stream.write_all(said).expect("it reads");
        read_until(&mut stream, end)
    };
    // Theirs does one thing at a time, and may not have noticed that the last is done.
    let asked = |said: &[u8], end: &[u8]| {
        let ours = ask_one(server.connect(), said, end);
        loop {
            let theirs = ask_one(memcached.connect(), said, end);
            if !theirs.starts_with(b"BUSY ") {
                return [ours, theirs];
            }
        }
    };
    let mut random = Random::new(seed());
    let mut said = Vec::new();
    for number in 0..4000 {
        let odd = (1 + random.below(255)) as u8;
        let odd = if matches!(odd, b' ' | b'\n' | b'\r') {
            b'%'
        } else {
            odd
        };
        let expiry = [0, 2_000_000_000][random.below(2)];
        let flags = random.below(2);
        let value = "v".repeat(random.below(50));
        let length = value.len();
        said.extend_from_slice(format!("set k{number}-").as_bytes());
        said.push(odd);
        said.extend_from_slice(format!(" {flags} {expiry} {length}\r\n{value}\r\n").as_bytes());
        if random.below(3) == 0 {
            said.extend_from_slice(
                format!(
                    "ms {} 2 b\r\nxx\r\n",
                    ["YmFzZSA2NA==", "AAE="][random.below(2)]
                )
                .as_bytes(),
            );
            said.extend_from_slice(
                format!("set k{number} 0 0 1\r\nx\r\nget k{number}\r\n").as_bytes(),
            );
        }
    }
    said.extend_from_slice(b"set gone 0 -1 1\r\nx\r\nmn\r\n");
    for mut stream in [server.connect(), memcached.connect()] {
        ask(&mut stream, &said, b"MN\r\n", &mut random);
    }
    // Theirs is off at first.
    let off = [
        "disable",
        "disable",
        "crawl all",
        "metadump all",
        "metadump x",
        "enable",
        "enable",
    ];
    let on = [
        "crawl all",
        "crawl 1,2",
        "crawl 64",
        "crawl x",
        "crawl",
        "metadump 0",
        "metadump 64",
        "metadump 1,x",
        "metadump all,1",
        "metadump",
        "mgdump all",
        "tocrawl 5",
        "tocrawl x",
        "tocrawl",
        "sleep 100",
        "sleep 1000001",
        "sleep x",
        "sleep",
        "what",
        "what all",
        "enable all",
        "metadump all x",
        "metadump all 0 0",
        "",
    ];
    for command in off.iter().chain(&on) {
        let said = format!("lru_crawler {command}\r\nmn\r\n");
        let [ours, theirs] = asked(said.as_bytes(), b"MN\r\n");
        let text = |said| String::from_utf8(said).expect("text");
        assert_eq!(text(ours), text(theirs), "{command:?}");
    }
    for classes in ["all", "hash", "1", "1,2", "2", "63"] {
        let said = format!("lru_crawler metadump {classes}\r\n");
        let [ours, theirs] = asked(said.as_bytes(), b"\r\n");
        let (ours, theirs) = (dumped(&ours), dumped(&theirs));
        // All are short: those of the first two classes are all that there are.
        let is_all = matches!(classes, "all" | "hash" | "1,2");
        assert_eq!(ours.len() > 4000, is_all, "{classes}");
        assert_eq!(ours.len() > 100, classes != "63", "{classes}");
        assert!(
            ours == theirs,
            "{classes}: {:?}",
            ours.iter()
                .zip(&theirs)
                .find(|(ours, theirs)| ours != theirs)
        );
    }
}
