//! `cenote support-bundle`: one archive for a bug report.
//!
//! Everything is asked at the same time, and each of it has a limit: what does not answer is noted in
//! the bundle's manifest, and the rest is there. Secrets are left out of all of it (`secrets.rs`), and
//! files that have them are never opened for it.

mod archive;
mod files;
mod part;
mod secrets;
mod sources;

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::progress;
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_cli::stdout;
use cenote_fabric::HostPort;
use serde_json::json;

use self::archive::Archive;
use self::part::{Content, Line, Part};
use self::secrets::Redactor;
use crate::place::{ClusterDir, Which};

/// `support-bundle` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote support-bundle --dir ~/.cenote/well
  cenote support-bundle --cluster cluster.toml --metrics 127.0.0.1:9640
  cenote support-bundle --out report.tar.gz
  tar tzf report.tar.gz

The archive contains version and build; findings of cenote doctor; status of hosts, volumes, caches, swap
and key-value nodes as JSON; metrics; the ends of logs; configuration; and relevant kernel settings.
Keys, tokens, passwords, user files, and whatever looks like a secret are left out. Still, look through
it before you send it. manifest.json names the parts that did not answer.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Archive to write [default: cenote-support-SECONDS.tar.gz in the current folder, with Unix
    /// time]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Timeout of each part; all are collected in parallel
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = span::within("100ms", "10m"))]
    timeout: Duration,
    /// Bytes to take from the end of each log
    #[arg(long, value_name = "SIZE", default_value = "256K")]
    log_bytes: Size,
    /// Additional metrics address, besides those found in the cluster folder's logs; may be
    /// repeated
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Vec<HostPort>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Most pages of metrics.
const PAGES_MAX: usize = 64;

pub fn run(args: &Args) -> Result<u8> {
    let made_at = SystemTime::now().duration_since(UNIX_EPOCH);
    let made_at_s = made_at.map_or(0, |since| since.as_secs());
    let root = format!("cenote-support-{made_at_s}");
    let path = args.out.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{root}.tar.gz")));
    let began = Instant::now();
    // Of a machine without a cluster there is something to tell as well.
    let dir = match args.which.is_named() {
        true => Some(args.which.directory()?),
        false => None,
    };
    let mut redactor = Redactor::default();
    // Without what is secret in them no file goes in.
    let chosen = files::learn(&mut redactor, dir.as_ref())
        .and_then(|()| files::chosen(dir.as_ref(), args.log_bytes.bytes()))
        .map(|chosen| chosen.iter().map(files::Chosen::read).collect::<Vec<_>>());
    if let Ok(parts) = &chosen {
        files::learn_configured(&mut redactor, parts);
    }
    let mut archive = Archive::create(&path, &root, made_at_s).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AlreadyExists => "use --out with a file that does not exist",
            ErrorKind::NotFound => "use --out with a file in a folder that exists",
            _ => "use --out with a file that can be made",
        };
        Failure::new(format!("write {}: {error}", path.display()), remedy)
    })?;
    let parts = gather(args, dir.as_ref(), chosen)?;
    let write = || format!("write {}", path.display());
    let mut lines = Vec::new();
    for part in parts {
        lines.push(add(&mut archive, part, &redactor).with_context(write)?);
    }
    let manifest = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": build(),
        "made_at_s": made_at_s,
        "took_ms": began.elapsed().as_millis() as u64,
        "cluster": dir.as_ref().map(|dir| dir.root().display().to_string()),
        "parts": lines,
    });
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    archive
        .add("manifest.json", &text, &redactor)
        .with_context(write)?;
    let bytes = archive.finish().with_context(write)?;
    tell(args, &path, bytes, &lines)?;
    Ok(DONE)
}

/// What this program was built as.
fn build() -> serde_json::Value {
    json!({
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
        "debug_assertions": cfg!(debug_assertions),
        "rdma": cfg!(feature = "rdma"),
    })
}

/// Asks for everything at once; in a fixed order.
fn gather(args: &Args, dir: Option<&ClusterDir>, chosen: Result<Vec<Part>>) -> Result<Vec<Part>> {
    let program = std::env::current_exe().context("find this program's file")?;
    let commands = commands(args, dir)?;
    let mut parts = vec![sources::kernel()];
    match chosen {
        Ok(chosen) => parts.extend(chosen),
        Err(error) => parts.push(Part::made("logs and config", || Err(error))),
    }
    let pages = pages(args, &parts);
    let bar = progress::steps((commands.len() + pages.len()) as u64, "answers");
    let answers: Vec<Part> = std::thread::scope(|scope| {
        let (program, bar, limit) = (&program, &bar, args.timeout);
        let asked = commands.iter().map(|(name, arguments)| {
            scope.spawn(move || {
                let part = sources::command(name, program, arguments, limit);
                bar.inc(1);
                part
            })
        });
        let read = pages.iter().map(|address| {
            scope.spawn(move || {
                let part = sources::metrics(address, limit);
                bar.inc(1);
                part
            })
        });
        let threads: Vec<_> = asked
            .collect::<Vec<_>>()
            .into_iter()
            .chain(read.collect::<Vec<_>>())
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|part| part.expect("asking does not panic"))
            .collect()
    });
    bar.finish_and_clear();
    parts.extend(answers);
    Ok(parts)
}

