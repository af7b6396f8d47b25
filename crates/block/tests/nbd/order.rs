//! The order among connections: a client that comes back is not overtaken by what it sent before.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cenote_block::disk::{Disk, Extent, Queue};
use cenote_block::nbd::{Address, Export};
use cenote_block::ram::RamDisk;
use cenote_volume::{Done, Op, Request};

use crate::client::*;

/// A RAM disk on which a READ keeps its worker from everything else until the test lets it go on.
struct Stall {
    inner: RamDisk,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// A worker is held up.
    is_in_effect: bool,
}

impl Stall {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: RamDisk::new(1 << 20),
            shared: Arc::default(),
        })
    }

    fn wait_until_in_effect(&self) {
        let state = self.shared.state.lock().unwrap();
        let waits = |state: &mut State| !state.is_in_effect;
        let waited = self.shared.changed.wait_timeout_while(state, LIMIT, waits);
        assert!(!waited.unwrap().1.timed_out(), "no worker is held up");
    }

    fn end(&self) {
        self.shared.state.lock().unwrap().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Disk for Stall {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(StallQueue {
            inner: self.inner.queue()?,
            shared: Arc::clone(&self.shared),
            reads: false,
        }))
    }

    /// Everything counts as written, so that every READ reaches the queue.
    fn extents(&self, _offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        out.push(Extent {
            len_bytes,
            allocated: true,
        });
    }

    fn description(&self) -> String {
        "stalls".to_owned()
    }
}

struct StallQueue {
    inner: Box<dyn Queue>,
    shared: Arc<Shared>,
    /// A READ came.
    reads: bool,
}

impl Queue for StallQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.reads |= matches!(request.op, Op::Read(_));
        self.inner.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        if std::mem::take(&mut self.reads) {
            let mut state = self.shared.state.lock().unwrap();
            state.is_in_effect = true;
            self.shared.changed.notify_all();
            let waits = |state: &mut State| !state.is_over;
            drop(self.shared.changed.wait_timeout_while(state, LIMIT, waits));
        }
        self.inner.poll(done);
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        self.inner.wait_fds(out);
    }

    fn deadline(&self) -> Option<Duration> {
        self.inner.deadline()
    }
}

/// A server with two workers, one of which is held up.
struct Held {
    stall: Arc<Stall>,
    fixture: Fixture,
    /// Of the worker that is held up; past its handshake.
    before: Client<TcpStream>,
    /// Of the other worker.
    elsewhere: Client<TcpStream>,
    /// Of the worker that is held up, and waits for its READ.
    reader: Client<TcpStream>,
    /// So many of the worker that is held up that the next ones go to the other.
    _others: Vec<Client<TcpStream>>,
}

/// Connections once the worker is held up.
const OPEN: u64 = 5;

impl Held {
    fn new() -> Self {
        let stall = Stall::new();
        let fixture = Fixture::with(stall.clone(), |config| {
            let loopback = Address::Tcp(([127, 0, 0, 1], 0).into());
            config.addresses.push(loopback);
            config.exports.push(Export {
                name: "other".to_owned(),
                disk: Arc::new(RamDisk::new(1 << 20)),
            });
        });
        // The worker that has fewer connections gets the next one, the first worker of two.
        let before = fixture.simple_tcp();
        let elsewhere = fixture.simple_tcp();
        let mut reader = fixture.simple_tcp();
        let mut others: Vec<_> = (0..4).map(|_| fixture.simple_tcp()).collect();
        drop((others.remove(2), others.remove(0)));
        fixture.wait_for("room", |stats| stats.connections_open == OPEN);
        reader.request((READ, 0), 1, 0, 1);
        stall.wait_until_in_effect();
        Self {
            stall,
            fixture,
            before,
            elsewhere,
            reader,
            _others: others,
        }
    }

