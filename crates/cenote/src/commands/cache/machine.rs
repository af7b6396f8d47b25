//! `cache machine`: what the manager of a cache runs to get a host process on its own machine, and to end it.
//!
//! The process outlives the manager. It is noted in `caches/NAME/machines/ORDER`, so whoever manages the cache
//! next ends it. The manager runs this as it runs the commands of a catalogue, within a limit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::providers::{confine, release_confined};
use cenote_cli::failure::DONE;
use cenote_cli::stdout;
use cenote_fabric::Address;

use super::super::host::announced_address;
use crate::caches::{CacheDir, MACHINES};
use crate::folder::Folder;
use crate::place::{Loaded, Which};
use crate::process::{self, Identity};

#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_enum)]
    order: Order,
    /// Name of the cache
    name: String,
    #[command(flatten)]
    which: Which,
}

/// What is wanted of it; the rest is in the environment, as for the commands of a catalogue.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Order {
    /// Start a host
    Get,
    /// Stop it
    Release,
}

const SOCKET: &str = "socket";
/// Left beside it by a host that could not end itself.
const SOCKET_LOCK: &str = "socket.lock";
const LOG: &str = "log";
/// On which machine it runs, and since which boot: the folder may be seen from others.
const MACHINE: &str = "machine";
/// How long a host may take to announce itself.
const START_LIMIT: Duration = Duration::from_secs(40);
/// How long one that was told to end may take; then it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);
/// A host that somebody else ends gives its regions as long to leave.
const GRACE: &str = "30s";
/// Where hosts get a cgroup of their own, where that is allowed.
const CGROUPS: &str = "/sys/fs/cgroup";

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    let order = variable("CENOTE_ORDER")?;
    // The cache's identity is in front: the folder is its own.
    let (_, number) = order.split_once('-').context("CENOTE_ORDER")?;
    let is_number = |one: char| one.is_ascii_digit() || one == '-';
    if number.is_empty() || !number.chars().all(is_number) {
        bail!("CENOTE_ORDER={order}: not an order of a cache");
    }
    let machines = cache.folder().make(MACHINES)?;
    let name = format!("{}-m{number}", args.name);
    match args.order {
        Order::Get => get(&loaded, &cache, &machines, number, &name),
        Order::Release => release(&machines, number, &name),
    }
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| name.to_owned())
}

/// A boot of a machine: one line of a file.
#[derive(Debug)]
struct Boot {
    id: String,
    /// The machine's name for good; `None` where it has none that is surely its own.
    machine: Option<String>,
}

impl Boot {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            id: format!("{:032x}", cenote_fabric::machine_id()),
            machine: lasting_name(
                read("/etc/machine-id").trim(),
                read("/proc/sys/kernel/hostname").trim(),
            ),
        }
    }

    fn parse(line: &str) -> Self {
        let (id, machine) = match line.trim().split_once(' ') {
            Some((id, machine)) => (id, Some(machine.to_owned())),
            None => (line.trim(), None),
        };
        Self {
            id: id.to_owned(),
            machine,
        }
    }

    /// Whether nothing that ran in it runs elsewhere: it is this one, or an earlier one of this
    /// machine.
    fn is_of_here(&self) -> bool {
        let this = Self::this();
        self.id == this.id || self.machine.is_some() && self.machine == this.machine
    }

    /// What an operator finds its machine by, where that has a lasting name.
    fn hostname(&self) -> Option<&str> {
        let (machine_id, hostname) = self.machine.as_deref()?.split_once(' ')?;
        lasting_name(machine_id, hostname).map(|_| hostname)
    }
}

/// A machine's name for good. Copies of one image share their machine-id, containers of one machine
/// perhaps too; with a host name that nobody gave them they would be one.
fn lasting_name(machine_id: &str, hostname: &str) -> Option<String> {
    let is_none_yet = machine_id.is_empty() || machine_id == "uninitialized";
    let is_given =
        !hostname.is_empty() && hostname != "(none)" && !hostname.starts_with("localhost");
    (!is_none_yet && is_given).then(|| format!("{machine_id} {hostname}"))
}

impl std::fmt::Display for Boot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.id)?;
        match &self.machine {
            Some(machine) => write!(f, " {machine}"),
            None => Ok(()),
        }
    }
}

fn number_of(name: &str) -> Result<u64> {
    variable(name)?.parse().with_context(|| name.to_owned())
}

