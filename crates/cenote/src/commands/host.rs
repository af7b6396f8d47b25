//! `cenote host`: the daemon of one machine that lends memory, in the foreground; and what an
//! operator tells such a daemon.
//!
//! On standard output it says one thing, once: the line that announces it.

pub mod drain;
mod metrics;
mod notice;
pub mod room;
mod settings;
mod target;
mod upgrade;

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, FAILED};
use cenote_cli::{signals, stderr};
use cenote_fabric::{Address, ClusterKey, Waker};
use cenote_host::{Daemon, End, Inheritance};
use prometheus_client::registry::Registry;

use crate::folder::Folder;
use crate::place::load_key;
use crate::{limits, service, succession};
use metrics::HostMetrics;
use settings::Settings;

/// `host` and what follows it.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  cenote key new --out cluster.key
  cenote host --name h00 --listen tcp:10.0.0.7:7000 --memory 8G --key cluster.key
  cenote host --name h00 --listen shm:/run/cenote/h00 --listen tcp:127.0.0.1:7000 \\
      --memory 512M --key cluster.key --metrics 127.0.0.1:9640
  cenote host --config /etc/cenote/host.toml
  cenote host --config /etc/cenote/host.toml --headroom 25%
  cenote host drain h00 --cluster /etc/cenote/cluster.toml

It runs until SIGTERM or SIGINT. Clients then lose the memory it lends and rebuild it elsewhere, unless
the host is drained first or has a --grace period in which they move their data. With --headroom it
asks clients to return their least used slabs when other programs need the memory. SIGHUP upgrades the
host to the installed binary; lent memory stays as it is. For several machines see docs/deploy.md."
)]
pub struct Args {
    #[command(subcommand)]
    order: Option<Order>,
    #[command(flatten)]
    lend: settings::Given,
}

