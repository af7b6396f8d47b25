//! A client of one host.

use std::time::{Duration, Instant};

use cenote_fabric::{
    Address, ClientId, ClusterKey, CompletionQueue, Connector, Endpoint, Error, Hello, Incoming,
    RemoteWindow, Session, Status, connector, wait,
};
use cenote_pool::control::{HeldSlab, HostStatus, Reply, Request, Window};

use super::{BYTES, LIMIT};

/// A client with one session and one endpoint.
pub struct Client {
    pub session: Box<dyn Session>,
    endpoint: Box<dyn Endpoint>,
    queue: CompletionQueue,
}

impl Client {
    /// Connects as soon as the host lets it.
    pub fn connect(key: &ClusterKey, address: &str, id: u128) -> Self {
        let address: Address = address.parse().unwrap();
        let hello = Hello {
            client: ClientId(id),
            name: "client".into(),
        };
        let connector = connector(key.clone());
        let deadline = Instant::now() + LIMIT;
        loop {
            match connector.connect(&address, &hello, LIMIT) {
                Ok(session) => {
                    return Self {
                        endpoint: session.endpoint(LIMIT).unwrap(),
                        session,
                        queue: CompletionQueue::default(),
                    };
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    pub fn incoming(&mut self) -> Incoming {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(incoming) = self.session.receive().unwrap() {
                return incoming;
            }
            assert!(Instant::now() < deadline, "nothing arrived");
            wait(
                self.session.fd().as_slice(),
                Some(Duration::from_millis(50)),
            )
            .unwrap();
        }
    }

    pub fn ask(&mut self, request: &Request) -> Reply {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.session.send(&bytes).unwrap();
        match self.incoming() {
            Incoming::Message(bytes) => Reply::decode(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> HostStatus {
        match self.ask(&Request::Status) {
            Reply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn map(&mut self, extent: u32) -> Window {
        let asked = Request::Map {
            request: 1,
            volume: 7,
            extent,
            member: 3,
        };
        match self.ask(&asked) {
            Reply::Mapped { window, .. } => window,
            other => panic!("{other:?}"),
        }
    }

    pub fn held(&mut self) -> Vec<HeldSlab> {
        match self.ask(&Request::Held { skip: 0 }) {
            Reply::Held { slabs, .. } => slabs,
            other => panic!("{other:?}"),
        }
    }

    pub fn attach(&mut self, window: Window) -> Result<RemoteWindow, Error> {
        self.session.attach(window.into()).unwrap();
        match self.incoming() {
            Incoming::Attached(_, end) => end,
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, window: &RemoteWindow, bytes: &[u8]) -> Status {
        let (source, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` lives, unchanged, until `finish` has popped the completion.
        unsafe {
            let posted =
                self.endpoint
                    .post_write(window, 64, source, len, None, 1, &mut self.queue);
            posted.unwrap();
        }
        self.finish()
    }

    pub fn read(&mut self, window: &RemoteWindow) -> Vec<u8> {
        let mut bytes = vec![0; BYTES.len()];
        let (landing, len) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is exclusive and lives until `finish` has popped the completion.
        unsafe {
            let posted = self
                .endpoint
                .post_read(window, 64, landing, len, 1, &mut self.queue);
            posted.unwrap();
        }
        assert_eq!(self.finish(), Status::Ok);
        bytes
    }

    pub fn finish(&mut self) -> Status {
        cenote_test_kit::verb::finish(&mut *self.endpoint, &mut self.queue)
    }
}
