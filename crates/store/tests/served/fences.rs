//! What goes on while a disk's fence is under way.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cenote_fabric::{FAILURE_TIMEOUT, Region};
use cenote_store::client::{Command, Outcome};
use cenote_store::{Condition, FileMedium, Medium, Server, StoreError};

use crate::lab::{LIMIT, Lab, Options, TRANSPORTS};

/// A disk whose fences wait while a gate is shut.
pub struct Gated {
    pub disk: FileMedium,
    pub gate: Arc<Gate>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum State {
    #[default]
    Open,
    Shut,
    /// One fence passes, and it is shut behind it.
    One,
    /// The disk is full, at each fence from now on.
    Full,
}

#[derive(Default)]
pub struct Gate {
    /// And how many fences wait.
    state: Mutex<(State, usize)>,
    changed: Condvar,
}

impl Gate {
    pub fn set(&self, state: State) {
        self.state.lock().unwrap().0 = state;
        self.changed.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        let is_shut = |state: &mut (State, usize)| state.0 == State::Shut;
        state = self.changed.wait_while(state, is_shut).unwrap();
        state.1 -= 1;
        match state.0 {
            State::Full => Err(io::ErrorKind::StorageFull.into()),
            State::One => {
                state.0 = State::Shut;
                self.changed.notify_all();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits until a fence waits.
    pub fn await_fence(&self) {
        self.wait_while("no fence is waited for", |state| state.1 == 0);
    }

    /// Lets one fence pass that waits.
    fn let_one_pass(&self) {
        self.set(State::One);
        self.wait_while("a fence does not pass", |state| state.0 == State::One);
    }

    fn wait_while(&self, otherwise: &str, is_so: impl Fn(&(State, usize)) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(state, LIMIT, |state| is_so(state));
        let is_late = waited.unwrap().1.timed_out();
        assert!(!is_late, "{otherwise}");
    }
}

/// Opens a gate at the end of a test, however that comes: a server waits for its fences.
pub struct Opening<'a>(pub &'a Gate);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.set(State::Open);
    }
}

impl Medium for Gated {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.disk.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.disk.write(at, bytes);
    }

    fn store(&self, at: u64, value: u64) {
        self.disk.store(at, value);
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.disk.write_back(range)
    }

    fn write_back_hint(&self, range: Range<u64>) -> io::Result<()> {
        self.disk.write_back_hint(range)
    }

    fn fence(&self) -> io::Result<()> {
        self.gate.pass()?;
        self.disk.fence()
    }

    fn is_quick(&self) -> bool {
        self.disk.is_quick()
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        self.disk.memory()
    }
}

pub fn gated(lab: &Lab, options: &Options) -> (Arc<Gate>, Server<Gated>) {
    let gate = Arc::new(Gate::default());
    let server = lab.serve_on(options, |file| Gated {
        disk: FileMedium::open(file).unwrap(),
        gate: Arc::clone(&gate),
    });
    (gate, server)
}

/// Four landings full of values.
const PUTS: u64 = 64;
const VALUE_BYTES: usize = 64 << 10;

#[test]
fn a_client_stores_more_than_its_landing_during_one_fence() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            shards: 1,
            landing_bytes: 1 << 20,
            ..Options::new(transport)
        };
        let (gate, server) = gated(&lab, &options);
        let (mut user, mut other) = (lab.client(&server), lab.client(&server));
        gate.set(State::Shut);
        let value = |number: u64| vec![number as u8; VALUE_BYTES];
        for number in 0..PUTS {
            user.put(&number.to_le_bytes(), &value(number));
        }
        assert_eq!(server.figures()[0].backlog, PUTS, "none is durable");
        // The client goes: what it wrote is there all the same.
        drop(user);
        gate.set(State::Open);
        for number in 0..PUTS {
            assert_eq!(other.get(&number.to_le_bytes()), Some(value(number)));
        }
        other.put_durable(b"last", b"value");
        server.stop().unwrap();
    }
}

