//! Programs that a command has started.

use std::process::Child;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// Asks a child to end, by a signal, and waits until it has.
pub fn end(child: &mut Child, signal: Signal) {
    if let Ok(Some(_)) = child.try_wait() {
        // Its number may be another's by now.
        return;
    }
    let asked = Pid::from_child(child);
    let signalled = kill_process(asked, signal).map_err(std::io::Error::from);
    if let Err(error) = signalled.and_then(|()| child.wait()) {
        tracing::warn!(pid = child.id(), %error, "end child");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_ends_by_the_signal_and_one_that_has_ended_is_left_alone() {
        let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
        end(&mut sleeper, Signal::TERM);
        let status = sleeper.try_wait().unwrap().expect("it has ended");
        assert_eq!(status.signal(), Some(15));
        end(&mut sleeper, Signal::KILL);
        assert_eq!(sleeper.try_wait().unwrap(), Some(status));
    }
}
