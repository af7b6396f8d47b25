//! `cenote kv node`: one node's process, in the foreground.
//!
//! On standard output it says one thing, once: the line that announces it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::{signals, span, stderr};
use cenote_fabric::{Host, HostPort};
use cenote_kv_cluster::config::{DocumentError, check_name};
use cenote_kv_cluster::detector::Settings;
use cenote_kv_cluster::node::{self, NodeConfig, NodeError, Ready, Stop};
use cenote_memcached::Handle;
use cenote_memcached::files::Files;
use prometheus_client::registry::Registry;

use super::metrics::{KvMetrics, unready};
use super::place::NAME;
use super::service_flags::Serving;
use crate::at_etcd::AtEtcd;
use crate::listen_addresses::{resolved, resolved_host};
use crate::metrics;
use crate::place::load_key;

/// `kv node` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote kv node --name n00 --etcd http://10.0.0.1:2379 --key cluster.key --listen 10.0.0.7

It runs until SIGTERM or SIGINT. On SIGTERM other nodes take over its partitions, and requests in flight
are answered, before it exits; on SIGINT, or a second SIGTERM, it exits at once. SIGHUP reloads users
and certificates. A node restarted under its name gets its place back, but its memory is lost.")]
pub struct Args {
    /// Permanent name of the node
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    name: String,
    /// Comma-separated etcd addresses
    #[arg(long, value_name = "URLS")]
    etcd: String,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = NAME)]
    cluster_name: String,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Address or name of this machine for other nodes; ports are picked
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    listen: Host,
    /// Address for clients; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    clients: HostPort,
    /// Time for other nodes to take over its partitions on SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span::within("0s", "1d"))]
    drain_timeout: Duration,
    #[command(flatten)]
    at_etcd: AtEtcd,
    #[command(flatten)]
    serving: Serving,
}

/// A name that a node can have.
///
/// # Errors
/// What names are made of.
pub fn node_name(text: &str) -> Result<String, DocumentError> {
    check_name(text).map(|()| text.to_owned())
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = Stop::default();
    let to_stop = stop.clone();
    let reloader: Arc<Reloader> = Arc::default();
    let at_hangup = Arc::clone(&reloader);
    // Before any thread, as threads inherit the mask, and before anything slow: until then SIGHUP
    // ends the process.
    signals::on_stop_or_hangup(
        move |signal| match signal {
            libc::SIGINT => to_stop.stop_at_once(),
            _ => to_stop.stop(),
        },
        move || at_hangup.hang_up(),
    )?;
    let (serving, files) = args
        .serving
        .settings(resolved("--clients", &args.clients)?)?;
    let config = NodeConfig {
        cluster: args.cluster_name.clone(),
        name: args.name.clone(),
        etcd: args.etcd.clone(),
        credentials: args.at_etcd.credentials()?,
        tls: args.at_etcd.tls(),
        key: load_key(&args.key)?,
        listen: resolved_host("--listen", &args.listen)?,
        serving,
        settings: Settings::default(),
        drain_limit: args.drain_timeout,
    };
    let mut started = Ok(());
    node::run(&config, &stop, |ready| {
        reloader.begin(files, ready.server.clone());
        started = serve_metrics(args, ready);
        match started {
            Ok(()) => {
                if let Some(warning) = args.serving.warning() {
                    tracing::warn!("{warning}");
                }
                announce(&args.name, ready);
            }
            Err(_) => stop.stop(),
        }
    })
    .map_err(ended)?;
    started.map(|()| DONE)
}

/// Who starts nodes again is not to start one whose name another one has: they would take turns.
fn ended(error: NodeError) -> anyhow::Error {
    match error {
        NodeError::Replaced(_) => Failure::replaced(
            error.to_string(),
            "cenote kv status says where that one runs; give each node a --name of its own",
        )
        .into(),
        NodeError::Listen(..) => Failure::new(
            error.to_string(),
            "use --listen with an address of this machine that the other nodes reach",
        )
        .into(),
        _ => error.into(),
    }
}

/// Reads users and certificates again on SIGHUP. One that comes before there is a server is remembered.
#[derive(Default)]
struct Reloader {
    served: OnceLock<(Files, Handle)>,
    is_wanted: AtomicBool,
}

impl Reloader {
    fn hang_up(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        self.reload();
    }

    /// There is a server from now on.
    fn begin(&self, files: Files, server: Handle) {
        self.served.get_or_init(|| (files, server));
        self.reload();
    }

    fn reload(&self) {
        let Some((files, server)) = self.served.get() else {
            return;
        };
        if self.is_wanted.swap(false, Ordering::SeqCst) {
            for error in files.reload(server) {
                tracing::warn!(%error, "reload failed; the old users and certificates stay in use");
            }
        }
    }
}

fn serve_metrics(args: &Args, ready: &Ready) -> Result<()> {
    let Some(address) = &args.serving.metrics else {
        return Ok(());
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(KvMetrics {
        node: ready.node,
        server: ready.server.clone(),
        groups: ready.groups.clone(),
    }));
    let (node, groups) = (ready.node, ready.groups.clone());
    let unready = Box::new(move || unready(node, groups.count(), &groups.report()));
    let bound = metrics::serve(address, args.serving.allow_remote, registry, unready)?;
    stderr::say(format_args!("metrics at http://{bound}/metrics"));
    Ok(())
}

fn announce(name: &str, ready: &Ready) {
    let words = |all: &[SocketAddr]| {
        let words: Vec<String> = all.iter().map(ToString::to_string).collect();
        words.join(" ")
    };
    let mut out = std::io::stdout().lock();
    // Whoever started us may have gone meanwhile; the node does not need it.
    if let Err(error) = writeln!(
        out,
        "ready {name} at {} for clients at {}",
        words(&ready.peers),
        words(&ready.clients)
    ) {
        tracing::info!(%error, "announce");
    }
}
