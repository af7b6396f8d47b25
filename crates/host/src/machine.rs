//! What the machine has and allows, read from `/proc` and the control group.

mod files;
mod group;

use std::fs;

pub(crate) use files::{Files, read};
pub(crate) use group::Group;

use crate::{Error, Result};

/// Facts that a host's start depends on.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Memory that can be had without swapping, within the control group's limit.
    pub available_bytes: u64,
    /// Whether any swap is turned on now.
    pub has_swap: bool,
    /// Memory that this process may lock; `u64::MAX` without a limit.
    pub lockable_bytes: u64,
}

impl Machine {
    /// One that nothing fails on.
    pub(crate) fn boundless() -> Self {
        Self {
            available_bytes: u64::MAX,
            has_swap: false,
            lockable_bytes: u64::MAX,
        }
    }

    /// Reads the facts; the soft limit on locked memory is raised to the hard one first.
    pub(crate) fn read() -> Self {
        Self {
            available_bytes: available_bytes(),
            has_swap: read("/proc/swaps").lines().nth(1).is_some(),
            lockable_bytes: lockable_bytes(),
        }
    }
}

/// Memory that can be had now; `u64::MAX` where the system does not say.
pub(crate) fn available_bytes() -> u64 {
    let system = meminfo_bytes(&read("/proc/meminfo"), "MemAvailable:").unwrap_or(u64::MAX);
    let group = Group::of_this_process();
    let group = group.and_then(|group| group.available_bytes(&mut Files::default()));
    system.min(group.unwrap_or(u64::MAX))
}

/// Memory that this process could take now without anybody swapping for it: the least of what the
/// machine and its memory control groups leave. `None` where the system does not say.
#[must_use]
pub fn memory_left_bytes() -> Option<u64> {
    Some(available_bytes()).filter(|bytes| *bytes < u64::MAX)
}

/// Swap space of this machine; `None` where the system does not say.
#[must_use]
pub fn swap_bytes() -> Option<u64> {
    meminfo_bytes(&read("/proc/meminfo"), "SwapTotal:")
}

/// Lets the system's out-of-memory killer prefer this process: what it lends is spare
/// by definition, and its clients survive its end. The owner's own programs go later.
pub(crate) fn volunteer_for_oom_killer() {
    const PATH: &str = "/proc/self/oom_score_adj";
    // Where it cannot be read the write tells why.
    let now = read(PATH).trim().parse().unwrap_or(0);
    if now < OOM_SCORE_ADJ
        && let Err(error) = fs::write(PATH, OOM_SCORE_ADJ.to_string())
    {
        tracing::debug!(%error, "raise {PATH}");
    }
}

/// Has this thread run when others do not want to: zeroing a slab takes a core for milliseconds, just
/// when the client that got the one before is attaching it, and compiling a module takes seconds.
#[allow(
    unsafe_code,
    reason = "priorities of threads have no safe wrapper in std"
)]
pub(crate) fn step_back() {
    const NICE: i32 = 10;
    // SAFETY: no pointers. Of Linux, process 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "lower the priority of a thread");
    }
}

/// Beside a program of the owner that uses 20% of the machine more, a host goes first.
/// Arbitrary between 0 (no preference) and 1000 (always first).
const OOM_SCORE_ADJ: i32 = 200;

/// 128 random bits.
///
/// # Errors
/// `Os`: the system gives none.
pub(crate) fn random_u128() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Os {
        what: "get random bytes",
        source: std::io::Error::other(error),
    })?;
    Ok(u128::from_le_bytes(bytes))
}

/// A line of `/proc/meminfo`, or of a file like it.
pub(crate) fn meminfo_bytes(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(label))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn lockable_bytes() -> u64 {
    const CAP_IPC_LOCK: u32 = 14;
    let status = read("/proc/self/status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    // Capabilities that are not shown count as none: the limit below then decides.
    let bits = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    if bits >> CAP_IPC_LOCK & 1 == 1 {
        u64::MAX
    } else {
        raise_lock_limit()
    }
}

#[allow(unsafe_code, reason = "resource limits have no safe wrapper in std")]
fn raise_lock_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid rlimit for the call to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return 0;
    }
    let soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit; raising the soft limit to the hard one needs no right.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } == 0;
    if raised { limit.rlim_max } else { soft }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_lines_are_found_by_their_label_and_scaled() {
        let text =
            "MemTotal:       24684264 kB\nMemAvailable:   24339456 kB\nHugePages_Total:   0\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), Some(24_923_602_944));
        assert_eq!(meminfo_bytes(text, "SwapFree:"), None);
    }

    #[test]
    fn this_machine_has_some_memory_and_not_all_the_memory_there_is() {
        let machine = Machine::read();
        assert!(machine.available_bytes > 1 << 20);
        assert!(machine.available_bytes < 1 << 50);
    }
}
