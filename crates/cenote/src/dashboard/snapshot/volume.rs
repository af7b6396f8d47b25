//! Volumes, as their owners tell of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::extents::{Extent, Health, Map, bytes_to_rebuild};
use super::super::history::Rates;
use crate::sample::Volume;

/// How a volume is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// No process owns it.
    Idle,
    /// Its owner does not answer.
    Silent,
    Healthy,
    Regenerating,
    Degraded,
    Lost,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VolumeView {
    pub name: String,
    /// As its file says.
    pub size: String,
    pub scheme: String,
    pub state: VolumeState,
    /// Why its owner says nothing.
    pub why: Option<String>,
    pub figures: Option<VolumeFigures>,
}

/// What the owner of a volume says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VolumeFigures {
    pub stored_bytes: u64,
    pub mapped_bytes: u64,
    pub lent_bytes: u64,
    pub mode: String,
    pub hosts_connected: usize,
    pub hosts: usize,
    /// Pages that are errors until they are written whole.
    pub torn_pages: u64,
    pub wrong_splits: u64,
    pub journal_error: Option<String>,
    /// Slab bytes per second that may be rebuilt; none: as fast as it goes.
    pub repair_bytes_per_s: Option<u64>,
    pub change: Option<Change>,
    pub scrub: Scrub,
    pub map: Map,
    /// Bytes of slabs that are missing, or on their way.
    pub to_rebuild_bytes: f64,
    /// Since the last answer.
    pub rates: Option<Rates>,
    #[serde(skip)]
    pub counted: Counted,
}

/// A change of scheme, mode or delta under way.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Change {
    pub from: String,
    pub to: String,
    pub bytes_done: u64,
    pub bytes: u64,
}

/// Looking for rot.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Scrub {
    pub is_running: bool,
    pub pages_done: u64,
    pub pages_total: u64,
    pub passes: u64,
}

/// What a volume has counted, at a time since the dashboard began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    pub at: Duration,
    pub pages_read: u64,
    pub pages_written: u64,
    pub requests_failed: u64,
    pub rebuilt_bytes: u64,
    /// Longest duration of each bucket in nanoseconds, and how many, in order.
    pub read: Vec<(u64, u64)>,
    pub write: Vec<(u64, u64)>,
}

/// `cenote_volume::VolumeStatus`, as much as is shown. An owner of an earlier version says less.
#[derive(Deserialize)]
struct Answer {
    health: Health,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    slab_bytes: u64,
    #[serde(default)]
    lent_bytes: u64,
    #[serde(default)]
    stored_bytes: u64,
    #[serde(default)]
    mapped_bytes: u64,
    #[serde(default)]
    torn_pages: u64,
    #[serde(default)]
    change: Option<Change>,
    #[serde(default)]
    hosts: Vec<Connection>,
    #[serde(default)]
    extents: Vec<Extent>,
    #[serde(default)]
    journal: Option<Journal>,
    #[serde(default)]
    integrity: Integrity,
    #[serde(default)]
    scrub: Scrub,
    #[serde(default)]
    repair: Repair,
    #[serde(default)]
    latency: Latencies,
    #[serde(default)]
    counters: Counters,
}

#[derive(Deserialize)]
struct Connection {
    #[serde(default)]
    connected: bool,
}

