//! What the system lets this process do: limits, capabilities, system calls.
#![allow(unsafe_code, reason = "limits and probes have no safe wrapper in std")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use cenote_cli::failure::Failure;

/// Lock memory beyond the limit.
pub const CAP_IPC_LOCK: u32 = 14;
/// Turn swap on, mount.
pub const CAP_SYS_ADMIN: u32 = 21;
/// Exceed limits, lower one's own OOM score.
pub const CAP_SYS_RESOURCE: u32 = 24;

/// The effective capabilities of a process.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None where /proc does not say.
    pub fn of_this_process() -> Self {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self(Self::parse(&text).unwrap_or(0))
    }

    fn parse(status: &str) -> Option<u64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    }

    /// Whether the capability of this number is among them.
    pub fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }
}

/// A limit of this process.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Bytes of locked memory.
    MemoryLock,
    /// Descriptors.
    OpenFiles,
}

/// The limit in force; `None` means unlimited.
pub fn soft(limit: Limit) -> Option<u64> {
    finite(read(limit).rlim_cur)
}

/// How far the limit in force can be raised; `None` means unlimited.
pub fn hard(limit: Limit) -> Option<u64> {
    finite(read(limit).rlim_max)
}

/// Raises a limit of the process that started this one, a shell mostly, and of this one; `None`: to no
/// limit. What it was there.
///
/// # Errors
/// The system refuses: who is not root does not raise a hard limit.
pub fn raise_of_parent(limit: Limit, wanted: Option<u64>) -> io::Result<Option<u64>> {
    let resource = match limit {
        Limit::MemoryLock => libc::RLIMIT_MEMLOCK,
        Limit::OpenFiles => libc::RLIMIT_NOFILE,
    };
    let mut before = None;
    // SAFETY: it has no arguments and cannot fail.
    let parent = unsafe { libc::getppid() };
    // 0 is this process.
    for process in [parent, 0] {
        let mut is = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `is` is writable for the length of the call, and nothing is set.
        let read = unsafe { libc::prlimit(process, resource, std::ptr::null(), &raw mut is) };
        if read != 0 {
            return Err(io::Error::last_os_error());
        }
        before.get_or_insert(finite(is.rlim_cur));
        let wanted = wanted.unwrap_or(libc::RLIM_INFINITY);
        let next = libc::rlimit {
            rlim_cur: wanted.max(is.rlim_cur),
            rlim_max: wanted.max(is.rlim_max),
        };
        // SAFETY: `next` is readable for the length of the call, and the old value is not asked for.
        let set =
            unsafe { libc::prlimit(process, resource, &raw const next, std::ptr::null_mut()) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(before.flatten())
}

/// Refuses what would need more descriptors than this process may have; who listens or connects by
/// the fabric raises the limit in force as far as it may.
///
/// # Errors
/// It would.
pub fn check_open_files(who: &str, needed: u64) -> Result<(), Failure> {
    match hard(Limit::OpenFiles) {
        Some(limit) if limit < needed => Err(Failure::new(
            format!("{who} needs {needed} open files, but the limit is {limit}"),
            format!("ulimit -n {needed}, or LimitNOFILE= of the service"),
        )),
        _ => Ok(()),
    }
}

/// For people.
pub fn display(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |value| value.to_string())
}

fn finite(value: libc::rlim_t) -> Option<u64> {
    (value != libc::RLIM_INFINITY).then_some(value)
}

fn read(limit: Limit) -> libc::rlimit {
    let resource = match limit {
        Limit::MemoryLock => libc::RLIMIT_MEMLOCK,
        Limit::OpenFiles => libc::RLIMIT_NOFILE,
    };
    let mut value = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `value` is writable for the length of the call.
    let result = unsafe { libc::getrlimit(resource, &raw mut value) };
    assert_eq!(
        result, 0,
        "getrlimit fails only for a wrong number or pointer"
    );
    value
}

/// Whether a shared memory file can be made.
///
/// # Errors
/// The system's reason.
pub fn memfd_works() -> io::Result<()> {
    // SAFETY: the name is a zero-terminated literal.
    let fd = unsafe { libc::memfd_create(c"cenote-doctor".as_ptr(), libc::MFD_CLOEXEC) };
    close(fd)
}

/// Whether a process can be named by a descriptor.
///
/// # Errors
/// The system's reason.
pub fn pidfd_works() -> io::Result<()> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    close(i32::try_from(fd).unwrap_or(-1))
}

fn close(fd: i32) -> io::Result<()> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just been given this descriptor and gives it up.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_by_their_bit() {
        let capabilities =
            Capabilities(Capabilities::parse("CapPrm:\tff\nCapEff:\t0000000001200000\n").unwrap());
        assert!(capabilities.has(CAP_SYS_ADMIN) && capabilities.has(CAP_SYS_RESOURCE));
        assert!(!capabilities.has(CAP_IPC_LOCK));
        assert_eq!(Capabilities::parse("CapPrm:\tff\n"), None);
    }

    #[test]
    fn a_soft_limit_is_never_above_the_hard_one() {
        for limit in [Limit::MemoryLock, Limit::OpenFiles] {
            assert!(soft(limit).unwrap_or(u64::MAX) <= hard(limit).unwrap_or(u64::MAX));
        }
    }
}
