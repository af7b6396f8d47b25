//! The calls of libc that map memory and unmap it, in front of libc's own.
//!
//! Taken are mappings that are big, private, anonymous, readable and writable, anywhere. All others
//! go to the kernel. A call on a range that is partly the arena's is done in parts.

use core::ops::Range;

use crate::arena::{self, BIG};
use crate::settings::settings;
use crate::wire::PAGE;
use crate::{forks, sys};

pub const FAILED: usize = usize::MAX;

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

pub fn set_errno(errno: i32) {
    // SAFETY: libc's place for this thread.
    unsafe { *__errno_location() = errno };
}

/// What the kernel said, as libc says it.
pub fn told(result: isize) -> usize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return FAILED;
    }
    result as usize
}

pub fn failed(errno: i32) -> usize {
    set_errno(errno);
    FAILED
}

pub fn end_of(addr: usize, len: usize) -> Option<usize> {
    let len = len.checked_add(PAGE - 1)? & !(PAGE - 1);
    addr.checked_add(len)
}

#[unsafe(no_mangle)]
extern "C" fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, at: i64) -> usize {
    forks::register();
    let (prot, mut flags) = (prot as usize, flags as u32 as usize);
    let is_unmapped = flags & sys::MAP_FIXED_NOREPLACE != 0 && take_unmapped(addr, len);
    if is_unmapped {
        flags = flags & !sys::MAP_FIXED_NOREPLACE | sys::MAP_FIXED;
    }
    let kernel = || told(sys::mmap(addr, len, prot, flags, fd, at as usize));
    if flags & sys::MAP_FIXED != 0 && flags & sys::MAP_FIXED_NOREPLACE == 0 {
        let elsewhere = flags & !(sys::MAP_FIXED | sys::MAP_POPULATE);
        let trial = || try_mapping(len, prot, elsewhere, fd, at as usize);
        let Some(end) = end_of(addr, len) else {
            return kernel();
        };
        let place = replace(addr..end, prot, flags, trial, kernel);
        if is_unmapped && place == FAILED {
            release(addr..end);
        }
        return place;
    }
    let plain = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let is_plain = flags & !sys::MAP_NORESERVE == plain && prot == sys::PROT_RW;
    if !is_plain || len < BIG {
        return kernel();
    }
    let taken = arena::wanted(len).and_then(|mut state| state.on().take(len, PAGE));
    taken.unwrap_or_else(kernel)
}

#[unsafe(no_mangle)]
extern "C" fn mmap64(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, at: i64) -> usize {
    mmap(addr, len, prot, flags, fd, at)
}

/// Takes a range that the program has unmapped. The kernel would not map anything there: for it
/// the arena is there.
fn take_unmapped(addr: usize, len: usize) -> bool {
    let end = end_of(addr, len).filter(|_| len > 0 && addr.is_multiple_of(PAGE));
    let Some(end) = end else {
        return false;
    };
    let ours = arena::part(addr, end - addr);
    let is_inside = ours == (addr..end);
    is_inside && arena::there().is_some_and(|mut state| state.on().claim_unmapped(ours))
}

fn release(range: Range<usize>) {
    if let Some(mut state) = arena::there() {
        state.on().release(range);
    }
}

/// A mapping in place of what is there.
fn replace(
    range: Range<usize>,
    prot: usize,
    flags: usize,
    trial: impl FnOnce() -> isize,
    kernel: impl FnOnce() -> usize,
) -> usize {
    let ours = arena::part(range.start, range.len());
    let heap = arena::heap_part(range.start, range.len());
    if ours.is_empty() && heap.is_empty() {
        return kernel();
    }
    let Some(mut state) = arena::there().filter(|_| heap.is_empty()) else {
        // Nobody maps over the heap of malloc, and lives.
        return failed(sys::ENOMEM);
    };
    let arena = state.on();
    let plain = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let is_plain = flags & (plain | sys::MAP_SHARED_BITS) == plain;
    if is_plain && ours == range && arena.claim(ours.clone()) {
        let result = sys::protect_as_new(ours.start, ours.len(), prot);
        if result < 0 {
            return told(result);
        }
        arena.clear(ours);
        return range.start;
    }
    if range.start.is_multiple_of(PAGE) {
        let refused = trial();
        if refused < 0 {
            return told(refused);
        }
        arena.cede(ours);
    }
    kernel()
}

