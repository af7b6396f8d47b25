//! One slab that its host wants back, and one whose host is killed: how long until it is elsewhere,
//! step by step, beside what the paper reports of its own.
//!
//! The paper evicts a slab and rebuilds it: 54 ms to place it, 170 ms to read, 50 ms to decode.
//! Here an evicted slab is copied, since it is still there; a lost one is read from `k` hosts and
//! decoded in one pass, so the reading is the pass less what decoding alone takes.
//! Paper: \[hydra22\] section 7.3.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_codec::Code;
use cenote_fabric::{Region, RegionOptions};
use cenote_measure::statistics::median;
use cenote_volume::{Health, Volume, VolumeStatus};

use super::PATIENCE;
use crate::Row;
use crate::cluster::LocalCluster;
use crate::page::fill;
use crate::swap_rig::fresh;
use crate::swap_rig::interrupt;
use crate::swap_rig::our_swap::cenote;

/// Placing a slab of 1 GB, reading for it, decoding it: in the paper, ms.
const PAPER_MS: [f64; 3] = [54.0, 170.0, 50.0];
const K: usize = 8;
const R: usize = 2;
/// A stripe, one host for each of two slabs that move, and one to spare.
const HOSTS: usize = K + R + 3;

/// After so long without a request a volume counts as idle, with some to spare.
const SETTLES: Duration = Duration::from_secs(1);

/// What a slab took, in ms.
#[derive(Default)]
struct Steps {
    place: Vec<f64>,
    fill: Vec<f64>,
    leave: Vec<f64>,
}

impl Steps {
    fn take(&mut self, status: &VolumeStatus) {
        let repair = &status.repair;
        self.place.push(repair.place.max_us / 1e3);
        self.fill.push(repair.fill.max_us / 1e3);
        self.leave.push(repair.leave.max_us / 1e3);
    }
}

/// Slabs of `slab_mib`, `rounds` of each kind; `copy`: bytes per second of `memcpy`, one core.
pub(super) fn run(rounds: usize, slab_mib: u64, copy: f64) -> anyhow::Result<Vec<Row>> {
    let (mut evicted, mut lost, mut decodes) = (Steps::default(), Steps::default(), Vec::new());
    let folder = fresh(&std::env::temp_dir(), "slab");
    for round in 0..rounds {
        interrupt::check()?;
        let slab = format!("{slab_mib}M");
        let cluster = LocalCluster::start_in(&folder, HOSTS, slab_mib, "shm", &["--slab", &slab])?;
        let volume = || -> anyhow::Result<_> {
            let scheme = format!("rs:{K}+{R}").parse()?;
            let volume = cluster.volume(scheme, K as u64 * (slab_mib << 20))?;
            fill(&volume)?;
            // A rebuild yields to a load; what was written counts as one for a while.
            std::thread::sleep(SETTLES);
            Ok(volume)
        };
        let first = volume()?;
        cenote(&["host", "drain", &member_of(&first)?], cluster.dir())?;
        evicted.take(&wait(&first, |status| status.repair.leave.count == 1)?);
        first.close();

        let second = volume()?;
        let victim = member_of(&second)?;
        let index = (0..cluster.host_count()).find(|&index| cluster.name(index) == victim);
        cluster.kill(index.context("a host of the cluster")?)?;
        lost.take(&wait(&second, |status| {
            status.repair.fill.count == 1 && status.health == Health::Healthy
        })?);
        second.close();
        decodes.push(decode_ms(slab_mib)?);
        eprintln!("slab: round {} of {rounds}", round + 1);
    }
    let ms = |list: Vec<f64>| median(list);
    let decode = ms(decodes);
    let share = slab_mib as f64 / 1024.0;
    let [place, read, decoded] = PAPER_MS;
    let case = |what: &str| format!("slab of {slab_mib} MiB, shm rs:{K}+{R}: {what}");
    let row = |what: &str, ours: f64, theirs: f64| {
        Row::new(
            ("regeneration", case(what)),
            ("time", "ms"),
            ours,
            ("paper: 1 GB, InfiniBand, for as many bytes", theirs),
        )
    };
    let pass = ms(lost.fill);
    let rebuilt = slab_mib as f64 * 1048.576 / pass;
    Ok(vec![
        Row::new(
            ("regeneration", case("lost, rebuilt by one core")),
            ("throughput", "MB/s"),
            rebuilt,
            ("memcpy, one core, cold", copy / 1e6),
        ),
        row("evicted, placed", ms(evicted.place), place),
        row(
            "evicted, copied",
            ms(evicted.fill),
            (read + decoded) * share,
        ),
        row("evicted, in use to given back", ms(evicted.leave), place),
        row("lost, placed", ms(lost.place), place),
        row("lost, read", (pass - decode).max(0.0), read * share),
        row("lost, decoded", decode, decoded * share),
    ])
}

/// A host with a slab of the volume.
fn member_of(volume: &Volume) -> anyhow::Result<String> {
    let status = volume.status()?;
    let mut hosts = status
        .extents
        .iter()
        .flat_map(|extent| extent.hosts.iter().flatten());
    Ok(hosts.next().context("a slab")?.clone())
}

fn wait(volume: &Volume, is_so: impl Fn(&VolumeStatus) -> bool) -> anyhow::Result<VolumeStatus> {
    let began = Instant::now();
    loop {
        let status = volume.status()?;
        if is_so(&status) {
            return Ok(status);
        }
        ensure!(began.elapsed() < PATIENCE, "waited in vain: {status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Decoding a slab as the hosts do it, from `k` splits in memory of this process, one core. Of at most
/// 64 MiB, and scaled: no cache holds that.
fn decode_ms(slab_mib: u64) -> anyhow::Result<f64> {
    let bytes = slab_mib.min(64) << 20;
    let options = RegionOptions {
        huge: true,
        ..RegionOptions::default()
    };
    let region = || -> anyhow::Result<Region> {
        let region = Region::create("bench-decode", bytes, options)?;
        region.populate()?;
        Ok(region)
    };
    let code = Code::new(K, R)?;
    let splits = (0..K).map(|_| region()).collect::<Result<Vec<_>, _>>()?;
    let out = region()?;
    const PIECE: usize = 64 * 1024;
    let began = Instant::now();
    for at in (0..bytes).step_by(PIECE) {
        let piece = |region: &Region| region.in_place(at, PIECE).pointer();
        let sources: Vec<(usize, *const u8)> = (1..=K)
            .zip(&splits)
            .map(|(index, split)| (index, piece(split).cast_const()))
            .collect();
        // SAFETY: pieces of regions that live here, nobody else's, and different ones.
        unsafe { code.rebuild_raw(0, &sources, piece(&out), PIECE)? };
    }
    let took = began.elapsed().as_secs_f64();
    Ok(took * 1e3 * (slab_mib << 20) as f64 / bytes as f64)
}
