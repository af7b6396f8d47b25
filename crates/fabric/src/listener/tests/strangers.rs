//! Peers that lack the key, break the protocol or take their time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::MESSAGE_BYTES_MAX;
use crate::noise::{HANDSHAKE_BYTES, HELLO_BYTES, Initiator, Purpose};

#[test]
fn without_the_key_a_peer_hears_nothing_and_the_host_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let other = ClusterKey::generate().unwrap();
        let refused = connector(other)
            .connect(address, &hello(1), PATIENCE)
            .err()
            .expect("refused");
        assert!(
            matches!(refused, Error::Unauthenticated { .. }),
            "{refused}"
        );
        connect(address, 2).send(b"served").unwrap();
    }
    let mut stream = raw(&host);
    stream.write_all(&[0x5a; 4096]).ok();
    let mut heard = Vec::new();
    // A reset instead of an end is as silent.
    stream.read_to_end(&mut heard).ok();
    assert!(heard.is_empty());
}

#[test]
fn a_data_connection_needs_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let mut session = connect(address, 3);
        let (peer, _) = host.next_connected();
        connect(address, 3);
        until_closed(&mut *session);
        assert!(matches!(host.next(), Event::Disconnected { peer: p } if p == peer));
        let (second, _) = host.next_connected();
        assert!(matches!(host.next(), Event::Disconnected { peer: p } if p == second));
        assert!(matches!(
            session.endpoint(PATIENCE).err(),
            Some(Error::Closed)
        ));
    }
}

/// Connections of somebody without the key: silent, or stuck inside the first message.
fn idle(address: &Address, count: usize) -> Vec<TcpStream> {
    let Address::Tcp(target) = address else {
        panic!("{address} is not of tcp")
    };
    let (_, first) = Initiator::start(&key());
    let connected = (0..count).map(|index| {
        let mut stream = TcpStream::connect(target).unwrap();
        // The host may have dropped it for another already.
        stream
            .write_all(&first[..(index % 2) * (HANDSHAKE_BYTES - 1)])
            .ok();
        stream
    });
    connected.collect()
}

#[test]
fn idle_connections_never_keep_out_a_client() {
    for count in [200, 1000] {
        let host = Host::patient(&["tcp:127.0.0.1:0".parse().unwrap()]);
        let address = &host.addresses[0];
        let mut earlier = connect(address, 1);
        host.next_connected();
        let flood = idle(address, count);
        let mut session = connect(address, 2);
        host.next_connected();
        let endpoint = session.endpoint(PATIENCE).unwrap();
        // And again, as after a lost connection.
        drop((session, endpoint));
        assert!(matches!(host.next(), Event::Disconnected { .. }));
        session = connect(address, 2);
        host.next_connected();
        for session in [&mut earlier, &mut session] {
            session.send(b"served").unwrap();
            let answer = receive(&mut **session);
            assert!(matches!(answer, Incoming::Message(bytes) if bytes == b"served"));
        }
        let counts = *host.strangers.lock().unwrap();
        assert_eq!(counts.late, 0, "nobody's time is over: {counts:?}");
        assert_eq!(counts.proven, 4, "{counts:?}");
        assert!(counts.waiting <= 64, "a share of one source: {counts:?}");
        assert!(counts.displaced as usize >= count - 64, "{counts:?}");
        drop(flood);
    }
}

/// Connects, again where it went for others before it had spoken, as clients do.
fn persist(address: &Address, client: u128) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = connector(key()).connect(address, &hello(client), PATIENCE) {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[test]
fn those_who_come_again_and_again_never_keep_out_a_client() {
    let host = Host::patient(&["tcp:127.0.0.1:0".parse().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, target) = (Arc::clone(&stop), host.addresses[0].clone());
    let flood = thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        while !stopped.load(Ordering::Acquire) {
            held.extend(idle(&target, 10));
            while held.len() > 300 {
                held.pop_front();
            }
        }
    });
    let deadline = Instant::now() + PATIENCE;
    while host.strangers.lock().unwrap().displaced < 100 {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            host.strangers.lock().unwrap()
        );
        persist(&host.addresses[0], 7);
    }
    for client in 8..16 {
        persist(&host.addresses[0], client);
    }
    stop.store(true, Ordering::Release);
    flood.join().unwrap();
}

