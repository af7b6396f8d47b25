//! What would deadlock or lose data, found before swap is on.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::cgroup;

/// Why swap is not turned on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Memory may not be locked, so the server could need a page that only it can bring back.
    #[error(
        "memory cannot be locked ({source}; the limit is {limit_bytes} bytes): raise \
         RLIMIT_MEMLOCK or grant CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// What the system answered.
        source: io::Error,
        /// `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
    },
    /// The server would wait for memory that only it can free.
    #[error(
        "this process is inside the memory cgroup {} (limit {limit_bytes} bytes), which would swap \
         through it: start it outside the cgroup", path.display()
    )]
    LimitedCgroup {
        /// The cgroup with the limit.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// The device would pass the end of the disk.
    #[error("the device needs {wanted_bytes} bytes, the disk has {disk_bytes}")]
    LargerThanDisk {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes there are.
        disk_bytes: u64,
    },
    /// Not whole pages, or fewer than the ten that a swap area needs.
    #[error("{size_bytes} bytes: a swap area needs whole pages of 4096 bytes, at least 10")]
    BadSize {
        /// Bytes asked for.
        size_bytes: u64,
    },
    /// Lent memory of a host on this machine could itself be swapped out, through itself.
    #[error(
        "host {name} (pid {pid}) on this machine lends {shared_bytes} bytes with only \
         {locked_bytes} locked: its memory would be swapped out through itself"
    )]
    UnlockedHost {
        /// The host's name.
        name: String,
        /// Its process.
        pid: u32,
        /// Shared memory that it has in RAM.
        shared_bytes: u64,
        /// Memory that it has locked.
        locked_bytes: u64,
    },
}

/// Refuses a server inside a memory limit: it would serve its own reclaim.
///
/// # Errors
/// [`Refusal::LimitedCgroup`].
pub fn check_own_cgroup() -> Result<(), Refusal> {
    match cgroup::own_limit() {
        Some((limit_bytes, path)) => Err(Refusal::LimitedCgroup { path, limit_bytes }),
        None => Ok(()),
    }
}

/// Refuses hosts on this machine whose lent memory is not locked. Call it when the volume is
/// mapped, since a host locks a slab when it lends it. A process that is gone is no obstacle.
///
/// # Errors
/// [`Refusal::UnlockedHost`] for the first such host.
pub fn check_hosts_locked(hosts: &[(String, u32)]) -> Result<(), Refusal> {
    for (name, pid) in hosts {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let shared_bytes = status_bytes(&status, "RssShmem:");
        let locked_bytes = status_bytes(&status, "VmLck:");
        if locked_bytes < shared_bytes {
            return Err(Refusal::UnlockedHost {
                name: name.clone(),
                pid: *pid,
                shared_bytes,
                locked_bytes,
            });
        }
    }
    Ok(())
}

/// The size of the device on a disk of `disk_bytes`.
///
/// # Errors
/// [`Refusal::LargerThanDisk`] or [`Refusal::BadSize`].
pub fn check_size(wanted_bytes: Option<u64>, disk_bytes: u64) -> Result<u64, Refusal> {
    let size_bytes = wanted_bytes.unwrap_or(disk_bytes);
    if size_bytes > disk_bytes {
        return Err(Refusal::LargerThanDisk {
            wanted_bytes: size_bytes,
            disk_bytes,
        });
    }
    if !size_bytes.is_multiple_of(4096) || size_bytes < 10 * 4096 {
        return Err(Refusal::BadSize { size_bytes });
    }
    Ok(size_bytes)
}

/// A `kB` line of /proc/PID/status, in bytes; 0 when it is not there.
fn status_bytes(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_device_are_refused() {
        assert_eq!(check_size(None, 1 << 20).unwrap(), 1 << 20);
        assert_eq!(check_size(Some(40960), 1 << 20).unwrap(), 40960);
        let larger = check_size(Some(2 << 20), 1 << 20).unwrap_err();
        assert!(matches!(larger, Refusal::LargerThanDisk { .. }));
        for bad in [0, 4096, 36864, 1_000_000] {
            let refusal = check_size(Some(bad), 1 << 20).unwrap_err();
            assert!(matches!(refusal, Refusal::BadSize { .. }), "{bad}");
        }
    }

    #[test]
    fn status_lines_are_read_in_bytes() {
        let status = "Name:\tx\nVmLck:\t     120 kB\nRssShmem:\t     4 kB\n";
        assert_eq!(status_bytes(status, "VmLck:"), 120 * 1024);
        assert_eq!(status_bytes(status, "RssShmem:"), 4096);
        assert_eq!(status_bytes(status, "RssFile:"), 0);
    }

    #[test]
    fn a_process_without_locked_shared_memory_is_refused_once_it_has_some() {
        // SAFETY: an anonymous shared mapping of one page, written inside its bounds and unmapped.
        let page = unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            page.cast::<u8>().write_volatile(1);
            page
        };
        let own = [("own".to_owned(), std::process::id())];
        let refusal = check_hosts_locked(&own);
        // SAFETY: the mapping made above, still live.
        unsafe { libc::munmap(page, 4096) };
        assert!(matches!(refusal, Err(Refusal::UnlockedHost { .. })));
        assert!(check_hosts_locked(&[("gone".to_owned(), u32::MAX)]).is_ok());
    }
}
