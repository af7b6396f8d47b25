//! `cenote kv up`: a cluster on this machine: etcd, and each node a process of its own.
//!
//! What was started is stopped again unless every node sees all others and every group serves. All
//! of it is noted in the folder before it is waited for: `kv down` finds it if `kv up` is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::signals;
use cenote_cli::size::Size;
use cenote_fabric::{HostPort, WireProtection};
use cenote_kv::group::member::Service;
use cenote_kv::memory::footprint::{Footprint, Others, Roles};
use cenote_kv_cluster::config::{
    ClusterConfig, DocumentKeys, KeyFingerprint, REGION_BYTES, Scheme,
};
use cenote_kv_cluster::etcd::{Credentials, Etcd, EtcdServer, ServerError};
use cenote_kv_cluster::layout::Code;
use cenote_kv_cluster::store::EtcdError;

use super::place::{ETCD_PATIENCE, Found, Known, KvDir, NAME, PASSWORD};
use super::service_flags::Serving;
use super::start::{Addresses, Starting};
use super::status;
use crate::at_etcd::AtEtcd;
use crate::folder::Folder;
use crate::place::load_key;
use crate::process::{self, Identity};
use crate::shell::quoted;

mod running;

/// How long nodes may take to see each other, and groups to begin.
const SERVE_LIMIT: Duration = Duration::from_secs(60);
/// 1 TiB: more than a node needs at least that plays a slot in as many groups as there may be.
const MEMORY_MIB_MAX: u64 = 1 << 20;
/// Between two looks whether they do.
const STEP: Duration = Duration::from_millis(50);

/// `kv up` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv up --nodes 5 --groups 5 --code 3+2 --memory 1G --dir ~/.cenote/well
  cenote kv up --nodes 5 --port 11211 --lanes 2 --dir ~/.cenote/well
  cenote kv up --nodes 3 --groups 3 --code 1+2 --replicated --dir ~/.cenote/well
  cenote kv up --nodes 7 --groups 14 --code 3+2 --lanes 2 --dir ~/.cenote/well

