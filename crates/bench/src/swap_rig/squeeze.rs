//! Lowering the limit of a cgroup that is in use.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use cenote_block::swap::cgroup::MemoryCgroup;

use super::interrupt::Interrupt;

/// Limits `group` to `target` bytes, of which it may hold more now.
///
/// In steps, because a cgroup at its limit whose pages are all being swapped out is not waited
/// for: the kernel kills the program that asks for more.
pub(crate) fn squeeze(
    group: &MemoryCgroup,
    target: u64,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let usage = group.usage_bytes().context("read the cgroup's usage")?;
    let mut limit = usage.max(target);
    let patience = Instant::now() + TIMEOUT;
    loop {
        let next = limit.saturating_sub(STEP_BYTES).max(target);
        match group.set_limit(next) {
            Ok(()) if next == target => return Ok(()),
            Ok(()) => limit = next,
            Err(error) if Instant::now() > patience => {
                return Err(error).context("limit the memory of the program");
            }
            Err(_) => interrupt.sleep(Duration::from_millis(20))?,
        }
        interrupt.check()?;
    }
}

/// Lifts the limit when dropped. Held after whatever turns swap off: pages that come back do not
/// fit under the limit that pushed them out.
pub(crate) struct LiftOnDrop<'a>(pub(crate) &'a MemoryCgroup);

impl LiftOnDrop<'_> {
    pub(crate) fn lift(&self) -> anyhow::Result<()> {
        self.0.set_limit(UNLIMITED_BYTES).context("lift the limit")
    }
}

impl Drop for LiftOnDrop<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.lift() {
            eprintln!("{error:#}");
        }
    }
}

/// Larger than any machine: no limit.
pub(crate) const UNLIMITED_BYTES: u64 = 1 << 46;
/// How long the memory may take to be swapped out; arbitrary.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Arbitrary: small beside the limit.
const STEP_BYTES: u64 = 4 << 20;
