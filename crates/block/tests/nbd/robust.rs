//! Clients that stall, vanish, flood or talk nonsense, and a server that stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cenote_block::nbd::{Address, Config, Export, NbdError, Remote, Server};
use cenote_block::ram::RamDisk;
use proptest::prelude::*;

use crate::client::*;
use crate::gate::Gate;

fn still_serves(fixture: &Fixture) {
    let mut client = fixture.simple();
    client.request((READ, 0), 1, 0, 16);
    assert_eq!(client.simple_reply().0, 0);
    client.take(16);
    client.request((DISC, 0), 2, 0, 0);
    assert!(client.is_closed());
}

/// A WRITE, with its payload.
fn write(cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let header = header((WRITE, 0), cookie, offset, bytes.len() as u32);
    [&header[..], bytes].concat()
}

#[test]
fn requests_may_come_in_any_pieces() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    let mut bytes = header((WRITE, 0), 1, 100, 5);
    bytes.extend(b"hello");
    bytes.extend(header((READ, 0), 2, 100, 5));
    for byte in bytes {
        client.put(&[byte]);
    }
    assert_eq!(client.simple_reply(), (0, 1));
    assert_eq!(client.simple_reply(), (0, 2));
    assert_eq!(client.take(5), b"hello");
}

#[test]
fn many_requests_in_one_packet_are_all_answered() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    let mut bytes = Vec::new();
    for cookie in 0..5000 {
        bytes.extend(header((READ, 0), cookie, 0, 1));
    }
    let mut sender = Client {
        stream: client.stream.try_clone().unwrap(),
    };
    std::thread::scope(|scope| {
        scope.spawn(move || sender.put(&bytes));
        for cookie in 0..5000 {
            assert_eq!(client.simple_reply(), (0, cookie));
            client.take(1);
        }
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let fixture = Fixture::ram(64 << 20);
    let mut client = fixture.simple();
    let mut bytes = Vec::new();
    for cookie in 0..20 {
        bytes.extend(header((READ, 0), cookie, 0, 32 << 20));
    }
    client.put(&bytes);
    // Two requests of the largest size are all that fits in flight.
    fixture.wait_for("two reads", |stats| stats.reads == 2);
    still_serves(&fixture);
    assert_eq!(fixture.server.stats().reads, 3);
    for cookie in 0..20 {
        assert_eq!(client.simple_reply(), (0, cookie));
        client.take(32 << 20);
    }
}

#[test]
fn a_full_queue_delays_requests_and_loses_none() {
    let gate = Gate::new(1 << 20, 2);
    let fixture = Fixture::with(gate.clone(), |config| config.worker_count = 1);
    let mut clients = [fixture.simple(), fixture.simple()];
    for client in &mut clients {
        let requests: Vec<u8> = (0..50)
            .flat_map(|cookie| header((READ, 0), cookie, 0, 1))
            .collect();
        client.put(&requests);
    }
    gate.let_through(100);
    for client in &mut clients {
        for cookie in 0..50 {
            assert_eq!(client.simple_reply(), (0, cookie));
            client.take(1);
        }
    }
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let gate = Gate::new(1 << 20, 64);
    let fixture = Fixture::with(gate.clone(), |_| {});
    let mut in_queue = fixture.simple();
    in_queue.request((READ, 0), 1, 0, 4096);
    let mut in_payload = fixture.simple();
    in_payload.request((WRITE, 0), 1, 0, 100_000);
    in_payload.put(&[1; 50_000]);
    let mut in_header = fixture.simple();
    in_header.put(&header((WRITE, 0), 1, 0, 1)[..20]);
    let mut in_handshake = fixture.connect();
    in_handshake.put(b"\0\0");
    fixture.wait_for("the read and the write", |stats| stats.requests() == 2);
    drop((in_queue, in_payload, in_header, in_handshake));
    // The read's buffer is inside the queue, and its connection stays for it.
    fixture.wait_for("three ends", |stats| stats.connections_open == 1);
    gate.let_through(1);
    fixture.wait_for("the last end", |stats| stats.connections_open == 0);
    gate.let_through(1);
    still_serves(&fixture);
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let gate = Gate::new(1 << 20, 64);
    let fixture = Fixture::with(gate.clone(), |_| {});
    let mut client = fixture.simple();
    client.request((READ, 0), 1, 0, 4);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    gate.let_through(1);
    assert_eq!(client.simple_reply(), (0, 1));
    assert_eq!(client.take(4), [0; 4]);
    assert!(client.is_closed());
}

/// A server with a TCP address too, on a port that the kernel chooses.
fn with_tcp(gate: &Arc<Gate>) -> Fixture {
    Fixture::with(gate.clone(), |config| {
        config
            .addresses
            .push(Address::Tcp(([127, 0, 0, 1], 0).into()));
    })
}

#[test]
fn a_client_that_says_goodbye_over_tcp_gets_the_replies_to_what_was_taken() {
    let gate = Gate::new(1 << 20, 1);
    let fixture = with_tcp(&gate);
    let mut client = fixture.simple_tcp();
    // The second is held: the queue is full.
    for cookie in [1, 2] {
        client.request((READ, 0), cookie, 0, 4);
    }
    client.request((DISC, 0), 3, 0, 0);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    gate.let_through(2);
    for cookie in [1, 2] {
        assert_eq!(client.simple_reply(), (0, cookie));
        assert_eq!(client.take(4), [0; 4]);
    }
    assert!(client.is_closed());
}

/// Its client has sent it again by then, and what follows it.
#[test]
fn what_was_not_taken_of_a_connection_is_not_done_when_its_client_may_be_gone() {
    let gate = Gate::new(1 << 20, 1);
    let fixture = with_tcp(&gate);
    let mut before = fixture.simple_tcp();
    let mut after = fixture.simple_tcp();
    // On the worker of `before`.
    let mut neighbour = fixture.simple_tcp();
    let mut handled = |cookie| {
        neighbour.request((FLUSH, 0), cookie, 0, 0);
        assert_eq!(neighbour.simple_reply(), (0, cookie));
    };
    before.put(&write(1, 0, b"one"));
    fixture.wait_for("the first write", |_| gate.waiting() == 1);
    before.put(&[write(2, 3, b"two"), write(3, 6, b"old")].concat());
    fixture.wait_for("the write that is held", |stats| stats.writes == 2);
    // A client that is gone refuses the replies too, but that takes a while to be heard.
    before.stream.shutdown(std::net::Shutdown::Write).unwrap();
    handled(1);
    handled(2);
    after.put(&[write(3, 6, b"old"), write(4, 6, b"new")].concat());
    fixture.wait_for("both writes again", |stats| stats.writes == 4);

    gate.let_through(6);
    assert_eq!(after.simple_reply(), (0, 3));
    assert_eq!(after.simple_reply(), (0, 4));
    assert_eq!(before.simple_reply(), (0, 1));
    assert_eq!(before.simple_reply(), (0, 2));
    assert!(before.is_closed(), "what was taken is done, and no more");
    fixture.wait_for("its end", |stats| stats.connections_open == 2);
    after.request((READ, 0), 5, 0, 9);
    gate.let_through(1);
    assert_eq!(after.simple_reply(), (0, 5));
    assert_eq!(after.take(9), b"onetwonew");
}

#[test]
fn a_slow_handshake_is_given_up_and_a_slow_session_is_not() {
    let disk = Arc::new(RamDisk::new(1 << 20));
    let fixture = Fixture::with(disk, |config| config.handshake_limit = HANDSHAKE_LIMIT);
    let mut session = fixture.simple();
    let mut slow = fixture.connect();
    slow.greet();
    slow.put(b"IHAVE");
    assert!(slow.is_closed());
    session.request((READ, 0), 1, 0, 1);
    assert_eq!(session.simple_reply(), (0, 1));
}

#[test]
fn connections_above_the_limit_are_closed_and_room_is_reused() {
    let disk = Arc::new(RamDisk::new(1 << 20));
    let fixture = Fixture::with(disk, |config| config.connections_max = 2);
    let (first, second) = (fixture.simple(), fixture.simple());
    assert!(fixture.connect().is_closed());
    assert_eq!(fixture.server.stats().connections_refused, 1);
    drop(first);
    fixture.wait_for("room", |stats| stats.connections_open == 1);
    still_serves(&fixture);
    drop(second);
}

#[test]
fn a_wrong_request_magic_closes_the_connection() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    client.put(&[0; 28]);
    assert!(client.is_closed());
    still_serves(&fixture);
}

