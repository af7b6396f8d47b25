//! READ and WRITE over `shm`, cold and at random, beside `memcpy`.
//!
//! Time is that of one verb in a row of them, since a store is over for the processor long
//! before it is in memory: only the next ones feel what it cost. A WRITE is flushed each time.
//! A READ's latency is taken as well, one by one.

use cenote_fabric::{Region, RegionOptions};
use cenote_measure::random::Random;

use super::super::page::{histogram, ticks, ticks_to_ns};
use super::link::Link;
use super::{Figure, Options, SIZES, Verb};
use crate::cluster::LocalCluster;

/// Verbs per slice: enough that page tables are as warm as in use.
const OPS: usize = 50_000;

/// Regions as a host makes them, of the length of its slabs.
struct Bare {
    regions: Vec<Region>,
    len_bytes: u64,
}

struct Case {
    verb: Verb,
    bytes: usize,
    /// One figure per metric of the case.
    time: Figure,
    latency: Option<Figure>,
}

pub(super) fn measure(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let set = options.cold_mib << 20;
    eprintln!(
        "fabric: one host that lends {} MiB over shm",
        options.cold_mib
    );
    let cluster = LocalCluster::start(1, options.cold_mib, "shm")?;
    let mut link = Link::open(cluster.connector(), cluster.address(0), set)?;
    let bare = Bare::new(set, link.windows[0].descriptor.len_bytes)?;
    touch_all(&mut link, set)?;
    let mut cases = cases();
    for round in 0..options.rounds {
        for case in &mut cases {
            let (verb, bytes) = (case.verb, case.bytes);
            case.time.round(
                round,
                || ours(&mut link, verb, bytes, set, round),
                || Ok(bare.copies(verb, bytes, set, round)),
            )?;
            if let Some(latency) = &mut case.latency {
                latency.round(
                    round,
                    || our_latency(&mut link, bytes, set, round),
                    || Ok(bare.latency(bytes, set, round)),
                )?;
            }
        }
    }
    Ok(cases
        .into_iter()
        .flat_map(|case| std::iter::once(case.time).chain(case.latency))
        .collect())
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for verb in Verb::BOTH {
        for bytes in SIZES {
            let figure = |metric| {
                let name = format!("shm {} {bytes} B cold", verb.name());
                Figure::new(name, (metric, "ns"), "memcpy")
            };
            cases.push(Case {
                verb,
                bytes,
                time: figure("time"),
                latency: (verb == Verb::Read).then(|| figure("latency_p50")),
            });
        }
    }
    cases
}

/// Writes all of the windows once: from here on nothing is touched for the first time.
fn touch_all(link: &mut Link, set: u64) -> anyhow::Result<()> {
    let mut page = vec![0x5a_u8; 4096];
    for place in (0..set).step_by(page.len()) {
        // SAFETY: shm completes at once, and the page outlives the call.
        unsafe { link.post(Verb::Write, place, page.len(), page.as_mut_ptr())? };
        link.pop()?;
    }
    link.endpoint.flush(&mut link.queue);
    Ok(())
}

/// A place of `bytes` in `set`, both powers of two.
#[inline]
fn place(random: &mut Random, bytes: usize, set: u64) -> u64 {
    random.next() & (set - 1) & !(bytes as u64 - 1)
}

#[inline]
fn one(
    link: &mut Link,
    verb: Verb,
    place: u64,
    bytes: usize,
    local: *mut u8,
) -> anyhow::Result<()> {
    // SAFETY: callers give a buffer of `bytes`; shm completes at once.
    unsafe { link.post(verb, place, bytes, local)? };
    if verb == Verb::Write {
        link.endpoint.flush(&mut link.queue);
    }
    if !link.queue.pop_ok() {
        link.pop()?;
    }
    Ok(())
}

fn ours(link: &mut Link, verb: Verb, bytes: usize, set: u64, seed: usize) -> anyhow::Result<f64> {
    let mut random = Random::new(seed as u64);
    let mut local = vec![0x5a_u8; bytes];
    let start = ticks();
    for _ in 0..OPS {
        let place = place(&mut random, bytes, set);
        one(link, verb, place, bytes, local.as_mut_ptr())?;
    }
    Ok(ticks_to_ns(ticks() - start) as f64 / OPS as f64)
}

fn our_latency(link: &mut Link, bytes: usize, set: u64, seed: usize) -> anyhow::Result<f64> {
    let mut random = Random::new(seed as u64);
    let mut local = vec![0_u8; bytes];
    let mut histogram = histogram();
    for _ in 0..OPS {
        let place = place(&mut random, bytes, set);
        let start = ticks();
        one(link, Verb::Read, place, bytes, local.as_mut_ptr())?;
        histogram.saturating_record(ticks_to_ns(ticks() - start));
    }
    Ok(histogram.value_at_quantile(0.5) as f64)
}

impl Bare {
    fn new(set: u64, len_bytes: u64) -> anyhow::Result<Self> {
        let options = RegionOptions {
            huge: true,
            reserved: true,
            lock: false,
        };
        let make = |index: u64| -> anyhow::Result<Region> {
            let region = Region::create(&format!("bare-{index}"), len_bytes, options)?;
            region.populate()?;
            Ok(region)
        };
        let regions = (0..set.div_ceil(len_bytes))
            .map(make)
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { regions, len_bytes })
    }

    #[inline]
    fn copy(&self, verb: Verb, place: u64, bytes: usize, local: *mut u8) {
        let region = &self.regions[(place >> self.len_bytes.trailing_zeros()) as usize];
        let remote = region
            .in_place(place & (self.len_bytes - 1), bytes)
            .pointer();
        // SAFETY: both are valid for `bytes` bytes, and nobody truncates these regions.
        unsafe {
            match verb {
                Verb::Read => local.copy_from_nonoverlapping(remote, bytes),
                Verb::Write => local.copy_to_nonoverlapping(remote, bytes),
            }
        }
        std::hint::black_box(local);
    }

    fn copies(&self, verb: Verb, bytes: usize, set: u64, seed: usize) -> f64 {
        let mut random = Random::new(seed as u64);
        let mut local = vec![0x5a_u8; bytes];
        let start = ticks();
        for _ in 0..OPS {
            let place = place(&mut random, bytes, set);
            self.copy(verb, place, bytes, local.as_mut_ptr());
        }
        ticks_to_ns(ticks() - start) as f64 / OPS as f64
    }

    fn latency(&self, bytes: usize, set: u64, seed: usize) -> f64 {
        let mut random = Random::new(seed as u64);
        let mut local = vec![0_u8; bytes];
        let mut histogram = histogram();
        for _ in 0..OPS {
            let place = place(&mut random, bytes, set);
            let start = ticks();
            self.copy(Verb::Read, place, bytes, local.as_mut_ptr());
            histogram.saturating_record(ticks_to_ns(ticks() - start));
        }
        histogram.value_at_quantile(0.5) as f64
    }
}
