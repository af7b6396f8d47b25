//! Asks hosts how they are, each over a control connection of its own.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use cenote_fabric::{Address, ClientId, ClusterKey, Connector, Hello, Incoming, Session};
use cenote_pool::HostEntry;
use cenote_pool::control::{HostStatus, Reply, Request, VERSION};

use crate::process::wait_readable;

/// Hosts, or others, asked at the same time, one thread each. Arbitrary.
const ASKED_AT_ONCE: usize = 32;

/// What each host says of itself, in the order of `hosts`; a host that says nothing
/// within `timeout` is an error of its own.
pub fn all(hosts: &[HostEntry], key: &ClusterKey, timeout: Duration) -> Vec<Result<HostStatus>> {
    side_by_side(hosts, |host| one(&host.address, key, timeout))
}

/// What a host calls itself where the cluster file says otherwise: placement goes by the file. A host
/// that was given no domain is one of its own.
pub fn disagreement(entry: &HostEntry, status: &HostStatus) -> Option<String> {
    let has_domain = status.domain != status.name && status.domain != entry.domain;
    let its = match (status.name != entry.name, has_domain) {
        (false, false) => return None,
        (true, false) => format!("name {}", status.name),
        (false, true) => format!("domain {}", status.domain),
        (true, true) => format!("name {} and domain {}", status.name, status.domain),
    };
    Some(format!(
        "{}: its own configuration says {its}; the cluster file is what counts",
        entry.name
    ))
}

/// What `ask` says of each, in their order. One that takes long holds up no more than those that are
/// asked after it, [`ASKED_AT_ONCE`] at a time.
pub fn side_by_side<T: Sync, A: Send>(those: &[T], ask: impl Fn(&T) -> A + Sync) -> Vec<A> {
    let (mut answers, ask) = (Vec::with_capacity(those.len()), &ask);
    for some in those.chunks(ASKED_AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some
                .iter()
                .map(|one| scope.spawn(move || ask(one)))
                .collect();
            for thread in threads {
                answers.push(thread.join().expect("asking does not panic"));
            }
        });
    }
    answers
}

/// What the host at `address` says of itself.
///
/// # Errors
/// It cannot be reached, lacks the key, or is silent for `timeout`.
pub fn one(address: &str, key: &ClusterKey, timeout: Duration) -> Result<HostStatus> {
    let mut asker = Asker::connect(address, key, "cenote status", timeout)?;
    asker.ask(&Request::Status, timeout)
}

/// A connection to a host, for one who is no client of its memory.
pub struct Asker {
    session: Box<dyn Session>,
    id: ClientId,
}

impl Asker {
    /// Connects, under a name for people.
    ///
    /// # Errors
    /// The host cannot be reached within `timeout`, or lacks the key.
    pub fn connect(address: &str, key: &ClusterKey, name: &str, timeout: Duration) -> Result<Self> {
        let address: Address = address.parse()?;
        let id = ClientId(random_u128()?);
        let hello = Hello {
            client: id,
            name: name.to_owned(),
        };
        let connector = cenote_fabric::connector(key.clone());
        let session = connector.connect(&address, &hello, timeout)?;
        Ok(Self { session, id })
    }

    /// The version of the messages that the host and this program both speak.
    pub fn version(&self) -> u8 {
        u8::try_from(self.session.version()).map_or(VERSION, |agreed| agreed.min(VERSION))
    }

    /// Asks something that is answered by the host's status.
    ///
    /// # Errors
    /// The connection ends, or the host is silent for `timeout`.
    pub fn ask(&mut self, request: &Request, timeout: Duration) -> Result<HostStatus> {
        let deadline = Instant::now() + timeout;
        let mut message = Vec::new();
        request.encode_as(self.version(), &mut message);
        self.session.send(&message)?;
        let mut status = answer(self.session.as_mut(), deadline)?;
        // The question itself is no client of the host.
        let before = status.clients.len();
        status.clients.retain(|client| client.id != self.id.0);
        let removed = u32::try_from(before - status.clients.len()).unwrap_or(0);
        status.clients_total = status.clients_total.saturating_sub(removed);
        Ok(status)
    }

    /// Waits until the host has closed the connection; whether it has by `deadline`.
    pub fn wait_closed(&mut self, deadline: Instant) -> bool {
        loop {
            match self.session.receive() {
                Err(_) => return true,
                Ok(Some(_)) => {}
                Ok(None) => {
                    if !wait_session(self.session.as_ref(), deadline).unwrap_or(true) {
                        return false;
                    }
                }
            }
        }
    }
}

fn answer(session: &mut dyn Session, deadline: Instant) -> Result<HostStatus> {
    loop {
        while let Some(incoming) = session.receive()? {
            let Incoming::Message(bytes) = incoming else {
                continue;
            };
            if let Reply::Status(status) = Reply::decode(&bytes).context("status")? {
                return Ok(*status);
            }
        }
        if !wait_session(session, deadline)? {
            bail!("connected, but did not answer in time");
        }
    }
}

#[allow(unsafe_code, reason = "the session names its descriptor by number")]
fn wait_session(session: &dyn Session, deadline: Instant) -> std::io::Result<bool> {
    let fd = session.fd().ok_or(std::io::ErrorKind::Unsupported)?;
    // SAFETY: the session is alive for the length of this call and owns the descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    wait_readable(&fd, deadline)
}

/// A number that nobody else has drawn.
///
/// # Errors
/// The system has no randomness.
pub fn random_u128() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("read random bytes: {e}"))?;
    Ok(u128::from_le_bytes(bytes))
}
