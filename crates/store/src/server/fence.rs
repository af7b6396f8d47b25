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
    /// The persister, which does nothing else meanwhile: the machine had no thread for it.
    Here,
    /// Whoever calls [`Shard::end_fence`], as time that is simulated goes on.
    Later,
}

impl Fencer {
    /// Starts the thread, if the machine has one. It says when a fence is over in the shard's
    /// state.
    pub fn start<'scope, M: Medium>(
        scope: &'scope Scope<'scope, '_>,
        shard: &'scope Shard<M>,
    ) -> Self {
        let (begin, begun) = channel();
        let run = move || ended_as_one(|| fence_each(shard, &begun));
        match std::thread::Builder::new().spawn_scoped(scope, run) {
            Ok(_) => Self::Thread(begin),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "start a thread that waits for the disk; a shard is slower without it"
                );
                Self::Here
            }
        }
    }

    /// Begins a fence of all that was written back. The shard is not locked by the caller.
    pub fn fence<M: Medium>(&self, shard: &Shard<M>) {
        shard.medium.begin_fence();
        match self {
            Self::Thread(begin) => begin
                .send(())
                .expect("a thread that panics ends the process"),
            Self::Here => shard.end_fence(),
            Self::Later => {}
        }
    }
}

fn fence_each<M: Medium>(shard: &Shard<M>, begun: &Receiver<()>) {
    while begun.recv().is_ok() {
        shard.end_fence();
    }
}
