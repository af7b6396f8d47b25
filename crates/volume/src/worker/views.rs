//! The epochs that a worker's operations work in, and what they see of the directory there.
//!
//! An operation enters the newest epoch, and keeps what the directory says there until it leaves. One that
//! ends while verbs of it are out **lingers**: what they speak of is kept until they have ended, though no epoch is
//! held for it.
//!
//! Invariant: the epoch that is published is no newer than any that is worked in.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use crate::directory::{Snapshot, Stripe, WorkerEpoch};
use crate::layout::PageLocation;
use crate::scheme::Cut;
use crate::{Mode, Resilience};

/// The views of one worker, the oldest first.
pub(super) struct Views {
    epoch: WorkerEpoch,
    views: VecDeque<View>,
    // Operations that work in some view.
    working: u32,
    // Operations that have ended, and of which verbs are still out.
    lingering: usize,
}

/// A snapshot that operations work in.
struct View {
    snapshot: Arc<Snapshot>,
    count: u32,
    // Operations that have ended here, and of which verbs are still out.
    late: u32,
}

/// What the epoch that an operation entered last expects of hosts.
#[derive(Clone, Copy, Default)]
pub(super) struct Expected {
    /// 0: it is in none.
    pub epoch: u64,
    mode: Mode,
    delta: u8,
    /// Parities of its stripe there.
    pub parities: u8,
}

impl Expected {
    /// Of an operation that has left the epoch.
    pub fn left(self) -> Self {
        Self { epoch: 0, ..self }
    }

    /// Of the stripe of a page that is cut so.
    #[inline]
    pub fn resilience(&self, cut: Cut) -> Resilience {
        Resilience::in_stripe(
            self.mode,
            self.delta.into(),
            cut.with_parities(self.parities.into()),
        )
    }
}

impl Views {
    pub fn new(epoch: WorkerEpoch) -> Self {
        Self {
            epoch,
            views: VecDeque::with_capacity(16),
            working: 0,
            lingering: 0,
        }
    }

    /// The snapshot that was entered last.
    pub fn known(&self) -> &Snapshot {
        self.epoch.known()
    }

    /// Operations that work in some view.
    pub fn working(&self) -> u32 {
        self.working
    }

    /// Operations that have ended, and of which verbs are still out.
    pub fn lingering(&self) -> usize {
        self.lingering
    }

    /// Enters the newest epoch for an operation on an extent; whether it is new to this worker.
    pub fn enter(&mut self, extent: usize, has_failed: bool) -> bool {
        let mut snapshot = self.epoch.enter(self.working > 0);
        // Not again after it failed there, or it would fail for ever.
        if is_injected(InjectedFault::StaleSnapshot)
            && !has_failed
            && let Some(view) = self.views.back()
            && let Some(Some(stripe)) = view.snapshot.extents.get(extent)
            && stripe.fence.is_empty()
        {
            snapshot = &view.snapshot;
        }
        let last = self.views.back().map(|view| view.snapshot.epoch);
        let is_new = last != Some(snapshot.epoch);
        if is_new {
            self.views.push_back(View {
                snapshot: Arc::clone(snapshot),
                count: 0,
                late: 0,
            });
        }
        self.views.back_mut().expect("just pushed").count += 1;
        self.working += 1;
        is_new
    }

    /// What the epoch that was just entered expects of an extent's hosts.
    pub fn expected(&self, extent: usize) -> Expected {
        let snapshot = &self.views.back().expect("just entered").snapshot;
        let resilience = snapshot.resilience;
        let stripe = snapshot.extents.get(extent);
        let stripe = stripe.and_then(Option::as_deref);
        let parities = stripe.map_or(resilience.scheme().r(), Stripe::parities);
        Expected {
            epoch: snapshot.epoch,
            mode: resilience.mode(),
            // A mode's delta is at most its scheme's parities.
            delta: resilience.delta() as u8,
            parities: parities as u8,
        }
    }

    /// An operation leaves its epoch: the oldest that is still worked in is published. `is_late`: verbs of it
    /// are out, and it lingers.
    pub fn leave(&mut self, epoch: u64, is_late: bool) {
        let view = self.view(epoch);
        view.count -= 1;
        view.late += u32::from(is_late);
        self.working -= 1;
        self.lingering += usize::from(is_late);
        self.drop_unused();
        let oldest = self.views.iter().find(|view| view.count > 0);
        self.epoch.leave(oldest.map(|view| view.snapshot.epoch));
    }

    /// The last verb of an operation that lingered has ended.
    pub fn forget(&mut self, epoch: u64) {
        self.view(epoch).late -= 1;
        self.lingering -= 1;
        self.drop_unused();
    }

    /// The stripe of a page's extent, in an epoch that is worked in. One of another cut than the
    /// page was found with is none: the page has gone from there meanwhile.
    #[inline]
    pub fn stripe(&self, epoch: u64, place: &PageLocation) -> Option<&Stripe> {
        let mut views = self.views.iter().rev();
        let view = views.find(|view| view.snapshot.epoch == epoch)?;
        let stripe = view.snapshot.extents.get(place.extent)?.as_deref();
        stripe.filter(|stripe| stripe.cut == place.cut)
    }

    fn view(&mut self, epoch: u64) -> &mut View {
        let mut views = self.views.iter_mut();
        views
            .find(|view| view.snapshot.epoch == epoch)
            .expect("entered before")
    }

    fn drop_unused(&mut self) {
        while self.views.len() > 1 && self.views[0].is_unused() {
            self.views.pop_front();
        }
    }
}

impl View {
    fn is_unused(&self) -> bool {
        self.count == 0 && self.late == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    fn directory() -> Arc<Directory> {
        let resilience = Resilience::of("rs:2+1".parse().expect("a scheme"));
        Arc::new(Directory::new([1, 0], resilience, true))
    }

    fn views(directory: &Arc<Directory>) -> Views {
        let (_, epoch) = directory.register().expect("room for a worker");
        Views::new(epoch)
    }

    #[test]
    fn an_epoch_is_held_as_long_as_any_operation_works_in_an_older_one() {
        let directory = directory();
        let mut views = views(&directory);
        assert!(views.enter(0, false));
        assert!(!views.enter(0, false), "it is known");
        let first = views.expected(0).epoch;
        let next = directory.publish(|_| true);
        assert!(views.enter(0, false));
        assert_eq!(views.expected(0).epoch, next);
        assert!(!directory.is_settled(next));
        views.leave(first, false);
        assert!(!directory.is_settled(next), "another is in it");
        views.leave(first, false);
        assert!(directory.is_settled(next));
        assert_eq!(views.working(), 1);
    }

    #[test]
    fn what_late_verbs_speak_of_is_kept_and_no_epoch_is_held_for_it() {
        let directory = directory();
        directory.publish(|next| {
            let members = vec![None; 3];
            next.extents[0] = Some(Arc::new(Stripe {
                members,
                ..Stripe::default()
            }));
            true
        });
        let mut views = views(&directory);
        views.enter(0, false);
        let epoch = views.expected(0).epoch;
        let place = PageLocation::default();
        views.leave(epoch, true);
        let next = directory.publish(|next| {
            next.extents[0] = None;
            true
        });
        assert!(directory.is_settled(next), "nothing is held");
        views.enter(0, false);
        assert!(views.stripe(epoch, &place).is_some(), "it lingers");
        assert!(views.stripe(next, &place).is_none());
        views.forget(epoch);
        assert!(views.stripe(epoch, &place).is_none());
        assert_eq!(views.lingering(), 0);
    }
}
