//! `cenote host`: the daemon of one machine that lends memory, in the foreground.
//!
//! On standard output it says one thing, once: the line that announces it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_fabric::{Address, ClusterKey, Waker};
use cenote_host::{Config, Daemon, LockMemory, slab_bytes_default};
use cenote_pool::control::HostStatus;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::{Registry, Unit};

use crate::failure::{DONE, Failure};
use crate::metrics::Metric;
use crate::size::Size;
use crate::{ask, metrics, signals};

/// How long a scrape waits for the host's own answer.
const SCRAPE_LIMIT: Duration = Duration::from_secs(1);

/// `host` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote key new --out cluster.key
  cenote host --name h00 --listen tcp:10.0.0.7:7000 --memory 8G --key cluster.key
  cenote host --name h00 --listen shm:/run/cenote/h00 --listen tcp:127.0.0.1:7000 \\
      --memory 512M --key cluster.key --metrics 127.0.0.1:9100

It runs until SIGTERM or SIGINT. Clients lose the memory it lends: they rebuild it elsewhere.")]
pub struct Args {
    /// Name of this host in the cluster file
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Failure domain: no two parts of a page go to one domain [default: the name]
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Where to listen, shm:/path/to/socket, tcp:IP:PORT or rdma:IP:PORT; may be given again
    #[arg(long, value_name = "ADDR", required = true)]
    listen: Vec<Address>,
    /// Memory to lend
    #[arg(long, value_name = "SIZE")]
    memory: Size,
    /// Size of a slab, the unit of lending [default: 1 GiB, at most 1/64 of the memory]
    #[arg(long, value_name = "SIZE")]
    slab: Option<Size>,
    /// The cluster's key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Serve Prometheus metrics here
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// Let --metrics listen on an address that other machines reach
    #[arg(long, requires = "metrics")]
    allow_remote: bool,
    /// Most clients with slabs at the same time
    #[arg(long, value_name = "N", default_value_t = 256)]
    clients_max: u32,
    /// Whether lent memory is locked into RAM
    #[arg(long, value_enum, default_value_t = Lock::Auto)]
    lock: Lock,
}

/// Whether lent memory is locked into RAM, so that it is never itself swapped out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Lock {
    /// Where the system allows it; a warning where it does not
    Auto,
    /// Or the host does not start
    Always,
    /// Not at all, for machines that never have swap
    Never,
}

/// The line by which a host says that it serves.
fn announcement(name: &str, addresses: &[Address]) -> String {
    let mut line = format!("ready {name} at");
    for address in addresses {
        write!(line, " {address}").expect("writing to a string");
    }
    line
}

/// The address in the announcement of a host that listens on one.
pub fn announced_address<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_suffix('\n')?
        .strip_prefix("ready ")?
        .strip_prefix(name)?
        .strip_prefix(" at ")
}

pub fn run(args: &Args) -> Result<u8> {
    let waker: Arc<OnceLock<Waker>> = Arc::default();
    let to_wake = Arc::clone(&waker);
    let stop = signals::on_stop(move || {
        if let Some(waker) = to_wake.get() {
            waker.wake();
        }
    })?;
    let key = ClusterKey::load(&args.key).map_err(|e| {
        Failure::new(
            format!("{}: {e}", args.key.display()),
            format!(
                "cenote key new --out {0}, or chmod 600 {0}",
                args.key.display()
            ),
        )
    })?;
    let mut daemon =
        Daemon::start(config(args, &key)).with_context(|| format!("start host {}", args.name))?;
    if waker.set(daemon.waker()).is_err() {
        unreachable!("set once, here");
    }
    let addresses = daemon.addresses();
    if let Some(address) = args.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(HostMetrics {
            address: addresses[0].to_string(),
            key,
        }));
        let bound = metrics::serve(address, args.allow_remote, registry)?;
        eprintln!("metrics at http://{bound}/metrics");
    }
    let mut out = std::io::stdout();
    writeln!(out, "{}", announcement(&args.name, &addresses))
        .context("announce on standard output")?;
    out.flush()?;
    daemon.run(&stop)?;
    Ok(DONE)
}

