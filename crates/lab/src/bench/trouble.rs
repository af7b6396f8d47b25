//! `cenote bench page --trouble`: one page at a time while hosts are slow, busy or dead.
//!
//! Three volumes on the same hosts, each of which the same troubles befall in turn: coded, two
//! copies, and one copy with a disk behind it. Reads and writes of random pages take turns, so that
//! both meet the same moments. Latencies are those of operations that succeeded; those that a volume
//! had lost are a row of their own. Below 1 is better.
//!
//! Over `shm` a stopped host's memory stays usable, so a straggler is one only over `tcp`.
//! Paper: \[hydra22\] 7.1.2 and 7.1.4, Figures 11 and 12.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_volume::{
    Backing, Done, Health, IoError, Mode, Op, PAGE_BYTES, Request, Resilience, Volume, Worker,
};
use hdrhistogram::Histogram;

use super::Row;
use super::apps::figures;
use super::events::trouble::{FLOW_BYTES, flow};
use super::page::{Random, fill, histogram, ticks, ticks_to_ns};
use crate::cluster::LocalCluster;
use crate::swapping::Folder;
use crate::swapping::interrupt::Interrupt;

/// What is in the way of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trouble {
    /// Nothing.
    Quiet,
    /// One host stands still for a moment, over and over.
    Straggler,
    /// Another client moves all that it can to and from the same hosts.
    Flows,
    /// Many requests at a time.
    Burst,
    /// One host is dead, and nobody takes its place.
    OneDead,
    /// Two hosts are.
    TwoDead,
}

impl Trouble {
    /// Every one, those that leave no trace first.
    pub const ALL: [Self; 6] = [
        Self::Quiet,
        Self::Straggler,
        Self::Flows,
        Self::Burst,
        Self::OneDead,
        Self::TwoDead,
    ];

    /// As in a row.
    fn label(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Straggler => "one straggler",
            Self::Flows => "background flows",
            Self::Burst => "burst of 32",
            Self::OneDead => "one dead host",
            Self::TwoDead => "two dead hosts",
        }
    }

    fn dead(self) -> usize {
        match self {
            Self::OneDead => 1,
            Self::TwoDead => 2,
            _ => 0,
        }
    }
}

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// `shm` or `tcp`.
    pub transport: String,
    /// What happens.
    pub troubles: Vec<Trouble>,
    /// Clusters that it happens to.
    pub rounds: usize,
    /// How long each volume is read and written under each trouble.
    pub time: Duration,
    /// Size of each volume, in MiB.
    pub size_mib: u64,
    /// Folder of the backing file; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Seed of pages.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: "tcp".to_owned(),
            troubles: Trouble::ALL.to_vec(),
            rounds: 3,
            time: Duration::from_secs(2),
            size_mib: 128,
            dir: PathBuf::from(format!("/var/tmp/cenote-trouble-{}", std::process::id())),
            seed: 1,
        }
    }
}

/// Runs the benchmark; narrates on stderr.
///
/// # Errors
/// When the local cluster or a volume cannot be started, or the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    ensure!(options.rounds > 0, "no rounds asked for");
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(options.dir.clone())?;
    let mut taken = Vec::new();
    for round in 0..options.rounds {
        // The dead stay dead: their troubles come last, and each round has hosts of its own.
        let mut troubles = options.troubles.clone();
        troubles.sort_by_key(|trouble| trouble.dead());
        let scene = Scene::set(options, &interrupt, &folder)?;
        let mut dead = 0;
        for trouble in troubles {
            while dead < trouble.dead() {
                scene.cluster.kill(dead)?;
                dead += 1;
                scene.settle(dead)?;
            }
            for turn in 0..scene.volumes.len() {
                let index = (turn + round) % scene.volumes.len();
                let sample = scene.measure(index, trouble, round)?;
                eprintln!(
                    "{}, {}, round {round}: {sample}",
                    trouble.label(),
                    scene.volumes[index].0
                );
                taken.push((trouble, index, sample));
            }
        }
    }
    Ok(rows(options, &taken))
}

