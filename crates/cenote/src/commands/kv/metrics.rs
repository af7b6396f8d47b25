//! What a node counts, for Prometheus: by the names of memcached's exporter, and its groups by ours.

use std::collections::HashMap;
use std::fmt;

use cenote_kv_cluster::NodeId;
use cenote_kv_cluster::node::{GroupReport, Groups, PlaceReport};
use cenote_memcached::Handle;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::metrics::histograms;

/// A node that runs.
pub struct KvMetrics {
    pub node: NodeId,
    pub server: Handle,
    pub groups: Groups,
}

impl fmt::Debug for KvMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("KvMetrics");
        shown.field("node", &self.node).finish_non_exhaustive()
    }
}

/// Why a node does not have all that its groups want of it. It serves clients all the same.
///
/// Of the other nodes it says nothing: whether a cluster bears the loss of one more is for
/// `kv status`.
pub fn unready(node: NodeId, count: usize, groups: &[GroupReport]) -> Option<String> {
    if groups.len() < count {
        let known = groups.len();
        return Some(format!("the views of {known} of {count} groups are known"));
    }
    groups.iter().find_map(|group| {
        let places = [(&group.data, "home"), (&group.parity, "full")];
        let places = places
            .into_iter()
            .flat_map(|(places, whole)| places.iter().map(move |place| (place, whole)));
        let mut mine = places.filter(|(place, _)| place.node == Some(node));
        let (place, _) = mine.find(|(place, whole)| place.state != *whole)?;
        Some(format!(
            "group {}: its place is {}",
            group.group, place.state
        ))
    })
}

/// Whether a value may go down.
#[derive(Clone, Copy)]
enum Kind {
    Gauge,
    /// Its name gets `_total` behind it.
    Counter,
}
use Kind::{Counter, Gauge};

macro_rules! from_stats {
    ($($kind:ident $name:literal: $help:literal, $stat:literal;)*) => {
        /// Name, kind, help, and the name in `stats`.
        const FROM_STATS: &[(&str, Kind, &str, &str)] = &[$(($name, $kind, $help, $stat)),*];
    };
}

from_stats! {
    Gauge "memcached_uptime_seconds": "Time since the node started", "uptime";
    Gauge "memcached_time_seconds": "The node's Unix time", "time";
    Counter "memcached_process_user_cpu_seconds": "User CPU time", "rusage_user";
    Counter "memcached_process_system_cpu_seconds": "System CPU time", "rusage_system";
    Gauge "memcached_current_connections": "Clients", "curr_connections";
    Gauge "memcached_max_connections": "Maximum number of clients", "max_connections";
    Counter "memcached_connections": "Clients accepted", "total_connections";
    Counter "memcached_connections_rejected":
        "Clients refused because there were too many", "rejected_connections";
    Counter "memcached_connections_yielded":
        "Times that a client had to yield to others", "conn_yields";
    Counter "memcached_connections_listener_disabled":
        "Times that accepting clients was paused", "listen_disabled_num";
    Gauge "memcached_accepting_connections": "Whether clients are accepted", "accepting_conns";
    Gauge "memcached_current_bytes":
        "Bytes of items on this node, including keys and overhead", "bytes";
    Gauge "memcached_limit_bytes": "Memory limit of the node", "limit_maxbytes";
    Gauge "memcached_malloced_bytes": "Memory allocated for items", "total_malloced";
    Gauge "memcached_current_items": "Items of this node", "curr_items";
    Counter "memcached_items": "Items stored", "total_items";
    Counter "memcached_items_evicted": "Items evicted", "evictions";
    Counter "memcached_items_reclaimed": "Expired items whose memory was reclaimed", "reclaimed";
    Counter "memcached_item_too_large":
        "Items refused because they are too large", "store_too_large";
    Counter "memcached_item_no_memory": "Items refused because memory was full", "store_no_memory";
    Counter "memcached_read_bytes": "Bytes received from clients", "bytes_read";
    Counter "memcached_written_bytes": "Bytes sent to clients", "bytes_written";
    Gauge "cenote_kv_buffer_bytes":
        "Memory of partial requests and unread replies", "read_buf_bytes";
}

