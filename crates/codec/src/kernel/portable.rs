//! The kernel for any CPU: 64-bit words, one bit of every byte at a time.
//!
//! A source word gives eight masks, byte by byte all ones where that bit is
//! set; each selects the coefficient times that power of two. No branch and no
//! look-up depends on data, and a compiler may use whatever vectors it has.

use super::{
    Coef, Job,
    lanes::{Lanes, dot},
};

/// Two words, worked on together: what the least of vectors holds.
#[derive(Clone, Copy)]
struct Words([u64; 2]);

impl Lanes for Words {
    const BYTES: usize = 16;
    /// Products with the powers of two, each in all bytes of a word.
    type Factor = [u64; 8];
    /// By bit, the mask of the bytes that have it.
    type Parts = [[u64; 2]; 8];

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0; 2])
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for 16 bytes.
        Self(unsafe { from.cast::<[u64; 2]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for 16 bytes.
        unsafe { to.cast::<[u64; 2]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        let mut words = [0u64; 2];
        // SAFETY: the caller has `len` bytes at `from`; `words` holds 16, which is more.
        unsafe { from.copy_to_nonoverlapping(words.as_mut_ptr().cast(), len) };
        Self(words)
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: the caller has room for `len` bytes at `to`; `self` holds 16, which is more.
        unsafe { to.copy_from_nonoverlapping(self.0.as_ptr().cast(), len) };
    }

    #[inline(always)]
    unsafe fn factor(coef: &Coef) -> [u64; 8] {
        let products = [1, 2, 4, 8, 17, 18, 20, 24].map(|at| coef.nibbles[at]);
        products.map(|byte| u64::from(byte) * ONES)
    }

    #[inline(always)]
    unsafe fn parts(self) -> [[u64; 2]; 8] {
        std::array::from_fn(|bit| {
            self.0.map(|word| {
                let set = (word >> bit) & ONES;
                // Times 255, without a multiplication, of which vectors have none this wide.
                (set << 8).wrapping_sub(set)
            })
        })
    }

    #[inline(always)]
    unsafe fn add_product(mut self, factor: [u64; 8], parts: [[u64; 2]; 8]) -> Self {
        for (product, masks) in factor.into_iter().zip(parts) {
            for (sum, mask) in self.0.iter_mut().zip(masks) {
                *sum ^= mask & product;
            }
        }
        self
    }
}

/// One in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Does `job`.
///
/// # Safety
/// As [`dot`].
pub(super) unsafe fn run(job: &Job<'_>, coefs: &[Coef]) {
    // SAFETY: the caller's; needs no special instructions.
    unsafe {
        match job.target_count {
            0 => {}
            1 => dot::<Words, 1, 1>(job, coefs),
            2 => dot::<Words, 2, 1>(job, coefs),
            3 => dot::<Words, 3, 1>(job, coefs),
            4 => dot::<Words, 4, 1>(job, coefs),
            5 => dot::<Words, 5, 1>(job, coefs),
            6 => dot::<Words, 6, 1>(job, coefs),
            7 => dot::<Words, 7, 1>(job, coefs),
            8 => dot::<Words, 8, 1>(job, coefs),
            _ => unreachable!("a job has at most 8 targets"),
        }
    }
}
