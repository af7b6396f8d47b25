//! Servers under load: how each is told on the command line, started, found, killed and ended.
//!
//! A [`Server`] is one store: a process, several over which clients spread keys, or a group of
//! nodes any of which answers for all keys. [`Processes`](super::processes::Processes) knows the processes of each node, so that
//! the same code measures their time and memory and kills one of them.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_cli::program;
use cenote_fabric::HostPort;

use super::load::Route;
use super::wire::Protocol;

/// A store to be measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Server {
    /// As in a row.
    pub name: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// What it keeps of a value.
    pub redundancy: Redundancy,
    /// Where it comes from.
    pub start: Start,
    /// Which of its nodes is asked for a key.
    pub route: Route,
}

/// What a store keeps of each value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Redundancy {
    /// The value.
    None,
    /// So many copies.
    Copies(u32),
    /// Its part of so many parities, for so many partitions.
    Coded {
        /// Partitions.
        k: u32,
        /// Parities.
        m: u32,
    },
}

impl Redundancy {
    /// Bytes that a byte of a value takes at least.
    #[must_use]
    pub fn factor(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Copies(copies) => f64::from(copies),
            Self::Coded { k, m } => f64::from(k + m) / f64::from(k),
        }
    }

    /// Nodes that may be lost without a value.
    #[must_use]
    pub fn losses_max(self) -> usize {
        match self {
            Self::None => 0,
            Self::Copies(copies) => copies as usize - 1,
            Self::Coded { m, .. } => m as usize,
        }
    }
}

/// Where a store comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Start {
    /// So many processes of this command, in which `{port}` and `{mib}` stand for what they say.
    Processes {
        /// Program and arguments.
        command: Vec<String>,
        /// Each with a port of its own; clients spread the keys.
        count: usize,
    },
    /// A command that starts nodes and tells of each on a line with its address and `pid NUMBER`,
    /// and one that ends them. In both `{dir}` stands for a folder of their own.
    Group {
        /// Program and arguments.
        up: Vec<String>,
        /// Likewise; with no words the nodes are killed.
        down: Vec<String>,
        /// Prints what nodes tell of themselves, as `cenote kv status --json` does; may have no words.
        status: Vec<String>,
    },
    /// Nodes that run already and are left running.
    Running(Vec<(SocketAddr, Vec<u32>)>),
}

/// Builds a command out of words.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Server {
    /// Debian's memcached with one worker thread.
    #[must_use]
    pub fn memcached() -> Self {
        let command = "memcached -u root -l 127.0.0.1 -p {port} -U 0 -m {mib} -t 1";
        Self::of_processes("memcached -t 1", Protocol::Memcached, words(command))
    }

    /// Redis, which writes nothing to disk.
    #[must_use]
    pub fn redis() -> Self {
        let command = "redis-server --bind 127.0.0.1 --port {port} --maxmemory {mib}mb \
                       --appendonly no --loglevel warning --save";
        let mut command = words(command);
        command.push(String::new());
        Self::of_processes("redis", Protocol::Redis, command)
    }

    /// Ours, for one node, from the folder of the running program.
    ///
    /// # Errors
    /// Where that folder is, cannot be told.
    pub fn ours() -> Result<Self> {
        let program = program::this()?.with_file_name(OURS);
        let mut command = vec![program.display().to_string()];
        command.extend(words("-u root -l 127.0.0.1 -p {port} -U 0 -m {mib} -t 1"));
        let name = format!("{OURS} -t 1");
        Ok(Self::of_processes(&name, Protocol::Memcached, command))
    }

    /// Ours, five nodes with five groups of a code, or of copies. Where it is `blocked` changes wait
    /// for recoveries.
    ///
    /// # Errors
    /// The path of the running program cannot be told.
    pub fn our_cluster(redundancy: Redundancy, is_blocked: bool) -> Result<Self> {
        let program = program::cenote()?;
        let (mut name, mut scheme) = match redundancy {
            Redundancy::Coded { k, m } => (format!("ours-{k}+{m}"), format!("{k}+{m}")),
            Redundancy::Copies(copies) => (
                format!("ours-{copies}x"),
                format!("1+{} --replicated", copies - 1),
            ),
            Redundancy::None => bail!("a cluster keeps more than the values"),
        };
        if is_blocked {
            name += BLOCKED;
            scheme += " --recovery blocked";
        }
        let command = |rest: &str| {
            let mut command = vec![program.display().to_string()];
            command.extend(words(rest));
            command
        };
        let up = format!(
            "kv up --nodes {NODES} --groups {NODES} --code {scheme} --memory {{mib}}M --dir {{dir}}"
        );
        Ok(Self {
            name,
            protocol: Protocol::Memcached,
            redundancy,
            start: Start::Group {
                up: command(&up),
                down: command("kv down --dir {dir}"),
                status: command("kv status --json --dir {dir}"),
            },
            route: Route::ByMap,
        })
    }

    fn of_processes(name: &str, protocol: Protocol, command: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            protocol,
            redundancy: Redundancy::None,
            start: Start::Processes { command, count: 1 },
            route: Route::Any,
        }
    }

    /// Whether its nodes can be asked what they take over.
    pub(super) fn tells(&self) -> bool {
        matches!(&self.start, Start::Group { status, .. } if !status.is_empty())
    }
}

