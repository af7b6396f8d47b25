//! The end of a worker's operations.

use crate::directory::Session;
use crate::worker::verbs::bits;

use super::Engine;

impl Engine {
    /// Forgets parked operations that have not begun.
    pub fn retain_paused(&mut self) {
        let ops = &self.ops;
        self.agenda.parked.retain(|&op| ops[op].is_paused());
    }

    /// Whether a write waits for a rebuilder, a slab, or the journal, and for nothing that is on its way.
    pub fn has_paused(&self) -> bool {
        self.ops.all.iter().any(|op| op.is_paused())
    }

    /// Closes the endpoints, and ends what is under way: without them nothing can land any more, and only
    /// then may buffers go. `is_abandoned`: as the end of the process would.
    pub fn close(&mut self, is_abandoned: bool) {
        let (ops, path) = (&mut self.ops.all, &self.path);
        // Hosts may have part of what is being written: the disk is what these pages are read from.
        ops.iter().for_each(|op| op.unmark_unended(path));
        if is_abandoned {
            self.endpoints.close();
            ops.iter_mut().for_each(|op| op.give_back_whole(&path.core));
        } else {
            self.fail_unanswered();
            self.endpoints.close();
            let (ops, path) = (&mut self.ops.all, &self.path);
            ops.iter_mut().for_each(|op| op.fail_write(path));
            ops.iter_mut().for_each(|op| op.give_back(&path.core));
        }
        let (ops, path) = (&mut self.ops.all, &self.path);
        ops.iter_mut().for_each(|op| op.forget_disk(path));
        self.path.at_disk = 0;
        if let Some(store) = &self.path.core.backing {
            store.disown(self.path.worker);
        }
    }

    /// Gives up hosts that have not answered the writes of operations that will not go on: what may still land
    /// of these is in slabs that nobody reads, or that are taken back and have none of these pages, and their
    /// pages can be given back.
    fn fail_unanswered(&mut self) {
        for at in 0..self.ops.all.len() {
            let op = &self.ops.all[at];
            let stripe = op.page.stripe(&self.path.views);
            let Some(stripe) = stripe.filter(|_| op.is_writing()) else {
                continue;
            };
            let out = bits(op.page.verbs.out());
            let members = out.filter_map(|index| stripe.members.get(index)?.as_ref());
            let sessions: Vec<Session> = members.map(|member| member.session).collect();
            for session in sessions {
                self.fail_session(session);
            }
        }
    }
}
