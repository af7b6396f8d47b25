//! Endpoint against agent, and each against a peer that misbehaves, over loopback.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::agent::{Agent, AgentEvent};
use super::endpoint::TcpEndpoint;
use super::wire::{Request, Response, Verb};
use crate::memory::{Region, RegionOptions};
use crate::windows::WindowTable;
use crate::{
    ClientId, Completion, CompletionQueue, Endpoint, FAILURE_TIMEOUT, Generation, QUEUE_DEPTH,
    QueueFull, RemoteWindow, Rights, Status, Time, Waker, WindowId, wait,
};

const CLIENT: ClientId = ClientId(7);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (ours, theirs)
}

/// A host without its control side.
struct Rig {
    table: Arc<WindowTable>,
    agent: Agent,
    events: Receiver<AgentEvent>,
}

impl Rig {
    fn new(queue: usize) -> Self {
        let table = Arc::new(WindowTable::new());
        let (outbox, events) = sync_channel(queue);
        let agent = Agent::spawn(Arc::clone(&table), outbox, Waker::new().unwrap()).unwrap();
        Self {
            table,
            agent,
            events,
        }
    }

    fn window(&self, len_bytes: u64, rights: Rights) -> (Arc<Region>, RemoteWindow) {
        let options = RegionOptions {
            huge: false,
            lock: false,
        };
        let region = Arc::new(Region::create("test", len_bytes, options).unwrap());
        let descriptor = self.table.register(Arc::clone(&region), rights).unwrap();
        (
            region,
            RemoteWindow {
                descriptor,
                mapping: None,
            },
        )
    }

    fn client(&self) -> Client {
        let (ours, theirs) = sockets();
        self.agent.adopt(theirs, CLIENT);
        Client::new(ours)
    }
}

struct Client {
    endpoint: TcpEndpoint,
    queue: CompletionQueue,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Self {
            endpoint: TcpEndpoint::new(stream).unwrap(),
            queue: CompletionQueue::default(),
        }
    }

    fn read(&mut self, window: &RemoteWindow, offset: u64, landing: &mut [u8], token: u64) {
        let (start, len) = (landing.as_mut_ptr(), landing.len());
        // SAFETY: every test keeps its landings until it has the completion or has revoked them.
        unsafe {
            self.endpoint
                .post_read(window, offset, start, len, token, &mut self.queue)
        }
        .unwrap();
    }

    fn write(&mut self, window: &RemoteWindow, offset: u64, source: &[u8], token: u64) {
        let (start, len) = (source.as_ptr(), source.len());
        // SAFETY: every test keeps its sources until it has the completion.
        unsafe {
            self.endpoint
                .post_write(window, offset, start, len, None, token, &mut self.queue)
        }
        .unwrap();
    }

    /// Waits for the next completion.
    fn next(&mut self) -> Completion {
        self.endpoint.flush(&mut self.queue);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(completion) = self.queue.pop() {
                return completion;
            }
            assert!(
                Instant::now() < deadline,
                "{} outstanding",
                self.endpoint.outstanding()
            );
            if let Some(fd) = self.endpoint.fd() {
                wait(&[fd], Some(Duration::from_millis(100))).unwrap();
            }
            self.endpoint.poll(Time::now(), &mut self.queue);
        }
    }

    fn statuses(&mut self, count: usize) -> Vec<Status> {
        (0..count).map(|_| self.next().status).collect()
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9) >> 7 ^ seed) as u8)
        .collect()
}

#[test]
fn long_verbs_cross_full_sockets_both_ways() {
    let rig = Rig::new(1);
    const LEN: usize = 24 << 20;
    let (_region, window) = rig.window(LEN as u64, Rights::ALL);
    let mut client = rig.client();
    let written = pattern(LEN, 1);
    let mut read = vec![0; LEN];
    client.write(&window, 0, &written, 1);
    client.read(&window, 0, &mut read, 2);
    assert_eq!(client.statuses(2), [Status::Ok; 2]);
    assert!(read == written, "the bytes differ");
}

