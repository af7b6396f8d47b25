//! What the nodes of a cluster of ours tell of recoveries: `cenote kv status --json`.
//!
//! All times are the nodes' own. They are compared with each other and with those of this process, so
//! all of them have to be by one clock: the cluster is one machine.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One partition that a node took over, times in microseconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq, Deserialize)]
pub(super) struct Takeover {
    #[serde(skip)]
    pub(super) node: String,
    #[serde(skip)]
    pub(super) group: usize,
    /// When the view was agreed on, by who had wished for it.
    #[serde(skip)]
    pub(super) agreed_unix_us: Option<u64>,
    pub(super) partition: usize,
    pub(super) view: u32,
    pub(super) began_unix_us: Option<u64>,
    pub(super) settled_unix_us: Option<u64>,
    pub(super) lease_over_unix_us: Option<u64>,
    pub(super) served_unix_us: Option<u64>,
    pub(super) ended_unix_us: Option<u64>,
    pub(super) rebuilt_bytes: u64,
}

/// All that nodes tell at one time.
#[derive(Debug)]
pub(super) struct Told {
    /// Oldest first.
    pub(super) takeovers: Vec<Takeover>,
    /// Whether each partition has an owner that answers and has taken up the newest view that anybody
    /// tells of: none is still a dead node's, and no takeover is still to begin.
    pub(super) all_owned: bool,
}

#[derive(Deserialize)]
struct Status {
    nodes: Vec<Node>,
    by_group: Vec<Places>,
}

#[derive(Deserialize)]
struct Places {
    group: usize,
    view: u32,
    data: Vec<SlotStatus>,
}

#[derive(Deserialize)]
struct SlotStatus {
    name: Option<String>,
    answers: bool,
}

#[derive(Deserialize)]
struct Node {
    name: String,
    report: Option<Report>,
}

#[derive(Deserialize)]
struct Report {
    groups: Vec<Group>,
    #[serde(default)]
    agreed: Vec<Agreed>,
}

#[derive(Deserialize)]
struct Group {
    group: usize,
    view: u32,
    #[serde(default)]
    takeovers: Vec<Takeover>,
}

#[derive(Deserialize)]
struct Agreed {
    group: usize,
    view: u32,
    at_unix_us: u64,
}

/// What all nodes that answer tell.
///
/// # Errors
/// It is no status.
pub(super) fn told(status: &[u8]) -> Result<Told> {
    let status: Status = serde_json::from_slice(status).context("understand a status")?;
    let named = status.nodes.into_iter();
    let reports: Vec<(String, Report)> = named
        .filter_map(|node| Some((node.name, node.report?)))
        .collect();
    let agreed = |group: usize, view: u32| {
        let mut all = reports.iter().flat_map(|(_, report)| &report.agreed);
        let found = all.find(|agreed| (agreed.group, agreed.view) == (group, view));
        found.map(|agreed| agreed.at_unix_us)
    };
    let mut all = Vec::new();
    for (name, report) in &reports {
        for group in &report.groups {
            all.extend(group.takeovers.iter().map(|told| Takeover {
                node: name.clone(),
                group: group.group,
                agreed_unix_us: agreed(group.group, told.view),
                ..told.clone()
            }));
        }
    }
    all.sort_by_key(|takeover| takeover.began_unix_us);
    let has_taken_up = |name: &str, places: &Places| {
        let mut reports = reports.iter().filter(|(node, _)| node == name);
        reports.any(|(_, report)| {
            let mut groups = report.groups.iter();
            groups.any(|group| (group.group, group.view) == (places.group, places.view))
        })
    };
    let is_owned = |places: &Places| {
        let mut data = places.data.iter();
        data.all(|place| {
            let name = place.name.as_deref();
            place.answers && name.is_some_and(|name| has_taken_up(name, places))
        })
    };
    Ok(Told {
        takeovers: all,
        all_owned: status.by_group.iter().all(is_owned),
    })
}

/// Now, as nodes tell it.
pub(super) fn now_unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

impl Takeover {
    /// Whether requests are answered and all units are there.
    pub(super) fn is_over(&self) -> bool {
        self.served_unix_us.is_some() && self.ended_unix_us.is_some()
    }

    /// Of a table of takeovers; times count from the death.
    pub(super) const COLUMNS: &str = "node,group,partition,view,agreed_ms,began_ms,settled_ms,\
                                      lease_over_ms,served_ms,ended_ms,rebuilt_bytes";

