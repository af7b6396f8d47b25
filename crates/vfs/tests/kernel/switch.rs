//! The kernel's switch of FUSE over io_uring.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_fuse::{Options, Ring, SWITCH, State};

/// Switched on, as long as one of these lives.
pub struct Switch(());

struct Holders {
    count: usize,
    /// Whether the last of them switches it off again.
    was_off: bool,
}

static HOLDERS: Mutex<Holders> = Mutex::new(Holders {
    count: 0,
    was_off: false,
});

fn holders() -> MutexGuard<'static, Holders> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// `Err`: what this machine lacks.
    pub fn on() -> Result<Self, &'static str> {
        let options = Options {
            queues: vec![0],
            depth: 1,
            payload_bytes_max: 8192,
        };
        if Ring::new(&options).is_err() {
            return Err("io_uring");
        }
        let mut holders = holders();
        match cenote_fuse::state() {
            State::On => {}
            State::Off if fs::write(SWITCH, "Y").is_ok() => holders.was_off = true,
            State::Off => return Err("the right to switch it on"),
            State::Missing => return Err("a kernel with it"),
        }
        holders.count += 1;
        Ok(Self(()))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut holders = holders();
        holders.count -= 1;
        if holders.count == 0 && holders.was_off {
            holders.was_off = false;
            fs::write(SWITCH, "N").expect("the switch can be turned back");
        }
    }
}