#[test]
fn a_read_does_not_see_a_write_posted_after_it() {
    let rig = Rig::new(1);
    let (region, window) = rig.window(1 << 20, Rights::ALL);
    region.write(0, &[1; 8192]).unwrap();
    let mut client = rig.client();
    let mut landing = vec![0; 4096];
    client.read(&window, 100, &mut landing, 1);
    client.write(&window, 4195, &[2], 2);
    client
        .endpoint
        .post_fetch_add(&window, 4184, 9, 3, &mut client.queue)
        .unwrap();
    let mut after = vec![0; 4096];
    client.read(&window, 100, &mut after, 4);
    assert_eq!(client.statuses(4), [Status::Ok; 4]);
    assert_eq!(landing, [1; 4096]);
    assert_eq!((after[4095], after[4084]), (2, 10));
}

#[test]
fn many_verbs_posted_together_cost_few_system_calls() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(1 << 20, Rights::ALL);
    let mut client = rig.client();
    client.write(&window, 0, &[1], 0);
    client.next();
    let before = client.endpoint.system_calls();
    let mut landing = vec![0; 64 * 512];
    for (i, part) in landing.chunks_mut(512).enumerate() {
        client.read(&window, i as u64 * 4096, part, i as u64);
    }
    client.endpoint.flush(&mut client.queue);
    assert_eq!(
        client.endpoint.system_calls() - before,
        1,
        "one call sends 64 requests"
    );
    assert_eq!(client.statuses(64), [Status::Ok; 64]);
}

#[test]
fn refused_verbs_change_nothing_and_keep_the_stream_in_step() {
    let rig = Rig::new(1);
    let (region, window) = rig.window(64 * 1024, Rights::READ);
    let mut stale = window.clone();
    stale.descriptor.generation = Generation(window.descriptor.generation.0 ^ 1 << 40);
    let mut unknown = window.clone();
    unknown.descriptor.id = WindowId(999_999);
    let mut client = rig.client();
    let source = vec![9; 100_000];
    let mut landing = vec![0; 100_000];
    client.write(&window, 0, &source[..4096], 1);
    client.write(&stale, 0, &source, 2);
    client.read(&unknown, 0, &mut landing, 3);
    client.read(&window, 65_000, &mut landing[..1000], 4);
    client.read(&window, u64::MAX, &mut landing[..1], 5);
    client
        .endpoint
        .post_fetch_add(&window, 0, 1, 6, &mut client.queue)
        .unwrap();
    client.read(&window, 65_536, &mut [], 7);
    client.read(&window, 65_537, &mut [], 8);
    client.read(&window, 0, &mut landing[..8], 9);
    use Status::{NoRights, Ok, OutOfBounds, StaleGeneration};
    let expected = [
        NoRights,
        StaleGeneration,
        StaleGeneration,
        OutOfBounds,
        OutOfBounds,
        NoRights,
        Ok,
        OutOfBounds,
        Ok,
    ];
    assert_eq!(client.statuses(9), expected);
    let mut bytes = vec![1; 64 * 1024];
    region.read(0, &mut bytes).unwrap();
    assert!(
        bytes.iter().all(|byte| *byte == 0),
        "a refused write changed the window"
    );
}

#[test]
fn a_window_revoked_halfway_through_a_read_is_reported() {
    let rig = Rig::new(1);
    const LEN: usize = 64 << 20;
    let (_region, window) = rig.window(LEN as u64, Rights::ALL);
    let mut client = rig.client();
    let mut landing = vec![0; LEN];
    client.read(&window, 0, &mut landing, 1);
    client.endpoint.flush(&mut client.queue);
    // The first bytes are here, and the rest does not fit the socket buffers.
    wait(&[client.endpoint.fd().unwrap()], None).unwrap();
    rig.table.revoke(window.descriptor.id).unwrap();
    client.read(&window, 0, &mut [0; 8], 2);
    assert_eq!(
        client.statuses(2),
        [Status::Revoked, Status::StaleGeneration]
    );
}

