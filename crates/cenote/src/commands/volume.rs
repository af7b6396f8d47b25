//! `cenote volume`: what volumes there are, and how each is.

mod state;

use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_volume::{Placement, Scheme};

use super::attach::{attach, release};
use super::scrub::scrub;
use super::set::{Wish, set};
use crate::background;
use crate::expectations::Expected;
use crate::place::Which;
use crate::protection::Protected;
use crate::volumes::{Question, Spec, Volumes};
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

A volume takes memory when it is written to. What it holds outlives the process that serves it:
hosts keep it for the next one, until they are in want of memory or a day is over.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Describe a new volume
    #[command(
        after_help = "Example:\n  cenote volume create v0 --size 2G --scheme rs:8+2 --dir ~/.cenote/well"
    )]
    Create {
        /// Letters, digits, '-', '_' and '.'
        name: String,
        /// Size of the volume
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// plain, mirror:N (N copies) or rs:K+R (K splits of a page, any R of K+R may be lost)
        #[arg(long, value_name = "SCHEME", default_value = "rs:8+2")]
        scheme: String,
        /// Where its hosts come from: coding-sets:L, least-loaded, two-choices or random
        /// [default: coding-sets:2 where there are hosts for two groups, else least-loaded]
        #[arg(long, value_name = "PLACEMENT")]
        placement: Option<Placement>,
        #[command(flatten)]
        expected: Expected,
        #[command(flatten)]
        protected: Protected,
        #[command(flatten)]
        which: Which,
    },
    /// List the volumes
    #[command(after_help = "Example:\n  cenote volume list --dir ~/.cenote/well")]
    List {
        #[command(flatten)]
        which: Which,
        /// How long an owner may take to answer
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("1ms", "60s"))]
        timeout: Duration,
        /// One JSON array on standard output
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

Exit code 3: not every extent is whole, or the journal cannot be written.")]
    Status {
        /// Which volume [default: all of them, a line each]
        name: Option<String>,
        #[command(flatten)]
        which: Which,
        /// How long an owner may take to answer
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("1ms", "60s"))]
        timeout: Duration,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// Grow a volume, also while it is in use
    #[command(after_help = "\
A volume in use only grows, up to 8 times the size that it was opened with. One that is not in
use grows to any size; it shrinks only when it holds nothing.

Example:
  cenote volume resize v0 --size 4G --dir ~/.cenote/well")]
    Resize {
        /// Which volume
        name: String,
        /// The new size; of a volume in use no less than now
        #[arg(long, value_name = "SIZE")]
        size: Size,
        #[command(flatten)]
        which: Which,
    },
    /// Change scheme, mode or delta of a volume, also while it is in use
    #[command(override_usage = "cenote volume set [OPTIONS] <NAME>")]
    #[command(after_help = "\
Requests go on meanwhile. A mode and a delta hold from the next request on; parities are made, or
given up, part by part of the volume, and each part survives the loss of as many hosts as it has
parities by then. With another K all pages are restriped, part by part: hosts need room for one part
twice, and while they have none the change waits. The old scheme, set again, takes it back. Should
the volume's server end in the middle, the next one goes on; so does this command's change when the
command is ended.

Examples:
  cenote volume set v0 --scheme rs:8+3 --mode correction --dir ~/.cenote/well
  cenote volume set v0 --delta 1 --dir ~/.cenote/well --json")]
    Set {
        /// Which volume
        name: String,
        #[command(flatten)]
        wish: Wish,
        /// Do not wait for the end of the change
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Take over a volume whose server has ended, make it whole, and leave it to the next
    #[command(after_help = "\
Its slabs are asked back from their hosts, writes that were under way are done again, and what hosts
have lost is rebuilt. `cenote nbd --volume` does the same before it serves; this is for
looking, and with --hold for keeping hosts from taking the memory of a volume that nobody serves.

Example:
  cenote volume attach v0 --dir ~/.cenote/well --json

Exit code 3: not every extent is whole, or pages cannot be read.")]
    Attach {
        /// Which volume
        name: String,
        /// How long to wait until it is whole
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
        timeout: Duration,
        /// Keep it until SIGTERM or SIGINT
        #[arg(long)]
        hold: bool,
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// End the server of a volume that was started with --background
    #[command(after_help = "\
What the volume holds stays: serve it again. A server in the foreground is ended by Ctrl-C or SIGTERM.

Example:
  cenote volume stop v0 --dir ~/.cenote/well")]
    Stop {
        /// Which volume
        name: String,
        /// How long it may take
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
        timeout: Duration,
        #[command(flatten)]
        which: Which,
    },
    /// Look at every page once: compare what hosts hold of it, and put right what is wrong
    #[command(after_help = "\
Of a volume that nobody serves this process is the owner meanwhile.

Example:
  cenote volume scrub v0 --dir ~/.cenote/well --json

Exit code 3: pages are wrong and cannot be put right, or cannot be read.")]
    Scrub {
        /// Which volume
        name: String,
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
    },
    /// Give up what a volume holds; it stays described
    #[command(after_help = "Example:\n  cenote volume reset v0 --dir ~/.cenote/well")]
    Reset {
        /// Which volume
        name: String,
        #[command(flatten)]
        which: Which,
    },
    /// Forget a volume that is not in use, and what it holds
    #[command(after_help = "Example:\n  cenote volume delete v0 --dir ~/.cenote/well")]
    Delete {
        /// Which volume
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
            let released = release(which, name)?;
            println!("{name}: {released}; it holds nothing now");
        }
        Action::Delete { name, which } => {
            let released = release(which, name)?;
            Volumes::new(&which.directory()?).delete(name)?;
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
            println!("{name}: process {pid} has ended; hosts keep what the volume holds");
        }
    }
    Ok(DONE)
}

/// A size that a volume can have.
pub fn check_size(size: Size) -> Result<Size> {
    if size.bytes() != 0 && size.bytes().is_multiple_of(4096) {
        return Ok(size);
    }
    Err(Failure::usage(
        format!("--size {size}: a volume has whole pages of 4096 bytes, at least one"),
        "--size 2G",
    )
    .into())
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
    if volumes.left(name)?.is_some() && size.bytes() < volumes.load(name)?.size()?.bytes() {
        return Err(Failure::new(
            format!("volume {name} holds data, and only grows"),
            format!("cenote volume reset {name} gives its content up"),
        )
        .into());
    }
    volumes.set_size(name, size)
}
