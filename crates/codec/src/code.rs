//! The code itself: checks what it is given and hands pointers to a kernel.
//!
//! Called by whoever keeps pages or values in splits; calls [`Transform`] for
//! matrices and [`Kernel`] for bytes.
//! Invariants: every pointer handed to a kernel is valid for the split's
//! length, and no target overlaps a source or another target.

use std::{borrow::Cow, fmt};

use crate::{
    cache::TransformCache,
    error::CodeError,
    gf,
    kernel::{Coef, Job, Kernel, mirrored},
    transform::{Transform, bits},
};

/// Most data splits of a code.
pub const DATA_MAX: usize = 32;

/// Most parity splits of a code.
pub const PARITY_MAX: usize = 8;

/// Sources that are read side by side where they come from memory and not from a cache, and ...
///
/// Slabs begin on pages, so a line of each source falls into the same set of a cache: of eight
/// sources and a target one is pushed out before it is used. Four at a time are twice as fast.
const STREAMS: usize = 4;

/// ... bytes of each until the next four are, while the target stays in a cache.
const RUN_BYTES: usize = 16 * 1024;

/// A systematic Reed-Solomon code of `k` data and `r` parity splits.
///
/// Split `i` is a data split below `k` and parity `i - k` from there on.
/// One value serves any number of threads; make it once and share it.
/// A call allocates only when it meets a set of splits for the first time,
/// or one for which its cache has no room.
pub struct Code {
    shape: Shape,
    kernel: Kernel,
    /// All parities over all data.
    encoder: Transform,
    /// Of two parities that are mirrored.
    pairs: Option<Box<[Coef]>>,
    cache: TransformCache,
}

impl Code {
    /// A code of `k` data splits, 1 to 32, and `r` parities, 0 to 8, on this CPU's best kernel.
    ///
    /// # Errors
    /// [`CodeError::Shape`].
    pub fn new(k: usize, r: usize) -> Result<Self, CodeError> {
        Self::with_kernel(k, r, Kernel::best())
    }

    /// As [`new`](Self::new), on a kernel of the caller's choice: for tests and benchmarks.
    ///
    /// # Errors
    /// [`CodeError::Shape`], [`CodeError::KernelUnsupported`].
    pub fn with_kernel(k: usize, r: usize, kernel: Kernel) -> Result<Self, CodeError> {
        if !(1..=DATA_MAX).contains(&k) || r > PARITY_MAX {
            return Err(CodeError::Shape { k, r });
        }
        if !kernel.is_supported() {
            return Err(CodeError::KernelUnsupported { kernel });
        }
        let shape = Shape { k, r };
        let encoder = Transform::new(shape, shape.data(), shape.all() & !shape.data());
        Ok(Self {
            shape,
            kernel,
            pairs: (r == 2).then(|| mirrored::pairs(encoder.coefs())).flatten(),
            encoder,
            cache: TransformCache::new(),
        })
    }

    /// Data splits.
    pub fn k(&self) -> usize {
        self.shape.k
    }

    /// Parity splits.
    pub fn r(&self) -> usize {
        self.shape.r
    }

    /// The kernel in use.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Makes all parities: `data` is `k` splits end to end, `parity` becomes `r` of them.
    ///
    /// # Panics
    /// If the lengths are not `k` and `r` times the same.
    pub fn encode(&self, data: &[u8], parity: &mut [u8]) {
        let Shape { k, r } = self.shape;
        let split = self.shape.split_bytes(data.len());
        assert_eq!(data.len(), k * split, "data is not k splits");
        assert_eq!(parity.len(), r * split, "parity is not r splits");
        if split == 0 {
            return;
        }
        if let Some(pairs) = &self.pairs {
            return self.kernel.encode_mirrored(data, parity, pairs);
        }
        let mut job = Job::new(split);
        job.sources(data, self.shape.data());
        job.rows(parity, 0, (1 << r) - 1);
        self.run(&job, self.encoder.coefs());
    }

