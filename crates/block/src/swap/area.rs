//! A swap area: its header, turning it on and off, and what the kernel says of it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::Discard;

/// The first page of a swap area of `size_bytes`, as `mkswap` would write it for 4 KiB pages in
/// this machine's byte order.
///
/// # Panics
/// If the area has no second page, or more pages than a header can state.
#[must_use]
pub fn header(size_bytes: u64, uuid: [u8; 16]) -> [u8; PAGE_BYTES] {
    let page_count = size_bytes / PAGE_BYTES as u64;
    assert!(
        page_count >= 2,
        "a swap area needs a page beside its header"
    );
    let last_page = u32::try_from(page_count - 1).expect("a swap area of at most 16 TiB");
    let mut page = [0; PAGE_BYTES];
    // The first 1024 bytes are left to boot blocks. Native order: the kernel reads its own.
    page[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[1036..1052].copy_from_slice(&uuid);
    page[1052..1058].copy_from_slice(b"cenote");
    page[PAGE_BYTES - 10..].copy_from_slice(b"SWAPSPACE2");
    page
}

/// `swapon(2)`.
///
/// # Errors
/// As the kernel says; `EPERM` without CAP_SYS_ADMIN, `EINVAL` for a bad header.
pub fn on(path: &Path, priority: Option<u16>, discard: Discard) -> io::Result<()> {
    let mut flags = match discard {
        Discard::None => 0,
        Discard::Once => SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_ONCE,
        Discard::Pages => SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES,
    };
    if let Some(priority) = priority {
        flags |= SWAP_FLAG_PREFER | (libc::c_int::from(priority) & SWAP_FLAG_PRIO_MASK);
    }
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: `path` is a live C string for the call.
    if unsafe { libc::swapon(path.as_ptr(), flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `swapoff(2)` in a child process, with `watch(bytes still swapped out)` now and then.
///
/// A child, because the kernel makes the caller of `swapoff` the first victim of the OOM killer
/// while it runs; were that the server, every page would be lost. Its success says nothing about
/// pages that could not be read: the caller counts those.
///
/// # Errors
/// As the kernel says; `ENOMEM` when the pages do not fit into memory, also when the child was
/// killed. Swap is still on then.
pub fn off(path: &Path, mut watch: impl FnMut(u64)) -> io::Result<()> {
    off_while(path, |left_bytes| {
        watch(left_bytes);
        true
    })
}

/// As [`off`], as long as `goes_on(bytes still swapped out)` says so. When it does not, swap
/// stays on, with the pages that have not come back.
///
/// # Errors
/// As [`off`]; `Interrupted` when it did not go on. `Ok` where it was through before it heard of that.
pub fn off_while(path: &Path, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: the child only makes system calls (close_range, swapoff, _exit), as it must beside
    // other threads; `name` lives in its copy of the memory.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        // SAFETY: as above. The descriptors go first: were the server killed now, a copy of the
        // FUSE channel here would keep the kernel waiting for an answer for ever.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
            let failed = libc::swapoff(name.as_ptr()) != 0;
            libc::_exit(if failed { *libc::__errno_location() } else { 0 });
        }
    }
    let mut is_stopped = false;
    let status = loop {
        let mut status = 0;
        // SAFETY: `pid` is our child, not yet waited for; `status` is live.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if ended == pid {
            break status;
        }
        if ended < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return Err(io::Error::last_os_error());
        }
        if let Some(bytes) = used_bytes(path)
            && !is_stopped
            && !goes_on(bytes)
        {
            is_stopped = true;
            // The kernel looks for signals between one program's pages and those of the next, and
            // puts the area back in use.
            // SAFETY: kill takes no pointers; `pid` is our child, not yet waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(WATCH_PERIOD);
    };
    if !libc::WIFEXITED(status) {
        // The signal came behind the last page: the kernel did not look any more, and swap is off.
        if is_off(path) {
            return Ok(());
        }
        if is_stopped {
            return Err(io::ErrorKind::Interrupted.into());
        }
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Whether the kernel says that `path` is no swap area that is on.
fn is_off(path: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps");
    swaps.is_ok_and(|swaps| used_in(&swaps, path).is_none())
}

/// Bytes swapped out to `path`; `None` when it is not a swap area that is on, or the kernel has
/// no swap to tell of.
#[must_use]
pub fn used_bytes(path: &Path) -> Option<u64> {
    used_in(&fs::read_to_string("/proc/swaps").ok()?, path)
}

/// The `Used` column of /proc/swaps, in bytes.
fn used_in(swaps: &str, path: &Path) -> Option<u64> {
    swaps
        .lines()
        .skip(1)
        .find_map(|line| {
            let mut fields = line.split_whitespace();
            (Path::new(fields.next()?) == path).then(|| fields.nth(2)?.parse::<u64>().ok())?
        })
        .map(|kib| kib * 1024)
}

/// Swap works in the machine's pages; 4096 bytes on every machine this runs on.
pub const PAGE_BYTES: usize = 4096;

/// How often a `swapoff` that runs is looked at; arbitrary.
const WATCH_PERIOD: Duration = Duration::from_millis(20);

/// From linux/swap.h.
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_PRIO_MASK: libc::c_int = 0x7fff;
const SWAP_FLAG_DISCARD: libc::c_int = 0x1_0000;
const SWAP_FLAG_DISCARD_ONCE: libc::c_int = 0x2_0000;
const SWAP_FLAG_DISCARD_PAGES: libc::c_int = 0x4_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_header_is_the_one_that_mkswap_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("area");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let uuid = "6f8d0d3c-0f6b-4a0e-9a57-0c51a1b7f001";
        let made = Command::new("mkswap")
            .args(["-q", "-p", "4096", "-L", "cenote", "-U", uuid])
            .arg(&path)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: mkswap (util-linux) is not here");
            return;
        }
        let theirs = fs::read(&path).unwrap();
        let mut bytes = [0; 16];
        let digits = uuid.replace('-', "");
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap();
        }
        assert_eq!(&header(1 << 20, bytes)[..], &theirs[..PAGE_BYTES]);
    }

    #[test]
    fn the_used_column_is_found_by_path() {
        let swaps = "Filename Type Size Used Priority\n/dev/loop1 partition 1020 8 -2\n\
                     /dev/loop10 partition 1020 16 -3\n";
        assert_eq!(used_in(swaps, Path::new("/dev/loop10")), Some(16384));
        assert_eq!(used_in(swaps, Path::new("/dev/loop1")), Some(8192));
        assert_eq!(used_in(swaps, Path::new("/dev/loop")), None);
    }
}
