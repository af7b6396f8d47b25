//! Real clients of memcached as loads that check what they were promised: that each works, and that
//! each finds a store out that forgets.

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Child;
use std::time::{Duration, Instant};

use cenote_test_kit::memcached_clients as client;
use support::Memcached;

const TMPDIR: &str = env!("CARGO_TARGET_TMPDIR");

/// Values that a server has taken so far.
fn stored(server: &Memcached) -> u64 {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"stats\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("STAT cmd_set "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until a client has written more than its trial of the protocol, or has ended.
fn until_it_has_stored(server: &Memcached, running: &mut Child) {
    let patience = Instant::now() + Duration::from_secs(600);
    while stored(server) < 60 && running.try_wait().unwrap().is_none() {
        assert!(Instant::now() < patience, "it stores nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn works(name: &str) {
    if !client::is_ready(name, TMPDIR) {
        return;
    }
    let Some(server) = Memcached::start() else {
        return println!("skipped: memcached is not installed");
    };
    let mut running = client::start(name, &[server.address()], TMPDIR);
    until_it_has_stored(&server, &mut running);
    let Some((code, words)) = client::end(running) else {
        return;
    };
    assert_eq!(code, 0, "{words}");
    let lines = words.lines();
    let counts: serde_json::Value = lines
        .last()
        .and_then(|line| serde_json::from_str(line).ok())
        .expect("it ends with JSON");
    assert!(counts["acknowledged"].as_u64() > Some(10), "{words}");
    assert!(stored(&server) >= counts["acknowledged"].as_u64().unwrap());
}

/// Of two servers that know nothing of each other one is killed, with what it holds.
fn finds_a_store_out_that_forgets(name: &str) {
    if !client::is_ready(name, TMPDIR) {
        return;
    }
    let (Some(victim), Some(other)) = (Memcached::start(), Memcached::start()) else {
        return println!("skipped: memcached is not installed");
    };
    let mut running = client::start(name, &[victim.address(), other.address()], TMPDIR);
    until_it_has_stored(&victim, &mut running);
    drop(victim);
    let Some((code, words)) = client::end(running) else {
        return;
    };
    assert_eq!(code, 1, "{words}");
    assert!(
        !words.contains("\"lost\":0") && !words.contains("\"lost\": 0"),
        "{words}"
    );
}

macro_rules! clients {
    ($($name:ident),*) => {$(
        mod $name {
            #[test]
            fn reads_what_was_acknowledged() {
                crate::works(stringify!($name));
            }

            #[test]
            fn finds_a_store_out_that_forgets() {
                crate::finds_a_store_out_that_forgets(stringify!($name));
            }
        }
    )*};
}

clients!(tools);

/// Those of other languages, which their registries give.
mod long {
    clients!(pymemcache, pylibmc, gomemcache, ycsb);
}
