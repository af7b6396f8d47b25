//! `cenote kv up`: a cluster on this machine: etcd, and each node a process of its own.
//!
//! What was started is stopped again unless every node sees all others and every group serves.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_kv::cluster::config::{ClusterConfig, Place, REGION_BYTES, Scheme};
use cenote_kv::cluster::etcd::{Etcd, EtcdServer, ServerError};
use cenote_kv::cluster::layout::Code;
use cenote_kv::group::member::Service;

use super::place::{AtEtcd, Found, Known, KvDir, NAME, load_key};
use super::serving::Serving;
use super::start::{Addresses, Starting};
use super::status;
use crate::failure::{DONE, Failure};
use crate::process::{self, Identity};
use crate::signals;
use crate::size::Size;

/// How long nodes may take to see each other, and groups to begin.
const SERVE_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether they do.
const STEP: Duration = Duration::from_millis(50);

/// `kv up` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote kv up --nodes 5 --groups 5 --code 3+2 --memory 1G --dir /tmp/well
  cenote kv up --nodes 5 --port 11211 --lanes 2 --dir /tmp/well
  cenote kv up --nodes 3 --groups 3 --code 1+2 --replicated --dir /tmp/well
  cenote kv up --nodes 7 --groups 14 --code 3+2 --seal --dir /tmp/well

A group has K slots for data and M for parity, written K+M, each on a node of its own: any M nodes
may be lost. Groups a multiple of nodes give all nodes the same work. etcd comes with the Debian
package etcd-server.")]
pub struct Args {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=256))]
    nodes: u32,
    /// How many groups [default: as many as nodes]
    #[arg(long, value_name = "N")]
    groups: Option<usize>,
    /// Data and parity slots of a group
    #[arg(long, value_name = "K+M", default_value = "3+2")]
    code: Code,
    /// Parity slots hold copies instead of a code; K is 1
    #[arg(long)]
    replicated: bool,
    /// Memory of each node's whole process
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Port of the first node for clients; the second's is the next one, and so on [default: found]
    #[arg(long, value_name = "BASE", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Threads of each node that serve, and connections between two nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    lanes: usize,
    /// For comparison: with `blocked` changes wait while anything of their group is recovered
    #[arg(long, value_name = "online|blocked", default_value = "online", value_parser = service, hide = true)]
    recovery: Service,
    /// Encrypt what nodes say to each other
    #[arg(long)]
    seal: bool,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = NAME)]
    cluster: String,
    /// Addresses of an etcd that runs, with commas [default: one is started]
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    #[command(flatten)]
    at_etcd: AtEtcd,
    /// Folder for the cluster's files; made where there is none
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
    #[command(flatten)]
    serving: Serving,
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = signals::on_stop(|| ())?;
    let config = config(args)?;
    let place = Place::of(&args.cluster)?;
    let dir = KvDir::create(&args.dir)?;
    let _lock = dir.lock()?;
    refuse_running(&dir)?;
    let key_file = dir.key_file();
    if !key_file.exists() {
        super::super::key::make(&key_file)?;
    }
    let key = load_key(&key_file)?;

    let server = match &args.etcd {
        Some(_) => None,
        None => Some(OwnEtcd::start(&dir)?),
    };
    let url = args.etcd.clone().or(server.as_ref().map(OwnEtcd::url));
    let known = Known {
        cluster: args.cluster.clone(),
        etcd: url.expect("one of the two is there"),
    };
    let etcd = Etcd::new(&known.etcd, args.at_etcd.credentials()?)?;
    place.found(&etcd, &config)?;
    // Numbers in the order of the names, so that the plan reads as it is drawn.
    for name in &config.nodes {
        place.claim_number(&etcd, name)?;
    }
    let mut starting = Starting::default();
    for (index, name) in config.nodes.iter().enumerate() {
        let at = Addresses::local(args.port.map_or(0, |base| base + index as u16));
        let flags = args.serving.flags(&dir.node(name), &args.at_etcd)?;
        starting.start(&dir, name, &known, &key_file, at, &flags)?;
    }
    let found = Found {
        known: known.clone(),
        place,
        etcd,
        key,
        key_file,
    };
    let mut clients = Vec::new();
    starting.ready_when(&stop, |said| {
        clients = said.to_vec();
        all_serve(&found, &config, &stop)
    })?;
    dir.set_known(&known)?;
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
    println!("Clients of memcached may use any of");
    for (name, address) in config.nodes.iter().zip(&clients) {
        let identity = Identity::load(&dir.node(name))?;
        let pid = identity.map_or(String::new(), |identity| format!("  pid {}", identity.pid));
        println!("  {name}  {address}{pid}");
    }
    let dir = dir.root().display();
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
        _ => Err("it is online or blocked".to_owned()),
    }
}

fn config(args: &Args) -> Result<ClusterConfig> {
    let nodes = args.nodes as usize;
    if let Some(base) = args.port
        && usize::from(base) + nodes > usize::from(u16::MAX) + 1
    {
        let what = format!(
            "{nodes} ports from {base} on: there are none above {}",
            u16::MAX
        );
        return Err(Failure::usage(what, "a smaller --port").into());
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
        sealed: args.seal,
        service: args.recovery,
        nodes: (0..nodes).map(|index| format!("n{index:02}")).collect(),
    };
    if let Some(footprint) = config.memory().1 {
        config.region_bytes = footprint.region_cap(0).max(config.region_bytes);
    }
    // What the document may not say is the arguments' fault.
    ClusterConfig::parse("the cluster", &config.to_bytes())
        .map_err(|error| Failure::usage(error.to_string(), "cenote kv up --help").into())
}

/// Traces of a cluster that no longer runs are cleared; one that runs is let be.
fn refuse_running(dir: &KvDir) -> Result<()> {
    let mut folders: Vec<PathBuf> = dir
        .node_names()?
        .iter()
        .map(|name| dir.node(name))
        .collect();
    folders.push(dir.etcd());
    let mut alive = 0;
    for folder in &folders {
        if let Some(identity) = Identity::load(folder)? {
            alive += usize::from(identity.open()?.is_some());
        }
    }
    if alive > 0 {
        let root = dir.root().display();
        let what = format!("{root}: {alive} processes of a cluster run here");
        return Err(Failure::new(what, format!("cenote kv down --dir {root}")).into());
    }
    for folder in &folders {
        Identity::forget(folder)?;
    }
    dir.forget_known()
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

/// An etcd of ours; stopped again unless it is kept.
struct OwnEtcd {
    server: Option<EtcdServer>,
    folder: PathBuf,
}

impl OwnEtcd {
    fn start(dir: &KvDir) -> Result<Self> {
        let folder = dir.etcd();
        // What it kept of an earlier cluster is of no use: the values were in its nodes' memory.
        let data = folder.join("data");
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| data.display().to_string());
            }
            _ => {}
        }
        let server = EtcdServer::start(&folder, |command| {
            process::detach(command);
        });
        let server = server.map_err(|error| match error {
            ServerError::Missing => anyhow::Error::new(Failure::new(
                error.to_string(),
                "apt-get install etcd-server, or --etcd URLS of one that runs",
            )),
            other => other.into(),
        })?;
        let own = Self {
            server: Some(server),
            folder,
        };
        let process = own.server.as_ref().expect("just started").process();
        Identity::of(process)?.save(&own.folder)?;
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
                tracing::warn!(error = format!("{error:#}"), "forget etcd");
            }
        }
    }
}