/// What a volume did under a trouble in one round.
struct Sample {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    /// Operations that failed because too much is lost.
    lost: u64,
}

impl Sample {
    fn lost_percent(&self) -> f64 {
        let done = self.reads.len() + self.writes.len();
        self.lost as f64 / (self.lost + done) as f64 * 100.0
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        write!(
            out,
            "read p50 {:.0} us, p99 {:.0}; write p50 {:.0}, p99 {:.0}",
            us(&self.reads, 0.5),
            us(&self.reads, 0.99),
            us(&self.writes, 0.5),
            us(&self.writes, 0.99)
        )?;
        if self.lost > 0 {
            write!(out, "; {:.1}% lost", self.lost_percent())?;
        }
        Ok(())
    }
}

struct Scene<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    /// Closed before their hosts end.
    volumes: Vec<(&'static str, Arc<Volume>)>,
    cluster: LocalCluster,
}

impl<'a> Scene<'a> {
    fn set(
        options: &'a Options,
        interrupt: &'a Interrupt,
        folder: &Folder,
    ) -> anyhow::Result<Self> {
        let size_bytes = options.size_mib << 20;
        // 1.25, 2 and 1 times the size, the flows, and half as much again for uneven placement.
        let memory_mib = (options.size_mib * 5 + (FLOW_BYTES >> 20) * 2) * 3 / 2 / HOSTS as u64;
        let cluster = LocalCluster::start_in(
            &folder.0.join("cluster"),
            HOSTS,
            memory_mib.next_multiple_of(SLAB_MIB) + 2 * SLAB_MIB,
            &options.transport,
            &["--slab", &format!("{SLAB_MIB}M")],
        )?;
        let coded = Resilience::new(CODED.parse()?, Mode::FailureRecovery, 1)?;
        let copied = Resilience::new(COPIED.parse()?, Mode::FailureRecovery, 0)?;
        let backing = Backing {
            hot_slab: 0.0,
            ..Backing::open(&folder.0.join("backing"), size_bytes)?
        };
        let volumes = vec![
            (CODED_NAME, cluster.volume_expecting(coded, size_bytes)?),
            (COPIED, cluster.volume_expecting(copied, size_bytes)?),
            (
                "plain+backing",
                cluster.backed_volume("plain".parse()?, size_bytes, backing)?,
            ),
        ];
        for (_, volume) in &volumes {
            fill(volume)?;
        }
        Ok(Self {
            options,
            interrupt,
            volumes,
            cluster,
        })
    }

    /// Waits until every volume knows how many hosts are dead.
    fn settle(&self, dead: usize) -> anyhow::Result<()> {
        let patience = Instant::now() + PATIENCE;
        for (name, volume) in &self.volumes {
            loop {
                let status = volume.status()?;
                let up = status.hosts.iter().filter(|host| host.connected).count();
                if up + dead == HOSTS && (*name != CODED_NAME || status.health != Health::Healthy) {
                    break;
                }
                ensure!(
                    Instant::now() < patience,
                    "{name} does not notice: {status:?}"
                );
                self.interrupt.sleep(Duration::from_millis(5))?;
            }
        }
        Ok(())
    }

    fn measure(&self, index: usize, trouble: Trouble, round: usize) -> anyhow::Result<Sample> {
        self.interrupt.check()?;
        let volume = &self.volumes[index].1;
        let drive = || {
            let worker = volume.worker()?;
            let random = Random::new(self.options.seed + round as u64);
            match trouble {
                Trouble::Burst => burst(worker, random, self.options.time),
                _ => one_at_a_time(worker, random, self.options.time),
            }
        };
        match trouble {
            Trouble::Flows => {
                let mut sample = None;
                flow(&self.cluster, || {
                    sample = Some(drive()?);
                    Ok(())
                })?;
                sample.context("the flow waited for it")
            }
            Trouble::Straggler => self.beside_a_straggler(drive),
            _ => drive(),
        }
    }

