//! Nodes are killed under a load: what throughput and latency do, over time.
//!
//! Each variant of a store in turn is started, filled and loaded; at given moments one of its nodes
//! is killed, the same ones for every variant of a round. Clients on a dead node turn to the next.
//! At the end every item is read back. What was acknowledged and is gone, although fewer nodes were
//! killed than the variant survives, is an error, as is any wrong or stale value.
//!
//! A cluster of ours tells itself when recoveries began, served and ended, and how much they rebuilt
//! (`told`). A node of it is killed without a load, too.
//!
//! Elsewhere: curves, tables and rows (`survey`). Paper: \[cocytus16\] 6.4, Figure 8.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cenote_measure::random::{Random, mix as mixed};

use super::items::{Book, Items};
use super::load::{Load, Target};
use super::node_status::{self, Takeover};
use super::processes::Processes;
use super::survey::{self, Survey};
use super::tally::SLICE;
use super::{Mix, Options as Kinds, Route, Server, Shape, Sizes};
use crate::Row;
use crate::swap_rig::interrupt::Interrupt;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Variants side by side; the first is ours, the others are its peers.
    pub variants: Vec<Server>,
    /// Shares of reads and writes.
    pub mix: Mix,
    /// Lengths of values.
    pub sizes: Sizes,
    /// Who asks.
    pub shape: Shape,
    /// About how many MiB of values each variant gets.
    pub mib: u64,
    /// When a node is killed, after the load began.
    pub kills: Vec<Duration>,
    /// How long the load lasts.
    pub time: Duration,
    /// Measurements of each variant.
    pub rounds: usize,
    /// Seed of items, of the order of requests, and of who is killed.
    pub seed: u64,
    /// Folder for curves and tables, if wanted.
    pub files: Option<PathBuf>,
}

impl Options {
    /// The paper's scenario, ten times as fast: two nodes go, 6 and 10 seconds after the start.
    #[must_use]
    pub fn new(variants: Vec<Server>) -> Self {
        Self {
            variants,
            mix: Mix::MOSTLY_READS,
            sizes: Sizes::Fixed(1 << 10),
            shape: Shape {
                clients: 32,
                depth: 1,
                threads: 1,
            },
            mib: 128,
            kills: vec![Duration::from_secs(6), Duration::from_secs(10)],
            time: Duration::from_secs(16),
            rounds: 3,
            seed: 1,
            files: None,
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.variants.is_empty(), "no store asked for");
        ensure!(self.rounds > 0, "no rounds asked for");
        let moments = self.moments();
        ensure!(
            moments.windows(2).all(|two| two[0] + SLICE <= two[1]),
            "kills one after the other, with {} ms at least before, between and after them",
            SLICE.as_millis()
        );
        Ok(())
    }

    /// Start, kills, end.
    pub(super) fn moments(&self) -> Vec<Duration> {
        let mut moments = vec![Duration::ZERO];
        moments.extend(&self.kills);
        moments.push(self.time);
        moments
    }

    /// As in a row.
    pub(super) fn case(&self) -> String {
        format!("{} {}", self.sizes.label(), self.mix.label())
    }
}

/// Plays every variant in every round; narrates on stderr.
///
/// # Errors
/// A store that cannot be started, lost values, wrong ones.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    options.check()?;
    let interrupt = Interrupt::catch()?;
    let mut surveys = vec![Vec::new(); options.variants.len()];
    for round in 0..options.rounds {
        for turn in 0..options.variants.len() {
            let index = (turn + round) % options.variants.len();
            let variant = &options.variants[index];
            let play = Play {
                options,
                variant,
                round: round as u64,
                interrupt: &interrupt,
            };
            let survey = play
                .loaded()
                .and_then(|survey| Ok(survey.with_idle(play.idle()?)))
                .with_context(|| format!("{variant}, round {round}"))?;
            eprintln!("{variant}, round {round}: {survey}");
            surveys[index].push(survey);
        }
    }
    if let Some(dir) = &options.files {
        survey::draw(dir, options, &surveys)?;
    }
    let mut faults = Vec::new();
    for (variant, rounds) in options.variants.iter().zip(&surveys) {
        let may_lose = options.kills.len() > variant.redundancy.losses_max();
        let found = rounds.iter().filter_map(|one| one.fault(may_lose));
        faults.extend(found.map(|fault| format!("{variant}: {fault}")));
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    let rows = survey::rows(options, &surveys);
    survey::print_goals(&rows);
    Ok(rows)
}

