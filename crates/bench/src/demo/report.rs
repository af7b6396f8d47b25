//! What a run came to, as JSON and as text.

use std::fmt;

use serde::Serialize;

use crate::apps::memcached_load::Stretch;

/// The whole demonstration.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Values in memcached.
    pub values: usize,
    /// Their bytes, keys and memcached's own not counted.
    pub value_bytes: u64,
    /// Hosts that were started.
    pub hosts: usize,
    /// Scheme of the swap volume.
    pub scheme: String,
    /// memcached over remote memory, with hosts killed.
    pub remote: Phase,
    /// What the kill did.
    pub rebuild: Rebuild,
    /// memcached over a swap file.
    pub file: Phase,
    /// The disk of the swap file.
    pub disk: Disk,
    /// Time of the whole run.
    pub took_s: f64,
}

/// memcached over one kind of swap.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Limit of memcached's memory cgroup: half of what it had taken.
    pub limit_bytes: u64,
    /// How long storing every value took.
    pub fill_s: f64,
    /// Values checked at the end: all of them. Those that the load read were checked, too.
    pub values_checked: u64,
    /// All hosts live.
    pub before: Option<Period>,
    /// From the kill until all slabs were whole.
    pub during: Option<Period>,
    /// From then on.
    pub after: Option<Period>,
}

/// A part of the load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Period {
    /// Its length.
    pub seconds: f64,
    /// Operations that ended in it.
    pub operations: u64,
    /// Operations by its length.
    pub operations_per_s: f64,
    /// Of one operation, reads and writes together.
    pub latency: Latency,
}

impl From<&Stretch> for Period {
    fn from(stretch: &Stretch) -> Self {
        Self {
            seconds: stretch.time.as_secs_f64(),
            operations: stretch.times.len(),
            operations_per_s: stretch.rate(),
            latency: Latency {
                p50_us: stretch.quantile_us(0.5),
                p99_us: stretch.quantile_us(0.99),
                max_us: stretch.times.max() as f64 / 1e3,
            },
        }
    }
}

/// Times of operations.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
}

/// A loss and its mending.
#[derive(Clone, Debug, Serialize)]
pub struct Rebuild {
    /// Hosts that were killed.
    pub killed: Vec<String>,
    /// From the kill until every slab was whole; `None` if it was not during the run.
    pub whole_after_s: Option<f64>,
    /// Slab bytes made again.
    pub rebuilt_bytes: u64,
    /// Bytes lent for each byte of the volume.
    pub memory_overhead: f64,
}

/// The disk's own direct 4 KiB reads, one at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Disk {
    /// Median.
    pub read_us_p50: f64,
    /// 99th percentile.
    pub read_us_p99: f64,
}

impl Report {
    /// Whether the lost slabs were whole again within the run. No value was wrong, or there would be no
    /// report.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.rebuild.whole_after_s.is_some()
    }

    /// Operations per second over remote memory, all hosts live, by those over the swap file.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let theirs = self.file.before?.operations_per_s;
        (theirs > 0.0).then_some(self.remote.before?.operations_per_s / theirs)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "memcached, {} values of {} MiB together in {} MiB of memory, swap on {} hosts ({})",
            self.values,
            self.value_bytes >> 20,
            self.remote.limit_bytes >> 20,
            self.hosts,
            self.scheme
        )?;
        writeln!(
            out,
            "  killed in the middle  {}",
            self.rebuild.killed.join(", ")
        )?;
        writeln!(
            out,
            "  values checked        {}, none was wrong",
            self.remote.values_checked
        )?;
        let periods = [
            ("before the kill", &self.remote.before),
            ("until whole again", &self.remote.during),
            ("after", &self.remote.after),
        ];
        for (name, period) in periods {
            period_line(out, name, period.as_ref())?;
        }
        match self.rebuild.whole_after_s {
            Some(seconds) => writeln!(
                out,
                "  whole again after     {seconds:.1} s, {} MiB rebuilt",
                self.rebuild.rebuilt_bytes >> 20
            )?,
            None => writeln!(out, "  whole again after     not within the run")?,
        }
        let overhead = self.rebuild.memory_overhead;
        writeln!(
            out,
            "  memory overhead       {overhead:.3} bytes lent per byte"
        )?;
        writeln!(out, "the same with a swap file on disk")?;
        writeln!(
            out,
            "  values checked        {}, none was wrong",
            self.file.values_checked
        )?;
        period_line(out, "no kill", self.file.before.as_ref())?;
        writeln!(
            out,
            "  the disk itself       direct 4 KiB read p50 {:.0} us, p99 {:.0} us",
            self.disk.read_us_p50, self.disk.read_us_p99
        )?;
        if let Some(ratio) = self.ratio() {
            writeln!(
                out,
                "remote memory / swap file, operations per second: {ratio:.2}"
            )?;
            let disk_us = self.disk.read_us_p50;
            writeln!(out, "  {}", meaning(ratio, disk_us))?;
        }
        write!(out, "took {:.0} s", self.took_s)
    }
}

/// What a ratio says: it is as much the disk's as ours.
fn meaning(ratio: f64, disk_us: f64) -> String {
    let faster = if ratio < 1.0 {
        "below 1 the swap file was faster"
    } else {
        "above 1 remote memory was faster"
    };
    format!(
        "{faster}: this disk answers a 4 KiB read in {disk_us:.0} us.\n  \
         The ratio grows with that time: a slower disk makes the swap file slower, not us."
    )
}

fn period_line(out: &mut fmt::Formatter<'_>, name: &str, period: Option<&Period>) -> fmt::Result {
    let Some(period) = period else {
        return Ok(());
    };
    writeln!(
        out,
        "  {name:<20}  {:>8.0} operations/s, p50 {:.0} us, p99 {:.0} us, longest {:.1} ms ({:.1} s)",
        period.operations_per_s,
        period.latency.p50_us,
        period.latency.p99_us,
        period.latency.max_us / 1e3,
        period.seconds
    )
}
