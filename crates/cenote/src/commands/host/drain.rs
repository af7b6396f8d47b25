//! `cenote host drain`: a host gives all its memory back, and no volume notices.
//!
//! The host stops lending and asks its clients for what they hold; each volume copies its slabs
//! to other hosts and gives them back. This command only looks on, and calls it off when slabs
//! are left that nobody can move.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use cenote_cli::failure::{DONE, Failure};
use cenote_cli::span::{self, Span};
use cenote_cli::{progress, signals, stdout};
use cenote_fabric::ClusterKey;
use cenote_pool::HostEntry;
use cenote_pool::control::{ClientStatus, Drain, HostStatus, Request};
use serde::Serialize;

use super::target::{self, Target};
use crate::ask::{self, Asker};

/// `host drain` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote host drain h03 --cluster /etc/cenote/cluster.toml --stop
  cenote host drain tcp:10.0.0.7:7000 --key /etc/cenote/cluster.key --json
  cenote host drain h03 --dir ~/.cenote/well --cancel

Exit code 0: no client holds memory of the host, and it lends none until --cancel or a restart.
Exit code 1: some slabs could not be moved in time, or the host did not answer; it lends again.
If it cannot be told to, the error says so.")]
pub struct Args {
    #[command(flatten)]
    target: target::Named,
    /// Stop the host once it is drained
    #[arg(long)]
    stop: bool,
    /// Let a drained or draining host lend again
    #[arg(long, conflicts_with = "stop")]
    cancel: bool,
    /// Time limit, after which the host lends again
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = span::any)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How long an answer of the host may take.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a host whose answer was lost is told to lend again before that is left to the operator.
const CALL_OFF: Duration = Duration::from_secs(5);
/// How often it is asked how far it is.
const LOOK: Duration = Duration::from_millis(200);
/// How long nobody may want to move what is left before it counts as stuck. The host asks again
/// each second, and has forgotten after 4 what a client declined once.
const STUCK: Duration = Duration::from_secs(6);

#[derive(Debug, Serialize)]
struct Report<'a> {
    host: &'a str,
    drained: bool,
    stopped: bool,
    slabs_given_back: u32,
    slabs_left: u32,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    let target = args.target.target()?;
    let mut host = connect(&target).with_context(|| format!("host {}", target.name))?;
    if host.version() < Request::Drain(Drain::On).since() {
        let what = format!(
            "host {} runs an older version that cannot drain",
            target.name
        );
        return Err(Failure::new(what, "upgrade it: docs/deploy.md").into());
    }
    let begun = Instant::now();
    if args.cancel {
        let status = host.ask(&Request::Drain(Drain::Off), ANSWER)?;
        match args.json {
            true => print_json(&Report {
                host: &target.name,
                drained: false,
                stopped: false,
                slabs_given_back: 0,
                slabs_left: lent(&status),
                seconds: begun.elapsed().as_secs_f64(),
                reason: None,
            })?,
            false => println!("{}: lends again", target.name),
        }
        return Ok(DONE);
    }
    let before = host.ask(&Request::Status, ANSWER)?;
    if let Some(others) = &target.others {
        check_room(&target.name, others, &target.key, lent(&before))?;
    }
    let ended = watch(&mut host, &target, args, lent(&before));
    let (left, reason) = match &ended {
        Ok(()) => (0, None),
        Err((left, error)) => (*left, Some(cenote_cli::failure::chain(error))),
    };
    let drained = ended.is_ok();
    let stopped = drained && args.stop && host.wait_closed(Instant::now() + ANSWER * 2);
    if args.json {
        print_json(&Report {
            host: &target.name,
            drained,
            stopped,
            slabs_given_back: lent(&before).saturating_sub(left),
            slabs_left: left,
            seconds: begun.elapsed().as_secs_f64(),
            reason,
        })?;
    } else if drained {
        let and = if stopped { ", and has ended" } else { "" };
        println!("{}: drained: no slabs mapped{and}", target.name);
    }
    match ended {
        Err((_, error)) => Err(error),
        Ok(()) if args.stop && !stopped => {
            Err(anyhow!("{}: drained and still running", target.name))
        }
        Ok(()) => Ok(DONE),
    }
}

fn connect(target: &Target) -> Result<Asker> {
    Asker::connect(&target.address, &target.key, "cenote host drain", ANSWER)
}

fn print_json(report: &Report<'_>) -> Result<()> {
    let mut out = stdout::lock();
    serde_json::to_writer_pretty(&mut out, report)?;
    Ok(writeln!(out)?)
}

/// Slabs in clients' hands.
pub fn lent(status: &HostStatus) -> u32 {
    status.slabs.mapped + status.slabs.orphaned
}

/// Refuses what cannot end well before anything is touched: the host `name` has `lent` slabs, and
/// `others` have room for fewer.
///
/// # Errors
/// They have.
pub fn check_room(name: &str, others: &[HostEntry], key: &ClusterKey, lent: u32) -> Result<()> {
    let answers = ask::all(others, key, ANSWER);
    let free: u64 = answers
        .iter()
        .flatten()
        .map(|status| u64::from(status.slabs_lendable()))
        .sum();
    if free >= u64::from(lent) {
        return Ok(());
    }
    let what = format!(
        "no room: {name} lends {lent} slabs, but the cluster's {} other hosts have {free} free; \
         nothing was changed",
        others.len()
    );
    Err(Failure::new(what, "add a host or delete a volume").into())
}

