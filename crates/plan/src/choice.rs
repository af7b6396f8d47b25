//! Which code and which groups a cluster should have: `cenote plan`.
//!
//! Every code that a volume can have (k a power of two up to 32, r up to 8, copies as k = 1) with
//! every l up to [`SPARE_MAX`] is weighed by its odds of loss, its memory, how even its load is
//! (simulated with the placer that clients run) and the splits that a page's read and write touch.
//! Of those that are within the wish, the one with the fewest data splits is chosen, and of those the
//! one whose writes touch the fewest: losses and memory are paid for then, and splits are what a page
//! waits for.
//!
//! Odds are the paper's formula, which the simulation puts within 3 % above and a quarter below;
//! where few hosts fail they are binomial, and those of racks are counted over the groups that
//! there would be ([`crate::odds`]).

use std::cmp::Ordering;

use anyhow::{Result, ensure};
use cenote_measure::figure::{Legend, Line, Plot, Scale};
use cenote_pool::placement::{CodingSets, Pick};
use serde::Serialize;

use crate::balance;
use crate::loss::Case;
use crate::odds::{Failing, FatalSets};
use crate::stripes::{Cluster, Placer, apart, groups};

/// What a cluster is, and what it should hold to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wish {
    /// Hosts of the cluster.
    pub hosts: usize,
    /// Racks that they are in; `None`: each its own.
    pub racks: Option<usize>,
    /// Racks that fail at once; the odds are the worse of these and of hosts.
    pub failed_racks: usize,
    /// Share of the hosts that fails at once.
    pub failed: f64,
    /// Slabs that are used on each host.
    pub slabs_per_host: u32,
    /// Most odds of a loss when that happens.
    pub loss: f64,
    /// Most memory for a byte.
    pub overhead: f64,
}

/// A code with its groups. The JSON object has exactly these keys, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// As `--scheme` takes it.
    pub scheme: String,
    /// Data splits, those that a read touches.
    pub k: usize,
    /// Parities.
    pub r: usize,
    /// Hosts of a group beyond k+r, to which its slabs are rebuilt.
    pub l: usize,
    /// Odds that data is lost.
    pub loss: f64,
    /// Memory for a byte: 1 + r/k.
    pub overhead: f64,
    /// Slabs on the fullest host by the mean, to a hundredth; simulated.
    pub load: f64,
    /// Splits that a read touches.
    pub splits_read: usize,
    /// Splits that a write touches.
    pub splits_written: usize,
    /// Groups of the cluster.
    pub groups: usize,
    /// Hosts that are of no group, and stand in for others.
    pub spare_hosts: usize,
    /// Whether it is within the wish.
    pub fits: bool,
}

/// The answer. The JSON object has exactly these keys, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// What was asked for.
    pub wish: Wish,
    /// How the hosts are taken to fail: `share` for the paper's formula, `each` for binomial odds.
    pub failing: Failing,
    /// What to choose; `null` where nothing fits.
    pub choice: Option<Candidate>,
    /// Where nothing fits: the least memory at which the odds are met, ...
    pub with_more_memory: Option<Candidate>,
    /// ... and the least odds at this memory.
    pub with_more_loss: Option<Candidate>,
    /// Those that no other is better than in one respect and as good in all others.
    pub front: Vec<Candidate>,
}

/// Most hosts of a group beyond k+r that are weighed.
pub const SPARE_MAX: usize = 4;

/// Codes, by k and the most r.
const DATA: [usize; 6] = [1, 2, 4, 8, 16, 32];
const PARITIES_MAX: usize = 8;

/// The load is simulated on no more hosts than this, as it grows slowly with them, ...
const LOAD_HOSTS: usize = 1000;
/// ... and as often.
const LOAD_RUNS: usize = 2;

/// How many candidates are weighed at most.
pub const CANDIDATES_MAX: usize = DATA.len() * PARITIES_MAX * (SPARE_MAX + 1);

impl Wish {
    fn check(&self) -> Result<()> {
        ensure!(self.hosts >= 2, "{} hosts hold no two splits", self.hosts);
        ensure!(self.overhead >= 1.0, "a byte takes at least its own memory");
        let racks = self.racks.unwrap_or(2);
        ensure!(
            (2..=self.hosts).contains(&racks),
            "{racks} racks: from 2 to {}",
            self.hosts
        );
        ensure!(
            self.racks.is_none() || self.failed_racks <= racks,
            "{} of {racks} racks fail",
            self.failed_racks
        );
        Ok(())
    }

