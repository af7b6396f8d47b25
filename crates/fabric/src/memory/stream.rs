//! Copies into window memory that go around the caches.
//!
//! A page that is written to lent memory was just put out of use here, so its lines would
//! only push others out of the caches; and an ordinary store first reads each line that it
//! is about to overwrite. WHY UNSAFE: streaming stores; three cold 4 KiB copies take 0.8 us
//! with them and 1.4 us without, ten of 512 bytes 0.4 us and 1.2 us
//! (`docs/decisions/0008-streaming-stores.md`).

use std::ptr;

/// Copies `len` bytes; other processors see them after [`order_stores`].
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap.
#[inline]
pub(super) unsafe fn copy_out(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_BYTES_MIN && target.addr().is_multiple_of(LINE_BYTES) {
        let whole = len & !(LINE_BYTES - 1);
        // SAFETY: the caller's promise, for the whole lines and for the rest after them; the
        // target is aligned to a line.
        unsafe {
            stream(source, target, whole);
            ptr::copy_nonoverlapping(source.add(whole), target.add(whole), len - whole);
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(source, target, len) };
}

/// Orders all that this thread wrote into window memory before all that it stores from here on.
///
/// Streaming stores are the only ones on x86-64 that later ones may overtake. Once for a batch
/// of copies is enough, and costs the time that the last of them needs to drain.
#[inline]
pub fn order_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Whole cache lines, each complete before the next: a partly filled one would cost a read.
///
/// # Safety
/// As [`copy_out`]; `target` and `len` are multiples of a line.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let mut at = 0;
    while at < len {
        // SAFETY: `at + LINE_BYTES <= len` in both ranges, and the target is aligned.
        unsafe {
            let from = source.add(at).cast::<__m128i>();
            let to = target.add(at).cast::<__m128i>();
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
        }
        at += LINE_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
/// Shorter copies are headers and counters, which are soon read or written again.
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES_MIN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_length_at_every_alignment() {
        let source: Vec<u8> = (0..2000_u32).map(|at| (at * 7 % 251) as u8).collect();
        for start in [0, 1, 16, 63, 64] {
            for len in (0..700).chain([1024, 1055, 1800]) {
                let mut target = vec![0xee_u8; 2112];
                let line = target.as_ptr().align_offset(64);
                let first = line + start;
                // SAFETY: `first + len` lies inside `target`, and `5 + len` inside `source`.
                unsafe { copy_out(source.as_ptr().add(5), target.as_mut_ptr().add(first), len) };
                order_stores();
                assert_eq!(target[first..first + len], source[5..5 + len]);
                assert!(target[..first].iter().all(|&byte| byte == 0xee));
                assert!(target[first + len..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}
