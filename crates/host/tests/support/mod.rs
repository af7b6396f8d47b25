//! A host on a thread, and a client that asks and waits, for the tests of this crate.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cenote_fabric::{
    Address, ClientId, ClusterKey, CompletionQueue, Connector, Endpoint, Error, Hello, Incoming,
    RemoteWindow, Session, Status, WindowDescriptor, connector, wait,
};
use cenote_host::{Config, Daemon, OnThread};
use cenote_pool::control::{HostStatus, Refusal, Reply, Request, Window};
use cenote_test_kit::host_config;

/// Slabs of the tests' hosts.
pub const SLAB_BYTES: u64 = 1 << 20;
/// Far longer than anything here takes; a wait that passes it says what it waited for.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Which fabric a test runs over.
#[derive(Clone, Copy, Debug)]
pub enum Fabric {
    Shm,
    Tcp,
}

/// What the hosts and clients of one test share.
pub struct Lab {
    pub key: ClusterKey,
    directory: tempfile::TempDir,
    fabric: Fabric,
}

impl Lab {
    pub fn new(fabric: Fabric) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            key: ClusterKey::generate().unwrap(),
            directory,
            fabric,
        }
    }

    pub fn path(&self) -> &std::path::Path {
        self.directory.path()
    }

    pub fn address(&self, name: &str) -> Address {
        match self.fabric {
            Fabric::Shm => format!("shm:{}/{name}", self.directory.path().display()),
            Fabric::Tcp => "tcp:127.0.0.1:0".to_owned(),
        }
        .parse()
        .unwrap()
    }

    pub fn config(&self, name: &str, slabs: u64) -> Config {
        Config {
            domain: format!("domain of {name}"),
            clients_max: 16,
            ..host_config(name, self.address(name), slabs, SLAB_BYTES, &self.key)
        }
    }

    pub fn host(&self, name: &str, slabs: u64) -> Host {
        Host::start(self.config(name, slabs))
    }

    pub fn client(&self, host: &Host, id: u128) -> Client {
        Client::connect(&self.key, &host.address, id).unwrap()
    }

    pub fn client_of(&self, address: &str, id: u128) -> Client {
        Client::connect(&self.key, &address.parse().unwrap(), id).unwrap()
    }
}

/// A daemon on a thread of its own; stopped when dropped.
pub struct Host {
    pub address: Address,
    daemon: OnThread,
}

impl Host {
    pub fn start(config: Config) -> Self {
        Self::run(Daemon::start(config).unwrap())
    }

    pub fn run(daemon: Daemon) -> Self {
        let daemon = OnThread::run(daemon).unwrap();
        let address = daemon.addresses()[0].clone();
        Self { address, daemon }
    }

    /// As SIGTERM does; returns when the daemon has ended well.
    pub fn stop(&mut self) {
        self.daemon.stop().unwrap();
    }
}

