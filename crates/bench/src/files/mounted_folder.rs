//! Where files are that are compared: each a folder in which something is mounted, taken away when
//! dropped.
//!
//! What serves a mount is a process of its own, so that the load never waits for itself: ours is
//! `cenote mount`, the others are this program again ([`Role`]).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use cenote_block::disk::Disk;
use cenote_block::swap::{Device, Options as DeviceOptions};
use cenote_block::volume::VolumeDisk;
use cenote_cli::program;
use cenote_volume::{Scheme, Volume};

use super::passthrough;
use crate::cluster::{LocalCluster, open_cluster, volume_config};
use crate::swap_rig::child::{Killed, detach};

/// What another process of this program serves.
#[derive(Clone, Debug)]
pub enum Role {
    /// A FUSE file system at the first folder that hands every request on to the second.
    Passthrough(PathBuf, PathBuf),
    /// A volume as a block device, as `cenote swap` has it.
    Device {
        /// The cluster's file.
        cluster: PathBuf,
        /// How its pages are kept.
        scheme: Scheme,
        /// Its size.
        bytes: u64,
        /// Folder of its socket.
        dir: PathBuf,
    },
}

/// A serving process's life: it says `ready` and where, and ends with its mount, or its standard
/// input.
///
/// # Errors
/// What it serves could not be made.
pub fn serve(role: &Role) -> anyhow::Result<()> {
    let ready = |what: &Path| {
        let mut out = std::io::stdout();
        let said = writeln!(out, "ready {}", what.display()).and_then(|()| out.flush());
        said.context("say that it is ready")
    };
    match role {
        Role::Passthrough(point, backing) => {
            let mut told = Ok(());
            passthrough::serve(point, backing, || told = ready(point))?;
            told
        }
        Role::Device {
            cluster,
            scheme,
            bytes,
            dir,
        } => {
            let (hosts, connector) = open_cluster(cluster)?;
            let config = volume_config(hosts, *scheme, *bytes);
            let volume = Arc::new(Volume::open(config, connector)?);
            let disk: Arc<dyn Disk> = Arc::new(VolumeDisk::new(volume));
            let device = Device::serve(&disk, DeviceOptions::new(dir))?;
            ready(device.path())?;
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Ok(())
        }
    }
}

/// How the kernel's requests come to `cenote mount`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Transport {
    IoUring,
    DevFuse,
}

/// A mounted folder. Dropped from the mount down.
pub(super) struct MountedFolder {
    mount: Mounted,
    // What is below it.
    _server: Option<Server>,
}

impl MountedFolder {
    /// `cenote mount` of a volume on the cluster, by the transport of the kernel's requests that is
    /// asked for; which of them that is.
    pub(super) fn ours(
        cluster: &LocalCluster,
        dir: &Path,
        (scheme, bytes): (Scheme, u64),
        wanted: Transport,
    ) -> anyhow::Result<(Self, Transport)> {
        let (name, setting) = match wanted {
            Transport::IoUring => ("ours", "on"),
            Transport::DevFuse => ("ours-dev-fuse", "off"),
        };
        let point = folder(dir, name)?;
        let mut command = Command::new(program::cenote()?);
        command.arg("mount").arg(&point).arg("--cluster");
        command.arg(cluster.file());
        command.args(["--size", &bytes.to_string(), "--scheme"]);
        command.arg(scheme.to_string());
        command.env("CENOTE_FUSE_URING", setting);
        let (server, line) = Server::start(command, "cenote mount")?;
        let place = Self {
            mount: Mounted(point),
            _server: Some(server),
        };
        let found = match line.trim_end().ends_with(" over io_uring") {
            true => Transport::IoUring,
            false => Transport::DevFuse,
        };
        Ok((place, found))
    }

    /// A tmpfs of this size at most.
    pub(super) fn tmpfs(dir: &Path, bytes: u64) -> anyhow::Result<Self> {
        let point = folder(dir, "tmpfs")?;
        let size = format!("size={bytes}");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &size, "cenote-bench"]);
        run(command.arg(&point))?;
        Ok(Self {
            mount: Mounted(point),
            _server: None,
        })
    }

    /// A passthrough to a folder of `backing`.
    pub(super) fn passthrough(dir: &Path, backing: &Self) -> anyhow::Result<Self> {
        let (point, below) = (
            folder(dir, "passthrough")?,
            folder(backing.path(), "below")?,
        );
        let mut command = Command::new(program::this()?);
        command.args(["bench", "files-server", "--point"]);
        command.arg(&point).arg("--backing").arg(&below);
        let (server, _) = Server::start(command, "the passthrough")?;
        Ok(Self {
            mount: Mounted(point),
            _server: Some(server),
        })
    }

    /// ext4 over a block device that is a volume on the cluster.
    pub(super) fn ext4(
        cluster: &LocalCluster,
        dir: &Path,
        scheme: Scheme,
        (bytes, files): (u64, u64),
    ) -> anyhow::Result<(Self, String)> {
        let point = folder(dir, "ext4")?;
        let mut command = Command::new(program::this()?);
        command.args(["bench", "files-server", "--cluster"]);
        command.arg(cluster.file());
        command.args(["--bytes", &bytes.to_string(), "--scheme"]);
        command.arg(scheme.to_string());
        command.arg("--dir").arg(folder(dir, "device")?);
        let (server, line) = Server::start(command, "the block device")?;
        // The second word is what it serves.
        let device = line
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let inodes = (files + files / 8 + 1024).to_string();
        // Everything is made now: no thread of the kernel makes the rest while others are measured.
        let eager = "lazy_itable_init=0,lazy_journal_init=0";
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-N", &inodes, "-E", eager]);
        run(make.arg(&device))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "noatime"]);
        run(mount.arg(&device).arg(&point))?;
        let place = Self {
            mount: Mounted(point),
            _server: Some(server),
        };
        Ok((place, device))
    }

    pub(super) fn path(&self) -> &Path {
        &self.mount.0
    }
}

/// Unmounts when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}

/// A process that serves until its mount or its standard input ends; killed when it does not.
struct Server {
    process: Killed,
    orders: Option<ChildStdin>,
}

impl Server {
    /// Starts it; returns its first line as well.
    fn start(mut command: Command, name: &'static str) -> anyhow::Result<(Self, String)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        detach(&mut command);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let mut process = Killed::new(child, name);
        let orders = process.child().stdin.take();
        let out = process.child().stdout.take().expect("stdout is piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line.starts_with("ready "), "{name} did not become ready");
        Ok((Self { process, orders }, line))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.orders.take());
        let patience = Instant::now() + PATIENCE;
        while matches!(self.process.child().try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// How long a server may take to end by itself; arbitrary.
const PATIENCE: Duration = Duration::from_secs(20);

fn folder(parent: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = parent.join(name);
    std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
    Ok(path)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}", said.trim());
    }
    Ok(())
}
