//! `cenote host upgrade`: the program that is installed now takes a host's place, slabs and all.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::stdout;
use cenote_pool::control::{HostStatus, Request};
use serde::Serialize;

use super::target;
use crate::ask::{self, Asker};

/// `host upgrade` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote host upgrade h03 --cluster /etc/cenote/cluster.toml
  cenote host upgrade tcp:10.0.0.7:7000 --key /etc/cenote/cluster.key

The host executes its binary again with the same arguments; install the new version there first. SIGHUP
and systemctl reload cenote-host do the same. Lent memory stays as it is; clients reconnect, and the
command waits for them. Upgrade the next host once every volume is whole: cenote status then exits
with 0.

Exit code 3: it was upgraded, and slabs were lost. Its clients rebuild what they can.")]
pub struct Args {
    #[command(flatten)]
    target: target::Named,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the host may take to be there again: it maps all its slabs.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two attempts to reach it.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
struct Report<'a> {
    host: &'a str,
    program_before: String,
    program: String,
    slabs_kept: u32,
    slabs_lost: u32,
}

pub fn run(args: &Args) -> Result<u8> {
    let target = args.target.target()?;
    let name = || format!("host {}", target.name);
    let mut host = Asker::connect(&target.address, &target.key, "cenote host upgrade", ANSWER)
        .with_context(name)?;
    if host.version() < Request::Upgrade.since() {
        let what = format!("{} runs an older version that cannot upgrade", name());
        return Err(Failure::new(what, "drain and restart it: docs/deploy.md").into());
    }
    let before = host.ask(&Request::Upgrade, ANSWER).with_context(name)?;
    let deadline = Instant::now() + LIMIT;
    host.wait_closed(Instant::now() + ANSWER);
    // Back is a host when those who hold its memory are: until then they may not have noticed, and
    // another host that goes now would be a second loss to them.
    let mut kept = None;
    let after = loop {
        match ask::one(&target.address, &target.key, ANSWER) {
            Ok(status) if status.incarnation == before.incarnation => {
                return Err(went_on(&target.name).into());
            }
            Ok(status) => {
                kept.get_or_insert((lent(&status), lost(&before, &status)));
                let missing = absent(&status);
                if missing.is_empty() {
                    break status;
                }
                if Instant::now() >= deadline {
                    tracing::warn!(
                        clients = missing.join(", "),
                        "not reconnected: they hold slabs"
                    );
                    break status;
                }
                std::thread::sleep(LOOK);
            }
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("{} did not come back", name()));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    };
    let (slabs_kept, slabs_lost) = kept.unwrap_or_else(|| (lent(&after), lost(&before, &after)));
    let report = Report {
        host: &target.name,
        program_before: before.program.clone(),
        program: after.program.clone(),
        slabs_kept,
        slabs_lost,
    };
    let mut out = stdout::lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "{}: upgraded to {} from {}, {} slabs kept",
            report.host, report.program, report.program_before, report.slabs_kept
        )?;
    }
    if slabs_lost == 0 {
        return Ok(DONE);
    }
    let host = &target.name;
    tracing::error!(
        "{slabs_lost} slabs of {host} were lost: its log says why, clients rebuild them"
    );
    Ok(NOT_WHOLE)
}

/// Slabs that were lent before and that the new process does not lend, though nobody gave them back
/// and nobody took them. Clients come back before this is asked, and give back or map as they like.
fn lost(before: &HostStatus, after: &HostStatus) -> u32 {
    let (then, now) = (&before.counters, &after.counters);
    // Counts go on with what is taken over.
    if now.connections < then.connections {
        return lent(before);
    }
    let granted = now.maps.saturating_sub(then.maps);
    let given_back = now.unmaps.saturating_sub(then.unmaps);
    // Of those that it took the new process counts its own alone.
    let taken = now.orphans_taken.saturating_sub(then.orphans_taken) + after.pressure.slabs_taken;
    let expected = (u64::from(lent(before)) + granted).saturating_sub(given_back + taken);
    let lost = expected.saturating_sub(lent(after).into());
    u32::try_from(lost).unwrap_or(u32::MAX)
}

fn lent(status: &HostStatus) -> u32 {
    status.slabs.mapped + status.slabs.orphaned
}

/// Clients that hold slabs and have not said anything to this process of the host. One whose lease
/// had run out is not waited for.
fn absent(status: &HostStatus) -> Vec<&str> {
    let holders = status.clients.iter().filter(|client| client.slabs > 0);
    let absent = holders.filter(|client| client.version == 0 && !client.orphaned);
    absent.map(|client| client.name.as_str()).collect()
}

fn went_on(name: &str) -> Failure {
    Failure::new(
        format!(
            "host {name} was not upgraded: the installed binary was rejected; the host continues"
        ),
        "see its log",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(mapped: u32, maps: u64, unmaps: u64, orphans_taken: u64) -> HostStatus {
        let mut status = HostStatus::default();
        status.slabs.mapped = mapped;
        status.counters.connections = 1;
        status.counters.maps = maps;
        status.counters.unmaps = unmaps;
        status.counters.orphans_taken = orphans_taken;
        status
    }

    #[test]
    fn what_clients_give_back_and_map_meanwhile_is_not_lost_and_hides_no_loss() {
        let before = status(5, 20, 12, 3);
        for (mapped, maps, unmaps, orphans_taken, expected) in [
            (5, 20, 12, 3, 0),
            (4, 20, 12, 3, 1),
            // Given back, mapped, taken from who is gone, and beside each a loss.
            (3, 20, 14, 3, 0),
            (2, 20, 14, 3, 1),
            (7, 22, 12, 3, 0),
            (5, 22, 12, 3, 2),
            (4, 20, 12, 4, 0),
            (3, 20, 12, 4, 1),
            (5, 23, 14, 4, 0),
            (4, 23, 14, 4, 1),
        ] {
            let after = status(mapped, maps, unmaps, orphans_taken);
            let what = (mapped, maps, unmaps, orphans_taken);
            assert_eq!(lost(&before, &after), expected, "{what:?}");
        }
        let mut afresh = status(1, 1, 0, 0);
        afresh.counters.connections = 0;
        assert_eq!(lost(&before, &afresh), 5, "it took nothing over");
    }
}
