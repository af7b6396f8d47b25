//! A closed loop over a live cache: what a configuration does for programs, with everything between them
//! and the machines.
//!
//! One thread for each handle (the configuration's c), b times q requests under way on each, every one for
//! a record at random.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::Time;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Cache, CallError};
use crate::client::Ended;
use crate::closed_loop::{NoThread, on_threads};
use cenote_pool::random::Random;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes of each record, at least 1.
    pub record_bytes: u32,
    /// Of 100 requests so many read.
    pub reads_percent: u32,
    /// Requests under way on each handle, at least 1.
    pub under_way: usize,
    /// How long it warms up before it counts.
    pub warm_up: Duration,
    /// How long it counts.
    pub span: Duration,
    /// Random seed of which records are touched.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Requests that ended well while it counted.
    pub requests: u64,
    /// Of those, reads.
    pub reads: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Latencies in microseconds, from submission to the end being seen.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// What 99 of 100 stay below.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

struct Seen {
    latency: Histogram<u64>,
    requests: u64,
    reads: u64,
    failed: u64,
}

/// Runs `plan` on every handle, each on a thread of its own.
///
/// # Errors
/// A handle whose cache is gone, or shorter than a record; too few threads.
///
/// # Panics
/// If the plan has records of no byte, or nothing under way.
pub fn run(caches: &mut [Cache], plan: &Plan) -> Result<Figures, CallError> {
    assert!(plan.record_bytes > 0 && plan.under_way > 0, "{plan:?}");
    let ends = on_threads(caches, plan.seed, |cache, random, failed| {
        of_one(cache, plan, random, failed)
    })?;
    let mut all = nothing();
    for seen in ends {
        all.latency.add(&seen.latency).expect("of the same bounds");
        all.requests += seen.requests;
        all.reads += seen.reads;
        all.failed += seen.failed;
    }
    let us = |ns: u64| ns as f64 / 1000.0;
    Ok(Figures {
        requests: all.requests,
        reads: all.reads,
        failed: all.failed,
        requests_per_second: all.requests as f64 / plan.span.as_secs_f64(),
        mean_us: all.latency.mean() / 1000.0,
        p50_us: us(all.latency.value_at_quantile(0.5)),
        p99_us: us(all.latency.value_at_quantile(0.99)),
        max_us: us(all.latency.max()),
    })
}

impl From<NoThread> for CallError {
    fn from(error: NoThread) -> Self {
        Self::Refused(error.to_string())
    }
}

fn nothing() -> Seen {
    let latency = Histogram::new_with_max(600_000_000_000, 3).expect("bounds that it takes");
    Seen {
        latency,
        requests: 0,
        reads: 0,
        failed: 0,
    }
}

/// A request that waits for its turn, or is under way.
struct Slot {
    begun: Time,
    buffer: BytesMut,
    is_read: bool,
}

fn of_one(
    cache: &mut Cache,
    plan: &Plan,
    mut random: Random,
    failed: &AtomicBool,
) -> Result<Seen, CallError> {
    let record_bytes = plan.record_bytes as usize;
    let records = cache.len_bytes() / u64::from(plan.record_bytes);
    if records == 0 {
        let what = "the cache is shorter than a record".to_owned();
        return Err(CallError::Refused(what));
    }
    let written = Bytes::from(vec![0x5A; record_bytes]);
    let slot = || Slot {
        begun: Time(0),
        buffer: BytesMut::zeroed(record_bytes),
        is_read: true,
    };
    let mut slots: Vec<Slot> = (0..plan.under_way).map(|_| slot()).collect();
    let mut idle: Vec<usize> = (0..slots.len()).collect();
    let mut seen = nothing();
    let mut ended: Vec<Ended> = Vec::new();
    let counted = Time::now().after(plan.warm_up);
    let over = counted.after(plan.span);
    let mut now = Time::now();
    let mut progress_at = now;
    while now < over && !failed.load(Ordering::Relaxed) {
        while let Some(index) = idle.pop() {
            let address = random.number() % records * u64::from(plan.record_bytes);
            let slot = &mut slots[index];
            slot.begun = now;
            slot.is_read = random.number() % 100 < u64::from(plan.reads_percent);
            let token = index as u64;
            match slot.is_read {
                true => cache.submit_read(address, std::mem::take(&mut slot.buffer), token)?,
                false => cache.submit_write(address, written.clone(), token)?,
            }
        }
        cache.poll(&mut ended);
        now = Time::now();
        if ended.is_empty() {
            // Threads share few cores: one that sees nothing for long blocks.
            if now.since(progress_at) > SPIN {
                cache.wait(Duration::from_millis(1))?;
                now = Time::now();
            }
            continue;
        }
        progress_at = now;
        for end in ended.drain(..) {
            let index = usize::try_from(end.token).expect("a slot's index");
            let slot = &mut slots[index];
            let is_counted = now >= counted && now < over;
            match end.result {
                Ok(()) if is_counted => {
                    let ns = u64::try_from(now.since(slot.begun).as_nanos());
                    seen.latency
                        .saturating_record(ns.unwrap_or(u64::MAX).max(1));
                    seen.requests += 1;
                    seen.reads += u64::from(slot.is_read);
                }
                Ok(()) => {}
                Err(_) => seen.failed += 1,
            }
            if slot.is_read {
                slot.buffer = end.buffer;
                slot.buffer.resize(record_bytes, 0);
            }
            idle.push(index);
        }
    }
    while cache.outstanding() > 0 {
        cache.wait(Duration::from_millis(10))?;
        cache.poll(&mut ended);
    }
    Ok(seen)
}

/// Some round trips over shared memory.
const SPIN: Duration = Duration::from_micros(20);