#[test]
fn stopping_finishes_what_is_in_flight_and_closes() {
    let gate = Gate::new(1 << 20, 64);
    let mut fixture = Some(Fixture::with(gate.clone(), |_| {}));
    let mut client = fixture.as_ref().unwrap().simple();
    client.request((WRITE, 0), 1, 0, 1);
    client.put(&[1]);
    fixture
        .as_ref()
        .unwrap()
        .wait_for("the write", |_| gate.waiting() == 1);
    let Fixture { server, socket, .. } = fixture.take().unwrap();
    let stopping = std::thread::spawn(move || server.stop());
    gate.let_through(1);
    assert_eq!(client.simple_reply(), (0, 1));
    assert!(client.is_closed());
    stopping.join().unwrap();
    assert!(!socket.exists());
}

/// Its client has sent it again by then, and what follows it: the old one must not come last.
#[test]
fn a_write_of_a_connection_that_is_gone_ends_before_its_client_is_served_again() {
    // With two, the connections before and after have a worker each.
    for worker_count in [1, 2] {
        let gate = Gate::new(1 << 20, 64);
        let fixture = Fixture::with(gate.clone(), |config| config.worker_count = worker_count);
        let mut before = fixture.simple();
        before.put(&write(1, 0, b"old"));
        fixture.wait_for("the old write", |_| gate.waiting() == 1);
        drop(before);
        let mut after = fixture.simple();
        let _others: Vec<_> = (1..worker_count).map(|_| fixture.simple()).collect();
        let mut neighbour = fixture.simple();
        after.put(&write(2, 2, b"new"));
        // The same worker answers it, so it has handled what came before.
        neighbour.request((FLUSH, 0), 3, 0, 0);
        assert_eq!(neighbour.simple_reply(), (0, 3));
        assert_eq!(gate.waiting(), 1, "the new write went to the queue");
        neighbour.put(&write(4, 5, b"far"));
        fixture.wait_for("a write of other bytes", |_| gate.waiting() == 2);

        gate.let_through(2);
        assert_eq!(neighbour.simple_reply(), (0, 4));
        gate.let_through(1);
        assert_eq!(after.simple_reply(), (0, 2));
        gate.let_through(1);
        after.request((READ, 0), 5, 0, 8);
        assert_eq!(after.simple_reply(), (0, 5));
        assert_eq!(after.take(8), b"olnewfar");
    }
}

