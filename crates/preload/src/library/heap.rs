//! `malloc` and its family, in front of libc's.
//!
//! Big blocks are ranges of the arena. Small ones stay libc's, whose heap is made large at once and
//! registered: its pages are served, too. Where another library provides `malloc`, all blocks are
//! that one's, which gets its memory by `mmap`.

use core::ops::Range;

use crate::arena::{self, BIG};
use crate::maps::set_errno;
use crate::next::{Next, next};
use crate::wire::PAGE;
use crate::{forks, sys};

const M_TRIM_THRESHOLD: i32 = -1;
const M_TOP_PAD: i32 = -2;
const M_MMAP_THRESHOLD: i32 = -3;
const M_MMAP_MAX: i32 = -4;
const M_ARENA_MAX: i32 = -8;

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut u8;
    fn __libc_free(at: *mut u8);
}

/// Asks the loader for what is needed under the arena's lock.
pub fn resolve() {
    is_libc();
    MALLOPT.at();
}

/// Whether small blocks are libc's: then big ones may be ours.
fn is_libc() -> bool {
    static MALLOC: Next = Next::new(c"malloc");
    static LIBC: Next = Next::new(c"__libc_malloc");
    MALLOC.at() == LIBC.at()
}

static MALLOPT: Next = Next::new(c"mallopt");

/// Sets an option of libc's malloc.
fn set_option(what: i32, value: i32) -> i32 {
    // SAFETY: the function of this name has this type, and changes how malloc gets memory, not what
    // it gives.
    unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(i32, i32) -> i32>(MALLOPT.at())(
            what, value,
        )
    }
}

/// Makes libc's heap larger by so many bytes at once, and has all threads use it; where it can be
/// served from.
pub fn extend(bytes: usize) -> Range<usize> {
    const PROBE: usize = 1 << 20;
    // A program has that much free at the heap's end at most, when it begins.
    const PROBES: usize = 8;
    if bytes == 0 || !is_libc() {
        return 0..0;
    }
    let mut pad = bytes.min(i32::MAX as usize & !(PAGE - 1));
    set_option(M_ARENA_MAX, 1);
    // Never: any threshold may be less than what is free at the end.
    set_option(M_TRIM_THRESHOLD, -1);
    set_option(M_MMAP_MAX, 0);
    let mut range = 0..0;
    // The kernel may have less to promise.
    while pad > PROBE {
        set_option(M_TOP_PAD, pad as i32);
        let before = sys::break_end();
        let mut blocks = [core::ptr::null_mut(); PROBES];
        for (doublings, block) in blocks.iter_mut().enumerate() {
            // SAFETY: a block that is freed below.
            *block = unsafe { __libc_malloc(PROBE << doublings) };
            // Otherwise it is of what was free at the end already.
            if block.is_null() || sys::break_end() > before {
                break;
            }
        }
        let after = sys::break_end();
        for block in blocks {
            // SAFETY: blocks of libc's, each once, or none.
            unsafe { __libc_free(block) };
        }
        if after >= before + pad {
            range = before.next_multiple_of(PAGE)..after & !(PAGE - 1);
            break;
        }
        pad = (pad / 2) & !(PAGE - 1);
    }
    set_option(M_TOP_PAD, 128 << 10);
    set_option(M_MMAP_MAX, 1 << 16);
    set_option(M_MMAP_THRESHOLD, BIG as i32);
    range
}

fn take(len: usize, align: usize) -> Option<*mut u8> {
    forks::register();
    if len < BIG || len > isize::MAX as usize || !is_libc() {
        return None;
    }
    let addr = arena::wanted(len)?.on().take_block(len, align)?;
    Some(addr as *mut u8)
}

/// The bytes of a block, if it is one of the arena.
fn block_len(at: *mut u8) -> Option<usize> {
    if !arena::has(at as usize) {
        return None;
    }
    // A foreign malloc has its memory from the arena, too, and knows its blocks itself.
    let len = arena::there()?.on().block_len(at as usize);
    (len > 0).then_some(len)
}

