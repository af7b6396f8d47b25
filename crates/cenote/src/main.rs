//! `cenote`: the program with every command.
//!
//! This crate parses arguments, starts and stops processes and prints; the commands' work is in the
//! crates below it. Results go to stdout, everything else to stderr.

#![deny(unsafe_code)]

mod ask;
mod at_etcd;
mod background;
mod caches;
mod commands;
mod connections;
mod dashboard;
mod expectations;
mod folder;
mod fuse_rings;
mod hints;
mod limits;
mod listen_addresses;
mod lock;
mod metrics;
#[cfg(test)]
mod pages;
mod place;
mod process;
mod protection;
mod sample;
mod scrub_rate;
mod seccomp;
mod service;
mod share;
mod shell;
mod succession;
mod volume_metrics;
mod volume_server;
mod volumes;
mod watch;

use std::process::ExitCode;

use cenote_cli::role::Role;
#[cfg(feature = "traces")]
use cenote_cli::traces::Traces;
use cenote_cli::{Common, help};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::commands::{
    cache, completions, doctor, down, fabric, host, key, kv, lab, man, mount, nbd, plan, status,
    store, support_bundle, swap, top, ublk, up, volume,
};

/// Pool the idle memory of a cluster: resilient remote memory with microsecond latency
#[derive(Debug, Parser)]
#[command(name = "cenote", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

const AFTER_HELP: &str = "\
Examples:
  cenote up --hosts 12 --memory 512M --dir ~/.cenote/well
  cenote nbd --volume v0 --size 2G --socket ~/.cenote/well/nbd --dir ~/.cenote/well --background
  cenote status --dir ~/.cenote/well
  cenote down --dir ~/.cenote/well

Exit codes:
  0  done
  1  failed; stderr says what, and what to do
  2  wrong usage
  3  answered, but something is degraded (status, volume status, cache status)
     or nothing meets the request (cache search, cache plan, cache create)
  all codes: docs/guides/commands.md

Environment:
  CENOTE_DIR  default of --dir
  CENOTE_LOG  log level on stderr: error, warn (default), info or debug; or one
              for each module, as in cenote_host=debug,info. By default kv node
              also logs its peers and views, at info
  CENOTE_LOG_FORMAT
              default of --log-format, including background processes
  OTEL_EXPORTER_OTLP_ENDPOINT
              where servers send traces, as in http://127.0.0.1:4318; with
              OpenTelemetry's other variables: docs/guides/monitoring.md
  NO_COLOR    disables colours";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start a cluster on this machine, with one process for each host
    Up(up::Args),
    /// Stop the hosts of a local cluster
    Down(down::Args),
    /// Show hosts, lent and free memory, volumes and health
    Status(status::Args),
    /// Watch hosts, volumes and key-value nodes in the terminal
    Top(top::Args),
    /// Serve a web dashboard of the cluster
    Dashboard(commands::dashboard::Args),
    /// Lend memory of this machine; runs in the foreground
    Host(host::Args),
    /// Create, list, show, resize and delete volumes
    Volume(volume::Args),
    /// Serve a volume as a network block device (NBD)
    Nbd(nbd::Args),
    /// Attach a volume as a block device of this machine (ublk)
    Ublk(ublk::Args),
    /// Mount a volume as a file system
    Mount(mount::Args),
    /// Use a volume as swap space of this machine
    Swap(swap::Args),
    /// Run a program with its large allocations in the cluster's memory, without swap
    Run(commands::run::Args),
    /// Generate keys: the one that a cluster shares, or one that encrypts a volume
    Key(key::Args),
    /// A fault-tolerant key-value store for memcached clients
    Kv(kv::Args),
    /// Remote caches that meet an SLO: create, show, measure, reshape, delete
    Cache(cache::Args),
    /// A crash-safe object store in a folder of this machine
    Store(store::Args),
    /// Check this machine and cluster, and say how to fix what is wrong
    Doctor(doctor::Args),
    /// Collect logs, status and configuration for a bug report, without secrets
    SupportBundle(support_bundle::Args),
    /// List the transports that can be used on this machine
    Fabric(fabric::Args),
    /// Demo: memcached swaps to twelve hosts, two are killed, nothing is lost
    #[command(
        after_help = "Example:\n  cenote demo\n\ncenote demo --help describes it; it is part of \
                      cenote-lab."
    )]
    Demo(lab::Args),
    /// Run benchmarks against other systems
    #[command(
        after_help = "Example:\n  cenote bench codec\n\ncenote bench --help describes it; it is \
                      part of cenote-lab."
    )]
    Bench(lab::Args),
    /// Choose a redundancy scheme and host groups for a cluster; estimate savings from lending
    Plan(plan::Args),
    /// Simulations: a whole cluster under faults, and the papers' experiments
    #[command(
        after_help = "Example:\n  cenote lab sim --seed 7\n\ncenote lab --help describes it; it is \
                      part of cenote-lab."
    )]
    Lab(lab::Args),
    /// Print shell completions
    Completions(completions::Args),
    /// Write manual pages, for packagers
    #[command(hide = true)]
    Man(man::Args),
}

