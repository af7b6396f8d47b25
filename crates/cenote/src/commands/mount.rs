//! `cenote mount`: a volume as a file system in a directory, in the foreground or in the
//! background.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::{signals, stderr};
use cenote_fabric::HostPort;
use cenote_vfs::label::SIZE_BYTES_MIN;
use cenote_vfs::mount::{self, Mount, MountPoint, Options, PointError, Transport};
use cenote_vfs::volume::VolumeMedium;
use cenote_vfs::{Files, OpenError};
use cenote_volume::WORKERS_MAX;

use super::doctor;
use crate::place::{Loaded, Which};
use crate::shell::quoted;
use crate::volume_metrics::VolumeMetrics;
use crate::volume_server::{End, Serving, WhichVolume};
use crate::{background, fuse_rings, service};

/// `mount` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote mount /mnt/well --cluster ~/.cenote/well/cluster.toml --size 2G --scheme rs:8+2
  cenote mount /mnt/well --dir ~/.cenote/well --volume files --size 8G --background
  cenote mount /mnt/well --dir ~/.cenote/well --volume files --background
  umount /mnt/well

It prints one line when the files are accessible, and runs until DIR is unmounted, or SIGTERM or SIGINT.
A named volume keeps its files after that, also when this process is killed: mount it again. Without
--volume the files are deleted with the mount. Fsynced data survives as many host losses as the scheme
tolerates and the end of this process, in any order, but not the end of this machine. If the process
is killed, data that was not fsynced may be lost: the kernel's dirty pages, and names created in the
last second.

After a kill DIR answers \"Transport endpoint is not connected\": mount again, or umount -l DIR.
Requests of the kernel arrive over io_uring if it allows that (cenote doctor), else over /dev/fuse;
CENOTE_FUSE_URING=off in the environment forces /dev/fuse. The line says which. See
docs/guides/files.md.")]
pub struct Args {
    /// Mount point, use an empty directory
    #[arg(value_name = "DIR")]
    point: PathBuf,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Return when the files are accessible, and serve in the background until umount DIR
    #[arg(long)]
    background: bool,
    /// Allow access by other users, subject to file permissions
    #[arg(long)]
    allow_other: bool,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long, requires = "metrics")]
    allow_remote: bool,
    /// Threads that serve requests, which bounds the reads, writes and fsyncs in flight. Over
    /// io_uring each processor has at least one
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: u8,
}

/// Workers of the volume beside those of the serving threads: commits, and what they free.
const WORKERS_BESIDE: usize = 2;
/// Workers that a volume keeps for itself: its own threads move and check pages.
const WORKERS_LEFT: usize = 4;

impl Args {
    /// Whether this process is what answers for the files.
    pub fn serves(&self) -> bool {
        !self.background
    }
}

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    if doctor::is_silent(&args.point) {
        return Err(Failure::new(
            format!(
                "{} is already a mount point, and its server does not answer; it may be stopped",
                args.point.display()
            ),
            "resume the server (kill -CONT), or kill it, which fails waiting requests",
        )
        .into());
    }
    // Before another process is started, whose errors come as text.
    let point = MountPoint::new(&args.point).map_err(|error| refused(&error))?;
    check(args)?;
    match args.background {
        true => in_background(args, &loaded, &point),
        false => serve(args, &loaded, &point),
    }
}

/// What stands in the way whatever the volume is, before one is made for nothing.
fn check(args: &Args) -> Result<()> {
    if let Some(size) = args.volume.size
        && size.bytes() < SIZE_BYTES_MIN
    {
        let least = Size(SIZE_BYTES_MIN);
        let what = format!("{size} is too small for a file system, which needs {least}");
        return Err(Failure::usage(what, "use a larger --size").into());
    }
    let device = File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| {
        let what = format!("/dev/fuse: {error}: FUSE is not available to this user");
        Failure::new(
            what,
            "run modprobe fuse as root; in a container, use --device /dev/fuse",
        )
    })?;
    Ok(())
}