fn config(args: &Args, key: &ClusterKey) -> Config {
    let memory_bytes = args.memory.bytes();
    Config {
        name: args.name.clone(),
        domain: args.domain.clone().unwrap_or_else(|| args.name.clone()),
        addresses: args.listen.clone(),
        memory_bytes,
        slab_bytes: args
            .slab
            .map_or_else(|| slab_bytes_default(memory_bytes), Size::bytes),
        key: key.clone(),
        huge_pages: true,
        lock_memory: match args.lock {
            Lock::Auto => LockMemory::Auto,
            Lock::Always => LockMemory::Always,
            Lock::Never => LockMemory::Never,
        },
        clients_max: args.clients_max,
    }
}

/// Counters and gauges of a host, asked anew at each scrape by the protocol clients use.
struct HostMetrics {
    address: String,
    key: ClusterKey,
}

impl std::fmt::Debug for HostMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMetrics")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Collector for HostMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = match ask::one(&self.address, &self.key, SCRAPE_LIMIT) {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "no status for a scrape");
                return Ok(());
            }
        };
        metrics::gauges(&mut encoder, &gauges(&status))?;
        metrics::counters(&mut encoder, &counters(&status))?;
        Ok(())
    }
}

fn gauges(status: &HostStatus) -> Vec<Metric> {
    let slabs = |name, help, count: u32| (name, help, None, u64::from(count));
    vec![
        (
            "cenote_host_memory",
            "Memory that the host was told to lend",
            Some(Unit::Bytes),
            status.memory_bytes,
        ),
        (
            "cenote_host_lent",
            "Memory in slabs that clients hold",
            Some(Unit::Bytes),
            status.lent_bytes,
        ),
        (
            "cenote_host_slab",
            "Size of a slab",
            Some(Unit::Bytes),
            status.slab_bytes,
        ),
        (
            "cenote_host_uptime",
            "Time since the host began to serve",
            Some(Unit::Seconds),
            status.uptime_s,
        ),
        slabs(
            "cenote_host_slabs_free",
            "Slabs without memory behind them",
            status.slabs.free,
        ),
        slabs(
            "cenote_host_slabs_preparing",
            "Slabs being populated",
            status.slabs.preparing,
        ),
        slabs(
            "cenote_host_slabs_prepared",
            "Slabs populated and ready to be granted",
            status.slabs.prepared,
        ),
        slabs(
            "cenote_host_slabs_mapped",
            "Slabs in use by a client",
            status.slabs.mapped,
        ),
        slabs(
            "cenote_host_slabs_orphaned",
            "Slabs whose client has been silent for longer than its lease",
            status.slabs.orphaned,
        ),
        slabs(
            "cenote_host_slabs_retired",
            "Slabs taken back, not yet free",
            status.slabs.retired,
        ),
        slabs(
            "cenote_host_clients",
            "Clients with slabs or a connection",
            status.clients_total,
        ),
    ]
}

fn counters(status: &HostStatus) -> Vec<Metric> {
    let counters = &status.counters;
    let events = |name, help, count: u64| (name, help, None, count);
    vec![
        events("cenote_host_maps", "Slabs granted", counters.maps),
        events(
            "cenote_host_unmaps",
            "Slabs given back by their client",
            counters.unmaps,
        ),
        events(
            "cenote_host_refused",
            "Requests for a slab that were refused",
            counters.refused,
        ),
        events(
            "cenote_host_fills",
            "Chunks rebuilt from other hosts",
            counters.fills,
        ),
        events(
            "cenote_host_fills_failed",
            "Chunks that could not be rebuilt",
            counters.fills_failed,
        ),
        (
            "cenote_host_filled",
            "Bytes rebuilt from other hosts",
            Some(Unit::Bytes),
            counters.fill_bytes,
        ),
        events(
            "cenote_host_connections",
            "Control connections accepted",
            counters.connections,
        ),
        events(
            "cenote_host_malformed",
            "Messages that no client should send",
            counters.malformed,
        ),
        events(
            "cenote_host_leases_expired",
            "Times that a client was silent for longer than its lease",
            counters.leases_expired,
        ),
        events(
            "cenote_host_orphans_taken",
            "Orphaned slabs taken from their client",
            counters.orphans_taken,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_read_back() {
        let address: Address = "shm:/tmp/a b/socket".parse().unwrap();
        let line = announcement("h00", std::slice::from_ref(&address)) + "\n";
        assert_eq!(announced_address(&line, "h00"), Some("shm:/tmp/a b/socket"));
        assert_eq!(announced_address(&line, "h01"), None);
        assert_eq!(announced_address("", "h00"), None);
        assert_eq!(
            announced_address("ready h00 at tcp:1", "h00"),
            None,
            "cut short"
        );
    }
}
