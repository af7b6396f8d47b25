//! One host of six is killed under memcached at 75% of its peak.
//!
//! The load runs without a pause; what it did in the ten seconds from the kill on stands beside
//! the seconds before it. Each kill has a cluster of its own, and memcached goes on from one to
//! the next. The same without a kill shows what the load alone varies by.
//! Paper: \[infiniswap17\] section 7.3.1, Figure 13; there VoltDB.

use std::time::Duration;

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_measure::random::Random;
use serde_json::Value;

use super::Options;
use crate::Row;
use crate::apps::memcached_load::MemcachedLoad;
use crate::apps::mix::Mix;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::memcached::Memcached;
use crate::swap_rig::oom::OomKills;
use crate::swap_rig::our_swap::OurSwap;
use crate::swap_rig::squeeze::{LiftOnDrop, UNLIMITED_BYTES, squeeze};

/// Who is killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Victim {
    Nobody,
    Random,
    /// The host whose slabs are read and written most at that moment.
    Busiest,
}

impl Victim {
    fn label(self) -> &'static str {
        match self {
            Self::Nobody => "no kill",
            Self::Random => "kill 1 of 6",
            Self::Busiest => "kill the busiest of 6",
        }
    }

    /// Throughput that the paper's program kept, in per cent.
    fn paper(self) -> Option<f64> {
        match self {
            Self::Nobody => None,
            Self::Random => Some(100.0 - 34.5),
            Self::Busiest => Some(100.0 - 58.3),
        }
    }
}

pub(super) fn run(options: &Options, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let name = format!("cenote-reclaim-{}", std::process::id());
    let group = MemoryCgroup::create(&name, UNLIMITED_BYTES).context("make a memory cgroup")?;
    let socket = options.dir.join("memcached.sock");
    let server = Memcached::start(&socket, options.program_mib * 4, &group)?;
    let payload = (options.program_mib << 20) / 10 * 9;
    let mut load = MemcachedLoad::new(Mix::Sys, options.seed, payload);
    load.fill(server.socket(), interrupt)?;
    let peak = group.usage_bytes().context("read the cgroup's usage")?;
    eprintln!("memcached SYS: {} MiB, limited to 75%", peak >> 20);
    let mut random = Random::new(options.seed);
    let mut rows = Vec::new();
    for scheme in ["plain", "rs:4+2"] {
        for victim in [Victim::Nobody, Victim::Random, Victim::Busiest] {
            let mut pairs = Vec::new();
            for round in 0..options.rounds {
                let scene = Scene {
                    options,
                    interrupt,
                    group: &group,
                    limit: peak / 4 * 3,
                };
                let kills = OomKills::of(&group);
                let played = scene.play(scheme, victim, &mut load, &mut random);
                let (before, after) = kills.explain(played)?;
                eprintln!(
                    "{scheme}, {}, round {round}: {before:.0} ops/s before, {after:.0} in the 10 s \
                     after",
                    victim.label()
                );
                pairs.push((after, before));
            }
            let label = if scheme == "plain" {
                "plain+backing"
            } else {
                scheme
            };
            let case = format!("memcached SYS 75% {label}, {}", victim.label());
            let metric = ("throughput_after", "ops/s");
            let case = ("reclaim", case);
            rows.push(Row::of_rounds(
                case.clone(),
                metric,
                Some(true),
                "before",
                &pairs,
            ));
            if let Some(paper) = victim.paper() {
                let kept: Vec<_> = pairs
                    .iter()
                    .map(|(after, before)| (after / before * 100.0, paper))
                    .collect();
                let metric = ("throughput_kept", "%");
                let peer = "paper: VoltDB 75%";
                rows.push(Row::of_rounds(case, metric, Some(true), peer, &kept));
            }
        }
    }
    drop(server);
    Ok(rows)
}

/// What every kill has in common.
struct Scene<'a> {
    options: &'a Options,
    interrupt: &'a Interrupt,
    group: &'a MemoryCgroup,
    limit: u64,
}

