//! What the control thread is made of, and what its volume's handle asks of it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};

use cenote_fabric::ClientId;
use cenote_pool::placement::Placement;

use super::{Dialer, HostConfig, Link};
use crate::core::Core;
use crate::directory::HostIndex;
use crate::journal::Journal;
use crate::status::VolumeStatus;
use crate::{Resilience, VolumeError};

/// What the volume's handle asks of the control thread.
pub enum Command {
    /// Open endpoints to every connected host for a new worker, then answer.
    AddWorker {
        id: usize,
        ready: SyncSender<std::io::Result<()>>,
    },
    RemoveWorker {
        id: usize,
    },
    Status {
        reply: SyncSender<VolumeStatus>,
    },
    /// Expect something else of hosts from now on.
    Reshape(Resilience),
    /// Give every slab back and end.
    Close,
    /// End, and leave every slab to the next owner.
    Detach,
}

/// What the control thread is made of.
pub struct Parts {
    pub core: Arc<Core>,
    pub dialer: Arc<dyn Dialer>,
    pub client: ClientId,
    /// Where this process runs; 0: it does not say.
    pub machine: u128,
    pub name: String,
    pub volume: u128,
    pub slab_bytes: u64,
    pub placement: Placement,
    pub hosts: Vec<HostConfig>,
    /// Links made while the volume was opened, by host.
    pub links: Vec<(HostIndex, Link)>,
    pub commands: Receiver<Command>,
    /// Where these come from.
    pub orders: Sender<Command>,
    /// What survives the owner.
    pub journal: Option<Journal>,
    /// Told once what the journal names is taken over.
    pub opened: Option<SyncSender<Result<(), VolumeError>>>,
}