#[test]
fn each_address_has_places_of_its_own_and_strangers_are_told_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::patient(&both(&dir));
    let silent: Vec<_> = (0..100).map(|_| raw(&host)).collect();
    let other = idle(&host.addresses[1], 10);
    connect(&host.addresses[0], 1);
    connect(&host.addresses[1], 2);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counts = *host.strangers.lock().unwrap();
        // Of the silent ones as many as one source may have, less the one that went for the client.
        if (counts.waiting, counts.displaced) == (63 + 10, 36 + 1) {
            break;
        }
        assert!(Instant::now() < deadline, "{counts:?}");
        thread::yield_now();
    }
    drop(host);
    for mut stream in silent {
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).ok();
        assert!(heard.is_empty(), "a stranger is told nothing");
    }
    drop(other);
}

#[test]
fn slow_strangers_are_late_and_wrong_keys_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    let slow = idle(&host.addresses[1], 3);
    for address in &host.addresses {
        let other = connector(ClusterKey::generate().unwrap());
        let refused = other.connect(address, &hello(1), PATIENCE).err();
        let refused = refused.expect("refused");
        assert!(refused.to_string().contains("another key"), "{refused}");
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counts = *host.strangers.lock().unwrap();
        if (counts.wrong_key, counts.late, counts.waiting) == (2, 3, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "{counts:?}");
        thread::yield_now();
    }
    drop(slow);
}

#[test]
fn a_handshake_in_single_bytes_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    let mut stream = raw(&host);
    let (initiator, first) = Initiator::start(&key());
    first
        .iter()
        .for_each(|byte| stream.write_all(&[*byte]).unwrap());
    let mut answer = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let mut transport = initiator.finish(&answer).unwrap();
    let said = transport.hello(Purpose::Control, &hello(77));
    said.iter()
        .for_each(|byte| stream.write_all(&[*byte]).unwrap());
    assert_eq!(host.next_connected().1, hello(77));
}

#[test]
fn a_replayed_conversation_is_no_client() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let (mut stream, _, recorded) = proven(&host, Purpose::Control);
    host.next_connected();
    let mut replay = raw(&host);
    replay.write_all(&recorded).unwrap();
    let mut heard = Vec::new();
    replay.read_to_end(&mut heard).ok();
    assert!(
        heard.len() <= HANDSHAKE_BYTES,
        "an answer to the start, no welcome"
    );
    stream
        .write_all(&[0])
        .expect("the real one is not disturbed");
    assert!(host.events.try_recv().is_err(), "nobody else connected");
}

fn raw(host: &Host) -> UnixStream {
    let Address::Shm(path) = &host.addresses[0] else {
        panic!("the first address is shm")
    };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A client up to its welcome, by hand, and what it sent.
fn proven(host: &Host, purpose: Purpose) -> (UnixStream, crate::noise::Transport, Vec<u8>) {
    let mut stream = raw(host);
    let (initiator, first) = Initiator::start(&key());
    stream.write_all(&first).unwrap();
    let mut answer = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut answer).unwrap();
    let mut transport = initiator.finish(&answer).unwrap();
    let said: [u8; HELLO_BYTES] = transport.hello(purpose, &hello(9));
    stream.write_all(&said).unwrap();
    let mut welcome = [0; 20];
    stream.read_exact(&mut welcome).unwrap();
    assert_eq!(transport.open(&welcome[2..], &mut [0; 20]), Some(2));
    (stream, transport, [&first[..], &said[..]].concat())
}

fn sealed(transport: &mut crate::noise::Transport, plain: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 2 + plain.len() + 16];
    bytes[..2].copy_from_slice(&u16::try_from(plain.len() + 16).unwrap().to_le_bytes());
    transport.seal(plain, &mut bytes[2..]);
    bytes
}