    /// Brings parity `row` up to date with a change to data split `split`.
    ///
    /// `delta` is the XOR of old and new bytes of any part of the split;
    /// `parity` is the same part of the parity.
    ///
    /// # Panics
    /// If there is no such row or split, or if the lengths differ.
    pub fn update(&self, row: usize, split: usize, delta: &[u8], parity: &mut [u8]) {
        assert!(row < self.shape.r, "no such parity");
        assert!(split < self.shape.k, "no such data split");
        assert_eq!(delta.len(), parity.len(), "parts of different length");
        let mut job = Job::new(delta.len()).adding();
        job.source(delta);
        job.target(parity);
        self.run(&job, std::slice::from_ref(self.encoder.coef(row, split)));
    }

    /// Rebuilds the missing data splits where they lie.
    ///
    /// `data` is `k` splits end to end and `parity` `r` of them; bit `i` of
    /// `present` says that split `i` holds its bytes. Data splits that are not
    /// present are written, nothing else is; parities are only read.
    ///
    /// # Errors
    /// [`CodeError::TooFewSplits`] with fewer than `k` present;
    /// [`CodeError::NoSuchSplit`] for a bit from `k + r` up; [`CodeError::Length`].
    pub fn reconstruct(
        &self,
        present: u64,
        data: &mut [u8],
        parity: &[u8],
    ) -> Result<(), CodeError> {
        let Shape { k, r } = self.shape;
        let split = self.shape.split_bytes(data.len());
        check_length(k * split, data.len())?;
        check_length(r * split, parity.len())?;
        self.check_indices(present)?;
        let targets = self.shape.data() & !present;
        if targets == 0 {
            return Ok(());
        }
        let sources = self.choose(present)?;
        if split == 0 {
            return Ok(());
        }
        let mut job = Job::new(split);
        job.rows(data, sources & self.shape.data(), targets);
        job.sources(parity, sources >> k);
        self.run(&job, self.transform(sources, targets).coefs());
        Ok(())
    }

    /// Rebuilds split `target`, data or parity, from exactly `k` others of its length.
    ///
    /// # Errors
    /// [`CodeError::TooFewSplits`] or [`CodeError::TooManySplits`] unless `k` are given;
    /// [`CodeError::NoSuchSplit`]; [`CodeError::RepeatedSplit`]; [`CodeError::Length`].
    pub fn rebuild(
        &self,
        target: usize,
        sources: &[(usize, &[u8])],
        out: &mut [u8],
    ) -> Result<(), CodeError> {
        let splits = Splits::new(self.shape, sources)?;
        self.check_rebuild(target, splits.mask, sources.len())?;
        check_length(splits.split_bytes, out.len())?;
        let mut job = Job::new(splits.split_bytes);
        bits(splits.mask).for_each(|index| job.source(splits.bytes[index]));
        job.target(out);
        self.run(&job, self.transform(splits.mask, 1 << target).coefs());
        Ok(())
    }

    /// As [`rebuild`](Self::rebuild), with the splits of the mask `zeroes` as further sources: they are
    /// known to hold zeroes and cost nothing.
    ///
    /// # Errors
    /// As `rebuild`'s.
    pub fn rebuild_beside(
        &self,
        target: usize,
        sources: &[(usize, &[u8])],
        zeroes: u64,
        out: &mut [u8],
    ) -> Result<(), CodeError> {
        let splits = Splits::new(self.shape, sources)?;
        let unknown = zeroes & !self.shape.all();
        if unknown != 0 {
            return Err(self.no_such_split(unknown.trailing_zeros() as usize));
        }
        if let Some(index) = bits(splits.mask & zeroes).next() {
            return Err(CodeError::RepeatedSplit { index });
        }
        let mask = splits.mask | zeroes;
        self.check_rebuild(target, mask, mask.count_ones() as usize)?;
        if splits.mask == 0 {
            out.fill(0);
            return Ok(());
        }
        check_length(splits.split_bytes, out.len())?;
        let transform = self.transform(mask, 1 << target);
        let coefs = bits(mask).zip(transform.coefs());
        let coefs: Vec<Coef> = coefs
            .filter(|(index, _)| zeroes >> index & 1 == 0)
            .map(|(_, coef)| *coef)
            .collect();
        let mut job = Job::new(splits.split_bytes);
        bits(splits.mask).for_each(|index| job.source(splits.bytes[index]));
        job.target(out);
        self.run(&job, &coefs);
        Ok(())
    }

