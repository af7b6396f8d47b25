//! Server threads, and peers that do what they should not. What callers see is in the conformance
//! suite.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use proptest::prelude::*;

use super::ring::{self, Memory, Way};
use super::stream::Stream;
use super::*;
use crate::listener::Listener;
use crate::memory::Mapping;
use crate::{
    Address, ClientId, ClusterKey, Connector, Error, Event, Generation, Hello, Listen, Rights,
    Session, Waker, WindowDescriptor, WindowId, WireProtection, connector_with,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn key() -> ClusterKey {
    ClusterKey::from_hex(&"37".repeat(32)).unwrap()
}

/// The client's number, then the request.
fn echo(call: Call<'_>, answer: &mut Vec<u8>) -> Answered {
    answer.push(call.client.0 as u8);
    answer.extend_from_slice(call.request);
    Answered::Now
}

/// A listener with server threads that echo.
struct Host {
    addresses: Vec<Address>,
    stop: Arc<AtomicBool>,
    threads: Vec<(Waker, JoinHandle<()>)>,
    /// Of all server threads.
    turns: Arc<AtomicUsize>,
    /// Connections of the last server thread.
    connections: Arc<AtomicUsize>,
}

impl Host {
    fn start(dir: &tempfile::TempDir, server_threads: usize) -> Self {
        let addresses = [
            Address::Shm(dir.path().join("host.sock")),
            "tcp:127.0.0.1:0".parse().unwrap(),
        ];
        let plain = WireProtection::Plain;
        let mut listener = Listener::bind_with(&addresses, &key(), plain, Vec::new()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for _ in 0..server_threads {
            let mut answerer = listener.answerer().unwrap();
            let (waker, stopped) = (answerer.waker(), Arc::clone(&stop));
            let (turns, connections) = (Arc::clone(&turns), Arc::clone(&connections));
            let serve = move || {
                while !stopped.load(Ordering::Acquire) {
                    answerer.turn(None, &mut echo).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                    connections.store(answerer.connections(), Ordering::Relaxed);
                }
            };
            threads.push((waker, thread::spawn(serve)));
        }
        let (addresses, waker) = (listener.addresses(), listener.waker());
        let stopped = Arc::clone(&stop);
        let control = move || {
            let mut events: Vec<Event> = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                listener.poll(None, &mut events).unwrap();
                events.clear();
            }
        };
        threads.push((waker, thread::spawn(control)));
        Self {
            addresses,
            stop,
            threads,
            turns,
            connections,
        }
    }

    /// Returns when no server thread takes turns any more.
    fn wait_until_asleep(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = self.turns.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
            if self.turns.load(Ordering::Relaxed) == before {
                return;
            }
            assert!(Instant::now() < deadline, "a server thread does not sleep");
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            let joined = thread.join();
            assert!(
                joined.is_ok() || thread::panicking(),
                "a host's thread panicked"
            );
        }
    }
}

fn connect(address: &Address, client: u128, protection: WireProtection) -> Box<dyn Session> {
    let hello = Hello {
        client: ClientId(client),
        name: "test".into(),
    };
    let connector = connector_with(key(), protection);
    connector.connect(address, &hello, PATIENCE).unwrap()
}

type Ended = (Token, std::result::Result<Vec<u8>, Status>);

/// Waits for `count` ends, blocking in between.
fn ends(caller: &mut dyn Caller, count: usize) -> Vec<Ended> {
    let deadline = Instant::now() + PATIENCE;
    let mut ended: Vec<Ended> = Vec::new();
    caller.flush();
    loop {
        caller.poll(Time::now(), &mut |token, answer| {
            ended.push((token, answer.map(<[u8]>::to_vec)));
        });
        if ended.len() >= count {
            return ended;
        }
        assert!(
            Instant::now() < deadline,
            "{} of {count} calls ended, {} under way",
            ended.len(),
            caller.outstanding()
        );
        let fds: Vec<_> = caller.fd().into_iter().collect();
        crate::wait(&fds, Some(Duration::from_millis(200))).unwrap();
    }
}

#[test]
fn a_host_without_server_threads_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&dir, 0);
    for address in &host.addresses {
        let session = connect(address, 5, WireProtection::Encrypted);
        let refused = session.caller_opener()(PATIENCE);
        assert!(matches!(refused, Err(Error::Unanswered { .. })));
    }
}

#[test]
fn connections_are_spread_over_server_threads_and_bounded_for_each_client() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&dir, 2);
    let session = connect(&host.addresses[0], 5, WireProtection::Plain);
    let mut callers = Vec::new();
    let bound = loop {
        match session.caller_opener()(PATIENCE) {
            Ok(caller) => callers.push(caller),
            Err(error) => break error,
        }
        assert!(callers.len() <= 64, "no bound on a client's connections");
    };
    assert!(matches!(bound, Error::Bound(_)), "{bound}");
    for caller in &mut callers {
        caller.call(&[1], 1).unwrap();
    }
    for caller in &mut callers {
        assert_eq!(ends(&mut **caller, 1), [(1, Ok(vec![5, 1]))]);
    }
}