    /// A line of it.
    pub(super) fn cells(&self, killed_us: u64) -> Vec<String> {
        let times = [
            self.agreed_unix_us,
            self.began_unix_us,
            self.settled_unix_us,
            self.lease_over_unix_us,
            self.served_unix_us,
            self.ended_unix_us,
        ];
        let ms = |at: Option<u64>| {
            at.map_or(String::new(), |at| {
                format!("{:.3}", (at as f64 - killed_us as f64) / 1e3)
            })
        };
        let mut cells = vec![self.node.clone()];
        cells.extend([self.group, self.partition].map(|number| number.to_string()));
        cells.push(self.view.to_string());
        cells.extend(times.map(ms));
        cells.push(self.rebuilt_bytes.to_string());
        cells
    }

    /// How long the preparation stopped requests: from when the view was agreed on until they were
    /// answered, without the wait for the former owner's lease.
    fn preparation_us(&self) -> Option<u64> {
        let (settled, served) = (self.settled_unix_us?, self.served_unix_us?);
        let since = self.agreed_unix_us?;
        let opens = self.lease_over_unix_us.unwrap_or(0).max(settled);
        Some(settled.saturating_sub(since) + served.saturating_sub(opens))
    }

    /// How much longer than that they waited for the lease.
    fn lease_wait_us(&self) -> Option<u64> {
        let opens = self.lease_over_unix_us.unwrap_or(0);
        Some(opens.saturating_sub(self.settled_unix_us?))
    }
}

/// What one death came to. Figures are the slowest partition's, but for the two rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    /// Partitions that were taken over.
    pub(super) partitions: usize,
    /// From the death until the view without the dead was agreed on.
    pub(super) agreed_ms: Option<f64>,
    /// See [`Takeover::preparation_us`].
    pub(super) preparation_ms: Option<f64>,
    /// See [`Takeover::lease_wait_us`].
    pub(super) lease_wait_ms: Option<f64>,
    /// From the death until requests were answered.
    pub(super) blocked_ms: Option<f64>,
    /// From the death until everything was rebuilt.
    pub(super) rebuilt_ms: Option<f64>,
    /// Bytes of lost values that were rebuilt, in MB.
    pub(super) rebuilt_mb: f64,
    /// By each node on the average, while it had something to rebuild, in MB/s.
    pub(super) node_rate: Option<f64>,
    /// By all of them.
    pub(super) rate: Option<f64>,
}

/// Name, unit, whether more is better, and where it is found.
type Metric = (
    &'static str,
    &'static str,
    bool,
    fn(&Summary) -> Option<f64>,
);

impl Summary {
    pub(super) const METRICS: [Metric; 7] = [
        ("recovery_rate", "MB/s", true, |one| one.node_rate),
        ("recovery_rate_all", "MB/s", true, |one| one.rate),
        ("agreement", "ms", false, |one| one.agreed_ms),
        ("preparation", "ms", false, |one| one.preparation_ms),
        ("lease_wait", "ms", false, |one| one.lease_wait_ms),
        ("blocked", "ms", false, |one| one.blocked_ms),
        ("rebuilt", "ms", false, |one| one.rebuilt_ms),
    ];

    /// Of takeovers that follow a death at `killed_us`.
    pub(super) fn of(takeovers: &[Takeover], killed_us: u64) -> Self {
        let worst = |of: &dyn Fn(&Takeover) -> Option<u64>| {
            let all: Option<Vec<u64>> = takeovers.iter().map(of).collect();
            all.and_then(|all| all.into_iter().max())
                .map(|us| us as f64 / 1e3)
        };
        let since = |moment: Option<u64>| moment.map(|at| at.saturating_sub(killed_us));
        let mut names: Vec<&str> = takeovers.iter().map(|one| one.node.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let rates = names.iter().filter_map(|name| {
            let of_node = takeovers.iter().filter(|one| one.node == *name);
            rate(&of_node.collect::<Vec<_>>())
        });
        let rates: Vec<f64> = rates.collect();
        let rebuilt: u64 = takeovers.iter().map(|one| one.rebuilt_bytes).sum();
        Self {
            partitions: takeovers.len(),
            agreed_ms: worst(&|one| since(one.agreed_unix_us)),
            preparation_ms: worst(&Takeover::preparation_us),
            lease_wait_ms: worst(&Takeover::lease_wait_us),
            blocked_ms: worst(&|one| since(one.served_unix_us)),
            rebuilt_ms: worst(&|one| since(one.ended_unix_us)),
            rebuilt_mb: rebuilt as f64 / 1e6,
            node_rate: (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64),
            rate: rate(&takeovers.iter().collect::<Vec<_>>()),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:.0} MB of {} partitions",
            self.rebuilt_mb, self.partitions
        )?;
        for (name, unit, _, of) in Self::METRICS {
            if let Some(value) = of(self) {
                write!(out, ", {name} {value:.1} {unit}")?;
            }
        }
        Ok(())
    }
}

