//! The epoch that an operation works in, and what it sees of the directory there.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_pool::planted::{Planted, is_planted};

use super::PageOp;
use crate::directory::Stripe;
use crate::worker::{View, Worker};

impl Worker {
    /// Enters the newest epoch.
    pub(super) fn enter(&mut self, op: u16) {
        let mut snapshot = self.epoch.enter(self.working > 0);
        // Not again after it failed there, or it would fail for ever.
        if is_planted(Planted::StaleSnapshot)
            && !self.ops[usize::from(op)].failed
            && let Some(view) = self.views.back()
            && let Some(stripe) = &view.snapshot.extents[self.ops[usize::from(op)].extent]
            && stripe.fence.is_empty()
        {
            snapshot = &view.snapshot;
        }
        let epoch = snapshot.epoch;
        if self
            .views
            .back()
            .is_none_or(|view| view.snapshot.epoch != epoch)
        {
            self.views.push_back(View {
                snapshot: Arc::clone(snapshot),
                count: 0,
            });
            // Endpoints are delivered before anything granted on their session is published.
            self.take_mail();
        }
        self.views.back_mut().expect("just pushed").count += 1;
        self.working += 1;
        self.ops[usize::from(op)].epoch = epoch;
    }

    /// Leaves the operation's epoch and publishes the oldest that is still worked in.
    pub(super) fn leave(&mut self, op: u16) {
        let epoch = std::mem::take(&mut self.ops[usize::from(op)].epoch);
        if epoch == 0 {
            return;
        }
        let view = self
            .views
            .iter_mut()
            .find(|view| view.snapshot.epoch == epoch)
            .expect("entered before");
        view.count -= 1;
        self.working -= 1;
        while self.views.len() > 1 && self.views[0].count == 0 {
            self.views.pop_front();
        }
        self.epoch
            .leave((self.working > 0).then(|| self.views[0].snapshot.epoch));
    }
}

/// The stripe of the operation's extent, in the epoch that it works in.
pub(super) fn stripe_of<'a>(views: &'a VecDeque<View>, op: &PageOp) -> Option<&'a Stripe> {
    let view = views
        .iter()
        .rev()
        .find(|view| view.snapshot.epoch == op.epoch)?;
    view.snapshot.extents[op.extent].as_deref()
}
