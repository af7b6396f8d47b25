//! What this client says of its machine to hosts, and what it does when one that shares it has
//! memory to spare (RECLAIM).
//!
//! A front end that swaps brings its pages back itself (`Volume::spare_bytes`). A backed volume
//! needs nobody's memory for what is not busy: it gives up slabs, some each second, and its pages are
//! then read from the backing store, into memory that the machine has.
//!
//! Invariants: an extent that is busy keeps its slabs, or it would ask for others at once; what
//! the disk has refused is not given up (`slab_drops`).
//! Paper: \[hydra22\] section 4.2 (adaptive slab allocation).

use std::sync::atomic::Ordering;

use cenote_fabric::Time;
use cenote_pool::control::Request;

use super::Control;
use crate::directory::HostIndex;

/// Extents given up per second; arbitrary, so that a disk is not asked for all at once.
const DROPS_PER_SECOND: usize = 8;

/// Page reads and writes per second below which an extent is at rest, where the volume has no
/// HotSlab to go by.
const AT_REST: f64 = 1.0;

impl Control {
    /// Says where this client runs, and what it could reclaim. A host of an earlier version
    /// does not ask and is not told.
    pub(super) fn say_where(&mut self, host: HostIndex) {
        let here = Request::Here {
            machine: self.machine,
            away_bytes: self.core.spare.away_bytes(),
        };
        if self.machine != 0 && self.hosts[host].understands(&here) {
            self.send(host, &here);
        }
    }

    /// A host of this machine has memory to spare.
    pub(super) fn on_reclaim(&mut self, host: HostIndex, bytes: u64) {
        let now = self.now();
        self.core.spare.offer(bytes, now);
        self.say_where(host);
    }

    /// Gives up slabs of a backed volume that are not busy, while the machine has memory to
    /// spare. Once a second, after the activity was looked at.
    pub(super) fn reclaim_idle(&mut self, now: Time) {
        let Some(store) = self.core.backing.as_ref() else {
            return;
        };
        if self.core.spare.bytes(now) == 0 {
            return;
        }
        // Half of HotSlab: one that would be mapped again at once stays.
        let at_rest = (store.hot_slab / 2.0).max(AT_REST);
        let snapshot = self.core.directory.snapshot();
        let mut dropped = 0;
        for (extent, stripe) in snapshot.extents.numbered() {
            if dropped == DROPS_PER_SECOND {
                break;
            }
            let rests = f64::from(self.activity.of(extent)) < at_rest;
            if stripe.is_some() && rests && self.may_drop(extent) {
                self.begin_drop(extent);
                dropped += 1;
            }
        }
        let counter = &self.core.counters.extents_reclaimed;
        counter.fetch_add(dropped as u64, Ordering::Relaxed);
    }
}
