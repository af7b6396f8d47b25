//! The loop over bytes, written once for all vector types.
//!
//! [`dot`] walks the rows in steps of `V` vectors, then of one, then takes what
//! is left with partial loads. In a step it goes through the sources and keeps
//! `R x V` sums in registers, so `V` is chosen per `R` and instruction set: [`dot_all`].
//! Everything here is inlined into the function that enables the instructions;
//! a call in between would lose them.

use super::{Coef, Job};

/// A vector of bytes with multiplication by a constant.
///
/// # Safety
/// Every method may be called only where the CPU has the implementor's instructions.
pub(super) trait Lanes: Copy {
    /// Bytes of a vector.
    const BYTES: usize;
    /// A coefficient, spread over registers.
    type Factor: Copy;
    /// A source vector, prepared once for the multiplications by all its coefficients.
    type Parts: Copy;

    /// All bytes zero.
    unsafe fn zero() -> Self;
    /// Reads `BYTES` from `from`, valid for them.
    unsafe fn load(from: *const u8) -> Self;
    /// Writes `BYTES` to `to`, valid for them.
    unsafe fn store(self, to: *mut u8);
    /// Reads `len < BYTES` bytes, valid for them only; the rest is zero.
    unsafe fn load_part(from: *const u8, len: usize) -> Self;
    /// Writes the first `len < BYTES` bytes, to where is room for them only.
    unsafe fn store_part(self, to: *mut u8, len: usize);
    /// Makes a coefficient ready.
    unsafe fn factor(coef: &Coef) -> Self::Factor;
    /// Makes a source vector ready.
    unsafe fn parts(self) -> Self::Parts;
    /// `self` plus the product of the two.
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self;
}

/// Does `job`: `V1` vectors at a time for one or two targets, `V3` for three or four, `V5` for
/// more: as many sums as the registers of `L` hold.
///
/// # Safety
/// The CPU has the instructions of `L`; `coefs` holds an entry per target for each source.
#[inline(always)]
pub(super) unsafe fn dot_all<L: Lanes, const V1: usize, const V3: usize, const V5: usize>(
    job: &Job<'_>,
    coefs: &[Coef],
) {
    // SAFETY: the caller's; each arm names the job's number of targets.
    unsafe {
        match job.target_count {
            0 => {}
            1 => dot::<L, 1, V1>(job, coefs),
            2 => dot::<L, 2, V1>(job, coefs),
            3 => dot::<L, 3, V3>(job, coefs),
            4 => dot::<L, 4, V3>(job, coefs),
            5 => dot::<L, 5, V5>(job, coefs),
            6 => dot::<L, 6, V5>(job, coefs),
            7 => dot::<L, 7, V5>(job, coefs),
            8 => dot::<L, 8, V5>(job, coefs),
            _ => unreachable!("a job has at most 8 targets"),
        }
    }
}

/// Does `job` for its `R` targets, `V` vectors of each at a time.
///
/// # Safety
/// The CPU has the instructions of `L`; the job has `R` targets, and `coefs`
/// holds `R` entries per source.
#[inline(always)]
pub(super) unsafe fn dot<L: Lanes, const R: usize, const V: usize>(job: &Job<'_>, coefs: &[Coef]) {
    debug_assert_eq!(job.target_count, R);
    let mut at = 0;
    // SAFETY: every step stays below `job.len`, the length of every row; the rest is the caller's.
    unsafe {
        while job.len - at >= V * L::BYTES {
            step::<L, R, V>(job, coefs, at);
            at += V * L::BYTES;
        }
        while job.len - at >= L::BYTES {
            step::<L, R, 1>(job, coefs, at);
            at += L::BYTES;
        }
        if at < job.len {
            last_step::<L, R>(job, coefs, at);
        }
    }
}

/// `V` whole vectors of every row, from byte `at`.
///
/// # Safety
/// As [`dot`], and rows hold `V` vectors from `at`.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize, const V: usize>(job: &Job<'_>, coefs: &[Coef], at: usize) {
    // SAFETY: `dot`'s contract: row pointers are valid for the bytes from `at` to `at + V * BYTES`,
    // and `coefs` has `R` entries for each source, so both `add`s stay inside.
    unsafe {
        let mut sums = [[L::zero(); V]; R];
        if job.add {
            for (vectors, target) in sums.iter_mut().zip(job.target_rows()) {
                for (v, sum) in vectors.iter_mut().enumerate() {
                    *sum = L::load(target.add(at + v * L::BYTES));
                }
            }
        }
        let mut coef = coefs.as_ptr();
        for source in job.source_rows() {
            let mut factors = [L::factor(&*coef); R];
            for (row, factor) in factors.iter_mut().enumerate() {
                *factor = L::factor(&*coef.add(row));
            }
            for v in 0..V {
                let parts = L::load(source.add(at + v * L::BYTES)).parts();
                for (vectors, factor) in sums.iter_mut().zip(factors) {
                    vectors[v] = vectors[v].add_product(factor, parts);
                }
            }
            coef = coef.add(R);
        }
        for (vectors, target) in sums.iter().zip(job.target_rows()) {
            for (v, sum) in vectors.iter().enumerate() {
                sum.store(target.add(at + v * L::BYTES));
            }
        }
    }
}

/// The bytes from `at` to the end, fewer than a vector.
///
/// # Safety
/// As [`dot`], and fewer than `BYTES` bytes are left from `at`.
#[inline(always)]
unsafe fn last_step<L: Lanes, const R: usize>(job: &Job<'_>, coefs: &[Coef], at: usize) {
    let left = job.len - at;
    // SAFETY: as in `step`, with partial loads and stores of the `left` bytes that rows still hold.
    unsafe {
        let mut sums = [L::zero(); R];
        if job.add {
            for (sum, target) in sums.iter_mut().zip(job.target_rows()) {
                *sum = L::load_part(target.add(at), left);
            }
        }
        for (source, factors) in job.source_rows().iter().zip(coefs.chunks_exact(R)) {
            let parts = L::load_part(source.add(at), left).parts();
            for (sum, coef) in sums.iter_mut().zip(factors) {
                *sum = sum.add_product(L::factor(coef), parts);
            }
        }
        for (sum, target) in sums.iter().zip(job.target_rows()) {
            sum.store_part(target.add(at), left);
        }
    }
}
