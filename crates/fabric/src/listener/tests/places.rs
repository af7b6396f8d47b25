//! More clients than a host has places for.

use std::sync::mpsc::{Sender, TryRecvError, channel};

use super::*;

/// A host with so few places that a test fills them, and a clock that it is told of.
struct Full {
    address: Address,
    /// How long clients have to be silent from now on, and whom to tell that it is so.
    silences: Sender<(Duration, Sender<()>)>,
    waker: Waker,
    /// Messages of clients.
    heard: Receiver<()>,
    thread: JoinHandle<Vec<Event>>,
}

/// Longer than the test takes.
const NEVER: Duration = Duration::from_secs(3600);

impl Full {
    fn start(address: Address) -> Self {
        let mut listener = Listener::bind(&[address], &key()).unwrap();
        assert_eq!(listener.silence, FAILURE_TIMEOUT);
        listener.set_places(4);
        listener.silence = NEVER;
        let (address, waker) = (listener.addresses().remove(0), listener.waker());
        let (silences, told) = channel::<(Duration, Sender<()>)>();
        let (hears, heard) = channel();
        let serve = move || {
            let mut events = Vec::new();
            loop {
                match told.try_recv() {
                    Ok((silence, done)) => {
                        listener.silence = silence;
                        done.send(()).unwrap();
                    }
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return events,
                }
                let before = events.len();
                listener.poll(None, &mut events).unwrap();
                let new = events[before..].iter();
                let messages = new.filter(|event| matches!(event, Event::Message { .. }));
                messages.for_each(|_| hears.send(()).unwrap());
            }
        };
        Self {
            address,
            silences,
            waker,
            heard,
            thread: thread::spawn(serve),
        }
    }

    fn connect(&self, client: u128) -> Result<Box<dyn Session>> {
        connector(key()).connect(&self.address, &hello(client), PATIENCE)
    }

    /// Returns when the host goes by it.
    fn set_silence(&self, silence: Duration) {
        let (done, is_done) = channel();
        self.silences.send((silence, done)).unwrap();
        self.waker.wake();
        is_done.recv_timeout(PATIENCE).unwrap();
    }

    /// Ends it; what it saw.
    fn end(self) -> Vec<Event> {
        drop(self.silences);
        self.waker.wake();
        self.thread.join().unwrap()
    }
}

#[test]
fn an_operator_gets_in_where_silent_clients_have_all_places_and_none_that_speaks_goes() {
    let dir = tempfile::tempdir().unwrap();
    for address in both(&dir) {
        let host = Full::start(address);
        let connect = |client| host.connect(client);
        let mut speaking = connect(1).unwrap();
        let mut with_data = connect(2).unwrap();
        let opener = with_data.opener();
        let _data = opener(PATIENCE).unwrap();
        let silent: Vec<_> = (3..5).map(|client| connect(client).unwrap()).collect();
        assert!(connect(9).is_err(), "nobody has been silent for long");
        speaking.send(b"here").unwrap();
        // Another connection is not behind this one.
        host.heard.recv_timeout(PATIENCE).unwrap();
        host.set_silence(Duration::ZERO);
        let operators: Vec<_> = (10..12).map(|client| connect(client).unwrap()).collect();
        host.set_silence(NEVER);
        assert!(
            connect(12).is_err(),
            "these are new, and the others speak or read"
        );
        let events = host.end();
        let peer_of = |client: u128| {
            let mut connected = events.iter().filter_map(|event| match event {
                Event::Connected { peer, hello } => Some((hello.client, *peer)),
                _ => None,
            });
            let found = connected.find(|(known, _)| *known == ClientId(client));
            found.expect("it was let in").1
        };
        let gone = events.iter().filter_map(|event| match event {
            Event::Disconnected { peer } => Some(*peer),
            _ => None,
        });
        let expected = [peer_of(3), peer_of(4)];
        assert_eq!(gone.collect::<Vec<_>>(), expected, "{events:?}");
        with_data.send(b"here too").unwrap_or(());
        drop((silent, operators));
    }
}
