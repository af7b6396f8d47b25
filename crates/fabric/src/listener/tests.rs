use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use proptest::prelude::*;

use super::*;
use crate::memory::RegionOptions;
use crate::noise::{HANDSHAKE_BYTES, HELLO_BYTES, Initiator};
use crate::{
    Completion, CompletionQueue, Connector, Endpoint, Incoming, MESSAGE_BYTES_MAX, RemoteWindow,
    Session, Status, Time, connector,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn key() -> ClusterKey {
    ClusterKey::from_hex(&"42".repeat(32)).unwrap()
}

fn hello(client: u128) -> Hello {
    Hello {
        client: ClientId(client),
        name: "test".to_owned(),
    }
}

fn shm_address(dir: &tempfile::TempDir) -> Address {
    Address::Shm(dir.path().join("host.sock"))
}

fn both(dir: &tempfile::TempDir) -> [Address; 2] {
    [shm_address(dir), "tcp:127.0.0.1:0".parse().unwrap()]
}

/// A listener polled by its own thread, which echoes messages and keeps every event.
struct Host {
    addresses: Vec<Address>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    events: std::sync::mpsc::Receiver<Event>,
    table: Arc<WindowTable>,
}

impl Host {
    fn start(addresses: &[Address]) -> Self {
        let mut listener = Listener::bind(addresses, &key()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, events) = std::sync::mpsc::channel();
        let (addresses, waker, table) = (
            listener.addresses(),
            listener.waker(),
            Arc::clone(&listener.table),
        );
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut round = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                listener.poll(None, &mut round).unwrap();
                for event in round.drain(..) {
                    if let Event::Message { peer, bytes } = &event {
                        // The peer may be gone already, which a Disconnected tells.
                        listener.send(*peer, bytes).ok();
                    }
                    sender.send(event).unwrap();
                }
            }
        });
        Self {
            addresses,
            waker,
            stop,
            thread: Some(thread),
            events,
            table,
        }
    }

    fn next(&self) -> Event {
        self.events
            .recv_timeout(PATIENCE)
            .expect("an event of the host")
    }

    fn next_connected(&self) -> (PeerId, Hello) {
        match self.next() {
            Event::Connected { peer, hello } => (peer, hello),
            other => panic!("expected Connected, got {other:?}"),
        }
    }

    fn window(&self, len_bytes: u64, rights: Rights) -> WindowDescriptor {
        let region = Region::create("test", len_bytes, RegionOptions::default()).unwrap();
        self.table.register(Arc::new(region), rights).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.take().map(JoinHandle::join);
    }
}

fn connect(address: &Address, client: u128) -> Box<dyn Session> {
    connector(key())
        .connect(address, &hello(client), PATIENCE)
        .unwrap()
}

fn receive(session: &mut dyn Session) -> Incoming {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(incoming) = session.receive().unwrap() {
            return incoming;
        }
        assert!(Instant::now() < deadline, "nothing arrived on the session");
        crate::wait(&[session.fd()], Some(Duration::from_millis(100))).unwrap();
    }
}

fn until_closed(session: &mut dyn Session) -> Error {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match session.receive() {
            Ok(_) => assert!(Instant::now() < deadline, "the session stays open"),
            Err(error) => return error,
        }
        crate::wait(&[session.fd()], Some(Duration::from_millis(100))).unwrap();
    }
}

fn attach(session: &mut dyn Session, descriptor: WindowDescriptor) -> Result<RemoteWindow> {
    session.attach(descriptor).unwrap();
    match receive(session) {
        Incoming::Attached(answered, result) => {
            assert_eq!(
                (answered.id, answered.generation),
                (descriptor.id, descriptor.generation)
            );
            result
        }
        Incoming::Message(_) => panic!("expected an attach answer"),
    }
}

fn completion(endpoint: &mut dyn Endpoint, queue: &mut CompletionQueue) -> Completion {
    let deadline = Instant::now() + PATIENCE;
    endpoint.flush(queue);
    loop {
        if let Some(completion) = queue.pop() {
            return completion;
        }
        assert!(Instant::now() < deadline, "a verb does not complete");
        crate::wait(
            &endpoint.fd().into_iter().collect::<Vec<_>>(),
            Some(Duration::from_millis(10)),
        )
        .unwrap();
        endpoint.poll(Time::now(), queue);
    }
}

