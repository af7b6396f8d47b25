//! `mremap`, in front of libc's own. What is served moves by a copy, or stays; what took its place
//! is the kernel's to move.

use core::ops::Range;

use crate::arena::{self, Arena};
use crate::maps::{FAILED, end_of, failed, told};
use crate::sys;
use crate::wire::PAGE;

const MREMAP_MAYMOVE: usize = 1;
const MREMAP_FIXED: usize = 2;
const MREMAP_DONTUNMAP: usize = 4;

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
    let source = addr..end;
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
        let may_move = may_move(source, to..to.saturating_add(new_end - addr), flags);
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
    if is_whole && arena.is_foreign(ours.clone()) {
        return move_foreign(
            arena,
            ours,
            new_end - addr,
            flags,
            fixed.map(|to| (to, target)),
        );
    }
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

/// Moves a mapping that took the place of pages of the arena, as the kernel would: `fixed` is where
/// to, and what of that is the arena's. It leaves its addresses in two steps, so that they are
/// never the kernel's to give away.
fn move_foreign(
    arena: &mut Arena,
    source: Range<usize>,
    len: usize,
    flags: usize,
    fixed: Option<(usize, Range<usize>)>,
) -> usize {
    let stays = flags & MREMAP_DONTUNMAP != 0;
    if fixed.is_none() && !stays && len <= source.len() {
        if len < source.len() {
            arena.release(source.start + len..source.end);
        }
        return source.start;
    }
    let may_go = match &fixed {
        Some((to, _)) => may_move(source.clone(), *to..to.saturating_add(len), flags),
        None => !stays || len == source.len(),
    };
    if !may_go {
        return failed(sys::EINVAL);
    }
    if flags & MREMAP_MAYMOVE == 0 {
        return failed(sys::ENOMEM);
    }
    if let Some((to, target)) = &fixed
        && !hold(*to..*to + len, target)
    {
        return failed(sys::ENOMEM);
    }
    let (start, old) = (source.start, source.len());
    let away = sys::mremap(start, old, old, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    if away < 0 {
        return told(away);
    }
    let place = match fixed {
        Some((to, target)) => {
            if !target.is_empty() {
                arena.cede(target);
            }
            sys::mremap(away as usize, old, len, MREMAP_MAYMOVE | MREMAP_FIXED, to)
        }
        None if len == old => away,
        None => sys::mremap(away as usize, old, len, MREMAP_MAYMOVE, 0),
    };
    if place < 0 {
        sys::mremap(
            away as usize,
            old,
            old,
            MREMAP_MAYMOVE | MREMAP_FIXED,
            start,
        );
    } else if !stays {
        arena.release(source);
    }
    told(place)
}

/// Puts a mapping where the kernel has something of its own or nothing: what moves in two steps is not
/// to be there in between. A move takes away what was there in any case.
fn hold(range: Range<usize>, arenas: &Range<usize>) -> bool {
    let outside = match arenas.is_empty() {
        true => [range, 0..0],
        false => [range.start..arenas.start, arenas.end..range.end],
    };
    let flags = sys::MAP_FIXED | sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    outside
        .iter()
        .filter(|part| !part.is_empty())
        .all(|part| sys::mmap(part.start, part.len(), 0, flags, -1, 0) >= 0)
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
    if target == range && arena.claim(target.clone()) {
        arena.clear(target);
        return (sys::protect_as_new(to, len, sys::PROT_RW) >= 0).then_some(to);
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