    /// As [`rebuild`](Self::rebuild), from and to `len` bytes of memory that others may write to
    /// meanwhile, and that is in no cache.
    ///
    /// If they do, `out` is unspecified there.
    ///
    /// # Errors
    /// As `rebuild`'s, except for lengths.
    ///
    /// # Safety
    /// Every source is valid for reads of `len` bytes, and `out` for writes; no reference
    /// covers `out`, and its addresses are not those of a source.
    #[allow(
        unsafe_code,
        reason = "memory that another process writes has no references"
    )]
    pub unsafe fn rebuild_raw(
        &self,
        target: usize,
        sources: &[(usize, *const u8)],
        out: *mut u8,
        len: usize,
    ) -> Result<(), CodeError> {
        let mut rows = [std::ptr::null(); DATA_MAX + PARITY_MAX];
        let mut mask = 0;
        for &(index, row) in sources {
            if index >= self.shape.splits() {
                return Err(self.no_such_split(index));
            }
            if mask >> index & 1 == 1 {
                return Err(CodeError::RepeatedSplit { index });
            }
            mask |= 1 << index;
            rows[index] = row;
        }
        self.check_rebuild(target, mask, sources.len())?;
        let mut given = [std::ptr::null(); DATA_MAX];
        for (row, index) in given.iter_mut().zip(bits(mask)) {
            *row = rows[index];
        }
        let transform = self.transform(mask, 1 << target);
        let groups = || given[..sources.len()].chunks(STREAMS);
        for at in (0..len).step_by(RUN_BYTES) {
            let coefs = transform.coefs().chunks(STREAMS);
            for (index, (group, coefs)) in groups().zip(coefs).enumerate() {
                let job = Job::new(RUN_BYTES.min(len - at));
                let mut job = if index == 0 { job } else { job.adding() };
                // SAFETY: the caller's, and the run ends where the rows do.
                unsafe {
                    group.iter().for_each(|row| job.raw_source(row.add(at)));
                    job.raw_target(out.add(at));
                }
                self.run(&job, coefs);
            }
        }
        Ok(())
    }

    /// Whether `given` sources, `mask`, are what `target` is rebuilt from.
    fn check_rebuild(&self, target: usize, mask: u64, given: usize) -> Result<(), CodeError> {
        let needed = self.shape.k;
        if given < needed {
            return Err(CodeError::TooFewSplits { needed, given });
        }
        if given > needed {
            return Err(CodeError::TooManySplits { needed, given });
        }
        if target >= self.shape.splits() {
            return Err(self.no_such_split(target));
        }
        if mask >> target & 1 == 1 {
            return Err(CodeError::RepeatedSplit { index: target });
        }
        Ok(())
    }

    /// Whether more than `k` splits belong to one code word.
    ///
    /// Sees any corruption of at most as many splits as were given beyond `k`.
    ///
    /// # Errors
    /// [`CodeError::TooFewSplits`] with `k` or fewer, which always agree;
    /// [`CodeError::NoSuchSplit`]; [`CodeError::RepeatedSplit`]; [`CodeError::Length`].
    pub fn consistent(&self, splits: &[(usize, &[u8])]) -> Result<bool, CodeError> {
        let checked = Splits::new(self.shape, splits)?;
        if splits.len() <= self.shape.k {
            return Err(CodeError::TooFewSplits {
                needed: self.shape.k + 1,
                given: splits.len(),
            });
        }
        Ok(self.first_difference(&checked, checked.mask).is_none())
    }

    /// The first `k` of `present`: every data split there is, then parities.
    fn choose(&self, present: u64) -> Result<u64, CodeError> {
        let data = self.shape.data();
        let (mut sources, mut parities) = (present & data, present & !data);
        for _ in bits(data & !present) {
            if parities == 0 {
                let (needed, given) = (self.shape.k, present.count_ones() as usize);
                return Err(CodeError::TooFewSplits { needed, given });
            }
            let rest = parities & (parities - 1);
            sources |= parities ^ rest;
            parities = rest;
        }
        Ok(sources)
    }

    fn check_indices(&self, mask: u64) -> Result<(), CodeError> {
        match bits(mask & !self.shape.all()).next() {
            Some(index) => Err(self.no_such_split(index)),
            None => Ok(()),
        }
    }

    fn no_such_split(&self, index: usize) -> CodeError {
        let splits = self.shape.splits();
        CodeError::NoSuchSplit { index, splits }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    #[inline]
    pub(crate) fn transform(&self, sources: u64, targets: u64) -> Cow<'_, Transform> {
        self.cache.transform(self.shape, sources, targets)
    }

    pub(crate) fn run(&self, job: &Job<'_>, coefs: &[Coef]) {
        self.kernel.run(job, coefs);
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { k, r } = self.shape;
        write!(f, "Code({k}, {r}, {})", self.kernel.name())
    }
}

