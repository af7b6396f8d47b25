//! What a volume's handle and its workers ask of the control thread.

use std::sync::mpsc::{Sender, SyncSender};

use crate::Resilience;
use crate::status::VolumeStatus;

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

/// Tells the control thread that a worker is gone, when dropped.
pub(crate) struct Farewell {
    pub id: usize,
    pub commands: Sender<Command>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        // With the control thread gone there is nobody to tell.
        drop(self.commands.send(Command::RemoveWorker { id: self.id }));
    }
}
