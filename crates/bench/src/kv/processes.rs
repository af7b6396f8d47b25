//! The processes of a store that was started; dropping it ends those that it started.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::load::Target;
use super::node_status::{self, Told};
use super::server::{Server, Start, announced};
use crate::swap_rig::child::{Killed, detach};
use crate::swap_rig::is_installed;
use tempfile::TempDir;

/// A store that answers.
pub(super) struct Processes {
    pub(super) target: Target,
    nodes: Vec<Node>,
    /// What ends a group, what tells of it, and its folder.
    down: Vec<String>,
    status: Vec<String>,
    folder: Option<TempDir>,
}

struct Node {
    address: SocketAddr,
    pids: Vec<u32>,
    /// Of a process that was started here.
    process: Option<Killed>,
    /// Whether it is to be ended with this value.
    is_ours: bool,
    is_killed: bool,
}

impl Processes {
    /// Starts it with room for `mib` of items, and waits until every node listens.
    ///
    /// # Errors
    /// What is missing, or ended at once.
    pub(super) fn start(server: &Server, mib: u64) -> Result<Self> {
        let mut running = Self {
            target: Target {
                protocol: server.protocol,
                addresses: Vec::new(),
                route: server.route,
            },
            nodes: Vec::new(),
            down: Vec::new(),
            status: Vec::new(),
            folder: None,
        };
        let started = match &server.start {
            Start::Processes { command, count } => running.start_processes(command, *count, mib),
            Start::Group { up, down, status } => running.start_group([up, down, status], mib),
            Start::Running(nodes) => {
                running.nodes = nodes
                    .iter()
                    .map(|(address, pids)| Node::foreign(*address, pids.clone(), false))
                    .collect();
                Ok(())
            }
        };
        started.with_context(|| format!("start {server}"))?;
        running.target.addresses = running.nodes.iter().map(|node| node.address).collect();
        for node in &mut running.nodes {
            node.await_listening()
                .with_context(|| format!("wait for {server}"))?;
        }
        Ok(running)
    }

    fn start_processes(&mut self, command: &[String], count: usize, mib: u64) -> Result<()> {
        for _ in 0..count {
            let address = free_address()?;
            let room = mib / count as u64 + MIB_MIN;
            let mut command = to_command(command, address.port(), room)?;
            detach(&mut command);
            let process = Killed::new(command.spawn().context("run it")?, "a server");
            self.nodes.push(Node {
                pids: vec![process.pid()],
                process: Some(process),
                ..Node::foreign(address, Vec::new(), false)
            });
        }
        Ok(())
    }

    fn start_group(&mut self, commands: [&[String]; 3], mib: u64) -> Result<()> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let path = folder.path().display().to_string();
        self.folder = Some(folder);
        let placed = |words: &[String]| -> Vec<String> {
            let placed = words.iter().map(|word| word.replace("{dir}", &path));
            placed.collect()
        };
        let [up, down, status] = commands.map(placed);
        (self.down, self.status) = (down, status);
        let mut command = to_command(&up, 0, mib)?;
        command.stdout(Stdio::piped());
        let mut process = command.spawn().context("run it")?;
        let stdout = process.stdout.take().context("its output is piped")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.context("read what it prints")?;
            if let Some((address, pid)) = announced(&line) {
                self.nodes.push(Node::foreign(address, vec![pid], true));
            }
        }
        let status = process.wait().context("wait for it")?;
        ensure!(status.success(), "{}: {status}", up.join(" "));
        ensure!(
            !self.nodes.is_empty(),
            "{} told of no node: a line with an address and `pid NUMBER`",
            up.join(" ")
        );
        Ok(())
    }

    /// Processes that live.
    pub(super) fn pids(&self) -> Vec<u32> {
        let living = self.nodes.iter().filter(|node| !node.is_killed);
        living.flat_map(|node| node.pids.iter().copied()).collect()
    }

    /// What the nodes tell of what they took over; `None`: nothing is known that would ask them.
    ///
    /// # Errors
    /// They are asked, and what comes is no answer.
    pub(super) fn told(&self) -> Result<Option<Told>> {
        let Some((program, arguments)) = self.status.split_first() else {
            return Ok(None);
        };
        let asked = Command::new(program).args(arguments).output();
        let asked = asked.with_context(|| format!("run {program}"))?;
        // Its code says whether all is well, which it is not.
        node_status::told(&asked.stdout).map(Some)
    }

    pub(super) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Ends every process of a node, without a word to it.
    ///
    /// # Errors
    /// A node whose processes nobody told of.
    pub(super) fn kill(&mut self, node: usize) -> Result<()> {
        let node = &mut self.nodes[node];
        ensure!(
            !node.pids.is_empty(),
            "no process of {} is known",
            node.address
        );
        node.kill()
    }
}

impl Node {
    fn foreign(address: SocketAddr, pids: Vec<u32>, is_ours: bool) -> Self {
        Self {
            address,
            pids,
            process: None,
            is_ours,
            is_killed: false,
        }
    }

    fn kill(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_killed, true) {
            return Ok(());
        }
        if let Some(process) = self.process.take() {
            drop(process);
            return Ok(());
        }
        for pid in &self.pids {
            let pid = libc::pid_t::try_from(*pid).context("a process id")?;
            // SAFETY: a signal; no memory is touched.
            if unsafe { libc::kill(pid, libc::SIGKILL) } != 0 {
                return Err(std::io::Error::last_os_error()).context(format!("kill {pid}"));
            }
        }
        Ok(())
    }

    fn await_listening(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(self.address).is_err() {
            if let Some(process) = &mut self.process
                && let Some(status) = process.child().try_wait()?
            {
                bail!("it ended at once: {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "{} does not listen",
                self.address
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some((program, arguments)) = self.down.split_first() {
            match Command::new(program)
                .args(arguments)
                .stdout(Stdio::null())
                .status()
            {
                Ok(status) if status.success() => return,
                failed => eprintln!("{}: {failed:?}; its nodes are killed", self.down.join(" ")),
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.is_ours) {
            if let Err(error) = node.kill() {
                eprintln!("{error:#}");
            }
        }
    }
}

/// A command with its placeholders filled in.
fn to_command(words: &[String], port: u16, mib: u64) -> Result<Command> {
    let filled = |word: &String| {
        word.replace("{port}", &port.to_string())
            .replace("{mib}", &mib.to_string())
    };
    let (program, arguments) = words.split_first().context("a command has words")?;
    let is_there = if program.contains('/') {
        Path::new(program).exists()
    } else {
        is_installed(program)
    };
    ensure!(is_there, "{program} is not installed");
    let mut command = Command::new(program);
    command
        .args(arguments.iter().map(filled))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Ok(command)
}

/// An address on which nobody listens now.
pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("find a free port")?;
    listener.local_addr().context("ask for the port")
}

/// Under which memcached is short of slabs, whatever is stored; arbitrary.
const MIB_MIN: u64 = 64;
/// How long a server may take to listen; arbitrary.
const START_LIMIT: Duration = Duration::from_secs(10);