/// A client with one session and one endpoint, which does one thing at a time.
pub struct Client {
    pub session: Box<dyn Session>,
    pub endpoint: Box<dyn Endpoint>,
    queue: CompletionQueue,
    replies: VecDeque<Reply>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Client {
    pub fn connect(key: &ClusterKey, address: &Address, id: u128) -> Result<Self, Error> {
        let hello = Hello {
            client: ClientId(id),
            name: format!("client {id}"),
        };
        let session = connector(key.clone()).connect(address, &hello, DEADLINE)?;
        let endpoint = session.endpoint(DEADLINE)?;
        Ok(Self {
            session,
            endpoint,
            queue: CompletionQueue::default(),
            replies: VecDeque::new(),
        })
    }

    pub fn send(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.session.send(&bytes).unwrap();
    }

    /// The next thing of the session; an error when it ends.
    pub fn incoming(&mut self) -> Result<Incoming, Error> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(incoming) = self.session.receive()? {
                return Ok(incoming);
            }
            assert!(Instant::now() < deadline, "nothing arrived");
            wait(
                self.session.fd().as_slice(),
                Some(Duration::from_millis(50)),
            )
            .unwrap();
        }
    }

    pub fn reply(&mut self) -> Reply {
        if let Some(reply) = self.replies.pop_front() {
            return reply;
        }
        match self.incoming().unwrap() {
            Incoming::Message(bytes) => Reply::decode(&bytes).unwrap(),
            other => panic!("a reply, not {other:?}"),
        }
    }

    /// The next message as it is on the wire.
    pub fn raw_reply(&mut self) -> Vec<u8> {
        match self.incoming().unwrap() {
            Incoming::Message(bytes) => bytes,
            other => panic!("a message, not {other:?}"),
        }
    }

    pub fn ask(&mut self, request: &Request) -> Reply {
        self.send(request);
        loop {
            // What a host under notice repeats is no answer.
            match self.reply() {
                Reply::Notice { .. } => {}
                answer => return answer,
            }
        }
    }

    pub fn try_map(&mut self, volume: u128, extent: u32) -> Result<Window, Refusal> {
        let request = NEXT.fetch_add(1, Ordering::Relaxed);
        match self.ask(&Request::Map {
            request,
            volume,
            extent,
            member: 0,
        }) {
            Reply::Mapped {
                request: answered,
                window,
            } if answered == request => Ok(window),
            Reply::Refused {
                request: answered,
                reason,
            } if answered == request => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    pub fn map(&mut self, volume: u128, extent: u32) -> Window {
        self.try_map(volume, extent).unwrap()
    }

    pub fn unmap(&mut self, window: Window) {
        assert_eq!(
            self.ask(&Request::Unmap { window }),
            Reply::Unmapped { window }
        );
    }

    pub fn attach(&mut self, window: Window) -> Result<RemoteWindow, Error> {
        self.session.attach(window.into())?;
        loop {
            match self.incoming()? {
                Incoming::Attached(answered, end) => {
                    let asked = WindowDescriptor::from(window);
                    let is_so = (answered.id, answered.generation) == (asked.id, asked.generation);
                    assert!(is_so, "{answered:?}");
                    return end;
                }
                Incoming::Message(bytes) => self.replies.push_back(Reply::decode(&bytes).unwrap()),
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn write(&mut self, window: &RemoteWindow, offset: u64, bytes: &[u8]) -> Status {
        // SAFETY: `bytes` lives, unchanged, until `finish` has popped the completion.
        unsafe {
            let (source, len) = (bytes.as_ptr(), bytes.len());
            self.endpoint
                .post_write(window, offset, source, len, None, 1, &mut self.queue)
                .unwrap();
        }
        self.finish()
    }

    pub fn read(&mut self, window: &RemoteWindow, offset: u64, bytes: &mut [u8]) -> Status {
        // SAFETY: `bytes` is exclusive and lives until `finish` has popped the completion.
        unsafe {
            let (landing, len) = (bytes.as_mut_ptr(), bytes.len());
            self.endpoint
                .post_read(window, offset, landing, len, 1, &mut self.queue)
                .unwrap();
        }
        self.finish()
    }

    /// All bytes of a slab.
    pub fn read_all(&mut self, window: &RemoteWindow) -> Vec<u8> {
        let mut bytes = vec![0xa5; usize::try_from(window.descriptor.len_bytes).unwrap()];
        assert_eq!(self.read(window, 0, &mut bytes), Status::Ok);
        bytes
    }

    pub fn status(&mut self) -> HostStatus {
        match self.ask(&Request::Status) {
            Reply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for the status until it is as wanted.
    pub fn status_when(&mut self, mut wanted: impl FnMut(&HostStatus) -> bool) -> HostStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "status stays {status:?}");
            self.rest();
        }
    }

    /// Lets the host work until it says something, or for a moment.
    pub fn rest(&self) {
        let fds = self.session.fd();
        wait(fds.as_slice(), Some(Duration::from_millis(5))).unwrap();
    }

    fn finish(&mut self) -> Status {
        cenote_test_kit::verb::finish(&mut *self.endpoint, &mut self.queue)
    }
}

/// Bytes that no two seeds and no two places share, to speak of.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