/// Whose writes follow each other without a pause would keep it waiting for ever.
#[test]
fn a_wide_request_is_not_passed_by_writes_that_come_later() {
    for worker_count in [1, 2] {
        let gate = Gate::new(1 << 20, 64);
        let fixture = Fixture::with(gate.clone(), |config| config.worker_count = worker_count);
        let [mut writer, mut trimmer, mut other] = [(); 3].map(|()| fixture.simple());
        // One on each worker.
        let mut neighbours: Vec<_> = (0..2).map(|_| fixture.simple()).collect();
        writer.put(&write(1, 0, b"late"));
        fixture.wait_for("the first write", |_| gate.waiting() == 1);
        trimmer.request((TRIM, 0), 2, 0, 1 << 20);
        fixture.wait_for("the TRIM", |stats| stats.discards == 1);
        // The workers answer it, so they have handled what came before.
        let mut handled = |cookie| {
            for neighbour in &mut neighbours {
                neighbour.request((FLUSH, 0), cookie, 0, 0);
                assert_eq!(neighbour.simple_reply(), (0, cookie));
            }
        };
        handled(4);
        other.put(&write(3, 4, b"next"));
        fixture.wait_for("the second write", |stats| stats.writes == 2);
        handled(5);
        assert_eq!(gate.waiting(), 1, "the second write went first");

        gate.let_through(1);
        assert_eq!(writer.simple_reply(), (0, 1));
        gate.let_through(1);
        assert_eq!(trimmer.simple_reply(), (0, 2));
        gate.let_through(1);
        assert_eq!(other.simple_reply(), (0, 3));
        gate.let_through(1);
        other.request((READ, 0), 5, 0, 8);
        assert_eq!(other.simple_reply(), (0, 5));
        assert_eq!(other.take(8), b"\0\0\0\0next");
    }
}

