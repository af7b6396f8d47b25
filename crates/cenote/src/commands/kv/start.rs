//! Starting the process of a node, and waiting until it says that others can find it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdout, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_fabric::{Host, HostPort, NoHostPort};
use serde::{Deserialize, Serialize};

use super::place::{Known, KvDir};
use crate::folder::Folder;
use crate::process::{self, Identity};

/// How long a node may take to register.
const START_LIMIT: Duration = Duration::from_secs(30);
/// What a node says, in its folder.
const LOG: &str = "log";
/// Where a node was to be found, for the next one of its name.
const ADDRESSES_FILE: &str = "addresses";

/// Where a node is found.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Addresses {
    /// By other nodes; the ports are found.
    pub listen: Host,
    /// By clients; with port 0 one is found.
    pub clients: HostPort,
}

/// As text, names as they were given.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Written {
    listen: String,
    clients: String,
}

impl TryFrom<Written> for Addresses {
    type Error = NoHostPort;

    fn try_from(written: Written) -> Result<Self, NoHostPort> {
        Ok(Self {
            listen: written.listen.parse()?,
            clients: written.clients.parse()?,
        })
    }
}

impl From<Addresses> for Written {
    fn from(addresses: Addresses) -> Self {
        Self {
            listen: addresses.listen.to_string(),
            clients: addresses.clients.to_string(),
        }
    }
}

impl Addresses {
    /// On loopback.
    pub fn local(clients_port: u16) -> Self {
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            listen: Host::Ip(listen),
            clients: SocketAddr::new(listen, clients_port).into(),
        }
    }

    /// Those of the node that last had a folder; `None`: there was none.
    pub fn load(folder: &Folder) -> Result<Option<Self>> {
        let text = folder.read(ADDRESSES_FILE)?;
        let found = text.map(|text| serde_json::from_str(&text)).transpose();
        found.with_context(|| folder.join(ADDRESSES_FILE).display().to_string())
    }

    fn save(&self, folder: &Folder) -> Result<()> {
        let text = serde_json::to_string(self)? + "\n";
        Ok(folder.write(ADDRESSES_FILE, &text)?)
    }
}

/// Nodes that are being started. Those still in it when it is dropped are stopped.
#[derive(Default)]
pub struct Starting {
    nodes: Vec<StartingNode>,
}

struct StartingNode {
    name: String,
    child: Child,
    announcement: BufReader<ChildStdout>,
    folder: Folder,
    at: Addresses,
}

impl Starting {
    /// Starts the node `name` of a cluster.
    pub fn start(
        &mut self,
        dir: &KvDir,
        name: &str,
        known: &Known,
        key: &Path,
        at: Addresses,
        flags: &[OsString],
    ) -> Result<()> {
        let folder = dir.make_node(name)?;
        at.save(&folder)?;
        let log = folder.empty_file(LOG)?;
        let program = std::env::current_exe().context("find this program's file")?;
        let mut command = Command::new(program);
        command
            .args(["kv", "node", "--name", name])
            .args(["--etcd", &known.etcd, "--cluster-name", &known.cluster])
            .args(["--listen", &at.listen.to_string()])
            .args(["--clients", &at.clients.to_string()])
            .args(flags)
            .arg("--key")
            .arg(key);
        let mut child = process::in_background(&mut command, log)
            .spawn()
            .with_context(|| format!("start node {name}"))?;
        let announcement = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let identity = Identity::of(child.id());
        self.nodes.push(StartingNode {
            name: name.to_owned(),
            child,
            announcement,
            folder: folder.clone(),
            at,
        });
        identity?.save(&folder)
    }

    /// Waits until all have said that they are ready and `then`, which gets where their clients
    /// connect, is content; the nodes live on without us.
    pub fn ready_when(
        mut self,
        stop: &AtomicBool,
        then: impl FnOnce(&[String]) -> Result<()>,
    ) -> Result<()> {
        let nodes = self.nodes.iter_mut();
        let clients: Result<Vec<String>> = nodes.map(|node| node.announced(stop)).collect();
        then(&clients?)?;
        self.nodes.clear();
        Ok(())
    }
}

impl StartingNode {
    /// Where it is found by clients, once it has said so.
    fn announced(&mut self, stop: &AtomicBool) -> Result<String> {
        let deadline = Instant::now() + START_LIMIT;
        let see = format!("see {}", self.folder.join(LOG).display());
        loop {
            if stop.load(Ordering::SeqCst) {
                bail!("interrupted; what was started is stopped");
            }
            if Instant::now() >= deadline {
                bail!(
                    "node {} was not ready within {START_LIMIT:?}; {see}",
                    self.name
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
        if line.starts_with(&format!("ready {} at ", self.name))
            && let Some((_, clients)) = line.trim_end().split_once(" for clients at ")
        {
            // The port that was found is the node's from now on, also when it comes back.
            let first = clients.split([',', ' ']).next().unwrap_or(clients);
            if let Ok(found) = first.parse::<SocketAddr>() {
                self.at.clients = self.at.clients.with_port(found.port());
                self.at.save(&self.folder)?;
            }
            return Ok(clients.to_owned());
        }
        let said = self.folder.read(LOG)?.unwrap_or_default();
        bail!(
            "node {} did not start; {see}:\n{}",
            self.name,
            said.trim_end()
        );
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // Nobody is to take over what it has.
            cenote_cli::child::end(&mut node.child, cenote_cli::child::Signal::INT);
            if let Err(error) = Identity::forget(&node.folder) {
                let error = cenote_cli::failure::chain(&error);
                tracing::warn!(node = node.name, error, "forget a process");
            }
        }
    }
}
