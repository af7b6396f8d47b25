//! The kernels for x86-64.
//!
//! With GFNI a multiplication is one instruction: multiplying by a constant is
//! linear over bits, so `gf2p8affineqb` does it in any field. Without, a byte is
//! cut in two nibbles and `vpshufb` looks both products up.
//! WHY UNSAFE: intrinsics on raw rows; the portable kernel takes several times as long
//! (`docs/decisions/0007-own-coding-kernels.md` has the figures).

use std::arch::x86_64::*;

use super::{
    Coef, Job,
    lanes::{Lanes, dot_all},
    mirrored,
};

/// Does `job` by table look-ups.
///
/// # Safety
/// The CPU has AVX2; else as [`dot_all`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn run_avx2(job: &Job<'_>, coefs: &[Coef]) {
    // SAFETY: the caller's. Sixteen registers hold the sums, the tables and two indexes.
    unsafe { dot_all::<Shuffle, 4, 2, 1, 1>(job, coefs) }
}

/// Makes two mirrored parities by table look-ups.
///
/// # Safety
/// The CPU has AVX2; else as [`mirrored::encode`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn mirrored_avx2(data: &[u8], parity: &mut [u8], pairs: &[Coef]) {
    // SAFETY: the caller's.
    unsafe { mirrored::encode::<Shuffle, 4>(data, parity, pairs) }
}

/// Does `job` by bit matrices, 32 bytes at a time.
///
/// # Safety
/// The CPU has AVX2 and GFNI; else as [`dot_all`].
#[target_feature(enable = "avx2,gfni")]
pub(super) unsafe fn run_gfni256(job: &Job<'_>, coefs: &[Coef]) {
    // SAFETY: the caller's. Sixteen registers hold the sums, the matrices and a source.
    unsafe { dot_all::<Affine256, 4, 2, 1, 1>(job, coefs) }
}

/// Makes two mirrored parities by bit matrices, 32 bytes at a time.
///
/// # Safety
/// The CPU has AVX2 and GFNI; else as [`mirrored::encode`].
#[target_feature(enable = "avx2,gfni")]
pub(super) unsafe fn mirrored_gfni256(data: &[u8], parity: &mut [u8], pairs: &[Coef]) {
    // SAFETY: the caller's.
    unsafe { mirrored::encode::<Affine256, 4>(data, parity, pairs) }
}

/// Does `job` by bit matrices, 64 bytes at a time.
///
/// # Safety
/// The CPU has AVX-512F, AVX-512BW and GFNI; else as [`dot_all`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(super) unsafe fn run_gfni512(job: &Job<'_>, coefs: &[Coef]) {
    // SAFETY: the caller's. Thirty-two registers hold the sums, the matrices and two sources.
    unsafe { dot_all::<Affine512, 8, 4, 2, 2>(job, coefs) }
}

/// Makes two mirrored parities by bit matrices, 64 bytes at a time.
///
/// # Safety
/// The CPU has AVX-512F, AVX-512BW and GFNI; else as [`mirrored::encode`].
#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(super) unsafe fn mirrored_gfni512(data: &[u8], parity: &mut [u8], pairs: &[Coef]) {
    // SAFETY: the caller's.
    unsafe { mirrored::encode::<Affine512, 8>(data, parity, pairs) }
}

/// 32 bytes, multiplied by looking up their nibbles.
#[derive(Clone, Copy)]
struct Shuffle(__m256i);

