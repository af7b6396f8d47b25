//! The binary protocol over sockets. What each opcode answers, memccapable checks in `clients.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::process::{Server, ask, stats};

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const FLUSH: u8 = 0x08;
const NOOP: u8 = 0x0a;
const GETKQ: u8 = 0x0d;
const STAT: u8 = 0x10;
const SETQ: u8 = 0x11;
const VERBOSITY: u8 = 0x1b;
const TOUCH: u8 = 0x1c;
const GATK: u8 = 0x23;
const MECHANISMS: u8 = 0x20;
const AUTHENTICATE: u8 = 0x21;

fn message(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    let body = u32::try_from(extras.len() + key.len() + value.len()).unwrap();
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(&[0; 12]);
    [&bytes, extras, key, value].concat()
}

#[derive(Debug, Eq, PartialEq)]
struct Answer {
    opcode: u8,
    status: u16,
    key: Vec<u8>,
    value: Vec<u8>,
}

fn answer(stream: &mut impl Read) -> Answer {
    let mut header = [0; 24];
    stream.read_exact(&mut header).expect("an answer");
    assert_eq!(header[0], 0x81);
    let key = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let body = u32::from_be_bytes(header[8..12].try_into().unwrap());
    let mut body = vec![0; body as usize];
    stream.read_exact(&mut body).expect("its body");
    let rest = body.split_off(usize::from(header[4]));
    Answer {
        opcode: header[1],
        status: u16::from_be_bytes([header[6], header[7]]),
        key: rest[..key].to_vec(),
        value: rest[key..].to_vec(),
    }
}

/// Without another byte; where something of it was not read that is a reset.
fn assert_closed(stream: &mut TcpStream) {
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
}

fn asked(stream: &mut (impl Read + Write), said: &[u8]) -> (u16, String) {
    stream.write_all(said).expect("it reads");
    let answer = answer(stream);
    let text = String::from_utf8_lossy(&answer.value).into_owned();
    (answer.status, text)
}

