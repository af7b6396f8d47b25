//! Slabs whose memory a client cut short.
//!
//! Over shm whoever may write a slab has its descriptor, and can truncate it: truncation is how a
//! window is revoked, so nothing forbids it (decision 3). What was in the slab is gone for all who
//! use it, those of a cache's region among them. They find its window stale and have their owner
//! compare the books, so that is when the host looks: a slab that is cut short is none any more.

use std::time::Duration;

use super::Daemon;

impl Daemon {
    /// Takes slabs of a client that were cut short from it: its list is to be without them. It is
    /// told of each, as of any other that its host took.
    pub(super) fn give_up_cut_short(&mut self, now: Duration, client: u128) {
        let of_client = self
            .ledger
            .grants()
            .filter(|(_, grant)| grant.client == client);
        let lost = of_client.filter(|(slab, _)| {
            let memory = self.memory[*slab as usize].as_ref();
            memory.is_some_and(|memory| memory.region.is_cut_short())
        });
        let lost: Vec<_> = lost.map(|(slab, grant)| (slab, grant.window)).collect();
        for (slab, window) in lost {
            tracing::error!(slab, "a client cut its memory short: it is lost");
            self.ledger.handle_unmap(now, client, window);
        }
    }
}
