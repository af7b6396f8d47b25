//! Slabs that their hosts may have taken, and asking after them.
//!
//! A host takes slabs of a client that was silent for a lease, and nothing but a verb on one would
//! tell: splits that no page is read from, as parities, would be missed only when they are needed.
//! So a client that was stopped for long asks after all of them, and a repair that cannot read a
//! source asks after that. Asking is attaching once more: a host refuses a window that it has closed.

use cenote_fabric::WindowDescriptor;

use super::{Control, pool_window};
use crate::directory::{HostIndex, Member};

/// Slabs asked after per tick: few beside what a session takes at a time.
const ASKED_PER_TICK: usize = 256;

impl Control {
    /// This process was stopped for so long that hosts may have given up on it.
    pub(super) fn suspect_all(&mut self) {
        let snapshot = self.core.directory.snapshot();
        let stripes = snapshot.extents.iter().flatten();
        let members = stripes.flat_map(|stripe| stripe.members.iter().flatten());
        self.suspects = members
            .map(|member| (member.session, pool_window(&member.window.descriptor)))
            .collect();
    }

    /// A slab could not be read.
    pub(super) fn suspect(&mut self, extent: usize, split: usize) {
        let snapshot = self.core.directory.snapshot();
        let stripe = snapshot.extents[extent].as_ref();
        let member = stripe.and_then(|stripe| stripe.members.get(split)?.as_ref());
        let suspect = member.map(|member| (member.session, pool_window(&member.window.descriptor)));
        if let Some(suspect) = suspect.filter(|suspect| !self.suspects.contains(suspect)) {
            self.suspects.push(suspect);
        }
    }

    /// Asks after some of the suspects.
    pub(super) fn ask_after_suspects(&mut self) {
        for _ in 0..ASKED_PER_TICK {
            let Some((session, window)) = self.suspects.pop() else {
                return;
            };
            if self.session_is_up(session) && !self.hosts[session.host].attach(window) {
                self.lose(session.host);
            }
        }
    }

    /// A host does not know a window: whatever the directory has there is gone.
    pub(super) fn on_unknown(&mut self, host: HostIndex, window: WindowDescriptor) {
        let is_it = |member: &Member| {
            let known = &member.window.descriptor;
            let is_same = (known.id, known.generation) == (window.id, window.generation);
            member.session.host == host && is_same
        };
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let members = stripe.iter().flat_map(|stripe| &stripe.members).enumerate();
            let gone = members.filter(|(_, member)| member.as_ref().is_some_and(is_it));
            for (split, member) in gone {
                let Some(member) = member else { continue };
                tracing::warn!(extent, split, host = %self.hosts[host].config.name, "a slab is gone");
                let directory = &self.core.directory;
                directory.fail_window(extent, split, member.session, window.generation);
            }
        }
    }
}
