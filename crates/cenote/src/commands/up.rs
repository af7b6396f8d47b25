//! `cenote up`: a cluster on this machine, each host a process of its own.
//!
//! A host announces itself by one line on its standard output, a pipe that ends when
//! the host does: readiness and early death are both seen at once. What was started
//! is stopped again unless every host answers.

mod own_machine;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_cli::transport::Transport;
use cenote_cli::{progress, signals};
use cenote_fabric::rdma::{self, Support};
use cenote_fabric::{ClusterKey, WireProtection};
use cenote_host::slab_bytes_default;
use cenote_pool::{Cluster, HostEntry};

use super::host::room;
use crate::folder::Folder;
use crate::place::{CLUSTER_FILE, ClusterDir, KEY_FILE, load_key, read_cluster};
use crate::process::{self, Identity};

use crate::ask;
use crate::shell::quoted;
use own_machine::OwnMachine;

/// How long a host may take to announce itself: locking and huge pages take seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a host that has announced itself may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long a host that does not answer may take to have ended.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Longest path of a unix socket, without its closing zero.
const SOCKET_PATH_MAX: usize = 107;
/// What a host says, in its folder.
const LOG: &str = "log";
/// Of a host's folder: modules of procedures, for the host's next process.
const MODULES: &str = "modules";
/// Where a host listens, in its folder.
pub(super) const SOCKET: &str = "socket";
/// Lines of a log that an error shows.
const TAIL_LINES: usize = 20;

/// `up` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote up --hosts 12 --memory 512M --dir ~/.cenote/well
  cenote up --hosts 3 --memory 64M --transport tcp --dir ~/.cenote/well
  cenote up --hosts 6 --memory 256M --headroom 25% --dir ~/.cenote/well
  cenote status --dir ~/.cenote/well
  cenote down --dir ~/.cenote/well

The same command restarts hosts that have died, empty and at their old addresses.

