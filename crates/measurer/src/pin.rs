//! Threads that stay on processors.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may run on.
pub fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("ask for this thread's processors")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&one| allowed.is_set(one))
        .collect())
}

/// Keeps this thread, and those that it starts from now on, on `processors`.
pub fn this_thread(processors: &[usize]) -> Result<()> {
    let mut wanted = CpuSet::new();
    processors.iter().for_each(|&one| wanted.set(one));
    sched_setaffinity(None, &wanted).context("keep a thread on its processor")
}
