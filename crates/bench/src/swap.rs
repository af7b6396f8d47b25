//! `cenote bench swap`: how fast pages come back from our swap device, by each way that its
//! requests come, beside nbdkit's memory disk in the same place.
//!
//! One program in a cgroup touches its pages (`pager::touch`), a part of which is resident, while
//! contenders take turns in each round; the median of the rounds is kept. What is timed are touches
//! that waited for the device, not those of pages that the kernel had read ahead. FUSE over
//! io_uring is switched on in the kernel meanwhile, and left as it was found.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;

use super::Row;
use super::apps::slot::{On, Slots};
use super::apps::{Slot, peak_bytes};
use super::pager::Job;
use super::pager::touch::{Pattern, Touched};
use super::pager::worker::Worker;
use crate::rounds::{Samples, turns};
use crate::swap_rig::fuse_switch::FuseSwitch;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};
use crate::swap_rig::{Folder, ON_DISK, area, fresh, is_installed, is_root};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for sockets; made, and removed.
    pub dir: PathBuf,
    /// Memory of the program, in MiB.
    pub memory_mib: u64,
    /// How much of it is resident, in per cent.
    pub resident: u8,
    /// How many threads touch it.
    pub threads: Vec<usize>,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// How long each measurement takes.
    pub seconds: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(Path::new(ON_DISK), "swap"),
            memory_mib: 256,
            resident: 50,
            threads: vec![1, 2],
            rounds: 5,
            seconds: 1.0,
        }
    }
}

impl Options {
    /// Makes it a matter of a minute: less memory, one round.
    pub fn shorten(&mut self) {
        self.memory_mib = 64;
        self.rounds = 1;
        self.seconds = 0.2;
    }
}

const SCHEME: &str = "rs:8+2";
const PATTERNS: [Pattern; 2] = [Pattern::Random, Pattern::Sequential];

/// One of those that are compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Contender {
    /// Ours, FUSE requests over io_uring.
    Rings,
    /// Ours, FUSE requests over `/dev/fuse`.
    DevFuse,
    Nbdkit,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Rings, Self::DevFuse, Self::Nbdkit];

    fn on(self, slots: &Slots) -> anyhow::Result<On<'_>> {
        let (slot, setting, transport) = match self {
            Self::Rings => (Slot::Coded, "on", Some("io_uring")),
            Self::DevFuse => (Slot::Coded, "off", Some("/dev/fuse")),
            Self::Nbdkit => (Slot::Nbdkit, "", None),
        };
        let on = slots.on_with(slot, &[("CENOTE_FUSE_URING", setting)])?;
        let found = on.transport()?;
        ensure!(
            found.as_deref() == transport,
            "{self:?}: requests come over {found:?}, not {transport:?}"
        );
        Ok(on)
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Case {
    pattern: Pattern,
    threads: usize,
}

/// Measures everything that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    check(options)?;
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(options.dir.clone())?;
    let _switch = FuseSwitch::on()?;
    let bytes = options.memory_mib << 20;
    let slots = Slots::prepare(&[Slot::Coded, Slot::Nbdkit], &folder.0, bytes * 2, 1)?;
    let name = format!("cenote-swap-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let job = Job {
        bytes,
        region: None,
    };
    let mut program = Worker::start(&job, Some(&group))?;
    let peak = peak_bytes(&group)?;
    let mut told = Samples::new();
    for round in 0..options.rounds {
        for index in turns(Contender::ALL.len(), round) {
            let who = Contender::ALL[index];
            interrupt.check()?;
            let on = who.on(&slots)?;
            let limited = LiftOnDrop(&group);
            squeeze(&group, peak / 100 * u64::from(options.resident), &interrupt)?;
            for pattern in PATTERNS {
                for threads in &options.threads {
                    interrupt.check()?;
                    let case = Case {
                        pattern,
                        threads: *threads,
                    };
                    // The first touches find what the last measurement left.
                    program.touch(pattern, *threads, options.seconds / 4.0)?;
                    let touched = program.touch(pattern, *threads, options.seconds)?.touched;
                    eprintln!(
                        "{who:?} {} t{threads}, round {round}: {:.0} pages/s, {:.1}% waited, \
                         p50 {:.1} us, p99 {:.1} us",
                        pattern.label(),
                        touched.pages_per_s,
                        touched.wait_share * 100.0,
                        touched.wait_us_p50,
                        touched.wait_us_p99,
                    );
                    told.push(who, case, touched);
                }
            }
            limited.lift()?;
            on.off()?;
        }
    }
    Ok(rows(options, &told, &slots.name(Slot::Nbdkit)))
}

