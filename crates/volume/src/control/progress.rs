//! How far repairs are, for people and for simulators.

use std::sync::atomic::Ordering;

use super::Control;
use super::repair::Stage;
use crate::status::RepairStatus;
use crate::stepped::{Relocation, RelocationStage};

impl Control {
    /// Where the repairs stand that have a slab to fill; for simulators.
    pub(crate) fn relocations(&self) -> Vec<Relocation> {
        let at_work = self.repairs.iter().filter_map(|repair| {
            let stage = match repair.stage {
                Stage::Draining { .. } => RelocationStage::Fenced,
                Stage::Filling(_) => RelocationStage::Drained,
                Stage::Acquiring
                | Stage::Pausing { .. }
                | Stage::Mending { .. }
                | Stage::Queued { .. }
                | Stage::Reclaiming { .. }
                | Stage::Dropping { .. }
                | Stage::Flushing { .. }
                | Stage::Leaving { .. } => return None,
            };
            Some(Relocation {
                extent: repair.extent,
                split: repair.split,
                target: repair.target?.host,
                stage,
            })
        });
        at_work.collect()
    }

    /// For status.
    pub(crate) fn repair_status(&self) -> RepairStatus {
        let (rate, timings) = (self.pacing.rate(), &self.core.timings);
        RepairStatus {
            bytes_per_s: rate.is_finite().then_some(rate as u64),
            place: timings.place.values(),
            fill: timings.fill.values(),
            leave: timings.leave.values(),
            fence_waits: timings.fence.values(),
            fence_passes: self.core.counters.fence_passes.load(Ordering::Relaxed),
            chunks_void: self.core.counters.chunks_void.load(Ordering::Relaxed),
        }
    }

    /// Share of the slab that is filled, when the extent is being repaired; for status.
    pub(crate) fn progress(&self, extent: usize) -> Option<f64> {
        let done = match self.repairs[self.find_repair(extent)?].stage {
            Stage::Draining { start, .. }
            | Stage::Pausing { start, .. }
            | Stage::Mending { start }
            | Stage::Queued { start } => start,
            Stage::Filling(fills) => fills.end,
            Stage::Acquiring => 0,
            Stage::Reclaiming { .. }
            | Stage::Dropping { .. }
            | Stage::Flushing { .. }
            | Stage::Leaving { .. } => return None,
        };
        Some(f64::from(done) / f64::from(self.core.layout_of(extent).extent_end()))
    }
}
