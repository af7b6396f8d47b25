//! Memory that outlives a power cut: lines written back from the caches.
//!
//! On persistent memory a store is durable once its line was written back and a fence has passed.
//! CLWB keeps the line in the cache, CLFLUSHOPT drops it, CLFLUSH also waits for the one before; the
//! best that the processor has is used. WHY UNSAFE: there are no safe instructions for it.

/// Begins to write a range's cache lines back. Complete after [`super::order_stores`].
///
/// # Safety
/// The range is mapped.
pub(super) unsafe fn write_back(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let best = *BEST.get_or_init(best);
        let mut line = start.addr() & !(LINE_BYTES - 1);
        let end = start.addr() + len;
        while line < end {
            // SAFETY: the line has a byte of the range, which is mapped; no byte is changed.
            unsafe { line_back(best, line) };
            line += LINE_BYTES;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// What writes a line back.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
enum Best {
    Clwb,
    ClflushOpt,
    Clflush,
}

#[cfg(target_arch = "x86_64")]
static BEST: std::sync::OnceLock<Best> = std::sync::OnceLock::new();

#[cfg(target_arch = "x86_64")]
fn best() -> Best {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let leaves = __cpuid(0).eax;
    let features = if leaves >= 7 {
        __cpuid_count(7, 0).ebx
    } else {
        0
    };
    match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => Best::Clwb,
        (_, 1) => Best::ClflushOpt,
        _ => Best::Clflush,
    }
}

/// # Safety
/// The line is mapped, and the processor has the instruction.
#[cfg(target_arch = "x86_64")]
unsafe fn line_back(best: Best, line: usize) {
    use std::arch::asm;
    // SAFETY: the caller's promise; the instructions change no register and no byte of memory.
    unsafe {
        match best {
            Best::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
            Best::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            Best::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_back_is_unchanged() {
        let bytes: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
        for (start, len) in [(0, 1000), (63, 1), (1, 0), (65, 200)] {
            // SAFETY: a range of `bytes`.
            unsafe { write_back(bytes.as_ptr().add(start), len) };
        }
        crate::order_stores();
        assert!((0..1000_u32).all(|at| bytes[at as usize] == at as u8));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_processor_has_the_oldest_of_them() {
        let byte = 7_u8;
        // SAFETY: `byte` is mapped, and CLFLUSH is part of x86-64.
        unsafe { line_back(Best::Clflush, (&raw const byte).addr()) };
        assert_eq!(byte, 7);
    }
}
