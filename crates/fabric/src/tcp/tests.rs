//! Endpoint against agent, and each against a peer that misbehaves, over loopback.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::agent::{Agent, AgentEvent, Serving};
use super::endpoint::TcpEndpoint;
use crate::memory::{Region, RegionOptions};
use crate::noise::{Initiator, Responder};
use crate::record::{DATA_RECORDS, RecordOpener, RecordSealer};
use crate::windows::WindowTable;
use crate::{
    ClientId, ClusterKey, Completion, CompletionQueue, Endpoint, RemoteWindow, Rights, Status,
    Time, Waker, WireProtection, wait,
};

mod batch;
mod peers;
mod revocation;
mod streams;
mod tamper;
mod verbs;

const CLIENT: ClientId = ClientId(7);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    (ours, theirs)
}

type Records = Option<(RecordSealer, RecordOpener)>;

/// Of a client and of a host whose handshake is done.
fn records(protection: WireProtection) -> (Records, Records) {
    let key = ClusterKey::from_hex(&"5a".repeat(32)).unwrap();
    let (initiator, first) = Initiator::start(&key);
    let (responder, answer, _) = Responder::answer(&key, &first).unwrap();
    let (ours, theirs) = (initiator.finish(&answer).unwrap(), responder.transport());
    (
        ours.records(DATA_RECORDS, protection),
        theirs.records(DATA_RECORDS, protection),
    )
}

/// A host without its control side.
struct Rig {
    /// Of the connections of `client`.
    protection: WireProtection,
    table: Arc<WindowTable>,
    agent: Agent,
    events: Receiver<AgentEvent>,
}

impl Rig {
    /// Whose connections are not protected.
    fn new(queue: usize) -> Self {
        Self::with(queue, WireProtection::Plain)
    }

    fn with(queue: usize, protection: WireProtection) -> Self {
        Self::serving(queue, protection, Serving::Ring)
    }

    /// Of each protection, with a ring and without.
    fn all(queue: usize) -> impl Iterator<Item = Self> {
        let each = |serving| {
            let rig = move |protection| Self::serving(queue, protection, serving);
            WireProtection::ALL.into_iter().map(rig)
        };
        each(Serving::Ring).chain(each(Serving::Epoll))
    }

    fn serving(queue: usize, protection: WireProtection, serving: Serving) -> Self {
        let table = Arc::new(WindowTable::new());
        let (outbox, events) = sync_channel(queue);
        let waker = Waker::new().unwrap();
        let agent = Agent::spawn(Arc::clone(&table), outbox, waker, serving).unwrap();
        Self {
            protection,
            table,
            agent,
            events,
        }
    }

    fn window(&self, len_bytes: u64, rights: Rights) -> (Arc<Region>, RemoteWindow) {
        let options = RegionOptions {
            huge: false,
            reserved: false,
            lock: false,
        };
        let region = Arc::new(Region::create("test", len_bytes, options).unwrap());
        let descriptor = self.table.register(Arc::clone(&region), rights).unwrap();
        (region, RemoteWindow::new(descriptor, None))
    }

    fn client(&self) -> Client {
        self.client_of(CLIENT)
    }

    fn client_of(&self, id: ClientId) -> Client {
        let (ours, theirs) = sockets();
        let (our_records, their_records) = records(self.protection);
        self.agent.adopt(theirs, id, their_records);
        Client::with(ours, our_records)
    }
}

/// A time that stands still: how long a host may be silent is no matter of most tests, whose host
/// is a thread that may get no processor for longer.
const STILL: Time = Time(1);

struct Client {
    endpoint: TcpEndpoint,
    queue: CompletionQueue,
    clock: fn() -> Time,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Self::with(stream, None)
    }

    fn with(stream: TcpStream, records: Records) -> Self {
        Self {
            endpoint: TcpEndpoint::new(stream, records).unwrap(),
            queue: CompletionQueue::default(),
            clock: || STILL,
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
            self.endpoint.poll((self.clock)(), &mut self.queue);
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
