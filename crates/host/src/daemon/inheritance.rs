//! What a process of a host gets from the one before it: its book, and the memory of lent slabs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cenote_fabric::{Address, HostPort, Listener, Region, WindowDescriptor, WindowId};
use cenote_pool::ledger::{HandedSlab, Handover};

use crate::keeper::Job;
use crate::machine::Machine;
use crate::side_thread::SideThread;
use crate::{Config, Error, Result};

/// What a process gets from the one before it; empty when there was none.
#[derive(Debug, Default)]
pub struct Inheritance {
    /// What [`Daemon::handover`](crate::Daemon::handover) gave; empty: nothing.
    pub state: Vec<u8>,
    /// Copies of the descriptors that it gave, in their order.
    pub memory: Vec<OwnedFd>,
}

/// A slab's memory and the window on it.
pub(super) struct Memory {
    pub region: Arc<Region>,
    pub window: WindowId,
}

/// An inheritance that was found sound.
#[derive(Default)]
pub(crate) struct Inherited {
    pub handover: Handover,
    /// As the handover's slabs.
    regions: Vec<Arc<Region>>,
    /// Whether there was a process before.
    takes_over: bool,
}

/// Reads an inheritance and maps its memory.
///
/// # Errors
/// `Inheritance`: it contradicts itself; `Fabric`: memory that is not what it should be.
pub(crate) fn open(inheritance: Inheritance, huge: bool) -> Result<Inherited> {
    if inheritance.state.is_empty() {
        return Ok(Inherited::default());
    }
    let mut inherited = Inherited::read(&inheritance.state)?;
    let slabs = std::mem::take(&mut inherited.handover.slabs);
    let (lent, passed) = (slabs.len(), inheritance.memory.len());
    if lent != passed {
        let what = format!("{lent} slabs are lent, the memory of {passed} was passed on");
        return Err(Error::Inheritance(what));
    }
    for (slab, fd) in slabs.into_iter().zip(inheritance.memory) {
        match Region::inherit(fd, slab.held.window.len_bytes, huge) {
            Ok(region) => {
                inherited.regions.push(Arc::new(region));
                inherited.handover.slabs.push(slab);
            }
            // Who has it mapped over shm can change its length. It is that client's loss alone, which
            // its list of slabs tells it.
            Err(cenote_fabric::Error::StaleWindow) => {
                tracing::error!(slab = ?slab.held, "its memory is not what it was: it is lost");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let handover = &mut inherited.handover;
    let holds = |client| handover.slabs.iter().any(|slab| slab.client == client);
    handover.clients.retain(|client| holds(client.id));
    Ok(inherited)
}

/// Lends no more than there is: a host that did not start for it would lose what is lent.
fn cap(config: &mut Config, available_bytes: u64) {
    let fits = config.memory_bytes <= available_bytes;
    // Without room for one slab it does not start; it holds none then.
    if fits || config.headroom.is_some() || available_bytes < config.slab_bytes {
        return;
    }
    tracing::warn!(
        configured = config.memory_bytes,
        available_bytes,
        "less memory is available than configured; the host lends what there is until its next \
         start"
    );
    config.memory_bytes = available_bytes;
}

/// Whether the earlier process is in the way of whoever tries to listen at `ours`.
fn is_taken(ours: &Address, theirs: &Address) -> bool {
    use Address::{Rdma, Shm, Tcp};
    match (ours, theirs) {
        (Shm(ours), Shm(theirs)) => ours == theirs,
        // Whatever the machine's address: one of them may stand for all.
        (Tcp(ours) | Rdma(ours), Tcp(theirs) | Rdma(theirs)) => ours.port() == theirs.port(),
        _ => false,
    }
}

/// Whether what is configured leads to the machine's address that was listened on.
fn is_where(ours: &HostPort, theirs: &HostPort) -> bool {
    match (ours.to_listen(), theirs.socket()) {
        (Ok(ours), Some(theirs)) => ours.ip() == theirs.ip(),
        // A name that is not resolved now is refused, with its reason, when it is listened on.
        _ => false,
    }
}

impl Inherited {
    /// What a state says, without the memory.
    ///
    /// # Errors
    /// `Inheritance`: it contradicts itself.
    pub(super) fn read(state: &[u8]) -> Result<Self> {
        let handover = Handover::decode(state).map_err(|e| Error::Inheritance(e.to_string()))?;
        Ok(Self {
            handover,
            regions: Vec::new(),
            takes_over: true,
        })
    }

    /// Has the new process go on where the earlier one was: on the ports that it had, with slabs
    /// of the size that it lent. Memory that it holds already is not wanted a second time, and what
    /// the machine does not have is not lent.
    pub(super) fn adjust(&self, config: &mut Config, machine: &mut Machine) {
        for (address, before) in config.addresses.iter_mut().zip(&self.handover.addresses) {
            if let (Address::Tcp(ours), Ok(Address::Tcp(theirs))) = (&*address, before.parse())
                && ours.port() == 0
                && is_where(ours, &theirs)
            {
                *address = Address::Tcp(theirs);
            }
        }
        let slab_bytes = self.handover.slab_bytes;
        let held_bytes = (self.handover.slabs.len() as u64).saturating_mul(slab_bytes);
        if held_bytes > 0 && config.slab_bytes != slab_bytes {
            tracing::warn!(
                configured = config.slab_bytes,
                slab_bytes,
                "slabs that are lent keep their size; drain the host first to change it"
            );
            config.slab_bytes = slab_bytes;
        }
        machine.available_bytes = machine.available_bytes.saturating_add(held_bytes);
        if self.takes_over {
            cap(config, machine.available_bytes);
        }
    }

    /// Whether the addresses can be listened at, as far as that can be told while the earlier process
    /// listens at its own.
    ///
    /// # Errors
    /// `Fabric`.
    pub(super) fn try_addresses(&self, config: &Config) -> Result<()> {
        let before = self.handover.addresses.iter();
        let before: Vec<Address> = before.filter_map(|text| text.parse().ok()).collect();
        let mut new = Vec::new();
        for address in &config.addresses {
            if !before.iter().any(|theirs| is_taken(address, theirs)) {
                new.push(address.clone());
            } else if let Address::Tcp(at) | Address::Rdma(at) = address {
                at.to_listen()
                    .map_err(|source| cenote_fabric::Error::Unresolved {
                        address: address.clone(),
                        source,
                    })?;
            }
        }
        if !new.is_empty() {
            Listener::bind(&new, &config.key)?;
        }
        Ok(())
    }

    /// The windows as they stood.
    pub(crate) fn windows(&self) -> Vec<(Arc<Region>, WindowDescriptor)> {
        let windows = self.handover.slabs.iter().map(|slab| slab.held.window);
        let regions = self.regions.iter().map(Arc::clone);
        regions.zip(windows.map(WindowDescriptor::from)).collect()
    }

    pub(super) fn lock(&self, keeper: &SideThread<Job>) {
        for region in &self.regions {
            keeper.ask(Job::Lock(Arc::clone(region)));
        }
    }

    /// The memory of `slabs_total` slabs, the inherited ones first.
    pub(super) fn memory(&self, slabs_total: u32) -> Vec<Option<Memory>> {
        let memory = |(region, slab): (&Arc<Region>, &HandedSlab)| {
            Some(Memory {
                region: Arc::clone(region),
                window: WindowId(slab.held.window.id),
            })
        };
        let inherited = self.regions.iter().zip(&self.handover.slabs).map(memory);
        let empty = std::iter::repeat_with(|| None);
        inherited.chain(empty).take(slabs_total as usize).collect()
    }
}

impl Inheritance {
    /// Whether this program understands the state, without its memory.
    #[must_use]
    pub fn is_understood(state: &[u8]) -> bool {
        Handover::decode(state).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_pool::control::{HeldSlab, Window};
    use cenote_pool::ledger::HandedClient;

    use super::*;
    use crate::Headroom;

    const SLAB_BYTES: u64 = 1 << 30;

    fn config() -> Config {
        Config {
            memory_bytes: 8 * SLAB_BYTES,
            slab_bytes: SLAB_BYTES / 8,
            ..crate::config::tests::config()
        }
    }

    fn with_left(available_bytes: u64) -> Machine {
        Machine {
            available_bytes,
            ..Machine::boundless()
        }
    }

    /// Of an earlier process that lent so many slabs.
    fn inherited(count: u32) -> Inherited {
        let slab = |extent| HandedSlab {
            client: 1,
            held: HeldSlab {
                volume: 7,
                extent,
                member: 0,
                window: Window {
                    id: extent,
                    generation: 1,
                    len_bytes: SLAB_BYTES,
                    rights: 7,
                },
            },
            birth: 1,
            is_left: false,
        };
        let client = HandedClient {
            id: 1,
            name: "client".into(),
            silent: Duration::ZERO,
            orphaned: None,
        };
        let handover = Handover {
            slab_bytes: SLAB_BYTES,
            addresses: vec!["tcp:127.0.0.1:7000".into()],
            clients: vec![client],
            slabs: (0..count).map(slab).collect(),
            ..Handover::default()
        };
        Inherited::read(&handover.encode()).unwrap()
    }

    #[test]
    fn who_takes_over_lends_what_is_left_beside_what_it_holds() {
        let settled = |inherited: &Inherited, mut config: Config, left| {
            let mut machine = with_left(left);
            inherited.adjust(&mut config, &mut machine);
            config.check(&machine).map(|()| config)
        };
        // Others have grown since the earlier process started.
        let capped = settled(&inherited(2), config(), 4 * SLAB_BYTES + 5).unwrap();
        assert_eq!((capped.slabs_total(), capped.slab_bytes), (6, SLAB_BYTES));
        let full = settled(&inherited(2), config(), 0).unwrap();
        assert_eq!(full.slabs_total(), 2);
        let enough = settled(&inherited(2), config(), 6 * SLAB_BYTES).unwrap();
        assert_eq!(enough.memory_bytes, 8 * SLAB_BYTES);
        let none_lent = settled(&inherited(0), config(), SLAB_BYTES).unwrap();
        assert_eq!(none_lent.slabs_total(), 8);
        // That of a host with a headroom follows the machine anyway.
        let mut flexible = config();
        flexible.headroom = Some(Headroom::infiniswap());
        let flexible = settled(&inherited(2), flexible, 0).unwrap();
        assert_eq!(flexible.memory_bytes, 8 * SLAB_BYTES);

        let first = settled(&Inherited::default(), config(), 4 * SLAB_BYTES);
        assert!(matches!(first, Err(Error::OutOfMemory { .. })));
        let nothing = settled(&inherited(0), config(), 5);
        assert!(matches!(nothing, Err(Error::OutOfMemory { .. })));
    }
}
