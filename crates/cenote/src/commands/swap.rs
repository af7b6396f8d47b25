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

It needs root. Keep it out of the memory limit of the programs that swap: `on` refuses that,
and hosts on this machine whose memory is not locked, because both can deadlock.

With --backing every page goes to the disk too, after the hosts' acknowledgement: then all of them may
take their memory back, and `plain` is enough. Put it on a disk with nothing else to do.

Without the kernel's nbd it is a FUSE file under a loop device. Its requests come over io_uring where
the kernel allows that (cenote doctor), else over /dev/fuse; CENOTE_FUSE_URING=off in the environment
keeps to /dev/fuse.

Exit code 3 of `off`: swap is off, and some pages could not be read back.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Make a volume and swap to it
    #[command(
        after_help = "Example:\n  cenote swap on --dir ~/.cenote/well --size 2G --scheme rs:8+2 --priority 10"
    )]
    On(On),
    /// Bring every page back, and end it
    #[command(after_help = "Example:\n  cenote swap off --dir ~/.cenote/well")]
    Off {
        #[command(flatten)]
        which: Which,
    },
    /// Show the device, what is swapped out and what went wrong
    #[command(after_help = "Example:\n  cenote swap status --dir ~/.cenote/well --json")]
    Status {
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
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
    /// Swap priority; higher is used first [default: the kernel's, after those that are on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=32767))]
    priority: Option<u16>,
    /// When to give the memory of freed pages back to the hosts: all of it once, at the start, or
    /// whenever a cluster of pages is freed
    #[arg(long, value_name = "WHEN", default_value = "never")]
    discard: When,
    /// Threads that serve pages
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: u8,
    /// Whether pages come back by themselves when a host on this machine says that it has memory
    /// to spare for all of them
    #[arg(long, value_enum, value_name = "WHEN", default_value = "on")]
    reclaim: Switch,
    /// Serve Prometheus metrics here
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<HostPort>,
    /// Let other machines reach --metrics
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
        let what = "swap on: this user may not turn swap on (CAP_SYS_ADMIN)";
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
                eprintln!("warning: {error}; it is waited for, as it may be bringing pages back");
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
        eprintln!("warning: swap is off; its server is still giving its memory back");
    }
    println!(
        "swap off: {} brought back",
        Size(report.used_bytes).rounded()
    );
    if report.unreadable_pages > 0 {
        eprintln!(
            "warning: {} pages could not be read; the programs they belong to lost them",
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
            writeln!(out, "requests come over {}", status.transport)?;
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
                "{} reclaimed, {} times in full, {} times cut short",
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
        Error::Running { .. } => "cenote swap off first, or cenote swap status",
        Error::Silent { .. } => {
            "wait where swap off is under way; else see whether the process is stopped that swap.lock names"
        }
        Error::StillOn { .. } => "free memory, then cenote swap off again",
        _ => "cenote doctor says what this machine lacks",
    };
    Failure::new(error.to_string(), remedy)
}
