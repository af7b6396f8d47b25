//! What all programs under test have in common: they are loaded in a cgroup, then measured.

use std::path::PathBuf;

use cenote_block::swap::cgroup::MemoryCgroup;

use crate::swap_rig::interrupt::Interrupt;

/// An unmodified program, or a process of its own, whose memory may not fit.
pub(super) trait Program {
    /// Starts it in `group`, which is not limited yet, and brings it to the point from which it is
    /// measured. A former start of it is ended first.
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()>;

    /// Goes on for a moment so that what is measured next is not the change of the limit.
    fn warm_up(&mut self, _interrupt: &Interrupt) -> anyhow::Result<()> {
        Ok(())
    }

    /// Works, and says what it came to.
    fn measure(&mut self, interrupt: &Interrupt) -> anyhow::Result<Outcome>;

    /// Whether it must be loaded again before it can be measured.
    fn is_spent(&self) -> bool {
        false
    }

    /// Ends it.
    fn end(&mut self);
}

/// What one measurement came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Outcome {
    /// Of a server: operations per second, and times of one.
    Served { rate: f64, p50_us: f64, p99_us: f64 },
    /// Of a server whose load tells its rate alone.
    Rate(f64),
    /// Of a job: its time.
    Completed { seconds: f64 },
}

impl Outcome {
    /// Metric, unit, figure and whether more of it is better, of each figure.
    pub(super) fn figures(self) -> Vec<(&'static str, &'static str, f64, Option<bool>)> {
        match self {
            Self::Served {
                rate,
                p50_us,
                p99_us,
            } => vec![
                ("throughput", "ops/s", rate, Some(true)),
                ("latency_p50", "us", p50_us, Some(false)),
                ("latency_p99", "us", p99_us, Some(false)),
            ],
            Self::Rate(rate) => vec![("throughput", "ops/s", rate, Some(true))],
            Self::Completed { seconds } => vec![("completion", "s", seconds, Some(false))],
        }
    }
}

/// What a program is made with.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// Folder for sockets and files.
    pub(super) dir: PathBuf,
    /// About what a program is to take.
    pub(super) bytes: u64,
    /// How long a server is measured.
    pub(super) seconds: f64,
    pub(super) seed: u64,
}
