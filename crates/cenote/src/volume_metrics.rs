//! What a process that serves a volume tells Prometheus.

use std::fmt;
use std::sync::{Arc, Weak};

use anyhow::Result;
use cenote_block::nbd::{Server, Stats};
use cenote_cli::stderr;
use cenote_fabric::HostPort;
use cenote_volume::{
    BackingStatus, Health, HostState, JournalStatus, PAGE_BYTES, Reputation, Volume, VolumeStatus,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::metrics::{self, Metric, counters, gauges, histogram, table};

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
        stderr::say(format_args!("metrics at http://{bound}/metrics"));
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
                "Latency of page reads, one sampled of 16",
                &status.latency.read,
            )?;
            histogram(
                &mut encoder,
                "cenote_volume_write_latency",
                "Latency of page writes, one sampled of 16",
                &status.latency.write,
            )?;
            if let Some(journal) = &status.journal {
                gauges(&mut encoder, &journal_gauges(journal))?;
            }
            if let Some(backing) = &status.backing {
                gauges(&mut encoder, &backing_gauges(backing))?;
                counters(&mut encoder, &backing_counters(backing))?;
            }
        }
        if let Some(server) = self.server.upgrade() {
            let stats = server.stats();
            gauges(&mut encoder, &nbd_gauges(&stats))?;
            counters(&mut encoder, &nbd_counters(&stats))?;
        }
        Ok(())
    }
}

fn journal_gauges(journal: &JournalStatus) -> Vec<Metric> {
    table! {
        "cenote_volume_journal_failing":
            "1 while the journal cannot be written; writes to stripes whose hosts changed wait",
            journal.error.is_some();
    }
}

fn backing_gauges(backing: &BackingStatus) -> Vec<Metric> {
    table! {
        "cenote_backing_remote" in Bytes:
            "Pages whose newest version is also on hosts", backing.remote_bytes;
        "cenote_backing_pending" in Bytes: "Pages on their way to the disk", backing.pending_bytes;
        "cenote_backing_stale_pages":
            "Pages that failed to be written to the disk and are only on hosts", backing.stale_pages;
    }
}

fn backing_counters(backing: &BackingStatus) -> Vec<Metric> {
    table! {
        "cenote_backing_pages_read": "Pages read from the disk", backing.pages_read;
        "cenote_backing_pages_written": "Pages written to the disk", backing.pages_written;
        "cenote_backing_pages_promoted":
            "Pages read from the disk and copied to hosts", backing.pages_promoted;
        "cenote_backing_transfers": "Disk transfers, each of neighbouring pages", backing.transfers;
        "cenote_backing_errors": "Disk transfers that failed", backing.errors;
    }
}

fn volume_gauges(status: &VolumeStatus) -> Vec<Metric> {
    let extents = |health: Health| {
        let extents = status.extents.iter();
        extents.filter(|extent| extent.health == health).count()
    };
    let connected = status.hosts.iter().filter(|host| host.connected).count();
    let doubted = |host: &&HostState| host.reputation != Reputation::Trusted;
    let doubted = status.hosts.iter().filter(doubted).count();
    let corrupt = status.scrub.last.map_or(0, |last| last.corrupt_pages);
    table! {
        "cenote_volume_hosts_doubted": "Hosts that recently sent wrong splits", doubted;
        "cenote_volume_scrub_corrupt": "Pages that the last scrub could not repair", corrupt;
        "cenote_volume_size" in Bytes: "Size of the address range", status.size_bytes;
        "cenote_volume_stored" in Bytes: "Pages that hold data", status.stored_bytes;
        "cenote_volume_mapped" in Bytes: "Address range of mapped extents", status.mapped_bytes;
        "cenote_volume_lent" in Bytes: "Memory that hosts lend to this volume", status.lent_bytes;
        "cenote_volume_hosts_connected": "Hosts with a control connection", connected;
        "cenote_volume_extents_healthy": "Extents with every slab", extents(Health::Healthy);
        "cenote_volume_extents_regenerating":
            "Extents being rebuilt", extents(Health::Regenerating);
        "cenote_volume_extents_degraded":
            "Degraded extents that are readable", extents(Health::Degraded);
        "cenote_volume_extents_lost":
            "Extents with more slabs unreachable than the scheme tolerates", extents(Health::Lost);
        "cenote_volume_pages_lost" in Bytes:
            "Pages that return errors until they are completely overwritten", status.torn_pages * PAGE_BYTES as u64;
    }
}