impl Command {
    /// As whom it sends spans: what serves does, and what opens a volume.
    #[cfg(feature = "traces")]
    fn traced(&self) -> Option<&'static str> {
        let name = match self {
            Self::Host(_) => "cenote-host",
            Self::Kv(_) => "cenote-kv",
            Self::Cache(_) => "cenote-cache",
            Self::Swap(_) => "cenote-swap",
            Self::Store(_) => "cenote-store",
            Self::Mount(_) => "cenote-mount",
            Self::Nbd(_) => "cenote-nbd",
            Self::Ublk(_) => "cenote-ublk",
            Self::Run(_) => "cenote-run",
            Self::Volume(args) if args.owns() => return Some("cenote-volume"),
            _ => return None,
        };
        (self.role() == Role::Serves).then_some(name)
    }

    fn role(&self) -> Role {
        let serves = |serves| match serves {
            true => Role::Serves,
            false => Role::Prints,
        };
        match self {
            Self::Host(args) => serves(args.serves()),
            Self::Kv(args) => serves(args.serves()),
            Self::Cache(args) => serves(args.serves()),
            Self::Swap(args) => serves(args.serves()),
            Self::Store(args) => serves(args.serves()),
            Self::Mount(args) => serves(args.serves()),
            Self::Nbd(args) => serves(args.serves()),
            Self::Ublk(args) => serves(args.serves()),
            Self::Run(_) | Self::Dashboard(_) => Role::Serves,
            Self::Volume(args) if args.owns() => Role::Tidies,
            Self::Top(_) => Role::Tidies,
            Self::Up(_)
            | Self::Down(_)
            | Self::Status(_)
            | Self::Volume(_)
            | Self::Key(_)
            | Self::Doctor(_)
            | Self::Fabric(_)
            | Self::SupportBundle(_)
            | Self::Plan(_)
            // What they become takes its own.
            | Self::Demo(_)
            | Self::Bench(_)
            | Self::Lab(_)
            | Self::Completions(_)
            | Self::Man(_) => Role::Prints,
        }
    }
}

