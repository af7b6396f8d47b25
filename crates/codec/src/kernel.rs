//! Kernels: the one loop over bytes, for each instruction set worth having.
//!
//! Every coding operation is "target rows = matrix x source rows". [`Job`] names
//! the rows, [`Coef`] is one entry of the matrix with its tables made, and a
//! [`Kernel`] does the work, all targets at once so that a source is loaded once.
//! The loop is written once ([`lanes`]); an instruction set adds its vector type. Two parities
//! of one page have a loop of their own ([`mirrored`]).
//!
//! Invariants: every kernel writes the same bytes, for any length; no byte
//! outside the rows is read or written; nothing is allocated.

use std::{marker::PhantomData, mem::MaybeUninit};

use crate::{
    choice,
    code::{DATA_MAX, PARITY_MAX},
    gf,
    transform::bits,
};

mod lanes;
pub(crate) mod mirrored;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

/// A way to multiply bytes, by the instructions it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// 64-byte vectors and the Galois-field instructions: AVX-512F and BW, GFNI.
    Gfni512,
    /// 32-byte vectors and the Galois-field instructions: AVX2, GFNI.
    Gfni256,
    /// 32-byte vectors, two table look-ups a byte: AVX2.
    Avx2,
    /// 64-bit words, on any CPU.
    Portable,
}

impl Kernel {
    /// Every kernel, the one with the widest vectors first.
    pub const ALL: [Self; 4] = [Self::Gfni512, Self::Gfni256, Self::Avx2, Self::Portable];

    /// The fastest this CPU can run. Where it has both Galois-field kernels the first call measures
    /// them, for some milliseconds.
    pub fn best() -> Self {
        choice::best()
    }

    /// Whether this CPU and its operating system can run it.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Gfni512 => {
                is_x86_feature_detected!("gfni")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
            Self::Gfni256 => is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2"),
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Portable => true,
        }
        #[cfg(not(target_arch = "x86_64"))]
        matches!(self, Self::Portable)
    }

    /// Short name, as benchmarks print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gfni512 => "gfni-avx512",
            Self::Gfni256 => "gfni-avx2",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Does `job` with `coefs`, sources x targets, one source after the other.
    ///
    /// # Panics
    /// If `coefs` does not fit the job, or this CPU cannot run the kernel.
    pub(crate) fn run(self, job: &Job<'_>, coefs: &[Coef]) {
        assert_eq!(coefs.len(), job.source_count * job.target_count);
        debug_assert!(self.is_supported());
        // SAFETY: `Code` is only made with a supported kernel, the one caller of this. A `Job`
        // holds rows of its length that do not overlap, and the coefficients were just counted.
        unsafe {
            match self {
                Self::Portable => portable::run(job, coefs),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::run_avx2(job, coefs),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni256 => x86::run_gfni256(job, coefs),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni512 => x86::run_gfni512(job, coefs),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("no such kernel on this architecture"),
            }
        }
    }

    /// Makes both parities of `data` with [`mirrored::pairs`] of their coefficients.
    ///
    /// # Panics
    /// If `parity` is not two splits, and `data` one for each of `pairs`, or this CPU cannot run
    /// the kernel.
    pub(crate) fn encode_mirrored(self, data: &[u8], parity: &mut [u8], pairs: &[Coef]) {
        assert_eq!(data.len() * 2, parity.len() * pairs.len());
        debug_assert!(self.is_supported());
        // SAFETY: as in `run`; the lengths were just compared.
        unsafe {
            match self {
                Self::Portable => portable::run_mirrored(data, parity, pairs),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::mirrored_avx2(data, parity, pairs),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni256 => x86::mirrored_gfni256(data, parity, pairs),
                #[cfg(target_arch = "x86_64")]
                Self::Gfni512 => x86::mirrored_gfni512(data, parity, pairs),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("no such kernel on this architecture"),
            }
        }
    }
}

/// One coefficient of a matrix, in the forms the kernels multiply with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C, align(16))]
pub(crate) struct Coef {
    /// Products with 0..=15, then with 0, 16, ..., 240.
    nibbles: [u8; 32],
    /// Multiplication as an 8 x 8 bit matrix, in the order of `gf2p8affineqb`:
    /// byte `7 - i` holds the bits of the factor that make up bit `i` of the product.
    affine: u64,
}

impl Coef {
    pub(crate) fn new(value: u8) -> Self {
        let mut nibbles = [0; 32];
        for digit in 0..16u8 {
            nibbles[usize::from(digit)] = gf::mul(value, digit);
            nibbles[usize::from(digit) + 16] = gf::mul(value, digit << 4);
        }
        let mut affine = [0; 8];
        for bit in 0..8 {
            let product = gf::mul(value, 1 << bit);
            for (row, line) in affine.iter_mut().rev().enumerate() {
                *line |= (product >> row & 1) << bit;
            }
        }
        Self {
            nibbles,
            affine: u64::from_le_bytes(affine),
        }
    }

    /// The coefficient itself.
    pub(crate) fn value(&self) -> u8 {
        self.nibbles[1]
    }
}