    /// Has the other worker look at everything that has been sent to it.
    fn handle_elsewhere(&mut self) {
        for cookie in [1, 2] {
            self.elsewhere.request((FLUSH, 0), cookie, 0, 0);
            assert_eq!(self.elsewhere.simple_reply(), (0, cookie));
        }
    }

    fn go_on(&mut self) {
        self.stall.end();
        assert_eq!(self.reader.simple_reply(), (0, 1));
        self.reader.take(1);
    }
}

fn write(cookie: u64, bytes: &[u8]) -> Vec<u8> {
    let header = header((WRITE, 0), cookie, 4096, bytes.len() as u32);
    [&header[..], bytes].concat()
}

fn holds(client: &mut Client<TcpStream>, bytes: &[u8]) {
    client.request((READ, 0), 9, 4096, bytes.len() as u32);
    assert_eq!(client.simple_reply(), (0, 9));
    assert_eq!(client.take(bytes.len()), bytes);
}

#[test]
fn a_write_that_was_not_read_before_its_client_left_comes_before_those_after_its_return() {
    let mut held = Held::new();
    held.before.put(&write(1, b"old"));
    let Held { before, .. } = held;
    drop(before);
    let mut held = Held {
        before: held.fixture.simple_tcp(),
        ..held
    };
    held.before.put(&write(2, b"new"));
    held.handle_elsewhere();
    assert_eq!(
        held.fixture.server.stats().writes,
        0,
        "the old one is first"
    );

    held.go_on();
    assert_eq!(held.before.simple_reply(), (0, 2));
    held.fixture.wait_for("both", |stats| {
        stats.writes == 2 && stats.connections_open == OPEN
    });
    holds(&mut held.before, b"new");
}

#[test]
fn a_client_that_only_sends_no_more_is_served_before_those_that_come() {
    let mut held = Held::new();
    held.before.put(&write(1, b"old"));
    held.before.stream.shutdown(Shutdown::Write).unwrap();
    let mut after = held.fixture.simple_tcp();
    after.put(&write(2, b"new"));
    // It waits, has not been served, and sends no more itself: it loses nothing for that.
    after.stream.shutdown(Shutdown::Write).unwrap();
    let mut last = held.fixture.simple_tcp();
    last.put(&write(3, b"end"));
    held.handle_elsewhere();

    held.go_on();
    assert_eq!(held.before.simple_reply(), (0, 1));
    assert_eq!(after.simple_reply(), (0, 2));
    assert_eq!(last.simple_reply(), (0, 3));
    assert!(held.before.is_closed() && after.is_closed());
    holds(&mut last, b"end");
}

#[test]
fn who_comes_to_another_export_or_while_nobody_left_waits_for_nobody() {
    let mut held = Held::new();
    let mut after = held.fixture.simple_tcp();
    after.put(&write(1, b"new"));
    assert_eq!(after.simple_reply(), (0, 1));
    drop(after);
    held.before.put(&write(1, b"old"));
    held.before.stream.shutdown(Shutdown::Write).unwrap();
    held.fixture
        .wait_for("an end", |stats| stats.connections_open == OPEN);
    let mut other = held.fixture.connect_tcp();
    other.greet();
    other.option(7, b"\0\0\0\x05other\0\0");
    assert_eq!(other.option_reply().0, 3);
    assert_eq!(other.option_reply(), (1, Vec::new()));
    other.put(&write(1, b"new"));
    assert_eq!(other.simple_reply(), (0, 1));
    held.go_on();
}

#[test]
fn a_server_that_stops_closes_connections_that_wait_for_others() {
    let mut held = Held::new();
    held.before.put(&write(1, b"old"));
    held.before.stream.shutdown(Shutdown::Write).unwrap();
    let mut after = held.fixture.simple_tcp();
    after.put(&write(2, b"new"));
    held.handle_elsewhere();
    let Held { stall, fixture, .. } = held;
    let stopping = std::thread::spawn(move || drop(fixture));
    assert!(after.is_closed(), "nothing was taken of it");
    stall.end();
    stopping.join().unwrap();
}