#[test]
fn a_client_attaches_reads_and_writes_and_loses_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for (client, address) in (1..).zip(&host.addresses) {
        let mut session = connect(address, client);
        assert_eq!(host.next_connected().1, hello(client));
        let descriptor = host.window(8192, Rights::ALL);
        let window = attach(&mut *session, descriptor).unwrap();
        assert_eq!(window.descriptor, descriptor);
        let mut endpoint = session.endpoint(PATIENCE).unwrap();
        let (mut queue, source, mut landing) =
            (CompletionQueue::default(), [7_u8; 4096], [0_u8; 4096]);
        let (to, from) = (source.as_ptr(), landing.as_mut_ptr());
        // SAFETY: both buffers outlive their verbs, whose completions are awaited.
        unsafe { endpoint.post_write(&window, 100, to, 4096, Some(9), 1, &mut queue) }.unwrap();
        assert_eq!(
            completion(&mut *endpoint, &mut queue),
            Completion {
                token: 1,
                status: Status::Ok,
                value: 0
            }
        );
        // SAFETY: as above.
        unsafe { endpoint.post_read(&window, 100, from, 4096, 2, &mut queue) }.unwrap();
        assert_eq!(
            completion(&mut *endpoint, &mut queue),
            Completion {
                token: 2,
                status: Status::Ok,
                value: 0
            }
        );
        assert_eq!(landing, source);
        match host.next() {
            Event::Immediate {
                window,
                offset: 100,
                len_bytes: 4096,
                value: 9,
                ..
            } => assert_eq!(window, descriptor.id),
            other => panic!("expected the immediate, got {other:?}"),
        }
        host.table.revoke(descriptor.id).unwrap();
        // SAFETY: as above.
        unsafe { endpoint.post_read(&window, 0, from, 8, 3, &mut queue) }.unwrap();
        let status = completion(&mut *endpoint, &mut queue).status;
        assert!(
            matches!(status, Status::Revoked | Status::StaleGeneration),
            "{status:?}"
        );
        assert!(matches!(
            attach(&mut *session, descriptor),
            Err(Error::StaleWindow)
        ));
        drop((session, endpoint));
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn messages_arrive_in_order_on_both_kinds_of_connection() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let mut session = connect(address, 5);
        let (peer, _) = host.next_connected();
        for index in 0..100_u8 {
            session
                .send(&vec![index; usize::from(index) * 160])
                .unwrap();
        }
        for index in 0..100_u8 {
            match receive(&mut *session) {
                Incoming::Message(bytes) => {
                    assert_eq!(bytes, vec![index; usize::from(index) * 160])
                }
                Incoming::Attached(..) => panic!("nothing was attached"),
            }
            assert!(matches!(host.next(), Event::Message { peer: p, .. } if p == peer));
        }
        let mut endpoint = session.endpoint(PATIENCE).unwrap();
        let mut queue = CompletionQueue::default();
        endpoint
            .post_send(b"by data connection", 1, &mut queue)
            .unwrap();
        assert_eq!(completion(&mut *endpoint, &mut queue).status, Status::Ok);
        match host.next() {
            Event::Message { peer: p, bytes } => {
                assert_eq!((p, &bytes[..]), (peer, &b"by data connection"[..]))
            }
            other => panic!("expected the SEND, got {other:?}"),
        }
        drop((session, endpoint));
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn a_later_session_of_a_client_ends_the_earlier_one_first() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let mut first = connect(address, 5);
        let (peer, _) = host.next_connected();
        let mut endpoint = first.endpoint(PATIENCE).unwrap();
        let mut second = connect(address, 5);
        assert!(matches!(host.next(), Event::Disconnected { peer: p } if p == peer));
        let (second_peer, _) = host.next_connected();
        assert_ne!(peer, second_peer);
        assert!(matches!(until_closed(&mut *first), Error::Closed));
        let mut queue = CompletionQueue::default();
        // The agent ends data connections by itself; what it still takes until then is not heard.
        let deadline = Instant::now() + PATIENCE;
        loop {
            endpoint.post_send(b"late", 1, &mut queue).unwrap();
            match completion(&mut *endpoint, &mut queue).status {
                Status::Disconnected => break,
                status => assert_eq!(status, Status::Ok),
            }
            assert!(
                Instant::now() < deadline,
                "the data connection outlives its session"
            );
        }
        second.send(b"served").unwrap();
        assert!(matches!(receive(&mut *second), Incoming::Message(bytes) if bytes == b"served"));
        assert!(matches!(host.next(), Event::Message { peer: p, .. } if p == second_peer));
        drop(second);
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn a_host_that_goes_takes_everything_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let mut session = connect(&host.addresses[0], 5);
    let window = attach(&mut *session, host.window(4096, Rights::ALL)).unwrap();
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    drop(host);
    assert!(matches!(until_closed(&mut *session), Error::Closed));
    assert!(
        endpoint.is_dead(),
        "the session's news reach the endpoint without a poll"
    );
    let (mut queue, mut landing) = (CompletionQueue::default(), [0_u8; 8]);
    // SAFETY: the landing outlives the verb, which completes at once.
    unsafe { endpoint.post_read(&window, 0, landing.as_mut_ptr(), 8, 1, &mut queue) }.unwrap();
    assert_eq!(queue.pop().unwrap().status, Status::Disconnected);
    assert!(!dir.path().join("host.sock").exists() && !dir.path().join("host.sock.lock").exists());
}