    fn case(&self, k: usize, r: usize, l: usize) -> Case {
        Case {
            hosts: self.hosts,
            k,
            r,
            l,
            slabs_per_host: self.slabs_per_host,
            failed: self.failed,
        }
    }

    /// How hosts are taken to fail. It is the same for all codes, so that their odds compare.
    #[must_use]
    pub fn failing(&self) -> Failing {
        Failing::of(&self.case(1, 0, 0))
    }

    /// Hosts that fail at once, where that is a share of them.
    #[must_use]
    pub fn failing_hosts(&self) -> usize {
        self.case(1, 0, 0).failing()
    }

    /// The failure domain of each host.
    fn domains(&self) -> Vec<u32> {
        let Some(racks) = self.racks else {
            return apart(self.hosts);
        };
        let rack_of = |host| u32::try_from(host * racks / self.hosts).expect("HOSTS_MAX");
        (0..self.hosts).map(rack_of).collect()
    }

    /// The odds of a loss, of hosts or of racks, where those are more.
    fn loss_of(&self, case: &Case) -> f64 {
        if self.racks.is_none() {
            return self.failing().coding_sets(case);
        }
        let domains = self.domains();
        self.loss_with(case, &domains, &self.groups(case, &domains))
    }

    /// The same with the groups of the case.
    fn loss_with(&self, case: &Case, domains: &[u32], sets: &CodingSets) -> f64 {
        let of_hosts = self.failing().coding_sets(case);
        let Some(racks) = self.racks else {
            return of_hosts;
        };
        let rack_of = |host: &usize| domains[*host] as usize;
        let of_racks = |group: &Vec<usize>| group.iter().map(rack_of).collect();
        let sets = FatalSets::new(sets.groups().iter().map(of_racks), racks, case.r);
        of_hosts.max(sets.odds(self.failed_racks))
    }

    fn groups(&self, case: &Case, domains: &[u32]) -> CodingSets {
        let cluster = Cluster {
            domains,
            members: case.members(),
            slabs_per_host: self.slabs_per_host,
        };
        groups(&cluster, case.l)
    }

    fn weigh(&self, case: &Case, seed: u64) -> Result<Option<Candidate>> {
        let units = self.racks.unwrap_or(self.hosts);
        if case.width() > units {
            return Ok(None);
        }
        case.check()?;
        let domains = self.domains();
        let sets = self.groups(case, &domains);
        let grouped: usize = sets.groups().iter().map(Vec::len).sum();
        if grouped == 0 {
            return Ok(None);
        }
        let placer = Placer::CodingSets {
            spare: case.l,
            pick: Pick::TwoChoices,
        };
        let few = self.hosts.min(LOAD_HOSTS);
        let even = balance::one(case, few, LOAD_RUNS, (placer, "groups"), seed)?;
        let loss = self.loss_with(case, &domains, &sets);
        let overhead = 1.0 + case.r as f64 / case.k as f64;
        Ok(Some(Candidate {
            scheme: match case.k {
                1 => format!("mirror:{}", case.members()),
                k => format!("rs:{k}+{}", case.r),
            },
            k: case.k,
            r: case.r,
            l: case.l,
            loss,
            overhead,
            load: (even.max_to_mean * 100.0).round() / 100.0,
            splits_read: case.k,
            splits_written: case.members(),
            groups: sets
                .groups()
                .iter()
                .filter(|group| !group.is_empty())
                .count(),
            spare_hosts: self.hosts - grouped,
            fits: loss <= self.loss && overhead <= self.overhead,
        }))
    }
}

impl Candidate {
    fn figures(&self) -> [f64; 4] {
        [
            self.loss,
            self.overhead,
            self.load,
            self.splits_written as f64,
        ]
    }

    /// As good in all respects, and better in one.
    fn beats(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.figures(), other.figures());
        let pairs = || ours.iter().zip(&theirs);
        pairs().all(|(a, b)| a <= b) && pairs().any(|(a, b)| a < b)
    }

    fn cmp_choice(&self, other: &Self) -> Ordering {
        (self.k.cmp(&other.k))
            .then(self.splits_written.cmp(&other.splits_written))
            .then(self.overhead.total_cmp(&other.overhead))
            .then(self.load.total_cmp(&other.load))
            .then(self.loss.total_cmp(&other.loss))
    }
}