#[test]
fn a_window_revoked_halfway_through_a_write_drains_the_rest() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(1 << 20, Rights::ALL);
    let (ours, theirs) = sockets();
    rig.agent.adopt(theirs, CLIENT);
    let mut stream = ours;
    let request = Request {
        verb: Verb::Write,
        len_bytes: 1 << 20,
        window: window.descriptor.id.0,
        immediate: None,
        generation: window.descriptor.generation.0,
        offset: 0,
        operand: 0,
        swap: 0,
    };
    let ping = Request {
        verb: Verb::Send,
        len_bytes: 0,
        ..request
    };
    stream.write_all(&ping.encode()).unwrap();
    stream.write_all(&request.encode()).unwrap();
    stream.write_all(&[5; 1000]).unwrap();
    let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(
        event,
        AgentEvent::Message {
            client: CLIENT,
            bytes: vec![]
        }
    );
    rig.table.revoke(window.descriptor.id).unwrap();
    let (reused, _) = rig.window(1 << 20, Rights::ALL);
    stream.write_all(&vec![5; (1 << 20) - 1000]).unwrap();
    let mut answers = [0; 32];
    stream.read_exact(&mut answers).unwrap();
    let status = Response::decode(answers[16..].try_into().unwrap())
        .unwrap()
        .status;
    // Whether the first piece was in before the revoke is a race; both ends of it are refusals.
    assert!(
        matches!(status, Status::Revoked | Status::StaleGeneration),
        "{status:?}"
    );
    let mut bytes = vec![1; 1 << 20];
    reused.read(0, &mut bytes).unwrap();
    assert!(
        bytes.iter().all(|byte| *byte == 0),
        "late bytes landed in the next window"
    );
}

#[test]
fn a_client_that_takes_no_responses_is_not_read_and_loses_nothing() {
    let rig = Rig::new(1);
    let (region, window) = rig.window(1 << 20, Rights::ALL);
    region.write(0, &pattern(1 << 20, 3)).unwrap();
    let mut slow = rig.client();
    let mut landing = vec![0; 64 << 20];
    for (i, part) in landing.chunks_mut(1 << 20).enumerate() {
        slow.read(&window, 0, part, i as u64);
    }
    slow.endpoint.flush(&mut slow.queue);
    let mut other = rig.client();
    let mut byte = [0; 4096];
    other.read(&window, 0, &mut byte, 1);
    assert_eq!(
        other.next().status,
        Status::Ok,
        "the other connection is served meanwhile"
    );
    assert_eq!(slow.statuses(64), [Status::Ok; 64]);
    let expected = pattern(1 << 20, 3);
    assert!(
        landing.chunks(1 << 20).all(|part| part == expected),
        "the bytes differ"
    );
}

#[test]
fn a_full_event_queue_refuses_messages_and_immediates() {
    let rig = Rig::new(2);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let mut client = rig.client();
    for token in 0..3 {
        client
            .endpoint
            .post_send(&[token as u8], token, &mut client.queue)
            .unwrap();
    }
    let byte = [1];
    // SAFETY: `byte` outlives the completion awaited below.
    unsafe {
        let queue = &mut client.queue;
        client
            .endpoint
            .post_write(&window, 3, byte.as_ptr(), 1, Some(77), 3, queue)
            .unwrap();
    }
    use Status::{Ok, ReceiverNotReady};
    assert_eq!(
        client.statuses(4),
        [Ok, Ok, ReceiverNotReady, ReceiverNotReady]
    );
    for expected in 0..2 {
        let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(
            event,
            AgentEvent::Message {
                client: CLIENT,
                bytes: vec![expected]
            }
        );
    }
    client
        .endpoint
        .post_send(&[9], 4, &mut client.queue)
        .unwrap();
    assert_eq!(client.next().status, Ok);
}

#[test]
fn disconnect_ends_every_connection_of_that_client_alone() {
    let rig = Rig::new(8);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let mut leaving = [rig.client(), rig.client()];
    let (ours, theirs) = sockets();
    rig.agent.adopt(theirs, ClientId(8));
    let mut staying = Client::new(ours);
    rig.agent.disconnect(CLIENT);
    for client in &mut leaving {
        let mut landing = [0; 8];
        client.read(&window, 0, &mut landing, 1);
        assert_eq!(client.next().status, Status::Disconnected);
        assert!(client.endpoint.is_dead());
        let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(event, AgentEvent::Closed { client: CLIENT });
    }
    let mut landing = [0; 8];
    staying.read(&window, 0, &mut landing, 1);
    assert_eq!(staying.next().status, Status::Ok);
}

