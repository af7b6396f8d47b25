//! Giving everything back without loss: nothing is lent, and clients are asked for what they hold.
//!
//! The host asks (EVICT) and takes nothing: a slab goes when its client unmaps it, which says
//! that its bytes are safe elsewhere. Asking is repeated for as long as it is meant, so neither
//! side keeps a state that the other could miss, and a client that comes back is asked as well.

use std::time::Duration;

use crate::control::{Refusal, Reply, Window};

use super::{Grant, Ledger, Slab};

/// A declined slab that is asked for again for this long, and is not declined again, may have found
/// a place. More than two of the pauses between askings, each of which a client without a place
/// answers.
const DECLINE_FADES: Duration = Duration::from_millis(2500);

impl Ledger {
    /// An operator wants the host drained, or lending again.
    pub fn handle_drain(&mut self, now: Duration, draining: bool) {
        self.draining = draining.then(|| self.draining.unwrap_or(now));
        for slab in &mut self.slabs {
            if let Slab::Mapped(grant) = slab {
                grant.declined = false;
                grant.asked = None;
            }
        }
        if draining {
            self.refuse_waiting(Refusal::ShuttingDown);
            self.retire_surplus();
        }
        self.prepare_ahead(now);
    }

    /// A client has nowhere to put the bytes of a slab. It may find a place later, and is asked
    /// again; until then an operator can see who is in the way.
    pub fn handle_declined(&mut self, client: u128, window: Window) {
        let Some(at) = self.find(client, window) else {
            return;
        };
        if let Slab::Mapped(grant) = &mut self.slabs[at as usize] {
            grant.declined |= self.draining.is_some() || grant.asked.is_some();
            grant.asked_again = None;
        }
    }

    /// One time without a place is no reason to wait for nothing: the client may copy the slab by
    /// now.
    pub(super) fn forget_declined(&mut self, now: Duration) {
        for slab in &mut self.slabs {
            if let Slab::Mapped(grant) = slab
                && let Some(since) = grant.asked_again
                && now.saturating_sub(since) >= DECLINE_FADES
            {
                (grant.declined, grant.asked_again) = (false, None);
            }
        }
    }

    /// Whether it gives its slabs back.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Whether it is draining and nobody holds a slab, nor is any memory left to give back.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining.is_some() && self.slabs.iter().all(|slab| matches!(slab, Slab::Free))
    }

    /// Windows to ask a client for now, at most `count`: the oldest grants first, after them those
    /// that it declined.
    #[must_use]
    pub fn wanted_back(&mut self, now: Duration, client: u128, count: usize) -> Vec<Window> {
        let wanted = |grant: &Grant| self.draining.is_some() || grant.asked.is_some();
        let held = self
            .grants()
            .filter(|(_, grant)| grant.client == client && wanted(grant));
        let mut wanted: Vec<_> = held
            .map(|(slab, grant)| (grant.declined, grant.sequence, slab))
            .collect();
        wanted.sort_unstable();
        let mut windows = Vec::new();
        for (.., slab) in wanted.into_iter().take(count) {
            let Slab::Mapped(grant) = &mut self.slabs[slab as usize] else {
                unreachable!("its grant was found above");
            };
            if grant.declined {
                grant.asked_again.get_or_insert(now);
            }
            windows.push(grant.window);
        }
        windows
    }

    /// Slabs that a client was asked for and declined.
    #[must_use]
    pub fn declined(&self, client: u128) -> u32 {
        let declined = self
            .grants()
            .filter(|(_, grant)| grant.client == client && grant.declined);
        u32::try_from(declined.count()).expect("bounded by the slabs")
    }

    pub(super) fn refuse_waiting(&mut self, reason: Refusal) {
        for waiting in std::mem::take(&mut self.waiting) {
            let request = waiting.request;
            self.send(waiting.client, Reply::Refused { request, reason });
        }
        self.forget_idle_owners();
    }
}
