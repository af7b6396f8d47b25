//! `cenote volume`: what volumes there are, and how each is.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_volume::{Placement, Scheme};
use serde_json::Value;

use super::attach::{attach, release};
use super::scrub::scrub;
use super::set::{Wish, describe_change, set};
use crate::expected::Expected;
use crate::failure::{DONE, Failure, NOT_WHOLE};
use crate::place::Which;
use crate::protected::Protected;
use crate::size::Size;
use crate::table::Table;
use crate::volumes::{Question, Spec, Volumes};

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
        /// One JSON array on standard output
        #[arg(long)]
        json: bool,
    },
    /// Show hosts, health and bytes per extent, regeneration, and memory lent
    #[command(
        after_help = "Example:\n  cenote volume status v0 --dir ~/.cenote/well --json\n\nExit code 3: not every extent is whole, or the journal cannot be written."
    )]
    Status {
        /// Which volume
        name: String,
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
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
    #[command(after_help = "\
Requests go on meanwhile. A mode and a delta hold from the next request on; parities are made, or
given up, part by part of the volume, and each part survives the loss of as many hosts as it has
parities by then. With another K all pages are cut anew, part by part: hosts need room for one part
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
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        limit: u64,
        /// Keep it until SIGTERM or SIGINT
        #[arg(long)]
        hold: bool,
        #[command(flatten)]
        which: Which,
        /// One JSON object on standard output
        #[arg(long)]
        json: bool,
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
        Action::List { which, json } => list(&Volumes::new(&which.directory()?), *json)?,
        Action::Status { name, which, json } => {
            return status(&Volumes::new(&which.directory()?), name, *json);
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
            limit,
            hold,
            which,
            json,
        } => {
            let limit = Duration::from_secs(*limit);
            return attach(which, name, limit, *hold, *json);
        }
        Action::Scrub { name, which, json } => return scrub(which, name, *json),
        Action::Reset { name, which } => release(which, name)?,
        Action::Delete { name, which } => {
            release(which, name)?;
            Volumes::new(&which.directory()?).delete(name)?;
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

fn list(volumes: &Volumes, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut rows = Vec::new();
    let mut table = Table::new(["VOLUME", "SIZE", "SCHEME", "STATE"]);
    for (name, spec) in volumes.list()? {
        let in_use = volumes.is_owned(&name)?;
        let state = if in_use { "in use" } else { "not in use" };
        // An owner that does not answer is one for `volume status`.
        let status = in_use.then(|| volumes.ask(&name, Question::Status).ok());
        let change = status.flatten().map(|status| status["change"].clone());
        let change = change.unwrap_or_default();
        let under_way = describe_change(&change).unwrap_or_default();
        rows.push(serde_json::json!({
            "name": name, "size": spec.size, "scheme": spec.scheme, "mode": spec.mode,
            "delta": spec.delta, "in_use": in_use, "change": change,
        }));
        let state = format!("{state}{under_way}");
        table.row(vec![name, spec.size, spec.scheme, state]);
    }
    if json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        table.write(&mut out)?;
    }
    Ok(())
}

fn status(volumes: &Volumes, name: &str, json: bool) -> Result<u8> {
    let spec = volumes.load(name)?;
    if !volumes.is_owned(name)? {
        let held = match volumes.left(name)? {
            Some(left) => format!(
                "{} slabs on {} hosts hold it for the next owner",
                left.slabs,
                left.hosts.len()
            ),
            None => "no host holds anything of it".to_owned(),
        };
        return Err(Failure::new(
            format!("volume {name} is not in use: {held}"),
            format!("cenote nbd --volume {name} serves it"),
        )
        .into());
    }
    let status = volumes.ask(name, Question::Status)?;
    let mut out = std::io::stdout().lock();
    if json {
        let whole = is_whole(&status);
        let object = serde_json::json!({
            "name": name, "size": spec.size, "scheme": spec.scheme, "placement": spec.placement,
            "whole": whole, "status": status,
        });
        serde_json::to_writer_pretty(&mut out, &object)?;
        writeln!(out)?;
    } else {
        print(&mut out, name, &spec, &status)?;
    }
    Ok(if is_whole(&status) { DONE } else { NOT_WHOLE })
}

fn resize(volumes: &Volumes, name: &str, size: Size) -> Result<()> {
    volumes.load(name)?;
    if volumes.is_owned(name)? {
        volumes.ask(
            name,
            Question::Resize {
                bytes: size.bytes(),
            },
        )?;
        return volumes.set_size(name, size);
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

/// Whether every extent has all its slabs, no page is lost, and the next owner would find all of it. `status` is
/// what the owner of a volume answers: `cenote_volume::VolumeStatus` as JSON.
pub fn is_whole(status: &Value) -> bool {
    let is_known = status["journal"]["error"].is_null();
    status["health"] == "healthy" && lost_pages(status) == 0 && is_known
}

/// Pages that are errors until they are written whole.
fn lost_pages(status: &Value) -> u64 {
    status["torn_pages"].as_u64().unwrap_or(0)
}

/// What is wrong with a volume's journal, for people; nothing mostly.
fn describe_journal(journal: &Value) -> Option<String> {
    let error = journal["error"].as_str()?;
    let seconds = journal["failing_s"].as_u64().unwrap_or(0);
    Some(format!(
        "; writes wait: its journal cannot be written for {seconds} s ({error})"
    ))
}

/// What it expects of its hosts.
fn expectation(status: &Value) -> String {
    let (mode, delta) = (status["mode"].as_str(), status["delta"].as_u64());
    match (mode, delta) {
        (Some(mode), Some(delta)) => format!(" {mode} delta {delta}"),
        _ => String::new(),
    }
}

/// One line on how a volume is.
pub fn health(status: &Value) -> String {
    let extents = status["extents"].as_array().map_or(&[][..], Vec::as_slice);
    let health = status["health"].as_str().unwrap_or("unknown");
    let whole = extents
        .iter()
        .filter(|extent| extent["health"] == "healthy")
        .count();
    let change = describe_change(&status["change"]).unwrap_or_default();
    let lost = match lost_pages(status) {
        0 => String::new(),
        pages => format!(", {pages} pages lost (errors until they are written whole)"),
    };
    let journal = describe_journal(&status["journal"]).unwrap_or_default();
    format!(
        "{health}, {whole} of {} extents whole{lost}{change}{journal}",
        extents.len()
    )
}

fn print(out: &mut impl Write, name: &str, spec: &Spec, status: &Value) -> Result<()> {
    let bytes = |field: &str| Size(status[field].as_u64().unwrap_or(0)).rounded();
    let placement = spec.placement.as_deref();
    let placement = placement.map(|text| format!(" {text}")).unwrap_or_default();
    writeln!(
        out,
        "{name}: {} {}{}{placement}, {}",
        spec.size,
        spec.scheme,
        expectation(status),
        health(status)
    )?;
    writeln!(
        out,
        "stored {}, lent {}, {:.3} bytes lent per byte of mapped extents ({})",
        bytes("stored_bytes"),
        bytes("lent_bytes"),
        status["overhead"].as_f64().unwrap_or(0.0),
        bytes("mapped_bytes"),
    )?;
    if let Some(backing) = status["backing"].as_object() {
        let number = |field: &str| backing[field].as_u64().unwrap_or(0);
        writeln!(
            out,
            "backing store: {} with hosts as well, {} on its way to the disk, {} pages that the disk refused",
            Size(number("remote_bytes")).rounded(),
            Size(number("pending_bytes")).rounded(),
            number("stale_pages"),
        )?;
    }
    print_integrity(out, spec, status)?;
    let mut table = Table::new(["EXTENT", "HEALTH", "STORED", "PAGES/S", "REBUILT", "HOSTS"]);
    for extent in status["extents"].as_array().into_iter().flatten() {
        let hosts = extent["hosts"].as_array().into_iter().flatten();
        let hosts: Vec<&str> = hosts.map(|host| host.as_str().unwrap_or("-")).collect();
        let rebuilt = extent["regenerated"].as_f64();
        table.row(vec![
            extent["index"].to_string(),
            extent["health"].as_str().unwrap_or("unknown").to_owned(),
            Size(extent["stored_bytes"].as_u64().unwrap_or(0)).rounded(),
            format!("{:.0}", extent["activity"].as_f64().unwrap_or(0.0)),
            rebuilt.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
            hosts.join(" "),
        ]);
    }
    table.write(out)?;
    Ok(())
}

/// What was found wrong in hosts' memory; nothing where nothing was looked for and nothing found.
fn print_integrity(out: &mut impl Write, spec: &Spec, status: &Value) -> Result<()> {
    let number = |part: &str, field: &str| status[part][field].as_u64().unwrap_or(0);
    let wrong = number("integrity", "wrong_splits") + number("integrity", "corrupt_reads");
    if spec.protection.is_some() || wrong > 0 {
        writeln!(
            out,
            "protection: {}; {} wrong splits, {} written anew, {} reads that were errors for it",
            spec.protection.as_deref().unwrap_or("none"),
            number("integrity", "wrong_splits"),
            number("integrity", "healed_splits"),
            number("integrity", "corrupt_reads"),
        )?;
    }
    let last = &status["scrub"]["last"];
    if last.is_object() {
        writeln!(
            out,
            "last scrub: {} pages, {} wrong splits, {} written anew, {} pages corrupt",
            last["pages"], last["wrong_splits"], last["healed_splits"], last["corrupt_pages"],
        )?;
    }
    let hosts = status["hosts"].as_array().into_iter().flatten();
    for host in hosts.filter(|host| host["standing"].as_str().unwrap_or("trusted") != "trusted") {
        writeln!(
            out,
            "host {} is {}: it sent {} wrong splits",
            host["name"].as_str().unwrap_or("-"),
            host["standing"].as_str().unwrap_or("-"),
            host["wrong_splits"],
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_cannot_be_written_shows_in_every_view() {
        let mut status = serde_json::json!({
            "health": "healthy", "extents": [],
            "journal": {"error": null, "failing_s": null},
        });
        assert!(is_whole(&status));
        assert_eq!(health(&status), "healthy, 0 of 0 extents whole");
        status["journal"] = serde_json::json!({"error": "no room", "failing_s": 12});
        assert!(!is_whole(&status));
        let text = health(&status);
        assert!(
            text.ends_with("; writes wait: its journal cannot be written for 12 s (no room)"),
            "{text}"
        );
        // Of a volume that leaves nothing to a next owner.
        status["journal"] = Value::Null;
        assert!(is_whole(&status));
    }

    #[test]
    fn a_degraded_extent_shows_in_every_view() {
        let status = serde_json::json!({
            "health": "degraded", "mode": "detection", "delta": 1, "overhead": 1.25, "stored_bytes": 4096, "lent_bytes": 10 << 20,
            "mapped_bytes": 8 << 20,
            "backing": {"remote_bytes": 8192, "pending_bytes": 4096, "stale_pages": 1},
            "extents": [
                {"index": 0, "health": "healthy", "stored_bytes": 4096, "hosts": ["h00", "h01"], "regenerated": null},
                {"index": 3, "health": "degraded", "activity": 21.4, "stored_bytes": 0, "hosts": ["h00", null], "regenerated": 0.5},
            ],
        });
        assert!(!is_whole(&status));
        assert_eq!(health(&status), "degraded, 1 of 2 extents whole");
        let spec = Spec {
            id: String::new(),
            size: "2G".to_owned(),
            scheme: "rs:8+2".to_owned(),
            mode: None,
            delta: None,
            placement: Some("coding-sets:2".to_owned()),
            protection: None,
            key: None,
        };
        let mut out = Vec::new();
        print(&mut out, "v0", &spec, &status).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains(
                "v0: 2G rs:8+2 detection delta 1 coding-sets:2, degraded, 1 of 2 extents whole"
            ),
            "{text}"
        );
        assert!(
            text.contains("8.00 KiB with hosts as well, 4.00 KiB on its way"),
            "{text}"
        );
        assert!(
            text.lines()
                .last()
                .unwrap()
                .ends_with("21       50%      h00 -"),
            "{text}"
        );
    }
}
