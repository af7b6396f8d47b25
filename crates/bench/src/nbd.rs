//! The NBD opening beside `nbdkit memory`, driven by fio's nbd engine.
//!
//! Both serve the same number of bytes over a unix socket and are written full
//! before anything is measured. Every case runs on one and then on the other,
//! several times in turn, and a row holds the medians. In every row more is
//! better, so a ratio above 1 is in our favour.
//!
//! Needs fio with its nbd engine and nbdkit with its memory plugin.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cenote_measure::statistics::median;

use super::Row;
use super::fio::{figure, fio, metric};
use crate::rounds::turns;
use crate::swap_rig::fresh;
use crate::swap_rig::interrupt::{self, Interrupt};

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// NBD URI of our export, as in `nbd+unix:///name?socket=PATH`; its content is overwritten.
    pub our_uri: String,
    /// What ours is, for the case column: scheme and transport.
    pub our_label: String,
    /// Bytes used of the export, and size of the peer's.
    pub size_bytes: u64,
    /// Length of one run.
    pub run_seconds: u32,
    /// Runs of each case on each side; odd, so that there is a median.
    pub rounds: usize,
}

/// Measures every case; narrates on stderr.
///
/// # Errors
/// When a tool is missing or a run fails; the message has the tool's own words.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(options.rounds > 0, "measure nbd: no rounds asked for");
    let _interrupt = Interrupt::catch()?;
    let peer = Nbdkit::start(options.size_bytes)?;
    let uris = [options.our_uri.as_str(), peer.uri.as_str()];
    for uri in uris {
        eprintln!("fill {uri}");
        fill(uri, options.size_bytes)?;
    }
    let mut rows = Vec::new();
    for case in cases() {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            interrupt::check()?;
            for side in turns(2, round) {
                figures[side].push(case.measure(uris[side], options)?);
            }
        }
        let [ours, theirs] = figures.map(median);
        let label = format!("{} {}", options.our_label, case.label());
        eprintln!("{label}: ours {ours:.0}, nbdkit {theirs:.0}");
        rows.push(Row::new(
            ("nbd", label),
            metric(case.block_bytes),
            ours,
            (peer.name.clone(), theirs),
        ));
    }
    Ok(rows)
}

const MIB: u64 = 1 << 20;
const ENGINE: &str = "--ioengine=nbd";

/// One pattern of load.
#[derive(Clone, Copy, Debug)]
struct Case {
    pattern: &'static str,
    block_bytes: u32,
    depth: u32,
    connection_count: u32,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for connection_count in [1, 4] {
        for pattern in ["randread", "randwrite"] {
            for depth in [1, 16, 64] {
                cases.push(Case {
                    pattern,
                    block_bytes: 4096,
                    depth,
                    connection_count,
                });
            }
        }
        for pattern in ["read", "write"] {
            cases.push(Case {
                pattern,
                block_bytes: 128 << 10,
                depth: 4,
                connection_count,
            });
        }
    }
    cases
}

impl Case {
    fn label(&self) -> String {
        format!(
            "{} {} KiB depth {} connections {}",
            self.pattern,
            self.block_bytes >> 10,
            self.depth,
            self.connection_count
        )
    }

    /// One run; operations, or 10^6 bytes, per second over all connections.
    fn measure(&self, uri: &str, options: &Options) -> Result<f64> {
        let share_bytes = (options.size_bytes / u64::from(self.connection_count)) & !(MIB - 1);
        let report = fio(&[
            ENGINE,
            &format!("--uri={uri}"),
            &format!("--rw={}", self.pattern),
            &format!("--bs={}", self.block_bytes),
            &format!("--iodepth={}", self.depth),
            &format!("--numjobs={}", self.connection_count),
            &format!("--size={share_bytes}"),
            &format!("--offset_increment={share_bytes}"),
            "--time_based",
            "--ramp_time=200ms",
            &format!("--runtime={}", options.run_seconds),
        ])?;
        figure(&report, self.pattern, self.block_bytes)
    }
}

/// Writes every byte, so that no side answers from memory it never had.
fn fill(uri: &str, size_bytes: u64) -> Result<()> {
    fio(&[
        ENGINE,
        &format!("--uri={uri}"),
        "--rw=write",
        "--bs=131072",
        "--iodepth=4",
        &format!("--size={size_bytes}"),
    ])?;
    Ok(())
}

/// The peer, on a socket of its own, ended with this value.
/// A peer's server on a unix socket; ended when dropped.
pub(crate) struct Nbdkit {
    process: Child,
    directory: PathBuf,
    uri: String,
    /// With its version.
    name: String,
}

/// For how long the peer may take to listen.
const PEER_START_LIMIT: Duration = Duration::from_secs(10);

impl Nbdkit {
    pub(crate) fn start(size_bytes: u64) -> Result<Self> {
        let directory = fresh(&std::env::temp_dir(), "nbdkit");
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.with_context(|| format!("make {}", directory.display()))?;
        let socket = directory.join("nbdkit.sock");
        let process = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .arg("memory")
            .arg(format!("size={size_bytes}"))
            .stdin(Stdio::null())
            .spawn()
            .context("run nbdkit (Debian package nbdkit)")?;
        let mut peer = Self {
            process,
            uri: format!("nbd+unix:///?socket={}", socket.display()),
            directory,
            name: version()?,
        };
        peer.wait_until_ready(&socket)?;
        Ok(peer)
    }

    /// Where it is reached.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// With its version.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn wait_until_ready(&mut self, socket: &Path) -> Result<()> {
        let deadline = Instant::now() + PEER_START_LIMIT;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if let Some(status) = self.process.try_wait().context("wait for nbdkit")? {
                bail!("nbdkit ended at once: {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "nbdkit does not listen on {}",
                socket.display()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        if let Err(error) = self
            .process
            .kill()
            .and_then(|()| self.process.wait().map(drop))
        {
            eprintln!("end nbdkit: {error}");
        }
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("remove {}: {error}", self.directory.display());
        }
    }
}

/// As in "nbdkit memory 1.32.5".
fn version() -> Result<String> {
    let output = Command::new("nbdkit")
        .arg("--version")
        .output()
        .context("ask nbdkit for its version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .split_whitespace()
        .nth(1)
        .unwrap_or("of unknown version");
    Ok(format!("nbdkit memory {number}"))
}