With --headroom each host gets a simulated machine: hosts/NAME/meminfo in the folder states its total
and available memory, and may be rewritten to put the host under pressure. Percentages are of
--memory.")]
pub struct Args {
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=256))]
    hosts: u32,
    /// Memory that each host lends
    #[arg(long, value_name = "SIZE")]
    memory: Size,
    /// Size of a slab [default: 1 GiB, at most 1/64 of the memory]
    #[arg(long, value_name = "SIZE")]
    slab: Option<Size>,
    /// How clients reach the hosts
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Protection of pages over tcp: encrypted; authenticated (readable, but not changed
    /// unnoticed); or plain, for private networks. Hosts refuse less; it is also the clients'
    /// default [default: encrypted]
    #[arg(long, value_name = "HOW")]
    page_traffic: Option<WireProtection>,
    /// On SIGTERM hosts tell clients to move their data, and exit once they have or after this time
    /// [default: 0s]
    #[arg(long, value_name = "DURATION")]
    grace: Option<Span>,
    #[command(flatten)]
    room: room::Lending,
    /// Folder for the cluster's files; created if missing
    #[arg(long, value_name = "DIR", env = "CENOTE_DIR")]
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<u8> {
    let stop = signals::on_stop(|| ())?;
    // Before there is a folder.
    check_slabs(args.memory, args.slab)?;
    let dir = ClusterDir::create(&args.dir)?;
    let _lock = dir.lock()?;
    check_socket_paths(&dir, args)?;
    match find(&dir, args)? {
        Found::Nothing => {}
        Found::Whole => {
            println!(
                "already up: {} hosts, {}",
                args.hosts,
                dir.cluster_file().display()
            );
            return Ok(DONE);
        }
        Found::Ended(ended) => return start_again(&dir, args, &ended, &stop),
    }
    check_memory(args, args.hosts.into())?;
    let key = key(&dir)?;
    let mut started = Started {
        dir: dir.clone(),
        hosts: Vec::new(),
    };
    let bar = progress::steps(u64::from(args.hosts), "hosts ready");
    for index in 0..args.hosts {
        let name = format!("h{index:02}");
        let address = match args.transport {
            Transport::Shm => format!("shm:{}/hosts/{name}/{SOCKET}", dir.root().display()),
            Transport::Tcp => "tcp:127.0.0.1:0".to_owned(),
            Transport::Rdma => rdma_address()?,
        };
        started.start(&name, &address, args)?;
    }
    let mut entries = Vec::new();
    for host in &mut started.hosts {
        let address = host.announced(&stop)?;
        entries.push(HostEntry {
            name: host.name.clone(),
            address,
            domain: host.name.clone(),
            power: None,
            retired: false,
            lends: true,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    started.answer(&entries, &key)?;
    let cluster = Cluster {
        key: KEY_FILE.into(),
        page_traffic: args.page_traffic.map(|how| how.name().to_owned()),
        hosts: entries,
    };
    dir.folder().write(CLUSTER_FILE, &cluster.to_toml())?;
    started.hosts.clear();
    println!(
        "up: {} hosts lend {} each, {}",
        args.hosts,
        args.memory,
        dir.cluster_file().display()
    );
    Ok(DONE)
}

/// What of the cluster that is asked for is there.
enum Found {
    /// None of it.
    Nothing,
    /// All of it runs.
    Whole,
    /// These hosts of it have ended.
    Ended(Vec<HostEntry>),
}

/// Starts hosts that have ended where they were; what they held is gone.
fn start_again(
    dir: &ClusterDir,
    args: &Args,
    ended: &[HostEntry],
    stop: &AtomicBool,
) -> Result<u8> {
    check_memory(args, ended.len() as u64)?;
    let key = load_key(&dir.key_file())?;
    let mut started = Started {
        dir: dir.clone(),
        hosts: Vec::new(),
    };
    for entry in ended {
        started.start(&entry.name, &entry.address, args)?;
    }
    for host in &mut started.hosts {
        host.announced(stop)?;
    }
    started.answer(ended, &key)?;
    started.hosts.clear();
    let names: Vec<&str> = ended.iter().map(|entry| entry.name.as_str()).collect();
    println!(
        "up: {} of {} hosts had died and were restarted empty: {}",
        ended.len(),
        args.hosts,
        names.join(", ")
    );
    Ok(DONE)
}

/// Refuses memory that has no room for a slab, which no host would start with.
fn check_slabs(memory: Size, slab: Option<Size>) -> Result<()> {
    let default = || Size(slab_bytes_default(memory.bytes()));
    let slab = slab.unwrap_or_else(default);
    if memory >= slab {
        return Ok(());
    }
    let what = format!("--memory {memory}: less than one slab, of {slab}");
    let remedy = format!("use --memory {slab} or more, or a smaller --slab");
    Err(Failure::usage(what, remedy).into())
}

fn check_socket_paths(dir: &ClusterDir, args: &Args) -> Result<()> {
    let last = format!("hosts/h{:02}/socket", args.hosts - 1);
    let longest = dir.folder().join(&last);
    let len = longest.as_os_str().len();
    if args.transport == Transport::Shm && len > SOCKET_PATH_MAX {
        return Err(Failure::usage(
            format!(
                "{}: {len} bytes, but a socket path has at most {SOCKET_PATH_MAX}",
                longest.display()
            ),
            "use a folder with a shorter path",
        )
        .into());
    }
    Ok(())
}

/// How much of the very cluster that is asked for runs here. Traces of one that no longer
/// runs are cleared.
fn find(dir: &ClusterDir, args: &Args) -> Result<Found> {
    let hosts = dir.hosts()?;
    let mut running = BTreeMap::new();
    for (name, folder) in &hosts {
        if let Some(identity) = Identity::load(folder)?
            && let Some(process) = identity.open()?
        {
            running.insert(name.as_str(), process);
        }
    }
    let alive = running.len();
    let down_first = || format!("cenote down --dir {}", quoted(dir.root()));
    let is_known = refuse_foreign(dir)?;
    let clear = || {
        if is_known {
            eprintln!(
                "{}: the earlier cluster here is no longer running; starting again",
                dir.root().display()
            );
        }
        for (_, folder) in &hosts {
            Identity::forget(folder)?;
        }
        dir.folder().remove(CLUSTER_FILE)?;
        Ok(Found::Nothing)
    };
    if alive == 0 {
        return clear();
    }
    if !is_known {
        let what = format!(
            "{}: {alive} hosts of an incomplete start are running here",
            dir.root().display()
        );
        return Err(Failure::new(what, down_first()).into());
    }
    let cluster = read_cluster(dir, CLUSTER_FILE)?;
    let total = cluster.hosts.len();
    let runs = |entry: &HostEntry| running.contains_key(entry.name.as_str());
    let (up, mut ended): (Vec<HostEntry>, Vec<HostEntry>) =
        cluster.hosts.into_iter().partition(runs);
    let key = load_key(&dir.key_file())?;
    let mut first = None;
    for (entry, answer) in up.iter().zip(ask::all(&up, &key, ANSWER_LIMIT)) {
        match answer {
            Ok(status) => {
                first.get_or_insert((&entry.address, status));
            }
            // One that was killed a moment ago is still giving its memory back.
            Err(_) if running[entry.name.as_str()].wait(Instant::now() + END_LIMIT)? => {
                ended.push(entry.clone());
            }
            Err(error) => return Err(error).with_context(|| format!("host {}", entry.name)),
        }
    }
    let Some((address, first)) = first else {
        // All that ran has ended since.
        return clear();
    };
    let own = OwnMachine::of(args)?;
    let headroom_bytes = own.map_or(0, |own| own.headroom_bytes);
    let transport = match address.split_once(':') {
        Some(("tcp", _)) => Transport::Tcp,
        Some(("rdma", _)) => Transport::Rdma,
        _ => Transport::Shm,
    };
    let same = total == args.hosts as usize
        && transport == args.transport
        && first.memory_bytes == args.memory.bytes()
        && cluster.page_traffic.as_deref() == args.page_traffic.map(WireProtection::name)
        && first.pressure.watched == own.is_some()
        && first.pressure.headroom_bytes == headroom_bytes
        && args
            .slab
            .is_none_or(|slab| slab.bytes() == first.slab_bytes);
    if !same {
        let what = format!(
            "{}: another cluster is up here: {total} hosts, {} each, {transport}",
            dir.root().display(),
            Size(first.memory_bytes),
        );
        return Err(Failure::new(what, down_first()).into());
    }
    Ok(match ended.is_empty() {
        true => Found::Whole,
        false => Found::Ended(ended),
    })
}

/// Refuses a cluster file that `up` did not write: it is not ours to remove, nor are the volumes of
/// its hosts. Whether there is a cluster file.
///
/// # Errors
/// It lists a host that `up` did not start here, or makes no sense.
pub(super) fn refuse_foreign(dir: &ClusterDir) -> Result<bool> {
    if !dir.folder().has(CLUSTER_FILE)? {
        return Ok(false);
    }
    for host in read_cluster(dir, CLUSTER_FILE)?.hosts {
        if dir.host(&host.name)?.is_some() && is_ours(&host) {
            continue;
        }
        let file = dir.cluster_file();
        return Err(Failure::new(
            format!(
                "{}: this cluster was not started by cenote up: host {} is at {}",
                file.display(),
                host.name,
                host.address
            ),
            format!(
                "use another --dir; or stop its hosts where they run, and move {} away",
                quoted(&file)
            ),
        )
        .into());
    }
    Ok(true)
}

/// Whether `up` may have given a host its address. A folder that it once made may since have got a
/// cluster file with the same names and hosts elsewhere.
fn is_ours(host: &HostEntry) -> bool {
    match host.address.split_once(':') {
        Some(("tcp", at)) => at.starts_with("127.0.0.1:"),
        Some(("shm", path)) => path.ends_with(&format!("/hosts/{}/{SOCKET}", host.name)),
        // At an address of this machine, which another card may have had by then.
        _ => true,
    }
}

fn rdma_address() -> Result<String> {
    let support = rdma::support();
    if let Support::Devices(devices) = &support
        && let Some(ip) = devices.iter().flat_map(|device| &device.addresses).next()
    {
        return Ok(format!("rdma:{ip}:0"));
    }
    Err(Failure::new(
        format!("RDMA cannot be used here: {support}"),
        "cenote fabric list shows which transports can",
    )
    .into())
}

fn check_memory(args: &Args, hosts: u64) -> Result<()> {
    let Some(free) = cenote_host::memory_left_bytes() else {
        tracing::warn!("the kernel does not report free memory; continuing");
        return Ok(());
    };
    let fits = args
        .memory
        .bytes()
        .checked_mul(hosts)
        .is_some_and(|sum| sum <= free);
    if fits {
        return Ok(());
    }
    let at_most = Size((free / hosts) >> 20 << 20);
    Err(Failure::new(
        format!(
            "{hosts} hosts with {} each do not fit: {} free on this machine",
            args.memory,
            Size(free).rounded()
        ),
        format!("use --memory {at_most} or fewer --hosts"),
    )
    .into())
}

fn key(dir: &ClusterDir) -> Result<ClusterKey> {
    if dir.folder().has(KEY_FILE)? {
        return load_key(&dir.key_file());
    }
    super::key::make(&dir.key_file())
}

/// Hosts that are being started. Those still in it when it is dropped are stopped.
struct Started {
    dir: ClusterDir,
    hosts: Vec<Starting>,
}

struct Starting {
    name: String,
    child: Child,
    announcement: BufReader<ChildStdout>,
    folder: Folder,
}

impl Started {
    fn start(&mut self, name: &str, address: &str, args: &Args) -> Result<()> {
        let folder = self.dir.make_host(name)?;
        let log = folder.empty_file(LOG)?;
        let program = std::env::current_exe().context("find this program's file")?;
        let mut command = Command::new(program);
        command
            .arg("host")
            .args(["--name", name, "--domain", name])
            .args(["--listen", address])
            .args(["--memory", &args.memory.to_string()])
            .arg("--key")
            .arg(self.dir.key_file())
            .arg("--modules")
            .arg(folder.make(MODULES)?.path());
        if let Some(slab) = args.slab {
            command.args(["--slab", &slab.to_string()]);
        }
        if let Some(grace) = args.grace {
            command.args(["--grace", &grace.to_string()]);
        }
        if let Some(how) = args.page_traffic {
            command.args(["--page-traffic", how.name()]);
        }
        if let Some(own) = OwnMachine::of(args)? {
            folder.write(own_machine::FILE, &own.meminfo())?;
            let file = folder.join(own_machine::FILE);
            command.args(own.flags(args)).arg("--meminfo").arg(file);
        }
        let mut child = process::in_background(&mut command, log)
            .spawn()
            .with_context(|| format!("start host {name}"))?;
        let announcement = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let identity = Identity::of(child.id());
        self.hosts.push(Starting {
            name: name.to_owned(),
            child,
            announcement,
            folder: folder.clone(),
        });
        identity?.save(&folder)
    }

    /// Asks every host once, by the protocol that clients use.
    fn answer(&self, entries: &[HostEntry], key: &ClusterKey) -> Result<()> {
        for (host, answer) in self.hosts.iter().zip(ask::all(entries, key, ANSWER_LIMIT)) {
            answer.with_context(|| format!("host {} does not answer{}", host.name, host.tail()))?;
        }
        Ok(())
    }
}

impl Starting {
    /// Waits for the host's line; the address it listens on.
    fn announced(&mut self, stop: &AtomicBool) -> Result<String> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if stop.load(Ordering::SeqCst) {
                bail!("interrupted; the hosts started so far are stopped");
            }
            if Instant::now() >= deadline {
                bail!(
                    "host {} was not ready within {START_LIMIT:?}{}",
                    self.name,
                    self.tail()
                );
            }
            // Short steps, to see the stop flag; the line itself wakes us at once.
            let step = deadline.min(Instant::now() + Duration::from_millis(100));
            if process::wait_readable(self.announcement.get_ref(), step)? {
                break;
            }
        }
        let mut line = String::new();
        self.announcement.read_line(&mut line)?;
        match super::host::announced_address(&line, &self.name) {
            Some(address) => Ok(address.to_owned()),
            None => bail!("host {} did not start{}", self.name, self.tail()),
        }
    }

    /// The end of the host's log, as a continuation of an error.
    fn tail(&self) -> String {
        let log = self.folder.join(LOG);
        let text = match self.folder.read(LOG) {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => return format!("; its log cannot be read: {error}"),
        };
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return format!("; its log {} is empty", log.display());
        }
        let from = lines.len().saturating_sub(TAIL_LINES);
        format!(
            "; the end of {}:\n  {}",
            log.display(),
            lines[from..].join("\n  ")
        )
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Children of ours that are not reaped yet: their numbers cannot be reused.
        for host in &mut self.hosts {
            if let Err(error) = host.child.kill().and_then(|()| host.child.wait()) {
                tracing::warn!(host = host.name, %error, "stop host");
            }
            let cleared =
                Identity::forget(&host.folder).and_then(|()| Ok(host.folder.remove(SOCKET)?));
            if let Err(error) = cleared {
                tracing::warn!(
                    host = host.name,
                    error = cenote_cli::failure::chain(&error),
                    "clear host"
                );
            }
        }
    }
}
