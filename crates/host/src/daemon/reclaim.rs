//! The clients that run on this host's own machine, and what they are told of its memory.
//!
//! A client says which machine it is on when it connects (`Here`); it is told by RECLAIM, once a
//! second while there is memory to spare. One of an earlier version says nothing and is told
//! nothing.

use cenote_fabric::PeerId;
use cenote_pool::control::Reply;

use super::Daemon;

impl Daemon {
    /// A client says where it runs and what it could reclaim.
    pub(super) fn note_place(&mut self, peer: PeerId, machine: u128, away_bytes: u64) {
        let is_local = self.machine != 0 && machine == self.machine;
        if let Some(session) = self.sessions.get_mut(&peer) {
            session.away_bytes = is_local.then_some(away_bytes);
        }
    }

    /// What clients of this machine could reclaim, as they said last.
    pub(super) fn away_bytes(&self) -> u64 {
        let said = self
            .sessions
            .values()
            .filter_map(|session| session.away_bytes);
        said.fold(0, u64::saturating_add)
    }

    /// Tells the clients of this machine what it has to spare. All are told the same: each takes
    /// what fits, and the next sample counts it.
    pub(super) fn offer_reclaim(&mut self) {
        let reclaim = self.watch.as_ref().and_then(|watch| watch.reclaim.as_ref());
        let bytes = reclaim.map_or(0, |reclaim| reclaim.offer().bytes);
        if bytes == 0 {
            return;
        }
        let sessions = self.sessions.values();
        let local = sessions.filter(|session| session.away_bytes.is_some());
        let clients: Vec<u128> = local.map(|session| session.client).collect();
        for client in clients {
            self.send(client, &Reply::Reclaim { bytes });
        }
    }
}
