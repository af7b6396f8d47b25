//! `cenote volume`: what volumes there are, and how each is.

mod state;

use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_volume::{Placement, SIZE_BYTES_MAX, Scheme};

use super::attach::{attach, delete, reset};
use super::scrub::scrub;
use super::set::{Wish, set};
use crate::background;
use crate::expectations::Expected;
use crate::place::Which;
use crate::protection::Protected;
use crate::volumes::{Question, Spec, UNNAMED, Volumes};
use crate::watch::Watch;
pub use state::{health, is_whole};

/// `volume` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote volume create v0 --size 2G --scheme rs:8+2 --dir ~/.cenote/well
  cenote nbd --cluster ~/.cenote/well/cluster.toml --volume v0 --socket ~/.cenote/well/nbd
  cenote volume status v0 --dir ~/.cenote/well
  cenote volume resize v0 --size 4G --dir ~/.cenote/well
  cenote volume delete v0 --dir ~/.cenote/well

Memory is allocated when a volume is written. Its content outlives the process that serves it: hosts keep
it for the next one, for a day or until they need the memory.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create a volume
    #[command(
        after_help = "Example:\n  cenote volume create v0 --size 2G --scheme rs:8+2 --dir ~/.cenote/well"
    )]
    Create {
        /// Name of the volume: letters, digits, '-', '_' and '.'
        name: String,
        /// Size of the volume
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// Redundancy: plain, mirror:N (N copies) or rs:K+R (K data and R parity splits; any R may
        /// be lost)
        #[arg(long, value_name = "SCHEME", default_value = "rs:8+2")]
        scheme: String,
        /// Placement policy: coding-sets:L, least-loaded, two-choices, single or random [default:
        /// two-choices for plain; else coding-sets:2 if there are hosts for two groups, else
        /// least-loaded]
        #[arg(long, value_name = "PLACEMENT")]
        placement: Option<Placement>,
        #[command(flatten)]
        expected: Expected,
        #[command(flatten)]
        protected: Protected,
        #[command(flatten)]
        which: Which,
    },
    /// List volumes
    #[command(after_help = "\
Example:
  cenote volume list --dir ~/.cenote/well

Exit code 3: the file of a volume cannot be read.")]
    List {
        #[command(flatten)]
        which: Which,
        /// Timeout for the owner's answer
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("1ms", "60s"))]
        timeout: Duration,
        /// Print one JSON array
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// Show hosts, health and bytes per extent, rebuilds, and memory lent
    #[command(after_help = "\
Examples:
  cenote volume status --dir ~/.cenote/well
  cenote volume status v0 --dir ~/.cenote/well --json

Exit code 3: an extent is degraded, or the journal cannot be written, or a file of a volume cannot be
read.")]
    Status {
        /// Name of the volume [default: all, one line each]
        name: Option<String>,
        #[command(flatten)]
        which: Which,
        /// Timeout for the owner's answer
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("1ms", "60s"))]
        timeout: Duration,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// Resize a volume; it may be in use
    #[command(after_help = "\
A volume in use can only grow, up to 8 times the size that it was opened with. One that is not in use
can grow to any size; it can shrink only when it is empty.

Example:
  cenote volume resize v0 --size 4G --dir ~/.cenote/well")]
    Resize {
        /// Name of the volume
        name: String,
        /// New size; a volume in use cannot shrink
        #[arg(long, value_name = "SIZE")]
        size: Size,
        #[command(flatten)]
        which: Which,
    },
    /// Change scheme, mode or delta of a volume; it may be in use
    #[command(override_usage = "cenote volume set [OPTIONS] <NAME>")]
    #[command(after_help = "\
Requests are served meanwhile. A new mode or delta applies from the next request on. Parities are added
or dropped extent by extent, and each extent survives the loss of as many hosts as it has parities at
that time. With another K all pages are restriped, extent by extent: hosts need room to hold one extent
twice, and the change waits while they have none. Setting the old scheme reverts the change. The change
continues if this command is interrupted; if the volume's server ends, the next one resumes it.

