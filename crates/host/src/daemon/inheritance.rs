//! What a process of a host gets from the one before it: its book, and the memory of lent slabs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cenote_fabric::{Address, HostPort, Region, WindowDescriptor, WindowId};
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
}

/// Reads an inheritance and maps its memory.
///
/// # Errors
/// `Inheritance`: it contradicts itself; `Fabric`: memory that is not what it should be.
pub(crate) fn open(inheritance: Inheritance, huge: bool) -> Result<Inherited> {
    if inheritance.state.is_empty() {
        return Ok(Inherited::default());
    }
    let handover =
        Handover::decode(&inheritance.state).map_err(|e| Error::Inheritance(e.to_string()))?;
    let (lent, passed) = (handover.slabs.len(), inheritance.memory.len());
    if lent != passed {
        let what = format!("{lent} slabs are lent, the memory of {passed} was passed on");
        return Err(Error::Inheritance(what));
    }
    let region = |(slab, fd): (&HandedSlab, _)| {
        Region::inherit(fd, slab.held.window.len_bytes, huge).map(Arc::new)
    };
    let regions = handover.slabs.iter().zip(inheritance.memory).map(region);
    let regions = regions.collect::<cenote_fabric::Result<_>>()?;
    Ok(Inherited { handover, regions })
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
    /// Has the new process go on where the earlier one was: on the ports that it had, with slabs
    /// of the size that it lent. Memory that it holds already is not wanted a second time.
    pub(super) fn adjust(&self, config: &mut Config, machine: &mut Machine) {
        for (address, before) in config.addresses.iter_mut().zip(&self.handover.addresses) {
            if let (Address::Tcp(ours), Ok(Address::Tcp(theirs))) = (&*address, before.parse())
                && ours.port() == 0
                && is_where(ours, &theirs)
            {
                *address = Address::Tcp(theirs);
            }
        }
        let Some(held) = u64::try_from(self.regions.len()).ok().filter(|&n| n > 0) else {
            return;
        };
        let slab_bytes = self.handover.slab_bytes;
        if config.slab_bytes != slab_bytes {
            tracing::warn!(
                configured = config.slab_bytes,
                slab_bytes,
                "slabs that are lent keep their size; drain the host first to change it"
            );
            config.slab_bytes = slab_bytes;
        }
        let held_bytes = held.saturating_mul(slab_bytes);
        machine.available_bytes = machine.available_bytes.saturating_add(held_bytes);
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
