//! The host looks at its machine once a second and makes room when others need the memory.
//!
//! What the others use is all that is in use less this host's own slabs. A slab that is being made
//! or given back may be in the figure or not, so the sample has a least and a greatest value.

use std::path::Path;
use std::time::Duration;

use cenote_pool::control::{PressureStatus, SlabCounts};
use cenote_pool::ledger::Demand;
use cenote_pool::pressure::{Pressure, Room, Sample};
use cenote_pool::reclaim::{Look, Reclaim};

use super::Daemon;
use crate::gauge::{self, Gauge, Reading};
use crate::{Config, Error, Result};

/// A gauge, and what comes of its readings.
pub(crate) struct Watch {
    gauge: Gauge,
    pressure: Pressure,
    extra: usize,
    /// Whether it looks at this machine, and not at a figure in a file.
    is_real: bool,
    /// `None` where clients of this machine are not told of memory to spare.
    pub(super) reclaim: Option<Reclaim>,
    /// Whether the last reading failed, so that this is said once.
    is_blind: bool,
}

impl Watch {
    /// That of a host that leaves its machine a headroom; it reads its machine where no gauge is
    /// given.
    ///
    /// # Errors
    /// `Config`: the figure cannot be read, or the settings do not fit the machine.
    pub(crate) fn open(
        config: &Config,
        gauge: Option<Gauge>,
        now: Duration,
    ) -> Result<Option<Self>> {
        let Some(headroom) = &config.headroom else {
            return Ok(None);
        };
        let file = headroom.meminfo.as_deref();
        let mut gauge = gauge.unwrap_or_else(|| gauge::open(file));
        let Some(reading) = gauge(now) else {
            let file = file.unwrap_or(Path::new("/proc/meminfo"));
            return Err(Error::Config {
                what: "memory figure",
                value: file.display().to_string(),
                rule: "must have lines MemTotal: and MemAvailable:, in kB",
            });
        };
        let settings = headroom.settings(config, reading.total_bytes)?;
        Ok(Some(Self {
            gauge,
            pressure: Pressure::new(settings),
            extra: headroom.evict_extra as usize,
            is_real: headroom.meminfo.is_none(),
            reclaim: headroom.reclaim.then(Reclaim::default),
            is_blind: false,
        }))
    }

    /// Looks once; `None` when there is nothing to be seen, and things stay as they are.
    /// `away_bytes` are those that clients of this machine could reclaim.
    fn look(&mut self, now: Duration, slabs: &SlabCounts, away_bytes: u64) -> Option<Room> {
        let Some(reading) = (self.gauge)(now) else {
            if !std::mem::replace(&mut self.is_blind, true) {
                tracing::error!("the machine's memory cannot be read; lending stays as it is");
            }
            return None;
        };
        self.is_blind = false;
        let slab_bytes = self.pressure.settings().slab_bytes;
        let sample = sample(reading, slabs, slab_bytes);
        let mut room = self.pressure.handle_sample(sample);
        let look = Look {
            free_bytes: self.left_beside(
                self.pressure.used_bytes().max(sample.used_most_bytes),
                slabs,
            ),
            headroom_bytes: self.pressure.settings().headroom_bytes,
            slack_bytes: self.pressure.settings().slack_bytes(),
            is_stalled: sample.is_stalled,
            away_bytes,
        };
        if let Some(reclaim) = &mut self.reclaim {
            let offer = reclaim.handle_look(look);
            room.stocks &= !offer.comes_first;
        }
        Some(room)
    }

    /// What no slab is made of, however far the average lags behind: below it slabs are taken.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        match self.is_real {
            true => self.pressure.settings().floor_bytes,
            false => 0,
        }
    }

    fn free_bytes(&self, slabs: &SlabCounts) -> u64 {
        self.left_beside(self.pressure.used_bytes(), slabs)
    }

    fn left_beside(&self, others: u64, slabs: &SlabCounts) -> u64 {
        let with_memory = slabs.total() - slabs.free;
        let ours = u64::from(with_memory) * self.pressure.settings().slab_bytes;
        self.pressure
            .total_bytes()
            .saturating_sub(others.saturating_add(ours))
    }
}

/// What traces have of slabs that are asked back for want of memory: a span from the first until none is
/// wanted.
#[derive(Default)]
pub(super) struct Evicting {
    span: Option<tracing::Span>,
    /// Slabs that were asked for in it.
    slabs: u64,
    /// Slabs that this host had ever asked for when it looked last; `None`: it has not.
    asked: Option<u64>,
}

/// What of a reading the others use.
fn sample(reading: Reading, slabs: &SlabCounts, slab_bytes: u64) -> Sample {
    let used = reading.total_bytes.saturating_sub(reading.available_bytes);
    let (sure, doubtful) = if reading.has_own {
        let sure = slabs.mapped + slabs.orphaned + slabs.prepared;
        (sure, slabs.preparing + slabs.retired)
    } else {
        (0, 0)
    };
    let most = used.saturating_sub(u64::from(sure) * slab_bytes);
    Sample {
        total_bytes: reading.total_bytes,
        used_least_bytes: most.saturating_sub(u64::from(doubtful) * slab_bytes),
        used_most_bytes: most,
        is_stalled: reading.is_stalled,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_slabs_are_nobody_elses_use() {
        let slabs = SlabCounts {
            free: 10,
            preparing: 2,
            prepared: 1,
            mapped: 20,
            orphaned: 4,
            retired: 3,
        };
        let mut reading = Reading {
            total_bytes: 1000,
            available_bytes: 300,
            has_own: true,
            is_stalled: true,
        };
        // 700 in use, of which 25 slabs for sure and 5 more perhaps.
        let seen = sample(reading, &slabs, 10);
        assert_eq!((seen.used_least_bytes, seen.used_most_bytes), (400, 450));
        assert!(seen.is_stalled && seen.total_bytes == 1000);
        reading.has_own = false;
        let seen = sample(reading, &slabs, 10);
        assert_eq!((seen.used_least_bytes, seen.used_most_bytes), (700, 700));
    }
}
