//! Behaviour of the simulated network: its times, its faults, its injected bugs, its sameness.

mod determinism;
mod ends;
mod faults;
mod injected_faults;
mod late;
mod time;
mod torn_reads;

use std::sync::Arc;
use std::time::Duration;

use super::{Config, Net, NodeId, SimConnector, SimListener};
use crate::{
    Address, ClientId, Completion, CompletionQueue, Connector, Endpoint, Event, Hello, Incoming,
    Listen, Region, RegionOptions, RemoteWindow, Rights, Session, Status,
};

/// One client and one host, connected, with a window of [`WINDOW_BYTES`] zeros.
struct Pair {
    net: Net,
    connector: SimConnector,
    listener: SimListener,
    region: Arc<Region>,
    session: Box<dyn Session>,
    endpoint: Box<dyn Endpoint>,
    window: RemoteWindow,
    queue: CompletionQueue,
}

const WINDOW_BYTES: u64 = 1 << 16;

fn address(number: u32) -> Address {
    Address::Shm(format!("/sim/{number}").into())
}

fn hello() -> Hello {
    Hello {
        client: ClientId(7),
        name: "client".into(),
    }
}

fn region() -> Arc<Region> {
    Arc::new(Region::create("sim", WINDOW_BYTES, RegionOptions::default()).unwrap())
}

/// Events that a host has, of the kinds that tests look at.
fn events(listener: &mut SimListener) -> Vec<Event> {
    let mut events = Vec::new();
    listener.poll(None, &mut events).unwrap();
    events
}

fn is_disconnect(event: &Event) -> bool {
    matches!(event, Event::Disconnected { .. })
}

impl Pair {
    fn new(seed: u64, config: Config) -> Self {
        let net = Net::new(seed, config);
        let connector = net.client("client");
        let mut listener = net.host(address(0), "host");
        let (region, session, endpoint, window) = join(&net, &connector, &mut listener, 0);
        Self {
            net,
            connector,
            listener,
            region,
            session,
            endpoint,
            window,
            queue: CompletionQueue::default(),
        }
    }

    fn plain() -> Self {
        Self::new(1, Config::default())
    }

    fn nodes(&self) -> (NodeId, NodeId) {
        (self.connector.node(), self.listener.node())
    }

    fn post_read(&mut self, offset: u64, landing: &mut [u8], token: u64) {
        let (start, len_bytes) = (landing.as_mut_ptr(), landing.len());
        // SAFETY: tests keep landings until they have the completion.
        unsafe {
            self.endpoint.post_read(
                &self.window,
                offset,
                start,
                len_bytes,
                token,
                &mut self.queue,
            )
        }
        .unwrap();
    }

    fn post_write(&mut self, offset: u64, source: &[u8], token: u64) {
        let (start, len_bytes) = (source.as_ptr(), source.len());
        // SAFETY: tests keep sources until they have the completion.
        unsafe {
            self.endpoint.post_write(
                &self.window,
                offset,
                start,
                len_bytes,
                None,
                token,
                &mut self.queue,
            )
        }
        .unwrap();
    }

    /// Sends what is posted, and runs until `count` verbs have ended.
    fn finish(&mut self, count: usize) -> Vec<Completion> {
        self.endpoint.flush(&mut self.queue);
        let mut ends = Vec::new();
        while ends.len() < count {
            self.endpoint.poll(self.net.now(), &mut self.queue);
            while let Some(end) = self.queue.pop() {
                ends.push(end);
            }
            assert!(
                ends.len() >= count || self.net.step(),
                "nothing is under way"
            );
        }
        ends
    }

    fn statuses(&mut self, count: usize) -> Vec<Status> {
        self.finish(count).iter().map(|end| end.status).collect()
    }

    fn write(&mut self, offset: u64, source: &[u8]) -> Status {
        self.post_write(offset, source, 0);
        self.finish(1)[0].status
    }

    fn read(&mut self, offset: u64, len_bytes: usize) -> Result<Vec<u8>, Status> {
        let mut landing = vec![0; len_bytes];
        self.post_read(offset, &mut landing, 0);
        match self.finish(1)[0].status {
            Status::Ok => Ok(landing),
            status => Err(status),
        }
    }

    /// What the host's memory holds.
    fn memory(&self, offset: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.region.read(offset, &mut bytes).unwrap();
        bytes
    }

    fn pass(&self, duration: Duration) {
        self.net.advance_to(self.net.now().after(duration));
    }

    /// The host takes its window back and opens one on new memory in its place.
    fn replace_window(&mut self) {
        self.listener.revoke(self.window.descriptor.id).unwrap();
        self.region = region();
        let fresh = self
            .listener
            .register(Arc::clone(&self.region), Rights::ALL);
        assert_eq!(fresh.unwrap().id, self.window.descriptor.id);
    }
}

type Joined = (
    Arc<Region>,
    Box<dyn Session>,
    Box<dyn Endpoint>,
    RemoteWindow,
);

/// Connects a client to a host and attaches fresh memory.
fn join(net: &Net, connector: &SimConnector, listener: &mut SimListener, number: u32) -> Joined {
    let region = region();
    let window = listener.register(Arc::clone(&region), Rights::ALL).unwrap();
    let mut session = connector
        .connect(&address(number), &hello(), Duration::ZERO)
        .unwrap();
    session.attach(window).unwrap();
    let window = loop {
        events(listener);
        match session.receive().unwrap() {
            Some(Incoming::Attached(_, answer)) => break answer.unwrap(),
            _ => assert!(net.step(), "nothing is under way"),
        }
    };
    let endpoint = session.endpoint(Duration::ZERO).unwrap();
    (region, session, endpoint, window)
}
