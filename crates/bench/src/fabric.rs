//! `cenote bench fabric`: verbs of each backend beside the same bytes moved by hand.
//!
//! `shm`: READ and WRITE at random places of far more memory than the caches hold, beside a
//! plain `memcpy` from and to the same kind of memory. `tcp`: READ and WRITE of warm memory, one
//! at a time and [`DEPTH`] outstanding, and messages, beside a bare request and answer of the
//! same sizes over loopback ([`raw`]). Each host, and the raw server, is a process of its own.
//!
//! Slices of ours and of the peer alternate, and swap their order from round to round.
//! Times: below 1 is better; rates: above.

mod link;
pub mod peer;
mod placement;
mod raw;
mod rdma;
mod shm;
mod tcp;

use cenote_measure::statistics::median;

use super::Row;
use crate::swap_rig::interrupt::{self, Interrupt};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of `shm`, `tcp` and `rdma`.
    pub transports: Vec<String>,
    /// Rounds of which the median is taken.
    pub rounds: usize,
    /// What `shm` reads and writes, in MiB; a power of two.
    pub cold_mib: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transports: vec!["shm".into(), "tcp".into()],
            rounds: 21,
            cold_mib: 512,
        }
    }
}

/// Bytes per verb: a cache line, a split of a page in rs:8+2, a page.
const SIZES: [usize; 3] = [64, 512, 4096];
/// Verbs outstanding where they are pipelined.
const DEPTH: usize = 32;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Read,
    Write,
}

impl Verb {
    const BOTH: [Self; 2] = [Self::Read, Self::Write];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        }
    }
}

/// Memory that starts `skew` bytes behind the start of a page.
///
/// Where it starts is half of a figure: AMD's Zen 3 copies to the first 16 bytes of a page at
/// half the speed (`rep movsb`, which the kernel uses), and large vectors start just there.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize, skew: usize) -> Self {
        const PAGE_BYTES: usize = 4096;
        let memory = vec![0x5a_u8; len + 2 * PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES) + skew % PAGE_BYTES;
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// The rounds of one figure.
struct Figure {
    case: String,
    metric: (&'static str, &'static str),
    peer: &'static str,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Figure {
    fn new(case: String, metric: (&'static str, &'static str), peer: &'static str) -> Self {
        Self {
            case,
            metric,
            peer,
            ours: Vec::new(),
            theirs: Vec::new(),
        }
    }

    /// One round: a slice of each, ours first in every other round.
    fn round(
        &mut self,
        round: usize,
        ours: impl FnOnce() -> anyhow::Result<f64>,
        theirs: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<()> {
        interrupt::check()?;
        if round.is_multiple_of(2) {
            self.ours.push(ours()?);
            self.theirs.push(theirs()?);
        } else {
            self.theirs.push(theirs()?);
            self.ours.push(ours()?);
        }
        Ok(())
    }

    fn row(&self) -> Row {
        let (ours, theirs) = (
            median(self.ours.iter().copied()),
            median(self.theirs.iter().copied()),
        );
        Row::new(
            ("fabric", self.case.clone()),
            self.metric,
            ours,
            (self.peer, theirs),
        )
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When a host or the raw server cannot be started, a verb fails, or the run was interrupted.
pub fn run(options: &Options) -> anyhow::Result<Vec<Row>> {
    let _interrupt = Interrupt::catch()?;
    let mut rows = Vec::new();
    for transport in &options.transports {
        let figures = match transport.as_str() {
            "shm" => shm::measure(options)?,
            "rdma" => rdma::measure(options)?,
            _ => tcp::measure(options)?,
        };
        rows.extend(figures.iter().map(Figure::row));
    }
    Ok(rows)
}