/// A caller that takes no answers has its server thread sleep, hinders nobody else, and gets all of
/// them once it takes them; its end is noticed too.
#[test]
fn who_takes_no_answers_keeps_no_server_thread_awake() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&dir, 1);
    for address in &host.addresses {
        for protection in [WireProtection::Plain, WireProtection::Encrypted] {
            let session = connect(address, 5, protection);
            let mut idle = session.caller_opener()(PATIENCE).unwrap();
            let request = vec![1; CALL_BYTES_MAX - 8];
            let mut made = 0;
            // Until the answers have no room, and calls have none behind them.
            let mut refused_looks = 0;
            while refused_looks < 20 {
                if idle.call(&request, made as Token).is_ok() {
                    made += 1;
                    refused_looks = 0;
                } else {
                    refused_looks += 1;
                    thread::sleep(Duration::from_millis(5));
                }
                idle.flush();
            }
            host.wait_until_asleep();
            let other = connect(address, 6, protection);
            let mut caller = other.caller_opener()(PATIENCE).unwrap();
            caller.call(&[2], 1).unwrap();
            assert_eq!(ends(&mut *caller, 1), [(1, Ok(vec![6, 2]))]);
            host.wait_until_asleep();

            let ended = ends(&mut *idle, made);
            assert!(ended.iter().all(|(_, answer)| answer.is_ok()));
            host.wait_until_asleep();

            for token in 0..CALLS_UNDER_WAY_MAX as Token {
                if idle.call(&request, token).is_err() {
                    break;
                }
                idle.flush();
            }
            drop((idle, caller, session, other));
            let deadline = Instant::now() + PATIENCE;
            while host.connections.load(Ordering::Relaxed) > 0 {
                assert!(
                    Instant::now() < deadline,
                    "a server thread keeps what ended"
                );
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Nobody with many calls under way sleeps until the last of them is answered.
#[test]
fn who_shares_memory_has_the_first_answers_while_the_next_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("host.sock"));
    let plain = WireProtection::Plain;
    let addresses = std::slice::from_ref(&address);
    let mut listener = Listener::bind_with(addresses, &key(), plain, Vec::new()).unwrap();
    let mut answerer = listener.answerer().unwrap();
    let (waker, stop) = (listener.waker(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let control = thread::spawn(move || {
        while !stopped.load(Ordering::Acquire) {
            listener.poll(None, &mut Vec::new()).unwrap();
        }
    });
    let session = connect(&address, 5, plain);
    let mut caller = session.caller_opener()(PATIENCE).unwrap();
    for token in 0..32 {
        caller.call(&[1], token).unwrap();
    }
    caller.flush();
    let (mut ended, mut ended_before) = (0, Vec::new());
    while ended_before.len() < 32 {
        let mut handler = |_: Call<'_>, _: &mut Vec<u8>| {
            caller.poll(Time::now(), &mut |_, answer| {
                ended += usize::from(answer.is_ok())
            });
            ended_before.push(ended);
            Answered::Now
        };
        answerer.turn(None, &mut handler).unwrap();
    }
    let by_eights: Vec<_> = (0..32).map(|call| call / 8 * 8).collect();
    assert_eq!(ended_before, by_eights);
    stop.store(true, Ordering::Release);
    waker.wake();
    control.join().unwrap();
}

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    (a.into(), b.into())
}

/// Memory of one connection, as host and client see it.
fn rings() -> (Arc<crate::Region>, Mapping) {
    let region = Arc::new(ring::create().unwrap());
    let descriptor = WindowDescriptor {
        id: WindowId(0),
        generation: Generation(0),
        len_bytes: region.len_bytes(),
        rights: Rights::ALL,
    };
    let mapping = Mapping::new(region.as_fd(), descriptor).unwrap();
    (region, mapping)
}

#[test]
fn a_side_that_sleeps_is_woken_once_and_one_that_missed_something_does_not_sleep() {
    let (region, mapping) = rings();
    let (mut calls, _) = ring::ends(Memory::Client(Box::new(mapping)), Way::Calls);
    let (_, mut taken) = ring::ends(Memory::Host(region), Way::Answers);
    let mut message = vec![0; CALL_BYTES_MAX];
    assert!(taken.sleep(), "nothing is there");
    assert!(calls.push(1, b"a").unwrap());
    assert!(calls.publish(), "the reader sleeps");
    assert!(calls.push(2, b"b").unwrap());
    assert!(!calls.publish(), "it was woken already");
    assert!(!taken.sleep(), "two messages are there");
    taken.wake();
    while taken.next(&mut message).unwrap().is_some() {}
    assert!(calls.sleep(), "no room came yet");
    assert!(taken.release(), "the writer sleeps");
    assert!(!calls.sleep(), "room came");
}

/// A writer that does what it likes with shared memory.
#[derive(Clone, Debug)]
enum Mischief {
    Cell(usize, u64),
    Bytes(usize, Vec<u8>),
    Truncate,
    Honest(Vec<u8>),
}

fn mischief() -> impl Strategy<Value = Mischief> {
    let count = prop_oneof![0..64_u64, any::<u64>(), Just(512 * 1024), Just(u64::MAX)];
    prop_oneof![
        4 => (0..8_usize, count).prop_map(|(cell, value)| Mischief::Cell(cell * 64, value)),
        3 => (0..64_usize, prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(at, bytes)| Mischief::Bytes(4096 + at, bytes)),
        4 => prop::collection::vec(any::<u8>(), 0..600).prop_map(Mischief::Honest),
        1 => Just(Mischief::Truncate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A host's end of rings that a client scribbles over: messages or an end, never a panic, and
    /// no message that is longer than messages are.
    #[test]
    fn rings_survive_whatever_the_peer_writes(acts in prop::collection::vec(mischief(), 1..40)) {
        let (region, mapping) = rings();
        let mut scribbler = Mapping::new(region.as_fd(), mapping.descriptor).ok();
        let (mut honest, _) = ring::ends(Memory::Client(Box::new(mapping)), Way::Calls);
        let (mut answers, mut calls) = ring::ends(Memory::Host(Arc::clone(&region)), Way::Answers);
        let mut message = vec![0; CALL_BYTES_MAX];
        'acts: for act in acts {
            match act {
                Mischief::Cell(at, value) => {
                    if let Some(memory) = &scribbler {
                        memory.view.atomic(at).store(value, std::sync::atomic::Ordering::SeqCst);
                    }
                }
                Mischief::Bytes(at, bytes) => {
                    if let Some(memory) = &scribbler {
                        // SAFETY: far inside the mapping, which is larger than a page and 128 bytes.
                        let _lost = unsafe { memory.view.write(at, bytes.as_ptr(), bytes.len()) };
                    }
                }
                Mischief::Truncate => {
                    scribbler = None;
                    region.truncate().unwrap();
                }
                Mischief::Honest(body) => {
                    if honest.push(3, &body).is_ok() {
                        honest.publish();
                    }
                }
            }
            for _ in 0..100 {
                match calls.next(&mut message) {
                    Ok(Some((_, len))) => prop_assert!(len <= CALL_BYTES_MAX),
                    Ok(None) => break,
                    Err(_) => break 'acts,
                }
            }
            calls.release();
            if answers.push(1, &[7; 100]).is_err() {
                break;
            }
            answers.publish();
        }
    }

    /// A stream of any bytes: messages, waiting or an end, and bounded buffers.
    #[test]
    fn streams_survive_any_bytes(chunks in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 1..200), 1..20)) {
        let (socket, peer) = socket_pair();
        let mut stream = Stream::new(None);
        'all: for chunk in chunks {
            crate::socket::send(peer.as_fd(), &chunk, None).unwrap();
            loop {
                match stream.next() {
                    Ok(Some((_, body))) => prop_assert!(body.len() <= CALL_BYTES_MAX),
                    Ok(None) => match stream.fill(socket.as_fd()) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(_) => break 'all,
                    },
                    Err(_) => break 'all,
                }
            }
        }
    }

    /// Messages cut into any pieces by the network come out whole and in order.
    #[test]
    fn streams_put_messages_together(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 1..20),
        cuts in prop::collection::vec(1..9000_usize, 1..8),
    ) {
        let (socket, peer) = socket_pair();
        let (between, raw) = socket_pair();
        let (mut sender, mut receiver) = (Stream::new(None), Stream::new(None));
        for (id, body) in (0..).zip(&bodies) {
            prop_assert!(sender.push(id, body));
        }
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while sender.wants_write() {
            sender.flush(between.as_fd()).unwrap();
            while let Ok(Some(got)) = crate::socket::receive(raw.as_fd(), &mut buffer, None) {
                bytes.extend_from_slice(&buffer[..got]);
            }
        }
        let (mut rest, mut came) = (&bytes[..], Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            crate::socket::send(peer.as_fd(), piece, None).unwrap();
            rest = after;
            loop {
                if let Some((id, body)) = receiver.next().unwrap() {
                    came.push((id, body.to_vec()));
                } else if !receiver.fill(socket.as_fd()).unwrap() {
                    break;
                }
            }
        }
        let expected: Vec<_> = (0..).zip(bodies).collect();
        prop_assert_eq!(came, expected);
    }
}