#[test]
fn a_silent_peer_times_out_every_verb_and_later_ones_at_once() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let (ours, _silent) = sockets();
    let mut client = Client::new(ours);
    let mut landing = [0; 8];
    client.read(&window, 0, &mut landing, 1);
    client.write(&window, 0, &[1], 2);
    client.endpoint.flush(&mut client.queue);
    let start = Time(5_000_000_000);
    client.endpoint.poll(start, &mut client.queue);
    client.endpoint.poll(
        start.after(FAILURE_TIMEOUT - Duration::from_nanos(1)),
        &mut client.queue,
    );
    assert!(client.queue.is_empty() && !client.endpoint.is_dead());
    client
        .endpoint
        .poll(start.after(FAILURE_TIMEOUT), &mut client.queue);
    assert_eq!((client.queue.len(), client.endpoint.outstanding()), (2, 0));
    client
        .endpoint
        .post_send(b"late", 3, &mut client.queue)
        .unwrap();
    for token in 1..=3 {
        let completion = client.queue.pop().unwrap();
        assert_eq!(
            completion,
            Completion {
                token,
                status: Status::Timeout,
                value: 0
            }
        );
    }
}

#[test]
fn idle_time_is_not_silence() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let (ours, _silent) = sockets();
    let mut client = Client::new(ours);
    let mut at = Time(1);
    for _ in 0..3 {
        at = at.after(FAILURE_TIMEOUT * 2);
        client.endpoint.poll(at, &mut client.queue);
    }
    let mut landing = [0; 8];
    client.read(&window, 0, &mut landing, 1);
    client.endpoint.flush(&mut client.queue);
    client
        .endpoint
        .poll(at.after(FAILURE_TIMEOUT * 2), &mut client.queue);
    assert!(!client.endpoint.is_dead());
}

#[test]
fn an_idle_endpoint_notices_that_its_peer_is_gone() {
    let (ours, theirs) = sockets();
    let mut client = Client::new(ours);
    drop(theirs);
    let fd = client.endpoint.fd().unwrap();
    assert!(wait(&[fd], Some(Duration::from_secs(20))).unwrap());
    client.endpoint.poll(Time::now(), &mut client.queue);
    assert!(client.endpoint.is_dead());
}

#[test]
fn late_bytes_miss_a_revoked_landing() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(1 << 20, Rights::ALL);
    let (ours, mut host) = sockets();
    let mut client = Client::new(ours);
    let mut landings = vec![0_u8; 3 * 40_000];
    for (i, part) in landings.chunks_mut(40_000).enumerate() {
        client.read(&window, 0, part, i as u64);
    }
    client.endpoint.flush(&mut client.queue);
    let trailer = Response {
        status: Status::Ok,
        len_bytes: 40_000,
        value: 0,
    }
    .encode();
    host.write_all(&[1; 40_000]).unwrap();
    host.write_all(&trailer).unwrap();
    assert_eq!(client.next().token, 0);
    // Half of the second answer arrives before its landing is revoked, half after.
    host.write_all(&[2; 20_000]).unwrap();
    while landings[59_999] != 2 {
        client.endpoint.poll(Time(1), &mut client.queue);
        // Keeps the compiler from assuming that `poll` cannot reach the landings.
        std::hint::black_box(landings.as_mut_ptr());
    }
    client.endpoint.revoke_landing(1);
    host.write_all(&[3; 20_000]).unwrap();
    host.write_all(&trailer).unwrap();
    host.write_all(&[4; 40_000]).unwrap();
    host.write_all(&trailer).unwrap();
    assert_eq!(client.statuses(2), [Status::Ok; 2]);
    let part = |range: std::ops::Range<usize>, value| landings[range].iter().all(|b| *b == value);
    assert!(part(0..40_000, 1) && part(40_000..60_000, 2) && part(80_000..120_000, 4));
    assert!(part(60_000..80_000, 0), "late bytes landed");
}

#[test]
fn the_queue_bound_refuses_and_posts_nothing() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(4096, Rights::ALL);
    let mut client = rig.client();
    let post = |client: &mut Client, token| {
        client
            .endpoint
            .post_fetch_add(&window, 8, 1, token, &mut client.queue)
    };
    for token in 0..QUEUE_DEPTH as u64 {
        post(&mut client, token).unwrap();
    }
    assert_eq!(post(&mut client, 0), Err(QueueFull));
    for before in 0..QUEUE_DEPTH as u64 {
        let expected = Completion {
            token: before,
            status: Status::Ok,
            value: before,
        };
        assert_eq!(client.next(), expected);
    }
    post(&mut client, 1).unwrap();
    assert_eq!(client.next().value, QUEUE_DEPTH as u64);
}

