//! `cenote swap`: a volume as swap space of this machine.
//!
//! `on` starts this binary again as `swap serve` in the background, which maps the whole
//! volume before it turns swap on, and ends when swap is off.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cenote_block::disk::Disk;
use cenote_block::swap::launch::{Announcer, News};
use cenote_block::swap::{
    Discard, Error, FuseTransport, OffReport, Options, control, launch, refuse, server,
};
use cenote_block::volume::VolumeDisk;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::progress::{self, Left};
use cenote_cli::size::Size;
use cenote_fabric::HostPort;
use clap::ValueEnum as _;

use crate::commands::host::room::Switch;
use crate::commands::volume::check_size;
use crate::fuse_rings;
use crate::limits::{CAP_SYS_ADMIN, Capabilities};
use crate::place::{Loaded, Which};
use crate::process::Identity;
use crate::volume_metrics::VolumeMetrics;
use crate::volume_server::{End, Serving, WhichVolume};
use crate::watch::Watch;

/// `swap` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote swap on --cluster ~/.cenote/well/cluster.toml --size 2G --scheme rs:8+2
  cenote swap on --dir ~/.cenote/well --size 8G --backing /var/lib/cenote/swap.backing
  cenote swap status --dir ~/.cenote/well
  cenote swap off --dir ~/.cenote/well

Needs root. Run it outside the memory cgroup of the programs that swap: swap on refuses to start inside
one, and with hosts on this machine whose memory is not locked, because both can deadlock.

The volume's content is given back when swap is off, so a volume of --volume that holds data is refused.

With --backing every page is also written to disk, after the hosts have acknowledged it. Then all hosts
may take their memory back, and scheme plain is enough. Use an otherwise idle disk.

Without the kernel's nbd the device is a FUSE file under a loop device. Its requests arrive over
io_uring if the kernel allows that (cenote doctor), else over /dev/fuse; CENOTE_FUSE_URING=off in the
environment forces /dev/fuse.

Exit code 3 of swap off: swap is off, but some pages could not be read back.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create a volume and swap to it
    #[command(
        after_help = "Example:\n  cenote swap on --dir ~/.cenote/well --size 2G --scheme rs:8+2 --priority 10"
    )]
    On(On),
    /// Bring every page back, and turn swap off
    #[command(after_help = "Example:\n  cenote swap off --dir ~/.cenote/well")]
    Off {
        #[command(flatten)]
        which: Which,
    },
    /// Show the device, the swapped-out memory and errors
    #[command(after_help = "Example:\n  cenote swap status --dir ~/.cenote/well --json")]
    Status {
        #[command(flatten)]
        which: Which,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// The process behind `on`
    #[command(hide = true)]
    Serve(On),
}

#[derive(clap::Args, Clone, Debug)]
struct On {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Swap priority; higher is used first [default: the kernel's, below swap that is already on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=32767))]
    priority: Option<u16>,
    /// When to return the memory of freed swap pages to the hosts: once at the start, or whenever a
    /// cluster of pages is freed
    #[arg(long, value_name = "WHEN", default_value = "never")]
    discard: When,
    /// Threads that serve pages
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: u8,
    /// Bring pages back automatically when a host on this machine reports enough spare memory for
    /// all of them
    #[arg(long, value_enum, value_name = "WHEN", default_value = "on")]
    reclaim: Switch,
    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Allow other machines to reach --metrics
    #[arg(long, requires = "metrics")]
    allow_remote: bool,
}

/// [`Discard`] as words of the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum When {
    Never,
    Once,
    Pages,
}

impl From<When> for Discard {
    fn from(when: When) -> Self {
        match when {
            When::Never => Self::None,
            When::Once => Self::Once,
            When::Pages => Self::Pages,
        }
    }
}

impl Args {
    /// Whether this process is what answers for the swap space.
    pub fn serves(&self) -> bool {
        matches!(self.action, Action::Serve(_))
    }
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.action {
        Action::On(on) => turn_on(on),
        Action::Off { which } => turn_off(which),
        Action::Status { which, json, watch } => watch.show(*json, |out| status(which, *json, out)),
        Action::Serve(on) => serve(on),
    }
}

