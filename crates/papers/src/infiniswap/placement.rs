//! How evenly slabs lie on hosts, by the policy that places them and the number of machines.
//!
//! Every machine lends and maps: round by round each maps one slab on another one, by the placer
//! of `cenote_pool`, which clients call, and which is told what every host has free right then.
//! Hosts are alike and empty at first, and have room for [`ROOM`] times their mean load, so that
//! none is ever full and what differs is the policy alone.
//!
//! Cost: a few draws for each slab. Looking at all hosts is a sort of them, so least-loaded places
//! many slabs at a time; from equal loads on that levels hosts exactly as one at a time does.
//! Paper: \[infiniswap17\] 4.2.

use std::fmt::Display;

use anyhow::{Result, ensure};
use cenote_measure::figure::{Csv, Legend, Line, Plot, Scale};
use cenote_measure::random::Random;
use cenote_measure::statistics::{Imbalance, MedianRange};
use cenote_pool::placement::{Candidate, Policy, place};
use serde::Serialize;

/// What to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Clusters, by their size.
    pub machines: Vec<usize>,
    /// Slabs that each machine maps.
    pub slabs: u32,
    /// Clusters of each size and policy.
    pub runs: u32,
    /// Random seed; the same for all policies.
    pub seed: u64,
}

/// Room of a host, in mean loads. Random placement stays below three of them where the mean is 8
/// or more and machines are a hundred thousand; smaller means need, and get, more.
const ROOM: u32 = 4;
/// Slabs more than that.
const ROOM_BESIDE: u32 = 32;
/// Least-loaded places a slab on one in this many hosts at a time.
const HOSTS_AT_ONCE: usize = 4;

/// Policies and their names.
pub const POLICIES: [(Policy, &str); 4] = [
    (Policy::TwoChoices, "two-choices"),
    (Policy::Single, "single"),
    (Policy::Random, "random"),
    (Policy::LeastLoaded, "least-loaded"),
];

/// One size of cluster under one policy. The JSON line of a row has exactly these keys, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Machines of the cluster.
    pub machines: usize,
    /// As in [`POLICIES`].
    pub policy: &'static str,
    /// Slabs on a host, in the mean.
    pub slabs: u32,
    /// Slabs on the fullest host.
    pub max: MedianRange,
    /// The fullest by the median host.
    pub max_to_median: MedianRange,
    /// The fullest by the emptiest; `null` where one was empty in every run.
    pub max_to_min: MedianRange,
}

/// Places all slabs of all clusters.
///
/// # Errors
/// Options that make no sense.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(options.runs > 0 && options.slabs > 0, "nothing to place");
    let mut rows = Vec::new();
    for &machines in &options.machines {
        ensure!(
            (2..=MACHINES_MAX).contains(&machines),
            "{machines} machines: from 2 to {MACHINES_MAX}"
        );
        for (policy, name) in POLICIES {
            let runs: Vec<(f64, Imbalance)> = (0..options.runs)
                .map(|run| {
                    let mut random = Random::new(options.seed.wrapping_add(u64::from(run)));
                    let loads = loads(policy, machines, options.slabs, &mut random);
                    let max = loads.iter().copied().fold(0.0, f64::max);
                    (max, Imbalance::of(loads))
                })
                .collect();
            let spread = |figure: fn(&(f64, Imbalance)) -> f64| {
                MedianRange::of(runs.iter().map(figure).collect())
            };
            rows.push(Row {
                machines,
                policy: name,
                slabs: options.slabs,
                max: spread(|(max, _)| *max),
                max_to_median: spread(|(_, uneven)| uneven.max_to_median),
                max_to_min: spread(|(_, uneven)| uneven.max_to_min),
            });
        }
    }
    Ok(rows)
}

/// Most machines of a cluster. Arbitrary; a run of a million takes a minute.
pub const MACHINES_MAX: usize = 1_000_000;

/// Slabs on each host when every machine has mapped `slabs`.
fn loads(policy: Policy, machines: usize, slabs: u32, random: &mut Random) -> Vec<f64> {
    let room = slabs * ROOM + ROOM_BESIDE;
    let mut hosts: Vec<Candidate> = (0..machines)
        .map(|host| Candidate {
            host,
            domain: u32::try_from(host).expect("MACHINES_MAX fits 32 bits"),
            slabs_free: room,
            slabs_total: room,
        })
        .collect();
    if policy == Policy::LeastLoaded {
        level(&mut hosts, machines * slabs as usize, random);
    } else {
        let mut mapped: Vec<Vec<u32>> = vec![Vec::new(); machines];
        for _ in 0..slabs {
            for (client, own) in mapped.iter_mut().enumerate() {
                let itself = hosts[client].domain;
                let is_old = |host: usize| own.contains(&hosts[host].domain);
                let chosen = policy.place(&hosts, is_old, &[itself], 1, random.next());
                let host = chosen[0];
                own.push(hosts[host].domain);
                hosts[host].slabs_free -= 1;
            }
        }
    }
    hosts
        .iter()
        .map(|host| f64::from(host.slabs_total - host.slabs_free))
        .collect()
}