/// One round of one variant.
struct Play<'a> {
    options: &'a Options,
    variant: &'a Server,
    round: u64,
    interrupt: &'a Interrupt,
}

impl Play<'_> {
    /// Its clients ask any node: who has a key changes, and those without the map are the many.
    fn start(&self, items: &Items) -> Result<Processes> {
        let mut running = Processes::start(self.variant, super::room_mib(items))?;
        if running.target.route == Route::ByMap {
            running.target.route = Route::Any;
        }
        Ok(running)
    }

    fn items(&self) -> Result<Items> {
        let kinds = Kinds {
            mib: self.options.mib,
            seed: self.options.seed,
            ..Kinds::new(Vec::new())
        };
        kinds.items(self.options.sizes)
    }

    fn load<'a>(&'a self, target: &'a Target, items: &'a Items, book: &'a Book) -> Load<'a> {
        Load {
            target,
            items,
            book,
            shape: self.options.shape,
            is_tolerant: true,
        }
    }

    /// Nodes die under the load.
    fn loaded(&self) -> Result<Survey> {
        let options = self.options;
        let items = self.items()?;
        let mut running = self.start(&items)?;
        let target = running.target.clone();
        let victims = victims(running.node_count(), options.seed + self.round);
        ensure!(
            victims.len() > options.kills.len(),
            "{} nodes, of which {} are to be killed",
            victims.len(),
            options.kills.len()
        );
        let book = Book::new(&items);
        let load = self.load(&target, &items, &book);
        load.fill()?;
        let seed = options.seed + self.round;
        let (tally, (began_us, killed_us)) =
            load.run((options.mix, seed), options.time, |began| {
                let began_us = node_status::now_unix_us();
                let mut killed_us = Vec::new();
                for (kill, victim) in options.kills.iter().zip(&victims) {
                    sleep_until(began + *kill, self.interrupt)?;
                    killed_us.push(node_status::now_unix_us());
                    running.kill(*victim)?;
                }
                sleep_until(began + options.time, self.interrupt)?;
                Ok((began_us, killed_us))
            })?;
        let told = self.until_recovered(&running, &killed_us)?;
        let back = load.read_back()?;
        let moments = options.moments();
        let ends = told.iter().map(|told| {
            let ends = told.iter().filter_map(|one| one.ended_unix_us);
            let end = ends.max()?.saturating_sub(began_us);
            Some(Duration::from_micros(end))
        });
        let ends: Vec<Option<Duration>> = ends.collect();
        let survey = Survey::of(tally, &back, &moments, &ends)?;
        Ok(survey.with_told(&killed_us, told))
    }

    /// One node dies, and nobody asks for anything meanwhile. `None` of nodes that tell nothing.
    fn idle(&self) -> Result<Option<(u64, Vec<Takeover>)>> {
        if !self.variant.tells() {
            return Ok(None);
        }
        let items = self.items()?;
        let mut running = self.start(&items)?;
        let book = Book::new(&items);
        let target = running.target.clone();
        let load = self.load(&target, &items, &book);
        load.fill()?;
        let victims = victims(running.node_count(), self.options.seed + self.round);
        let killed_us = node_status::now_unix_us();
        running.kill(victims[0])?;
        let mut told = self.until_recovered(&running, &[killed_us])?;
        let back = load.read_back()?;
        let is_whole = back.misses == 0 && back.is_sound() && back.failures() == 0;
        ensure!(
            is_whole || self.variant.redundancy.losses_max() == 0,
            "read back: {}",
            back.troubles()
        );
        Ok(told.pop().map(|told| (killed_us, told)))
    }

    /// Waits until all that was taken over is there. By kill: what followed it.
    fn until_recovered(
        &self,
        running: &Processes,
        killed_us: &[u64],
    ) -> Result<Vec<Vec<Takeover>>> {
        let deadline = Instant::now() + RECOVERED_LIMIT;
        let grace = Instant::now() + TOLD_LIMIT;
        loop {
            let Some(told) = running.told()? else {
                return Ok(vec![Vec::new(); killed_us.len()]);
            };
            let mut all = told.takeovers;
            let first = killed_us.first().copied().unwrap_or(u64::MAX);
            all.retain(|one| one.began_unix_us.is_none_or(|at| at >= first));
            // What is lost for good gets no owner.
            let is_lost = self.variant.redundancy.losses_max() < killed_us.len();
            let is_told = told.all_owned || is_lost && Instant::now() >= grace;
            if is_told && all.iter().all(Takeover::is_over) {
                let until = killed_us.iter().skip(1).copied().chain([u64::MAX]);
                let spans = killed_us.iter().zip(until);
                let within = |(from, to): (&u64, u64)| {
                    let began = |one: &&Takeover| one.began_unix_us.unwrap_or(0);
                    let all = all.iter();
                    let found = all.filter(|one| (*from..to).contains(&began(one)));
                    found.cloned().collect()
                };
                return Ok(spans.map(within).collect());
            }
            ensure!(
                Instant::now() < deadline,
                "not recovered within {RECOVERED_LIMIT:?}: {all:?}"
            );
            self.interrupt.sleep(LOOK_AGAIN)?;
        }
    }
}