fn main() -> ExitCode {
    let matches = help::laid_out(Cli::command(), help::width()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    warn_of_variables();
    let traces = begin(&cli);
    cenote_cli::run(cli.command.role(), hints::of, || {
        // Until the command has ended: what is left is sent then.
        let _traces = traces?;
        run(&cli)
    })
}

/// Starts the log, and traces where the environment has a collector for them.
#[cfg(feature = "traces")]
fn begin(cli: &Cli) -> anyhow::Result<Option<Traces>> {
    let traces = match cli.command.traced() {
        Some(service) => Traces::from_environment(service),
        None => Ok(None),
    };
    match &traces {
        Ok(Some(traces)) => cli.common.start_traced(LOGGED, traces),
        _ => cli.common.start(LOGGED),
    }
    Ok(traces?)
}

#[cfg(not(feature = "traces"))]
fn begin(cli: &Cli) -> anyhow::Result<()> {
    cli.common.start(LOGGED);
    Ok(())
}

/// Says that a variable has a value that means nothing. That is no error: it may be meant for
/// another program of the same unit or shell, and the default serves as well.
fn warn_of_variables() {
    let name = cenote_fabric::IO_URING_VARIABLE;
    let known = ["on", "clients", "hosts", "off"];
    if let Some(said) = std::env::var_os(name)
        && !known.iter().any(|known| said == *known)
    {
        cenote_cli::stderr::say(format_args!(
            "warning: {name}={}: ignored; use {}",
            said.display(),
            known.join(", ")
        ));
    }
}

fn run(cli: &Cli) -> anyhow::Result<u8> {
    match &cli.command {
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::run(args),
        Command::Status(args) => status::run(args),
        Command::Top(args) => top::run(args),
        Command::Dashboard(args) => commands::dashboard::run(args),
        Command::Host(args) => host::run(args),
        Command::Volume(args) => volume::run(args),
        Command::Nbd(args) => nbd::run(args),
        Command::Ublk(args) => ublk::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Swap(args) => swap::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Key(args) => key::run(args),
        Command::Kv(args) => kv::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Store(args) => store::run(args, cli.common),
        Command::Doctor(args) => doctor::run(args),
        Command::SupportBundle(args) => support_bundle::run(args),
        Command::Fabric(args) => fabric::run(args),
        Command::Demo(args) => lab::run(&["demo"], args, cli.common),
        Command::Bench(args) => lab::run(&["bench"], args, cli.common),
        Command::Plan(args) => plan::run(args),
        Command::Lab(args) => lab::run(&["lab"], args, cli.common),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

/// What is logged unless CENOTE_LOG says otherwise: warnings, and a key-value node's peers and views.
/// The level without a target has to be here: a filter that names targets replaces the default one.
const LOGGED: &str = "warn,cenote_kv_cluster::node=info,cenote_kv_cluster::lane=info";

#[cfg(test)]
mod tests {
    use super::*;

    fn role(arguments: &[&str]) -> Role {
        let all = ["cenote"].iter().chain(arguments);
        Cli::try_parse_from(all)
            .expect("right usage")
            .command
            .role()
    }

    #[test]
    fn what_others_live_on_ends_as_one_and_what_prints_ends_with_its_reader() {
        for serves in [
            &["host", "--name", "h"][..],
            &["nbd", "--volume", "v"],
            &["ublk", "--volume", "v"],
            &["mount", "/mnt", "--volume", "v"],
            &["swap", "serve", "--volume", "v"],
            &["cache", "manage", "c"],
            &["dashboard", "--dir", "d"],
            &[
                "kv",
                "node",
                "--name",
                "n",
                "--etcd",
                "http://a:1",
                "--key",
                "k",
            ],
        ] {
            assert_eq!(role(serves), Role::Serves, "{serves:?}");
        }
        for tidies in [
            &["volume", "attach", "v"][..],
            &["volume", "scrub", "v"],
            &["volume", "delete", "v"],
            &["top"],
        ] {
            assert_eq!(role(tidies), Role::Tidies, "{tidies:?}");
        }
        for prints in [
            &["host", "drain", "h"][..],
            &["swap", "on", "--size", "1G"],
            &["swap", "status"],
            &["mount", "/mnt", "--volume", "v", "--background"],
            &["nbd", "--volume", "v", "--socket", "s", "--background"],
            &["ublk", "--volume", "v", "--background"],
            &["kv", "up", "--dir", "d"],
            &["volume", "list"],
            &["cache", "status"],
            &["status"],
        ] {
            assert_eq!(role(prints), Role::Prints, "{prints:?}");
        }
    }
}