/// Command, status, and the name in `stats`. What is set is told apart.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("get", "hit", "get_hits"),
    ("get", "miss", "get_misses"),
    ("delete", "hit", "delete_hits"),
    ("delete", "miss", "delete_misses"),
    ("incr", "hit", "incr_hits"),
    ("incr", "miss", "incr_misses"),
    ("decr", "hit", "decr_hits"),
    ("decr", "miss", "decr_misses"),
    ("cas", "hit", "cas_hits"),
    ("cas", "miss", "cas_misses"),
    ("cas", "badval", "cas_badval"),
    ("touch", "hit", "touch_hits"),
    ("touch", "miss", "touch_misses"),
    ("flush", "hit", "cmd_flush"),
];

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for KvMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats: HashMap<String, String> = self.server.stats().into_iter().collect();
        let number = |name: &str| stats.get(name).and_then(|value| value.parse::<f64>().ok());
        let one = |value| vec![(Labels::new(), value)];
        write(
            &mut encoder,
            "memcached_up",
            Gauge,
            "1 while the node serves",
            &one(1.0),
        )?;
        let version = stats.get("version").map_or("", String::as_str);
        let version = [(vec![("version", version)], 1.0)];
        write(
            &mut encoder,
            "memcached_version",
            Gauge,
            "Version reported to clients",
            &version,
        )?;
        for (name, kind, help, stat) in FROM_STATS {
            if let Some(value) = number(stat) {
                write(&mut encoder, name, *kind, help, &one(value))?;
            }
        }
        let count = |stat: &str| number(stat).unwrap_or(0.0);
        let label = |command, status| vec![("command", command), ("status", status)];
        let commands = COMMANDS.iter();
        let mut commands: Vec<_> = commands
            .map(|(command, status, stat)| (label(*command, *status), count(stat)))
            .collect();
        // A cas counts as a set as well.
        let cas = count("cas_hits") + count("cas_misses") + count("cas_badval");
        commands.push((label("set", "hit"), (count("cmd_set") - cas).max(0.0)));
        let help = "Requests by command and result";
        write(&mut encoder, "memcached_commands", Counter, help, &commands)?;
        histograms(
            &mut encoder,
            "cenote_kv_request_latency",
            "Latency from reading a request to having its reply",
            &self.server.latencies(),
        )?;
        self.encode_strangers(&mut encoder)?;
        self.encode_groups(&mut encoder)
    }
}

impl KvMetrics {
    fn encode_strangers(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.groups.strangers();
        let outcomes = [
            ("proven", counts.proven),
            ("wrong_key", counts.wrong_key),
            ("wrong_version", counts.wrong_version),
            ("hung_up", counts.hung_up),
            ("late", counts.late),
            ("displaced", counts.displaced),
        ];
        let outcomes = outcomes.map(|(outcome, count)| (vec![("outcome", outcome)], count as f64));
        let help = "Connections to the node ports, by outcome of authentication";
        write(encoder, "cenote_kv_strangers", Counter, help, &outcomes)?;
        let help = "Connections to the node ports that have not yet authenticated";
        let waiting = [(Labels::new(), counts.waiting as f64)];
        write(
            encoder,
            "cenote_kv_strangers_waiting",
            Gauge,
            help,
            &waiting,
        )
    }