/// Where the server of the swap space keeps its files and answers.
fn folder(dir: &crate::place::ClusterDir) -> Result<PathBuf> {
    Ok(dir.folder().make("swap")?.path().to_owned())
}

fn turn_on(on: &On) -> Result<u8> {
    // Here, as the process that serves has its errors told as text.
    if let Some(size) = on.volume.size {
        check_size(size)?;
    }
    let loaded = on.which.load()?;
    let program = std::env::current_exe().context("find this program's file")?;
    let mut command = Command::new(program);
    command
        .args(["swap", "serve", "--cluster"])
        .arg(&loaded.file);
    command.args(on.volume.arguments()?);
    if let Some(priority) = on.priority {
        command.args(["--priority", &priority.to_string()]);
    }
    if let Some(when) = on.discard.to_possible_value() {
        command.args(["--discard", when.get_name()]);
    }
    command.args(["--threads", &on.threads.to_string()]);
    if on.reclaim == Switch::Off {
        command.args(["--reclaim", "off"]);
    }
    if let Some(address) = &on.metrics {
        command.args(["--metrics", &address.to_string()]);
    }
    if on.allow_remote {
        command.arg("--allow-remote");
    }
    let folder = folder(&loaded.dir)?;
    // Before another process is started, whose errors come as text.
    if let Ok(running) = control::status(&folder) {
        let (dir, pid) = (folder, running.pid);
        return Err(failure(Error::Running { dir, pid }).into());
    }
    if !Capabilities::of_this_process().has(CAP_SYS_ADMIN) {
        let what = "swap on: this user is not allowed to turn swap on (CAP_SYS_ADMIN)";
        return Err(Failure::new(what, "run it as root").into());
    }
    let bar = progress::line();
    let status = launch::start(command, &folder, |news| match news {
        News::Progress(text) => bar.set_message(text.to_owned()),
        News::Warning(text) => bar.suspend(|| eprintln!("warning: {text}")),
    });
    bar.finish_and_clear();
    let status = status.map_err(failure)?;
    println!(
        "swap on: {} on {}, pid {}",
        Size(status.size_bytes).rounded(),
        status.device.display(),
        status.pid
    );
    Ok(DONE)
}

/// Runs in the background, from its first thread on.
fn serve(on: &On) -> Result<u8> {
    let loaded = on.which.load()?;
    let options = Options {
        priority: on.priority,
        discard: on.discard.into(),
        thread_count: usize::from(on.threads),
        reclaim: on.reclaim == Switch::On,
        fuse: match fuse_rings::are_wanted() {
            true => FuseTransport::Auto,
            false => FuseTransport::DevFuse,
        },
        ..Options::new(folder(&loaded.dir)?)
    };
    // Held here, so that the volume outlives the device that serves it.
    let mut held = None;
    let outcome = server::run(options, Announcer::to_starter(), |say| {
        let serving = Serving::open(&loaded, &on.volume, End::GiveBack)?;
        if on.volume.backed.backing.is_none() {
            // With a disk behind it the volume takes pages at once, and memory where they are busy.
            let mapped = |mapped, wanted| say(&format!("{mapped} of {wanted} extents mapped"));
            serving.volume.map_all(mapped)?;
        }
        refuse::check_hosts_locked(&host_processes(&loaded)?)?;
        if let Some(address) = &on.metrics {
            // Before swap is on: a port that is taken is told, and nothing is to be undone.
            VolumeMetrics::new(&serving.volume, None).serve(address, on.allow_remote)?;
        }
        let disk: Arc<dyn Disk> = Arc::new(VolumeDisk::new(Arc::clone(&serving.volume)));
        held = Some(serving);
        Ok(disk)
    });
    if let (Ok(_), Some(serving)) = (&outcome, &mut held) {
        serving.announced();
    }
    drop(held);
    Ok(off_code(&outcome?))
}

/// Name and process of each host that runs on this machine.
fn host_processes(loaded: &Loaded) -> Result<Vec<(String, u32)>> {
    let mut found = Vec::new();
    for host in &loaded.cluster.hosts {
        if let Some(folder) = loaded.dir.host(&host.name)?
            && let Some(identity) = Identity::load(&folder)?
        {
            found.push((host.name.clone(), identity.pid));
        }
    }
    Ok(found)
}

