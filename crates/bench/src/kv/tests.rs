//! The load against real servers, and against one that lies.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::load::Target;
use super::*;
use crate::swap_rig::is_installed;

const COUNT: u32 = 500;

fn shape(clients: usize, depth: usize, threads: usize) -> Shape {
    Shape {
        clients,
        depth,
        threads,
    }
}

fn load_of<'a>(target: &'a Target, items: &'a Items, book: &'a Book, shape: Shape) -> Load<'a> {
    Load {
        target,
        items,
        book,
        shape,
        is_tolerant: false,
    }
}

/// Until requests of both kinds were answered, by what is stored after them.
fn run_shortly(load: &Load<'_>) -> Result<Tally> {
    let mut time = Duration::from_millis(200);
    loop {
        let (tally, ()) = load.run((Mix::HALF, 1), time, |_| {
            std::thread::sleep(time);
            Ok(())
        })?;
        let has_both = [Kind::Get, Kind::Set].map(|kind| tally.count(kind) > 0);
        if has_both == [true; 2] || time > Duration::from_secs(20) {
            return Ok(tally);
        }
        // On a busy machine it may be that no thread of the load had its turn.
        time *= 2;
    }
}

#[test]
fn every_value_that_real_servers_return_is_right() {
    for (server, program) in [
        ("memcached", "memcached"),
        ("memcached*3", "memcached"),
        ("redis", "redis-server"),
    ] {
        if !is_installed(program) {
            println!("skipped: {program} is not installed");
            continue;
        }
        let running = Processes::start(&server.parse().unwrap(), 64).unwrap();
        assert!(usage::resident_bytes(&running.pids()).unwrap() > 0);
        for sizes in [Sizes::Fixed(40_000), Sizes::Zipf] {
            let items = Items::new(COUNT, sizes, 1);
            let book = Book::new(&items);
            let load = load_of(&running.target, &items, &book, shape(6, 8, 2));
            load.fill().unwrap();
            let tally = run_shortly(&load).unwrap();
            assert!(tally.count(Kind::Get) > 0 && tally.count(Kind::Set) > 0);
            let in_slices: u64 = tally.slices.iter().map(tally::Slice::total).sum();
            assert!(in_slices > 0 && in_slices <= tally.total());
            assert!(
                tally.is_sound() && tally.failures() == 0,
                "{}",
                tally.troubles()
            );
            let tally = load.read_back().unwrap();
            assert_eq!((tally.count(Kind::Get), tally.misses), (COUNT.into(), 0));
        }
    }
}

/// A memcached that answers each GET with what `lie` makes of the key, and stores nothing.
fn liar(lie: impl Fn(&str) -> Vec<u8> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let lie = lie.clone();
            // It ends when the client hangs up.
            std::thread::spawn(move || answer(&stream.unwrap(), lie));
        }
    });
    address
}

fn answer(stream: &TcpStream, lie: impl Fn(&str) -> Vec<u8>) -> Option<()> {
    let mut out = stream;
    for line in BufReader::new(stream).lines() {
        let line = line.ok()?;
        out.write_all(&lie(line.strip_prefix("get ")?)).ok()?;
    }
    Some(())
}

fn reply(key: &str, value: &[u8]) -> Vec<u8> {
    let mut reply = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\nEND\r\n");
    reply
}

fn read_from(
    lie: impl Fn(&str) -> Vec<u8> + Clone + Send + 'static,
    written: u32,
) -> Result<Tally> {
    let target = Target {
        protocol: Protocol::Memcached,
        addresses: vec![liar(lie)],
        route: Route::Any,
    };
    let items = Items::new(20, Sizes::Fixed(100), 1);
    let book = Book::new(&items);
    for item in 0..20 {
        for _ in 0..written {
            book.begin_write(item);
            book.end_write(item);
        }
    }
    load_of(&target, &items, &book, shape(2, 2, 1)).read_back()
}

/// What the load of [`read_from`] has stored.
fn honest(key: &str, version: u32) -> Vec<u8> {
    let items = Items::new(20, Sizes::Fixed(100), 1);
    let mut value = Vec::new();
    let item = key.strip_prefix("user").unwrap().parse().unwrap();
    items.push_value(item, version, &mut value);
    value
}

#[test]
fn a_server_that_lies_is_found_out() {
    let of = |tally: &Tally| (tally.total(), tally.misses, tally.wrong, tally.stale);
    let tally = read_from(|key| reply(key, &honest(key, 3)), 3).unwrap();
    assert_eq!(of(&tally), (20, 0, 0, 0), "the truth, for comparison");
    let one_bit = |key: &str| {
        let mut value = honest(key, 3);
        value[99] ^= 1;
        reply(key, &value)
    };
    assert_eq!(of(&read_from(one_bit, 3).unwrap()), (0, 0, 20, 0));
    let other = |key: &str| reply(key, &honest("user7", 3));
    assert_eq!(of(&read_from(other, 3).unwrap()), (1, 0, 19, 0));
    let old = |key: &str| reply(key, &honest(key, 2));
    assert_eq!(of(&read_from(old, 3).unwrap()), (0, 0, 0, 20));
    let unwritten = |key: &str| reply(key, &honest(key, 4));
    assert_eq!(of(&read_from(unwritten, 3).unwrap()), (0, 0, 0, 20));
    let forgotten = |_: &str| b"END\r\n".to_vec();
    assert_eq!(of(&read_from(forgotten, 3).unwrap()), (0, 20, 0, 0));
    let nonsense = |_: &str| b"what?\r\n".to_vec();
    assert!(read_from(nonsense, 0).is_err());
}

#[test]
fn a_lost_connection_ends_a_run_in_which_none_may_be_lost() {
    let hangs_up = |_: &str| Vec::new();
    let target = Target {
        protocol: Protocol::Memcached,
        addresses: vec![liar(hangs_up)],
        route: Route::Any,
    };
    let items = Items::new(20, Sizes::Fixed(100), 1);
    let book = Book::new(&items);
    // The liar ends the connection at the first SET.
    let error = load_of(&target, &items, &book, shape(1, 1, 1))
        .fill()
        .unwrap_err();
    assert!(
        error.to_string().contains("lost the connection"),
        "{error:#}"
    );
}

#[test]
fn each_of_two_servers_is_measured_and_compared_round_by_round() {
    if !is_installed("memcached") {
        println!("skipped: memcached is not installed");
        return;
    }
    let options = Options {
        mixes: vec![Mix::HALF],
        sizes: vec![Sizes::Fixed(1024)],
        depths: vec![2],
        clients: 2,
        mib: 1,
        seconds: 0.5,
        rounds: 2,
        ..Options::new(vec![Server::memcached(), Server::memcached()])
    };
    let rows = run(&options).unwrap();
    let metrics: Vec<_> = rows.iter().map(|row| row.metric).collect();
    assert_eq!(
        metrics[..3],
        ["resident_per_byte", "beside_values", "throughput"]
    );
    assert!(metrics.contains(&"set_p99") && metrics.contains(&"get_p50"));
    // A round in which a busy machine answered nothing has no ratio, so no row must have a spread.
    for row in rows.iter().filter(|row| row.metric == "throughput") {
        assert!(row.ours > 0.0, "{row:?}");
    }
}
