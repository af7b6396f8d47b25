//! An etcd server of our own, for a cluster on one machine: Debian's program as a child process.
//!
//! It listens on loopback only. Its data outlives it in the folder that it is given.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Etcd;
use crate::store::EtcdError;

/// How long it may take to answer: an election with itself, and its disk.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Between two questions whether it answers.
const STEP: Duration = Duration::from_millis(50);
/// Tries with other ports, should a stranger take the one that was free.
const TRIES: usize = 3;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The program is not installed.
    #[error("there is no program etcd on this machine; it is in the Debian package etcd-server")]
    Missing,
    /// The system refuses a file or a process.
    #[error("{what}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// It ended, or was silent for too long.
    #[error("etcd did not start; see {}", log.display())]
    Silent {
        /// What it said.
        log: PathBuf,
    },
}

/// The server; stopped when dropped.
#[derive(Debug)]
pub struct EtcdServer {
    child: Child,
    url: String,
}

impl EtcdServer {
    /// Starts a server that keeps its data and its log in `folder`, and waits until it answers.
    /// `prepare` sees the command first (to give it a session of its own, say).
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(folder: &Path, prepare: impl Fn(&mut Command)) -> Result<Self, ServerError> {
        Self::start_noted(folder, prepare, |_| Ok(()))
    }

    /// As [`EtcdServer::start`]; `note` gets the number of each process that is started, before it
    /// is waited for: whoever is killed meanwhile has it noted.
    ///
    /// # Errors
    /// See [`ServerError`]; what `note` fails with.
    pub fn start_noted(
        folder: &Path,
        prepare: impl Fn(&mut Command),
        note: impl Fn(u32) -> io::Result<()>,
    ) -> Result<Self, ServerError> {
        let mut last = None;
        for _ in 0..TRIES {
            match Self::spawn(folder, &free_url()?, &prepare, &note) {
                Err(error @ ServerError::Silent { .. }) => last = Some(error),
                other => return other,
            }
        }
        Err(last.expect("there was a try"))
    }

    /// Starts on the address of an earlier one, whose data is in `folder`.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start_at(
        folder: &Path,
        url: &str,
        prepare: impl Fn(&mut Command),
    ) -> Result<Self, ServerError> {
        Self::start_at_noted(folder, url, prepare, |_| Ok(()))
    }

    /// The same, as [`EtcdServer::start_noted`] does it.
    ///
    /// # Errors
    /// As [`EtcdServer::start_noted`].
    pub fn start_at_noted(
        folder: &Path,
        url: &str,
        prepare: impl Fn(&mut Command),
        note: impl Fn(u32) -> io::Result<()>,
    ) -> Result<Self, ServerError> {
        Self::spawn(folder, url, &prepare, &note)
    }

    fn spawn(
        folder: &Path,
        url: &str,
        prepare: &impl Fn(&mut Command),
        note: &impl Fn(u32) -> io::Result<()>,
    ) -> Result<Self, ServerError> {
        let peer_url = free_url()?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| os(format!("make {}", folder.display()), source))?;
        let log = folder.join("log");
        let said = File::create(&log).map_err(|source| os(log.display().to_string(), source))?;
        let also = said
            .try_clone()
            .map_err(|source| os(log.display().to_string(), source))?;
        let mut command = Command::new("etcd");
        command
            .args(["--name", "cenote", "--data-dir"])
            .arg(folder.join("data"))
            .args(["--listen-client-urls", url, "--advertise-client-urls", url])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("cenote={peer_url}")])
            .args(["--logger", "zap", "--log-level", "warn"])
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(also);
        // Settings of another etcd on this machine are not ours.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        prepare(&mut command);
        let child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ServerError::Missing,
            _ => os("start etcd".to_owned(), source),
        })?;
        let mut server = Self {
            child,
            url: url.to_owned(),
        };
        note(server.process())
            .map_err(|source| os("note the process of etcd".to_owned(), source))?;
        server.wait(&log)?;
        Ok(server)
    }

    fn wait(&mut self, log: &Path) -> Result<(), ServerError> {
        let etcd = Etcd::new(&self.url, None).expect("a URL made here");
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let ended = self
                .child
                .try_wait()
                .map_err(|source| os("wait for etcd".to_owned(), source))?;
            if ended.is_some() || Instant::now() >= deadline {
                return Err(ServerError::Silent {
                    log: log.to_owned(),
                });
            }
            // One that asks who we are answers, too.
            if matches!(etcd.read("/cenote"), Ok(_) | Err(EtcdError::Refused { .. })) {
                return Ok(());
            }
            std::thread::sleep(STEP);
        }
    }

    /// Where it answers.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Number of its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Lets the process live on without us.
    pub fn detach(self) {
        // A child that is not waited for becomes the system's when we end.
        std::mem::forget(self);
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        // Killed, not asked: its log is written ahead, and it must not outlive us by its patience.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            tracing::warn!(%error, "stop etcd");
        }
    }
}

fn os(what: String, source: io::Error) -> ServerError {
    ServerError::Os { what, source }
}

/// An address on loopback whose port is free now.
fn free_url() -> Result<String, ServerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    let address = address.map_err(|source| os("find a free port".to_owned(), source))?;
    Ok(format!("http://{address}"))
}
