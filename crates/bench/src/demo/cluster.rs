//! The hosts, and what the swap device on their memory says of a loss.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Options;
use super::report::Rebuild;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::our_swap::OurSwap;

/// Swap on the hosts' memory; dropping it turns it off.
pub(super) struct SwapDevice(OurSwap);

impl SwapDevice {
    pub(super) fn on(
        cluster: &LocalCluster,
        options: &Options,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        let size = format!("{}M", options.swap_mib);
        let args = ["--size", &size, "--scheme", &options.scheme];
        let (swap, said) = OurSwap::on(cluster.dir(), &args)?;
        for line in said.lines() {
            progress(line);
        }
        Ok(Self(swap))
    }

    /// Turns swap off, which fails when pages were lost.
    pub(super) fn off(self) -> anyhow::Result<()> {
        self.0.off()
    }

    /// Waits until no extent has a slab on one of `lost` and all slabs are there; `None` when
    /// that takes longer than [`WHOLE_TIMEOUT`].
    pub(super) fn wait_until_whole(
        &self,
        lost: &[String],
        interrupt: &Interrupt,
    ) -> anyhow::Result<Option<Duration>> {
        let began = Instant::now();
        while began.elapsed() < WHOLE_TIMEOUT {
            let status = self.0.volume_status()?;
            if is_whole(&status, lost) {
                return Ok(Some(began.elapsed()));
            }
            interrupt.sleep(STATUS_PERIOD)?;
        }
        Ok(None)
    }

    /// Adds what the volume says of itself once the load is over.
    pub(super) fn complete(&self, rebuild: Rebuild) -> anyhow::Result<Rebuild> {
        let status = self.0.volume_status()?;
        Ok(Rebuild {
            rebuilt_bytes: status["counters"]["rebuilt_bytes"].as_u64().unwrap_or(0),
            memory_overhead: status["overhead"].as_f64().unwrap_or(0.0),
            ..rebuild
        })
    }
}

/// Right after a kill a volume may not know of it yet, so `healthy` alone proves nothing.
fn is_whole(status: &Value, lost: &[String]) -> bool {
    let Some(extents) = status["extents"].as_array() else {
        return false;
    };
    let on_lost = extents
        .iter()
        .filter_map(|extent| extent["hosts"].as_array())
        .flatten()
        .any(|host| {
            host.as_str()
                .is_some_and(|name| lost.iter().any(|one| one == name))
        });
    status["health"] == "healthy" && !on_lost
}

/// How long lost slabs may take; arbitrary, far above what a gigabyte takes.
pub(super) const WHOLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the volume is asked; the resolution of the figure.
const STATUS_PERIOD: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_has_not_noticed_a_loss_is_not_whole() {
        let status = |health: &str, host: &str| serde_json::json!({"health": health, "extents": [{"hosts": ["h0", host]}]});
        let lost = ["h1".to_owned()];
        assert!(!is_whole(&status("healthy", "h1"), &lost));
        assert!(!is_whole(&status("degraded", "h2"), &lost));
        assert!(is_whole(&status("healthy", "h2"), &lost));
        assert!(!is_whole(&Value::Null, &lost));
    }
}
