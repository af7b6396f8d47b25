//! The epoch that an operation works in, and what it sees of the directory there.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_codec::Code;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::{PageOp, State};
use crate::Resilience;
use crate::directory::Stripe;
use crate::scheme::Cut;
use crate::worker::{View, Worker};

impl Worker {
    /// Enters the newest epoch.
    pub(super) fn enter(&mut self, op: u16) {
        let mut snapshot = self.epoch.enter(self.working > 0);
        // Not again after it failed there, or it would fail for ever.
        if is_injected(InjectedFault::StaleSnapshot)
            && !self.ops[usize::from(op)].failed
            && let Some(view) = self.views.back()
            && let Some(Some(stripe)) = view.snapshot.extents.get(self.ops[usize::from(op)].extent)
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
                late: 0,
            });
            // Endpoints are delivered before anything granted on their session is published.
            self.take_mail();
        }
        self.views.back_mut().expect("just pushed").count += 1;
        self.working += 1;
        self.note_expected(op, epoch);
    }

    /// Notes what the epoch expects of hosts, and how wide the operation's stripe is in it.
    fn note_expected(&mut self, op: u16, epoch: u64) {
        let view = self.views.back().expect("just pushed");
        let state = &mut self.ops[usize::from(op)];
        let resilience = view.snapshot.resilience;
        let stripe = view.snapshot.extents.get(state.extent);
        let stripe = stripe.and_then(Option::as_deref);
        let parities = stripe.map_or(resilience.scheme().r(), |stripe| stripe.parities());
        state.epoch = epoch;
        state.mode = resilience.mode();
        // A mode's delta is at most its scheme's parities.
        (state.delta, state.parities) = (resilience.delta() as u8, parities as u8);
        self.scratch.reserve(state.cut, parities);
    }

    /// How the operation's page is cut.
    #[inline]
    pub(super) fn cut(&self, op: u16) -> Cut {
        self.ops[usize::from(op)].cut
    }

    /// What the operation expects of its stripe's hosts.
    #[inline]
    pub(super) fn resilience(&self, op: u16) -> Resilience {
        let op = &self.ops[usize::from(op)];
        Resilience::in_stripe(
            op.mode,
            op.delta.into(),
            op.cut.with_parities(op.parities.into()),
        )
    }

    /// Splits of the operation's page.
    pub(super) fn splits(&self, op: u16) -> usize {
        self.cut(op).k() + usize::from(self.ops[usize::from(op)].parities)
    }

    /// The code of the operation's stripe; `None`: its pages are copied.
    pub(super) fn code(&self, op: u16) -> Option<&Code> {
        let op = &self.ops[usize::from(op)];
        self.core.codes.with(op.cut, op.parities.into())
    }

    /// Leaves the operation's epoch and publishes the oldest that is still worked in. What the
    /// verbs that are still out speak of is kept until they have ended: see [`Worker::forget`].
    pub(super) fn leave(&mut self, op: u16) {
        let state = &mut self.ops[usize::from(op)];
        if state.epoch == 0 || state.state == State::Lingering {
            return;
        }
        let is_late = state.pending != 0;
        let view = view_of(&mut self.views, state.epoch);
        view.count -= 1;
        self.working -= 1;
        if is_late {
            view.late += 1;
            self.lingering += 1;
            state.state = State::Lingering;
        } else {
            state.epoch = 0;
        }
        self.drop_views();
        let oldest = self.views.iter().find(|view| view.count > 0);
        self.epoch.leave(oldest.map(|view| view.snapshot.epoch));
    }

    /// The last verb of an operation has ended that had ended before: its place is free.
    pub(super) fn forget(&mut self, op: u16) {
        let state = &mut self.ops[usize::from(op)];
        view_of(&mut self.views, std::mem::take(&mut state.epoch)).late -= 1;
        self.lingering -= 1;
        state.state = State::Free;
        self.free_ops.push(op);
        self.drop_views();
    }

    fn drop_views(&mut self) {
        while self.views.len() > 1 && self.views[0].is_unused() {
            self.views.pop_front();
        }
    }
}

fn view_of(views: &mut VecDeque<View>, epoch: u64) -> &mut View {
    let mut views = views.iter_mut();
    views
        .find(|view| view.snapshot.epoch == epoch)
        .expect("entered before")
}

impl View {
    fn is_unused(&self) -> bool {
        self.count == 0 && self.late == 0
    }
}

/// The stripe of the operation's extent, in the epoch that it works in. One of another cut than the
/// operation found its page with is none: the page has gone from there meanwhile.
pub(super) fn stripe_of<'a>(views: &'a VecDeque<View>, op: &PageOp) -> Option<&'a Stripe> {
    let view = views
        .iter()
        .rev()
        .find(|view| view.snapshot.epoch == op.epoch)?;
    let stripe = view.snapshot.extents.get(op.extent)?.as_deref();
    stripe.filter(|stripe| stripe.cut == op.cut)
}