fn volume_counters(status: &VolumeStatus) -> Vec<Metric> {
    let counters = &status.counters;
    table! {
        "cenote_volume_pages_read": "Page reads", counters.pages_read;
        "cenote_volume_pages_written": "Page writes", counters.pages_written;
        "cenote_volume_writes_early":
            "Writes acknowledged before all their splits had landed", counters.writes_early;
        "cenote_volume_pages_decoded":
            "Reads that decoded because a split was missing", counters.pages_decoded;
        "cenote_volume_reads_repeated":
            "Reads repeated because of a concurrent write or a failure", counters.reads_repeated;
        "cenote_volume_requests_failed":
            "Requests that ended in an error", counters.requests_failed;
        "cenote_volume_rebuilt" in Bytes: "Slab bytes rebuilt", counters.rebuilt_bytes;
        "cenote_volume_slabs_rebuilt": "Slabs whose rebuild completed", counters.slabs_rebuilt;
        "cenote_volume_slabs_moved":
            "Slabs moved to another host because their host asked for them", counters.slabs_moved;
        "cenote_volume_wrong_splits": "Wrong splits found on hosts", status.integrity.wrong_splits;
        "cenote_volume_healed_splits":
            "Wrong splits that were repaired", status.integrity.healed_splits;
        "cenote_volume_corrupt_reads":
            "Reads that failed because the right splits could not be determined", status.integrity.corrupt_reads;
        "cenote_volume_scrub_passes": "Completed scrub passes", status.scrub.passes;
        "cenote_volume_slabs_dropped":
            "Slabs dropped because their pages are in the backing store", counters.slabs_dropped;
        "cenote_volume_extents_reclaimed":
            "Extents dropped because this machine has spare memory", counters.extents_reclaimed;
        "cenote_volume_reclaims_heard":
            "Spare memory reports from hosts on this machine", counters.reclaims_heard;
    }
}

fn nbd_gauges(stats: &Stats) -> Vec<Metric> {
    table! {
        "cenote_nbd_connections_open": "Connections open now", stats.connections_open;
    }
}

fn nbd_counters(stats: &Stats) -> Vec<Metric> {
    table! {
        "cenote_nbd_reads": "READ requests received", stats.reads;
        "cenote_nbd_writes": "WRITE requests received", stats.writes;
        "cenote_nbd_discards": "TRIM and WRITE_ZEROES requests received", stats.discards;
        "cenote_nbd_flushes": "FLUSH requests received", stats.flushes;
        "cenote_nbd_caches": "CACHE requests received", stats.caches;
        "cenote_nbd_block_statuses": "BLOCK_STATUS requests received", stats.block_statuses;
        "cenote_nbd_errors": "Requests answered with an error", stats.errors;
        "cenote_nbd_read" in Bytes: "Bytes of READ requests answered", stats.read_bytes;
        "cenote_nbd_written" in Bytes: "Bytes of WRITE requests answered", stats.written_bytes;
        "cenote_nbd_connections_accepted": "Connections accepted", stats.connections_accepted;
        "cenote_nbd_connections_refused":
            "Connections closed because too many were open", stats.connections_refused;
        "cenote_nbd_connections_evicted":
            "Connections closed during the handshake to make room for others", stats.connections_evicted;
        "cenote_nbd_connections_stalled":
            "Idle connections closed because others waited for their memory", stats.connections_stalled;
        "cenote_nbd_handshakes_expired":
            "Connections closed because their handshake took too long", stats.handshakes_expired;
        "cenote_nbd_tls_failures":
            "Connections closed because of a TLS error or a missing certificate", stats.tls_failures;
    }
}
