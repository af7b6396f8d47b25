//! The calls of libc on ranges of memory, in front of libc's own.
//!
//! Taken are mappings that are big, private, anonymous, readable and writable, anywhere. All others
//! go to the kernel. A call on a range that is partly the arena's is done in parts.

use core::ops::Range;

use crate::arena::{self, Arena, BIG};
use crate::settings::settings;
use crate::wire::PAGE;
use crate::{forks, sys};

const FAILED: usize = usize::MAX;
const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

pub fn set_errno(errno: i32) {
    // SAFETY: libc's place for this thread.
    unsafe { *__errno_location() = errno };
}

/// What the kernel said, as libc says it.
fn told(result: isize) -> usize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return FAILED;
    }
    result as usize
}

fn failed(errno: i32) -> usize {
    set_errno(errno);
    FAILED
}

fn end_of(addr: usize, len: usize) -> Option<usize> {
    let len = len.checked_add(PAGE - 1)? & !(PAGE - 1);
    addr.checked_add(len)
}

#[unsafe(no_mangle)]
extern "C" fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, at: i64) -> usize {
    forks::register();
    let (prot, flags) = (prot as usize, flags as u32 as usize);
    let kernel = || told(sys::mmap(addr, len, prot, flags, fd, at as usize));
    if flags & sys::MAP_FIXED != 0 && flags & sys::MAP_FIXED_NOREPLACE != sys::MAP_FIXED_NOREPLACE {
        let elsewhere = flags & !(sys::MAP_FIXED | sys::MAP_POPULATE);
        let trial = || try_mapping(len, prot, elsewhere, fd, at as usize);
        return match end_of(addr, len) {
            Some(end) => replace(addr..end, prot, flags, trial, kernel),
            None => kernel(),
        };
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
    if is_plain && ours == range && arena.is_ours(ours.clone()) {
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
    if let Some(mut state) = arena::there() {
        state.on().release(ours.clone());
    }
    for rest in [addr..ours.start, ours.end..end] {
        if !rest.is_empty() {
            sys::munmap(rest.start, rest.len());
        }
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn madvise(addr: usize, len: usize, advice: i32) -> i32 {
    const DUMPS: [i32; 2] = [16, 17];
    const POPULATE: [i32; 2] = [22, 23];
    const HINTS: [i32; 9] = [0, 1, 2, 3, 14, 15, 20, 21, 25];
    let kernel = |range: Range<usize>| match range.is_empty() {
        true => 0,
        false => told(sys::madvise(range.start, range.len(), advice as usize)) as i32,
    };
    let end = end_of(addr, len).filter(|_| addr.is_multiple_of(PAGE));
    let Some(end) = end else {
        return kernel(addr..addr.wrapping_add(len).max(addr));
    };
    let ours = arena::part(addr, end - addr);
    let heap = arena::heap_part(addr, end - addr);
    if ours.is_empty() && heap.is_empty() || DUMPS.contains(&advice) || POPULATE.contains(&advice) {
        return kernel(addr..end);
    }
    if HINTS.contains(&advice) {
        return 0;
    }
    let forgets = [
        sys::MADV_DONTNEED,
        sys::MADV_FREE,
        sys::MADV_DONTNEED_LOCKED,
    ];
    if !forgets.contains(&(advice as usize)) {
        // What it would do to pages that are elsewhere is not known.
        return failed(sys::EINVAL) as i32;
    }
    let Some(mut state) = arena::there() else {
        return 0;
    };
    let part = match ours.is_empty() {
        true => {
            state.on().clear_heap(heap.clone());
            heap
        }
        false => {
            state.on().clear(ours.clone());
            ours
        }
    };
    drop(state);
    let (before, after) = (
        kernel(addr..part.start.max(addr)),
        kernel(part.end..end.max(part.end)),
    );
    if before != 0 { before } else { after }
}

#[unsafe(no_mangle)]
extern "C" fn posix_madvise(addr: usize, len: usize, advice: i32) -> i32 {
    // It promises nothing, and POSIX_MADV_DONTNEED does nothing in libc either.
    let _ = (addr, len, advice);
    0
}

/// `to` is there with MREMAP_FIXED alone, as the kernel's own call has it.
#[unsafe(no_mangle)]
extern "C" fn mremap(addr: usize, old: usize, new: usize, flags: i32, to: usize) -> usize {
    let flags = flags as usize;
    let kernel = || told(sys::mremap(addr, old, new, flags, to));
    let (Some(end), Some(new_end)) = (end_of(addr, old), end_of(addr, new)) else {
        return kernel();
    };
    let fixed = match flags & MREMAP_FIXED {
        0 => None,
        _ => Some(to),
    };
    let ours = arena::part(addr, end - addr);
    let target = fixed.map_or(0..0, |to| arena::part(to, new_end - addr));
    if ours.is_empty() && target.is_empty() {
        return kernel();
    }
    let Some(mut state) = arena::there() else {
        return kernel();
    };
    let arena = state.on();
    if ours.is_empty() {
        // What the kernel refuses leaves the target as it is.
        let may_move = may_move(addr..end, to..to.saturating_add(new_end - addr), flags);
        if may_move {
            arena.cede(target.clone());
        }
        let result = kernel();
        // Linux 6.17 moves several mappings at once.
        if !may_move && result != FAILED {
            arena.cede(target);
        }
        return result;
    }
    let is_whole = addr.is_multiple_of(PAGE) && old > 0 && new > 0 && ours == (addr..end);
    if !is_whole || !arena.is_ours(ours.clone()) {
        return failed(sys::EINVAL);
    }
    if fixed.is_none() && flags & MREMAP_DONTUNMAP == 0 {
        if new_end <= end {
            if new_end < end {
                arena.release(new_end..end);
            }
            return addr;
        }
        if arena.grow(ours.clone(), new_end - addr) {
            return addr;
        }
    }
    if flags & MREMAP_MAYMOVE == 0 {
        return failed(sys::ENOMEM);
    }
    let new_len = new_end - addr;
    let place = match fixed {
        Some(to) => place_at(arena, to, new_len, target, &ours),
        None => arena
            .take(new_len, PAGE)
            .or_else(|| kernel_memory(0, new_len, 0)),
    };
    let Some(place) = place else {
        return failed(sys::ENOMEM);
    };
    drop(state);
    move_bytes(ours, place, new_len, flags & MREMAP_DONTUNMAP != 0)
}

/// Whether the kernel would move a mapping that is not the arena's over a range.
fn may_move(source: Range<usize>, target: Range<usize>, flags: usize) -> bool {
    const ADDRESSES: usize = 1 << 47;
    let known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    let is_apart = source.end <= target.start || target.end <= source.start;
    let are_pages = source.start.is_multiple_of(PAGE) && target.start.is_multiple_of(PAGE);
    let is_alike = flags & MREMAP_DONTUNMAP == 0 || source.len() == target.len();
    flags & !known == 0
        && flags & MREMAP_MAYMOVE != 0
        && is_apart
        && are_pages
        && is_alike
        && !target.is_empty()
        && target.end <= ADDRESSES
        // To stay where it is, as long as it is: the kernel looks whether it is a mapping.
        && (source.is_empty() || sys::mremap(source.start, source.len(), source.len(), 0, 0) >= 0)
}

/// Memory at an address of the program's choice.
fn place_at(
    arena: &mut Arena,
    to: usize,
    len: usize,
    target: Range<usize>,
    source: &Range<usize>,
) -> Option<usize> {
    let range = to..to.checked_add(len)?;
    let overlaps = range.start < source.end && source.start < range.end;
    if overlaps || !to.is_multiple_of(PAGE) {
        return None;
    }
    if target == range && arena.is_ours(target.clone()) {
        arena.clear(target);
        sys::protect_as_new(to, len, sys::PROT_RW);
        return Some(to);
    }
    if !target.is_empty() {
        // Where there is no room for it the target stays as it is.
        sys::munmap(kernel_memory(0, len, 0)?, len);
        arena.cede(target);
    }
    kernel_memory(to, len, sys::MAP_FIXED)
}

fn kernel_memory(at: usize, len: usize, flags: usize) -> Option<usize> {
    let flags = flags | sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
    let place = sys::mmap(at, len, sys::PROT_RW, flags, -1, 0);
    (place > 0).then_some(place as usize)
}

fn move_bytes(source: Range<usize>, place: usize, len: usize, keep: bool) -> usize {
    sys::protect_as_new(source.start, source.len(), sys::PROT_RW);
    let count = source.len().min(len);
    // SAFETY: the source is the program's, who gives it up; the place is new, and elsewhere.
    unsafe { core::ptr::copy_nonoverlapping(source.start as *const u8, place as *mut u8, count) };
    if let Some(mut state) = arena::there() {
        match keep {
            true => state.on().clear(source),
            false => state.on().release(source),
        }
    }
    place
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