/// Weighs every candidate; `step` is called for each.
///
/// # Errors
/// A wish that makes no sense.
pub fn plan(wish: &Wish, seed: u64, mut step: impl FnMut()) -> Result<Plan> {
    wish.check()?;
    let mut all = Vec::new();
    for k in DATA {
        for r in 1..=PARITIES_MAX {
            for l in 0..=SPARE_MAX {
                all.extend(wish.weigh(&wish.case(k, r, l), seed)?);
                step();
            }
        }
    }
    ensure!(!all.is_empty(), "too few hosts or racks for any code");
    let of = |is: fn(&Wish, &Candidate) -> bool| all.iter().filter(move |one| is(wish, one));
    let choice = of(|_, one| one.fits)
        .min_by(|a, b| a.cmp_choice(b))
        .cloned();
    let nothing_fits = choice.is_none();
    let with_more_memory = of(|wish, one| one.loss <= wish.loss)
        .min_by(|a, b| a.overhead.total_cmp(&b.overhead).then(a.cmp_choice(b)));
    let with_more_loss = of(|wish, one| one.overhead <= wish.overhead)
        .min_by(|a, b| a.loss.total_cmp(&b.loss).then(a.cmp_choice(b)));
    let is_on_front = |one: &&Candidate| !all.iter().any(|other| other.beats(one));
    let mut front: Vec<Candidate> = all.iter().filter(is_on_front).cloned().collect();
    front.sort_by(|a, b| {
        (b.fits.cmp(&a.fits))
            .then(a.overhead.total_cmp(&b.overhead))
            .then(a.loss.total_cmp(&b.loss))
    });
    Ok(Plan {
        wish: *wish,
        failing: wish.failing(),
        with_more_memory: with_more_memory.filter(|_| nothing_fits).cloned(),
        with_more_loss: with_more_loss.filter(|_| nothing_fits).cloned(),
        choice,
        front,
    })
}