/// The rows of one piece of work: sources, targets, and whether to add to what targets hold.
///
/// Rows are given as slices, so they are valid and targets overlap nothing for `'a`; of rows
/// given as pointers the caller promises it.
pub(crate) struct Job<'a> {
    sources: [MaybeUninit<*const u8>; DATA_MAX],
    source_count: usize,
    targets: [MaybeUninit<*mut u8>; PARITY_MAX],
    target_count: usize,
    len: usize,
    add: bool,
    rows: PhantomData<&'a mut [u8]>,
}

impl<'a> Job<'a> {
    /// A job on rows of `len` bytes that overwrites its targets.
    #[inline]
    pub(crate) fn new(len: usize) -> Self {
        Self {
            sources: [const { MaybeUninit::uninit() }; DATA_MAX],
            source_count: 0,
            targets: [const { MaybeUninit::uninit() }; PARITY_MAX],
            target_count: 0,
            len,
            add: false,
            rows: PhantomData,
        }
    }

    /// The same, XORing into its targets.
    #[inline]
    pub(crate) fn adding(mut self) -> Self {
        self.add = true;
        self
    }

    /// Appends a source.
    ///
    /// # Panics
    /// If the row is not of the job's length, or there are 32 already.
    #[inline]
    pub(crate) fn source(&mut self, row: &'a [u8]) {
        assert_eq!(row.len(), self.len);
        self.sources[self.source_count].write(row.as_ptr());
        self.source_count += 1;
    }

    /// Appends a target.
    ///
    /// # Panics
    /// If the row is not of the job's length, or there are 8 already.
    #[inline]
    pub(crate) fn target(&mut self, row: &'a mut [u8]) {
        assert_eq!(row.len(), self.len);
        self.targets[self.target_count].write(row.as_mut_ptr());
        self.target_count += 1;
    }

    /// Appends the sources of the mask `which`, of rows that lie end to end.
    ///
    /// # Panics
    /// If `rows` end before the last of them, or there are more than 32 then.
    #[inline]
    pub(crate) fn sources(&mut self, rows: &'a [u8], which: u64) {
        assert!(rows_of(which) * self.len <= rows.len());
        let row = |index| rows.as_ptr().wrapping_add(index * self.len);
        append(
            &mut self.sources,
            &mut self.source_count,
            bits(which).map(row),
        );
    }

    /// Appends sources and targets by a mask each, of rows that lie end to end.
    ///
    /// # Panics
    /// If `rows` end before the last of them, a row is both, or there are more than 32 sources or 8
    /// targets then.
    #[inline]
    pub(crate) fn rows(&mut self, rows: &'a mut [u8], sources: u64, targets: u64) {
        assert_eq!(sources & targets, 0, "a source is a target");
        assert!(rows_of(sources | targets) * self.len <= rows.len());
        let rows = rows.as_mut_ptr();
        let row = |index| rows.wrapping_add(index * self.len);
        let source = |index| row(index).cast_const();
        append(
            &mut self.sources,
            &mut self.source_count,
            bits(sources).map(source),
        );
        append(
            &mut self.targets,
            &mut self.target_count,
            bits(targets).map(row),
        );
    }

    /// Appends a source that others may write to meanwhile.
    ///
    /// # Safety
    /// `row` is valid for reads of the job's length for `'a`, and no target overlaps it.
    ///
    /// # Panics
    /// If there are 32 already.
    #[inline]
    pub(crate) unsafe fn raw_source(&mut self, row: *const u8) {
        self.sources[self.source_count].write(row);
        self.source_count += 1;
    }

    /// Appends a target that others may write to meanwhile.
    ///
    /// # Safety
    /// `row` is valid for writes of the job's length for `'a`, and overlaps no other row.
    ///
    /// # Panics
    /// If there are 8 already.
    #[inline]
    pub(crate) unsafe fn raw_target(&mut self, row: *mut u8) {
        self.targets[self.target_count].write(row);
        self.target_count += 1;
    }

    /// Pointers to the sources.
    #[inline]
    fn source_rows(&self) -> &[*const u8] {
        // SAFETY: the first `source_count` were written, and none is ever taken away.
        unsafe { self.sources[..self.source_count].assume_init_ref() }
    }

    /// Pointers to the targets.
    #[inline]
    fn target_rows(&self) -> &[*mut u8] {
        // SAFETY: the first `target_count` were written, and none is ever taken away.
        unsafe { self.targets[..self.target_count].assume_init_ref() }
    }
}

/// Rows that there are at least, where a mask names some.
fn rows_of(mask: u64) -> usize {
    (u64::BITS - mask.leading_zeros()) as usize
}

/// Appends `rows` to the first `count` of `list`.
///
/// Counted in a register: through memory, row by row, eight of them take some nanoseconds.
#[inline]
fn append<T>(list: &mut [MaybeUninit<T>], count: &mut usize, rows: impl Iterator<Item = T>) {
    let mut next = *count;
    for row in rows {
        list[next].write(row);
        next += 1;
    }
    *count = next;
}

#[cfg(test)]
mod tests;