A K+M group has K data places and M parity places, each on another node, and survives the loss of any M
nodes. A number of groups that is a multiple of the nodes spreads the work evenly. etcd comes with the
Debian package etcd-server; the etcd started here needs the password in DIR/etcd/password. If etcd dies
while nodes run, the same command restarts it with its data. If all of the cluster runs, it says so.")]
pub struct Args {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=256))]
    nodes: u32,
    /// Number of groups [default: as many as nodes]
    #[arg(long, value_name = "N")]
    groups: Option<usize>,
    /// Data and parity places of a group, as in 3+2
    #[arg(long, value_name = "K+M", default_value = "3+2")]
    code: Code,
    /// Keep copies in the parity places; K must be 1
    #[arg(long)]
    replicated: bool,
    /// Memory limit of each node's process
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Client port of the first node; the others get the ports after it [default: free ports]
    #[arg(long, value_name = "BASE", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Service threads of each node, and connections between two nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: usize,
    /// online; or, for comparison, blocked: writes wait while anything in their group is recovered
    #[arg(long, value_name = "online|blocked", default_value = "online", value_parser = service, hide = true)]
    recovery: Service,
    /// Protection of traffic between nodes: encrypted; authenticated (readable, but not changed
    /// unnoticed); or plain, for private networks
    #[arg(long, value_name = "HOW", default_value_t)]
    link_traffic: WireProtection,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = NAME)]
    cluster_name: String,
    /// Comma-separated addresses of a running etcd [default: one is started]
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    #[command(flatten)]
    at_etcd: AtEtcd,
    /// Only write the cluster's plan to that etcd and create its key; nodes run elsewhere
    #[arg(long, requires = "etcd")]
    plan_only: bool,
    /// Folder for the cluster's files; created if missing
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    #[command(flatten)]
    serving: Serving,
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = signals::on_stop(|| ())?;
    let mut config = config(args)?;
    let keys = DocumentKeys::of(&args.cluster_name)?;
    let dir = KvDir::create(&args.dir)?;
    let _lock = dir.lock()?;
    if let Some(known) = dir.known()? {
        if OwnEtcd::is_to_revive(&dir)? {
            return revive(&dir, &known);
        }
        if let Some(running) = running::find(&dir, &known, args, &config, &keys)? {
            print_running(&dir, &known, &config, &running);
            return Ok(DONE);
        }
    }
    running::refuse(&dir)?;
    if !args.plan_only {
        check_memory(args)?;
    }
    let key_file = dir.key_file();
    if !key_file.exists() {
        super::super::key::make(&key_file)?;
    }
    let key = load_key(&key_file)?;
    config.key = KeyFingerprint::of(&key, &args.cluster_name);

    let server = match &args.etcd {
        Some(_) => {
            dir.forget_password()?;
            None
        }
        None => Some(OwnEtcd::start(&dir)?),
    };
    let url = args.etcd.clone().or(server.as_ref().map(OwnEtcd::url));
    let known = Known {
        cluster: args.cluster_name.clone(),
        etcd: url.expect("one of the two is there"),
    };
    let at_etcd = match &server {
        Some(_) => dir.at_own_etcd(),
        None => args.at_etcd.clone(),
    };
    let etcd = at_etcd.connect(&known.etcd)?.patient(ETCD_PATIENCE);
    keys.found(&etcd, &config)?;
    // Numbers in the order of the names, so that the plan reads as it is drawn.
    for name in &config.nodes {
        keys.claim_number(&etcd, name)?;
    }
    if args.plan_only {
        println!(
            "planned: {} nodes, {} groups of {}, in etcd at {}; key {}",
            config.nodes.len(),
            config.groups,
            config.code,
            known.etcd,
            key_file.display()
        );
        return Ok(DONE);
    }
    let noted = Noted::note(&dir, &known)?;
    let mut starting = Starting::default();
    for (index, name) in config.nodes.iter().enumerate() {
        let at = Addresses::local(args.port.map_or(0, |base| base + index as u16));
        let folder = dir.make_node(name)?;
        let serving = args.serving.of_node(index as u16);
        let flags = serving.flags(folder.path(), &at_etcd)?;
        starting.start(&dir, name, &known, &key_file, at, &flags)?;
    }
    let found = Found {
        known: known.clone(),
        at_etcd,
        keys,
        etcd,
        key,
        key_file,
    };
    let mut clients = Vec::new();
    starting.ready_when(&stop, |said| {
        clients = said.to_vec();
        all_serve(&found, &config, &stop)
    })?;
    noted.keep();
    if let Some(server) = server {
        server.keep();
    }
    println!(
        "up: {} nodes, {} groups of {}, etcd at {}",
        config.nodes.len(),
        config.groups,
        config.code,
        known.etcd
    );
    println!("memcached clients can use any of");
    for (name, address) in config.nodes.iter().zip(&clients) {
        let identity = Identity::load(&dir.make_node(name)?)?;
        let pid = identity.map_or(String::new(), |identity| format!("  pid {}", identity.pid));
        println!("  {name}  {address}{pid}");
    }
    if let Some(warning) = args.serving.warning() {
        println!("{warning}");
    }
    let dir = quoted(dir.root());
    println!(
        "try: cenote kv status --dir {dir}\n     kill -9 $(cat {dir}/nodes/n01/pid)\n     \
         cenote kv join --name n01 --dir {dir}\n     cenote kv down --dir {dir}"
    );
    Ok(DONE)
}

fn service(name: &str) -> Result<Service, String> {
    match name {
        "online" => Ok(Service::Online),
        "blocked" => Ok(Service::Blocked),
        _ => Err("use online or blocked".to_owned()),
    }
}

fn config(args: &Args) -> Result<ClusterConfig> {
    let nodes = args.nodes as usize;
    let metrics = args.serving.metrics.as_ref().map(HostPort::port);
    for (flag, base) in [("--port", args.port), ("--metrics", metrics)] {
        if let Some(base) = base
            && usize::from(base) + nodes > usize::from(u16::MAX) + 1
        {
            let what = format!(
                "{flag}: {nodes} ports from {base} on: ports end at {}",
                u16::MAX
            );
            return Err(Failure::usage(what, format!("use a smaller port for {flag}")).into());
        }
    }
    let mut config = ClusterConfig {
        groups: args.groups.unwrap_or(nodes),
        code: args.code,
        scheme: if args.replicated {
            Scheme::Replicated
        } else {
            Scheme::Coded
        },
        region_bytes: *REGION_BYTES.start(),
        memory_bytes: args.memory.bytes(),
        lanes: args.lanes,
        link_traffic: args.link_traffic,
        key: KeyFingerprint::UNKNOWN,
        service: args.recovery,
        nodes: (0..nodes).map(|index| format!("n{index:02}")).collect(),
    };
    // Of a shape that cannot be there is neither; that is said below.
    if let Some(footprint) = config.memory().1 {
        config.region_bytes = footprint.region_cap(0).max(config.region_bytes);
        if config.region_bytes > *REGION_BYTES.end() {
            let what = format!(
                "--memory {}: {} for each place's values, which may have at most {}",
                args.memory,
                Size(config.region_bytes).rounded(),
                Size(*REGION_BYTES.end())
            );
            return Err(Failure::usage(what, "use a smaller --memory, or more --groups").into());
        }
    } else if let Some(least) = least_memory(config.roles()) {
        let what = format!("--memory {}: too little for a node's places", args.memory);
        let remedy = format!("use --memory {least} or more, or fewer --groups");
        return Err(Failure::usage(what, remedy).into());
    }
    // What the document may not say is the arguments' fault.
    ClusterConfig::parse("the cluster", &config.to_bytes())
        .map_err(|error| Failure::usage(error.to_string(), "cenote kv up --help").into())
}

