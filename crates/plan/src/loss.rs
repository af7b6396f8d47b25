//! How likely hosts that fail at once take data with them, by the paper's formula.
//!
//! `P[group] = C(g, r+1) / C(N, r+1)`: that r+1 random hosts are all in one group of g.
//! `P = 1 - (1 - P[group] G) ^ C(N f, r+1)`: that of all sets of r+1 failed hosts none is in one of
//! the G groups, taken as independent and the groups as disjoint. Random groups (EC-Cache, two
//! choices): g = k+r, G = N S / (k+r). `CodingSets`: g = k+r+l, G = N / (k+r+l).
//! Data is lost when r+1 hosts of a group fail; where the text says "more than r+1", its formula
//! and its example do not.
//!
//! It holds where the hosts that fail are many more than r and few of all, where a group's stripes
//! are so many that every r+1 of its hosts are those of one ([`crate::odds::covered`]), and where a
//! loss is that of one set of hosts (r of 2 or more). Elsewhere: [`crate::odds`], which is used for
//! clusters where few hosts fail. Paper: \[hydra22\] 5.

use anyhow::{Result, ensure};
use serde::Serialize;

/// A cluster, a code and how many hosts fail at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Case {
    /// N: hosts of the cluster.
    pub hosts: usize,
    /// k: data splits.
    pub k: usize,
    /// r: parities.
    pub r: usize,
    /// l: hosts of a group beyond k+r.
    pub l: usize,
    /// S: slabs that are used on each host.
    pub slabs_per_host: u32,
    /// f: the share of the hosts that fails at once, from 0 to 1.
    pub failed: f64,
}

/// Hosts of a cluster at most; far above what a formula of doubles is good for.
pub const HOSTS_MAX: usize = 10_000_000;

/// Parities at most: sets of that many hosts of [`HOSTS_MAX`] are as many as a double can count.
pub const R_MAX: usize = 32;

impl Case {
    /// The parameters that every sweep of figure 15 starts from.
    pub const PAPER: Self = Self {
        hosts: 1000,
        k: 8,
        r: 2,
        l: 2,
        slabs_per_host: 16,
        failed: 0.01,
    };

    /// Hosts that hold a stripe.
    #[must_use]
    pub fn members(&self) -> usize {
        self.k + self.r
    }

    /// Hosts of an extended group.
    #[must_use]
    pub fn width(&self) -> usize {
        self.members() + self.l
    }

    /// Hosts that fail, to the nearest whole one.
    #[must_use]
    pub fn failing(&self) -> usize {
        // A share of at most 1 of at most HOSTS_MAX.
        (self.hosts as f64 * self.failed).round() as usize
    }

    /// # Errors
    /// What makes no sense, by name.
    pub fn check(&self) -> Result<()> {
        ensure!(self.k > 0, "k is 1 or more");
        ensure!(self.r <= R_MAX, "r is {R_MAX} at most");
        ensure!(self.slabs_per_host > 0, "no slab is used");
        ensure!(
            (0.0..=1.0).contains(&self.failed),
            "{} of the hosts fail: from 0 to 1",
            self.failed
        );
        ensure!(
            self.hosts <= HOSTS_MAX,
            "{} hosts: at most {HOSTS_MAX}",
            self.hosts
        );
        ensure!(
            self.width() <= self.hosts,
            "a group of {} is more than {} hosts",
            self.width(),
            self.hosts
        );
        Ok(())
    }

    /// With stripes on random hosts, as EC-Cache and two choices place them.
    #[must_use]
    pub fn random_groups(&self) -> f64 {
        let groups = self.hosts as f64 * f64::from(self.slabs_per_host) / self.members() as f64;
        self.probability(self.members(), groups)
    }

    /// With `CodingSets`.
    #[must_use]
    pub fn coding_sets(&self) -> f64 {
        let width = self.width();
        self.probability(width, self.hosts as f64 / width as f64)
    }

    fn probability(&self, group: usize, groups: f64) -> f64 {
        let fatal = self.r + 1;
        let one = choose(group, fatal) / choose(self.hosts, fatal);
        // Groups are no more disjoint once there are more than sets of hosts.
        let any = (one * groups).min(1.0);
        let draws = choose(self.failing(), fatal);
        if draws == 0.0 {
            return 0.0;
        }
        // 1 - (1 - p)^n, also where p is far below what 1 - p can hold.
        -(draws * (-any).ln_1p()).exp_m1()
    }
}

/// Ways to choose `count` of `from`.
#[must_use]
pub fn choose(from: usize, count: usize) -> f64 {
    if count > from {
        return 0.0;
    }
    (0..count).fold(1.0, |ways, at| ways * (from - at) as f64 / (at + 1) as f64)
}

#[cfg(test)]
mod tests;