/// Starts to drain and looks on to the end. An error comes with the slabs that are left, and
/// leaves the host lending, or says that it may not.
fn watch(
    host: &mut Asker,
    target: &Target,
    args: &Args,
    lent_before: u32,
) -> Result<(), (u32, anyhow::Error)> {
    let name = &target.name;
    let stop = signals::on_stop(|| ()).map_err(|e| (lent_before, e))?;
    let how = if args.stop { Drain::Stop } else { Drain::On };
    let deadline = Instant::now() + args.timeout;
    let bar = progress::steps(u64::from(lent_before), "slabs returned");
    let lost = |e: anyhow::Error| (lent_before, call_off(target, &e));
    let mut status = host.ask(&Request::Drain(how), ANSWER).map_err(lost)?;
    let (mut left, mut stuck_since) = (lent(&status), Instant::now());
    let why = loop {
        if status.draining && status.slabs.free == status.slabs.total() {
            bar.finish_and_clear();
            return Ok(());
        }
        if !status.draining {
            return Err((left, anyhow!("host {name}: the drain was cancelled")));
        }
        if lent(&status) < left || !is_stuck(&status) {
            stuck_since = Instant::now();
        }
        left = left.min(lent(&status));
        bar.set_position(u64::from(lent_before.saturating_sub(left)));
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            break "interrupted".to_owned();
        }
        if Instant::now() >= deadline {
            break format!("not drained within {}", Span::from(args.timeout));
        }
        if stuck_since.elapsed() >= STUCK {
            break "no room elsewhere".to_owned();
        }
        std::thread::sleep(LOOK);
        status = host.ask(&Request::Status, ANSWER).map_err(lost)?;
    };
    bar.finish_and_clear();
    let status = host
        .ask(&Request::Drain(Drain::Off), ANSWER)
        .map_err(|e| (left, call_off(target, &e)))?;
    let error = Failure::new(
        format!("{name}: {why}: {}; it lends again", blame(&status, left)),
        way_out(&status),
    );
    Err((left, error.into()))
}

/// What can be done about the clients that hold what is left.
fn way_out(status: &HostStatus) -> String {
    let holders = || status.clients.iter().filter(|client| client.slabs > 0);
    let room = "add a host in another failure domain, or stop the clients named above";
    let Some(gone) = holders().find(|client| client.orphaned) else {
        return room.to_owned();
    };
    // It cannot be stopped: what it left is moved by its next owner.
    let name = &gone.name;
    let gone = format!(
        "serve the silent volumes again, as in cenote volume attach {name} --hold, or delete them, \
         as in cenote volume delete {name}"
    );
    match holders().all(|client| client.orphaned) {
        true => gone,
        false => format!("{gone}; for the others, {room}"),
    }
}

/// Tells a host whose answer was lost to lend again, over another connection; the error to report.
fn call_off(target: &Target, lost: &anyhow::Error) -> anyhow::Error {
    let name = &target.name;
    let deadline = Instant::now() + CALL_OFF;
    loop {
        let told =
            connect(target).and_then(|mut host| host.ask(&Request::Drain(Drain::Off), ANSWER));
        if told.is_ok() {
            return anyhow!("host {name}: {lost:#}; it lends again");
        }
        if Instant::now() >= deadline {
            let what = format!(
                "host {name}: {lost:#}; it may still be draining: cenote host drain {name} --cancel"
            );
            return Failure::new(what, "run that once the host can be reached").into();
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether every slab that is left is one that nobody will move. With none left the host is at work on
/// those that came back.
fn is_stuck(status: &HostStatus) -> bool {
    let hopeless: u32 = status.clients.iter().map(unmovable).sum();
    lent(status) > 0 && hopeless >= lent(status)
}

/// Slabs of a client that it cannot give back, or will not hear about.
fn unmovable(client: &ClientStatus) -> u32 {
    if client.orphaned || (1..2).contains(&client.version) {
        client.slabs
    } else {
        client.declined
    }
}

/// Who holds what is left, and why.
fn blame(status: &HostStatus, left: u32) -> String {
    let holders = status.clients.iter().filter(|client| client.slabs > 0);
    let each = holders.map(|client| {
        let why = if client.orphaned {
            format!("silent for {} s", client.last_seen_ms / 1000)
        } else if client.version == 1 {
            "an older version that cannot move slabs".to_owned()
        } else {
            "no other host with room in a free failure domain".to_owned()
        };
        format!("{} ({} slabs): {why}", client.name, client.slabs)
    });
    let each: Vec<String> = each.collect();
    format!("{left} slabs remain: {}", each.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_gone_are_not_to_be_stopped() {
        let client = |name: &str, orphaned| ClientStatus {
            name: name.to_owned(),
            slabs: 6,
            orphaned,
            id: 1,
            last_seen_ms: 65_000,
            declined: 0,
            version: 2,
        };
        let of = |clients: &[ClientStatus]| {
            way_out(&HostStatus {
                clients: clients.to_vec(),
                ..HostStatus::default()
            })
        };
        let alive = of(&[client("v0", false)]);
        assert!(alive.contains("stop the clients"), "{alive}");
        let gone = of(&[client("v0", true)]);
        for said in ["cenote volume attach v0 --hold", "cenote volume delete v0"] {
            assert!(gone.contains(said), "{gone}");
        }
        assert!(!gone.contains("stop the clients"), "{gone}");
        let both = of(&[client("v0", true), client("v1", false)]);
        assert!(
            both.contains("attach v0") && both.contains("stop the clients"),
            "{both}"
        );
    }
}