/// Of a cluster of ours.
const NODES: u32 = 5;
/// Behind the name of a cluster in which changes wait for recoveries.
const BLOCKED: &str = "-blocked";
/// Behind that of one whose clients ask any node.
const ANY: &str = "-any";
/// Our program for one node.
pub(super) const OURS: &str = "cenote-memcached";

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

/// `memcached`, `redis`, `cenote`, each also with `*N`; `ours-K+M`, `ours-Nx`, with `-blocked` or `-any`; or
/// `NAME[@REDUNDANCY]=PROTOCOL:HOW`.
impl FromStr for Server {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((name, how)) = text.split_once('=') {
            return custom(name, how).with_context(|| format!("understand the server {text:?}"));
        }
        if let Some(redundancy) = text.strip_prefix("ours-") {
            let any = redundancy.strip_suffix(ANY);
            let redundancy = any.unwrap_or(redundancy);
            let blocked = redundancy.strip_suffix(BLOCKED);
            let kept = kept(blocked.unwrap_or(redundancy))?;
            let mut server = Self::our_cluster(kept, blocked.is_some())?;
            if any.is_some() {
                server.name.push_str(ANY);
                server.route = Route::Any;
            }
            return Ok(server);
        }
        let (name, count) = text.split_once('*').unwrap_or((text, "1"));
        let count: usize = count
            .parse()
            .ok()
            .filter(|count| (1..=PROCESSES_MAX).contains(count))
            .with_context(|| format!("1 to {PROCESSES_MAX} processes, not {count:?}"))?;
        let mut server = match name {
            "memcached" => Self::memcached(),
            "redis" => Self::redis(),
            "cenote" => Self::ours()?,
            _ => bail!(
                "no server is called {name:?}: memcached, redis, cenote, ours-3+2, ours-3x, or NAME=..."
            ),
        };
        if let Start::Processes { count: many, .. } = &mut server.start {
            *many = count;
        }
        if count > 1 {
            server.name = format!("{count} x {}", server.name);
            server.route = Route::ByKey;
        }
        Ok(server)
    }
}

/// Arbitrary; each has a port and a process.
const PROCESSES_MAX: usize = 64;

fn custom(name: &str, how: &str) -> Result<Server> {
    let (name, redundancy) = name.split_once('@').unwrap_or((name, "1x"));
    ensure!(!name.is_empty(), "it has no name");
    let (protocol, how) = how.split_once(':').context("a protocol and a colon")?;
    let protocol = match protocol {
        "memcached" => Protocol::Memcached,
        "redis" => Protocol::Redis,
        _ => bail!("memcached or redis, not {protocol:?}"),
    };
    let start = if let Some(nodes) = how.strip_prefix("//") {
        Start::Running(nodes.split(',').map(node).collect::<Result<_>>()?)
    } else if let Some(group) = how.strip_prefix("group:") {
        let mut commands = group.splitn(3, ";;").map(words);
        let mut next = || commands.next().unwrap_or_default();
        Start::Group {
            up: next(),
            down: next(),
            status: next(),
        }
    } else {
        Start::Processes {
            command: words(how),
            count: 1,
        }
    };
    let is_empty = match &start {
        Start::Processes { command: up, .. } | Start::Group { up, .. } => up.is_empty(),
        Start::Running(nodes) => nodes.is_empty(),
    };
    ensure!(!is_empty, "nothing says how it is started");
    Ok(Server {
        name: name.to_owned(),
        protocol,
        redundancy: kept(redundancy)?,
        start,
        route: Route::Any,
    })
}

/// `3+2` or `3x`.
fn kept(text: &str) -> Result<Redundancy> {
    let count = |text: &str| -> Result<u32> {
        let count = text.parse().ok().filter(|count| (1..=64).contains(count));
        count.with_context(|| format!("a count from 1 to 64, not {text:?}"))
    };
    if let Some((k, m)) = text.split_once('+') {
        return Ok(Redundancy::Coded {
            k: count(k)?,
            m: count(m)?,
        });
    }
    match count(text.strip_suffix('x').context("K+M or Nx")?)? {
        1 => Ok(Redundancy::None),
        copies => Ok(Redundancy::Copies(copies)),
    }
}

