//! What a process that serves a store tells Prometheus.

use std::fmt;

use cenote_latency::Latency;
use cenote_store::Figures;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::metrics::{self, table};

/// Asks the store at each scrape.
pub struct StoreMetrics {
    pub figures: Box<dyn Fn() -> Vec<Figures> + Send + Sync>,
    pub latencies: Box<dyn Fn() -> Vec<(&'static str, Latency)> + Send + Sync>,
}

impl fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreMetrics").finish_non_exhaustive()
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shards = (self.figures)();
        let sum = |of: fn(&Figures) -> u64| shards.iter().map(of).sum::<u64>();
        let gauges = table! {
            "cenote_store_backlog": "Versions not yet durable", sum(|one| one.backlog);
            "cenote_store_log_used" in Bytes: "Used bytes of the log", sum(|one| one.log_bytes.0);
            "cenote_store_log" in Bytes:
                "Size of the log in bytes; shards are cleaned at three quarters of it",
                sum(|one| one.log_bytes.1);
            "cenote_store_shards_cleaning":
                "Shards whose log is being cleaned", sum(|one| u64::from(one.is_cleaning));
        };
        let counters = table! {
            "cenote_store_put" in Bytes:
                "Bytes of keys and values that clients put", sum(|one| one.put_bytes);
            "cenote_store_written" in Bytes:
                "Bytes written to the medium", sum(|one| one.written_bytes);
        };
        metrics::gauges(&mut encoder, &gauges)?;
        metrics::counters(&mut encoder, &counters)?;
        metrics::histograms(
            &mut encoder,
            "cenote_store_call_latency",
            "Latency of client calls; one-sided reads and writes are not included",
            &(self.latencies)(),
        )
    }
}
