//! `cenote store serve`: a store for clients that hold the cluster's key.
//!
//! On standard output it says one thing, once: the line that announces it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::span::{self, Span};
use cenote_cli::{signals, stderr};
use cenote_fabric::{Address, ClusterKey, HostPort, WireProtection};
use cenote_store::schemes::{all, by_name};
use cenote_store::{FileMedium, Medium, PmMedium, Server, ServerConfig};
use prometheus_client::registry::Registry;

use super::metrics::StoreMetrics;
use super::{folder, say};
use crate::background;
use crate::folder::Folder;
use crate::process::Identity;
use crate::service;

/// Locked by a command that starts a server in the background.
const STARTING: &str = "starting";

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of the store
    dir: PathBuf,
    /// Address to listen on, tcp:HOST:PORT or shm:PATH; may be repeated
    #[arg(long, value_name = "ADDRESS", required = true)]
    listen: Vec<Address>,
    /// File with the cluster's key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Protocol of PUT and GET: efactory; or, for comparison, rpc, ca, saw, imm, forca, forca-each
    /// or erda. All but efactory and rpc let clients write to the log
    #[arg(long, value_name = "NAME", default_value = "efactory")]
    scheme: String,
    /// file: an ordinary disk; pm: persistent memory, or a file that emulates it
    #[arg(long, value_name = "NAME", default_value = "file", value_parser = ["file", "pm"])]
    medium: String,
    /// Additional delay of each pm fence, for emulated persistent memory
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span::within("0s", "1s"))]
    pm_delay: Duration,
    /// Threads that handle calls
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Memory for each client's values that are not durable yet; larger values are refused
    #[arg(long, value_name = "SIZE", default_value = "4M")]
    landing: Size,
    /// Timeout for a value to arrive after its space was allocated
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("1s", "1h"))]
    patience: Duration,
    /// Return when clients can connect, and serve in the background
    #[arg(long)]
    pub background: bool,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long, requires = "metrics")]
    allow_remote: bool,
    /// Minimum protection of traffic over tcp: encrypted, authenticated or plain
    #[arg(long, value_name = "HOW", default_value_t = WireProtection::default())]
    page_traffic: WireProtection,
}

/// Starts this command again without `--background`, and returns once clients can connect. Which process
/// serves and what it says are kept in the store's folder.
fn in_background(args: &Args) -> Result<u8> {
    let absolute = |path: &PathBuf| std::path::absolute(path).context("find the current folder");
    let mut command = background::this_program()?;
    command.args(["store", "serve"]).arg(absolute(&args.dir)?);
    command.arg("--key").arg(absolute(&args.key)?);
    for address in &args.listen {
        let address = match address {
            Address::Shm(path) => Address::Shm(absolute(path)?),
            other => other.clone(),
        };
        command.args(["--listen", &address.to_string()]);
    }
    command
        .args(["--scheme", &args.scheme, "--medium", &args.medium])
        .args(["--pm-delay", &Span::from(args.pm_delay).to_string()])
        .args(["--threads", &args.threads.to_string()])
        .args(["--landing", &args.landing.to_string()])
        .args(["--patience", &Span::from(args.patience).to_string()])
        .args(["--page-traffic", &args.page_traffic.to_string()]);
    if let Some(address) = &args.metrics {
        command.args(["--metrics", &address.to_string()]);
    }
    if args.allow_remote {
        command.arg("--allow-remote");
    }
    let folder = Folder::open(&args.dir)?;
    // Of two at the same time, the second finds the server of the first. The folder itself is locked by
    // the one that serves.
    let starting = folder.open_file(STARTING)?;
    starting
        .lock()
        .context("wait for another command that starts a server")?;
    let shown = format!("store {}", args.dir.display());
    background::start(&mut command, &folder, &shown, |pid| format!("kill {pid}"))
}

pub fn run(args: &Args) -> Result<u8> {
    if args.background {
        return in_background(args);
    }
    match args.medium.as_str() {
        "pm" => serve(args, |file| {
            PmMedium::open(whole(file)?.into(), args.pm_delay)
        }),
        _ => serve(args, |file| FileMedium::open(whole(file)?)),
    }
}

/// A pool without holes, as a sparse copy of one has them: where the disk has no room for one, a write there
/// would end the server.
fn whole(file: File) -> std::io::Result<File> {
    let len = file.metadata()?.len();
    cenote_durable::allocate(&file, len)?;
    Ok(file)
}

fn serve<M: Medium + 'static>(
    args: &Args,
    open: impl Fn(File) -> std::io::Result<M> + Sync,
) -> Result<u8> {
    let scheme = by_name(&args.scheme).ok_or_else(|| {
        let names: Vec<&str> = all().iter().map(|scheme| scheme.name()).collect();
        let what = format!("--scheme {}: there is no such protocol", args.scheme);
        Failure::usage(what, format!("use one of {}", names.join(", ")))
    })?;
    for address in &args.listen {
        if let Address::Shm(path) = address {
            Folder::check_for_socket(path).context("--listen")?;
        }
    }
    if args.landing.bytes() == 0 {
        return Err(Failure::usage("--landing 0: must be at least 1 byte", "--landing 4M").into());
    }
    let key = ClusterKey::load(&args.key).context("--key")?;
    // Before any thread starts.
    let main_thread = std::thread::current();
    let stop = signals::on_stop(move || main_thread.unpark())?;
    let shown = format!("store {}", args.dir.display());
    let mut files = folder::find(&args.dir, true)?;
    let _served = folder::mark_served(&args.dir)?;
    let (pools, found) = folder::recover(&shown, &mut files, open)?;
    let config = ServerConfig {
        addresses: args.listen.clone(),
        key,
        scheme: Arc::from(scheme),
        threads: usize::from(args.threads),
        landing_bytes: args.landing.bytes(),
        patience: args.patience,
        page_traffic: args.page_traffic,
    };
    let server = Server::start(pools, config).with_context(|| shown.clone())?;
    if let Some(address) = &args.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(StoreMetrics {
            figures: Box::new(server.watch()),
            latencies: Box::new(server.watch_latencies()),
        }));
        // Its pools are recovered by now, and with a disk that fails the process ends.
        let unready = Box::new(|| None);
        let bound = crate::metrics::serve(address, args.allow_remote, registry, unready)?;
        stderr::say(format_args!("metrics at http://{bound}/metrics"));
    }
    let addresses = server.addresses().iter().map(ToString::to_string);
    let addresses: Vec<String> = addresses.collect();
    say(&format!(
        "ready {} at {}: {} objects",
        args.dir.display(),
        addresses.join(" "),
        found.objects
    ))?;
    service::tell("READY=1");
    while !stop.load(Ordering::Acquire) {
        std::thread::park_timeout(Duration::from_millis(500));
        if server.has_failed() {
            let what = format!(
                "{shown}: its disk or its sockets failed; acknowledged durable data is safe"
            );
            let remedy = "see the log above, and restart it when that is repaired";
            return Err(Failure::new(what, remedy).into());
        }
    }
    service::tell("STOPPING=1");
    for pool in server.stop().with_context(|| shown.clone())? {
        pool.close().with_context(|| shown.clone())?;
    }
    // Before the folder is free for the next: what its number names by then is another process.
    Identity::forget_own(&Folder::open(&args.dir)?)?;
    Ok(DONE)
}
