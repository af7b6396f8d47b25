//! The containers of the experiment: how much memory each wants, may have, and where it runs.
//!
//! As many of each workload; of a hundred containers 50 may have all that they want, 30 three
//! quarters, the rest half, whatever the workload. Each is placed on a machine at random; one on which its limit
//! does not fit any more is drawn again. Memory grows evenly to its peak and stays there: the
//! paper's figure 17 shows growth before a plateau, without numbers.

use anyhow::{Result, bail};
use cenote_measure::random::Random;

use super::Options;

/// Peaks in GiB: VoltDB, Memcached ETC and SYS, PowerGraph's TunkRank, GraphX's `PageRank`. Of the
/// last the paper gives the heap, here and for Spark.
const PEAKS_GIB: [f64; 5] = [11.5, 9.0, 14.5, 9.0, 12.0];
const SPARK_GIB: f64 = 16.0;
/// Percent of containers, and the share of their peak that they may have.
const LIMITS: [(usize, f64); 3] = [(50, 1.0), (30, 0.75), (20, 0.5)];
/// Seconds of growth, drawn for each container. Arbitrary.
const GROWTH_S: std::ops::Range<u64> = 60..600;
/// Machines drawn for a container before it counts as one that fits nowhere.
const DRAWS: usize = 10_000;

/// A program and the limit around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Container {
    /// Where it runs.
    pub machine: usize,
    /// What it wants in the end.
    pub peak_gib: f64,
    /// What it may have.
    pub limit_gib: f64,
    /// When it wants that.
    pub growth_s: f64,
}

impl Container {
    /// What it has, and what it wants beside that.
    pub fn memory_gib(&self, second: u32) -> (f64, f64) {
        let wanted_gib = self.peak_gib * (f64::from(second) / self.growth_s).min(1.0);
        let fits_gib = wanted_gib.min(self.limit_gib);
        (fits_gib, wanted_gib - fits_gib)
    }
}

/// Draws all containers.
///
/// # Errors
/// They do not fit.
pub fn deal(options: &Options, random: &mut Random) -> Result<Vec<Container>> {
    let mut peaks = PEAKS_GIB.to_vec();
    if options.with_spark {
        peaks.push(SPARK_GIB);
    }
    let count = options.containers;
    let peaks = (0..count).map(|index| peaks[index % peaks.len()]);
    let mut limits: Vec<f64> = (0..count).map(|index| limit(index, count)).collect();
    shuffle(&mut limits, random);
    let mut dealt: Vec<(f64, f64)> = peaks.zip(limits).collect();
    shuffle(&mut dealt, random);
    let mut free_gib = vec![f64::from(options.memory_gib) - options.system_gib; options.machines];
    dealt
        .into_iter()
        .map(|(peak_gib, share)| {
            let limit_gib = peak_gib * share;
            let mut draws = (0..DRAWS).map(|_| random.below(options.machines as u64));
            let found = draws.find_map(|machine| {
                let machine = usize::try_from(machine).ok()?;
                (free_gib[machine] >= limit_gib).then_some(machine)
            });
            let Some(machine) = found else {
                bail!(
                    "{count} containers do not fit on {} machines",
                    options.machines
                );
            };
            free_gib[machine] -= limit_gib;
            Ok(Container {
                machine,
                peak_gib,
                limit_gib,
                growth_s: random.between(GROWTH_S.start, GROWTH_S.end) as f64,
            })
        })
        .collect()
}

/// Of the container that is number `index` of `count`.
fn limit(index: usize, count: usize) -> f64 {
    let percent = index * 100 / count;
    let mut until = 0;
    for (share, limit) in LIMITS {
        until += share;
        if percent < until {
            return limit;
        }
    }
    unreachable!("the shares add up to 100 percent")
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for at in (1..items.len()).rev() {
        let other = random.below(at as u64 + 1);
        items.swap(at, usize::try_from(other).expect("an index"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_of_each_workload_and_the_papers_mix_of_limits() {
        let options = Options::default();
        let containers = deal(&options, &mut Random::new(3)).unwrap();
        assert_eq!(containers.len(), 90);
        let with =
            |test: &dyn Fn(&Container) -> bool| containers.iter().filter(|c| test(c)).count();
        assert_eq!(with(&|c| c.peak_gib == 14.5), 18);
        assert_eq!(with(&|c| c.peak_gib == 9.0), 36);
        let full = with(&|c| c.limit_gib == c.peak_gib);
        let half = with(&|c| c.limit_gib == c.peak_gib * 0.5);
        assert_eq!((full, half), (45, 18), "50 and 20 percent");
        // No machine holds more than it has.
        for machine in 0..options.machines {
            let held: f64 = containers
                .iter()
                .filter(|c| c.machine == machine)
                .map(|c| c.limit_gib)
                .sum();
            assert!(held <= 62.0);
        }
    }

    #[test]
    fn a_program_grows_to_its_peak_and_has_what_it_may() {
        let container = Container {
            machine: 0,
            peak_gib: 10.0,
            limit_gib: 5.0,
            growth_s: 100.0,
        };
        assert_eq!(container.memory_gib(0), (0.0, 0.0));
        assert_eq!(container.memory_gib(40), (4.0, 0.0));
        assert_eq!(container.memory_gib(70), (5.0, 2.0));
        assert_eq!(container.memory_gib(5000), (5.0, 5.0));
    }

    #[test]
    fn containers_that_do_not_fit_are_refused() {
        let options = Options {
            machines: 2,
            ..Options::default()
        };
        assert!(deal(&options, &mut Random::new(1)).is_err());
    }
}