/// Odds by memory, a line for each r at l = 2, and what was wished for as a corner.
#[must_use]
pub fn plot(wish: &Wish) -> Plot {
    const OVERHEAD_MAX: f64 = 3.0;
    const LEAST: f64 = -12.0;
    const PARITIES_DRAWN: usize = 7;
    let units = wish.racks.unwrap_or(wish.hosts);
    let line = |r: usize| {
        let cases = DATA.iter().rev().map(|&k| wish.case(k, r, 2));
        let points = cases.filter(|case| case.width() <= units).map(|case| {
            let overhead = 1.0 + r as f64 / case.k as f64;
            (overhead, wish.loss_of(&case).log10().max(LEAST))
        });
        let points: Vec<_> = points.filter(|point| point.0 <= OVERHEAD_MAX).collect();
        Line {
            marks: points.clone(),
            ..Line::new(&format!("r = {r}"), points)
        }
    };
    let (most, odds) = (
        wish.overhead.min(OVERHEAD_MAX),
        wish.loss.log10().clamp(LEAST, 0.0),
    );
    let corner = vec![(1.0, odds), (most, odds), (most, LEAST)];
    let lines = std::iter::once(Line::new("wished for", corner));
    Plot {
        title: format!("Odds of loss by memory, {} hosts, l = 2", wish.hosts),
        x_label: "memory for a byte",
        y_label: "odds of loss, log10",
        x: 1.0..OVERHEAD_MAX,
        x_scale: Scale::Linear,
        y: LEAST..0.5,
        lines: lines.chain((1..=PARITIES_DRAWN).map(line)).collect(),
        legend: Legend::UpperRight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: Wish = Wish {
        hosts: 1000,
        racks: None,
        failed_racks: 1,
        failed: 0.01,
        slabs_per_host: 16,
        loss: 1e-6,
        overhead: 1.3,
    };

    #[test]
    fn the_choice_is_within_the_wish_and_nothing_on_the_front_is_beaten() {
        let mut steps = 0;
        let plan = plan(&WISH, 1, || steps += 1).unwrap();
        assert_eq!(steps, CANDIDATES_MAX);
        let choice = plan.choice.unwrap();
        assert!(
            choice.fits && choice.loss <= 1e-6 && choice.overhead <= 1.3,
            "{choice:?}"
        );
        // Of k = 16 the most that 1.3 admits is r = 4, at 3e-5 or so: it takes wider stripes.
        assert_eq!((choice.k, choice.r), (32, 6));
        assert!(plan.with_more_memory.is_none() && plan.with_more_loss.is_none());
        for one in &plan.front {
            assert!(!plan.front.iter().any(|other| other.beats(one)), "{one:?}");
        }
        assert!(plan.front.iter().any(|one| one.fits));
        assert!(
            plan.front
                .windows(2)
                .all(|pair| pair[0].fits >= pair[1].fits)
        );
        assert!(plot(&WISH).svg().is_ok());
    }

    #[test]
    fn where_nothing_fits_the_plan_says_what_would() {
        let wish = Wish {
            overhead: 1.1,
            ..WISH
        };
        let plan = plan(&wish, 1, || {}).unwrap();
        assert_eq!(plan.choice, None);
        let memory = plan.with_more_memory.unwrap();
        assert!(memory.loss <= 1e-6 && memory.overhead > 1.1, "{memory:?}");
        let loss = plan.with_more_loss.unwrap();
        assert!(loss.overhead <= 1.1 && loss.loss > 1e-6, "{loss:?}");
        assert_eq!((loss.k, loss.r), (32, 3));
    }

    #[test]
    fn racks_bound_the_width_and_their_failures_count() {
        let wish = Wish {
            racks: Some(25),
            failed_racks: 3,
            loss: 0.15,
            overhead: 2.0,
            ..WISH
        };
        // More than two racks: 2 C(12,3) of C(25,3) choices of three. Of hosts alone it is 0.013.
        let weighed = wish.weigh(&wish.case(8, 2, 2), 1).unwrap();
        let odds = weighed.unwrap().loss;
        assert!((odds - 440.0 / 2300.0).abs() < 1e-12, "{odds}");
        let plan = plan(&wish, 1, || {}).unwrap();
        assert!(plan.front.iter().all(|one| one.k + one.r + one.l <= 25));
        let choice = plan.choice.unwrap();
        assert!(choice.loss <= 0.15, "{choice:?}");
        for wrong in [
            Wish {
                racks: Some(1),
                ..wish
            },
            Wish {
                failed_racks: 26,
                ..wish
            },
        ] {
            assert!(super::plan(&wrong, 1, || {}).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn where_racks_differ_in_size_all_groups_across_them_count() {
        for (hosts, racks, (k, r, l)) in [
            (1000, 30, (8, 2, 2)),
            (100, 12, (4, 2, 2)),
            (50, 20, (4, 2, 2)),
        ] {
            let wish = Wish {
                hosts,
                racks: Some(racks),
                failed_racks: 3,
                ..WISH
            };
            let case = wish.case(k, r, l);
            let domains = wish.domains();
            let sets = wish.groups(&case, &domains);
            let (mut fatal, mut all) = (0, 0);
            for a in 0..racks as u32 {
                for b in a + 1..racks as u32 {
                    for c in b + 1..racks as u32 {
                        let fails = |host: &&usize| [a, b, c].contains(&domains[**host]);
                        let hit = |group: &Vec<usize>| group.iter().filter(fails).count() > r;
                        fatal += usize::from(sets.groups().iter().any(hit));
                        all += 1;
                    }
                }
            }
            let odds = wish.weigh(&case, 1).unwrap().unwrap().loss;
            let expected = fatal as f64 / all as f64;
            assert!(expected > 0.15, "groups across racks: {expected}");
            assert!((odds - expected).abs() < 1e-12, "{odds} {expected}");
        }
    }

    #[test]
    fn a_cluster_of_three_hosts_has_copies_and_one_parity() {
        let wish = Wish {
            hosts: 3,
            loss: 1e-3,
            overhead: 1.5,
            ..WISH
        };
        let plan = plan(&wish, 1, || {}).unwrap();
        let choice = plan.choice.unwrap();
        assert_eq!(choice.scheme, "rs:2+1");
        assert_eq!((choice.groups, choice.spare_hosts), (1, 0));
        // Two of three hosts, or all.
        let odds = 3.0 * 0.01_f64.powi(2) * 0.99 + 0.01_f64.powi(3);
        assert!((choice.loss - odds).abs() < 1e-15, "{choice:?}");
        assert_eq!(plan.failing, Failing::Each);
    }

    #[test]
    fn a_cluster_in_which_one_host_fails_in_the_mean_gets_more_than_one_parity() {
        let wish = Wish {
            hosts: 100,
            overhead: 2.0,
            ..WISH
        };
        let plan = plan(&wish, 1, || {}).unwrap();
        let choice = plan.choice.unwrap();
        assert!(choice.r > 1 && choice.loss <= 1e-6, "{choice:?}");
        assert!(plan.front.iter().all(|one| one.loss > 0.0));
    }
}