fn serve(args: &Args, loaded: &Loaded, point: &MountPoint) -> Result<u8> {
    let (tell, told) = mpsc::channel::<()>();
    let ended = tell.clone();
    // Nobody is told of an end that came before.
    signals::on_stop(move || tell.send(()).unwrap_or(()))?;
    if let Err(error) = mount::join_the_io_path() {
        tracing::info!(%error, "memory allocations of this process may wait for its own mount");
    }
    let span = tracing::info_span!("mount", cenote.directory = %point.path().display()).entered();
    let mut serving = Serving::open(loaded, &args.volume, End::Keep)?;
    let threads = usize::from(args.threads);
    let transport = match fuse_rings::are_wanted() {
        true => Transport::Auto,
        false => Transport::DevFuse,
    };
    let workers = mount::threads_max(transport, threads) + WORKERS_BESIDE;
    let workers = workers.min(WORKERS_MAX - WORKERS_LEFT);
    let medium = VolumeMedium::new(Arc::clone(&serving.volume), workers)?;
    let files = Files::open(Arc::new(medium), mount::this_process());
    let files = files.map_err(|error| not_opened(error, &serving.name, loaded))?;
    let options = Options {
        name: serving.name.clone(),
        threads,
        allow_other: args.allow_other,
        transport,
    };
    let mounted = Mount::start(files, point, &options, move || ended.send(()).unwrap_or(()));
    let mut mounted = mounted.map_err(|error| {
        let point_error = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(error) = point_error {
            return refused(error);
        }
        let what = format!("mount at {}: {error}", point.path().display());
        let mend = "run as root, or as the owner of DIR with fusermount3 installed; see cenote \
                    doctor";
        Failure::new(what, mend)
    })?;
    if let Some(address) = &args.metrics {
        VolumeMetrics::new(&serving.volume, None).serve(address, args.allow_remote)?;
    }
    drop(span);
    announce(&serving, point.path(), mounted.has_rings())?;
    serving.announced();
    service::tell("READY=1");
    // The end of the mount, or a signal.
    told.recv().context("wait for the end of the mount")?;
    service::tell("STOPPING=1");
    let span = tracing::info_span!("unmount").entered();
    let outcome = mounted.end();
    // Before its workers go.
    serving.volume.announce_end();
    drop(mounted);
    let (name, is_named) = (serving.name.clone(), args.volume.volume.is_some());
    drop(serving);
    drop(span);
    outcome.map_err(|error| {
        Failure::new(
            format!("end the mount: {error}"),
            format!(
                "mount the volume again: fsynced data is there, unless more hosts were lost than \
                 the scheme survives (cenote volume status {name})"
            ),
        )
    })?;
    background::ends(&loaded.dir, &name);
    match is_named.then_some(name) {
        Some(name) => stderr::say(format_args!(
            "unmounted; hosts keep the files of volume {name}: mount it again, or run cenote \
             volume delete {name}"
        )),
        None => stderr::say("unmounted; the files were deleted"),
    }
    Ok(DONE)
}

fn announce(serving: &Serving, point: &Path, has_rings: bool) -> Result<()> {
    let transport = if has_rings { "io_uring" } else { "/dev/fuse" };
    let (spec, name) = (&serving.spec, &serving.name);
    let mut at = point.display().to_string();
    if at.contains(char::is_control) {
        // One line, as who started this in the background reads no second.
        at = at.escape_debug().to_string();
    }
    let mut out = std::io::stdout();
    writeln!(
        out,
        "ready {name} {} {} at {at} over {transport}",
        spec.size, spec.scheme,
    )
    .and_then(|()| out.flush())
    .context("announce on standard output")
}

/// Starts this command again without `--background`, and returns once the files are there.
fn in_background(args: &Args, loaded: &Loaded, point: &MountPoint) -> Result<u8> {
    let mut command = background::this_program()?;
    command.arg("mount").arg(point.path());
    command.args(args.which.absolute()?);
    command.args(["--threads", &args.threads.to_string()]);
    if args.allow_other {
        command.arg("--allow-other");
    }
    if let Some(address) = &args.metrics {
        command.args(["--metrics", &address.to_string()]);
    }
    if args.allow_remote {
        command.arg("--allow-remote");
    }
    background::start_volume(&mut command, &loaded.dir, &args.volume)
}

fn refused(error: &PointError) -> Failure {
    let mend = match error {
        PointError::Os { path, .. } => format!("mkdir -p {}", quoted(path)),
        PointError::NotDirectory(_) | PointError::NotEmpty(_) => "an empty directory".to_owned(),
        PointError::Mounted(path) => format!("umount {}, or use another directory", quoted(path)),
        PointError::Claimed(_) => "use another directory".to_owned(),
        PointError::Stale(path) => format!("umount -l {}", quoted(path)),
        _ => String::new(),
    };
    Failure::new(error.to_string(), mend)
}

fn not_opened(error: OpenError, name: &str, loaded: &Loaded) -> Failure {
    let mend = match error {
        OpenError::TooSmall { .. } => "use a larger --size".to_owned(),
        OpenError::Other | OpenError::Damaged => {
            format!(
                "use another volume; cenote volume reset {name} discards the content of this one"
            )
        }
        _ => format!("cenote status --cluster {}", quoted(&loaded.file)),
    };
    Failure::new(format!("the files of volume {name}: {error}"), mend)
}
