//! `cenote lab redy migrate`: regions of a cache move from hosts that are taken back, under a load.
//!
//! Real hosts of this program, a real owner and a real client. The client reads and writes at a steady rate,
//! 95 reads to 5 writes, and checks each byte; then hosts are taken back, and every region on them moves.
//! Afterwards everything is read once more.
//!
//! Beside it: the same with the load stopped from the first region's stop until all have moved (naive), and the
//! bare copy of the same bytes with nothing else going on.
//!
//! Paper: \[redy22\] section 5.2 and its figure of the migration.

mod bare;
mod cells;
mod link;
mod load;
mod pinned;
mod stop;

use std::time::Duration;

use anyhow::{Result, ensure};
use cenote_cache::client::Geometry;
use cenote_cache::links::HostConfig;
use cenote_cache::owner::{REGION_BYTES_MAX, Settings};
use cenote_fabric::Time;
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cluster::LocalCluster;
use link::{OwnerLink, Start, ToOwner};
use load::{BUCKET, Bucket, Load, Shape, p99_us};
use pinned::Pinned;
pub use stop::Stop;

/// What is moved, and under which load.
#[derive(Clone, Debug)]
pub struct Options {
    /// Regions of the cache.
    pub regions: u32,
    /// Bytes of each.
    pub region_bytes: u64,
    /// `shm` or `tcp`.
    pub transport: String,
    /// Hosts that have the regions at first, all of which are taken back.
    pub reclaimed: usize,
    /// How long these have after they were told: their machine is gone then.
    pub notice: Duration,
    /// Copies of each region, 1 or 2.
    pub copies: usize,
    /// Requests a second.
    pub rate: u32,
    /// How long the load runs before the notice.
    pub before: Duration,
    /// Random seed of what is read and written.
    pub seed: u64,
    /// Whether the client's thread has a processor of its own, as Redy's have, and all else the others.
    pub pins: bool,
}

/// What one variant did.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `region-by-region` or `naive`.
    pub variant: &'static str,
    /// What carried the bytes.
    pub transport: String,
    /// Regions that moved.
    pub regions: u32,
    /// Bytes of each.
    pub region_bytes: u64,
    /// Copies of each region.
    pub copies: usize,
    /// Whether the client's thread had a processor of its own.
    pub is_pinned: bool,
    /// From the notice until every region was open on another host.
    pub migrated_ms: f64,
    /// Of it, from the first stop of a region until the last was open: without the memory that comes before.
    pub moving_ms: f64,
    /// The bare copy of all regions.
    pub bare_ms: f64,
    /// Making memory for it, before.
    pub bare_memory_ms: f64,
    /// The longest that a write took while regions moved.
    pub longest_write_stop_ms: f64,
    /// The same of a read.
    pub longest_read_ms: f64,
    /// The longest that the client's own thread did not run meanwhile, or was busy with one thing: who is due
    /// then waits, whatever the cache does.
    pub longest_pause_ms: f64,
    /// Reads before the notice.
    pub read_p99_before_us: f64,
    /// Reads while regions moved.
    pub read_p99_during_us: f64,
    /// Reads before the notice.
    pub read_p50_before_us: f64,
    /// Reads while regions moved.
    pub read_p50_during_us: f64,
    /// Writes before the notice.
    pub write_p50_before_us: f64,
    /// Writes before the notice.
    pub write_p99_before_us: f64,
    /// Requests in all.
    pub requests: u64,
    /// Of them, those that failed.
    pub errors: u64,
    /// Bytes that were not what they had to be, in all reads and in the last look at everything.
    pub wrong_bytes: u64,
    /// Regions that were told to be lost.
    pub lost_regions: Vec<u32>,
    /// When the last of these was told, from the notice.
    pub lost_told_ms: Option<f64>,
    /// What the stop of each region consisted of.
    pub stops: Vec<Stop>,
    /// Requests that ended, over time.
    #[serde(skip)]
    pub series: Vec<Bucket>,
    /// When the notice came, from the begin of the series.
    #[serde(skip)]
    pub noticed_at: Duration,
}

impl Report {
    /// Whether nothing was lost, stale or refused.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.errors == 0 && self.wrong_bytes == 0 && self.lost_regions.is_empty()
    }
}

/// Largest slab: a host has some of its slabs ready, and the rest of a region follows while it is copied.
const SLAB_BYTES_MAX: u64 = 64 << 20;
/// Load after the move, for the picture.
const AFTER: Duration = Duration::from_millis(500);