#[test]
fn both_protocols_see_the_same_items_wherever_they_are() {
    let server = Server::local("-t 4");
    let (mut binary, mut text) = (server.connect(), server.connect());
    let mut said = Vec::new();
    for index in 0..500 {
        let key = format!("key {index}");
        let value = format!("value {index}").repeat(index);
        said.extend(message(SETQ, &[0; 8], key.as_bytes(), value.as_bytes()));
    }
    said.extend(message(SETQ, &[0, 0, 0, 7, 0, 0, 0, 0], b"plain", b"one"));
    said.extend(message(NOOP, b"", b"", b""));
    binary.write_all(&said).unwrap();
    // Quiet ones that went well are not answered, and all of them are done by then.
    assert_eq!(answer(&mut binary).opcode, NOOP);
    let told = ask(&mut text, "get plain\r\nmn\r\n");
    assert_eq!(told, "VALUE plain 7 3\r\none\r\nEND\r\nMN\r\n");
    let mut said = Vec::new();
    for index in 0..1000 {
        said.extend(message(GETKQ, b"", format!("key {index}").as_bytes(), b""));
    }
    said.extend(message(NOOP, b"", b"", b""));
    std::thread::scope(|scope| {
        let mut writer = binary.try_clone().unwrap();
        scope.spawn(move || writer.write_all(&said).unwrap());
        for index in 0..500 {
            let answer = answer(&mut binary);
            assert_eq!(answer.key, format!("key {index}").into_bytes());
            assert_eq!(
                answer.value,
                format!("value {index}").repeat(index).into_bytes()
            );
        }
        assert_eq!(answer(&mut binary).opcode, NOOP);
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn what_is_about_no_item_is_answered_too() {
    let server = Server::local("-t 3");
    let mut stream = server.connect();
    let done = (0, String::new());
    let not_found = (1, "Not found".to_owned());
    let set = message(SET, &[0; 8], b"k", b"v");
    assert_eq!(asked(&mut stream, &set), done);
    let touch = message(TOUCH, &[0, 0, 1, 0], b"k", b"");
    assert_eq!(asked(&mut stream, &touch), done);
    let touch_and_get = message(GATK, &[0, 0, 1, 0], b"k", b"");
    assert_eq!(asked(&mut stream, &touch_and_get), (0, "v".to_owned()));
    assert_eq!(
        asked(&mut stream, &message(VERBOSITY, &[0; 4], b"", b"")),
        done
    );
    assert_eq!(asked(&mut stream, &message(FLUSH, b"", b"", b"")), done);
    assert_eq!(asked(&mut stream, &message(GET, b"", b"k", b"")), not_found);
    // Nobody is asked who it is.
    let unknown = (0x81, "Unknown command".to_owned());
    assert_eq!(
        asked(&mut stream, &message(MECHANISMS, b"", b"", b"")),
        unknown
    );
    let said = message(AUTHENTICATE, b"", b"PLAIN", b"\0a\0b");
    assert_eq!(asked(&mut stream, &said), unknown);
    assert_eq!(
        asked(&mut stream, &message(0x77, b"", b"", b"body")),
        unknown
    );
    assert_eq!(
        asked(&mut stream, &message(STAT, b"", b"nothing", b"")),
        not_found
    );
    stream.write_all(&message(STAT, b"", b"", b"")).unwrap();
    let mut names = Vec::new();
    loop {
        let answer = answer(&mut stream);
        if answer.key.is_empty() {
            break;
        }
        names.push(String::from_utf8(answer.key).unwrap());
    }
    assert!(names.contains(&"cmd_flush".to_owned()));
}

#[test]
fn clients_say_who_they_are_by_sasl() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ada:secret\n").unwrap();
    let users = users.to_str().unwrap();
    let server = Server::local(&format!("-S -Y {users}"));
    let mut stream = server.connect();
    let refused = (0x20, "Auth failure.".to_owned());
    let list = message(MECHANISMS, b"", b"", b"");
    assert_eq!(asked(&mut stream, &list), (0, "PLAIN".to_owned()));
    for said in [&b"\0ada\0Secret"[..], b"ada", b""] {
        let said = message(AUTHENTICATE, b"", b"PLAIN", said);
        assert_eq!(asked(&mut stream, &said), refused);
    }
    let said = message(AUTHENTICATE, b"", b"PLAIN", b"\0ada\0secret");
    assert_eq!(asked(&mut stream, &said), (0, "Authenticated".to_owned()));
    let set = message(SET, &[0; 8], b"k", b"v");
    assert_eq!(asked(&mut stream, &set), (0, String::new()));
    // Who asks before is told so and closed, and so is who speaks text.
    let mut stream = server.connect();
    assert_eq!(asked(&mut stream, &message(GET, b"", b"k", b"")), refused);
    assert_closed(&mut stream);
    let mut stream = server.connect();
    stream.write_all(b"version\r\n").unwrap();
    assert_closed(&mut stream);
    // With a protocol of their choice they say it in either.
    let server = Server::local(&format!("-Y {users}"));
    let mut stream = server.connect();
    assert_eq!(asked(&mut stream, &said), (0, "Authenticated".to_owned()));
    assert_eq!(asked(&mut stream, &set), (0, String::new()));
    let mut stream = server.connect();
    let told = ask(&mut stream, "set x 0 0 10\r\nada secret\r\nget k\r\nmn\r\n");
    assert_eq!(told, "STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\nMN\r\n");
}

#[test]
fn a_file_for_sasl_may_say_more_behind_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sasldb");
    std::fs::write(&file, "testuser:testtest:::::::\n").unwrap();
    let file = file.to_str().unwrap();
    let server = Server::local_with("-S", &[("MEMCACHED_SASL_PWDB", file)]);
    let mut stream = server.connect();
    for (said, status) in [
        (&b"\0testuser\0testtes"[..], 0x20),
        (b"\0testuser\0testtest", 0),
    ] {
        let said = message(AUTHENTICATE, b"", b"PLAIN", said);
        assert_eq!(asked(&mut stream, &said).0, status);
    }
}

#[test]
fn a_flush_after_2038_is_none_at_once() {
    let server = Server::local("");
    let mut stream = server.connect();
    let set = message(SET, &[0; 8], b"k", b"v");
    assert_eq!(asked(&mut stream, &set), (0, String::new()));
    let flush = message(FLUSH, &3_000_000_000_u32.to_be_bytes(), b"", b"");
    assert_eq!(asked(&mut stream, &flush), (0, String::new()));
    let get = message(GET, b"", b"k", b"");
    assert_eq!(asked(&mut stream, &get), (0, "v".to_owned()));
}

#[test]
fn half_a_message_holds_up_nobody_else_and_takes_no_memory() {
    let server = Server::local("-t 1 -m 64");
    let before = server.resident_bytes();
    // Each announces as much as an item may have, or a body of 4 GiB that nobody wants.
    let large = message(SET, &[0; 8], b"k", &vec![b'v'; 1_000_000]);
    let mut endless = message(0x77, b"", b"", b"");
    endless[8..12].fill(0xff);
    let halves = [&large[..24], &large[..33], &large[..5000], &endless[..]];
    let waiting: Vec<_> = (0..400)
        .map(|index| {
            let mut stream = server.connect();
            stream.write_all(halves[index % halves.len()]).unwrap();
            stream
        })
        .collect();
    let mut stream = server.connect();
    let set = message(SET, &[0; 8], b"k", b"v");
    assert_eq!(asked(&mut stream, &set), (0, String::new()));
    assert_eq!(
        asked(&mut stream, &message(GET, b"", b"k", b"")),
        (0, "v".to_owned())
    );
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown}");
    drop(waiting);
    // What cannot be a message ends its connection with the reason, and no other.
    let mut broken = server.connect();
    assert_eq!(
        asked(&mut broken, &message(SET, b"", b"k", b"v")),
        (4, "Invalid arguments".to_owned())
    );
    assert_closed(&mut broken);
    assert_eq!(
        asked(&mut stream, &message(GET, b"", b"k", b"")),
        (0, "v".to_owned())
    );
    // One too large is told so, leaves nothing older behind, and the connection goes on.
    let too_large = message(SET, &[0; 8], b"k", &vec![b'v'; 2_000_000]);
    let told = asked(&mut stream, &too_large);
    assert_eq!(told, (3, "Too large.".to_owned()));
    assert_eq!(asked(&mut stream, &message(GET, b"", b"k", b"")).0, 1);
}

