//! Hosts that run already: idle memory of machines that are there for something else.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::{Address, FAILURE_TIMEOUT, Incoming, Time};
use cenote_pool::control::{HostStatus, Reply, Request, VERSION};

use super::{Error, Machine, Provider, Wish};
use crate::links::{Caller, HostConfig};

/// How long a host may take to say how it is.
const ANSWER: Duration = Duration::from_secs(2);

/// The hosts of a cluster.
pub struct Running {
    hosts: Vec<HostConfig>,
    caller: Caller,
    taken: BTreeSet<String>,
}

impl Running {
    /// These hosts, each asked how much it can lend when a machine is wanted.
    #[must_use]
    pub fn new(hosts: Vec<HostConfig>, caller: Caller) -> Self {
        Self {
            hosts,
            caller,
            taken: BTreeSet::new(),
        }
    }

    /// These are taken already.
    #[must_use]
    pub fn with_taken(self, taken: impl IntoIterator<Item = String>) -> Self {
        let taken = taken.into_iter().collect();
        Self { taken, ..self }
    }
}

impl Provider for Running {
    /// The one with the most to lend, of those that answer.
    fn acquire(&mut self, wish: &Wish) -> Result<Machine, Error> {
        let mut best: Option<(u64, &HostConfig)> = None;
        for host in self
            .hosts
            .iter()
            .filter(|host| !self.taken.contains(&host.name))
        {
            let status = match status_of(&self.caller, &host.address) {
                Ok(status) => status,
                Err(error) => {
                    tracing::debug!(host = host.name, %error, "no answer");
                    continue;
                }
            };
            let lendable = u64::from(status.slabs_lendable()) * status.slab_bytes;
            let is_fit = !status.draining
                && status.slab_bytes == wish.slab_bytes
                && lendable >= wish.memory_bytes;
            if is_fit && best.is_none_or(|(most, _)| lendable > most) {
                best = Some((lendable, host));
            }
        }
        let Some((_, host)) = best else {
            let machine_type = wish.machine_type.clone();
            return Err(Error::None { machine_type });
        };
        self.taken.insert(host.name.clone());
        Ok(Machine {
            order: wish.order.clone(),
            id: host.name.clone(),
            host: host.clone(),
        })
    }

    /// It runs on, for others.
    fn release(&mut self, machine: &Machine) -> Result<(), Error> {
        self.taken.remove(&machine.id);
        Ok(())
    }

    /// It took nothing that outlives this process.
    fn cancel(&mut self, _: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Asks a host how it is.
///
/// # Errors
/// It cannot be reached, or does not answer in time.
pub fn status_of(caller: &Caller, address: &Address) -> Result<HostStatus, cenote_fabric::Error> {
    let caller = Caller {
        with_data: false,
        ..caller.clone()
    };
    let mut session = caller.connect(address)?.session;
    let spoken = u8::try_from(session.version()).map_or(VERSION, |agreed| agreed.min(VERSION));
    let mut bytes = Vec::new();
    Request::Status.encode_as(spoken, &mut bytes);
    session.send(&bytes)?;
    let begun = Time::now();
    loop {
        match session.receive()? {
            Some(Incoming::Message(bytes)) => {
                if let Ok(Reply::Status(status)) = Reply::decode(&bytes) {
                    return Ok(*status);
                }
            }
            Some(_) => {}
            None if Time::now().since(begun) >= ANSWER => {
                let silent = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(cenote_fabric::Error::os(
                    "wait for a status".to_owned(),
                    silent,
                ));
            }
            None => {
                let fd = session.fd();
                cenote_fabric::wait(fd.as_slice(), Some(FAILURE_TIMEOUT / 20))?;
            }
        }
    }
}
