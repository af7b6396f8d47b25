//! Making room for others on the machine, and saying how that stands.

use cenote_pool::control::PressureStatus;
use cenote_pool::ledger::Demand;
use cenote_pool::reclaim::Reclaim;

use super::Daemon;

impl Daemon {
    /// Has the ledger give up what there is no room for any more.
    pub(super) fn make_room(&mut self) {
        let now = self.elapsed();
        let away_bytes = self.away_bytes();
        let Some(watch) = &mut self.watch else { return };
        let slabs = self.ledger.counts();
        if let Some(room) = watch.look(now, &slabs, away_bytes) {
            let seed = self.incarnation ^ now.as_nanos() as u64;
            self.ledger.handle_room(now, room, watch.extra, seed);
        }
        self.offer_reclaim();
    }

    /// Begins and ends what traces have of evictions.
    pub(super) fn trace_evictions(&mut self) {
        let asked = self.ledger.evictions().asked;
        let evicting = &mut self.evicting;
        let before = evicting.asked.replace(asked).unwrap_or(asked);
        if asked > before {
            evicting.slabs += asked - before;
            evicting.span.get_or_insert_with(|| {
                tracing::info_span!(
                    "evict slabs",
                    cenote.host = self.config.name,
                    cenote.slab_bytes = self.config.slab_bytes as i64,
                    cenote.slabs = tracing::field::Empty,
                )
            });
        }
        // Slabs are counted only while there is such a span.
        if evicting.span.is_some()
            && self.ledger.asked_back() == 0
            && let Some(span) = evicting.span.take()
        {
            span.record("cenote.slabs", std::mem::take(&mut evicting.slabs) as i64);
        }
    }

    /// What is asked back, and what there is room for.
    pub(crate) fn demand(&self) -> Demand {
        self.ledger.demand(self.elapsed())
    }

    pub(super) fn pressure_status(&self) -> PressureStatus {
        let Some(watch) = &self.watch else {
            return PressureStatus::default();
        };
        let (pressure, slabs) = (&watch.pressure, self.ledger.counts());
        let evictions = self.ledger.evictions();
        PressureStatus {
            watched: true,
            stalled: pressure.is_stalled(),
            total_bytes: pressure.total_bytes(),
            used_bytes: pressure.used_bytes(),
            free_bytes: watch.free_bytes(&slabs),
            headroom_bytes: pressure.settings().headroom_bytes,
            floor_bytes: pressure.settings().floor_bytes,
            slabs_max: self.ledger.room().slabs_max,
            asked_back: self.ledger.asked_back(),
            evictions_asked: evictions.asked,
            evictions_done: evictions.done,
            slabs_taken: evictions.taken,
            reclaim_bytes: watch.reclaim.as_ref().map_or(0, |h| h.offer().bytes),
            away_bytes: watch.reclaim.as_ref().map_or(0, Reclaim::away_bytes),
            reclaims: watch.reclaim.as_ref().map_or(0, Reclaim::offers),
        }
    }
}