/// How many splits of each kind; within the limits once a [`Code`] exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) k: usize,
    pub(crate) r: usize,
}

impl Shape {
    pub(crate) fn splits(self) -> usize {
        self.k + self.r
    }

    /// Bytes of a split of `data_bytes`. A page takes some tens of nanoseconds, a division a few.
    fn split_bytes(self, data_bytes: usize) -> usize {
        if self.k.is_power_of_two() {
            data_bytes >> self.k.trailing_zeros()
        } else {
            data_bytes / self.k
        }
    }

    /// Mask of the data splits.
    pub(crate) fn data(self) -> u64 {
        (1 << self.k) - 1
    }

    /// Mask of all splits.
    pub(crate) fn all(self) -> u64 {
        (1 << self.splits()) - 1
    }

    /// What parity split `parity` (from `k` up) takes of data split `data`.
    pub(crate) fn coef(self, parity: usize, data: usize) -> u8 {
        debug_assert!(data < self.k && (self.k..self.splits()).contains(&parity));
        gf::inverse(u8::try_from(parity ^ data).expect("a code has at most 40 splits"))
    }
}

/// Splits a caller handed in, checked and in order of their index.
pub(crate) struct Splits<'a> {
    /// Which there are.
    pub(crate) mask: u64,
    /// Length of each.
    pub(crate) split_bytes: usize,
    /// Empty where there is none.
    pub(crate) bytes: [&'a [u8]; DATA_MAX + PARITY_MAX],
}

impl<'a> Splits<'a> {
    pub(crate) fn new(shape: Shape, given: &[(usize, &'a [u8])]) -> Result<Self, CodeError> {
        let mut splits = Self {
            mask: 0,
            split_bytes: given.first().map_or(0, |(_, bytes)| bytes.len()),
            bytes: [&[]; DATA_MAX + PARITY_MAX],
        };
        for &(index, bytes) in given {
            if index >= shape.splits() {
                let splits = shape.splits();
                return Err(CodeError::NoSuchSplit { index, splits });
            }
            if splits.mask >> index & 1 == 1 {
                return Err(CodeError::RepeatedSplit { index });
            }
            check_length(splits.split_bytes, bytes.len())?;
            splits.mask |= 1 << index;
            splits.bytes[index] = bytes;
        }
        Ok(splits)
    }
}

/// The lowest `count` bits of `mask`, which has as many at least.
pub(crate) fn first_bits(mut mask: u64, count: usize) -> u64 {
    for _ in count..mask.count_ones() as usize {
        mask ^= 1 << mask.ilog2();
    }
    mask
}

fn check_length(expected: usize, given: usize) -> Result<(), CodeError> {
    if expected == given {
        Ok(())
    } else {
        Err(CodeError::Length { expected, given })
    }
}

#[cfg(test)]
mod tests;