/// The least memory of a node that has room for these roles, in whole MiB; `None`: it plays none.
fn least_memory(roles: Roles) -> Option<Size> {
    let is_enough = |bytes: &u64| {
        let others = Others::new(*bytes, roles);
        Footprint::new(*bytes, others.all, roles).is_some()
    };
    (1..=MEMORY_MIB_MAX)
        .map(|mib| mib << 20)
        .find(is_enough)
        .map(Size)
}

/// All nodes run on this machine.
fn check_memory(args: &Args) -> Result<()> {
    let nodes = u64::from(args.nodes);
    let Some(free) = cenote_host::memory_left_bytes() else {
        tracing::warn!("the kernel does not report free memory; continuing");
        return Ok(());
    };
    let wanted = args.memory.bytes().checked_mul(nodes);
    if wanted.is_some_and(|wanted| wanted <= free) {
        return Ok(());
    }
    Err(Failure::new(
        format!(
            "{nodes} nodes with {} each do not fit: {} free on this machine",
            args.memory,
            Size(free).rounded()
        ),
        format!(
            "use --memory {} or fewer --nodes; for nodes on other machines, --etcd and --plan-only",
            Size((free / nodes) >> 20 << 20)
        ),
    )
    .into())
}

/// Says that all that was asked for runs already.
fn print_running(
    dir: &KvDir,
    known: &Known,
    config: &ClusterConfig,
    running: &BTreeMap<String, u32>,
) {
    println!(
        "already up: {} nodes, {} groups of {}, etcd at {}",
        config.nodes.len(),
        config.groups,
        config.code,
        known.etcd
    );
    for (name, pid) in running {
        println!("  {name}  pid {pid}");
    }
    println!("try: cenote kv status --dir {}", quoted(dir.root()));
}

/// Waits until every node sees all others alive, and every group is whole.
fn all_serve(found: &Found, config: &ClusterConfig, stop: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + SERVE_LIMIT;
    loop {
        let report = status::report(found, Duration::from_secs(1))?;
        if report.all_met(config.nodes.len()) && report.is_whole() {
            return Ok(());
        }
        if stop.load(Ordering::SeqCst) {
            bail!("interrupted; what was started is stopped");
        }
        if Instant::now() >= deadline {
            let mut text = Vec::new();
            status::print(&mut text, &report)?;
            let text = String::from_utf8_lossy(&text).into_owned();
            bail!("the cluster does not serve within {SERVE_LIMIT:?}:\n{text}");
        }
        std::thread::sleep(STEP);
    }
}

/// Brings the etcd of a cluster that runs back.
fn revive(dir: &KvDir, known: &Known) -> Result<u8> {
    let server = OwnEtcd::start_again(dir, &known.etcd)?;
    let etcd = dir.at_own_etcd().connect(&known.etcd)?;
    etcd.patient(ETCD_PATIENCE).read("/cenote")?;
    server.keep();
    println!(
        "up: the cluster is running, and its etcd at {} was restarted with its data",
        known.etcd
    );
    println!("try: cenote kv status --dir {}", quoted(dir.root()));
    Ok(DONE)
}

/// Notes which process our etcd is.
fn note_process(pid: u32, folder: &Folder) -> io::Result<()> {
    let noted = Identity::of(pid).and_then(|identity| identity.save(folder));
    noted.map_err(|error| io::Error::other(cenote_cli::failure::chain(&error)))
}

/// Makes a password that nobody else may read.
fn write_password(folder: &Folder) -> Result<()> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("get random bytes: {error}"))?;
    let password: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(folder.write(PASSWORD, &(password + "\n"))?)
}