    fn encode_groups(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let groups = self.groups.report();
        let numbers: Vec<String> = groups.iter().map(|group| group.group.to_string()).collect();
        let by_group = |value: fn(&GroupReport) -> u64| {
            let values = numbers.iter().zip(&groups);
            let values = values
                .map(|(number, group)| (vec![("group", number.as_str())], value(group) as f64));
            values.collect::<Vec<_>>()
        };
        let views = by_group(|group| u64::from(group.view));
        write(
            encoder,
            "cenote_kv_group_view",
            Gauge,
            "View number of the group",
            &views,
        )?;
        let missing = by_group(|group| group.owned.iter().map(|owned| owned.missing_bytes).sum());
        let help = "Bytes of this node's partitions still to be recovered or moved";
        write(
            encoder,
            "cenote_kv_group_missing_bytes",
            Gauge,
            help,
            &missing,
        )?;
        let mut memory = Vec::new();
        for (number, group) in numbers.iter().zip(&groups) {
            for (kind, bytes) in [
                ("values", group.value_bytes),
                ("parity", group.parity_bytes),
                ("tables", group.table_bytes),
            ] {
                let labels = vec![("group", number.as_str()), ("kind", kind)];
                memory.push((labels, bytes as f64));
            }
        }
        let help = "Memory of this node for a group";
        write(
            encoder,
            "cenote_kv_group_memory_bytes",
            Gauge,
            help,
            &memory,
        )?;
        let mut roles = Vec::new();
        let slots: Vec<String> = (0..100).map(|slot: u32| slot.to_string()).collect();
        for (number, group) in numbers.iter().zip(&groups) {
            for (role, places) in [("data", &group.data), ("parity", &group.parity)] {
                let is_mine = |(_, place): &(usize, &PlaceReport)| place.node == Some(self.node);
                for (slot, place) in places.iter().enumerate().filter(is_mine) {
                    let labels = vec![
                        ("group", number.as_str()),
                        ("role", role),
                        ("slot", slots[slot].as_str()),
                        ("state", place.state.as_str()),
                    ];
                    roles.push((labels, 1.0));
                }
            }
        }
        let help = "Role of this node in a group, and its state";
        write(encoder, "cenote_kv_group_role", Gauge, help, &roles)
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    kind: Kind,
    help: &str,
    values: &[(Labels<'_>, f64)],
) -> Result<(), fmt::Error> {
    let metric_type = match kind {
        Gauge => MetricType::Gauge,
        Counter => MetricType::Counter,
    };
    let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
    if let [(labels, value)] = values
        && labels.is_empty()
    {
        return encode(kind, *value, family);
    }
    for (labels, value) in values {
        let labels = labels.as_slice();
        encode(kind, *value, family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn encode(kind: Kind, value: f64, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        Gauge => ConstGauge::new(value).encode(encoder),
        Counter => ConstCounter::new(value).encode(encoder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(states: [(u16, &str); 2], parity: (u16, &str)) -> GroupReport {
        let place =
            |(node, state): (u16, &str)| serde_json::json!({ "node": node, "state": state });
        serde_json::from_value(serde_json::json!({
            "group": 3, "view": 1, "data": states.map(place), "parity": [place(parity)],
            "owned": [], "value_bytes": 0, "parity_bytes": 0, "table_bytes": 0,
        }))
        .expect("a report")
    }

    #[test]
    fn a_node_is_ready_when_its_own_places_are_whole() {
        let whole = group([(1, "home"), (2, "home")], (3, "full"));
        let other = group([(1, "home"), (2, "recovering")], (3, "full"));
        let mine = group([(1, "home"), (2, "home")], (3, "joining"));
        let of = |node, groups: &[GroupReport]| unready(NodeId(node), groups.len(), groups);
        assert_eq!(of(3, &[whole.clone(), other.clone()]), None);
        let unknown = unready(NodeId(3), 2, std::slice::from_ref(&whole));
        assert!(unknown.is_some_and(|why| why.contains("1 of 2 groups")));
        assert!(of(2, &[whole.clone(), other]).is_some_and(|why| why.contains("recovering")));
        assert!(of(3, &[whole, mine]).is_some_and(|why| why.contains("group 3")));
    }
}
