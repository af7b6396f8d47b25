//! What a host counts, for Prometheus.

use std::time::Duration;

use cenote_fabric::ClusterKey;
use cenote_pool::control::{HostStatus, PressureStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics::{Metric, table};
use crate::{ask, metrics};

/// How long a scrape waits for the host's own answer.
const SCRAPE_LIMIT: Duration = Duration::from_secs(1);

/// Counters and gauges of a host, asked again at each scrape by the protocol clients use.
#[derive(Clone)]
pub struct HostMetrics {
    pub address: String,
    pub key: ClusterKey,
}

impl std::fmt::Debug for HostMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMetrics")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl HostMetrics {
    /// Why clients get no slabs here: it does not answer as it would a client, or is draining.
    pub fn unready(&self) -> Option<String> {
        match ask::one(&self.address, &self.key, SCRAPE_LIMIT) {
            Ok(status) => status.draining.then(|| "it is being drained".to_owned()),
            Err(error) => Some(format!("it does not answer: {error:#}")),
        }
    }
}

impl Collector for HostMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = match ask::one(&self.address, &self.key, SCRAPE_LIMIT) {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(
                    error = cenote_cli::failure::chain(&error),
                    "no status for a scrape"
                );
                return Ok(());
            }
        };
        metrics::gauges(&mut encoder, &gauges(&status))?;
        metrics::counters(&mut encoder, &counters(&status))?;
        if status.pressure.watched {
            metrics::gauges(&mut encoder, &pressure_gauges(&status.pressure))?;
            metrics::counters(&mut encoder, &pressure_counters(&status.pressure))?;
        }
        Ok(())
    }
}

fn gauges(status: &HostStatus) -> Vec<Metric> {
    table! {
        "cenote_host_memory" in Bytes:
            "Memory that the host is configured to lend", status.memory_bytes;
        "cenote_host_lent" in Bytes: "Memory of slabs held by clients", status.lent_bytes;
        "cenote_host_slab" in Bytes: "Size of a slab", status.slab_bytes;
        "cenote_host_uptime" in Seconds: "Time since the host started", status.uptime_s;
        "cenote_host_strangers_waiting":
            "Connections that have not yet authenticated", status.strangers.waiting;
        "cenote_host_slabs_lendable":
            "Slabs that the host would lend now, orphaned ones included", status.slabs_lendable();
        "cenote_host_slabs_free": "Slabs without memory behind them", status.slabs.free;
        "cenote_host_slabs_preparing": "Slabs being populated", status.slabs.preparing;
        "cenote_host_slabs_prepared":
            "Slabs populated and ready to be granted", status.slabs.prepared;
        "cenote_host_slabs_mapped": "Slabs mapped by a client", status.slabs.mapped;
        "cenote_host_slabs_orphaned":
            "Slabs of clients whose lease has expired", status.slabs.orphaned;
        "cenote_host_slabs_retired": "Slabs taken back but not yet free", status.slabs.retired;
        "cenote_host_clients": "Clients with slabs or a connection", status.clients_total;
        "cenote_host_draining": "1 while the host is draining and lends nothing", status.draining;
    }
}

fn counters(status: &HostStatus) -> Vec<Metric> {
    let (counters, strangers) = (&status.counters, &status.strangers);
    table! {
        "cenote_host_maps": "Slabs granted", counters.maps;
        "cenote_host_unmaps": "Slabs returned by their client", counters.unmaps;
        "cenote_host_refused": "Requests for a slab that were refused", counters.refused;
        "cenote_host_fills": "Chunks rebuilt from other hosts", counters.fills;
        "cenote_host_fills_failed": "Chunks that could not be rebuilt", counters.fills_failed;
        "cenote_host_filled" in Bytes: "Bytes rebuilt from other hosts", counters.fill_bytes;
        "cenote_host_connections": "Control connections accepted", counters.connections;
        "cenote_host_strangers_accepted":
            "Connections accepted, before authentication", strangers.accepted;
        "cenote_host_strangers_wrong_key":
            "Connections refused because of a wrong key or another protocol", strangers.wrong_key;
        "cenote_host_strangers_wrong_version":
            "Connections refused because of an incompatible protocol version", strangers.wrong_version;
        "cenote_host_strangers_late":
            "Connections that did not authenticate in time", strangers.late;
        "cenote_host_strangers_displaced":
            "Unauthenticated connections closed because there were too many", strangers.displaced;
        "cenote_host_malformed": "Invalid messages from clients", counters.malformed;
        "cenote_host_leases_expired": "Expired client leases", counters.leases_expired;
        "cenote_host_orphans_taken":
            "Orphaned slabs taken from their client", counters.orphans_taken;
    }
}

/// Of a host that gives way to the programs of its machine.
fn pressure_gauges(pressure: &PressureStatus) -> Vec<Metric> {
    table! {
        "cenote_host_machine_memory" in Bytes:
            "Memory of the machine, or the limit of the control group", pressure.total_bytes;
        "cenote_host_machine_used" in Bytes:
            "Memory used by everything but the host's slabs, averaged", pressure.used_bytes;
        "cenote_host_machine_left" in Bytes: "Memory left beside both", pressure.free_bytes;
        "cenote_host_headroom" in Bytes:
            "Memory that the host leaves free (headroom)", pressure.headroom_bytes;
        "cenote_host_floor" in Bytes:
            "Free memory below which slabs are taken from clients that do not return them in time", pressure.floor_bytes;
        "cenote_host_slabs_room":
            "Maximum number of slabs with memory at present", pressure.slabs_max;
        "cenote_host_slabs_asked_back":
            "Slabs that clients are currently asked to return", pressure.asked_back;
        "cenote_host_stalled": "1 while programs on the machine stall for memory", pressure.stalled;
        "cenote_host_reclaim" in Bytes:
            "Spare memory into which clients on this machine may reclaim pages", pressure.reclaim_bytes;
        "cenote_host_clients_away" in Bytes:
            "Bytes that clients on this machine have on hosts and could reclaim", pressure.away_bytes;
    }
}

fn pressure_counters(pressure: &PressureStatus) -> Vec<Metric> {
    table! {
        "cenote_host_evictions_asked":
            "Slabs that clients were asked to return", pressure.evictions_asked;
        "cenote_host_evictions_done":
            "Slabs that clients returned when asked", pressure.evictions_done;
        "cenote_host_slabs_taken":
            "Slabs taken from a client that did not answer", pressure.slabs_taken;
        "cenote_host_reclaims":
            "Times that clients on this machine were told of spare memory after there was none", pressure.reclaims;
    }
}
