//! `cenote status`: hosts, memory and volumes at a glance.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, NOT_WHOLE, chain, colours_of_results};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_cli::table::Table;
use cenote_pool::control::{HostStatus, PressureStatus};
use serde::Serialize;

use crate::ask;
use crate::place::{ClusterDir, Loaded, Which};
use crate::process::Identity;
use crate::volumes::Volumes;
use crate::watch::Watch;

/// `status` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote status --dir ~/.cenote/well
  cenote status --dir ~/.cenote/well --watch=5s
  cenote status --cluster ~/.cenote/well/cluster.toml --json | jq .free_bytes

Exit code 3: a host does not answer, or a volume is degraded or cannot write its journal, or a file of a
host or volume cannot be read.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Timeout for answers of a host or volume owner
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = span::within("1ms", "60s"))]
    timeout: Duration,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Serialize)]
struct Report {
    cluster: String,
    hosts: Vec<HostReport>,
    hosts_up: usize,
    memory_bytes: u64,
    lent_bytes: u64,
    free_bytes: u64,
    volumes: Vec<VolumeReport>,
}

#[derive(Serialize)]
struct HostReport {
    name: String,
    address: String,
    domain: String,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Where its own configuration and the cluster file differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    disagreement: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<HostStatus>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It answers.
    Up,
    /// Its process runs on this machine and does not answer.
    Silent,
    /// Its process on this machine has ended.
    Ended,
    /// No answer, and it is not a process of this machine's cluster folder.
    Unreachable,
}

#[derive(Serialize)]
struct VolumeReport {
    name: String,
    /// `None` of a volume whose file cannot be read, as the scheme.
    size: Option<String>,
    scheme: Option<String>,
    in_use: bool,
    /// Slabs that hosts keep for the next owner.
    slabs_left: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub fn run(args: &Args) -> Result<u8> {
    args.watch.show(args.json, |out| {
        // Each time: hosts come and go in the file, too.
        let loaded = args.which.load()?;
        let report = report(&loaded, args.timeout)?;
        let is_well = |host: &HostReport| host.state == State::Up && host.error.is_none();
        let is_up = report.hosts.iter().all(is_well);
        let whole = is_up && report.volumes.iter().all(VolumeReport::is_whole);
        if args.json {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        } else {
            print(out, &report)?;
        }
        Ok(if whole { DONE } else { NOT_WHOLE })
    })
}

fn report(loaded: &Loaded, timeout: Duration) -> Result<Report> {
    let answers = ask::all(&loaded.cluster.hosts, &loaded.key, timeout);
    let mut hosts = Vec::new();
    for (entry, answer) in loaded.cluster.hosts.iter().zip(answers) {
        let noted = noted(&loaded.dir, &entry.name);
        let state = match (&answer, &noted) {
            (Ok(_), _) => State::Up,
            (Err(_), Err(_) | Ok(None)) => State::Unreachable,
            (Err(_), Ok(Some((_, true)))) => State::Silent,
            (Err(_), Ok(Some((_, false)))) => State::Ended,
        };
        let errors = [answer.as_ref().err(), noted.as_ref().err()];
        let errors: Vec<String> = errors.into_iter().flatten().map(chain).collect();
        hosts.push(HostReport {
            name: entry.name.clone(),
            address: entry.address.clone(),
            domain: entry.domain.clone(),
            state,
            pid: noted.ok().flatten().map(|(pid, _)| pid),
            error: (!errors.is_empty()).then(|| errors.join("; ")),
            disagreement: answer
                .as_ref()
                .ok()
                .and_then(|status| ask::disagreement(entry, status)),
            status: answer.ok(),
        });
    }
    let sum = |figure: fn(&HostStatus) -> u64| {
        hosts
            .iter()
            .filter_map(|h| h.status.as_ref())
            .map(figure)
            .sum()
    };
    Ok(Report {
        cluster: loaded.file.display().to_string(),
        hosts_up: hosts.iter().filter(|host| host.state == State::Up).count(),
        memory_bytes: sum(|s| s.memory_bytes),
        lent_bytes: sum(|s| s.lent_bytes),
        free_bytes: sum(free_bytes),
        volumes: volumes(&Volumes::new(&loaded.dir), timeout)?,
        hosts,
    })
}

/// The process of a host on this machine that its folder names, and whether it runs.
fn noted(dir: &ClusterDir, name: &str) -> Result<Option<(u32, bool)>> {
    let identity = dir.host(name)?.map(|folder| Identity::load(&folder));
    let Some(identity) = identity.transpose()?.flatten() else {
        return Ok(None);
    };
    Ok(Some((identity.pid, identity.open()?.is_some())))
}

fn free_bytes(status: &HostStatus) -> u64 {
    u64::from(status.slabs_free()) * status.slab_bytes
}

/// How short of memory a host's machine is.
fn pressure(status: &HostStatus) -> &'static str {
    let pressure = &status.pressure;
    if pressure.free_bytes < pressure.floor_bytes {
        "below the floor"
    } else if pressure.free_bytes < pressure.headroom_bytes {
        "short"
    } else if pressure.stalled {
        "stalled"
    } else {
        "none"
    }
}

