//! `cenote bench pager`: programs of which a part of the memory is resident: in the paged heap, and
//! over swap. One touches pages; the other is memcached (`program`).
//!
//! The one that touches is the same (`touch`), in a process of its own (`worker`): a region bounds itself,
//! swap is forced by the limit of a cgroup. Contenders take turns in each round; the median of the
//! rounds is kept. A fault is a touch that takes longer than an access of memory can.

mod program;
pub(super) mod touch;
pub(super) mod worker;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
pub use cenote_pager::Handlers;
use cenote_volume::Scheme;

use super::Row;
use super::apps::Slot;
use super::apps::peak_bytes;
use super::apps::slot::Slots;
use crate::cluster::LocalCluster;
use crate::rounds::{Samples, turns};
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};
use crate::swap_rig::{Folder, ON_DISK, area, fresh, is_root};
use touch::Pattern;
pub use worker::{Job, work};
use worker::{Told, Worker};

/// A program that is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Program {
    /// It touches pages, by itself.
    Touches,
    /// memcached, which is loaded, at the largest resident share.
    Memcached,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for sockets and a swap file; made, and removed.
    pub dir: PathBuf,
    /// Which programs; all if empty.
    pub programs: Vec<Program>,
    /// `shm`, `tcp`, or both.
    pub transports: Vec<String>,
    /// Fault handlers of the region; several numbers are measured in turn.
    pub handlers: Vec<Handlers>,
    /// Kinds of swap beside it.
    pub slots: Vec<Slot>,
    /// Memory of the program that touches, in MiB.
    pub memory_mib: u64,
    /// Bytes of values that memcached holds, in MiB.
    pub values_mib: u64,
    /// How much of it is resident, in per cent.
    pub resident: Vec<u8>,
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
            dir: fresh(Path::new(ON_DISK), "pager"),
            programs: Vec::new(),
            transports: vec!["shm".into(), "tcp".into()],
            handlers: vec![Handlers::default()],
            slots: vec![Slot::Coded, Slot::Nbdkit, Slot::Zram],
            memory_mib: 256,
            values_mib: 256,
            resident: vec![50, 25],
            threads: vec![1, 2],
            rounds: 3,
            seconds: 1.0,
        }
    }
}

impl Options {
    /// Makes it a matter of a minute: less memory, one round.
    pub fn shorten(&mut self) {
        self.memory_mib = 64;
        // Not less: a cgroup of a few MiB whose pages are all in flight is killed, not waited for.
        self.values_mib = 128;
        self.rounds = 1;
        self.seconds = 0.2;
    }

    fn has(&self, program: Program) -> bool {
        self.programs.is_empty() || self.programs.contains(&program)
    }
}

const SCHEME: &str = "rs:8+2";
const HOSTS: usize = 12;

/// What was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Case {
    resident: u8,
    pattern: Pattern,
    threads: usize,
}

/// One of those that are compared.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Contender {
    /// Over a transport.
    Region(String, Handlers),
    Swap(Slot),
}

/// Measures everything that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    check(options)?;
    let interrupt = Interrupt::catch()?;
    let _folder = Folder::make(options.dir.clone())?;
    let ways = options.transports.iter().flat_map(|transport| {
        let handlers = options.handlers.iter();
        handlers.map(move |handlers| Contender::Region(transport.clone(), *handlers))
    });
    let ways: Vec<Contender> = ways.collect();
    let mut rows = Vec::new();
    if options.has(Program::Touches) {
        rows.extend(touches(options, &ways, &interrupt)?);
    }
    if options.has(Program::Memcached) {
        let swaps = options.slots.iter().map(|slot| Contender::Swap(*slot));
        let all: Vec<Contender> = ways.iter().cloned().chain(swaps).collect();
        rows.extend(program::run(options, &all, &interrupt)?);
    }
    Ok(rows)
}

/// Memory of each of the hosts for programs that take so much together, in MiB: ten splits to eight of
/// data, and half as much again for slabs that do not fit.
fn host_mib(memory_mib: u64) -> u64 {
    (memory_mib * 10 / 8 * 3 / 2 / HOSTS as u64).next_multiple_of(16) + 16
}

