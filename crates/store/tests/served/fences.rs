//! What goes on while a disk's fence is under way.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use cenote_fabric::Region;
use cenote_store::{FileMedium, Medium};

use crate::lab::{Lab, Options, TRANSPORTS};

/// A disk whose fences wait while a gate is shut.
struct Gated {
    disk: FileMedium,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let shut = self.is_shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |is_shut| *is_shut).unwrap());
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
        self.gate.pass();
        self.disk.fence()
    }

    fn is_quick(&self) -> bool {
        self.disk.is_quick()
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        self.disk.memory()
    }
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
        let gate = Arc::new(Gate::default());
        let server = lab.serve_on(&options, |file| Gated {
            disk: FileMedium::open(file).unwrap(),
            gate: Arc::clone(&gate),
        });
        let (mut user, mut other) = (lab.client(&server), lab.client(&server));
        gate.set(true);
        let value = |number: u64| vec![number as u8; VALUE_BYTES];
        for number in 0..PUTS {
            user.put(&number.to_le_bytes(), &value(number));
        }
        assert_eq!(server.figures()[0].backlog, PUTS, "none is durable");
        // The client goes: what it wrote is there all the same.
        drop(user);
        gate.set(false);
        for number in 0..PUTS {
            assert_eq!(other.get(&number.to_le_bytes()), Some(value(number)));
        }
        other.put_durable(b"last", b"value");
        server.stop().unwrap();
    }
}