/// What would fail late is refused early.
fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(
        is_root(),
        "it turns swap on and limits memory: run it as root"
    );
    ensure!(options.rounds > 0, "no rounds asked for");
    ensure!(
        (10..100).contains(&options.resident),
        "a resident share from 10 to 99 per cent"
    );
    for (program, package) in [("nbdkit", "nbdkit"), ("nbdfuse", "libnbd-bin")] {
        ensure!(
            is_installed(program),
            "{program} is not installed: apt-get install {package}"
        );
    }
    area::refuse_others()
}

type Metric = (&'static str, &'static str, bool, fn(&Touched) -> f64);

/// Name, unit, whether more is better, and the figure.
const METRICS: [Metric; 4] = [
    ("touches", "pages/s", true, |one| one.pages_per_s),
    ("waits", "waits/s", true, |one| {
        one.pages_per_s * one.wait_share
    }),
    ("wait_p50", "us", false, |one| one.wait_us_p50),
    ("wait_p99", "us", false, |one| one.wait_us_p99),
];

fn rows(options: &Options, told: &Samples<Contender, Case, Touched>, nbdkit: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for pattern in PATTERNS {
        for threads in &options.threads {
            let case = Case {
                pattern,
                threads: *threads,
            };
            let text = format!(
                "{SCHEME} shm {}% {} t{threads}",
                options.resident,
                pattern.label()
            );
            for (ours, mine) in [
                (Contender::Rings, "io_uring"),
                (Contender::DevFuse, "/dev/fuse"),
            ] {
                for (peer, name) in [
                    (Contender::DevFuse, "cenote swap by /dev/fuse"),
                    (Contender::Nbdkit, nbdkit),
                ] {
                    if ours == peer {
                        continue;
                    }
                    for (metric, unit, more, figure) in METRICS {
                        let pairs = told.pairs((&ours, &peer), &case, figure);
                        if !pairs.is_empty() {
                            let case = ("swap", format!("{text} by {mine}"));
                            let metric = (metric, unit);
                            rows.push(Row::of_rounds(case, metric, Some(more), name, &pairs));
                        }
                    }
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_medians_and_the_ratios_of_the_same_round() {
        let case = Case {
            pattern: Pattern::Random,
            threads: 1,
        };
        let one = |us: f64| Touched {
            pages_per_s: 1e6 / us,
            fault_share: 0.75,
            fault_us_p50: us / 2.0,
            fault_us_p99: us,
            wait_share: 0.5,
            wait_us_p50: us,
            wait_us_p99: us,
        };
        let mut told = Samples::new();
        for (mine, theirs) in [(20.0, 40.0), (30.0, 40.0), (40.0, 80.0)] {
            told.push(Contender::Rings, case, one(mine));
            told.push(Contender::Nbdkit, case, one(theirs));
        }
        let rows = rows(&Options::default(), &told, "nbdkit 1");
        assert_eq!(rows.len(), METRICS.len(), "beside nbdkit alone: {rows:?}");
        let p50 = rows.iter().find(|row| row.metric == "wait_p50").unwrap();
        assert_eq!((p50.ours, p50.theirs), (30.0, 40.0));
        assert_eq!(p50.case, "rs:8+2 shm 50% random t1 by io_uring");
        let spread = p50.spread.as_ref().unwrap();
        assert_eq!((spread.ratio_min, spread.ratio_max), (0.5, 0.75));
        assert_eq!(spread.verdict, crate::Verdict::Better);
    }
}