#[test]
fn a_client_that_breaks_the_protocol_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    type Breakage = fn(&mut crate::noise::Transport) -> Vec<u8>;
    let breakages: [Breakage; 6] = [
        |_| vec![0xff, 0xff, 0],
        |_| vec![0, 0],
        |_| [&[17, 0][..], &[1; 17]].concat(),
        |transport| sealed(transport, &[9]),
        |transport| sealed(transport, &[2, 1]),
        |transport| sealed(transport, &vec![1; MESSAGE_BYTES_MAX + 2]),
    ];
    for breakage in breakages {
        let (mut stream, mut transport, _) = proven(&host, Purpose::Control);
        let (peer, _) = host.next_connected();
        let message = sealed(&mut transport, &[1, b'o', b'k']);
        let (head, tail) = message.split_at(7);
        stream.write_all(head).unwrap();
        stream.write_all(tail).unwrap();
        assert!(matches!(host.next(), Event::Message { bytes, .. } if bytes == b"ok"));
        stream.write_all(&breakage(&mut transport)).unwrap();
        assert!(matches!(host.next(), Event::Disconnected { peer: p } if p == peer));
    }
    connect(&host.addresses[0], 1).send(b"served").unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_conversations_leave_the_host_serving(
        edits in proptest::collection::vec((0..HANDSHAKE_BYTES + HELLO_BYTES + 60, 1..=255_u8), 1..4),
        cut in 0..HANDSHAKE_BYTES + HELLO_BYTES + 60,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::start(&[shm_address(&dir)]);
        let mut stream = raw(&host);
        let (initiator, mut first) = Initiator::start(&key());
        let flip = |bytes: &mut [u8], from: usize| {
            for &(place, value) in &edits {
                if let Some(byte) = place.checked_sub(from).and_then(|place| bytes.get_mut(place)) {
                    *byte ^= value;
                }
            }
        };
        flip(&mut first, 0);
        let started = stream.write_all(&first[..cut.min(HANDSHAKE_BYTES)]).is_ok() && cut >= HANDSHAKE_BYTES;
        let mut answer = [0; HANDSHAKE_BYTES];
        if started && stream.read_exact(&mut answer).is_ok() {
            let mut transport = initiator.finish(&answer).unwrap();
            let mut rest = transport.hello(Purpose::Control, &hello(3)).to_vec();
            rest.extend(sealed(&mut transport, &[2; 13]));
            rest.extend(sealed(&mut transport, b"\x01text"));
            flip(&mut rest, HANDSHAKE_BYTES);
            rest.truncate(cut - HANDSHAKE_BYTES);
            // The host may hang up first.
            stream.write_all(&rest).ok();
        }
        drop(stream);
        let mut session = connect(&host.addresses[0], 4);
        session.send(b"alive").unwrap();
        let alive = matches!(receive(&mut *session), Incoming::Message(bytes) if bytes == b"alive");
        prop_assert!(alive);
    }
}

#[test]
fn a_handshake_that_its_client_gave_up_ends_no_later_session_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    let (initiator, first) = Initiator::start(&key());
    let mut given_up = raw(&host);
    given_up.write_all(&first).unwrap();
    let mut answer = [0; HANDSHAKE_BYTES];
    given_up.read_exact(&mut answer).unwrap();
    let mut session = connect(&host.addresses[0], 4);
    host.next_connected();
    // What the network held back arrives.
    let mut transport = initiator.finish(&answer).unwrap();
    let said = transport.hello(Purpose::Control, &hello(4));
    given_up.write_all(&said).unwrap();
    let mut heard = Vec::new();
    given_up.read_to_end(&mut heard).ok();
    assert!(heard.is_empty(), "it is not welcome");
    session.send(b"served").unwrap();
    assert!(matches!(receive(&mut *session), Incoming::Message(bytes) if bytes == b"served"));
    assert!(matches!(host.next(), Event::Message { .. }));
}
