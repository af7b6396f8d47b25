//! Keeps a program that swaps hard alive under a version 1 memory cgroup.
//!
//! Pages in the swap cache count against the limit. While all of a program's pages are active or
//! on their way in or out, direct reclaim finds nothing, and the kernel calls the cgroup out of
//! memory although swap is free. With its killer on, the program dies. With its killer off, a
//! store of the program waits, but a **system call** that copies into a swapped-out buffer fails
//! with EFAULT, and a server closes the connection. So the limit must not be reached at all:
//!
//! - The kernel's limit is [`SLACK_BYTES`] above the one that was asked for, as `memory.max` is
//!   above `memory.high` in version 2.
//! - A thread looks every [`LOOK_PERIOD`] and has the usage pressed down to what was asked for
//!   ([`reclaim`]), while the kernel's limit stays where it is.
//! - Where that is not enough, the killer is off, `under_oom` tells of a program that stalls, and
//!   it is lent [`LENT_BYTES`] for [`LENT_FOR`]. One that stalls on for [`PATIENCE`] needs more
//!   than there is: then the killer is switched on again, since a program that is killed says more
//!   than one that hangs.

mod reclaim;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reclaim::Reclaimer;

/// Watches one cgroup until it is dropped.
#[derive(Debug)]
pub(super) struct Relief {
    shared: Arc<Shared>,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What was asked for, to which the usage returns.
    limit_bytes: u64,
    /// How often memory was lent.
    count: u64,
}

impl State {
    /// The kernel's own limit.
    fn kernel_bytes(&self) -> u64 {
        self.limit_bytes.saturating_add(SLACK_BYTES)
    }
}

impl Relief {
    pub(super) fn start(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        Self::start_with(path, limit_bytes, PATIENCE)
    }

    fn start_with(path: &Path, limit_bytes: u64, patience: Duration) -> io::Result<Self> {
        fs::write(path.join(OOM_CONTROL), "1")?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            state: Mutex::new(State {
                limit_bytes,
                count: 0,
            }),
        });
        let (stop, stopped) = channel();
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("cgroup-relief".to_owned())
            .spawn(move || watched.watch(&stopped, patience))?;
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(super) fn set_limit(&self, limit_bytes: u64) -> io::Result<()> {
        let mut state = self.shared.state();
        // Comes down to it first, or says that it cannot.
        self.shared.write_limit(limit_bytes)?;
        state.limit_bytes = limit_bytes;
        self.shared.write_limit(state.kernel_bytes())
    }

    pub(super) fn count(&self) -> u64 {
        self.shared.state().count
    }
}

impl Drop for Relief {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(path = %self.shared.path.display(), "the cgroup's watcher panicked");
        }
    }
}

impl Shared {
    fn watch(&self, stopped: &Receiver<()>, patience: Duration) {
        let reclaimer = Reclaimer::new(&self.path)
            .inspect_err(|error| tracing::warn!(%error, "a timer to end reclaim with"))
            .ok();
        let is_over = |time| stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
        let mut stalled_since = None;
        let mut has_lent = false;
        while !is_over(LOOK_PERIOD) {
            if self.is_stalled() {
                let since = *stalled_since.get_or_insert_with(Instant::now);
                if since.elapsed() > patience {
                    self.give_up();
                    return;
                }
                self.lend();
                has_lent = true;
                if is_over(LENT_FOR) {
                    return;
                }
            } else {
                stalled_since = None;
            }
            // Reclaim may find too little at first: then the next look tries again.
            has_lent = has_lent && self.take_back().is_err();
            if let Some(reclaimer) = &reclaimer {
                self.press(reclaimer);
            }
        }
    }

    fn is_stalled(&self) -> bool {
        let told = fs::read_to_string(self.path.join(OOM_CONTROL));
        told.is_ok_and(|told| told.lines().any(|line| line == "under_oom 1"))
    }

    fn lend(&self) {
        let mut state = self.state();
        state.count += 1;
        let lent = state.kernel_bytes().saturating_add(LENT_BYTES);
        if let Err(error) = self.write_limit(lent) {
            tracing::warn!(%error, path = %self.path.display(), "lend memory to a stalled cgroup");
        }
    }

    fn take_back(&self) -> io::Result<()> {
        let state = self.state();
        self.write_limit(state.kernel_bytes())
    }

    /// Reclaims what is used beyond what was asked for, or as much of it as can be now.
    fn press(&self, reclaimer: &Reclaimer) {
        let state = self.state();
        if let Err(error) = reclaimer.press(state.limit_bytes, state.kernel_bytes()) {
            tracing::warn!(%error, path = %self.path.display(), "reclaim of a cgroup");
        }
    }

    fn give_up(&self) {
        tracing::warn!(
            path = %self.path.display(),
            "out of memory for too long: the kernel may kill a process of this cgroup"
        );
        if let Err(error) = fs::write(self.path.join(OOM_CONTROL), "0") {
            tracing::warn!(%error, path = %self.path.display(), "switch the kernel's killer on");
        }
    }

