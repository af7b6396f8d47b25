//! How likely random hosts that fail at once take data with them, on stripes that were placed.
//!
//! Drawing hosts at random would take a million draws for one loss in a million. Instead each draw
//! has a loss in it: a stripe and r+1 of its hosts are drawn to fail, and all others of those that
//! fail at random. Every failure with X lost pairs (stripe, r+1 of its hosts) can be drawn in X
//! ways, so counting it as 1/X, times the expected number of such pairs, is the probability, without
//! bias (Karp, Luby and Madras 1989). Its error is relative to the probability, however small.
//! Where each host fails by itself ([`Failing::Each`]), those others are as many as chance has it.
//! The placement is drawn several times; the error stated is of their mean, one standard deviation.

use cenote_measure::random::Random;
use cenote_plan::loss::{Case, choose};
use cenote_plan::odds::Failing;
use cenote_plan::stripes::{Cluster, Placer, Stripes, apart};
use serde::Serialize;

/// A mean and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// One standard deviation of it.
    pub error: f64,
}

impl Estimate {
    /// Of figures that were drawn independently.
    ///
    /// # Panics
    /// If there are fewer than two.
    #[must_use]
    pub fn of(figures: &[f64]) -> Self {
        assert!(figures.len() > 1, "an error needs two figures");
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        Self {
            mean,
            error: (squares / (count - 1.0) / count).sqrt(),
        }
    }
}

/// How much is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Effort {
    /// Clusters, each placed again; at least 2.
    pub clusters: u32,
    /// Failures drawn for each.
    pub failures: u32,
    /// Random seed.
    pub seed: u64,
}

/// Enough for an error of a hundredth at the paper's parameters.
pub const USUAL: Effort = Effort {
    clusters: 16,
    failures: 2000,
    seed: 1,
};

impl Effort {
    /// As much of this as ends in seconds for a cluster of this size; all of it at the paper's.
    #[must_use]
    pub fn within_seconds(self, case: &Case) -> Self {
        const SLABS_PLACED: usize = 8_000_000;
        const SLABS_FAILED: usize = 128_000_000;
        const FAILURES_MIN: u32 = 50;
        let slabs = case.slabs_per_host as usize;
        let most = |work: usize, each: usize| u32::try_from(work / each.max(1)).unwrap_or(u32::MAX);
        let clusters = self
            .clusters
            .min(most(SLABS_PLACED, case.hosts * slabs))
            .max(2);
        let drawn = case.failing() * slabs * clusters as usize;
        let failures = most(SLABS_FAILED, drawn).max(FAILURES_MIN);
        Self {
            clusters,
            failures: self.failures.min(failures),
            ..self
        }
    }
}

/// The probability of a loss for stripes that `placer` placed. `step` is called after each of as
/// many clusters as [`Effort::clusters`] says.
#[must_use]
pub fn loss(
    case: &Case,
    failing: Failing,
    placer: Placer,
    effort: Effort,
    mut step: impl FnMut(),
) -> Estimate {
    let domains = apart(case.hosts);
    let cluster = Cluster {
        domains: &domains,
        members: case.members(),
        slabs_per_host: case.slabs_per_host,
    };
    let one = |number: u32| {
        let mut random = Random::new(effort.seed.wrapping_add(u64::from(number)));
        let stripes = Stripes::place(placer, &cluster, &mut random);
        let odds = Failures::new(case, failing, &stripes).loss(effort.failures, &mut random);
        step();
        odds
    };
    let figures: Vec<f64> = (0..effort.clusters).map(one).collect();
    let found = Estimate::of(&figures);
    // Without bias it is above a probability of 1 as often as below.
    Estimate {
        mean: found.mean.min(1.0),
        ..found
    }
}

/// What failures of the hosts of one placement do.
struct Failures<'a> {
    case: &'a Case,
    failing: Failing,
    stripes: &'a Stripes,
    // Stripes of each host: those of host h are from ends[h-1] to ends[h].
    of_host: Vec<u32>,
    ends: Vec<usize>,
}