impl Lanes for Shuffle {
    const BYTES: usize = 32;
    /// Products of the low and of the high nibble, each table in both halves.
    type Factor = (__m256i, __m256i);
    /// Low and high nibbles.
    type Parts = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller runs where there is AVX2, as for every method here.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for 32 bytes.
        Self(unsafe { load_256(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: the caller has `len` bytes at `from`.
        Self(unsafe { load_part_256(from, len) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: the caller has room for `len` bytes at `to`.
        unsafe { store_part_256(self.0, to, len) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(coef: &Coef) -> (__m256i, __m256i) {
        let tables = coef.nibbles.as_ptr().cast::<__m128i>();
        // SAFETY: the 32 bytes of `nibbles` are two tables, aligned as the struct says.
        unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_load_si128(tables)),
                _mm256_broadcastsi128_si256(_mm_load_si128(tables.add(1))),
            )
        }
    }

    #[inline(always)]
    unsafe fn parts(self) -> (__m256i, __m256i) {
        // SAFETY: AVX2, as above.
        unsafe {
            let nibble = _mm256_set1_epi8(0x0f);
            let high = _mm256_srli_epi64::<4>(self.0);
            (
                _mm256_and_si256(self.0, nibble),
                _mm256_and_si256(high, nibble),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: AVX2, as above.
        unsafe {
            let low = _mm256_shuffle_epi8(factor.0, parts.0);
            let high = _mm256_shuffle_epi8(factor.1, parts.1);
            Self(_mm256_xor_si256(self.0, _mm256_xor_si256(low, high)))
        }
    }
}

/// 32 bytes, multiplied by a bit matrix.
#[derive(Clone, Copy)]
struct Affine256(__m256i);

impl Lanes for Affine256 {
    const BYTES: usize = 32;
    type Factor = __m256i;
    type Parts = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller runs where there are AVX2 and GFNI, as for every method here.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for 32 bytes.
        Self(unsafe { load_256(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: the caller has `len` bytes at `from`.
        Self(unsafe { load_part_256(from, len) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: the caller has room for `len` bytes at `to`.
        unsafe { store_part_256(self.0, to, len) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: AVX2, as above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(coef: &Coef) -> __m256i {
        // SAFETY: AVX2, as above.
        unsafe { _mm256_set1_epi64x(coef.affine.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn parts(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: __m256i, parts: __m256i) -> Self {
        // SAFETY: AVX2 and GFNI, as above.
        unsafe {
            let product = _mm256_gf2p8affine_epi64_epi8::<0>(parts, factor);
            Self(_mm256_xor_si256(self.0, product))
        }
    }
}

/// 64 bytes, multiplied by a bit matrix.
#[derive(Clone, Copy)]
struct Affine512(__m512i);

impl Lanes for Affine512 {
    const BYTES: usize = 64;
    type Factor = __m512i;
    type Parts = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller runs where there are AVX-512F, BW and GFNI, as for every method here.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for 64 bytes.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for 64 bytes.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        // SAFETY: lanes that the mask leaves out are not read; `len` are in.
        Self(unsafe { _mm512_maskz_loadu_epi8((1 << len) - 1, from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut u8, len: usize) {
        // SAFETY: lanes that the mask leaves out are not written; `len` are in.
        unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << len) - 1, self.0) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: AVX-512F, as above.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(coef: &Coef) -> __m512i {
        // SAFETY: AVX-512F, as above.
        unsafe { _mm512_set1_epi64(coef.affine.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn parts(self) -> __m512i {
        self.0
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: __m512i, parts: __m512i) -> Self {
        // SAFETY: AVX-512F and GFNI, as above.
        unsafe {
            let product = _mm512_gf2p8affine_epi64_epi8::<0>(parts, factor);
            Self(_mm512_xor_si512(self.0, product))
        }
    }
}

/// # Safety
/// AVX2; `from` is valid for 32 bytes.
#[inline(always)]
unsafe fn load_256(from: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// The first `len < 32` bytes, then zeros.
///
/// # Safety
/// AVX2; `from` is valid for `len` bytes.
#[inline(always)]
unsafe fn load_part_256(from: *const u8, len: usize) -> __m256i {
    let mut bytes = [0u8; 32];
    // SAFETY: `len` bytes are at `from`, and `bytes` has room for more than that.
    unsafe {
        from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
        load_256(bytes.as_ptr())
    }
}

/// # Safety
/// AVX2; `to` is valid for `len < 32` bytes.
#[inline(always)]
unsafe fn store_part_256(value: __m256i, to: *mut u8, len: usize) {
    let mut bytes = [0u8; 32];
    // SAFETY: `bytes` holds the 32 bytes of a vector, and `to` has room for `len` of them.
    unsafe {
        _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value);
        to.copy_from_nonoverlapping(bytes.as_ptr(), len);
    }
}