impl Scene<'_> {
    /// Operations per second before the kill and after it.
    fn play(
        &self,
        scheme: &str,
        victim: Victim,
        load: &mut MemcachedLoad,
        random: &mut Random,
    ) -> anyhow::Result<(f64, f64)> {
        let swap_mib = self.options.program_mib * 2;
        // Six splits to four of data, and half as much again for what goes to the others.
        let host_mib = (swap_mib * 6 / 4 * 3 / 2 / HOST_COUNT as u64).next_multiple_of(SLAB_MIB);
        let cluster = LocalCluster::start_in(
            &self.options.dir.join("loss"),
            HOST_COUNT,
            host_mib,
            "shm",
            &["--slab", &format!("{SLAB_MIB}M")],
        )?;
        let size = format!("{swap_mib}M");
        let backing = self.options.dir.join("loss-backing").display().to_string();
        let mut args = vec!["--size", &size, "--scheme", scheme];
        if scheme == "plain" {
            args.extend(["--backing", &backing]);
        }
        let (swap, _) = OurSwap::on(cluster.dir(), &args)?;
        let limited = LiftOnDrop(self.group);
        squeeze(self.group, self.limit, self.interrupt)?;
        let killed = Duration::from_secs(SETTLE_S + BEFORE_S);
        let end = killed + Duration::from_secs(AFTER_S);
        let stretch = load.run(end, |run| {
            self.interrupt.sleep(killed)?;
            if let Some(index) = choose(victim, &cluster, &swap, random)? {
                cluster.kill(index)?;
            }
            self.interrupt
                .sleep(end.saturating_sub(run.began.elapsed()))
        })?;
        limited.lift()?;
        // Fails when a page was lost, which neither scheme may.
        swap.off()?;
        Ok((
            stretch.rate_between(Duration::from_secs(SETTLE_S), killed),
            stretch.rate_between(killed, end),
        ))
    }
}

fn choose(
    victim: Victim,
    cluster: &LocalCluster,
    swap: &OurSwap,
    random: &mut Random,
) -> anyhow::Result<Option<usize>> {
    match victim {
        Victim::Nobody => Ok(None),
        Victim::Random => Ok(Some(random.below(cluster.host_count() as u64) as usize)),
        Victim::Busiest => {
            let name = busiest(&swap.volume_status()?).context("no extent is mapped")?;
            let mut hosts = 0..cluster.host_count();
            match hosts.find(|index| cluster.name(*index) == name) {
                Some(index) => Ok(Some(index)),
                None => bail!("{name} is no host of the cluster"),
            }
        }
    }
}

/// The host with the most page reads and writes per second in the extents that it has slabs of.
fn busiest(status: &Value) -> Option<String> {
    let mut sums = std::collections::BTreeMap::new();
    for extent in status["extents"].as_array()? {
        let activity = extent["activity"].as_f64()?;
        for host in extent["hosts"].as_array()?.iter().filter_map(Value::as_str) {
            *sums.entry(host).or_insert(0.0) += activity;
        }
    }
    let most = sums
        .into_iter()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    most.map(|(host, _)| host.to_owned())
}

const HOST_COUNT: usize = 6;
const SLAB_MIB: u64 = 16;
/// Until busy extents are mapped and pages are where they will be; arbitrary.
const SETTLE_S: u64 = 5;
const BEFORE_S: u64 = 4;
const AFTER_S: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_host_is_that_of_the_largest_sum() {
        let status = serde_json::json!({"extents": [
            {"activity": 50.0, "hosts": ["h0", "h1"]},
            {"activity": 40.0, "hosts": ["h2", null]},
            {"activity": 30.0, "hosts": ["h1", "h2"]},
        ]});
        assert_eq!(busiest(&status).as_deref(), Some("h1"));
        assert_eq!(busiest(&serde_json::json!({"extents": []})), None);
    }
}
