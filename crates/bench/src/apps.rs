//! Unmodified programs whose memory does not fit, swapping to ours and to what a user would pick
//! instead: a swap file, compressed memory, the memory of one other process.
//!
//! A program is loaded once; then each kind of swap in turn is turned on, the program's cgroup is
//! limited to less and less of its peak, the program is measured, and swap is turned off again.
//! So all of them serve the same process with the same data, round after round, and a ratio is
//! one of figures of the same round. A difference that not every round shows counts as none.
//! Elsewhere: how a figure becomes a row (`figures`), what a program does (a file each).
//! Paper: \[infiniswap17\] section 7.2.

mod app;
pub(crate) mod figures;
mod graph;
mod memaslap;
mod memcached;
pub(crate) mod memcached_load;
pub(crate) mod mix;
mod nbdkit;
pub mod pagerank;
mod postgres;
mod program;
mod redis;
pub(super) mod slot;
mod sort;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;

use super::Row;
use crate::rounds::turns;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};
use crate::swap_rig::{Folder, ON_DISK, area, fresh, is_installed, is_root};
pub use app::App;
use figures::{Figure, FigureSource, Figures, MEMORY};
use program::{Program, Sizes};
pub use slot::Slot;
use slot::{On, Slots};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for sockets and the swap file; on a real disk. Made, and removed.
    pub dir: PathBuf,
    /// Programs.
    pub apps: Vec<App>,
    /// Kinds of swap.
    pub slots: Vec<Slot>,
    /// Memory that a program may keep, in per cent of its peak; below 100, falling.
    pub limits: Vec<u8>,
    /// Measurements of each.
    pub rounds: usize,
    /// About what a program takes.
    pub program_mib: u64,
    /// How long a server is measured.
    pub seconds: f64,
    /// Seed of keys, values, graphs and records.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: fresh(Path::new(ON_DISK), "bench"),
            apps: App::USUAL.to_vec(),
            slots: Slot::ALL.to_vec(),
            limits: vec![75, 50],
            rounds: 3,
            program_mib: 256,
            seconds: 2.0,
            seed: 1,
        }
    }
}

impl Options {
    /// Makes it a matter of a minute or two: smaller programs, one round.
    pub fn shorten(&mut self) {
        self.rounds = 1;
        self.program_mib = 128;
        self.seconds = 1.0;
    }
}

/// Measures everything that was asked for; narrates on stderr.
///
/// # Errors
/// What is missing, could not be started or went away, or that the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    check(options)?;
    let interrupt = Interrupt::catch()?;
    let folder = Folder::make(options.dir.clone())?;
    // A peak may be above what was aimed at, and not every freed slot is free at once.
    let swap_bytes = (options.program_mib << 20) * 2;
    eprintln!(
        "programs of about {} MiB, {} MiB of swap each, {} rounds",
        options.program_mib,
        swap_bytes >> 20,
        options.rounds
    );
    let slots = Slots::prepare(&options.slots, &folder.0, swap_bytes, options.seed)?;
    let mut rows = Vec::new();
    for app in &options.apps {
        interrupt.check()?;
        let mut bench = Bench {
            app: *app,
            options,
            slots: &slots,
            interrupt: &interrupt,
            figures: Figures::default(),
        };
        bench.run()?;
        rows.extend(bench.figures.rows(app.label(), &|slot| slots.name(slot)));
    }
    Ok(rows)
}

/// What would fail late is refused early.
fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(
        is_root(),
        "it turns swap on and limits memory: run it as root"
    );
    ensure!(options.rounds > 0, "no rounds asked for");
    let falling = options.limits.windows(2).all(|two| two[0] > two[1]);
    let below = options.limits.iter().all(|limit| (10..100).contains(limit));
    ensure!(
        falling && below && !options.limits.is_empty(),
        "limits from 99 down to 10 per cent, the largest first"
    );
    area::refuse_others()?;
    let needs = options.apps.iter().flat_map(|app| app.needs());
    let mut needs: Vec<_> = needs.copied().collect();
    if options.slots.contains(&Slot::Nbdkit) {
        needs.extend([("nbdkit", "nbdkit"), ("nbdfuse", "libnbd-bin")]);
    }
    for (program, package) in needs {
        if !is_installed(program) {
            bail!("{program} is not installed: apt-get install {package}");
        }
    }
    Ok(())
}

/// One program with everything that it is measured over.
struct Bench<'a> {
    app: App,
    options: &'a Options,
    slots: &'a Slots,
    interrupt: &'a Interrupt,
    figures: Figures,
}