/// Has an etcd ask for a password. One that is new, or has lost its data, asks nobody.
fn protect(open: &Etcd, credentials: &Credentials) -> Result<(), EtcdError> {
    match open.read("/cenote") {
        Ok(_) => open.enable_credentials(credentials),
        Err(EtcdError::Refused { .. }) => Ok(()),
        // Who knows whether it asks.
        Err(error) => Err(error),
    }
}

/// That a cluster is up in a folder; forgotten again unless it is kept.
struct Noted<'a> {
    dir: &'a KvDir,
    is_kept: bool,
}

impl<'a> Noted<'a> {
    fn note(dir: &'a KvDir, known: &Known) -> Result<Self> {
        dir.set_known(known)?;
        let is_kept = false;
        Ok(Self { dir, is_kept })
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = self.dir.forget_known()
        {
            tracing::warn!(
                error = cenote_cli::failure::chain(&error),
                "forget the cluster"
            );
        }
    }
}

/// An etcd of ours; stopped again unless it is kept.
struct OwnEtcd {
    server: Option<EtcdServer>,
    folder: Folder,
}

impl OwnEtcd {
    fn start(dir: &KvDir) -> Result<Self> {
        let folder = dir.make_etcd()?;
        // What it kept of an earlier cluster is of no use: the values were in its nodes' memory.
        let data = folder.join("data");
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| data.display().to_string());
            }
            _ => {}
        }
        write_password(&folder)?;
        let detach = |command: &mut Command| {
            process::detach(command);
        };
        let server =
            EtcdServer::start_noted(folder.path(), detach, |pid| note_process(pid, &folder));
        Self::of(dir, server)
    }

    /// Whether nodes run, and the etcd that was started for them does not.
    fn is_to_revive(dir: &KvDir) -> Result<bool> {
        let runs = |folder: &Folder| -> Result<bool> {
            Ok(match Identity::load(folder)? {
                Some(identity) => identity.open()?.is_some(),
                None => false,
            })
        };
        let etcd = dir.etcd()?;
        if !dir.has_password()? || etcd.is_some_and(|folder| runs(&folder).unwrap_or(true)) {
            return Ok(false);
        }
        let mut nodes = dir.nodes()?.into_iter();
        nodes.try_fold(false, |any, (_, folder)| Ok(any || runs(&folder)?))
    }

    /// Starts the etcd of a cluster again, where it was and with what it kept.
    fn start_again(dir: &KvDir, url: &str) -> Result<Self> {
        let folder = dir.make_etcd()?;
        let detach = |command: &mut Command| {
            process::detach(command);
        };
        let note = |pid| note_process(pid, &folder);
        let server = EtcdServer::start_at_noted(folder.path(), url, detach, note);
        Self::of(dir, server)
    }

    fn of(dir: &KvDir, server: Result<EtcdServer, ServerError>) -> Result<Self> {
        let folder = dir.make_etcd()?;
        if server.is_err() {
            // One that was started and did not answer has been ended.
            Identity::forget(&folder)?;
        }
        let server = server.map_err(|error| match error {
            ServerError::Missing => anyhow::Error::new(Failure::new(
                error.to_string(),
                "apt-get install etcd-server, or use --etcd URLS of a running one",
            )),
            other => other.into(),
        })?;
        let own = Self {
            server: Some(server),
            folder,
        };
        if let Some(credentials) = dir.at_own_etcd().credentials()? {
            let open = Etcd::new(&own.url(), None)?;
            protect(&open.patient(ETCD_PATIENCE), &credentials)?;
        }
        Ok(own)
    }

    fn url(&self) -> String {
        let server = self.server.as_ref().expect("kept only by value");
        server.url().to_owned()
    }

    fn keep(mut self) {
        let server = self.server.take().expect("kept only once");
        server.detach();
    }
}

impl Drop for OwnEtcd {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            drop(server);
            if let Err(error) = Identity::forget(&self.folder) {
                tracing::warn!(error = cenote_cli::failure::chain(&error), "forget etcd");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Nobody knows whether it asks for the password: nodes would be started at one that asks
    /// nobody.
    #[test]
    fn an_etcd_that_is_silent_does_not_count_as_one_that_asks() {
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", mute.local_addr().unwrap());
        let credentials = Credentials {
            name: "root".to_owned(),
            password: "open sesame".to_owned(),
        };
        let silence = protect(&Etcd::new(&url, None).unwrap(), &credentials);
        assert!(silence.unwrap_err().is_silence());
    }
}
