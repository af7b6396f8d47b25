//! What a process on the swap path does to itself before it serves.
//!
//! Called before the first thread is started: the marks are inherited by later threads, not given
//! to earlier ones. Without locked memory the server could need the pages that only it can bring
//! back, so that refusal is an error; the other measures lower risks and are warnings.

use std::fs;
use std::io;

use super::{Error, Result, refuse::Refusal};

/// A measure that the system refused; serving goes on without it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Warning {
    /// What was asked for, and what is riskier without it.
    pub text: String,
}

/// Locks all memory of this process, present and future, marks it as part of the I/O path,
/// hides it from the OOM killer and puts it ahead of other processes.
///
/// # Errors
/// [`Refusal::LockedMemory`] when memory may not be locked.
pub fn harden() -> Result<Vec<Warning>> {
    // ONFAULT: locking a sparse mapping without it would allocate all of it.
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // SAFETY: mlockall takes flags only and touches no memory of ours.
    if unsafe { libc::mlockall(flags) } != 0 {
        return Err(Error::Refused(Refusal::LockedMemory {
            source: io::Error::last_os_error(),
            limit_bytes: memlock_limit_bytes(),
        }));
    }
    let mut warnings = Vec::new();
    // SAFETY: PR_SET_IO_FLUSHER takes integers only; the unused arguments must be zero.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } != 0 {
        warnings.push(Warning {
            text: format!(
                "PR_SET_IO_FLUSHER refused ({}): under extreme memory pressure the server may \
                 wait for its own swap-out; CAP_SYS_RESOURCE allows it",
                io::Error::last_os_error()
            ),
        });
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-1000") {
        warnings.push(Warning {
            text: format!(
                "oom_score_adj -1000 refused ({error}): the OOM killer may choose the server; \
                 CAP_SYS_RESOURCE allows it"
            ),
        });
    }
    // Nobody else can free the memory that waits for this process: where it got no turn on a busy
    // machine, the kernel took a cgroup for stuck and killed the program in it (tried here).
    // SAFETY: setpriority takes integers only.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } != 0 {
        warnings.push(Warning {
            text: format!(
                "nice -20 refused ({}): on a busy machine pages wait longer; CAP_SYS_NICE allows it",
                io::Error::last_os_error()
            ),
        });
    }
    Ok(warnings)
}

/// Undoes the memory lock, for a process that serves no longer.
pub fn release() {
    // SAFETY: munlockall has no arguments and touches no memory of ours.
    unsafe { libc::munlockall() };
}

fn memlock_limit_bytes() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live rlimit that the call fills.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}

/// From linux/prctl.h; Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardened_process_has_its_memory_locked() {
        // In a child, because the lock would stay on the other tests of this process.
        // SAFETY: fork copies the process; the child ends in _exit below.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: mlockall and prctl take integers; _exit does not return. The child calls
            // the system directly, as nothing may allocate after fork beside other threads.
            unsafe {
                let flags = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
                libc::_exit(i32::from(libc::mlockall(flags) != 0));
            }
        }
        let mut status = 0;
        // SAFETY: `pid` is our child and `status` is live.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        let allowed = libc::WEXITSTATUS(status) == 0;
        if !allowed {
            assert!(
                memlock_limit_bytes() < u64::MAX,
                "no limit, yet mlockall was refused"
            );
        }
    }
}
