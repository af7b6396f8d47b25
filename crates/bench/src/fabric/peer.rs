//! The other process: the raw server, or a host that takes messages and nothing else.
//!
//! A real host reads messages as requests of its control protocol, so what may arrive there is
//! not ours to choose; a bare listener takes any. The process announces its address by one line
//! on standard output and ends with its standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cenote_cli::program;
use cenote_fabric::{Address, ClusterKey, Connector, Event, Listen, Listener};

use super::raw;

/// What the process serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// Requests and answers by hand.
    Raw,
    /// A listener whose host drops every message.
    Messages,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Messages => "messages",
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Raw, Self::Messages]
            .into_iter()
            .find(|role| role.name() == text)
            .ok_or_else(|| format!("no such role: {text}"))
    }
}

/// What `cenote bench fabric-peer ROLE` does.
///
/// # Errors
/// When it cannot listen, or a client breaks its protocol.
pub fn serve(role: Role) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        // Nothing is ever said there: whatever ends the wait, nobody is left to serve.
        let ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(i32::from(ended.is_err()))
    });
    match role {
        Role::Raw => raw::serve(announce),
        Role::Messages => take_messages(),
    }
}

fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn take_messages() -> anyhow::Result<()> {
    let key = ClusterKey::generate()?;
    let mut listener = Listener::bind(&["tcp:127.0.0.1:0".parse()?], &key)?;
    announce(&format!("{} {}", listener.addresses()[0], key.to_hex()))?;
    let mut events = Vec::new();
    loop {
        listener.poll(None, &mut events)?;
        for event in events.drain(..) {
            if let Event::Message { bytes, .. } = event {
                std::hint::black_box(bytes);
            }
        }
    }
}

/// A running peer; ended when dropped.
pub(super) struct Peer {
    process: Child,
    said: String,
}

impl Peer {
    pub(super) fn start(role: Role) -> anyhow::Result<Self> {
        let process = Command::new(program::this()?)
            .args(["bench", "fabric-peer", role.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the other process")?;
        let mut peer = Self {
            process,
            said: String::new(),
        };
        let stdout = peer.process.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut peer.said)?;
        ensure!(peer.said.ends_with('\n'), "the other process did not start");
        Ok(peer)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Where the raw server is.
    pub(super) fn raw_address(&self) -> anyhow::Result<std::net::SocketAddr> {
        Ok(self.said.trim_end().parse()?)
    }

    /// Where the host is, and what connects to it.
    pub(super) fn host(&self) -> anyhow::Result<(Address, Arc<dyn Connector>)> {
        let (address, key) = self.said.trim_end().split_once(' ').context("no key")?;
        let key = ClusterKey::from_hex(key)?;
        Ok((address.parse()?, Arc::new(cenote_fabric::connector(key))))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        if self.process.kill().is_ok() && self.process.wait().is_err() {
            eprintln!("process {} is left", self.process.id());
        }
    }
}
