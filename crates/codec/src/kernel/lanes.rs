//! The loop over bytes, written once for all vector types.
//!
//! [`dot`] walks the rows in steps of `V` vectors, then of one, then takes what
//! is left with partial loads. In a step it goes through the sources, `S` at once, and keeps
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
    /// The sum of two vectors.
    unsafe fn plus(self, other: Self) -> Self;
    /// Makes a coefficient ready.
    unsafe fn factor(coef: &Coef) -> Self::Factor;
    /// Makes a source vector ready.
    unsafe fn parts(self) -> Self::Parts;
    /// `self` plus the product of the two.
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self;
}

/// Does `job`: `V1` vectors at a time for one or two targets, `V3` for three or four, `V5` for
/// more: as many sums as the registers of `L` hold. Sources are taken `S` at once.
///
/// # Safety
/// The CPU has the instructions of `L`; `coefs` holds an entry per target for each source.
#[inline(always)]
pub(super) unsafe fn dot_all<
    L: Lanes,
    const V1: usize,
    const V3: usize,
    const V5: usize,
    const S: usize,
>(
    job: &Job<'_>,
    coefs: &[Coef],
) {
    // SAFETY: the caller's; each arm names the job's number of targets.
    unsafe {
        match job.target_count {
            0 => {}
            1 => dot::<L, 1, V1, S>(job, coefs),
            2 => dot::<L, 2, V1, S>(job, coefs),
            3 => dot::<L, 3, V3, S>(job, coefs),
            4 => dot::<L, 4, V3, S>(job, coefs),
            5 => dot::<L, 5, V5, S>(job, coefs),
            6 => dot::<L, 6, V5, S>(job, coefs),
            7 => dot::<L, 7, V5, S>(job, coefs),
            8 => dot::<L, 8, V5, S>(job, coefs),
            _ => unreachable!("a job has at most 8 targets"),
        }
    }
}

/// Does `job` for its `R` targets, `V` vectors of each and `S` sources at a time.
///
/// # Safety
/// The CPU has the instructions of `L`; the job has `R` targets, and `coefs`
/// holds `R` entries per source.
#[inline(always)]
pub(super) unsafe fn dot<L: Lanes, const R: usize, const V: usize, const S: usize>(
    job: &Job<'_>,
    coefs: &[Coef],
) {
    debug_assert_eq!(job.target_count, R);
    let mut at = 0;
    // SAFETY: every step stays below `job.len`, the length of every row; the rest is the caller's.
    unsafe {
        while job.len - at >= V * L::BYTES {
            step::<L, R, V, S>(job, coefs, at, L::BYTES);
            at += V * L::BYTES;
        }
        while job.len - at >= L::BYTES {
            step::<L, R, 1, S>(job, coefs, at, L::BYTES);
            at += L::BYTES;
        }
        if at < job.len {
            step::<L, R, 1, S>(job, coefs, at, job.len - at);
        }
    }
}

/// `V` vectors of every row, from byte `at`; with `V` 1 the first `len` bytes of a vector.
///
/// # Safety
/// As [`dot`], and rows hold as many bytes from `at`.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize, const V: usize, const S: usize>(
    job: &Job<'_>,
    coefs: &[Coef],
    at: usize,
    len: usize,
) {
    // SAFETY: `dot`'s contract: row pointers are valid for the bytes from `at` to the end of the
    // step, and `coefs` has `R` entries for each source.
    unsafe {
        let mut sums = [[L::zero(); V]; R];
        if job.add {
            for (vectors, target) in sums.iter_mut().zip(job.target_rows()) {
                let target = target.add(at);
                for (v, sum) in vectors.iter_mut().enumerate() {
                    *sum = load(target.add(v * L::BYTES), len);
                }
            }
        }
        let (groups, rest) = job.source_rows().as_chunks::<S>();
        let mut coef = coefs.as_ptr();
        for group in groups {
            add_sources(&mut sums, group, coef, at, len);
            coef = coef.add(S * R);
        }
        for source in rest {
            add_sources(&mut sums, std::array::from_ref(source), coef, at, len);
            coef = coef.add(R);
        }
        for (vectors, target) in sums.iter().zip(job.target_rows()) {
            let target = target.add(at);
            for (v, sum) in vectors.iter().enumerate() {
                store(*sum, target.add(v * L::BYTES), len);
            }
        }
    }
}

/// Adds the products of a step's vectors of `S` sources.
///
/// Where an instruction adds three vectors, the compiler adds two sources' products with one.
///
/// # Safety
/// As [`step`], and there are `S * R` coefficients at `coefs`.
#[inline(always)]
unsafe fn add_sources<L: Lanes, const R: usize, const V: usize, const S: usize>(
    sums: &mut [[L; V]; R],
    sources: &[*const u8; S],
    coefs: *const Coef,
    at: usize,
    len: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut factors = [[L::factor(&*coefs); R]; S];
        for (source, factors) in factors.iter_mut().enumerate() {
            for (row, factor) in factors.iter_mut().enumerate() {
                *factor = L::factor(&*coefs.add(source * R + row));
            }
        }
        for v in 0..V {
            for (source, factors) in sources.iter().zip(factors) {
                let parts = load::<L>(source.add(at).add(v * L::BYTES), len).parts();
                for (vectors, factor) in sums.iter_mut().zip(factors) {
                    vectors[v] = vectors[v].add_product(factor, parts);
                }
            }
        }
    }
}

/// Reads `len` bytes, a vector's or fewer. Which of the two is known when this is compiled.
///
/// # Safety
/// The CPU has the instructions of `L`; `from` is valid for `len` bytes.
#[inline(always)]
pub(super) unsafe fn load<L: Lanes>(from: *const u8, len: usize) -> L {
    // SAFETY: the caller's.
    unsafe {
        if len == L::BYTES {
            L::load(from)
        } else {
            L::load_part(from, len)
        }
    }
}

/// Writes the first `len` bytes of a vector, or all; as [`load`].
///
/// # Safety
/// The CPU has the instructions of `L`; `to` is valid for `len` bytes.
#[inline(always)]
pub(super) unsafe fn store<L: Lanes>(vector: L, to: *mut u8, len: usize) {
    // SAFETY: the caller's.
    unsafe {
        if len == L::BYTES {
            vector.store(to);
        } else {
            vector.store_part(to, len);
        }
    }
}