/// The program that touches pages, over each way to a region and over each kind of swap.
fn touches(
    options: &Options,
    ways: &[Contender],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Row>> {
    let bytes = options.memory_mib << 20;
    let slots = Slots::prepare(&options.slots, &options.dir, bytes * 2, 1)?;
    let scheme: Scheme = SCHEME.parse().expect("a scheme");
    let mut regions = Vec::new();
    for way in ways {
        let Contender::Region(transport, handlers) = way else {
            continue;
        };
        let dir = options.dir.join(format!("{transport}-{handlers}"));
        let (host_mib, more) = (host_mib(options.memory_mib), ["--slab", "4M"]);
        let cluster = LocalCluster::start_in(&dir, HOSTS, host_mib, transport, &more)?;
        let job = Job {
            bytes,
            region: Some((cluster.file(), scheme, *handlers)),
        };
        // Dropped before its cluster.
        regions.push((way.clone(), Worker::start(&job, None)?, cluster));
        interrupt.check()?;
    }
    let name = format!("cenote-pager-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let job = Job {
        bytes,
        region: None,
    };
    let mut swapped = Worker::start(&job, Some(&group))?;
    let peak = peak_bytes(&group)?;
    let mut told = Samples::new();
    for round in 0..options.rounds {
        for index in turns(regions.len(), round) {
            let (who, region, _) = &mut regions[index];
            for resident in &options.resident {
                region.room(bytes / 100 * u64::from(*resident))?;
                measure(options, interrupt, who, *resident, region, &mut told)?;
            }
        }
        for index in turns(options.slots.len(), round) {
            let slot = options.slots[index];
            let on = slots.on(slot)?;
            let limited = LiftOnDrop(&group);
            for resident in &options.resident {
                squeeze(&group, peak / 100 * u64::from(*resident), interrupt)?;
                let who = Contender::Swap(slot);
                measure(options, interrupt, &who, *resident, &mut swapped, &mut told)?;
            }
            limited.lift()?;
            on.off()?;
        }
    }
    let ours = regions.into_iter().map(|(who, ..)| who).collect::<Vec<_>>();
    Ok(rows(options, &ours, &told, &|slot| name_of(slot, &slots)))
}

/// What would fail late is refused early.
fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(
        is_root(),
        "it turns swap on and limits memory: run it as root"
    );
    ensure!(
        !options.slots.is_empty(),
        "nothing to compare with: name a kind of swap"
    );
    let falling = options.resident.windows(2).all(|two| two[0] > two[1]);
    let below = options
        .resident
        .iter()
        .all(|share| (10..100).contains(share));
    ensure!(
        falling && below && !options.resident.is_empty(),
        "resident shares from 99 down to 10 per cent, the largest first"
    );
    if options.has(Program::Memcached) {
        program::check()?;
    }
    area::refuse_others()
}

fn measure(
    options: &Options,
    interrupt: &Interrupt,
    who: &Contender,
    resident: u8,
    worker: &mut Worker,
    told: &mut Samples<Contender, Case, Told>,
) -> anyhow::Result<()> {
    for pattern in Pattern::ALL {
        for threads in &options.threads {
            interrupt.check()?;
            let case = Case {
                resident,
                pattern,
                threads: *threads,
            };
            // The first touches find what the last measurement left.
            worker.touch(pattern, *threads, options.seconds / 4.0)?;
            let one = worker.touch(pattern, *threads, options.seconds)?;
            let of = one.touched;
            eprintln!(
                "{who:?} {resident}% {} {threads} threads: {:.0} pages/s, {:.1}% faults, p50 {:.1} us, \
                 p99 {:.1} us, {} read ahead, {} of use",
                pattern.label(),
                of.pages_per_s,
                of.fault_share * 100.0,
                of.fault_us_p50,
                of.fault_us_p99,
                one.ahead,
                one.useful,
            );
            told.push(who.clone(), case, one);
        }
    }
    Ok(())
}

/// Peer name of a kind of swap.
fn name_of(slot: Slot, slots: &Slots) -> String {
    match slot {
        Slot::Coded => "cenote swap, rs:8+2 shm".to_owned(),
        other => slots.name(other),
    }
}

fn rows(
    options: &Options,
    regions: &[Contender],
    told: &Samples<Contender, Case, Told>,
    name: &dyn Fn(Slot) -> String,
) -> Vec<Row> {
    type Metric = (&'static str, &'static str, bool, fn(&Told) -> f64);
    let metrics: [Metric; 3] = [
        ("touches", "pages/s", true, |one| one.touched.pages_per_s),
        ("fault_p50", "us", false, |one| one.touched.fault_us_p50),
        ("fault_p99", "us", false, |one| one.touched.fault_us_p99),
    ];
    let mut rows = Vec::new();
    for ours in regions {
        let Contender::Region(transport, handlers) = ours else {
            continue;
        };
        for case in told.cases(ours) {
            let (share, pattern) = (case.resident, case.pattern.label());
            let text = format!(
                "{SCHEME} {transport} {share}% {pattern} t{} h{handlers}",
                case.threads
            );
            for slot in &options.slots {
                let peer = name(*slot);
                let both = (ours, &Contender::Swap(*slot));
                for (metric, unit, more, figure) in metrics {
                    let pairs = told.pairs(both, case, figure);
                    let (case, metric) = (("pager", &text), (metric, unit));
                    rows.push(Row::of_rounds(
                        case,
                        metric,
                        Some(more),
                        peer.as_str(),
                        &pairs,
                    ));
                }
            }
        }
    }
    rows
}