fn release(at: *mut u8, len: usize) {
    if let Some(mut state) = arena::there() {
        state.on().release(at as usize..at as usize + len);
    }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(len: usize) -> *mut u8 {
    take(len, PAGE).unwrap_or_else(|| next!(c"malloc", fn(usize) -> *mut u8, (len)))
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, each: usize) -> *mut u8 {
    let big = count.checked_mul(each).and_then(|len| take(len, PAGE));
    big.unwrap_or_else(|| next!(c"calloc", fn(usize, usize) -> *mut u8, (count, each)))
}

#[unsafe(no_mangle)]
extern "C" fn free(at: *mut u8) {
    match block_len(at) {
        Some(len) => release(at, len),
        None => next!(c"free", fn(*mut u8) -> (), (at)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn realloc(at: *mut u8, len: usize) -> *mut u8 {
    let next = |len| next!(c"realloc", fn(*mut u8, usize) -> *mut u8, (at, len));
    if at.is_null() {
        return malloc(len);
    }
    let old_len = match block_len(at) {
        Some(old_len) => old_len,
        None if len < BIG || len > isize::MAX as usize || !is_libc() => return next(len),
        // A small block that becomes a big one.
        None => malloc_usable_size(at),
    };
    if arena::has(at as usize) && is_libc() {
        if len == 0 {
            free(at);
            return core::ptr::null_mut();
        }
        if len > isize::MAX as usize {
            set_errno(sys::ENOMEM);
            return core::ptr::null_mut();
        }
        if resize(at, old_len, len) {
            return at;
        }
    }
    let new = malloc(len);
    if !new.is_null() {
        // SAFETY: both blocks have so many bytes, and are apart.
        unsafe { core::ptr::copy_nonoverlapping(at, new, old_len.min(len)) };
        free(at);
    }
    new
}

/// Whether a block of the arena could be made so long where it is.
fn resize(at: *mut u8, old_len: usize, len: usize) -> bool {
    let (start, Some(mut state)) = (at as usize, arena::there()) else {
        return false;
    };
    let (arena, wanted) = (state.on(), len.next_multiple_of(PAGE));
    if wanted < BIG {
        return false;
    }
    if wanted < old_len {
        arena.release(start + wanted..start + old_len);
    } else if wanted > old_len && !arena.grow(start..start + old_len, wanted) {
        return false;
    }
    arena.set_block_len(start, wanted);
    true
}

#[unsafe(no_mangle)]
extern "C" fn reallocarray(at: *mut u8, count: usize, each: usize) -> *mut u8 {
    match count.checked_mul(each) {
        Some(len) => realloc(at, len),
        None => {
            set_errno(sys::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, len: usize) -> *mut u8 {
    let big = align
        .is_power_of_two()
        .then(|| take(len, align.max(PAGE)))
        .flatten();
    big.unwrap_or_else(|| next!(c"memalign", fn(usize, usize) -> *mut u8, (align, len)))
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, len: usize) -> *mut u8 {
    let big = align
        .is_power_of_two()
        .then(|| take(len, align.max(PAGE)))
        .flatten();
    big.unwrap_or_else(|| next!(c"aligned_alloc", fn(usize, usize) -> *mut u8, (align, len)))
}

#[unsafe(no_mangle)]
extern "C" fn posix_memalign(out: *mut *mut u8, align: usize, len: usize) -> i32 {
    let is_right = align.is_power_of_two() && align >= size_of::<usize>();
    if let Some(at) = is_right.then(|| take(len, align.max(PAGE))).flatten() {
        // SAFETY: the caller's place for the answer.
        unsafe { *out = at };
        return 0;
    }
    next!(
        c"posix_memalign",
        fn(*mut *mut u8, usize, usize) -> i32,
        (out, align, len)
    )
}

#[unsafe(no_mangle)]
extern "C" fn valloc(len: usize) -> *mut u8 {
    take(len, PAGE).unwrap_or_else(|| next!(c"valloc", fn(usize) -> *mut u8, (len)))
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(len: usize) -> *mut u8 {
    take(len, PAGE).unwrap_or_else(|| next!(c"pvalloc", fn(usize) -> *mut u8, (len)))
}

#[unsafe(no_mangle)]
extern "C" fn malloc_usable_size(at: *mut u8) -> usize {
    block_len(at).unwrap_or_else(|| next!(c"malloc_usable_size", fn(*mut u8) -> usize, (at)))
}

/// Pages of the heap are served where they are: it keeps its end.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(pad: usize) -> i32 {
    if arena::heap_end() != 0 {
        return 0;
    }
    next!(c"malloc_trim", fn(usize) -> i32, (pad))
}

/// What would make the heap shorter has no effect: memory that takes its place would not be served.
#[unsafe(no_mangle)]
extern "C" fn mallopt(what: i32, value: i32) -> i32 {
    if arena::heap_end() != 0 && [M_TRIM_THRESHOLD, M_TOP_PAD].contains(&what) {
        return 1;
    }
    set_option(what, value)
}

#[unsafe(no_mangle)]
extern "C" fn brk(end: usize) -> i32 {
    if end < arena::heap_end() {
        set_errno(sys::ENOMEM);
        return -1;
    }
    next!(c"brk", fn(usize) -> i32, (end))
}

#[unsafe(no_mangle)]
extern "C" fn sbrk(by: isize) -> usize {
    if by < 0 && arena::heap_end() != 0 {
        set_errno(sys::ENOMEM);
        return usize::MAX;
    }
    next!(c"sbrk", fn(isize) -> usize, (by))
}
