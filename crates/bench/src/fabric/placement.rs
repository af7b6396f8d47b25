//! Which processors the two ends of a connection run on.
//!
//! Left to the scheduler, a client and a server on one machine sometimes share a core and
//! sometimes not, for seconds at a time, and a round trip takes a quarter of the time when they
//! do: no core has to be woken. That would decide every ratio, so both ends are told.

use anyhow::{Context, Result};
use cenote_cli::pin;

/// Where the ends run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Placement {
    /// Each on a core of its own, as on two machines: wake-ups are part of the time.
    Apart,
    /// Both on one core: the processor's work alone.
    Together,
}

impl Placement {
    pub(super) const BOTH: [Self; 2] = [Self::Apart, Self::Together];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Apart => "two cores",
            Self::Together => "one core",
        }
    }
}

/// The calling thread and the servers, placed until this is dropped.
pub(super) struct Cores {
    before: Vec<usize>,
    servers: Vec<i32>,
}

impl Cores {
    /// Pins the calling thread to the first core that it may use.
    ///
    /// # Errors
    /// The system refuses, or a server is gone.
    pub(super) fn pin(servers: &[u32]) -> Result<Self> {
        let mut threads = Vec::new();
        for process in servers {
            let tasks = format!("/proc/{process}/task");
            for thread in std::fs::read_dir(&tasks).context(tasks)? {
                let name = thread?.file_name();
                let number = name.to_str().and_then(|name| name.parse().ok());
                threads.push(number.context("a thread's number")?);
            }
        }
        let before = pin::processors()?;
        pin::this_thread(&before[..1])?;
        Ok(Self {
            before,
            servers: threads,
        })
    }

    /// Moves the servers.
    ///
    /// # Errors
    /// One of them is gone.
    pub(super) fn place_servers(&self, placement: Placement) -> Result<()> {
        let core = match placement {
            Placement::Apart => &self.before[self.before.len() - 1..],
            Placement::Together => &self.before[..1],
        };
        let mut servers = self.servers.iter();
        servers.try_for_each(|&thread| pin::thread(thread, core))
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        if let Err(error) = pin::this_thread(&self.before) {
            eprintln!("fabric: the thread stays on one core: {error:#}");
        }
    }
}
