//! How busy each extent is: what is mapped, what is given back, and what a host under pressure is told.
//!
//! `A = alpha * measured + (1 - alpha) * A`, once a second, of page reads and writes per second.
//! Without a backing store an extent is mapped by its first write; with one, when A passes HotSlab.
//! Paper: \[infiniswap17\] 4.1 (hot slabs), 5.2 (CHECK_ACTIVITY), table of parameters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Request, SlabActivity, Window};

use super::{Control, pool_window};
use crate::directory::HostIndex;
use crate::extents::{ByExtent, LayoutId};

/// Smoothed activity of every extent.
pub(super) struct Activity {
    averages: ByExtent<f32>,
    sampled: Time,
}

/// Weight of the newest second.
const ALPHA: f32 = 0.2;
/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);

impl Activity {
    /// Of those that are in a table.
    pub fn new<T>(extents: &ByExtent<T>, now: Time) -> Self {
        let counts = LayoutId::BOTH.map(|layout_id| extents.count(layout_id));
        Self {
            averages: ByExtent::new(counts, || 0.0),
            sampled: now,
        }
    }

    /// Page operations per second, smoothed.
    pub fn of(&self, extent: usize) -> f32 {
        self.averages[extent]
    }
}

impl Control {
    /// Of an extent; for status.
    pub(crate) fn activity_of(&self, extent: usize) -> f32 {
        self.activity.of(extent)
    }

    /// Takes a sample when one is due, and maps and gives back what it says.
    pub(super) fn tend_activity(&mut self, now: Time) {
        let since = now.since(self.activity.sampled);
        if since < PERIOD {
            return;
        }
        self.activity.sampled = now;
        let per_second = 1.0 / since.as_secs_f32();
        let touched = self.core.touched.iter();
        for (average, touched) in self.activity.averages.iter_mut().zip(touched) {
            // Most are never touched; a load is cheaper than a swap.
            if *average == 0.0 && touched.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let measured = touched.swap(0, Ordering::Relaxed) as f32 * per_second;
            *average = ALPHA * measured + (1.0 - ALPHA) * *average;
        }
        if self.core.backing.is_some() && !self.is_opening() {
            self.map_the_hot();
            self.drop_the_cold();
            self.reclaim_idle(now);
        }
    }

    /// Maps unmapped extents that are busy, the busiest first.
    fn map_the_hot(&mut self) {
        let numbered = self.activity.averages.numbered();
        let mut hot: Vec<usize> = numbered
            .map(|(extent, _)| extent)
            .filter(|&extent| self.is_hot(extent))
            .filter(|&extent| !self.core.is_refused(extent))
            .collect();
        hot.sort_by(|&a, &b| self.activity.of(b).total_cmp(&self.activity.of(a)));
        for extent in hot {
            self.start_mapping(extent);
        }
    }

    /// Whether it is to have slabs by what it does. With a HotSlab of 0 its next write says so.
    fn is_hot(&self, extent: usize) -> bool {
        let activity = f64::from(self.activity.of(extent));
        let store = self.core.backing.as_ref();
        store.is_some_and(|store| {
            store.hot_slab > 0.0 && activity > store.hot_slab.max(store.cold_slab)
        })
    }

    fn drop_the_cold(&mut self) {
        let store = self.core.backing.as_ref();
        let Some(cold_slab) = store
            .map(|store| store.cold_slab)
            .filter(|&cold| cold > 0.0)
        else {
            return;
        };
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let is_cold = f64::from(self.activity.of(extent)) < cold_slab;
            if stripe.is_some() && is_cold && self.may_drop(extent) {
                self.begin_drop(extent);
            }
        }
    }

    /// The extent has no slabs since they were dropped: takes others at once if it is busy.
    pub(super) fn remap_if_hot(&mut self, extent: usize) {
        if self.is_hot(extent) {
            self.start_mapping(extent);
        }
    }

    /// A host asks how busy some of its slabs are.
    pub(super) fn on_check_activity(&mut self, host: HostIndex, request: u64, windows: &[Window]) {
        let snapshot = self.core.directory.snapshot();
        let stripes = snapshot.extents.numbered();
        let mut slabs = Vec::with_capacity(windows.len());
        for (extent, stripe) in stripes {
            let members = stripe.iter().flat_map(|stripe| stripe.members.iter());
            for member in members.flatten().filter(|m| m.session.host == host) {
                let window = pool_window(&member.window.descriptor);
                if windows.contains(&window) {
                    // Saturates, and a slab in use is more than one that is not.
                    let milli = (self.activity.of(extent) * 1000.0) as u32;
                    slabs.push(SlabActivity { window, milli });
                }
            }
        }
        self.send(host, &Request::Activity { request, slabs });
    }
}