#[test]
fn an_endpoint_notices_the_end_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let session = connect(&host.addresses[0], 5);
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    drop(host);
    let mut queue = CompletionQueue::default();
    for _ in 0..64 {
        endpoint.poll(Time(0), &mut queue);
    }
    assert!(endpoint.is_dead());
}

#[test]
fn shm_verbs_are_checked_before_they_touch_anything() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let mut session = connect(&host.addresses[0], 5);
    let readable = attach(&mut *session, host.window(4096, Rights::READ)).unwrap();
    let writable = attach(&mut *session, host.window(4096, Rights::ALL)).unwrap();
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    let mut queue = CompletionQueue::default();
    let mut buffer = [0_u8; 16];
    let at = buffer.as_mut_ptr();
    let mut old = writable.clone();
    old.descriptor.generation = crate::Generation(old.descriptor.generation.0 ^ 1);
    // SAFETY: the buffer outlives the verbs, which complete at once.
    unsafe {
        endpoint
            .post_write(&readable, 0, at, 8, None, 1, &mut queue)
            .unwrap();
        endpoint
            .post_read(&readable, 4089, at, 8, 2, &mut queue)
            .unwrap();
        endpoint
            .post_read(&readable, u64::MAX, at, 8, 3, &mut queue)
            .unwrap();
        endpoint.post_read(&old, 0, at, 8, 4, &mut queue).unwrap();
    }
    endpoint
        .post_fetch_add(&readable, 0, 1, 5, &mut queue)
        .unwrap();
    endpoint
        .post_fetch_add(&writable, 4, 1, 6, &mut queue)
        .unwrap();
    endpoint
        .post_fetch_add(&writable, 8, 3, 7, &mut queue)
        .unwrap();
    endpoint
        .post_compare_swap(&writable, 8, 3, 4, 8, &mut queue)
        .unwrap();
    endpoint
        .post_compare_swap(&writable, 8, 3, 5, 9, &mut queue)
        .unwrap();
    let ended: Vec<_> = std::iter::from_fn(|| queue.pop())
        .map(|c| (c.status, c.value))
        .collect();
    use Status::{NoRights, Ok, OutOfBounds, StaleGeneration};
    let expected = [
        (NoRights, 0),
        (OutOfBounds, 0),
        (OutOfBounds, 0),
        (StaleGeneration, 0),
        (NoRights, 0),
        (OutOfBounds, 0),
        (Ok, 0),
        (Ok, 3),
        (Ok, 4),
    ];
    assert_eq!(ended, expected);
}

#[test]
fn sends_to_a_host_that_does_not_read_are_bounded_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let mut listener = Listener::bind(std::slice::from_ref(&address), &key()).unwrap();
    let (mut session, mut endpoint) = {
        let client = thread::spawn(move || {
            let session = connect(&address, 5);
            let endpoint = session.endpoint(PATIENCE).unwrap();
            (session, endpoint)
        });
        while !client.is_finished() {
            listener
                .poll(Some(Duration::from_millis(10)), &mut Vec::new())
                .unwrap();
        }
        client.join().unwrap()
    };
    let (mut queue, message) = (CompletionQueue::default(), vec![1; MESSAGE_BYTES_MAX]);
    let mut taken = 0_usize;
    loop {
        endpoint.post_send(&message, 0, &mut queue).unwrap();
        match queue.pop().unwrap().status {
            Status::Ok => taken += 1,
            Status::ReceiverNotReady => break,
            other => panic!("{other:?}"),
        }
        assert!(taken < 10_000, "nothing bounds the queue");
    }
    let mut queued = 0_usize;
    let refusal = loop {
        match session.send(&message) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
        assert!(queued < 10_000, "nothing bounds the session");
    };
    assert!(matches!(refusal, Error::Bound(_)) && session.wants_write());
    // Nothing that was taken is lost once the host reads.
    let (mut events, mut heard) = (Vec::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    while heard < taken + queued {
        listener
            .poll(Some(Duration::from_millis(10)), &mut events)
            .unwrap();
        heard += events
            .drain(..)
            .filter(|e| matches!(e, Event::Message { .. }))
            .count();
        assert!(session.receive().unwrap().is_none());
        endpoint.flush(&mut queue);
        assert!(
            Instant::now() < deadline,
            "{heard} of {} messages",
            taken + queued
        );
    }
    endpoint.post_send(&message, 0, &mut queue).unwrap();
    assert_eq!(queue.pop().unwrap().status, Status::Ok);
}