/// Makes a mapping anywhere, and takes it away again: what the kernel says of it. A mapping that it
/// refuses leaves what is in its place as it is, so this is asked before that is given up. Lack of
/// room is no refusal: in its place there may be enough.
fn try_mapping(len: usize, prot: usize, flags: usize, fd: i32, at: usize) -> isize {
    let place = sys::mmap(0, len, prot, flags, fd, at);
    if place >= 0 {
        sys::munmap(place as usize, len);
    }
    if place == -sys::ENOMEM as isize {
        0
    } else {
        place
    }
}

#[unsafe(no_mangle)]
extern "C" fn munmap(addr: usize, len: usize) -> i32 {
    let end = end_of(addr, len).filter(|_| len > 0 && addr.is_multiple_of(PAGE));
    let Some(end) = end else {
        return told(sys::munmap(addr, len)) as i32;
    };
    let ours = arena::part(addr, end - addr);
    if ours.is_empty() {
        if !arena::heap_part(addr, end - addr).is_empty() {
            return failed(sys::EINVAL) as i32;
        }
        return told(sys::munmap(addr, len)) as i32;
    }
    release(ours.clone());
    for rest in [addr..ours.start, ours.end..end] {
        if !rest.is_empty() {
            sys::munmap(rest.start, rest.len());
        }
    }
    0
}

/// A segment of shared memory would be in the arena unseen, and `shmdt` would leave addresses of it
/// to the kernel.
#[unsafe(no_mangle)]
extern "C" fn shmat(segment: i32, addr: usize, flags: i32) -> usize {
    const SHM_REMAP: i32 = 0o40_000;
    // Who may not ask for the length may not have it either.
    if flags & SHM_REMAP != 0
        && let Some(len) = sys::segment_len(segment)
    {
        // It may be rounded down, to a page.
        let start = addr & !(PAGE - 1);
        let parts = [arena::part(start, len), arena::heap_part(start, len)];
        if parts.iter().any(|part| !part.is_empty()) {
            return failed(sys::EINVAL);
        }
    }
    told(sys::attach(segment, addr, flags as usize))
}

/// A page of the arena is in memory when it is needed, which is what a lock is for; more is not
/// promised.
#[unsafe(no_mangle)]
extern "C" fn mlock(addr: usize, len: usize) -> i32 {
    lock_pages(addr, len, 149, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mlock2(addr: usize, len: usize, flags: u32) -> i32 {
    lock_pages(addr, len, 325, flags as usize)
}

fn lock_pages(addr: usize, len: usize, call: usize, flags: usize) -> i32 {
    let parts = [arena::part(addr, len), arena::heap_part(addr, len)];
    if parts.iter().any(|part| !part.is_empty()) {
        return 0;
    }
    // SAFETY: the kernel checks the range.
    told(unsafe { sys::syscall6(call, [addr, len, flags, 0, 0, 0]) }) as i32
}

#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: i32) -> i32 {
    const MCL_FUTURE: i32 = 2;
    const MCL_ONFAULT: i32 = 4;
    // Later mappings would be filled at once: the arena, too.
    let fills = flags & (MCL_FUTURE | MCL_ONFAULT) == MCL_FUTURE;
    if arena::there().is_some() || fills && settings().is_some() {
        return failed(sys::ENOMEM) as i32;
    }
    const SYS_MLOCKALL: usize = 151;
    // SAFETY: it takes flags alone.
    told(unsafe { sys::syscall6(SYS_MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) }) as i32
}