/// What an operator tells a host that runs.
#[derive(clap::Subcommand, Debug)]
enum Order {
    /// Move all data off a host without loss
    Drain(drain::Args),
    /// Announce that a host's machine is going away; its clients move their data
    Notice(notice::Args),
    /// Upgrade a running host to the installed binary; its slabs stay
    Upgrade(upgrade::Args),
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

impl Args {
    /// Whether a host is to run here.
    pub fn serves(&self) -> bool {
        self.order.is_none()
    }
}

pub fn run(args: &Args) -> Result<u8> {
    if let Some(state) = succession::probed() {
        let state = state?;
        // A version before this one asks without its arguments.
        if std::env::args_os().len() > 2 {
            would_start(&args.lend.settings()?, &state)?;
        }
        return Ok(DONE);
    }
    match &args.order {
        None => lend(&args.lend.settings()?),
        Some(Order::Drain(args)) => drain::run(args),
        Some(Order::Notice(args)) => notice::run(args),
        Some(Order::Upgrade(args)) => upgrade::run(args),
    }
}

/// What the thread that waits for signals needs of the daemon, once there is one.
#[derive(Default)]
struct Reach {
    waker: OnceLock<Waker>,
    upgrade: OnceLock<Arc<AtomicBool>>,
}

impl Reach {
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    fn upgrade(&self) {
        if let Some(flag) = self.upgrade.get() {
            flag.store(true, Ordering::Relaxed);
            self.wake();
        }
    }
}

/// Whether a host with these settings could take over from the one that runs, which has this state:
/// all that [`lend`] would fail on, as far as can be told while that one has its place.
fn would_start(settings: &Settings, state: &[u8]) -> Result<()> {
    let key = load_key(&settings.key)?;
    Daemon::check(checked(settings, &key)?, state)
        .with_context(|| format!("settings of host {}", settings.name))?;
    if let Some(address) = &settings.metrics {
        crate::metrics::resolved(address, settings.allow_remote)?;
    }
    Ok(())
}

fn lend(settings: &Settings) -> Result<u8> {
    let reach: Arc<Reach> = Arc::default();
    let (at_stop, at_hangup) = (Arc::clone(&reach), Arc::clone(&reach));
    let stop = signals::on_stop_or_hangup(move |_| at_stop.wake(), move || at_hangup.upgrade())?;
    let program = succession::this_program()?;
    let key = load_key(&settings.key)?;
    let (inheritance, mut kept) = succession::inheritance();
    // Its clients rebuild what is lost; a host that does not start serves nobody.
    let mut lost = |error: &anyhow::Error| {
        tracing::error!(
            error = cenote_cli::failure::chain(error),
            "the previous process's slabs are lost"
        );
        // The next process could not use them either, and they are memory.
        kept.forget();
    };
    let inheritance = inheritance.inspect_err(&mut lost).unwrap_or_default();
    let succeeds = !inheritance.state.is_empty();
    let span = tracing::info_span!(
        "start host",
        cenote.host = settings.name,
        cenote.takes_over = succeeds
    )
    .entered();
    if let Err(error) = check_kept(settings, &key) {
        // Clients would lose what is lent now, for what may be lost at the end.
        if !succeeds {
            return Err(error);
        }
        tracing::warn!(
            error = cenote_cli::failure::chain(&error),
            "slabs are not kept at the end"
        );
    }
    let mut daemon = match start(settings, &key, inheritance) {
        Err(error) if succeeds && is_about_inheritance(&error) => {
            lost(&error);
            start(settings, &key, Inheritance::default())?
        }
        started => started?,
    };
    drop(span);
    daemon.keep_memory_at_stop(settings.keep_slabs);
    daemon.set_grace(settings.grace);
    let (waker, upgrade) = (daemon.waker(), daemon.upgrade_flag());
    if reach.waker.set(waker).is_err() || reach.upgrade.set(upgrade).is_err() {
        unreachable!("set once, here");
    }
    let addresses = daemon.addresses();
    match serve_metrics(settings, key, &addresses[0]) {
        // Clients would lose what is lent, for figures.
        Err(error) if succeeds => {
            tracing::error!(
                error = cenote_cli::failure::chain(&error),
                "metrics are not served"
            );
        }
        served => served?,
    }
    let announced = announce(&announcement(&settings.name, &addresses));
    if !succeeds {
        announced.context("announce on standard output")?;
    }
    service::watch(daemon.beats())?;
    kept.forget();
    service::tell("READY=1");
    loop {
        let end = daemon.run(&stop)?;
        match end {
            End::Upgrade => {
                service::tell("RELOADING=1");
                // Told to stop meanwhile, it does that next.
                if let Err(error) = succession::exec(&program, &daemon, &stop) {
                    tracing::error!(
                        error = cenote_cli::failure::chain(&error),
                        "not upgraded; the host continues"
                    );
                }
                service::tell("READY=1");
            }
            End::Stopped if settings.keep_slabs => return Ok(leave(daemon)),
            // A machine that goes away is no failure: the next process would lend on it again.
            End::Stopped | End::Drained | End::NoticeOver => return Ok(DONE),
        }
    }
}

fn serve_metrics(settings: &Settings, key: ClusterKey, address: &Address) -> Result<()> {
    let Some(at) = &settings.metrics else {
        return Ok(());
    };
    let mut registry = Registry::default();
    let host = HostMetrics {
        address: address.to_string(),
        key,
    };
    registry.register_collector(Box::new(host.clone()));
    let unready = Box::new(move || host.unready());
    let bound = crate::metrics::serve(at, settings.allow_remote, registry, unready)?;
    stderr::say(format_args!("metrics at http://{bound}/metrics"));
    Ok(())
}

/// Ends with lent memory in the service manager's hands; without one that takes it, as ever.
fn leave(mut daemon: Daemon) -> u8 {
    service::tell("STOPPING=1");
    match succession::store(&daemon) {
        Ok(slabs) => {
            tracing::info!(slabs, "left with the service manager");
            // Its end would take the memory back.
            std::mem::forget(daemon);
            DONE
        }
        Err(error) => {
            tracing::error!(
                error = cenote_cli::failure::chain(&error),
                "lent memory is freed"
            );
            daemon.shut_down();
            FAILED
        }
    }
}

fn announce(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}

fn start(settings: &Settings, key: &ClusterKey, inheritance: Inheritance) -> Result<Daemon> {
    let config = checked(settings, key)?;
    Daemon::start_with(config, inheritance).with_context(|| format!("start host {}", settings.name))
}

/// The settings as the daemon takes them, held against this process's limits and the folders that
/// they name.
fn checked(settings: &Settings, key: &ClusterKey) -> Result<cenote_host::Config> {
    let config = settings.host_config(key)?;
    let host = || format!("settings of host {}", settings.name);
    config.check_values().with_context(host)?;
    limits::check_open_files(&format!("host {}", settings.name), descriptors(&config))?;
    for address in &config.addresses {
        if let Address::Shm(path) = address {
            Folder::check_for_socket(path).context("--listen")?;
        }
    }
    Ok(config)
}

/// Whether all that it is to lend can be left with the service manager, if that is wanted.
fn check_kept(settings: &Settings, key: &ClusterKey) -> Result<()> {
    if settings.keep_slabs {
        let slabs = settings.host_config(key)?.slabs_total();
        succession::check_store(slabs as usize)
            .with_context(|| format!("keep_slabs of host {}", settings.name))?;
    }
    Ok(())
}

/// Whether a host did not start for what it was left, and would without.
fn is_about_inheritance(error: &anyhow::Error) -> bool {
    use cenote_host::Error;
    matches!(
        error.downcast_ref(),
        Some(Error::Inheritance(_) | Error::Fabric(cenote_fabric::Error::StaleWindow))
    )
}

/// Descriptors that a host needs when all that it lends is lent: one for each slab, and those for
/// clients and strangers.
fn descriptors(config: &cenote_host::Config) -> u64 {
    /// Control and data connections of a few clients, strangers, listeners, threads' wakers.
    const CONNECTIONS: u64 = 192;
    (config.memory_bytes / config.slab_bytes.max(1)).saturating_add(CONNECTIONS)
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