#[derive(Deserialize)]
struct Journal {
    #[serde(default)]
    error: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Integrity {
    wrong_splits: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Repair {
    bytes_per_s: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Latencies {
    read: Latency,
    write: Latency,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Latency {
    buckets: Vec<(u64, u64)>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counters {
    pages_read: u64,
    pages_written: u64,
    requests_failed: u64,
    rebuilt_bytes: u64,
}

impl VolumeView {
    /// What was found of it at a time since the dashboard began.
    pub fn of(volume: Volume, at: Duration) -> Self {
        let (state, why, figures) = match volume.status {
            None => (VolumeState::Idle, None, None),
            Some(Err(why)) => (VolumeState::Silent, Some(why), None),
            Some(Ok(status)) => match VolumeFigures::of(status, at) {
                Ok((state, figures)) => (state, None, Some(figures)),
                Err(error) => {
                    let why = format!("cannot parse its owner's answer: {error}");
                    (VolumeState::Silent, Some(why), None)
                }
            },
        };
        Self {
            name: volume.name,
            size: volume.size,
            scheme: volume.scheme,
            state,
            why,
            figures,
        }
    }
}

impl VolumeFigures {
    fn of(status: Value, at: Duration) -> Result<(VolumeState, Self), serde_json::Error> {
        let answer: Answer = serde_json::from_value(status)?;
        let map = Map::of(&answer.extents);
        let state = match answer.health.max(map.health()) {
            Health::Healthy => VolumeState::Healthy,
            Health::Regenerating => VolumeState::Regenerating,
            Health::Degraded => VolumeState::Degraded,
            Health::Lost => VolumeState::Lost,
        };
        let figures = Self {
            stored_bytes: answer.stored_bytes,
            mapped_bytes: answer.mapped_bytes,
            lent_bytes: answer.lent_bytes,
            mode: answer.mode,
            hosts_connected: answer.hosts.iter().filter(|host| host.connected).count(),
            hosts: answer.hosts.len(),
            torn_pages: answer.torn_pages,
            wrong_splits: answer.integrity.wrong_splits,
            journal_error: answer.journal.and_then(|journal| journal.error),
            repair_bytes_per_s: answer.repair.bytes_per_s,
            change: answer.change,
            scrub: answer.scrub,
            map,
            to_rebuild_bytes: bytes_to_rebuild(&answer.extents, answer.slab_bytes),
            rates: None,
            counted: Counted {
                at,
                pages_read: answer.counters.pages_read,
                pages_written: answer.counters.pages_written,
                requests_failed: answer.counters.requests_failed,
                rebuilt_bytes: answer.counters.rebuilt_bytes,
                read: answer.latency.read.buckets,
                write: answer.latency.write.buckets,
            },
        };
        Ok((state, figures))
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A volume with extents that stand so.
    pub fn volume(name: &str, healths: &[&str]) -> VolumeView {
        let extents: Vec<Value> = healths
            .iter()
            .enumerate()
            .map(
                |(index, health)| json!({"index": index, "health": health, "hosts": ["h00", null]}),
            )
            .collect();
        let volume = Volume {
            name: name.to_owned(),
            size: "8M".to_owned(),
            scheme: "rs:2+1".to_owned(),
            status: Some(Ok(
                json!({"health": "healthy", "slab_bytes": 1000, "extents": extents}),
            )),
        };
        VolumeView::of(volume, Duration::ZERO)
    }

    #[test]
    fn what_an_owner_says_is_taken_as_it_says_it() {
        let status = json!({
            "health": "degraded", "mode": "failure-recovery", "slab_bytes": 1000, "lent_bytes": 3000,
            "hosts": [{"name": "h00", "connected": true}, {"name": "h01", "connected": false}],
            "extents": [{"index": 7, "health": "degraded", "hosts": ["h00", null], "regenerated": null}],
            "journal": {"error": "no room", "failing_s": 3},
            "latency": {"read": {"count": 1, "p50_us": 1.0, "buckets": [[1023, 4]]}},
            "counters": {"pages_read": 5, "pages_written": 6}, "change": null,
            "repair": {"bytes_per_s": 1 << 20},
        });
        let (state, figures) = VolumeFigures::of(status, Duration::from_secs(9)).unwrap();
        assert_eq!(state, VolumeState::Degraded);
        assert_eq!((figures.hosts_connected, figures.hosts), (1, 2));
        assert_eq!(figures.journal_error.as_deref(), Some("no room"));
        assert_eq!(figures.repair_bytes_per_s, Some(1 << 20));
        assert_eq!(figures.to_rebuild_bytes, 1000.0);
        assert_eq!(figures.counted.read, [(1023, 4)]);
        assert_eq!(figures.counted.at, Duration::from_secs(9));
    }

    #[test]
    fn what_is_not_understood_is_said_and_not_guessed() {
        for status in [json!(null), json!({"health": 7}), json!({"health": "fine"})] {
            let volume = Volume {
                name: "v".to_owned(),
                size: "8M".to_owned(),
                scheme: "plain".to_owned(),
                status: Some(Ok(status)),
            };
            let view = VolumeView::of(volume, Duration::ZERO);
            assert_eq!(view.state, VolumeState::Silent);
            assert!(view.why.unwrap().contains("cannot parse"));
        }
    }
}
