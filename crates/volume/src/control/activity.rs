//! How busy each extent is: what is mapped, what is given back, and what a host under pressure is told.
//!
//! `A = alpha * measured + (1 - alpha) * A`, once a second, of page reads and writes per second.
//! Without a backing store an extent is mapped by its first write; with one, when A passes HotSlab. A write that
//! has the disk alone and sees that this second's operations suffice asks for slabs at once
//! (`Core::is_hot_already`): a program that is swapped out writes an extent in less than a second.
//!
//! While a host that shares this client's machine has memory to spare (RECLAIM), a backed volume needs nobody's
//! memory for what is not busy: it gives up slabs, some each second, and its pages are then read from the
//! backing store, into memory that the machine has. A front end that swaps brings its pages back itself
//! (`Volume::spare_bytes`). An extent that is busy keeps its slabs, or it would ask for others at once; what the
//! disk has refused is not given up (`slab_drop`). Paper: \[hydra22\] section 4.2 (adaptive slab allocation).
//!
//! Paper: \[infiniswap17\] 4.1 (hot slabs), 5.2 (CHECK_ACTIVITY), table of parameters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Request, SlabActivity, Window};

use super::context::Context;
use super::mapper::Mapper;
use super::repairer::Repairer;
use crate::core::{ACTIVITY_ALPHA, Core};
use crate::directory::HostIndex;
use crate::extents::{ByExtent, LayoutId};

/// Smoothed activity of every extent.
pub(super) struct Activity {
    averages: ByExtent<f32>,
    sampled: Time,
}

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);

/// Extents given up per second where the machine has memory to spare; arbitrary, so that a disk is not asked
/// for all at once.
const DROPS_PER_SECOND: usize = 8;

/// Page reads and writes per second below which an extent is at rest, where the volume has no
/// HotSlab to go by.
const AT_REST: f64 = 1.0;

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

    /// Takes a sample when one is due, and maps and gives back what it says.
    pub fn tend(
        &mut self,
        cx: &mut Context,
        mapper: &mut Mapper,
        repairer: &mut Repairer,
        now: Time,
    ) {
        let since = now.since(self.sampled);
        if since < PERIOD {
            return;
        }
        self.sampled = now;
        let per_second = 1.0 / since.as_secs_f32();
        for (average, touched) in self.averages.iter_mut().zip(cx.core.demand.touched.iter()) {
            // Most are never touched; a load is cheaper than a swap.
            if *average == 0.0 && touched.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let measured = touched.swap(0, Ordering::Relaxed) as f32 * per_second;
            *average = ACTIVITY_ALPHA * measured + (1.0 - ACTIVITY_ALPHA) * *average;
        }
        if cx.core.backing.is_some() && !cx.is_opening() {
            for extent in self.hot(&cx.core) {
                mapper.begin(cx, extent, repairer.has(extent));
            }
            self.drop_the_cold(cx, repairer);
            self.drop_the_idle(cx, repairer, now);
        }
    }

    /// Unmapped extents that are busy, the busiest first.
    fn hot(&self, core: &Core) -> Vec<usize> {
        let numbered = self.averages.numbered();
        let mut hot: Vec<usize> = numbered
            .map(|(extent, _)| extent)
            .filter(|&extent| self.is_hot(core, extent))
            .filter(|&extent| !core.is_refused(extent))
            .collect();
        hot.sort_by(|&a, &b| self.of(b).total_cmp(&self.of(a)));
        hot
    }

    /// Whether an extent is to have slabs by what it does. With a HotSlab of 0 its next write says so.
    pub fn is_hot(&self, core: &Core, extent: usize) -> bool {
        let activity = f64::from(self.of(extent));
        let store = core.backing.as_ref();
        store.is_some_and(|store| store.hot_slab > 0.0 && store.is_hot(activity))
    }

    fn drop_the_cold(&self, cx: &Context, repairer: &mut Repairer) {
        let store = cx.core.backing.as_ref();
        let Some(cold_slab) = store
            .map(|store| store.cold_slab)
            .filter(|&cold| cold > 0.0)
        else {
            return;
        };
        self.drop_quieter_than(cx, repairer, cold_slab, usize::MAX);
    }

    /// Gives up slabs of a backed volume that are not busy, while the machine has memory to spare.
    fn drop_the_idle(&self, cx: &Context, repairer: &mut Repairer, now: Time) {
        let Some(store) = cx.core.backing.as_ref() else {
            return;
        };
        if cx.core.limits.spare.bytes(now) == 0 {
            return;
        }
        // Half of HotSlab: one that would be mapped again at once stays.
        let at_rest = (store.hot_slab / 2.0).max(AT_REST);
        let dropped = self.drop_quieter_than(cx, repairer, at_rest, DROPS_PER_SECOND);
        let counter = &cx.core.measures.counters.extents_reclaimed;
        counter.fetch_add(dropped as u64, Ordering::Relaxed);
    }

    /// Begins to give up the slabs of extents that do less, of so many at most. How many there were.
    fn drop_quieter_than(
        &self,
        cx: &Context,
        repairer: &mut Repairer,
        activity: f64,
        most: usize,
    ) -> usize {
        let snapshot = cx.core.directory.snapshot();
        let mut dropped = 0;
        for (extent, stripe) in snapshot.extents.numbered() {
            if dropped == most {
                break;
            }
            let is_quiet = f64::from(self.of(extent)) < activity;
            if stripe.is_some() && is_quiet && repairer.may_drop(cx, extent) {
                repairer.drop_slabs(cx, extent);
                dropped += 1;
            }
        }
        dropped
    }

    /// A host asks how busy some of its slabs are.
    pub fn on_check(&self, cx: &mut Context, host: HostIndex, request: u64, windows: &[Window]) {
        let snapshot = cx.core.directory.snapshot();
        let stripes = snapshot.extents.numbered();
        let mut slabs = Vec::with_capacity(windows.len());
        for (extent, stripe) in stripes {
            let members = stripe.iter().flat_map(|stripe| stripe.members.iter());
            for member in members.flatten().filter(|m| m.session.host == host) {
                let window = member.window.name();
                if windows.contains(&window) {
                    // Saturates, and a slab in use is more than one that is not.
                    let milli = (self.of(extent) * 1000.0) as u32;
                    slabs.push(SlabActivity { window, milli });
                }
            }
        }
        cx.hosts.send(host, &Request::Activity { request, slabs });
    }
}