/// Moves the regions once for each variant: in use, and, if asked for, naively.
///
/// # Errors
/// Hosts cannot be started, or a move does not come to its end.
pub fn run(options: &Options, with_naive: bool) -> Result<Vec<Report>> {
    let is_fit = options.region_bytes.is_multiple_of(1 << 20)
        && (1..=REGION_BYTES_MAX).contains(&options.region_bytes);
    ensure!(is_fit, "a region has whole MiB, 1 GiB at most");
    ensure!(
        options.regions as usize >= options.reclaimed && options.reclaimed > 0,
        "fewer regions than hosts that are taken back"
    );
    let mut reports = vec![run_one(options, false)?];
    if with_naive {
        reports.push(run_one(options, true)?);
    }
    Ok(reports)
}

/// As much memory as the copies will take. Freed at the notice, it is memory that the machine has: that of a
/// virtual machine comes from the one below when it is first touched, and stops all processors for that.
fn touched(bytes: u64) -> Result<Vec<u8>> {
    Ok(vec![1; usize::try_from(bytes)?])
}

fn slab_bytes(region_bytes: u64) -> u64 {
    let mut slab_bytes = region_bytes;
    while slab_bytes > SLAB_BYTES_MAX && slab_bytes.is_multiple_of(2 << 20) {
        slab_bytes /= 2;
    }
    slab_bytes
}

fn run_one(options: &Options, is_naive: bool) -> Result<Report> {
    let pinned = Pinned::new(options.pins)?;
    let slab_bytes = slab_bytes(options.region_bytes);
    let slabs_per_region = u32::try_from(options.region_bytes / slab_bytes)?;
    let total_bytes = options.region_bytes * u64::from(options.regions);
    // All regions fit on the one that stays, beside slabs that are made ahead.
    let memory_mib = (total_bytes + 4 * slab_bytes) >> 20;
    let slab = format!("{}K", slab_bytes >> 10);
    let grace = format!("{}us", options.notice.as_micros());
    let folder = crate::swap_rig::fresh(&std::env::temp_dir(), &options.transport);
    let cluster = LocalCluster::start_in(
        &folder,
        options.reclaimed + options.copies,
        memory_mib,
        &options.transport,
        &["--slab", &slab, "--grace", &grace],
    )?;
    let hosts: Vec<HostConfig> = (0..cluster.host_count())
        .map(|host| HostConfig {
            name: cluster.name(host).to_owned(),
            address: cluster.address(host).clone(),
            domain: cluster.name(host).to_owned(),
        })
        .collect();
    // The last one: the others have the regions at first, each copy on another.
    let target = options.reclaimed + options.copies - 1;
    let slabs = options.regions * slabs_per_region;
    let bare = bare::copy(cluster.connector(), &hosts[0], &hosts[target], slabs)?;
    let settings = Settings {
        cache: u128::from(Time::now().0) | 1 << 64,
        slab_bytes,
        slabs_per_region,
        copies: options.copies,
        give_up_after: Duration::from_secs(60),
    };
    let owner = OwnerLink::start(Start {
        settings,
        regions: options.regions,
        hosts: hosts.clone(),
        connector: cluster.connector().clone(),
        kept_free: vec![target],
    })?;
    let shape = Shape {
        geometry: Geometry {
            slab_bytes,
            slabs_per_region,
        },
        regions: options.regions,
        rate: options.rate,
        seed: options.seed,
        blocks: options.transport != "shm",
    };
    pinned.take_own()?;
    let mut load = Load::new(
        &shape,
        &hosts,
        &pinned.elsewhere(cluster.connector()),
        owner,
    );
    load.wait_until("the cache", Load::is_ready)?;
    load.fill()?;
    load.owner().send(ToOwner::Withdraw(target));
    let room = touched(total_bytes)?;
    load.begin();
    load.run_for(options.before)?;
    drop(room);
    load.resume();
    let noticed = Time::now();
    for host in 0..options.reclaimed {
        cluster.take_back(host)?;
    }
    let migrated = load.run_through(noticed, is_naive)?;
    load.run_for(AFTER)?;
    load.read_all()?;
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let us = |histogram: &Histogram<u64>, share| histogram.value_at_quantile(share) as f64 / 1e3;
    Ok(Report {
        variant: if is_naive {
            "naive"
        } else {
            "region-by-region"
        },
        transport: options.transport.clone(),
        regions: options.regions,
        region_bytes: options.region_bytes,
        copies: options.copies,
        is_pinned: pinned.is_pinned(),
        migrated_ms: ms(migrated),
        moving_ms: ms(load.moving()),
        bare_ms: ms(bare.copy),
        bare_memory_ms: ms(bare.memory),
        longest_write_stop_ms: load.during.writes.max() as f64 / 1e6,
        longest_read_ms: load.during.reads.max() as f64 / 1e6,
        longest_pause_ms: ms(load.longest_pause),
        read_p99_before_us: us(&load.before.reads, 0.99),
        read_p99_during_us: us(&load.during.reads, 0.99),
        read_p50_before_us: us(&load.before.reads, 0.5),
        read_p50_during_us: us(&load.during.reads, 0.5),
        write_p50_before_us: us(&load.before.writes, 0.5),
        write_p99_before_us: us(&load.before.writes, 0.99),
        requests: load.requests,
        errors: load.errors,
        wrong_bytes: load.wrong_bytes,
        lost_regions: load.lost.iter().map(|(region, _)| *region).collect(),
        lost_told_ms: load.lost.last().map(|(_, at)| ms(at.since(noticed))),
        noticed_at: load.since_begin(noticed),
        stops: load.stops.take(),
        series: std::mem::take(&mut load.buckets),
    })
}

