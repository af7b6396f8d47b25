//! One suite of tests that every backend passes: the fabric's guarantees, checked from outside.
//!
//! A backend brings a [`Backend`] and runs [`main`] in a test binary of its own
//! (`harness = false`). A case is a function that takes the backend, starts hosts, and
//! panics when a guarantee is broken. Backends over processes use [`processes`]: there the
//! host is another process, so it can be killed and stopped. The simulated network runs its
//! hosts here, whenever time passes.
//!
//! Cases wait for conditions with a deadline and print the state that they saw; none
//! depends on how fast the machine is.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, Connector, Hello, Rights, Time, WindowDescriptor, WindowId,
};

mod batch;
mod calls;
mod client;
mod faults;
mod flow;
mod order;
pub mod processes;
mod refusals;
mod revocation;
pub mod sim;

pub use client::Client;

/// How long a case waits for anything. Generous: only a broken backend takes this long.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A family of hosts and connections under test.
pub trait Backend {
    /// For people and for filters on the command line.
    fn name(&self) -> &str;

    /// What this backend can and cannot do.
    fn traits(&self) -> Traits;

    /// Starts a host that holds the cluster's key and serves one address.
    fn start_host(&self) -> Box<dyn Host>;

    /// Opens sessions with the cluster's key.
    fn connector(&self) -> &dyn Connector;

    /// Opens sessions with another key.
    fn stranger(&self) -> &dyn Connector;

    /// The time that endpoints are polled with.
    fn now(&self) -> Time {
        Time::now()
    }

    /// Lets a little time pass; returns early when one of `fds` becomes readable.
    fn pause(&self, fds: &[RawFd]);
}

/// Properties in which backends rightly differ.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// A host can be killed, stopped and resumed.
    pub has_processes: bool,
    /// A stopped host's memory stays usable, as behind a network card.
    pub memory_outlives_a_stop: bool,
    /// Anyone can open a byte stream to the host's address.
    pub has_sockets: bool,
}

/// A host under test, as seen by the test. Every call panics when the host does not answer in time.
pub trait Host {
    /// Where it listens.
    fn address(&self) -> Address;
    /// Registers fresh zeroed memory.
    fn register(&mut self, len_bytes: u64, rights: Rights) -> WindowDescriptor;
    /// Registers `count` windows alike.
    fn register_many(
        &mut self,
        count: usize,
        len_bytes: u64,
        rights: Rights,
    ) -> Vec<WindowDescriptor> {
        (0..count)
            .map(|_| self.register(len_bytes, rights))
            .collect()
    }
    /// Revokes, and returns when the host's call has returned.
    fn revoke(&mut self, window: WindowId) {
        self.begin_revoke(window);
        let start = std::time::Instant::now();
        while !self.is_revoked() {
            assert!(
                start.elapsed() < DEADLINE,
                "revoke of {window:?} does not return"
            );
            std::thread::yield_now();
        }
    }
    /// Revokes all of `windows`.
    fn revoke_many(&mut self, windows: &[WindowId]) {
        windows.iter().for_each(|&window| self.revoke(window));
    }
    /// Has the host start to revoke, and returns at once.
    fn begin_revoke(&mut self, window: WindowId);
    /// Whether the revoke begun last has returned.
    fn is_revoked(&mut self) -> bool;
    /// Gives a window a new generation.
    fn renew(&mut self, window: WindowId) -> WindowDescriptor;
    /// Writes window memory from the host's own side.
    fn write(&mut self, window: WindowId, offset: u64, bytes: &[u8]);
    /// Reads window memory from the host's own side.
    fn read(&mut self, window: WindowId, offset: u64, len_bytes: usize) -> Vec<u8>;
    /// What the host has seen since the last call, oldest first.
    fn events(&mut self) -> Vec<HostEvent>;
    /// While deaf, the host takes no events and answers no client.
    fn set_deaf(&mut self, is_deaf: bool);
    /// SIGKILL.
    fn kill(&mut self);
    /// SIGSTOP; returns when it has stopped.
    fn stop(&mut self);
    /// SIGCONT.
    fn resume(&mut self);
}

/// What a host has seen. Sessions are named by the client's identity.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostEvent {
    /// A session, or a data connection of a client without one.
    Connected(Hello),
    /// A message, on either kind of connection.
    Message(ClientId, Vec<u8>),
    /// A WRITE with immediate: window, offset, length in bytes, value.
    Immediate(ClientId, WindowId, u64, u32, u32),
    /// The end of what was `Connected`.
    Disconnected(ClientId),
}

/// One case.
pub struct Case {
    /// Its name: the property that it checks.
    pub name: &'static str,
    /// Panics when the property does not hold.
    pub run: fn(&dyn Backend),
    /// Whether the backend can show the property at all; else the case is reported as skipped.
    pub applies: fn(&Traits) -> bool,
}

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        order::CASES,
        refusals::CASES,
        revocation::CASES,
        flow::CASES,
        faults::CASES,
        calls::CASES,
    ]
    .into_iter()
    .flatten()
    .map(|(name, run, applies)| Case {
        name,
        run: *run,
        applies: *applies,
    })
    .collect()
}

type Row = (&'static str, fn(&dyn Backend), fn(&Traits) -> bool);

fn always(_: &Traits) -> bool {
    true
}

fn with_processes(traits: &Traits) -> bool {
    traits.has_processes
}

fn with_sockets(traits: &Traits) -> bool {
    traits.has_sockets
}

/// Runs every case on every backend and prints a line for each, as `cargo test` does.
///
/// Arguments that are no options filter cases by a part of `backend::case`, `--skip PART` leaves
/// some out; `--list` lists.
#[must_use]
pub fn main(backends: &[&dyn Backend]) -> ExitCode {
    main_with(backends, &cases())
}

/// As [`main`], with the cases of a layer above.
#[must_use]
pub fn main_with(backends: &[&dyn Backend], cases: &[Case]) -> ExitCode {
    let mut arguments = Vec::new();
    let mut left_out = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--skip" => left_out.extend(given.next()),
            _ => arguments.push(argument),
        }
    }
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let is_exact = arguments.iter().any(|a| a == "--exact");
    let fits = |name: &str, filter: &str| {
        if is_exact {
            name == filter
        } else {
            name.contains(filter)
        }
    };
    let is_wanted = |name: &str| {
        let is_asked_for = filters.is_empty() || filters.iter().any(|part| fits(name, part));
        is_asked_for && !left_out.iter().any(|part| fits(name, part))
    };
    let (mut failed, mut passed, mut skipped) = (Vec::new(), 0, 0);
    for backend in backends {
        for case in cases {
            let name = format!("{}::{}", backend.name(), case.name);
            if !is_wanted(&name) {
                continue;
            }
            if arguments.iter().any(|a| a == "--list") {
                println!("{name}: test");
                continue;
            }
            if !(case.applies)(&backend.traits()) {
                println!("test {name} ... ignored, this backend has nothing to show it with");
                skipped += 1;
                continue;
            }
            match catch_unwind(AssertUnwindSafe(|| (case.run)(*backend))) {
                Ok(()) => {
                    println!("test {name} ... ok");
                    passed += 1;
                }
                Err(_) => {
                    println!("test {name} ... FAILED");
                    failed.push(name);
                }
            }
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; {skipped} ignored",
        failed.len()
    );
    for name in &failed {
        println!("    {name}");
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