/// Well-formed requests, most of them on the window, as raw bytes.
fn stream(window: &RemoteWindow) -> impl Strategy<Value = Vec<u8>> + use<> {
    let descriptor = window.descriptor;
    let request = (1..=5_u8, 0..6000_u32, 0..9000_u64, any::<u8>()).prop_map(
        move |(verb, len, offset, byte)| {
            let mut request = Request {
                verb: Verb::Read,
                len_bytes: len,
                window: descriptor.id.0,
                immediate: None,
                generation: descriptor.generation.0 ^ u64::from(byte == 0),
                offset,
                operand: u64::from(byte),
                swap: 1,
            };
            match verb {
                1 => {}
                2 => {
                    (request.verb, request.immediate) = (Verb::Write, (byte & 1 == 1).then_some(5))
                }
                3 => request.verb = Verb::Send,
                4 => (request.verb, request.len_bytes) = (Verb::CompareSwap, 8),
                _ => (request.verb, request.len_bytes) = (Verb::FetchAdd, 8),
            }
            let mut bytes = request.encode().to_vec();
            bytes.resize(bytes.len() + request.payload_bytes() as usize, byte);
            bytes
        },
    );
    proptest::collection::vec(request, 0..12).prop_map(|requests| requests.concat())
}

#[test]
fn no_byte_stream_harms_the_agent_or_another_connection() {
    let rig = Rig::new(64);
    let (_, target) = rig.window(8192, Rights::ALL);
    let (witness_region, witness_window) = rig.window(4096, Rights::ALL);
    let mark = pattern(4096, 11);
    witness_region.write(0, &mark).unwrap();
    let witness = std::cell::RefCell::new(rig.client());
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(
            &(stream(&target), edits, noise, any::<bool>()),
            |(mut bytes, edits, noise, tail)| {
                for (at, value) in edits {
                    if !bytes.is_empty() {
                        let at = at.index(bytes.len());
                        bytes[at] = value;
                    }
                }
                bytes.extend(noise);
                let (mut ours, theirs) = sockets();
                rig.agent.adopt(theirs, ClientId(99));
                // The agent may close in the middle: then the rest is refused, which is fine.
                let sent = ours
                    .write_all(&bytes)
                    .and_then(|()| ours.shutdown(std::net::Shutdown::Write));
                if sent.is_ok() && tail {
                    ours.set_read_timeout(Some(Duration::from_secs(20)))
                        .unwrap();
                    if let Err(error) = ours.read_to_end(&mut Vec::new()) {
                        prop_assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                    }
                }
                drop(ours);
                while rig.events.try_recv().is_ok() {}
                let mut landing = vec![0; 4096];
                let mut witness = witness.borrow_mut();
                witness.read(&witness_window, 0, &mut landing, 1);
                prop_assert_eq!(witness.next().status, Status::Ok);
                prop_assert!(landing == mark, "the witness reads other bytes");
                Ok(())
            },
        )
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_stream_harms_a_client(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        magic: bool,
        reads in 1..20_usize,
    ) {
        let window = RemoteWindow {
            descriptor: crate::WindowDescriptor {
                id: WindowId(0),
                generation: Generation(1),
                len_bytes: 4096,
                rights: Rights::ALL,
            },
            mapping: None,
        };
        let (ours, mut host) = sockets();
        let mut client = Client::new(ours);
        let mut landings = vec![0; 32 * reads];
        for (i, part) in landings.chunks_mut(16).enumerate() {
            client.read(&window, 0, part, i as u64);
        }
        let start = if magic { Response { status: Status::Ok, len_bytes: 16, value: 0 }.encode().to_vec() } else { vec![] };
        host.write_all(&[&[0; 16], &start[..], &bytes].concat()).unwrap();
        drop(host);
        for token in 0..2 * reads as u64 {
            let completion = client.next();
            prop_assert_eq!(completion.token, token);
            let is_first_good = token == 0 && magic;
            prop_assert!(is_first_good || completion.status != Status::Ok);
        }
        prop_assert!(client.endpoint.is_dead());
    }
}