fn get(
    loaded: &Loaded,
    cache: &CacheDir,
    machines: &Folder,
    number: &str,
    name: &str,
) -> Result<u8> {
    let folder = machines.make(number)?;
    let (memory, slab) = (
        number_of("CENOTE_MEMORY_BYTES")?,
        number_of("CENOTE_SLAB_BYTES")?,
    );
    let cores = number_of("CENOTE_CORES")?;
    let log = folder.empty_file(LOG)?;
    let mut command = Command::new(std::env::current_exe().context("find this program's file")?);
    command
        .args([
            "host",
            "--name",
            name,
            "--listen",
            &address(cache, &folder)?,
        ])
        .args(["--memory", &format!("{}K", memory >> 10)])
        .args(["--slab", &format!("{}K", slab >> 10)])
        .args(["--cache-threads", &cores.to_string(), "--grace", GRACE])
        .arg("--key")
        .arg(loaded.dir.root().join(&loaded.cluster.key));
    let mut child = process::in_background(&mut command, log)
        .spawn()
        .context("start a host")?;
    let noted = folder
        .write(MACHINE, &format!("{}\n", Boot::this()))
        .map_err(anyhow::Error::from)
        .and_then(|()| Identity::of(child.id())?.save(&folder));
    if let Err(error) = noted {
        // Nobody else would ever find it.
        cenote_cli::child::end(&mut child, cenote_cli::child::Signal::KILL);
        return Err(error.context(format!("note host {name}")));
    }
    confine(CGROUPS.as_ref(), name, child.id(), memory, cores);
    let mut said = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    if process::wait_readable(said.get_ref(), Instant::now() + START_LIMIT)? {
        said.read_line(&mut line)?;
    }
    let Some(address) = announced_address(&line, name) else {
        cenote_cli::child::end(&mut child, cenote_cli::child::Signal::KILL);
        let text = folder.read(LOG)?.unwrap_or_default();
        bail!(
            "host {name} did not start: {}",
            text.lines().last().unwrap_or("its log is empty")
        );
    };
    let machine = serde_json::json!({ "id": name, "address": address, "domain": name });
    writeln!(stdout::lock(), "{machine}")?;
    Ok(DONE)
}

/// Over shared memory, unless the cache has clients elsewhere.
fn address(cache: &CacheDir, folder: &Folder) -> Result<String> {
    let listen = cache.spec()?.listen;
    let tcp = listen.iter().find(|address| address.starts_with("tcp:"));
    Ok(match tcp.and_then(|address| address.rsplit_once(':')) {
        Some((place, _)) => format!("{place}:0"),
        None => Address::Shm(folder.join(SOCKET)).to_string(),
    })
}

/// Ends what an order got; nothing is there where it got nothing, or it was ended before.
fn release(machines: &Folder, number: &str, name: &str) -> Result<u8> {
    let Some(folder) = machines.sub(number)? else {
        return Ok(DONE);
    };
    // Of an earlier boot of this machine no process is found below: it went with that.
    if let Some(noted) = folder.read(MACHINE)?.map(|noted| Boot::parse(&noted))
        && !noted.is_of_here()
    {
        match noted.hostname() {
            Some(place) => {
                bail!("host {name} runs on machine {place}: run cenote cache machine release there")
            }
            // Nobody can say which machine that was.
            None => bail!(
                "host {name} was started in another boot, of this machine or of another one: run \
                 cenote cache machine release there; if that machine was started again since, \
                 remove {}",
                folder.path().display()
            ),
        }
    }
    let identity = Identity::load(&folder)?;
    if let Some(host) = identity
        .map(|identity| identity.open())
        .transpose()?
        .flatten()
    {
        host.signal(libc::SIGTERM)?;
        if !host.wait(Instant::now() + END_LIMIT)? {
            host.signal(libc::SIGKILL)?;
            if !host.wait(Instant::now() + END_LIMIT)? {
                bail!("host {name} was killed but has not exited");
            }
        }
    }
    release_confined(CGROUPS.as_ref(), name);
    for file in [SOCKET, SOCKET_LOCK, "pid", "started", LOG, MACHINE] {
        folder.remove(file)?;
    }
    machines.remove_folder(number)?;
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_lasting_name_only_where_somebody_gave_it_one() {
        let named = lasting_name("0f1e", "store1");
        assert_eq!(named.as_deref(), Some("0f1e store1"));
        for (machine_id, hostname) in [
            ("", "store1"),
            ("uninitialized", "store1"),
            ("0f1e", ""),
            ("0f1e", "(none)"),
            ("0f1e", "localhost"),
            ("0f1e", "localhost.localdomain"),
        ] {
            assert_eq!(lasting_name(machine_id, hostname), None);
        }
    }

    #[test]
    fn an_operator_is_told_the_host_name_where_it_is_noted() {
        assert_eq!(Boot::parse("77 0f1e store1\n").hostname(), Some("store1"));
        for unnamed in ["77\n", "77 0f1e localhost\n"] {
            assert_eq!(Boot::parse(unnamed).hostname(), None);
        }
    }
}