/// Of the hosts that give way to the programs of their machine.
fn print_pressure(out: &mut impl Write, report: &Report) -> Result<()> {
    let mut table = Table::new([
        "HOST",
        "PRESSURE",
        "OTHERS USE",
        "LEFT",
        "HEADROOM",
        "FLOOR",
        "MAY LEND",
        "ASKED BACK",
        "EVICTED",
        "TAKEN",
        "RECLAIM",
    ]);
    let mut any = false;
    for host in &report.hosts {
        let Some(status) = host.status.as_ref().filter(|s| s.pressure.watched) else {
            continue;
        };
        any = true;
        let seen = &status.pressure;
        table.row(vec![
            host.name.clone(),
            pressure(status).to_owned(),
            Size(seen.used_bytes).rounded(),
            Size(seen.free_bytes).rounded(),
            Size(seen.headroom_bytes).rounded(),
            Size(seen.floor_bytes).rounded(),
            Size(u64::from(seen.slabs_max) * status.slab_bytes).rounded(),
            format!("{} slabs", seen.asked_back),
            format!("{} of {}", seen.evictions_done, seen.evictions_asked),
            seen.slabs_taken.to_string(),
            reclaimable(seen),
        ]);
    }
    if any {
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}

/// What clients on the host's machine still have elsewhere, of what they may reclaim.
fn reclaimable(seen: &PressureStatus) -> String {
    if seen.reclaim_bytes == 0 {
        return "-".to_owned();
    }
    let (away, spare) = (Size(seen.away_bytes), Size(seen.reclaim_bytes));
    format!("{} to {}", away.rounded(), spare.rounded())
}

fn volumes(volumes: &Volumes, timeout: Duration) -> Result<Vec<VolumeReport>> {
    let mut reports = Vec::new();
    for seen in volumes.statuses(timeout)? {
        let left = volumes.left_by(&seen);
        let error = seen.error.or(left.as_ref().err().map(chain));
        let (size, scheme) = seen.spec.map(|spec| (spec.size, spec.scheme)).unzip();
        reports.push(VolumeReport {
            name: seen.name,
            size,
            scheme,
            in_use: seen.in_use,
            slabs_left: left.ok().flatten().map_or(0, |left| left.slabs),
            status: seen.status,
            error,
        });
    }
    Ok(reports)
}

impl VolumeReport {
    fn is_whole(&self) -> bool {
        self.error.is_none() && self.status.as_ref().is_none_or(super::volume::is_whole)
    }

    fn health(&self) -> String {
        match (&self.status, &self.error) {
            (_, Some(error)) => error.clone(),
            (Some(status), None) => super::volume::health(status),
            (None, None) if self.slabs_left > 0 => {
                format!("not in use, holds {} slabs", self.slabs_left)
            }
            (None, None) => "not in use".to_owned(),
        }
    }
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(
        out,
        "{}: {} of {} hosts up, {} lent of {}, {} free",
        report.cluster,
        report.hosts_up,
        report.hosts.len(),
        Size(report.lent_bytes).rounded(),
        Size(report.memory_bytes).rounded(),
        Size(report.free_bytes).rounded(),
    )?;
    let mut table = Table::new([
        "HOST", "STATE", "DOMAIN", "MEMORY", "LENT", "FREE", "SLAB", "CLIENTS", "UPTIME",
    ])
    .coloured(colours_of_results());
    for host in &report.hosts {
        let draining = host.status.as_ref().is_some_and(|status| status.draining);
        let state = if draining {
            "draining".to_owned()
        } else {
            format!("{:?}", host.state).to_lowercase()
        };
        let mut row = vec![host.name.clone(), state, host.domain.clone()];
        if let Some(status) = &host.status {
            row.extend([
                Size(status.memory_bytes).rounded(),
                Size(status.lent_bytes).rounded(),
                Size(free_bytes(status)).rounded(),
                Size(status.slab_bytes).to_string(),
                status.clients_total.to_string(),
                format!("{}s", status.uptime_s),
            ]);
        }
        table.row(row);
    }
    table.write(out)?;
    for host in &report.hosts {
        if let Some(error) = &host.error {
            writeln!(out, "{}: {error}", host.name)?;
        }
    }
    for host in &report.hosts {
        if let Some(disagreement) = &host.disagreement {
            writeln!(out, "{disagreement}")?;
        }
    }
    for host in &report.hosts {
        let Some(strangers) = host.status.as_ref().map(|status| status.strangers) else {
            continue;
        };
        let (wrong, displaced) = (strangers.wrong_key, strangers.displaced);
        if wrong + displaced > 0 {
            writeln!(
                out,
                "{}: {wrong} connections with another key, {displaced} closed before \
                 authentication; see its log for the addresses",
                host.name
            )?;
        }
    }
    print_pressure(out, report)?;
    if !report.volumes.is_empty() {
        let mut table =
            Table::new(["VOLUME", "SIZE", "SCHEME", "HEALTH"]).coloured(colours_of_results());
        for volume in &report.volumes {
            table.row(vec![
                volume.name.clone(),
                or_dash(volume.size.as_deref()),
                or_dash(volume.scheme.as_deref()),
                volume.health(),
            ]);
        }
        writeln!(out)?;
        table.write(out)?;
    }
    Ok(())
}
