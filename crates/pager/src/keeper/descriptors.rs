//! Whether descriptors that a program sends are what it says, and how many address spaces there are
//! descriptors for.
//!
//! A handler asks the kernel at them whenever a page moves. A file of another kind may be served by
//! a process that answers when it likes, and all programs of the handler would wait for that.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The kernel's name of a file: its path, or what kind it is.
fn name(fd: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}

/// Whether it is a userfaultfd.
pub fn is_userfaultfd(fd: &OwnedFd) -> bool {
    name(fd).is_some_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Whether it is the memory of a process. Where `/proc` is mounted is the program's business.
pub fn is_memory(fd: &OwnedFd) -> bool {
    is_of_proc(fd)
        && name(fd).is_some_and(|name| name.file_name().is_some_and(|name| name == "mem"))
}

fn is_of_proc(fd: &OwnedFd) -> bool {
    // SAFETY: the structure is numbers, for which 0 is right.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is valid for the call.
    let told = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) };
    told == 0 && system.f_type == libc::PROC_SUPER_MAGIC
}

/// Descriptors of an address space at each handler: its userfaultfd, its memory, and its agent.
const OF_SPACE: u64 = 3;

/// Of those that this process may have, address spaces take one in so many. The others are for
/// hosts, and for children that are not served: what these have is kept until they are dead.
const PART: u64 = 2;

/// Descriptors that this process has to be allowed for so many address spaces.
pub fn needed(spaces: usize, handlers: usize) -> u64 {
    PART * OF_SPACE * handlers as u64 * spaces as u64
}

/// Address spaces that there are descriptors for.
pub fn spaces_max(handlers: usize) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is valid for the call.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    match told {
        0 => spaces_within(limit.rlim_cur, handlers),
        _ => usize::MAX,
    }
}

fn spaces_within(descriptors: u64, handlers: usize) -> usize {
    let spaces = descriptors / needed(1, handlers);
    usize::try_from(spaces).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        File::open(path).expect("it is there").into()
    }

    #[test]
    fn memory_is_told_from_other_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("mem");
        std::fs::write(&file, "").expect("written");
        assert!(is_memory(&open("/proc/self/mem".as_ref())));
        for other in [&file, folder.path(), "/proc/self/maps".as_ref()] {
            assert!(!is_memory(&open(other)), "{}", other.display());
        }
    }

    #[test]
    fn address_spaces_leave_half_of_the_descriptors() {
        assert_eq!(spaces_within(1024, 1), 170);
        assert_eq!(spaces_within(1024, 4), 42);
        for (spaces, handlers) in [(1, 1), (16, 8), (1024, 4)] {
            let needed = needed(spaces, handlers);
            assert_eq!(spaces_within(needed, handlers), spaces);
            assert_eq!(spaces_within(needed - 1, handlers), spaces - 1);
        }
    }

    #[test]
    fn a_userfaultfd_is_told_from_other_files() {
        assert!(!is_userfaultfd(&open("/proc/self/mem".as_ref())));
        assert!(!is_userfaultfd(&open("/dev/null".as_ref())));
        match crate::memory::descriptor() {
            Ok(fd) => assert!(is_userfaultfd(&fd)),
            Err(error) => println!("skipped: a userfaultfd: {error}"),
        }
    }
}
