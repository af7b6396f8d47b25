//! Where a cache's machines come from, and where they go when it needs them no more.
//!
//! | kind | a machine is |
//! |---|---|
//! | [`Running`] | a host that runs already, with memory to spare |
//! | [`Processes`] | a host process that is started here |
//! | [`Program`] | whatever a command gets: a cloud's, or Kubernetes' |
//!
//! Calls block, each within a limit of its own: who must not wait makes them on a thread. Whatever a
//! provider says is checked before it is believed.

mod command;
mod desk;
mod hosts;
mod processes;
mod program;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::links::HostConfig;

pub use desk::{Desk, Done, Task};
pub use hosts::{Running, status_of};
pub use processes::{Processes, Settings as ProcessSettings, confine, release_confined};
pub use program::Program;

/// How long the command may take that starts a host process here, or ends it.
pub const PROCESS_LIMIT: Duration = Duration::from_secs(60);

/// What a machine is to have.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wish {
    /// Names this wish, and no other of any cache: whoever asks again with it gets no second machine.
    pub order: String,
    /// A type of the catalogue.
    pub machine_type: String,
    /// Memory to lend.
    pub memory_bytes: u64,
    /// Its slabs.
    pub slab_bytes: u64,
    /// Cores for server threads.
    pub cores: u32,
    /// Whether its owner may want it back at any time.
    pub is_spot: bool,
}

/// A machine with a host on it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The wish that it was got for.
    pub order: String,
    /// What its provider calls it.
    pub id: String,
    /// How clients reach it.
    pub host: HostConfig,
}

impl Machine {
    /// Whether its name, address and domain can be kept and told.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let host = &self.host;
        let texts = [
            &self.id,
            &host.name,
            &host.address.to_string(),
            &host.domain,
        ];
        texts.into_iter().all(|text| text.len() <= TEXT_BYTES_MAX)
    }
}

/// Gets machines, and releases them.
pub trait Provider: Send {
    /// Gets one machine.
    ///
    /// # Errors
    /// It has none, or did not say so in time; no machine is kept.
    fn acquire(&mut self, wish: &Wish) -> Result<Machine, Error>;

    /// Takes a machine back. What is on it is lost. One that is gone already is no error.
    ///
    /// # Errors
    /// It may still be there, and be paid for: try again.
    fn release(&mut self, machine: &Machine) -> Result<(), Error>;

    /// Takes back what an order got, if it got anything: who gave it ended before it was told.
    ///
    /// # Errors
    /// As [`Provider::release`].
    fn cancel(&mut self, order: &str) -> Result<(), Error>;
}

/// Why there is no machine, or why one may still be there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// None that would do is free.
    #[error("no machine of {machine_type} is free")]
    None {
        /// As wished.
        machine_type: String,
    },
    /// It did not end in time, and was ended.
    #[error("{what}: not within {limit:?}")]
    Late {
        /// What was done.
        what: String,
        /// How long it had.
        limit: Duration,
    },
    /// It failed, with these words.
    #[error("{what}: {status}: {said}")]
    Failed {
        /// What was done.
        what: String,
        /// How it ended.
        status: String,
        /// The end of what it said.
        said: String,
    },
    /// What it said is no machine.
    #[error("{what}: {said}")]
    Nonsense {
        /// What was done.
        what: String,
        /// What is wrong.
        said: String,
    },
    /// Nothing was begun: another manager of the cache may be in charge.
    #[error("nothing is begun while another manager may be in charge")]
    NotInCharge,
    /// The system refuses.
    #[error("{what}: {source}")]
    Os {
        /// What was done.
        what: String,
        /// The system's words.
        source: std::io::Error,
    },
}

impl Error {
    fn os(what: &str, source: std::io::Error) -> Self {
        let what = what.to_owned();
        Self::Os { what, source }
    }
}

/// Longest text of a machine that the journal of its cache keeps.
const TEXT_BYTES_MAX: usize = 255;

/// Longest name of a machine.
const NAME_BYTES_MAX: usize = 64;

/// A name that may stand in a table and a path.
fn is_name(name: &str) -> bool {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_.:/".contains(one);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain)
}