fn level(hosts: &mut [Candidate], slabs: usize, random: &mut Random) {
    let at_once = hosts.len().div_ceil(HOSTS_AT_ONCE);
    let mut left = slabs;
    while left > 0 {
        let chosen = place(hosts, &[], at_once.min(left), random.next());
        left -= chosen.len();
        for host in chosen {
            hosts[host].slabs_free -= 1;
        }
    }
}

/// One row for each size and policy.
#[must_use]
pub fn csv(rows: &[Row]) -> Csv {
    let mut csv = Csv::new(
        "machines,policy,slabs,max_median,max_low,max_high,max_to_median_median,\
         max_to_median_low,max_to_median_high,max_to_min_median,max_to_min_low,\
         max_to_min_high",
    );
    for row in rows {
        let mut cells: Vec<&dyn Display> = vec![&row.machines, &row.policy, &row.slabs];
        for spread in [&row.max, &row.max_to_median, &row.max_to_min] {
            cells.extend([&spread.median as &dyn Display, &spread.low, &spread.high]);
        }
        csv.row(&cells);
    }
    csv
}

/// The fullest host by the median one, over the machines of the cluster.
#[must_use]
pub fn plot(rows: &[Row]) -> Plot {
    let line = |&(_, name): &(Policy, &str)| {
        let of_policy = rows.iter().filter(|row| row.policy == name);
        let points = of_policy.map(|row| (row.machines as f64, row.max_to_median.median));
        Line::new(name, points.collect())
    };
    let sizes = rows.iter().map(|row| row.machines as f64);
    let (low, high) = sizes.fold((f64::MAX, 1.0_f64), |(low, high), size| {
        (low.min(size), high.max(size))
    });
    let most = rows
        .iter()
        .map(|row| row.max_to_median.median)
        .fold(1.0, f64::max);
    Plot {
        title: "The fullest host by the median one".to_owned(),
        x_label: "machines",
        y_label: "slabs, max / median",
        // A single size still has an axis.
        x: low..high.max(low * 10.0),
        x_scale: Scale::Logarithmic,
        y: 0.9..most * 1.1,
        lines: POLICIES.iter().map(line).collect(),
        legend: Legend::MiddleRight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(machines: &[usize], seed: u64) -> Vec<Row> {
        let options = Options {
            machines: machines.to_vec(),
            slabs: 16,
            runs: 3,
            seed,
        };
        run(&options).unwrap()
    }

    fn of<'a>(rows: &'a [Row], policy: &str) -> &'a Row {
        rows.iter().find(|row| row.policy == policy).unwrap()
    }

    /// Balls into bins, after rounds of as many balls as bins: the fullest of n is within
    /// ln ln n / ln 2 + O(1) of the mean with two choices; one choice exceeds that with
    /// sqrt(2 * mean * ln n), here 15.
    #[test]
    fn two_choices_beat_one_and_all_choices_beat_two() {
        let rows = rows(&[1000], 1);
        assert_eq!(of(&rows, "least-loaded").max.high, 16.0);
        assert_eq!(of(&rows, "least-loaded").max_to_min.high, 1.0);
        assert!(
            of(&rows, "two-choices").max.high <= 16.0 + 2.8 + 2.0,
            "{rows:?}"
        );
        for one in ["single", "random"] {
            assert!(of(&rows, one).max.low >= 25.0, "{rows:?}");
        }
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(rows(&[32, 100], 5), rows(&[32, 100], 5));
        assert_ne!(rows(&[32, 100], 5), rows(&[32, 100], 6));
    }

    #[test]
    fn rows_make_a_table_and_a_picture() {
        let rows = rows(&[32, 100], 1);
        assert_eq!(csv(&rows).text().lines().count(), 1 + 2 * 4);
        let svg = plot(&rows).svg().unwrap();
        assert!(POLICIES.iter().all(|(_, name)| svg.contains(name)));
        let one = super::tests::rows(&[50], 1);
        assert!(plot(&one).svg().is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for machines in [1, MACHINES_MAX + 1] {
            let options = Options {
                machines: vec![machines],
                slabs: 1,
                runs: 1,
                seed: 1,
            };
            assert!(run(&options).is_err(), "{machines}");
        }
    }

    proptest! {
        #[test]
        fn every_slab_is_on_a_host_and_none_on_a_full_one(
            machines in 2_usize..40,
            slabs in 1_u32..20,
            seed: u64,
        ) {
            for (policy, name) in POLICIES {
                let loads = loads(policy, machines, slabs, &mut Random::new(seed));
                let all: f64 = loads.iter().sum();
                prop_assert_eq!(all, machines as f64 * f64::from(slabs), "{}", name);
                prop_assert!(loads.iter().all(|&load| load < f64::from(slabs * ROOM + ROOM_BESIDE)));
            }
        }
    }
}