/// What waits in the fence is not acknowledged, nor anything after it; what was is there.
#[test]
fn a_disk_that_is_full_in_a_fence_acknowledges_nothing_more() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            shards: 1,
            ..Options::new(transport)
        };
        let (gate, server) = gated(&lab, &options);
        let mut user = lab.client(&server);
        user.put_durable(b"kept", b"value");
        gate.set(State::Shut);
        // Nobody waits for these: their fence is the other thread's.
        for number in 0..8_u64 {
            user.put(&number.to_le_bytes(), b"in the fence");
        }
        let mut late = lab.client(&server);
        let durably = std::thread::spawn(move || {
            late.call(Command::Put {
                key: b"late".to_vec(),
                value: b"value".to_vec(),
                condition: Condition::Always,
                is_durable: true,
            })
        });
        gate.set(State::Full);
        let began = Instant::now();
        while !server.has_failed() {
            assert!(began.elapsed() < LIMIT, "the store goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        let Err(error) = server.stop() else {
            panic!("a store whose disk is full ends well");
        };
        assert!(matches!(error, StoreError::Io(_)), "{error:?}");
        let told = durably.join().unwrap();
        assert!(!matches!(told, Ok(Outcome::Done { .. })), "{told:?}");
        let server = lab.serve(&options);
        assert_eq!(lab.client(&server).get(b"kept"), Some(b"value".to_vec()));
        server.stop().unwrap();
    }
}

/// Fences of a cleaning, from the record that begins it to the one that ends it: each takes as long as it
/// likes.
#[test]
fn clients_are_served_during_every_fence_of_a_cleaning() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            shards: 1,
            ..Options::new(transport)
        };
        let (gate, server) = gated(&lab, &options);
        let opening = Opening(&gate);
        let mut user = lab.client(&server);
        for number in 0..PUTS {
            user.put(b"replaced", &number.to_le_bytes());
        }
        user.put_durable(b"kept", b"value");
        gate.set(State::Shut);
        user.0.clean(LIMIT).unwrap();
        let (mut rounds, mut was_cleaning) = (0_u64, false);
        loop {
            gate.await_fence();
            user.put(&rounds.to_le_bytes(), b"during a fence");
            rounds += 1;
            let is_cleaning = server.figures()[0].is_cleaning;
            if was_cleaning && !is_cleaning {
                break;
            }
            was_cleaning |= is_cleaning;
            gate.let_one_pass();
        }
        drop(opening);
        for number in 0..rounds {
            let value = user.get(&number.to_le_bytes());
            assert_eq!(value.as_deref(), Some(&b"during a fence"[..]), "{number}");
        }
        assert_eq!(user.get(b"kept"), Some(b"value".to_vec()));
        let last = (PUTS - 1).to_le_bytes().to_vec();
        assert_eq!(user.get(b"replaced"), Some(last));
        assert!(rounds >= 3, "a record, copies, a record: {rounds}");
        server.stop().unwrap();
    }
}

/// Which takes as long as a disk that flushes its cache, or a file system that is frozen for a snapshot.
#[test]
fn a_durable_put_waits_for_a_fence_that_takes_longer_than_the_failure_timeout() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            shards: 1,
            ..Options::new(transport)
        };
        let (gate, server) = gated(&lab, &options);
        let opening = Opening(&gate);
        let mut user = lab.client(&server);
        gate.set(State::Shut);
        let putting = std::thread::spawn(move || {
            user.put_durable(b"key", b"value");
            user
        });
        gate.await_fence();
        let began = Instant::now();
        while began.elapsed() < FAILURE_TIMEOUT * 3 / 2 {
            assert!(!putting.is_finished(), "it did not wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(opening);
        let mut user = putting.join().expect("it is put");
        assert_eq!(user.get(b"key"), Some(b"value".to_vec()));
    }
}
