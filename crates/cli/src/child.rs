//! Programs that a command has started.

use std::process::Child;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Asks a child to end, by a signal, and waits until it has.
pub fn end(child: &mut Child, signal: Signal) {
    // Not reaped yet, so the number is still its own.
    let asked = Pid::from_child(child);
    let signalled = kill_process(asked, signal).map_err(std::io::Error::from);
    if let Err(error) = signalled.and_then(|()| child.wait()) {
        tracing::warn!(pid = child.id(), %error, "end child");
    }
}
