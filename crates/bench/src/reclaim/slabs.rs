//! How long it takes a client to get a slab, and to give one back.
//!
//! The client is this process, by the public interface of `volume`; hosts are processes of their
//! own over shared memory. Slabs of 64 MiB lie on 2 MiB pages where the machine allows it, and
//! hosts prepare them ahead, as the paper's do. Time for that is left between two of them.
//! Paper: \[infiniswap17\] section 7.3, times to map and to evict a slab.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_measure::statistics::median;
use cenote_volume::{Backing, PAGE_BYTES};

use super::{Options, wait_for};
use crate::Row;
use crate::cluster::LocalCluster;
use crate::swap_rig::interrupt::Interrupt;
use crate::swap_rig::our_swap::cenote;

pub(super) fn run(options: &Options, interrupt: &Interrupt) -> anyhow::Result<Vec<Row>> {
    let slab = format!("{SLAB_MIB}M");
    let (mut maps, mut firsts, mut evictions) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        // New each time: a host that was drained lends no more.
        let cluster = LocalCluster::start_in(
            &options.dir.join("slabs"),
            HOST_COUNT,
            SLAB_MIB * SLABS_PER_HOST,
            "shm",
            &["--slab", &slab],
        )?;
        let mapped = map(&cluster, options, interrupt)?;
        eprintln!(
            "round {round}: {} slabs of {SLAB_MIB} MiB mapped, median {:.0} us, first write of an \
             extent {:.0} us",
            mapped.count, mapped.map_us, mapped.first_write_us
        );
        maps.push((mapped.map_us, PAPER_MAP_US));
        firsts.push((mapped.first_write_us, PAPER_MAP_US));
        let evicted = evict(&cluster, options, interrupt)?;
        eprintln!(
            "round {round}: {} slabs given back, median {:.0} us from EVICT to DONE; {:.0} ms for \
             each until its host had freed it",
            evicted.count, evicted.evict_us, evicted.freed_ms
        );
        evictions.push((evicted.evict_us, PAPER_EVICT_US));
    }
    let case = |what: &str| format!("{what}, {SLAB_MIB} MiB, shm");
    let row = |what: &str, metric, pairs: &[_]| {
        let paper = "paper: 1 GB, InfiniBand";
        let case = ("reclaim", case(what));
        Row::of_rounds(case, (metric, "us"), Some(false), paper, pairs)
    };
    Ok(vec![
        row("map a slab", "latency_p50", &maps),
        row("first write of an extent", "latency_p50", &firsts),
        row("give a slab back", "latency_p50", &evictions),
    ])
}

struct Mapped {
    count: u64,
    map_us: f64,
    /// As the caller has it: of a page in an extent that has no slab, the page included.
    first_write_us: f64,
}

fn map(cluster: &LocalCluster, options: &Options, interrupt: &Interrupt) -> anyhow::Result<Mapped> {
    let volume = cluster.volume("plain".parse()?, EXTENT_COUNT * (SLAB_MIB << 20))?;
    let mut worker = volume.worker()?;
    let mut firsts = Vec::new();
    let page = [options.seed as u8 | 1; PAGE_BYTES];
    for extent in 0..EXTENT_COUNT {
        interrupt.sleep(PREPARE_TIME)?;
        let began = Instant::now();
        worker.write(extent * volume.extent_bytes(), &page)?;
        firsts.push(began.elapsed().as_nanos() as f64 / 1e3);
    }
    let mapping = volume.status()?.mapping;
    ensure!(mapping.count >= EXTENT_COUNT, "not every extent was mapped");
    drop(worker);
    volume.close();
    Ok(Mapped {
        count: mapping.count,
        map_us: mapping.median_us,
        first_write_us: median(firsts),
    })
}

struct Evicted {
    count: u64,
    evict_us: f64,
    freed_ms: f64,
}

/// Hosts are drained one after the other, each of which asks for its slabs one by one.
fn evict(
    cluster: &LocalCluster,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<Evicted> {
    let size_bytes = EXTENT_COUNT * (SLAB_MIB << 20);
    let path = options.dir.join("slabs-backing");
    let backing = Backing {
        hot_slab: 0.0,
        ..Backing::open(&path, size_bytes)?
    };
    let volume = cluster.backed_volume("plain".parse()?, size_bytes, backing)?;
    let mut worker = volume.worker()?;
    let page = [options.seed as u8 | 1; PAGE_BYTES];
    for extent in 0..EXTENT_COUNT {
        for index in 0..PAGES_WRITTEN {
            worker.write(
                extent * volume.extent_bytes() + index * PAGE_BYTES as u64,
                &page,
            )?;
        }
    }
    wait_for(&volume, interrupt, "every page is on the disk", |status| {
        status
            .backing
            .is_some_and(|backing| backing.pending_bytes == 0)
            && status.mapped_bytes == size_bytes
    })?;
    let began = Instant::now();
    for index in 0..cluster.host_count() / 2 {
        let name = cluster.name(index);
        cenote(&["host", "drain", name], cluster.dir()).with_context(|| format!("drain {name}"))?;
    }
    let took = began.elapsed();
    let status = volume.status()?;
    let count = status.eviction.count;
    ensure!(count > 0, "no slab was asked for: {status:?}");
    for extent in 0..EXTENT_COUNT {
        let mut bytes = [0; PAGE_BYTES];
        worker.read(extent * volume.extent_bytes(), &mut bytes)?;
        ensure!(bytes == page, "extent {extent} has other bytes");
    }
    drop(worker);
    volume.close();
    drop(volume);
    std::fs::remove_file(&path).context("remove the backing file")?;
    Ok(Evicted {
        count,
        evict_us: status.eviction.median_us,
        freed_ms: took.as_secs_f64() * 1e3 / count as f64,
    })
}

const HOST_COUNT: usize = 6;
const SLAB_MIB: u64 = 64;
/// So many that a host keeps one prepared: it does for each sixteen.
const SLABS_PER_HOST: u64 = 16;
/// One GiB; few beside all slabs, so that half of the hosts can be drained.
const EXTENT_COUNT: u64 = 16;
/// Pages in an extent that is given back; arbitrary.
const PAGES_WRITTEN: u64 = 64;
/// What a host gets to prepare the next slab: far more than 64 MiB take.
const PREPARE_TIME: Duration = Duration::from_millis(200);
/// Medians of the paper.
const PAPER_MAP_US: f64 = 54_250.0;
const PAPER_EVICT_US: f64 = 363.0;
