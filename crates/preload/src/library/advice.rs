//! The calls of libc that advise the kernel about memory, in front of libc's own. Hints do nothing
//! to memory that is served; advice that changes bytes is followed here, and other advice refused.

use core::ops::Range;

use crate::maps::{end_of, failed, told};
use crate::wire::PAGE;
use crate::{arena, sys};

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

/// Of this process's own memory it may be any advice (Linux 6.13), and each range is advised as by
/// `madvise`. What is done stays done when a later range is refused.
#[unsafe(no_mangle)]
extern "C" fn process_madvise(
    process: i32,
    ranges: *const [usize; 2],
    count: usize,
    advice: i32,
    flags: u32,
) -> isize {
    const RANGES_MAX: usize = 1024;
    let kernel = || {
        let arguments = [ranges as usize, count, advice as usize, flags as usize];
        told(sys::process_madvise(process, arguments)) as isize
    };
    let is_refused = flags != 0 || count > RANGES_MAX || !ranges.is_aligned() || ranges.is_null();
    if is_refused || !arena::is_there() || !sys::is_this_process(process) {
        return kernel();
    }
    // SAFETY: the caller's list, of so many ranges.
    let ranges = unsafe { core::slice::from_raw_parts(ranges, count) };
    let is_served = |[addr, len]: &[usize; 2]| {
        let parts = [arena::part(*addr, *len), arena::heap_part(*addr, *len)];
        parts.iter().any(|part| !part.is_empty())
    };
    if !ranges.iter().any(is_served) {
        return kernel();
    }
    let mut done = 0;
    for [addr, len] in ranges {
        if madvise(*addr, *len, advice) != 0 {
            return if done > 0 { done } else { -1 };
        }
        done += *len as isize;
    }
    done
}