#[test]
fn a_peer_that_takes_no_answers_is_not_asked_for_more() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let mut listener = Listener::bind(std::slice::from_ref(&address), &key()).unwrap();
    let region = Arc::new(Region::create("test", 4096, RegionOptions::default()).unwrap());
    let descriptor = listener.register(region, Rights::ALL).unwrap();
    let client = thread::spawn(move || connect(&address, 5));
    let mut events = Vec::new();
    while !client.is_finished() {
        listener
            .poll(Some(Duration::from_millis(10)), &mut events)
            .unwrap();
    }
    let mut session = client.join().unwrap();
    let Some(Event::Connected { peer, .. }) = events.pop() else {
        panic!("no peer")
    };
    while listener.send(peer, &[0; MESSAGE_BYTES_MAX]).is_ok() {}
    assert!(matches!(
        listener.send(peer, &[0]),
        Ok(()) | Err(Error::Bound(_))
    ));
    let mut asked = 0_usize;
    while session.attach(descriptor).is_ok() && asked < 100_000 {
        asked += 1;
        listener.poll(Some(Duration::ZERO), &mut events).unwrap();
    }
    assert!(
        events.is_empty() && asked < 100_000,
        "requests are held back by the sockets' bounds"
    );
    let deadline = Instant::now() + PATIENCE;
    let mut attached = 0_usize;
    while attached < asked {
        listener.poll(Some(Duration::ZERO), &mut events).unwrap();
        while let Some(incoming) = session.receive().unwrap() {
            attached += usize::from(matches!(incoming, Incoming::Attached(_, Ok(_))));
        }
        assert!(Instant::now() < deadline, "{attached} of {asked} attached");
    }
}

#[test]
fn an_address_is_served_once_and_again_after_its_host_died() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let host = Host::start(std::slice::from_ref(&address));
    let again = Listener::bind(std::slice::from_ref(&address), &key())
        .err()
        .expect("refused");
    assert!(matches!(&again, Error::AddressInUse { .. }), "{again}");
    connect(&address, 1)
        .send(b"the first host is unharmed")
        .unwrap();
    drop(host);
    // What a killed host leaves: a socket file that nobody serves.
    let Address::Shm(path) = &address else {
        unreachable!("made above")
    };
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let host = Host::start(std::slice::from_ref(&address));
    connect(&address, 1).send(b"served").unwrap();
    drop(host);
    // A listener of some other program is left alone.
    let _foreign = std::os::unix::net::UnixListener::bind(path).unwrap();
    let refused = Listener::bind(&[address], &key()).err().expect("refused");
    assert!(matches!(refused, Error::AddressInUse { .. }));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = Address::Tcp(taken.local_addr().unwrap());
    assert!(matches!(
        Listener::bind(&[tcp], &key()).err(),
        Some(Error::AddressInUse { .. })
    ));
}

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

#[test]
fn slow_strangers_hold_a_bounded_number_of_places_for_a_bounded_time() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let (_, first) = Initiator::start(&key());
    // More than there are places: half of them silent, half stuck inside their first message.
    let slow: Vec<_> = (0..2 * STRANGER_COUNT_MAX)
        .map(|index| {
            let mut stream = raw(&host);
            stream
                .write_all(&first[..(index % 2) * (HANDSHAKE_BYTES - 1)])
                .unwrap();
            stream
        })
        .collect();
    connect(&host.addresses[0], 1)
        .send(b"served in the end")
        .unwrap();
    host.next_connected();
    for mut stream in slow {
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).ok();
        assert!(heard.is_empty(), "a stranger is told nothing");
    }
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
