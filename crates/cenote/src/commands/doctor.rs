//! `cenote doctor`: what this machine lacks, how the parts of a cluster are, and how to mend it.
//!
//! It only looks, unless `--fix` is given. An error is one without which a command cannot work at
//! all; a warning costs speed or safety.

mod cluster;
mod finding;
mod fix;
mod machine;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, FAILED, Failure, chain};
use cenote_cli::span;
use cenote_cli::stdout;
use serde::Serialize;

use self::finding::{Finding, State};
use self::fix::Mended;
use super::store::folder;
use crate::place::Which;

pub use self::machine::is_silent;

/// `doctor` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote doctor
  cenote doctor --dir ~/.cenote/well
  cenote doctor --fix --only fuse
  cenote doctor --fix --json | jq '.mended'
  cenote doctor --json | jq '.findings[] | select(.state != \"ok\")'

--fix changes only what cannot lose data or affect other programs: kernel switches that speed up
cenote, kernel modules, limits of this shell, mounts whose server has died, and pid files of dead
processes. Machine-wide settings below /proc/sys are changed only with --sysctl. Changes last until
the next reboot.

Exit code 1: errors remain after the fixes.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Also check the object store in this folder; may be repeated
    #[arg(long, value_name = "DIR")]
    store: Vec<PathBuf>,
    /// Check only this subject, named as in the report or by how its name begins; may be repeated
    #[arg(long, value_name = "SUBJECT")]
    only: Vec<String>,
    /// Fix what can be fixed safely, and report the fixes
    #[arg(long)]
    fix: bool,
    /// Also change machine-wide settings
    #[arg(long, requires = "fix")]
    sysctl: bool,
    /// Timeout for answers of a host, volume owner or node
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::within("1ms", "60s"))]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Look at this mount alone: a process that may never end
    #[arg(long, value_name = "DIR", hide = true)]
    look: Option<PathBuf>,
}

/// The subject of a folder that is given by `--store`.
const STORE: &str = "store";

#[derive(Serialize)]
struct Report {
    state: State,
    /// What `--fix` did, and what it left.
    #[serde(skip_serializing_if = "Option::is_none")]
    mended: Option<Vec<Mended>>,
    findings: Vec<Finding>,
}

pub fn run(args: &Args) -> Result<u8> {
    if let Some(path) = &args.look {
        return Ok(machine::look(path));
    }
    let only = chosen(args)?;
    let mut findings = examine(args, &only);
    let mut mended = None;
    if args.fix {
        let fixes = findings.iter().filter_map(|finding| {
            let fix = finding.fix.as_ref()?;
            Some(fix.apply(finding.subject, args.sysctl))
        });
        mended = Some(fixes.collect());
        // As it is now.
        findings = examine(args, &only);
    }
    let state = findings
        .iter()
        .map(|finding| finding.state)
        .max()
        .unwrap_or(State::Ok);
    let report = Report {
        state,
        mended,
        findings,
    };
    let mut out = stdout::lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(if state == State::Error { FAILED } else { DONE })
}

/// What `--only` asks for; nothing: everything.
///
/// # Errors
/// There is no such subject, or nothing of it to look at.
fn chosen(args: &Args) -> Result<Vec<&'static str>, Failure> {
    let mut chosen = Vec::new();
    for word in &args.only {
        let subject = subject_of(word)?;
        let missing = if subject == STORE && args.store.is_empty() {
            Some("--store DIR")
        } else if cluster::SUBJECTS.contains(&subject) && !args.which.is_named() {
            Some("--dir DIR or --cluster FILE")
        } else {
            None
        };
        if let Some(missing) = missing {
            let what = format!("--only {subject:?}: nothing to look at is given");
            return Err(Failure::usage(what, missing));
        }
        chosen.push(subject);
    }
    Ok(chosen)
}

/// The subject of this name, or the one whose name begins so.
fn subject_of(word: &str) -> Result<&'static str, Failure> {
    let all = || machine::subjects().chain(cluster::SUBJECTS).chain([STORE]);
    if let Some(subject) = all().find(|subject| subject.eq_ignore_ascii_case(word)) {
        return Ok(subject);
    }
    let word_lower = word.to_ascii_lowercase();
    let mut found = all().filter(|subject| subject.to_ascii_lowercase().starts_with(&word_lower));
    let what = match (found.next(), found.next()) {
        (Some(subject), None) => return Ok(subject),
        (Some(_), Some(_)) => format!("--only {word:?}: several subjects begin so"),
        (None, _) => format!("--only {word:?}: there is no such subject"),
    };
    let all: Vec<&str> = all().collect();
    Err(Failure::usage(what, format!("one of: {}", all.join(", "))))
}

fn examine(args: &Args, only: &[&str]) -> Vec<Finding> {
    // What is not asked for may take long.
    let wanted = |subject: &str| only.is_empty() || only.contains(&subject);
    let mut findings = machine::examine(wanted);
    if args.which.is_named() {
        findings.extend(cluster::examine(&args.which, args.timeout, wanted));
    }
    if wanted(STORE) {
        findings.extend(args.store.iter().map(|dir| store(dir)));
    }
    findings
}

fn store(dir: &Path) -> Finding {
    let shown = dir.display();
    match folder::is_served(dir) {
        Ok(true) => Finding::ok(STORE, format!("{shown}: served")),
        Ok(false) => Finding::ok(STORE, format!("{shown}: not served")),
        Err(error) => Finding::warning(
            STORE,
            format!("{shown}: {}", chain(&error)),
            "cenote store check verifies it",
        ),
    }
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    for mended in report.mended.iter().flatten() {
        let subject = mended.subject;
        if let Some(did) = &mended.did {
            writeln!(out, "mended   {subject}: {did}")?;
        }
        if let Some(left) = &mended.left {
            writeln!(out, "left     {subject}: {left}")?;
        }
    }
    for finding in &report.findings {
        let mark = match finding.state {
            State::Ok => "ok     ",
            State::Warning => "warning",
            State::Error => "ERROR  ",
        };
        writeln!(out, "{mark}  {}: {}", finding.subject, finding.found)?;
        if let Some(mend) = &finding.mend {
            let by_itself = match finding.fixable && report.mended.is_none() {
                true => " (or cenote doctor --fix)",
                false => "",
            };
            writeln!(out, "         mend: {mend}{by_itself}")?;
        }
    }
    let count = |state| report.findings.iter().filter(|f| f.state == state).count();
    writeln!(
        out,
        "{} ok, {} warnings, {} errors",
        count(State::Ok),
        count(State::Warning),
        count(State::Error)
    )?;
    Ok(())
}
