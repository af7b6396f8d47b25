//! `cenote ublk`: a volume as a block device of this machine, in the foreground or in the background.

use std::io::Write as _;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};
use cenote_block::disk::Disk;
use cenote_block::swap::harden;
use cenote_block::ublk::{Device, Error, Options};
use cenote_block::volume::VolumeDisk;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::{signals, stderr};
use cenote_fabric::HostPort;

use crate::background;
use crate::place::{Loaded, Which};
use crate::volume_metrics::VolumeMetrics;
use crate::volume_server::{End, Serving, WhichVolume};
use crate::volumes::Volumes;

/// `ublk` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote ublk --dir ~/.cenote/well --size 2G --scheme rs:8+2
  cenote ublk --dir ~/.cenote/well --volume v0 --threads 2 --metrics 127.0.0.1:9641
  cenote ublk --dir ~/.cenote/well --volume v0 --delete

It prints one line with the device when it is ready, and runs until SIGTERM or SIGINT; unmount first.
With --background it returns when it is ready, and the line has the pid of the server. A named volume
keeps its content after that. If the server is killed, its device stays and requests to it wait: start
the server again and they continue, or remove the device with --delete and they fail. Without --volume
the content is deleted with the server.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Remove the device that a killed server of this volume left behind; waiting requests fail
    #[arg(long, requires = "volume", conflicts_with = "size")]
    delete: bool,
    /// Return when the device is ready, and serve it in the background
    #[arg(long, conflicts_with = "delete")]
    background: bool,
    /// Allow other machines to reach --metrics
    #[arg(long)]
    allow_remote: bool,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Device queues, with one thread each [default: one per core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    threads: Option<u16>,
    /// Maximum requests in flight on each queue
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
}

impl Args {
    /// Whether this process is what answers for the device.
    pub fn serves(&self) -> bool {
        !self.background
    }
}

/// Starts this command again without `--background`, and returns once the device is there.
fn in_background(args: &Args, loaded: &Loaded) -> Result<u8> {
    let mut command = background::this_program()?;
    command.arg("ublk").args(args.which.absolute()?);
    command.args(["--depth", &args.depth.to_string()]);
    if let Some(count) = args.threads {
        command.args(["--threads", &count.to_string()]);
    }
    if let Some(address) = &args.metrics {
        command.args(["--metrics", &address.to_string()]);
    }
    if args.allow_remote {
        command.arg("--allow-remote");
    }
    background::start_volume(&mut command, &loaded.dir, &args.volume)
}

pub fn run(args: &Args) -> Result<u8> {
    let loaded = args.which.load()?;
    if args.background {
        return in_background(args, &loaded);
    }
    if args.delete {
        let name = args.volume.volume.as_deref().unwrap_or_default();
        let volumes = Volumes::new(&loaded.dir);
        let identity = identity(volumes.load(name)?.id()?);
        // A server that lives keeps its device, and its volume.
        let owner = volumes.own(name)?;
        Device::forget(identity).map_err(explain)?;
        drop(owner);
        return Ok(DONE);
    }
    // Before the first thread: what the kernel writes back may be what this process waits for.
    match harden::harden() {
        Ok(warnings) => warnings.iter().for_each(|w| tracing::info!("{}", w.text)),
        Err(error) => {
            tracing::warn!(%error, "memory is not locked; writeback may stall under pressure")
        }
    }
    let (tell, told) = mpsc::channel::<()>();
    signals::on_stop(move || drop(tell))?;
    let mut serving = Serving::open(&loaded, &args.volume, End::Keep)?;
    let (name, is_named) = (serving.name.clone(), args.volume.volume.is_some());
    let disk: Arc<dyn Disk> = Arc::new(VolumeDisk::new(Arc::clone(&serving.volume)));
    let mut options = Options::new(identity(serving.spec.id()?));
    options.queue_depth = args.depth;
    options.queue_count = args.threads.unwrap_or(options.queue_count);
    // What may fail comes before the device: one that waited for a server would be gone with this.
    if let Some(address) = &args.metrics {
        VolumeMetrics::new(&serving.volume, None).serve(address, args.allow_remote)?;
    }
    let device = Device::open(&disk, options).map_err(explain)?;
    let mut out = std::io::stdout();
    let (spec, path) = (&serving.spec, device.path());
    let announced = writeln!(
        out,
        "ready {} {} {} at {}",
        serving.name,
        spec.size,
        spec.scheme,
        path.display()
    )
    .and_then(|()| out.flush());
    match announced {
        Err(error) if device.is_recovered() => {
            tracing::warn!(%error, "announce on standard output; the device is served all the same");
        }
        announced => announced.context("announce on standard output")?,
    }
    serving.announced();
    // Nothing is ever sent: this ends when a signal drops the other end.
    assert!(told.recv().is_err(), "the channel carries its end only");
    // Before its workers go.
    serving.volume.announce_end();
    device.stop().map_err(explain)?;
    drop(serving);
    background::ends(&loaded.dir, &name);
    match is_named.then_some(name) {
        Some(name) => stderr::say(format_args!(
            "stopped; hosts keep the content of volume {name}: serve it again, or run cenote \
             volume delete {name}"
        )),
        None => stderr::say("stopped; the volume's content was deleted"),
    }
    Ok(DONE)
}

/// What the driver knows the volume by: half of its identity, which is drawn at random.
fn identity(id: u128) -> u64 {
    (id as u64).max(1)
}

fn explain(error: Error) -> anyhow::Error {
    let mend = match &error {
        Error::NoDriver => "use cenote nbd, which does not need it",
        Error::OtherSize { .. } => "cenote ublk --delete removes the device; waiting requests fail",
        _ => "",
    };
    Failure::new(format!("{:#}", anyhow::Error::new(error)), mend).into()
}