    /// Runs `drive` while the last host stands still half of the time, for less than it takes to be
    /// given up.
    fn beside_a_straggler(
        &self,
        drive: impl FnOnce() -> anyhow::Result<Sample>,
    ) -> anyhow::Result<Sample> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let straggler = scope.spawn(|| -> anyhow::Result<()> {
                while !over.load(Ordering::Relaxed) {
                    self.cluster.stop(HOSTS - 1, true)?;
                    std::thread::sleep(STOPPED);
                    self.cluster.stop(HOSTS - 1, false)?;
                    std::thread::sleep(STOPPED);
                }
                Ok(())
            });
            let sample = drive();
            over.store(true, Ordering::Relaxed);
            straggler.join().expect("it only signals")?;
            sample
        })
    }
}

/// Notes how an operation ended; `Err` of what no dead host explains.
fn note(
    times: &mut Histogram<u64>,
    lost: &mut u64,
    began: u64,
    result: Result<(), IoError>,
) -> anyhow::Result<()> {
    match result {
        Ok(()) => times.saturating_record(ticks_to_ns(ticks() - began)),
        Err(IoError::Lost | IoError::NoSpace) => *lost += 1,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn one_at_a_time(mut worker: Worker, mut random: Random, time: Duration) -> anyhow::Result<Sample> {
    let pages = worker.size_bytes() / PAGE_BYTES as u64;
    let mut sample = Sample {
        reads: histogram(),
        writes: histogram(),
        lost: 0,
    };
    let mut page = vec![0x5a_u8; PAGE_BYTES];
    let end = Instant::now() + time;
    while Instant::now() < end {
        let offset = random.below(pages) * PAGE_BYTES as u64;
        let began = ticks();
        let result = worker.read(offset, &mut page);
        note(&mut sample.reads, &mut sample.lost, began, result)?;
        let offset = random.below(pages) * PAGE_BYTES as u64;
        let began = ticks();
        let result = worker.write(offset, &page);
        note(&mut sample.writes, &mut sample.lost, began, result)?;
    }
    Ok(sample)
}

/// Keeps [`DEPTH`] requests under way, half of them writes.
fn burst(mut worker: Worker, mut random: Random, time: Duration) -> anyhow::Result<Sample> {
    let pages = worker.size_bytes() / PAGE_BYTES as u64;
    let mut sample = Sample {
        reads: histogram(),
        writes: histogram(),
        lost: 0,
    };
    let mut began = [0; DEPTH];
    let mut idle: Vec<(usize, Vec<u8>)> = (0..DEPTH)
        .map(|tag| (tag, vec![0x5a; PAGE_BYTES]))
        .collect();
    let mut done: Vec<Done> = Vec::new();
    let end = Instant::now() + time;
    loop {
        let is_over = Instant::now() >= end;
        while let Some((tag, page)) = idle.pop_if(|_| !is_over) {
            began[tag] = ticks();
            let request = Request {
                tag: tag as u64,
                offset: random.below(pages) * PAGE_BYTES as u64,
                op: if tag % 2 == 0 {
                    Op::Read(page)
                } else {
                    Op::Write(page)
                },
            };
            let accepted = worker.submit(request);
            ensure!(accepted.is_ok(), "a worker takes {DEPTH} requests");
        }
        if worker.in_flight() == 0 {
            return Ok(sample);
        }
        worker.poll(&mut done);
        if done.is_empty() {
            wait(&worker)?;
        }
        for ended in done.drain(..) {
            let tag = ended.tag as usize;
            let (times, page) = match ended.op {
                Op::Read(page) => (&mut sample.reads, page),
                Op::Write(page) => (&mut sample.writes, page),
                Op::Discard { .. } => unreachable!("none was sent"),
            };
            note(times, &mut sample.lost, began[tag], ended.result)?;
            idle.push((tag, page));
        }
    }
}

/// Sleeps until the worker has something to do.
fn wait(worker: &Worker) -> anyhow::Result<()> {
    let timeout = worker.deadline().unwrap_or(PATIENCE);
    let mut fd = libc::pollfd {
        fd: worker.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `fd` is one valid pollfd.
    if unsafe { libc::poll(&raw mut fd, 1, millis) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("wait for a worker");
        }
    }
    Ok(())
}

/// Reading of a sample.
type Metric = (&'static str, &'static str, fn(&Sample) -> f64);

const METRICS: [Metric; 6] = [
    ("read_latency_p50", "us", |sample| us(&sample.reads, 0.5)),
    ("read_latency_p99", "us", |sample| us(&sample.reads, 0.99)),
    ("read_latency_p999", "us", |sample| us(&sample.reads, 0.999)),
    ("write_latency_p50", "us", |sample| us(&sample.writes, 0.5)),
    ("write_latency_p99", "us", |sample| us(&sample.writes, 0.99)),
    ("write_latency_p999", "us", |sample| {
        us(&sample.writes, 0.999)
    }),
];

fn us(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

/// The coded volume beside the others in the same round.
fn rows(options: &Options, taken: &[(Trouble, usize, Sample)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for trouble in &options.troubles {
        let of = |volume: usize| -> Vec<&Sample> {
            let samples = taken
                .iter()
                .filter(|(at, index, _)| at == trouble && *index == volume);
            samples.map(|(.., sample)| sample).collect()
        };
        let case = format!("{CODED_NAME} {}, {}", options.transport, trouble.label());
        for (index, peer) in [(1, COPIED), (2, "plain+backing")] {
            let pairs = |value: &dyn Fn(&Sample) -> f64| -> Vec<(f64, f64)> {
                let (ours, theirs) = (of(0), of(index));
                let both = ours.iter().zip(&theirs);
                both.map(|(ours, theirs)| (value(ours), value(theirs)))
                    .collect()
            };
            for (metric, unit, value) in METRICS {
                let pairs = pairs(&value);
                rows.push(figures::row(
                    &case,
                    (metric, unit),
                    Some(false),
                    peer,
                    &pairs,
                ));
            }
            if of(0).iter().chain(&of(index)).any(|sample| sample.lost > 0) {
                let pairs = pairs(&Sample::lost_percent);
                rows.push(figures::row(
                    &case,
                    ("lost", "%"),
                    Some(false),
                    peer,
                    &pairs,
                ));
            }
        }
    }
    for row in &mut rows {
        row.bench = "page";
    }
    rows
}

const CODED: &str = "rs:8+2";
/// As in a row.
const CODED_NAME: &str = "rs:8+2 delta=1";
const COPIED: &str = "mirror:2";
/// As many as a coded stripe has members: nothing can be rebuilt elsewhere, so its reads decode for as
/// long as a host is dead.
const HOSTS: usize = 10;
const SLAB_MIB: u64 = 4;
/// Far below the second after which a silent host counts as dead. Arbitrary.
const STOPPED: Duration = Duration::from_millis(20);
const DEPTH: usize = 32;
/// How long a death may go unnoticed; arbitrary.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_a_row_and_what_is_not_is_none() {
        let sample = |read_ns, lost| {
            let mut reads = histogram();
            reads.record(read_ns).unwrap();
            let mut writes = histogram();
            writes.record(2000).unwrap();
            Sample {
                reads,
                writes,
                lost,
            }
        };
        let options = Options {
            troubles: vec![Trouble::TwoDead],
            ..Options::default()
        };
        let taken = [
            (Trouble::TwoDead, 0, sample(1000, 0)),
            (Trouble::TwoDead, 1, sample(4000, 2)),
            (Trouble::TwoDead, 2, sample(500, 0)),
        ];
        let rows = rows(&options, &taken);
        assert_eq!(rows.len(), 6 + 1 + 6);
        let row = |metric, peer: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row.metric == metric && row.peer == peer)
        };
        let read = row("read_latency_p50", COPIED).expect("measured");
        assert!((read.ratio - 0.25).abs() < 0.01, "{read:?}");
        let lost = row("lost", COPIED).expect("something was");
        assert_eq!((lost.ours, lost.theirs), (0.0, 50.0));
        assert_eq!(row("lost", "plain+backing"), None);
    }
}
