//! Which processors the two ends of a connection run on.
//!
//! Left to the scheduler, a client and a server on one machine sometimes share a core and
//! sometimes not, for seconds at a time, and a round trip takes a quarter of the time when they
//! do: no core has to be woken. That would decide every ratio, so both ends are told.

use std::io;
use std::mem::size_of;

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
    before: libc::cpu_set_t,
    cores: [usize; 2],
    servers: Vec<libc::pid_t>,
}

impl Cores {
    /// Pins the calling thread to the first core that it may use.
    ///
    /// # Errors
    /// The system refuses, or a server is gone.
    pub(super) fn pin(servers: &[u32]) -> io::Result<Self> {
        // SAFETY: an all-zero set is the empty one.
        let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `before` is valid for the size given; 0 is the calling thread.
        if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut before) } != 0
        {
            return Err(io::Error::last_os_error());
        }
        let usable = |core: &usize| {
            // SAFETY: below the set's size.
            unsafe { libc::CPU_ISSET(*core, &before) }
        };
        let mut usable = (0..libc::CPU_SETSIZE as usize).filter(usable);
        let first = usable.next().expect("a thread that runs may use a core");
        let cores = [first, usable.next_back().unwrap_or(first)];
        let mut threads = Vec::new();
        for process in servers {
            for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
                let name = thread?.file_name();
                let id = name.to_str().and_then(|name| name.parse().ok());
                threads.push(id.ok_or(io::ErrorKind::InvalidData)?);
            }
        }
        pin(0, &only(first))?;
        Ok(Self {
            before,
            cores,
            servers: threads,
        })
    }

    /// Moves the servers.
    ///
    /// # Errors
    /// One of them is gone.
    pub(super) fn place_servers(&self, placement: Placement) -> io::Result<()> {
        let core = self.cores[usize::from(placement == Placement::Apart)];
        self.servers
            .iter()
            .try_for_each(|thread| pin(*thread, &only(core)))
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        if let Err(error) = pin(0, &self.before) {
            eprintln!("fabric: the thread stays on one core: {error}");
        }
    }
}

fn only(core: usize) -> libc::cpu_set_t {
    // SAFETY: an all-zero set is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `core` came out of a set of the same size.
    unsafe { libc::CPU_SET(core, &mut set) };
    set
}

fn pin(thread: libc::pid_t, set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: `set` is valid for the size given.
    match unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