impl<'a> Failures<'a> {
    fn new(case: &'a Case, failing: Failing, stripes: &'a Stripes) -> Self {
        let mut ends = Vec::with_capacity(case.hosts);
        let mut end = 0;
        for load in stripes.loads(case.hosts) {
            end += load as usize;
            ends.push(end);
        }
        let mut next: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).collect();
        let mut of_host = vec![0; end];
        for (stripe, hosts) in stripes.iter().enumerate() {
            for &host in hosts {
                let at = &mut next[host as usize];
                of_host[*at] = u32::try_from(stripe).expect("HOSTS_MAX");
                *at += 1;
            }
        }
        Self {
            case,
            failing,
            stripes,
            of_host,
            ends,
        }
    }

    fn of_host(&self, host: usize) -> &[u32] {
        let from = host.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.of_host[from..self.ends[host]]
    }

    fn loss(&self, draws: u32, random: &mut Random) -> f64 {
        let fatal = self.case.r + 1;
        let hosts = self.case.hosts;
        let failing = self.case.failing();
        let count = self.stripes.iter().len();
        // Odds that r+1 given hosts are among those that fail.
        let all_fail = match self.failing {
            Failing::Share => choose(failing, fatal) / choose(hosts, fatal),
            Failing::Each => (0..fatal).map(|_| self.case.failed).product(),
        };
        if all_fail == 0.0 || count == 0 {
            return 0.0;
        }
        let pairs = count as f64 * choose(self.case.members(), fatal) * all_fail;
        let mut lost_of = vec![0_u32; count];
        let mut is_failed = vec![false; hosts];
        let mut failed = Vec::with_capacity(failing);
        let mut sum = 0.0;
        for _ in 0..draws {
            let stripe = index_below(count, random);
            draw_from(self.stripes.of(stripe), fatal, &mut failed, random);
            let others = match self.failing {
                Failing::Share => failing - fatal,
                Failing::Each => failing_of(hosts - fatal, self.case.failed, random),
            };
            for &host in &failed {
                is_failed[host as usize] = true;
            }
            while failed.len() < fatal + others {
                let host = u32::try_from(index_below(hosts, random)).expect("HOSTS_MAX");
                if !std::mem::replace(&mut is_failed[host as usize], true) {
                    failed.push(host);
                }
            }
            sum += 1.0 / self.pairs_lost(&failed, &mut lost_of);
            for host in failed.drain(..) {
                is_failed[host as usize] = false;
            }
        }
        pairs * sum / f64::from(draws)
    }

    /// Pairs of a stripe and r+1 of its hosts among those that failed. `lost_of` is all 0.
    fn pairs_lost(&self, failed: &[u32], lost_of: &mut [u32]) -> f64 {
        let mut pairs = 0.0;
        for &host in failed {
            for &stripe in self.of_host(host as usize) {
                let lost = &mut lost_of[stripe as usize];
                // Each r of those before make r+1 with this one.
                if *lost as usize >= self.case.r {
                    pairs += choose(*lost as usize, self.case.r);
                }
                *lost += 1;
            }
        }
        for &host in failed {
            for &stripe in self.of_host(host as usize) {
                lost_of[stripe as usize] = 0;
            }
        }
        pairs
    }
}

/// How many of `hosts` fail, each with probability `failed`: the hosts between two that do are
/// distributed geometrically.
fn failing_of(hosts: usize, failed: f64, random: &mut Random) -> usize {
    if failed >= 1.0 {
        return hosts;
    }
    let mut left = hosts as f64;
    for count in 0.. {
        // 0 to 1, without 0.
        let drawn = 1.0 - random.unit();
        left -= (drawn.ln() / (-failed).ln_1p()).floor() + 1.0;
        if left < 0.0 {
            return count;
        }
    }
    unreachable!("hosts are finitely many")
}

/// Adds `count` of `hosts`, each at most once.
fn draw_from(hosts: &[u32], count: usize, drawn: &mut Vec<u32>, random: &mut Random) {
    let mut left = hosts.to_vec();
    for _ in 0..count {
        drawn.push(left.swap_remove(index_below(left.len(), random)));
    }
}

pub(super) fn index_below(bound: usize, random: &mut Random) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a usize")
}

#[cfg(test)]
mod tests;