/// Names of parts, and the commands that they are the answers of.
fn commands(args: &Args, dir: Option<&ClusterDir>) -> Result<Vec<(String, Vec<String>)>> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut commands = vec![
        ("version.txt".to_owned(), words("--version")),
        ("fabric.json".to_owned(), words("fabric list --json")),
    ];
    let mut add = |name: &str, command: &str, place: &[String]| {
        let mut arguments = words(command);
        arguments.extend_from_slice(place);
        commands.push((name.to_owned(), arguments));
    };
    // Of its own limit each command leaves the better part for what it does besides; doctor asks one kind of
    // part after the other.
    let within = |share: u32| {
        let limit = (args.timeout / share).min(Duration::from_secs(60));
        format!("--timeout {}ms", limit.as_millis())
    };
    let (doctor, some) = (format!("doctor --json {}", within(8)), within(4));
    let Some(dir) = dir else {
        add("doctor.json", &doctor, &[]);
        return Ok(commands);
    };
    let place = args
        .which
        .absolute()?
        .map(|word| word.to_string_lossy().into_owned());
    add("doctor.json", &doctor, &place);
    let root = dir.folder();
    if root.has("cluster.toml")? || !root.has("kv.json")? {
        add(
            "status/hosts.json",
            &format!("status --json {some}"),
            &place,
        );
        let volumes = format!("volume status --json {some}");
        add("status/volumes.json", &volumes, &place);
    }
    for (folder, name, command) in [
        ("caches", "status/caches.json", "cache status --json"),
        ("swap", "status/swap.json", "swap status --json"),
    ] {
        if root.has(folder)? {
            add(name, command, &place);
        }
    }
    if root.has("kv.json")? {
        let place = std::path::absolute(dir.root()).context("find the folder")?;
        let place = ["--dir".to_owned(), place.to_string_lossy().into_owned()];
        add(
            "status/kv.json",
            &format!("kv status --json {some}"),
            &place,
        );
    }
    Ok(commands)
}

/// Where pages of metrics are: as the newest line of each log says, and as was asked for.
fn pages(args: &Args, parts: &[Part]) -> Vec<String> {
    let mut pages: Vec<String> = args.metrics.iter().map(ToString::to_string).collect();
    for part in parts {
        if let Ok(Content::Text(text)) = &part.content
            && part.name.starts_with("logs/")
        {
            pages.extend(page_of(text));
        }
    }
    pages.sort_unstable();
    pages.dedup();
    pages.truncate(PAGES_MAX);
    pages
}

fn page_of(log: &str) -> Option<String> {
    let said = log.lines().rev().find_map(|line| {
        let address = line.strip_prefix("metrics at http://")?;
        address.strip_suffix("/metrics")
    })?;
    // Whatever a log has that looks so goes nowhere but to an address.
    said.parse::<HostPort>().ok().map(|at| at.to_string())
}

/// Adds a part, or says why it is not there.
fn add(archive: &mut Archive, part: Part, redactor: &Redactor) -> Result<Line> {
    let mut line = Line {
        name: part.name,
        took_ms: u64::try_from(part.took.as_millis()).unwrap_or(u64::MAX),
        bytes: 0,
        error: None,
        code: None,
        said: String::new(),
    };
    let text = match part.content {
        Ok(Content::Text(text)) => text,
        Ok(Content::Json(value)) => serde_json::to_string_pretty(&value)? + "\n",
        Ok(Content::Answer { text, said, code }) => {
            line.code = code;
            line.said = said;
            if text.is_empty() {
                line.error = Some("it printed nothing".to_owned());
                return Ok(line);
            }
            text
        }
        Err(error) => {
            line.error = Some(error);
            return Ok(line);
        }
    };
    line.bytes = archive.add(&line.name, &text, redactor)?;
    Ok(line)
}

fn tell(args: &Args, path: &Path, bytes: u64, lines: &[Line]) -> Result<()> {
    let missing = || lines.iter().filter(|line| line.error.is_some());
    let mut out = stdout::lock();
    if args.json {
        let object = json!({ "file": path, "bytes": bytes, "parts": lines });
        serde_json::to_writer_pretty(&mut out, &object)?;
        writeln!(out)?;
        return Ok(());
    }
    let (there, size) = (lines.len() - missing().count(), Size(bytes).rounded());
    writeln!(out, "{}: {there} parts, {size}", path.display())?;
    for line in missing() {
        let why = line.error.as_deref().unwrap_or_default();
        let said = line.said.lines().next().unwrap_or_default();
        writeln!(out, "  missing: {}: {why}: {said}", line.name)?;
    }
    writeln!(
        out,
        "Keys, tokens and passwords are left out. Look through it before you send it."
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_where_the_newest_line_of_a_log_says() {
        let log = "metrics at http://127.0.0.1:1/metrics\nready\nmetrics at http://127.0.0.1:2/metrics\nx\n";
        assert_eq!(page_of(log).as_deref(), Some("127.0.0.1:2"));
        assert_eq!(page_of("metrics at http://a b:2/metrics\n"), None);
        assert_eq!(page_of("see metrics at http://127.0.0.1:2/metrics\n"), None);
    }
}