/// It would zero what its client was told is written, on the connection that it makes instead.
#[test]
fn zeroing_ends_with_its_connection() {
    const STEPS: u32 = 256;
    let gate = Gate::new(u64::from(STEPS) << 20, 1);
    let fixture = Fixture::with(gate.clone(), |_| {});
    let mut client = fixture.simple();
    client.request((WRITE_ZEROES, NO_HOLE), 1, 0, STEPS << 20);
    fixture.wait_for("the first step", |_| gate.waiting() == 1);
    drop(client);
    let mut steps = 0;
    while fixture.server.stats().connections_open > 0 {
        assert!(steps < STEPS / 2, "it goes on");
        if gate.waiting() > 0 {
            gate.let_through(1);
            steps += 1;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gate.waiting(), 0);
    // Nothing of it is in anybody's way.
    gate.let_through(1);
    let mut next = fixture.simple();
    next.request((WRITE, 0), 2, (u64::from(STEPS) << 20) - 1, 1);
    next.put(&[1]);
    assert_eq!(next.simple_reply(), (0, 2));
}

#[test]
fn only_loopback_is_bound_unless_remote_is_allowed() {
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let config = |address: SocketAddr| {
        let export = Export {
            name: String::new(),
            disk: Arc::new(RamDisk::new(4096)),
        };
        Config::new(vec![export], vec![Address::Tcp(address)])
    };
    let refused = Server::start(config(any));
    assert!(matches!(refused, Err(NbdError::NotLoopback(address)) if address == any));
    let mut allowed = config(any);
    allowed.remote = Remote::Allow;
    let server = Server::start(allowed).unwrap();
    assert!(matches!(server.addresses(), [Address::Tcp(address)] if address.port() != 0));
}

#[test]
fn a_live_socket_is_kept_and_a_dead_one_replaced() {
    let fixture = Fixture::ram(4096);
    let start = |path: &std::path::Path| {
        let export = Export {
            name: String::new(),
            disk: Arc::new(RamDisk::new(4096)),
        };
        let address = Address::Unix(path.to_owned());
        Server::start(Config::new(vec![export], vec![address]))
    };
    assert!(matches!(start(&fixture.socket), Err(NbdError::Bind { .. })));
    still_serves(&fixture);
    let dead = fixture.socket.with_extension("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(start(&dead).is_ok());
    let file = fixture.socket.with_extension("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(start(&file), Err(NbdError::Bind { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever bytes come, before or after the handshake, the server serves on.
    #[test]
    fn mutated_streams_never_hurt_the_server(
        edits in prop::collection::vec((0usize..500, any::<u8>()), 0..10),
        past_handshake in any::<bool>(),
    ) {
        // One server for all cases: harm done by one shows in the next.
        static FIXTURE: std::sync::LazyLock<Fixture> =
            std::sync::LazyLock::new(|| Fixture::ram(1 << 20));
        let mut bytes = Vec::new();
        if !past_handshake {
            bytes.extend(3u32.to_be_bytes());
            bytes.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
            bytes.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0");
        }
        for (cookie, command) in [WRITE, READ, TRIM, WRITE_ZEROES, BLOCK_STATUS, FLUSH, READ]
            .into_iter()
            .enumerate()
        {
            bytes.extend(header((command, 0), cookie as u64, 8, 64));
            if command == WRITE {
                bytes.extend([cookie as u8; 64]);
            }
        }
        for (at, byte) in edits {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        let mut client = if past_handshake { FIXTURE.simple() } else { FIXTURE.connect() };
        // A server that closed early is free to refuse the rest.
        if std::io::Write::write_all(&mut client.stream, &bytes).is_ok()
            && client.stream.shutdown(std::net::Shutdown::Write).is_ok()
        {
            let mut replies = Vec::new();
            let ended = std::io::Read::read_to_end(&mut client.stream, &mut replies);
            prop_assert!(
                !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
                "the server neither answers nor closes"
            );
        }
        still_serves(&FIXTURE);
    }
}
