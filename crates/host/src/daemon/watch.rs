//! The host looks at its machine once a second and makes room when others need the memory.
//!
//! What the others use is all that is in use less this host's own slabs. A slab that is being made
//! or given back may be in the figure or not, so the sample has a least and a greatest value.

use std::path::Path;
use std::time::Duration;

use cenote_pool::control::SlabCounts;
use cenote_pool::pressure::{Pressure, Room, Sample};
use cenote_pool::reclaim::{Look, Reclaim};

use crate::gauge::{self, Gauge, Reading};
use crate::{Config, Error, Result};

/// A gauge, and what comes of its readings.
pub(crate) struct Watch {
    gauge: Gauge,
    pub(super) pressure: Pressure,
    pub(super) extra: usize,
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
        let settings = config.pressure(headroom, reading.total_bytes)?;
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
    pub(super) fn look(
        &mut self,
        now: Duration,
        slabs: &SlabCounts,
        away_bytes: u64,
    ) -> Option<Room> {
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

    pub(super) fn free_bytes(&self, slabs: &SlabCounts) -> u64 {
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
    pub(super) span: Option<tracing::Span>,
    /// Slabs that were asked for in it.
    pub(super) slabs: u64,
    /// Slabs that this host had ever asked for when it looked last; `None`: it has not.
    pub(super) asked: Option<u64>,
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