/// How long recoveries may take after the load; arbitrary.
const RECOVERED_LIMIT: Duration = Duration::from_secs(120);
/// By when nodes have told of recoveries where some partitions will not be recovered.
const TOLD_LIMIT: Duration = Duration::from_secs(3);
/// Looking takes time of the processors that recover, so not often.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// All nodes in the order in which they go.
fn victims(count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(mixed(seed));
    let mut order: Vec<usize> = (0..count).collect();
    for left in (1..count).rev() {
        let other = random.below(left as u64 + 1);
        order.swap(left, usize::try_from(other).expect("below a usize"));
    }
    order
}

fn sleep_until(moment: Instant, interrupt: &Interrupt) -> Result<()> {
    interrupt.sleep(moment.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_rig::is_installed;

    fn short(variant: &str) -> Options {
        Options {
            mib: 1,
            kills: vec![Duration::from_millis(400)],
            time: Duration::from_millis(1200),
            rounds: 1,
            shape: Shape {
                clients: 4,
                depth: 2,
                threads: 1,
            },
            mix: Mix::HALF,
            ..Options::new(vec![variant.parse().unwrap()])
        }
    }

    #[test]
    fn the_items_of_a_killed_memcached_are_missed_and_the_others_served_on() {
        if !is_installed("memcached") {
            println!("skipped: memcached is not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut options = short("memcached*3");
        options.files = Some(dir.path().to_owned());
        let rows = run(&options).unwrap();
        let lost = rows.iter().find(|row| row.metric == "items_lost").unwrap();
        // Items are 1024, spread evenly over three.
        assert!((300.0..400.0).contains(&lost.ours), "{lost:?}");
        let table = std::fs::read_to_string(dir.path().join("recovery.csv")).unwrap();
        let served_late = table.lines().filter(|line| {
            let mut cells = line.split(',').skip(2);
            let seconds: f64 = cells.next().unwrap().parse().unwrap_or_default();
            let rate: f64 = cells.next().unwrap().parse().unwrap_or_default();
            seconds > 0.5 && rate > 0.0
        });
        assert!(served_late.count() > 0, "{table}");
        for name in [
            "recovery.jsonl",
            "throughput.svg",
            "get_p99.svg",
            "set_p99.svg",
        ] {
            assert!(
                dir.path().join(name).metadata().unwrap().len() > 0,
                "{name}"
            );
        }
    }

    #[test]
    fn a_store_that_should_survive_and_loses_items_is_an_error() {
        if !is_installed("memcached") {
            println!("skipped: memcached is not installed");
            return;
        }
        let mut options = short("memcached*3");
        options.variants[0].redundancy = super::super::Redundancy::Coded { k: 2, m: 1 };
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("are gone"), "{error}");
    }

    #[test]
    fn everybody_is_a_victim_once_and_the_seed_says_when() {
        let order = victims(5, 3);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4]);
        assert_eq!(victims(5, 3), order);
        assert!((0..20).any(|seed| victims(5, seed) != order));
    }

    #[test]
    fn kills_are_in_order_and_leave_time_around_them() {
        let mut options = short("memcached");
        assert!(options.check().is_ok());
        options.kills.push(Duration::from_millis(450));
        assert!(options.check().is_err());
        options.kills = vec![options.time];
        assert!(options.check().is_err());
    }
}
