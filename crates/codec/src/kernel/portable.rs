//! The kernel for any CPU: two table look-ups per byte and coefficient.
//!
//! Eight bytes go together in a word, so that sums and stores cost next to
//! nothing beside the look-ups. Masks of whole words, one bit of every byte at
//! a time, were no faster on pages and slower on short splits.

use super::{
    Coef, Job,
    lanes::{Lanes, dot_all},
    mirrored,
};

/// Eight bytes, the first lowest.
#[derive(Clone, Copy)]
struct Word(u64);

impl Lanes for Word {
    const BYTES: usize = 8;
    /// The coefficient, whose tables stay where they are while its job runs.
    type Factor = *const Coef;
    type Parts = u64;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(0)
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for 8 bytes.
        Self(u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() }))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for 8 bytes.
        unsafe { to.cast::<[u8; 8]>().write(self.0.to_le_bytes()) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut bytes = [0; 8];
        // SAFETY: the caller has `len` bytes at `from`; `bytes` holds 8, which is more.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        Self(u64::from_le_bytes(bytes))
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: the caller has room for `len` bytes at `to`; a word holds 8, which is more.
        unsafe { to.copy_from_nonoverlapping(self.0.to_le_bytes().as_ptr(), len) };
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    #[inline(always)]
    unsafe fn factor(coef: &Coef) -> *const Coef {
        coef
    }

    #[inline(always)]
    unsafe fn parts(self) -> u64 {
        self.0
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: *const Coef, parts: u64) -> Self {
        // SAFETY: made by `factor` from a reference that outlives the loop.
        let tables = unsafe { &(*factor).nibbles };
        let product = parts
            .to_le_bytes()
            .map(|byte| tables[usize::from(byte & 15)] ^ tables[usize::from(byte >> 4) + 16]);
        Self(self.0 ^ u64::from_le_bytes(product))
    }
}

/// Does `job`.
///
/// # Safety
/// As [`dot_all`].
pub(super) unsafe fn run(job: &Job<'_>, coefs: &[Coef]) {
    // SAFETY: the caller's; needs no special instructions.
    unsafe { dot_all::<Word, 1, 1, 1, 1>(job, coefs) }
}

/// Makes two mirrored parities.
///
/// # Safety
/// As [`mirrored::encode`].
pub(super) unsafe fn run_mirrored(data: &[u8], parity: &mut [u8], pairs: &[Coef]) {
    // SAFETY: the caller's; needs no special instructions.
    unsafe { mirrored::encode::<Word, 1>(data, parity, pairs) }
}
