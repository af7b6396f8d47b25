//! The same parts turned off on a real fabric: hosts on this machine, over `tcp` or `shm`.
//!
//! Rounds of all cases are interleaved; the median of the rounds is kept, with their spread: what
//! differs by less is no difference. Over `shm` a verb completes when it is posted: nothing is late
//! and nothing flies, so late binding and asynchronous encoding are off there whatever is asked.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cenote_bench::cluster::LocalCluster;
use cenote_bench::page as bench;
use cenote_measure::statistics::quantile;
use cenote_volume::{Op, PAGE_BYTES, Resilience, Switches, Volume, Worker};
use serde::Serialize;

use crate::latency::Operation;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// `shm` or `tcp`.
    pub transport: String,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// Pages read, and pages written, in each round of each case.
    pub operations: usize,
    /// Splits read besides k.
    pub delta: usize,
}

/// One line of the result. The JSON line of a row has exactly these keys, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Never: this is the machine it ran on.
    pub simulated: bool,
    /// As asked for.
    pub transport: String,
    /// What was measured.
    pub system: &'static str,
    /// Read or written.
    pub operation: Operation,
    /// Rounds.
    pub rounds: usize,
    /// The median page, of the median round.
    pub p50_ns: u64,
    /// The fastest and the slowest round's.
    pub p50_spread_ns: (u64, u64),
    /// The page that one of a hundred exceeds, of the median round.
    pub p99_ns: u64,
    /// The fastest and the slowest round's.
    pub p99_spread_ns: (u64, u64),
}

const SCHEME: &str = "rs:8+2";
const HOSTS: usize = 12;
const SIZE_BYTES: u64 = 64 << 20;

fn cases() -> [(&'static str, Switches); 6] {
    let on = Switches::default();
    let off = Switches {
        late_binding: false,
        async_encode: false,
        in_place: false,
        run_to_completion: false,
    };
    [
        ("hydra", on),
        (
            "no late binding",
            Switches {
                late_binding: false,
                ..on
            },
        ),
        (
            "no async encoding",
            Switches {
                async_encode: false,
                ..on
            },
        ),
        (
            "no in-place coding",
            Switches {
                in_place: false,
                ..on
            },
        ),
        (
            "no run-to-completion",
            Switches {
                run_to_completion: false,
                ..on
            },
        ),
        ("coding alone", off),
    ]
}

/// Measures all cases.
///
/// # Errors
/// When the local cluster cannot be started, or an operation fails.
pub fn run(options: &Options) -> Result<Vec<Row>> {
    ensure!(
        options.rounds > 0 && options.operations > 0,
        "nothing to measure"
    );
    let memory_mib = 128;
    let cluster = LocalCluster::start(HOSTS, memory_mib, &options.transport)?;
    let scheme = SCHEME.parse()?;
    let resilience = Resilience::new(scheme, cenote_volume::Mode::FailureRecovery, options.delta)?;
    let volume = cluster.volume_expecting(resilience, SIZE_BYTES)?;
    bench::fill(&volume)?;
    let mut samples: Vec<Vec<Vec<u64>>> = vec![Vec::new(); cases().len() * 2];
    for round in 0..options.rounds {
        eprintln!(
            "{}, round {} of {}",
            options.transport,
            round + 1,
            options.rounds
        );
        for (at, (_, switches)) in cases().into_iter().enumerate() {
            for (with, operation) in [Operation::Read, Operation::Write].into_iter().enumerate() {
                let mut times = measure(&volume, switches, operation, options, round as u64)?;
                times.sort_unstable();
                samples[at * 2 + with].push(times);
            }
        }
    }
    let row = |(at, rounds): (usize, &Vec<Vec<u64>>)| {
        let operation = [Operation::Read, Operation::Write][at % 2];
        let of = |permille| {
            let mut values: Vec<u64> = rounds
                .iter()
                .map(|times| quantile(times, permille))
                .collect();
            values.sort_unstable();
            (
                quantile(&values, 500),
                (values[0], values[values.len() - 1]),
            )
        };
        let ((p50_ns, p50_spread_ns), (p99_ns, p99_spread_ns)) = (of(500), of(990));
        Row {
            simulated: false,
            transport: options.transport.clone(),
            system: cases()[at / 2].0,
            operation,
            rounds: rounds.len(),
            p50_ns,
            p50_spread_ns,
            p99_ns,
            p99_spread_ns,
        }
    };
    Ok(samples.iter().enumerate().map(row).collect())
}

/// Times of pages at random, one after the other.
fn measure(
    volume: &Volume,
    switches: Switches,
    operation: Operation,
    options: &Options,
    seed: u64,
) -> Result<Vec<u64>> {
    let mut worker = volume.worker()?;
    worker.set_switches(switches);
    let mut random = cenote_measure::random::Random::new(seed);
    let mut offset = move || random.below(SIZE_BYTES / PAGE_BYTES as u64) * PAGE_BYTES as u64;
    let mut buffer = vec![0x5a; PAGE_BYTES];
    if switches.run_to_completion {
        return (0..options.operations)
            .map(|_| {
                let at = offset();
                let start = Instant::now();
                carry_out(&mut worker, operation, at, &mut buffer)?;
                Ok(u64::try_from(start.elapsed().as_nanos())?)
            })
            .collect();
    }
    // Another thread has the worker, and is woken by each request; this one by its end.
    let (ask, asked) = channel::<(u64, Op)>();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(worker, &asked, &tell));
        let times = (0..options.operations).map(|_| {
            let at = offset();
            let start = Instant::now();
            let bytes = std::mem::take(&mut buffer);
            let op = match operation {
                Operation::Read => Op::Read(bytes),
                Operation::Write => Op::Write(bytes),
            };
            ask.send((at, op)).context("the other thread has ended")?;
            buffer = told.recv().context("the other thread has ended")??;
            Ok(u64::try_from(start.elapsed().as_nanos())?)
        });
        let times = times.collect();
        drop(ask);
        times
    })
}

fn serve(mut worker: Worker, asked: &Receiver<(u64, Op)>, tell: &Sender<Result<Vec<u8>>>) {
    for (at, op) in asked {
        let (operation, mut bytes) = match op {
            Op::Read(bytes) => (Operation::Read, bytes),
            Op::Write(bytes) => (Operation::Write, bytes),
            Op::Discard { .. } => unreachable!("nobody asks for one"),
        };
        let done = carry_out(&mut worker, operation, at, &mut bytes);
        if tell.send(done.map(|()| bytes)).is_err() {
            return;
        }
    }
}

fn carry_out(worker: &mut Worker, operation: Operation, at: u64, bytes: &mut [u8]) -> Result<()> {
    match operation {
        Operation::Read => worker.read(at, bytes)?,
        Operation::Write => worker.write(at, bytes)?,
    }
    Ok(())
}
