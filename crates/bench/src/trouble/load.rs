//! Random reads and writes of one volume, one at a time or many, and how they ended.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cenote_measure::random::Random;
use cenote_volume::{Done, IoError, Op, PAGE_BYTES, Request, Worker};
use hdrhistogram::Histogram;

use crate::page::{histogram, is_filled, ticks, ticks_to_ns};

/// What a volume did under a trouble in one round.
pub(super) struct Sample {
    pub(super) reads: Histogram<u64>,
    pub(super) writes: Histogram<u64>,
    /// Operations that failed because too much is lost, or wrong.
    pub(super) lost: u64,
    /// Reads of bytes that nobody wrote.
    pub(super) wrong: u64,
}

impl Sample {
    pub(super) fn new() -> Self {
        Self {
            reads: histogram(),
            writes: histogram(),
            lost: 0,
            wrong: 0,
        }
    }

    pub(super) fn lost_percent(&self) -> f64 {
        let done = self.reads.len() + self.writes.len();
        self.lost as f64 / (self.lost + done) as f64 * 100.0
    }

    pub(super) fn wrong_percent(&self) -> f64 {
        self.wrong as f64 / self.reads.len().max(1) as f64 * 100.0
    }
}

impl std::fmt::Display for Sample {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        write!(
            out,
            "read p50 {:.0} us, p99 {:.0}; write p50 {:.0}, p99 {:.0}",
            us(&self.reads, 0.5),
            us(&self.reads, 0.99),
            us(&self.writes, 0.5),
            us(&self.writes, 0.99)
        )?;
        if self.lost > 0 {
            write!(out, "; {:.1}% lost", self.lost_percent())?;
        }
        if self.wrong > 0 {
            write!(out, "; {:.1}% of reads wrong", self.wrong_percent())?;
        }
        Ok(())
    }
}

/// Notes how an operation ended; `Err` of what no trouble explains.
fn note(
    times: &mut Histogram<u64>,
    lost: &mut u64,
    began: u64,
    result: Result<(), IoError>,
) -> anyhow::Result<()> {
    match result {
        Ok(()) => times.saturating_record(ticks_to_ns(ticks() - began)),
        Err(IoError::Lost | IoError::NoSpace | IoError::Corrupt) => *lost += 1,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

pub(super) fn one_at_a_time(
    mut worker: Worker,
    mut random: Random,
    time: Duration,
) -> anyhow::Result<Sample> {
    let pages = worker.size_bytes() / PAGE_BYTES as u64;
    let mut sample = Sample::new();
    let written = vec![WRITTEN; PAGE_BYTES];
    let mut page = written.clone();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let offset = random.below(pages) * PAGE_BYTES as u64;
        let began = ticks();
        let result = worker.read(offset, &mut page);
        note(&mut sample.reads, &mut sample.lost, began, result)?;
        let is_wrong = result.is_ok() && page != written && !is_filled(offset, &page);
        sample.wrong += u64::from(is_wrong);
        let offset = random.below(pages) * PAGE_BYTES as u64;
        let began = ticks();
        let result = worker.write(offset, &written);
        note(&mut sample.writes, &mut sample.lost, began, result)?;
    }
    Ok(sample)
}

/// Keeps [`DEPTH`] requests under way, half of them writes.
pub(super) fn burst(
    mut worker: Worker,
    mut random: Random,
    time: Duration,
) -> anyhow::Result<Sample> {
    let pages = worker.size_bytes() / PAGE_BYTES as u64;
    let mut sample = Sample::new();
    let mut began = [0; DEPTH];
    let mut idle: Vec<(usize, Vec<u8>)> = (0..DEPTH)
        .map(|tag| (tag, vec![WRITTEN; PAGE_BYTES]))
        .collect();
    let mut done: Vec<Done> = Vec::new();
    let end = Instant::now() + time;
    loop {
        let is_over = Instant::now() >= end;
        while let Some((tag, page)) = idle.pop_if(|_| !is_over) {
            began[tag] = ticks();
            let request = Request {
                tag: tag as u64,
                offset: random.below(pages) * PAGE_BYTES as u64,
                op: if tag % 2 == 0 {
                    Op::Read(page)
                } else {
                    Op::Write(page)
                },
            };
            let accepted = worker.submit(request);
            ensure!(accepted.is_ok(), "a worker takes {DEPTH} requests");
        }
        if worker.in_flight() == 0 {
            return Ok(sample);
        }
        worker.poll(&mut done);
        if done.is_empty() {
            wait(&worker)?;
        }
        for ended in done.drain(..) {
            let tag = ended.tag as usize;
            let (times, page) = match ended.op {
                Op::Read(page) => (&mut sample.reads, page),
                Op::Write(page) => (&mut sample.writes, page),
                Op::Discard { .. } => unreachable!("none was sent"),
            };
            note(times, &mut sample.lost, began[tag], ended.result)?;
            idle.push((tag, page));
        }
    }
}

/// Sleeps until the worker has something to do.
fn wait(worker: &Worker) -> anyhow::Result<()> {
    let timeout = worker.deadline().unwrap_or(PATIENCE);
    let mut fd = libc::pollfd {
        fd: worker.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `fd` is one valid pollfd.
    if unsafe { libc::poll(&raw mut fd, 1, millis) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("wait for a worker");
        }
    }
    Ok(())
}

const DEPTH: usize = 32;
/// Every byte of a page that is written here.
const WRITTEN: u8 = 0x5a;
/// How long a worker may have nothing to do; arbitrary.
const PATIENCE: Duration = Duration::from_secs(30);