Examples:
  cenote volume set v0 --scheme rs:8+3 --mode correction --dir ~/.cenote/well
  cenote volume set v0 --delta 1 --dir ~/.cenote/well --json")]
    Set {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        wish: Wish,
        /// Do not wait for the change to finish
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        which: Which,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take over a volume whose server has ended, repair it, and release it
    #[command(after_help = "\
Slabs are claimed from their hosts, writes in flight are repeated, and lost slabs are rebuilt. cenote
nbd --volume does the same before it serves. Use this to inspect a volume or, with --hold, to keep
hosts from taking the memory of a volume that nobody serves.

Example:
  cenote volume attach v0 --dir ~/.cenote/well --json

Exit code 3: an extent is degraded, or pages cannot be read.")]
    Attach {
        /// Name of the volume
        name: String,
        /// How long to wait until the volume is whole
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
        timeout: Duration,
        /// Hold the volume until SIGTERM or SIGINT
        #[arg(long)]
        hold: bool,
        #[command(flatten)]
        which: Which,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Stop a volume's server that was started with --background
    #[command(after_help = "\
Hosts keep the volume's content for the next server. A server in the foreground is stopped with Ctrl-C or
SIGTERM.

Example:
  cenote volume stop v0 --dir ~/.cenote/well")]
    Stop {
        /// Name of the volume
        name: String,
        /// How long to wait for the server to exit
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
        timeout: Duration,
        #[command(flatten)]
        which: Which,
    },
    /// Verify every page against all its splits, and repair wrong ones
    #[command(after_help = "\
If nobody serves the volume, this process owns it meanwhile.

Example:
  cenote volume scrub v0 --dir ~/.cenote/well --json

Exit code 3: some pages are corrupt beyond repair, or cannot be read.")]
    Scrub {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        which: Which,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Discard a volume's content; the volume stays defined
    #[command(after_help = "Example:\n  cenote volume reset v0 --dir ~/.cenote/well")]
    Reset {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        which: Which,
    },
    /// Delete a volume that is not in use, and its content
    #[command(after_help = "Example:\n  cenote volume delete v0 --dir ~/.cenote/well")]
    Delete {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        which: Which,
    },
}

impl Args {
    /// Whether a volume is opened here, and to be closed in good order.
    pub fn owns(&self) -> bool {
        match &self.action {
            Action::Attach { .. }
            | Action::Scrub { .. }
            | Action::Reset { .. }
            | Action::Delete { .. } => true,
            Action::Create { .. }
            | Action::List { .. }
            | Action::Status { .. }
            | Action::Resize { .. }
            | Action::Stop { .. }
            | Action::Set { .. } => false,
        }
    }
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.action {
        Action::Create {
            name,
            size,
            scheme,
            expected,
            placement,
            protected,
            which,
        } => {
            let volumes = Volumes::new(&which.directory()?);
            let mut spec = Spec::new(check_size(*size)?, check_scheme(scheme)?)?;
            spec.expect(expected.of(scheme)?);
            spec.placement = placement.map(|placement| placement.to_string());
            protected.describe(&mut spec)?;
            volumes.create(name, &spec)?;
            println!("{name}");
        }
        Action::List {
            which,
            timeout,
            json,
            watch,
        } => {
            let volumes = Volumes::new(&which.directory()?);
            return watch.show(*json, |out| state::list(&volumes, *timeout, *json, out));
        }
        Action::Status {
            name,
            which,
            timeout,
            json,
            watch,
        } => {
            let volumes = Volumes::new(&which.directory()?);
            return watch.show(*json, |out| match name {
                Some(name) => state::status(&volumes, name, *timeout, *json, out),
                None => state::all(&volumes, *timeout, *json, out),
            });
        }
        Action::Resize { name, size, which } => {
            resize(&Volumes::new(&which.directory()?), name, check_size(*size)?)?;
        }
        Action::Set {
            name,
            wish,
            no_wait,
            which,
            json,
        } => return set(which, name, wish, !no_wait, *json),
        Action::Attach {
            name,
            timeout,
            hold,
            which,
            json,
        } => {
            return attach(which, name, *timeout, *hold, *json);
        }
        Action::Scrub { name, which, json } => return scrub(which, name, *json),
        Action::Reset { name, which } => {
            let released = reset(which, name)?;
            println!("{name}: {released}; it is now empty");
        }
        Action::Delete { name, which } => {
            let released = delete(which, name)?;
            println!("{name}: {released}; the volume is deleted");
        }
        Action::Stop {
            name,
            timeout,
            which,
        } => {
            let dir = which.directory()?;
            Volumes::new(&dir).load(name)?;
            let pid = background::stop(&dir, name, *timeout)?;
            let content = match name.starts_with(UNNAMED) {
                true => "the volume's content was deleted",
                false => "hosts keep the volume's content",
            };
            println!("{name}: process {pid} has ended; {content}");
        }
    }
    Ok(DONE)
}

/// A size that a volume can have.
pub fn check_size(size: Size) -> Result<Size> {
    if size.bytes() == 0 || !size.bytes().is_multiple_of(4096) {
        let what = format!("--size {size}: must be a positive multiple of 4096 bytes");
        return Err(Failure::usage(what, "--size 2G").into());
    }
    if size.bytes() > SIZE_BYTES_MAX {
        let most = Size(SIZE_BYTES_MAX);
        let what = format!("--size {size}: a volume can have at most {most}");
        return Err(Failure::usage(what, format!("--size {most}")).into());
    }
    Ok(size)
}

/// A scheme that a volume can have.
pub fn check_scheme(scheme: &str) -> Result<&str> {
    match scheme.parse::<Scheme>() {
        Ok(_) => Ok(scheme),
        Err(error) => Err(Failure::usage(format!("--scheme: {error}"), "--scheme rs:8+2").into()),
    }
}

fn resize(volumes: &Volumes, name: &str, size: Size) -> Result<()> {
    let before = volumes.load(name)?.size;
    set_size(volumes, name, size)?;
    println!("{name}: {size}, {before} before");
    Ok(())
}

fn set_size(volumes: &Volumes, name: &str, size: Size) -> Result<()> {
    if volumes.is_owned(name)? {
        let bytes = size.bytes();
        volumes.ask(name, Question::Resize { bytes })?;
        return Ok(());
    }
    // Held while the file changes, so that nobody opens the volume in between.
    let _owner = volumes.own(name)?;
    if let Some(left) = volumes.left(name)? {
        let before = volumes.load(name)?.size()?.bytes();
        let most = left.size_bytes_max.min(SIZE_BYTES_MAX);
        // With more than that it cannot have been opened: nothing is there.
        if size.bytes() < before && before <= most {
            return Err(Failure::new(
                format!("volume {name} has data and can only grow"),
                format!("cenote volume reset {name} discards its content"),
            )
            .into());
        }
        if size.bytes() > most {
            let most = Size(most);
            return Err(Failure::new(
                format!("volume {name} has data, and its slabs allow at most {most}"),
                format!("cenote volume resize {name} --size {most}"),
            )
            .into());
        }
    }
    volumes.set_size(name, size)
}