#[test]
fn every_item_that_is_too_large_is_counted() {
    const ADD: u8 = 0x02;
    const APPEND: u8 = 0x0e;
    let server = Server::local("-t 2");
    let (mut text, mut binary) = (server.connect(), server.connect());
    let value = "v".repeat(2_000_000);
    let commands = ["set", "add", "replace", "append", "prepend", "cas"];
    for command in commands {
        let cas = if command == "cas" { " 1" } else { "" };
        let said = format!("{command} k 0 0 2000000{cas}\r\n{value}\r\nmn\r\n");
        let told = "SERVER_ERROR object too large for cache\r\nMN\r\n";
        assert_eq!(ask(&mut text, &said), told);
    }
    for (opcode, extras) in [(SET, 8), (ADD, 8), (APPEND, 0)] {
        let said = message(opcode, &[0; 8][..extras], b"k", value.as_bytes());
        assert_eq!(asked(&mut binary, &said).0, 3);
    }
    // A password that is too long is no item.
    let said = message(AUTHENTICATE, b"", b"PLAIN", value.as_bytes());
    assert_eq!(asked(&mut binary, &said).0, 3);
    assert_eq!(stats(&mut text)["store_too_large"], 6 + 3);
}

#[test]
fn items_without_memory_are_counted_in_their_classes() {
    let server = Server::local("-t 1 -m 32 -M");
    let (mut text, mut binary) = (server.connect(), server.connect());
    let value = "v".repeat(500_000);
    let mut stored = 0;
    let refused = loop {
        let set = message(
            SET,
            &[0; 8],
            format!("k{stored}").as_bytes(),
            value.as_bytes(),
        );
        match asked(&mut binary, &set) {
            (0, _) => stored += 1,
            (status, _) => break status,
        }
    };
    assert_eq!(refused, 0x82);
    let told = ask(&mut text, "stats items\r\nmn\r\n");
    let line = told.lines().find(|line| line.ends_with(":outofmemory 1"));
    assert!(line.is_some(), "{told}");
    assert_eq!(stats(&mut text)["store_no_memory"], 1);
}