/// Requests of each variant over time, as a table.
#[must_use]
pub fn csv(reports: &[Report]) -> Csv {
    let mut csv = Csv::new(
        "variant,ms_since_notice,reads_per_second,writes_per_second,read_p99_us,\
         write_p99_us",
    );
    for report in reports {
        for (at, bucket) in points(report) {
            let (reads, writes) = (per_second(&bucket.reads), per_second(&bucket.writes));
            let (read_p99, write_p99) = (p99_us(&bucket.reads), p99_us(&bucket.writes));
            csv.row(&[&report.variant, &at, &reads, &writes, &read_p99, &write_p99]);
        }
    }
    csv
}

/// What a picture shows over time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shown {
    /// Requests a second.
    Throughput,
    /// The 99th percentile of their latency.
    P99,
}

/// Requests of each variant over time, as a picture.
#[must_use]
pub fn plot(reports: &[Report], shown: Shown) -> Plot {
    /// What is shown before the notice and after the longest move.
    const MARGIN_MS: f64 = 200.0;
    let longest = reports.iter().map(|r| r.migrated_ms).fold(0.0, f64::max);
    let x = -MARGIN_MS..longest + MARGIN_MS;
    let mut lines = Vec::new();
    let mut highest = 1.0_f64;
    let height = |latencies: &[u64]| match shown {
        Shown::Throughput => per_second(latencies),
        Shown::P99 => p99_us(latencies) / 1e3,
    };
    for report in reports {
        let mut add = |kind: &str, of: fn(&Bucket) -> &[u64]| {
            let visible = points(report).filter(|(at, _)| x.contains(at));
            let line: Vec<_> = visible.map(|(at, b)| (at, height(of(b)))).collect();
            highest = line.iter().map(|(_, y)| *y).fold(highest, f64::max);
            lines.push(Line::new(&format!("{} {kind}", report.variant), line));
        };
        add("reads", |bucket| &bucket.reads);
        add("writes", |bucket| &bucket.writes);
    }
    let first = &reports[0];
    let copies = match first.copies {
        1 => String::new(),
        copies => format!(", {copies} copies of each"),
    };
    Plot {
        title: format!(
            "{} regions of {} MiB move over {}{copies}",
            first.regions,
            first.region_bytes >> 20,
            first.transport
        ),
        x_label: "milliseconds since the notice",
        y_label: match shown {
            Shown::Throughput => "requests per second",
            Shown::P99 => "p99 of the latency in milliseconds",
        },
        x,
        x_scale: Scale::Linear,
        y: 0.0..highest * 1.1,
        lines,
        legend: Legend::UpperRight,
    }
}

fn points(report: &Report) -> impl Iterator<Item = (f64, &Bucket)> {
    let notice_ms = report.noticed_at.as_secs_f64() * 1e3;
    let width_ms = BUCKET.as_secs_f64() * 1e3;
    let buckets = report.series.iter().enumerate();
    buckets.map(move |(at, bucket)| (at as f64 * width_ms - notice_ms, bucket))
}

fn per_second(ended: &[u64]) -> f64 {
    ended.len() as f64 / BUCKET.as_secs_f64()
}
