//! What the stop of a region consists of.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_cache::owner::Stage;
use cenote_fabric::Time;
use serde::Serialize;

/// How long a region was at each stage of its stop, as its owner saw it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stop {
    /// Until its clients had ended their writes, in milliseconds.
    pub drain_ms: f64,
    /// Until the new host had copied it.
    pub copy_ms: f64,
    /// Until its clients turned to the new copy, and the old one was given back.
    pub switch_ms: f64,
}

impl Stop {
    /// All of it.
    #[must_use]
    pub fn whole_ms(&self) -> f64 {
        self.drain_ms + self.copy_ms + self.switch_ms
    }
}

/// Adds up how long regions are at each stage.
#[derive(Debug, Default)]
pub struct Stops {
    now: BTreeMap<usize, (Stage, Time)>,
    stops: BTreeMap<usize, Stop>,
}

impl Stops {
    /// A region's relocation got to a stage.
    pub fn note(&mut self, region: usize, stage: Stage, at: Time) {
        let Some((before, since)) = self.now.insert(region, (stage, at)) else {
            return;
        };
        let ms = duration_ms(at.since(since));
        let stop = self.stops.entry(region).or_default();
        match before {
            Stage::Draining | Stage::Fencing => stop.drain_ms += ms,
            Stage::Filling => stop.copy_ms += ms,
            Stage::Switching => stop.switch_ms += ms,
            _ => {}
        }
    }

    /// Of each region that was stopped.
    pub fn take(&mut self) -> Vec<Stop> {
        let stops = std::mem::take(&mut self.stops).into_values();
        stops.filter(|stop| stop.whole_ms() > 0.0).collect()
    }
}

fn duration_ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_cut_where_its_stages_change() {
        let mut stops = Stops::default();
        let at = |ms| Time(0).after(Duration::from_millis(ms));
        for (stage, ms) in [
            (Stage::Placing, 0),
            (Stage::Ready, 5),
            (Stage::Draining, 10),
            (Stage::Filling, 12),
            (Stage::Switching, 112),
            (Stage::Open, 115),
        ] {
            stops.note(3, stage, at(ms));
        }
        stops.note(4, Stage::Placing, at(0));
        stops.note(4, Stage::Open, at(9));
        let [stop] = stops.take()[..] else {
            panic!("one was stopped");
        };
        let (drain, copy, switch) = (stop.drain_ms, stop.copy_ms, stop.switch_ms);
        assert_eq!(format!("{drain:.0} {copy:.0} {switch:.0}"), "2 100 3");
    }
}
