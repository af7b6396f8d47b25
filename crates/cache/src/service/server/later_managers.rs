//! What a manager does where hosts know a later one: its journal is an earlier one, such as a
//! backup that was put back.
//!
//! Before it serves it asks its hosts, and decides nothing until they have answered. A host that
//! knows a later manager refuses it. Then the journal is made what it was: each start counts the
//! epoch up, and after some of them an old journal would be the newest.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_fabric::{Time, wait};

use super::{SHORT, Server, StartError};
use crate::service::journal::Superseded;

/// How long hosts that do not answer are waited for. One that knows of a later manager and answers
/// after that still ends this one. Arbitrary: hosts that are there answer at once, and clients
/// wait.
const HEARING: Duration = Duration::from_secs(2);

impl Server {
    /// Hears from each host whether it knows a later manager, as far as they answer within a
    /// moment. Call it before [`Server::run`]; once `stop` is set it returns.
    ///
    /// # Errors
    /// `Superseded`: one does. The journal is what it was. `Claim`: another manager began
    /// meanwhile. `Fabric`: the system refuses to wait.
    pub fn hear_hosts(&mut self, stop: &AtomicBool) -> Result<(), StartError> {
        let begun = Time::now();
        self.manager.suspend(begun);
        let until = begun.after(HEARING);
        loop {
            let now = Time::now();
            self.look_at_leadership(now);
            self.manager.step(now);
            if self.manager.is_refused() {
                self.put_journal_back();
                return Err(StartError::Superseded);
            }
            if self.manager.owner.is_superseded() {
                return Err(StartError::Claim("another manager has begun".to_owned()));
            }
            let is_over = now >= until || stop.load(Ordering::Relaxed);
            if is_over || self.manager.has_tried_hosts() {
                if self.leadership.holds(now) {
                    self.manager.resume(now);
                }
                return Ok(());
            }
            let mut fds = vec![self.waker.as_fd().as_raw_fd()];
            let mut is_short = false;
            for (fd, wants_write) in self.manager.fds() {
                fds.push(fd);
                is_short |= wants_write;
            }
            let patience = self.manager.due(now).min(until).since(now);
            wait(&fds, Some(if is_short { SHORT } else { patience }))?;
            self.waker.clear();
        }
    }

    /// The next manager that begins from this journal is as old as this one was.
    pub(super) fn put_journal_back(&mut self) {
        match self.journal.put_back(self.before) {
            Ok(()) => {}
            Err(error) if Superseded::is_in(&error) => {
                tracing::debug!("the journal is the later manager's");
            }
            Err(error) => tracing::error!(%error, "put the journal back"),
        }
    }
}
