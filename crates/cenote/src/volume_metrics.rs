//! What a process that serves a volume tells Prometheus.

use std::fmt;
use std::sync::{Arc, Weak};

use anyhow::Result;
use cenote_block::nbd::{Server, Stats};
use cenote_fabric::HostPort;
use cenote_volume::{
    BackingStatus, Health, HostState, JournalStatus, PAGE_BYTES, Reputation, Volume, VolumeStatus,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::{self, Metric, counters, gauges, histogram};

/// Reads a volume, and the server in front of it, at each scrape. It keeps neither alive.
#[derive(Clone)]
pub struct VolumeMetrics {
    volume: Weak<Volume>,
    server: Weak<Server>,
}

impl VolumeMetrics {
    /// Of a volume and, where it is served over NBD, its server.
    pub fn new(volume: &Arc<Volume>, server: Option<&Arc<Server>>) -> Self {
        Self {
            volume: Arc::downgrade(volume),
            server: server.map_or_else(Weak::new, Arc::downgrade),
        }
    }

    /// Serves them at `at` until the process ends, and says where on standard error.
    ///
    /// # Errors
    /// As [`metrics::serve`].
    pub fn serve(self, at: &HostPort, allow_remote: bool) -> Result<()> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let unready = Box::new(move || self.unready());
        let bound = metrics::serve(at, allow_remote, registry, unready)?;
        eprintln!("metrics at http://{bound}/metrics");
        Ok(())
    }

    /// Why the volume takes no requests.
    ///
    /// Extents that are lost are no reason: the others are served, and nobody else has the volume.
    fn unready(&self) -> Option<String> {
        let Some(volume) = self.volume.upgrade() else {
            return Some("the volume is closed".to_owned());
        };
        volume.status().err().map(|error| error.to_string())
    }
}

impl fmt::Debug for VolumeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeMetrics").finish_non_exhaustive()
    }
}

impl Collector for VolumeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(Ok(status)) = self.volume.upgrade().map(|volume| volume.status()) {
            gauges(&mut encoder, &volume_gauges(&status))?;
            counters(&mut encoder, &volume_counters(&status))?;
            histogram(
                &mut encoder,
                "cenote_volume_read_latency",
                "How long reads of a page took, one of 16",
                &status.latency.read,
            )?;
            histogram(
                &mut encoder,
                "cenote_volume_write_latency",
                "How long writes of a page took, one of 16",
                &status.latency.write,
            )?;
            if let Some(journal) = &status.journal {
                gauges(&mut encoder, &[journal_gauge(journal)])?;
            }
            if let Some(backing) = &status.backing {
                gauges(&mut encoder, &backing_gauges(backing))?;
                counters(&mut encoder, &backing_counters(backing))?;
            }
        }
        if let Some(server) = self.server.upgrade() {
            let stats = server.stats();
            let open = (
                "cenote_nbd_connections_open",
                "Connections open now",
                None,
                stats.connections_open,
            );
            gauges(&mut encoder, &[open])?;
            counters(&mut encoder, &nbd_counters(&stats))?;
        }
        Ok(())
    }
}

fn journal_gauge(journal: &JournalStatus) -> Metric {
    (
        "cenote_volume_journal_failing",
        "1 while the journal cannot be written, and writes wait where hosts have come or gone",
        None,
        u64::from(journal.error.is_some()),
    )
}

fn backing_gauges(backing: &BackingStatus) -> Vec<Metric> {
    let bytes = |name, help, value| (name, help, Some(Unit::Bytes), value);
    vec![
        bytes(
            "cenote_backing_remote",
            "Pages of which hosts hold the newest bytes too",
            backing.remote_bytes,
        ),
        bytes(
            "cenote_backing_pending",
            "Pages on their way to the disk",
            backing.pending_bytes,
        ),
        (
            "cenote_backing_stale_pages",
            "Pages that the disk refused and hosts hold",
            None,
            backing.stale_pages,
        ),
    ]
}

fn backing_counters(backing: &BackingStatus) -> Vec<Metric> {
    vec![
        (
            "cenote_backing_pages_read",
            "Pages read from the disk",
            None,
            backing.pages_read,
        ),
        (
            "cenote_backing_pages_written",
            "Pages written to the disk",
            None,
            backing.pages_written,
        ),
        (
            "cenote_backing_pages_promoted",
            "Pages read from the disk that hosts got as well",
            None,
            backing.pages_promoted,
        ),
        (
            "cenote_backing_transfers",
            "Transfers of neighbouring pages from and to the disk",
            None,
            backing.transfers,
        ),
        (
            "cenote_backing_errors",
            "Transfers that the disk refused",
            None,
            backing.errors,
        ),
    ]
}

