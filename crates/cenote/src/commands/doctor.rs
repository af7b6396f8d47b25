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
use cenote_cli::failure::{DONE, FAILED, chain};
use cenote_cli::span;
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
  cenote doctor --fix --only 'FUSE over io_uring'
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
    /// Check only this subject, named as in the report; may be repeated
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
    let mut findings = examine(args);
    let mut mended = None;
    if args.fix {
        let fixes = findings.iter().filter_map(|finding| {
            let fix = finding.fix.as_ref()?;
            Some(fix.apply(finding.subject, args.sysctl))
        });
        mended = Some(fixes.collect());
        // As it is now.
        findings = examine(args);
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
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(if state == State::Error { FAILED } else { DONE })
}

fn examine(args: &Args) -> Vec<Finding> {
    // What is not asked for may take long.
    let wanted =
        |subject: &str| args.only.is_empty() || args.only.iter().any(|only| only == subject);
    let mut findings = machine::examine(wanted);
    if args.which.is_named() {
        findings.extend(cluster::examine(&args.which, args.timeout, wanted));
    }
    findings.extend(args.store.iter().map(|dir| store(dir)));
    findings.retain(|finding| wanted(finding.subject));
    findings
}

fn store(dir: &Path) -> Finding {
    let shown = dir.display();
    match folder::is_served(dir) {
        Ok(true) => Finding::ok("store", format!("{shown}: served")),
        Ok(false) => Finding::ok("store", format!("{shown}: not served")),
        Err(error) => Finding::warning(
            "store",
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