fn turn_off(which: &Which) -> Result<u8> {
    let dir = which.directory()?;
    let folder = folder(&dir)?;
    // Named before it is asked to end, so that its end can be waited for.
    let server = match control::status(&folder) {
        Ok(status) => Identity::of(status.pid).and_then(|identity| identity.open())?,
        Err(error) => {
            if let Error::Silent { .. } = error {
                eprintln!("warning: {error}; waiting, since it may be bringing pages back");
            }
            None
        }
    };
    let bar = progress::line();
    let (mut time, mut total) = (Left::new(), None);
    let report = control::off(&folder, |left| {
        let total = *total.get_or_insert(left);
        let time = time.after(total.saturating_sub(left), total);
        bar.set_message(format!("{} to bring back{time}", Size(left).rounded()));
    });
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    if let Some(server) = server
        && !server.wait(Instant::now() + END_LIMIT)?
    {
        eprintln!("warning: swap is off; its server is still returning its memory");
    }
    println!(
        "swap off: {} brought back",
        Size(report.used_bytes).rounded()
    );
    if report.unreadable_pages > 0 {
        eprintln!(
            "warning: {} pages could not be read and are lost to their programs",
            report.unreadable_pages
        );
    }
    Ok(off_code(&report))
}

/// How long a server whose swap is off may take to give its memory back.
const END_LIMIT: Duration = Duration::from_secs(10);

fn off_code(report: &OffReport) -> u8 {
    if report.unreadable_pages == 0 {
        DONE
    } else {
        NOT_WHOLE
    }
}

fn status(which: &Which, json: bool, out: &mut impl Write) -> Result<u8> {
    let dir = which.directory()?;
    let status = control::status(&folder(&dir)?).map_err(failure)?;
    if json {
        let object = serde_json::json!({
            "device": status.device,
            "transport": status.transport,
            "pid": status.pid,
            "size_bytes": status.size_bytes,
            "used_bytes": status.used_bytes,
            "reads": status.reads,
            "writes": status.writes,
            "read_bytes": status.read_bytes,
            "written_bytes": status.written_bytes,
            "errors": status.errors,
            "unreadable_pages": status.unreadable_pages,
            "homecomings": status.reclaims,
            "home_bytes": status.reclaimed_bytes,
            "homecomings_cut": status.reclaims_cut,
        });
        writeln!(out, "{object:#}")?;
    } else {
        let (used, size) = (
            Size(status.used_bytes).rounded(),
            Size(status.size_bytes).rounded(),
        );
        writeln!(
            out,
            "{}: {used} of {size} swapped out, pid {}",
            status.device.display(),
            status.pid
        )?;
        if !status.transport.is_empty() {
            writeln!(out, "requests arrive over {}", status.transport)?;
        }
        writeln!(
            out,
            "{} reads, {} writes, {} errors",
            status.reads, status.writes, status.errors
        )?;
        writeln!(out, "{} pages cannot be read", status.unreadable_pages)?;
        if status.reclaims + status.reclaims_cut > 0 {
            writeln!(
                out,
                "{} reclaimed; {} complete reclaims, {} cut short",
                Size(status.reclaimed_bytes).rounded(),
                status.reclaims,
                status.reclaims_cut
            )?;
        }
    }
    Ok(if status.unreadable_pages == 0 {
        DONE
    } else {
        NOT_WHOLE
    })
}

/// The way out of each error of a swap device.
fn failure(error: Error) -> Failure {
    let remedy = match &error {
        Error::NotRunning { .. } => "cenote swap on",
        Error::LeftOn { .. } => "cenote swap off",
        Error::Running { .. } => "run cenote swap off first, or see cenote swap status",
        Error::Silent { .. } => {
            "wait if swap off is running; else check whether the process named in swap.lock is \
             stopped"
        }
        Error::StillOn { .. } => "free memory, then run cenote swap off again",
        _ => "cenote doctor checks what is missing",
    };
    Failure::new(error.to_string(), remedy)
}
