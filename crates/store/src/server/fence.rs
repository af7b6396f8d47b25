//! Who waits in a disk's fence while the persister goes on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use super::ended_as_one;
use super::shard::Shard;
use crate::medium::Medium;

/// Hands fences to where they are waited for.
pub(super) enum Fencer {
    /// A thread, which ends when this is dropped.
    Thread(Sender<()>),
    /// Whoever calls [`Shard::end_fence`], as time that is simulated goes on.
    Later,
}

impl Fencer {
    /// Starts the thread. It says when a fence is over in the shard's state.
    pub fn start<'scope, M: Medium>(
        scope: &'scope Scope<'scope, '_>,
        shard: &'scope Shard<M>,
    ) -> Self {
        let (begin, begun) = channel();
        scope.spawn(move || ended_as_one(|| fence_each(shard, &begun)));
        Self::Thread(begin)
    }

    /// Begins a fence of all that was written back.
    pub fn fence(&self) {
        if let Self::Thread(begin) = self {
            begin
                .send(())
                .expect("a thread that panics ends the process");
        }
    }
}

fn fence_each<M: Medium>(shard: &Shard<M>, begun: &Receiver<()>) {
    while begun.recv().is_ok() {
        shard.end_fence();
    }
}