fn volume_gauges(status: &VolumeStatus) -> Vec<Metric> {
    let extents = |name, help, health: Health| {
        let count = status
            .extents
            .iter()
            .filter(|extent| extent.health == health)
            .count();
        (name, help, None, count as u64)
    };
    let connected = status.hosts.iter().filter(|host| host.connected).count() as u64;
    let bytes = |name, help, value| (name, help, Some(Unit::Bytes), value);
    let doubted = |host: &&HostState| host.reputation != Reputation::Trusted;
    let doubted = status.hosts.iter().filter(doubted).count() as u64;
    let corrupt = status.scrub.last.map_or(0, |last| last.corrupt_pages);
    vec![
        (
            "cenote_volume_hosts_doubted",
            "Hosts that sent wrong bytes lately",
            None,
            doubted,
        ),
        (
            "cenote_volume_scrub_corrupt",
            "Pages that the last scrub could not put right",
            None,
            corrupt,
        ),
        bytes(
            "cenote_volume_size",
            "Size of the address range",
            status.size_bytes,
        ),
        bytes(
            "cenote_volume_stored",
            "Pages that hold data",
            status.stored_bytes,
        ),
        bytes(
            "cenote_volume_mapped",
            "Address range of mapped extents",
            status.mapped_bytes,
        ),
        bytes(
            "cenote_volume_lent",
            "Memory that hosts lend to this volume",
            status.lent_bytes,
        ),
        (
            "cenote_volume_hosts_connected",
            "Hosts whose control connection stands",
            None,
            connected,
        ),
        extents(
            "cenote_volume_extents_healthy",
            "Extents with every slab",
            Health::Healthy,
        ),
        extents(
            "cenote_volume_extents_regenerating",
            "Extents being rebuilt",
            Health::Regenerating,
        ),
        extents(
            "cenote_volume_extents_degraded",
            "Extents that lack slabs and are readable",
            Health::Degraded,
        ),
        extents(
            "cenote_volume_extents_lost",
            "Extents of which more slabs are out of reach than the scheme survives",
            Health::Lost,
        ),
        bytes(
            "cenote_volume_pages_lost",
            "Pages that are errors until they are written whole",
            status.torn_pages * PAGE_BYTES as u64,
        ),
    ]
}

fn volume_counters(status: &VolumeStatus) -> Vec<Metric> {
    let counters = &status.counters;
    vec![
        (
            "cenote_volume_pages_read",
            "Page operations that read",
            None,
            counters.pages_read,
        ),
        (
            "cenote_volume_pages_written",
            "Page operations that wrote",
            None,
            counters.pages_written,
        ),
        (
            "cenote_volume_writes_early",
            "Writes acknowledged before all their splits had landed",
            None,
            counters.writes_early,
        ),
        (
            "cenote_volume_pages_decoded",
            "Reads that decoded around a missing split",
            None,
            counters.pages_decoded,
        ),
        (
            "cenote_volume_reads_repeated",
            "Reads taken again because of a writer or a failure",
            None,
            counters.reads_repeated,
        ),
        (
            "cenote_volume_requests_failed",
            "Requests that ended in an error",
            None,
            counters.requests_failed,
        ),
        (
            "cenote_volume_rebuilt",
            "Slab bytes rebuilt",
            Some(Unit::Bytes),
            counters.rebuilt_bytes,
        ),
        (
            "cenote_volume_slabs_rebuilt",
            "Slabs made whole",
            None,
            counters.slabs_rebuilt,
        ),
        (
            "cenote_volume_slabs_moved",
            "Slabs moved to another host because theirs wanted them back",
            None,
            counters.slabs_moved,
        ),
        (
            "cenote_volume_wrong_splits",
            "Splits that hosts held wrong, and that were named",
            None,
            status.integrity.wrong_splits,
        ),
        (
            "cenote_volume_healed_splits",
            "Wrong splits that were written again",
            None,
            status.integrity.healed_splits,
        ),
        (
            "cenote_volume_corrupt_reads",
            "Reads that were errors because nothing told which splits are right",
            None,
            status.integrity.corrupt_reads,
        ),
        (
            "cenote_volume_scrub_passes",
            "Times that every page was looked at",
            None,
            status.scrub.passes,
        ),
        (
            "cenote_volume_slabs_dropped",
            "Slabs given up because their pages are in the backing store",
            None,
            counters.slabs_dropped,
        ),
        (
            "cenote_volume_extents_reclaimed",
            "Extents given up because this machine has memory to spare",
            None,
            counters.extents_reclaimed,
        ),
        (
            "cenote_volume_reclaims_heard",
            "Times that a host on this machine said that it has memory to spare",
            None,
            counters.reclaims_heard,
        ),
    ]
}

fn nbd_counters(stats: &Stats) -> Vec<Metric> {
    vec![
        ("cenote_nbd_reads", "READ requests taken", None, stats.reads),
        (
            "cenote_nbd_writes",
            "WRITE requests taken",
            None,
            stats.writes,
        ),
        (
            "cenote_nbd_discards",
            "TRIM and WRITE_ZEROES requests taken",
            None,
            stats.discards,
        ),
        (
            "cenote_nbd_flushes",
            "FLUSH requests taken",
            None,
            stats.flushes,
        ),
        (
            "cenote_nbd_caches",
            "CACHE requests taken",
            None,
            stats.caches,
        ),
        (
            "cenote_nbd_block_statuses",
            "BLOCK_STATUS requests taken",
            None,
            stats.block_statuses,
        ),
        (
            "cenote_nbd_errors",
            "Requests answered with an error",
            None,
            stats.errors,
        ),
        (
            "cenote_nbd_read",
            "Bytes of READ requests answered",
            Some(Unit::Bytes),
            stats.read_bytes,
        ),
        (
            "cenote_nbd_written",
            "Bytes of WRITE requests answered",
            Some(Unit::Bytes),
            stats.written_bytes,
        ),
        (
            "cenote_nbd_connections_accepted",
            "Connections taken",
            None,
            stats.connections_accepted,
        ),
        (
            "cenote_nbd_connections_refused",
            "Connections closed because too many were open",
            None,
            stats.connections_refused,
        ),
        (
            "cenote_nbd_connections_evicted",
            "Connections closed in their handshake to make room for others",
            None,
            stats.connections_evicted,
        ),
        (
            "cenote_nbd_connections_stalled",
            "Connections closed because others waited for memory that they left in use",
            None,
            stats.connections_stalled,
        ),
        (
            "cenote_nbd_handshakes_expired",
            "Connections closed because their handshake took too long",
            None,
            stats.handshakes_expired,
        ),
        (
            "cenote_nbd_tls_failures",
            "Connections closed because their TLS was wrong, or a certificate was missing",
            None,
            stats.tls_failures,
        ),
    ]
}