    fn write_limit(&self, limit_bytes: u64) -> io::Result<()> {
        fs::write(self.path.join(super::V1_LIMIT), limit_bytes.to_string())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Two numbers that are right one by one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Switches the kernel's killer, and tells whether a process waits for memory.
pub(super) const OOM_CONTROL: &str = "memory.oom_control";
/// What a program may have for a moment beyond what was asked for: what it brings in from swap, at
/// 500 MB/s, while the watcher waits for a processor for some 100 ms.
const SLACK_BYTES: u64 = 64 << 20;
/// Small beside any limit, and more than the kernel reclaims at once.
const LENT_BYTES: u64 = 8 << 20;
/// About what a burst of swapping takes on a disk.
const LENT_FOR: Duration = Duration::from_millis(100);
/// How long a stall may go unseen; a look is a read of two small files.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// Arbitrary: so long no disk takes to swap out [`LENT_BYTES`].
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::swap::cgroup::{MemoryCgroup, Version};

    /// A cgroup from which nothing can be reclaimed; `None`, said aloud, where there is none.
    fn group(name: &str) -> Option<MemoryCgroup> {
        let name = format!("cenote-relief-{}-{name}", std::process::id());
        let group = match MemoryCgroup::create(&name, LIMIT_BYTES) {
            Ok(group) if group.version == Version::V1 => group,
            Ok(_) => {
                println!("skipped: a stalled memory cgroup: only version 1 has such");
                return None;
            }
            Err(error) => {
                println!("skipped: a stalled memory cgroup: {error}");
                return None;
            }
        };
        fs::write(group.path.join("memory.swappiness"), "0").unwrap();
        Some(group)
    }

    /// A program that fills more than the limit at once, by its own stores: a system call that
    /// does so fails in place of waiting.
    fn fill(group: &MemoryCgroup) -> Child {
        let script = format!(
            "echo 0 > {}; exec perl -e '$x = \"x\" x (112 << 20)'",
            group.procs_path().display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        cenote_test_kit::wait_until(is_so, || what.into());
    }

    #[test]
    fn a_program_that_finds_nothing_to_reclaim_waits_and_is_not_killed() {
        let Some(group) = group("waits") else { return };
        let mut program = fill(&group);
        wait_until("memory was lent", || group.relief_count() > 0);
        assert!(program.try_wait().unwrap().is_none(), "it waits");

        group.set_limit(LIMIT_BYTES * 8).unwrap();

        assert!(program.wait().unwrap().success());
        assert_eq!(group.oom_kills().unwrap(), 0);
        wait_until("what was lent is taken back", || {
            let limit = fs::read_to_string(group.path.join(super::super::V1_LIMIT));
            limit.unwrap().trim() == (LIMIT_BYTES * 8 + SLACK_BYTES).to_string()
        });
    }

    #[test]
    fn what_is_used_beyond_the_limit_is_reclaimed_and_the_kernels_limit_stays_above() {
        let Some(group) = group("pressed") else {
            return;
        };
        // Pages of a file: what can be reclaimed at any time.
        let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let script = format!(
            "echo 0 > {}; exec dd if=/dev/zero of={} bs=1M count=192",
            group.procs_path().display(),
            file.path().display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stderr(Stdio::null());
        let program = std::thread::spawn(move || command.status().unwrap());
        let mut limits: BTreeSet<u64> = BTreeSet::new();
        // Once at least, however fast the program is.
        loop {
            let limit = fs::read_to_string(group.path.join(super::super::V1_LIMIT)).unwrap();
            limits.insert(limit.trim().parse().unwrap());
            if program.is_finished() {
                break;
            }
        }
        let is_written = program.join().unwrap().success();
        // Where a disk is slow its pages cannot be reclaimed, and memory is lent; a write may fail before it is.
        let has_stalled = group.relief_count() > 0;
        assert!(is_written || has_stalled, "a write failed without a stall");
        wait_until("the usage is within what was asked for", || {
            group.usage_bytes().unwrap() <= LIMIT_BYTES
        });
        let kernel_limit = LIMIT_BYTES + SLACK_BYTES;
        assert!(
            limits.iter().all(|&limit| limit >= kernel_limit),
            "{limits:?}"
        );
        if !has_stalled {
            assert_eq!(limits, BTreeSet::from([kernel_limit]), "at any time");
        }
    }

    #[test]
    fn a_program_that_needs_more_than_there_is_is_killed_in_the_end() {
        let Some(mut group) = group("killed") else {
            return;
        };
        group.relief = None;
        let patience = Duration::from_millis(300);
        group.relief = Some(Relief::start_with(&group.path, LIMIT_BYTES, patience).unwrap());

        let ended = fill(&group).wait().unwrap();

        assert!(!ended.success());
        assert_eq!(group.oom_kills().unwrap(), 1);
    }

    const LIMIT_BYTES: u64 = 32 << 20;
}
