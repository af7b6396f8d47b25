//! What the volume says of itself, collected from the machines of the control thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Control;
use super::context::Context;
use super::host::Host;
use super::ownership::Ownership;
use crate::PAGE_BYTES;
use crate::backing::Store;
use crate::core::Core;
use crate::directory::{HostIndex, MemberState, Stripe};
use crate::extents::{LayoutId, index_of};
use crate::status::{BackingStatus, ExtentStatus, Health, HostState, LatencyStatus, VolumeStatus};

impl Control {
    /// Collects the status. Costs a pass over the bitmap.
    pub(crate) fn status(&self) -> VolumeStatus {
        let core = &self.cx.core;
        let slab_bytes = self.cx.hosts.slab_bytes();
        let snapshot = core.directory.snapshot();
        let resilience = snapshot.resilience;
        let extent_bytes = core.layout().extent_pages() * PAGE_BYTES as u64;
        let mapped = snapshot.extents.numbered();
        let extents: Vec<ExtentStatus> = mapped
            .filter_map(|(index, stripe)| Some(self.extent_status(index, stripe.as_ref()?)))
            .collect();
        let slabs: usize = extents
            .iter()
            .map(|extent| extent.hosts.iter().flatten().count())
            .sum();
        let lent_bytes = slabs as u64 * slab_bytes;
        let layout_bytes = |layout_id: LayoutId| {
            let pages = core.layouts.layout(layout_id).extent_pages();
            let count = snapshot.extents.numbered();
            let mapped = count
                .filter(|(extent, stripe)| LayoutId::of(*extent) == layout_id && stripe.is_some());
            mapped.count() as u64 * pages * PAGE_BYTES as u64
        };
        let mapped_bytes = LayoutId::BOTH.into_iter().map(layout_bytes).sum::<u64>();
        // The bitmap: one bit per page of the mapped range.
        let tags = core.pages.integrity.status().tag_bytes;
        let tables =
            mapped_bytes / (8 * PAGE_BYTES as u64) + mapped_bytes / PAGE_BYTES as u64 * tags;
        VolumeStatus {
            size_bytes: core.size_bytes.load(Ordering::Relaxed),
            scheme: resilience.scheme().to_string(),
            mode: resilience.mode().to_string(),
            delta: resilience.delta(),
            change: self.reshaper.status(core, &self.restriper, &snapshot),
            slab_bytes,
            extent_bytes,
            health: extents
                .iter()
                .map(|extent| extent.health)
                .max()
                .unwrap_or(Health::Healthy),
            lent_bytes,
            torn_pages: core.pages.marks.torn_count(0, core.page_count()),
            stored_bytes: stored_bytes(core),
            mapped_bytes,
            overhead: if mapped_bytes == 0 {
                0.0
            } else {
                (lent_bytes + tables) as f64 / mapped_bytes as f64
            },
            hosts: host_states(&self.cx),
            extents,
            backing: core
                .backing
                .as_ref()
                .map(|store| backing_status(core, store)),
            journal: self.cx.recorder.status(self.cx.now()),
            integrity: core.pages.integrity.status(),
            scrub: core.helpers.scrub.status(),
            mapping: core.measures.timings.map.values(),
            eviction: core.measures.timings.evict.values(),
            repair: self.repairer.status(&self.cx),
            latency: LatencyStatus {
                read: core.measures.timings.read.latency(),
                write: core.measures.timings.write.latency(),
            },
            counters: core.measures.counters.values(core.limits.spare.offers()),
        }
    }

    fn extent_status(&self, index: usize, stripe: &Stripe) -> ExtentStatus {
        let core = &self.cx.core;
        let readable = stripe.readable().count_ones() as usize;
        let splits = stripe.members.iter().take(stripe.splits());
        let filling = splits
            .flatten()
            .any(|member| member.state != MemberState::Live);
        let health = if !stripe.is_there() && core.backing.is_some() {
            Health::Degraded
        } else if !stripe.is_there() {
            Health::Lost
        } else if readable == stripe.splits() {
            Health::Healthy
        } else if filling {
            Health::Regenerating
        } else {
            Health::Degraded
        };
        let host_of =
            |session: crate::directory::Session| self.cx.hosts.name(session.host).to_owned();
        ExtentStatus {
            index: index_of(index),
            health,
            activity: self.activity.of(index),
            stored_bytes: core.held_count(index) * PAGE_BYTES as u64,
            hosts: stripe
                .members
                .iter()
                .take(stripe.splits())
                .map(|member| member.as_ref().map(|m| host_of(m.session)))
                .collect(),
            regenerated: self.repairer.progress(&self.cx, index),
        }
    }
}

/// Pages that hold data, mapped or not.
fn stored_bytes(core: &Core) -> u64 {
    let pages = core
        .size_bytes
        .load(Ordering::Relaxed)
        .div_ceil(PAGE_BYTES as u64);
    core.pages.marks.written.count(0, pages) * PAGE_BYTES as u64
}

fn backing_status(core: &Core, store: &Store) -> BackingStatus {
    let pages = core
        .size_bytes
        .load(Ordering::Relaxed)
        .div_ceil(PAGE_BYTES as u64);
    let is_written = |&page: &u64| core.pages.marks.written.contains(page);
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    BackingStatus {
        remote_bytes: store.pages.remote.count(0, pages) * PAGE_BYTES as u64,
        pending_bytes: (store.pending() * PAGE_BYTES) as u64,
        stale_pages: store.pages.stale.range(0..pages).filter(is_written).count() as u64,
        pages_read: value(&store.counters.pages_read),
        pages_written: value(&store.counters.pages_written),
        pages_promoted: value(&store.counters.pages_promoted),
        transfers: value(&store.counters.transfers),
        errors: value(&store.counters.errors),
        hot_slab: store.hot_slab,
    }
}

/// The hosts as they are now.
pub(super) fn host_states(cx: &Context) -> Vec<HostState> {
    // Its slabs may be on their way back.
    let has_returned = |index: HostIndex, host: &Host| {
        let mut returning = cx.acquires.returning_from(index);
        host.ownership == Ownership::Owned && returning.next().is_none()
    };
    let state = |(index, host): (usize, &Host)| HostState {
        name: host.config.name.clone(),
        connected: host.is_up() && has_returned(index, host),
        slabs_free: host.slabs_free,
        reputation: cx.reputations.of(index),
        wrong_splits: cx.core.pages.integrity.wrong_splits(index),
    };
    cx.hosts.iter().enumerate().map(state).collect()
}
