//! What a cache's manager tells Prometheus. Reads and writes pass it by: clients count those.

use std::fmt;

use anyhow::Result;
use cenote_cache::service::question::Status;
use cenote_cli::stderr;
use cenote_fabric::{ClusterKey, HostPort};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::caches::CacheDir;
use crate::metrics::{self, Metric, table};

/// Asks the manager of this process at each scrape, as `cache status` does.
#[derive(Clone)]
pub struct CacheMetrics {
    pub cache: CacheDir,
    pub key: ClusterKey,
}

impl fmt::Debug for CacheMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("CacheMetrics");
        shown.field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl CacheMetrics {
    /// Serves them at `at` until the process ends, and says where on standard error.
    ///
    /// # Errors
    /// As [`metrics::serve`].
    pub fn serve(self, at: &HostPort, allow_remote: bool) -> Result<()> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let unready = move || match self.cache.status(&self.key) {
            Ok(status) => status
                .ending
                .then(|| "the cache is being deleted".to_owned()),
            Err(error) => Some(cenote_cli::failure::chain(&error)),
        };
        let bound = metrics::serve(at, allow_remote, registry, Box::new(unready))?;
        stderr::say(format_args!("metrics at http://{bound}/metrics"));
        Ok(())
    }
}

impl Collector for CacheMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match self.cache.status(&self.key) {
            Ok(status) => metrics::gauges(&mut encoder, &gauges(&status)),
            Err(error) => {
                tracing::warn!(
                    error = cenote_cli::failure::chain(&error),
                    "no status for a scrape"
                );
                Ok(())
            }
        }
    }
}

fn gauges(status: &Status) -> Vec<Metric> {
    let up = status.hosts.iter().filter(|host| host.up).count();
    let losses = status.losses.iter().map(|one| u64::from(one.losses));
    table! {
        "cenote_cache_size" in Bytes: "Size of the cache", status.size_bytes;
        "cenote_cache_region" in Bytes: "Size of a region", status.region_bytes;
        "cenote_cache_copies": "Copies of each region", status.copies;
        "cenote_cache_whole":
            "1 while every region is writable and has all its copies on hosts that are not leaving", status.whole;
        "cenote_cache_clients": "Connected clients", status.clients;
        "cenote_cache_regions": "Regions of the cache", status.regions.total;
        "cenote_cache_regions_open": "Regions that can be read and written", status.regions.open;
        "cenote_cache_regions_frozen":
            "Regions that can be read, while writes wait", status.regions.frozen;
        "cenote_cache_regions_absent":
            "Regions without memory; their requests wait", status.regions.absent;
        "cenote_cache_regions_moving": "Regions being moved to other hosts", status.moves.len();
        "cenote_cache_hosts": "Hosts known to the manager", status.hosts.len();
        "cenote_cache_hosts_connected": "Hosts with a control connection", up;
        "cenote_cache_journal_failing":
            "1 while the journal cannot be written; changes wait", status.journal_error.is_some();
        "cenote_cache_epoch": "Number of the current manager; the first is 1", status.epoch;
        "cenote_cache_regions_lost": "Data losses of existing regions", losses.sum::<u64>();
    }
}