impl Bench<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        let label = self.app.label();
        let name = format!("cenote-bench-{}-{:?}", std::process::id(), self.app);
        let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
        // Dropped before its cgroup, which cannot be removed while a process is in it.
        let mut program = self.app.make(&Sizes {
            dir: self.options.dir.clone(),
            bytes: self.options.program_mib << 20,
            seconds: self.options.seconds,
            seed: self.options.seed,
        })?;
        program.load(&group, self.interrupt)?;
        for round in 0..self.options.rounds {
            if program.is_spent() {
                program.load(&group, self.interrupt)?;
            }
            let outcome = program.measure(self.interrupt)?;
            self.note(MEMORY, round, outcome, None);
            let peak = peak_bytes(&group)?;
            if round == 0 {
                eprintln!("{label}: peak {} MiB", peak >> 20);
            }
            for index in turns(self.options.slots.len(), round) {
                let slot = self.options.slots[index];
                self.visit(slot, round, peak, &group, program.as_mut())?;
            }
        }
        program.end();
        Ok(())
    }

    /// Measures the program over one slot, at each limit.
    fn visit(
        &mut self,
        slot: Slot,
        round: usize,
        peak: u64,
        group: &MemoryCgroup,
        program: &mut dyn Program,
    ) -> anyhow::Result<()> {
        let on = self.slots.on(slot)?;
        let limited = LiftOnDrop(group);
        let limits = &self.options.limits;
        for limit in limits {
            self.interrupt.check()?;
            if program.is_spent() {
                limited.lift()?;
                program.load(group, self.interrupt)?;
            }
            squeeze(group, peak / 100 * u64::from(*limit), self.interrupt)?;
            let place = FigureSource {
                slot: Some(slot),
                limit: *limit,
            };
            let kills = OomKills::of(group);
            let measured = self.measure(place, round, &on, program);
            if let Err(error) = kills.explain(measured) {
                self.interrupt.check()?;
                // As a result, not as the end of the run: another slot may do better.
                eprintln!(
                    "{} {limit}% {}: did not finish: {error:#}",
                    self.app.label(),
                    slot.label()
                );
                limited.lift()?;
                program.load(group, self.interrupt)?;
            }
        }
        limited.lift()?;
        on.off()
    }

    fn measure(
        &mut self,
        place: FigureSource,
        round: usize,
        on: &On<'_>,
        program: &mut dyn Program,
    ) -> anyhow::Result<()> {
        program.warm_up(self.interrupt)?;
        let (pages, cpu) = (swapped_pages()?, on.cpu()?);
        let began = Instant::now();
        let outcome = program.measure(self.interrupt)?;
        let paging = Paging {
            time: began.elapsed(),
            pages: swapped_pages()? - pages,
            cpu: match (cpu, on.cpu()?) {
                (Some(before), Some(after)) => Some((
                    after.remote_ns.saturating_sub(before.remote_ns),
                    after.local_ns.saturating_sub(before.local_ns),
                )),
                _ => None,
            },
        };
        self.note(place, round, outcome, Some(paging));
        Ok(())
    }

    fn note(
        &mut self,
        place: FigureSource,
        round: usize,
        outcome: program::Outcome,
        paging: Option<Paging>,
    ) {
        let mut figures = outcome.figures();
        let mut text = String::new();
        for (metric, unit, value, _) in &figures {
            text.push_str(&format!(", {metric} {value:.1} {unit}"));
        }
        if let Some(paging) = paging {
            let rate = paging.pages as f64 / paging.time.as_secs_f64();
            figures.push(("pages_swapped", "pages/s", rate, None));
            text.push_str(&format!(", {rate:.0} pages swapped/s"));
            if let Some((remote_ns, local_ns)) = paging.cpu {
                let hosts = remote_ns as f64 / paging.time.as_nanos() as f64 * 100.0;
                let server = local_ns as f64 / paging.pages.max(1) as f64 / 1e3;
                figures.push(("cpu_of_hosts", "% of a core", hosts, Some(false)));
                figures.push(("cpu_of_server", "us/page", server, Some(false)));
                text.push_str(&format!(
                    ", CPU of hosts {hosts:.2}% of a core, of the server {server:.1} us/page"
                ));
            }
        }
        let slot = place.slot.map_or("in memory", Slot::label);
        eprintln!(
            "{} {}% {slot}, round {round}{text}",
            self.app.label(),
            place.limit
        );
        for (metric, unit, value, more_is_better) in figures {
            self.figures.push(Figure {
                place,
                round,
                metric,
                unit,
                value,
                more_is_better,
            });
        }
    }
}

/// What the kernel and the servers did during a measurement.
struct Paging {
    time: Duration,
    pages: u64,
    /// Of those who hold the memory and of who serves the device, in ns.
    cpu: Option<(u64, u64)>,
}

/// Waits for `is_so`, which says itself when it cannot become so any more.
fn wait_until(
    interrupt: &Interrupt,
    what: &str,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let patience = Instant::now() + START_LIMIT;
    while !is_so()? {
        ensure!(Instant::now() < patience, "waited in vain: {what}");
        interrupt.sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

/// The most memory that a cgroup has had.
pub(super) fn peak_bytes(group: &MemoryCgroup) -> anyhow::Result<u64> {
    let procs = group.procs_path();
    let dir = procs.parent().context("a cgroup is a folder")?;
    for name in ["memory.max_usage_in_bytes", "memory.peak"] {
        if let Ok(text) = fs::read_to_string(dir.join(name)) {
            return text.trim().parse().with_context(|| name.to_owned());
        }
    }
    bail!("this kernel does not tell the peak of a memory cgroup (memory.peak: Linux 5.19)")
}

/// Pages that this machine has swapped in and out since it started.
fn swapped_pages() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/vmstat").context("read /proc/vmstat")?;
    swapped_in(&stat).context("/proc/vmstat has pswpin and pswpout")
}

fn swapped_in(stat: &str) -> Option<u64> {
    let count = |name: &str| -> Option<u64> {
        stat.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    Some(count("pswpin ")? + count("pswpout ")?)
}

/// How long a server may take to listen; arbitrary.
const START_LIMIT: Duration = Duration::from_secs(30);
