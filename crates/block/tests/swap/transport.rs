//! The ways that the kernel's FUSE requests come, where it has no nbd.

use std::fs;

use cenote_block::swap::{FUSE_RINGS_SWITCH, FuseRingsState, FuseTransport, fuse_rings_state};

/// Each way that this machine has, with what a device then says of itself.
pub fn transports() -> Vec<(FuseTransport, &'static str)> {
    if super::has_nbd() {
        return vec![(FuseTransport::Auto, "nbd")];
    }
    let mut all = vec![(FuseTransport::DevFuse, "/dev/fuse")];
    match fuse_rings_state() {
        FuseRingsState::On => all.push((FuseTransport::Auto, "io_uring")),
        state => println!("skipped: FUSE over io_uring: {state:?} in this kernel"),
    }
    all
}

/// The kernel's switch of FUSE over io_uring set, as long as this lives.
pub struct Switch {
    before: Option<&'static str>,
}

impl Switch {
    pub fn on() -> Self {
        Self::set(FuseRingsState::Off, "Y", "N")
    }

    pub fn off() -> Self {
        Self::set(FuseRingsState::On, "N", "Y")
    }

    fn set(from: FuseRingsState, word: &str, before: &'static str) -> Self {
        let is_set = fuse_rings_state() == from && fs::write(FUSE_RINGS_SWITCH, word).is_ok();
        Self {
            before: is_set.then_some(before),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            fs::write(FUSE_RINGS_SWITCH, before).unwrap();
        }
    }
}