/// `ADDRESS[/PID[+PID...]]`.
fn node(text: &str) -> Result<(SocketAddr, Vec<u32>)> {
    let (address, pids) = text.split_once('/').unwrap_or((text, ""));
    let at: HostPort = address
        .parse()
        .with_context(|| format!("an address, not {address:?}"))?;
    // A name is resolved once: all connections are to one server.
    let address = match at.socket() {
        Some(address) => address,
        None => TcpStream::connect(&at)
            .and_then(|stream| stream.peer_addr())
            .with_context(|| at.to_string())?,
    };
    let pids = pids.split('+').filter(|pid| !pid.is_empty());
    let pids = pids
        .map(|pid| {
            pid.parse()
                .with_context(|| format!("a process id, not {pid:?}"))
        })
        .collect::<Result<_>>()?;
    Ok((address, pids))
}

/// Address and process of a node, from a line that a group's command printed.
pub(super) fn announced(line: &str) -> Option<(SocketAddr, u32)> {
    let mut tokens = line
        .split(|one: char| one.is_whitespace() || matches!(one, ',' | ';' | '(' | ')'))
        .filter(|token| !token.is_empty());
    let mut address = None;
    let mut pid = None;
    while let Some(token) = tokens.next() {
        let bare = token.strip_prefix("tcp:").unwrap_or(token);
        if address.is_none()
            && let Ok(found) = bare.parse()
        {
            address = Some(found);
        } else if token == "pid" {
            pid = tokens.next()?.parse().ok();
        } else if let Some(number) = token.strip_prefix("pid=") {
            pid = number.parse().ok();
        }
    }
    Some((address?, pid?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_by_a_word_or_in_full() {
        let server: Server = "memcached*3".parse().unwrap();
        assert_eq!(server.name, "3 x memcached -t 1");
        assert_eq!(server.route, Route::ByKey);
        let server: Server = "a@3+2=memcached://127.0.0.1:1/7+8,127.0.0.1:2"
            .parse()
            .unwrap();
        assert_eq!((server.name.as_str(), server.route), ("a", Route::Any));
        assert!((server.redundancy.factor() - 5.0 / 3.0).abs() < 1e-9);
        let nodes = [
            ("127.0.0.1:1".parse().unwrap(), vec![7, 8]),
            ("127.0.0.1:2".parse().unwrap(), vec![]),
        ];
        assert_eq!(server.start, Start::Running(nodes.to_vec()));
        let server: Server = "ours-3+2".parse().unwrap();
        assert_eq!(server.redundancy, Redundancy::Coded { k: 3, m: 2 });
        assert_eq!(server.route, Route::ByMap);
        let server: Server = "ours-3x-any".parse().unwrap();
        assert_eq!(server.redundancy.losses_max(), 2);
        assert_eq!(server.route, Route::Any);
        let Start::Group { up, .. } = &server.start else {
            panic!("{server:?}");
        };
        assert!(up.join(" ").contains("--code 1+2 --replicated"), "{up:?}");
        let server: Server = "ours-3+2-blocked".parse().unwrap();
        assert_eq!(server.name, "ours-3+2-blocked");
        let Start::Group { up, .. } = &server.start else {
            panic!("{server:?}");
        };
        assert!(up.join(" ").contains("--recovery blocked"), "{up:?}");
        let (up, down) = (words("x up --y"), words("x down"));
        for (more, status) in [("", ""), (" ;; x status", "x status")] {
            let text = format!("b@3x=memcached:group:x up --y ;; x down{more}");
            let server: Server = text.parse().unwrap();
            assert_eq!(server.redundancy, Redundancy::Copies(3));
            let (up, down, status) = (up.clone(), down.clone(), words(status));
            assert_eq!(server.start, Start::Group { up, down, status });
        }
        let server: Server = "c=redis:keydb --port {port}".parse().unwrap();
        assert_eq!(server.protocol, Protocol::Redis);
        for wrong in [
            "mysql",
            "memcached*0",
            "ours-1x",
            "ours-3",
            "a=",
            "a=redis:",
            "=redis:x",
            "a@2=redis:x",
            "a@0x=redis:x",
            "a=redis://here",
            "a=redis://127.0.0.1:1/x",
            "a=memcached:group:",
        ] {
            assert!(wrong.parse::<Server>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodes_are_read_from_lines_of_several_looks() {
        let found = Some(("127.0.0.1:11211".parse().unwrap(), 42));
        for line in [
            "node 0 at 127.0.0.1:11211 (pid 42)",
            "127.0.0.1:11211 pid=42",
            "pid 42, memcached on tcp:127.0.0.1:11211",
        ] {
            assert_eq!(announced(line), found, "{line}");
        }
        for line in [
            "",
            "node at 127.0.0.1:11211",
            "pid 42",
            "127.0.0.1:11211 pid x",
        ] {
            assert_eq!(announced(line), None, "{line}");
        }
    }
}
