//! A listener and its clients, over both kinds of address.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::*;
use crate::Hello;
use crate::memory::RegionOptions;
use crate::strangers::{Limits, Strangers};
use crate::{
    Completion, CompletionQueue, Connector, Endpoint, Incoming, RemoteWindow, Session, Time,
    connector,
};

mod endings;
mod flow;
mod places;
mod protection;
mod strangers;
mod verbs;

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
    /// What has become of strangers, as of the last poll.
    strangers: Arc<Mutex<Counts>>,
}

impl Host {
    fn start(addresses: &[Address]) -> Self {
        Self::demanding(addresses, WireProtection::default())
    }

    fn demanding(addresses: &[Address], page_traffic: WireProtection) -> Self {
        let bound = Listener::bind_with(addresses, &key(), page_traffic, Vec::new());
        Self::serve(bound.unwrap())
    }

    /// One whose strangers have an hour.
    fn patient(addresses: &[Address]) -> Self {
        let mut listener = Listener::bind(addresses, &key()).unwrap();
        for bound in &mut listener.bound {
            bound.strangers = Strangers::new(Limits {
                patience: Duration::from_secs(3600),
                ..bound::STRANGERS
            });
        }
        Self::serve(listener)
    }

    fn serve(mut listener: Listener) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, events) = std::sync::mpsc::channel();
        let (addresses, waker, table) = (
            listener.addresses(),
            listener.waker(),
            Arc::clone(&listener.table),
        );
        let strangers = Arc::new(Mutex::new(Counts::default()));
        let counted = Arc::clone(&strangers);
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut round = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                listener.poll(None, &mut round).unwrap();
                *counted.lock().unwrap() = listener.strangers();
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
            strangers,
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
        crate::wait(session.fd().as_slice(), Some(Duration::from_millis(100))).unwrap();
    }
}

fn until_closed(session: &mut dyn Session) -> Error {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match session.receive() {
            Ok(_) => assert!(Instant::now() < deadline, "the session stays open"),
            Err(error) => return error,
        }
        crate::wait(session.fd().as_slice(), Some(Duration::from_millis(100))).unwrap();
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