/// MB/s of some takeovers, from when the first might begin until the last was done.
fn rate(takeovers: &[&Takeover]) -> Option<f64> {
    let from = takeovers
        .iter()
        .filter_map(|one| one.settled_unix_us)
        .min()?;
    let ends: Option<Vec<u64>> = takeovers.iter().map(|one| one.ended_unix_us).collect();
    let took = Duration::from_micros(ends?.into_iter().max()?.saturating_sub(from));
    let bytes: u64 = takeovers.iter().map(|one| one.rebuilt_bytes).sum();
    (bytes > 0 && !took.is_zero()).then(|| bytes as f64 / 1e6 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{"nodes": [
        {"name": "a", "state": "down"},
        {"name": "b", "report": {"groups": [
            {"group": 0, "view": 3, "takeovers": [
                {"partition": 2, "view": 2, "began_unix_us": 1040000, "settled_unix_us": 1042000,
                 "lease_over_unix_us": 1100000, "served_unix_us": 1101000,
                 "ended_unix_us": 1542000, "rebuilt_bytes": 500000000},
                {"partition": 1, "view": 3, "began_unix_us": null, "settled_unix_us": null,
                 "lease_over_unix_us": null, "served_unix_us": null,
                 "ended_unix_us": null, "rebuilt_bytes": 0}]},
            {"group": 1, "view": 1}]}},
        {"name": "c", "report": {"groups": [{"group": 4, "view": 2, "takeovers": [
                {"partition": 0, "view": 2, "began_unix_us": 1040000, "settled_unix_us": 1042000,
                 "lease_over_unix_us": null, "served_unix_us": 1043000,
                 "ended_unix_us": 2042000, "rebuilt_bytes": 500000000}]}],
            "agreed": [{"group": 0, "view": 1, "at_unix_us": 5},
                       {"group": 0, "view": 2, "at_unix_us": 1039000},
                       {"group": 4, "view": 2, "at_unix_us": 1038000}]}}],
        "by_group": [{"group": 0, "view": 3, "data": [{"name": "b", "answers": true}]},
                     {"group": 4, "view": 2, "data": [{"name": "c", "answers": true}]}]}"#;

    #[test]
    fn what_several_nodes_tell_is_put_together() {
        let all = told(STATUS.as_bytes()).unwrap().takeovers;
        let who: Vec<_> = all
            .iter()
            .map(|one| (one.node.as_str(), one.group, one.is_over()))
            .collect();
        assert_eq!(who, [("b", 0, false), ("b", 0, true), ("c", 4, true)]);
        let summary = Summary::of(&all[1..], 1_000_000);
        assert_eq!(summary.partitions, 2);
        assert_eq!(summary.agreed_ms, Some(39.0));
        // That of c, which had no lease to wait for: 4 and 1.
        assert_eq!(summary.preparation_ms, Some(5.0));
        assert_eq!(summary.lease_wait_ms, Some(58.0));
        assert_eq!(summary.blocked_ms, Some(101.0));
        assert_eq!(summary.rebuilt_ms, Some(1042.0));
        assert_eq!(summary.node_rate, Some(750.0), "1000 and 500");
        assert_eq!(summary.rate, Some(1000.0));
        assert!(told(b"{}").is_err());
    }

    #[test]
    fn a_partition_of_a_node_that_does_not_answer_is_not_owned() {
        assert!(told(STATUS.as_bytes()).unwrap().all_owned);
        let status = STATUS.replace(r#""c", "answers": true"#, r#""c", "answers": false"#);
        assert!(!told(status.as_bytes()).unwrap().all_owned);
    }

    #[test]
    fn a_partition_of_a_node_that_has_yet_to_take_up_the_view_is_not_owned() {
        let status = STATUS.replace(r#""view": 2, "data""#, r#""view": 3, "data""#);
        assert!(!told(status.as_bytes()).unwrap().all_owned);
    }

    #[test]
    fn what_is_not_over_has_no_end() {
        let all = told(STATUS.as_bytes()).unwrap().takeovers;
        let summary = Summary::of(&all[..1], 1_000_000);
        assert_eq!((summary.blocked_ms, summary.rate), (None, None));
    }
}
