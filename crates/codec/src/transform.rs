//! The matrix that turns `k` splits of a code word into others of its splits.
//!
//! Encoding, decoding, regeneration and comparing are all this one thing with
//! other sources and targets. Splits are named by bits of a mask: data splits
//! are bits `0..k`, parities bits `k..k + r`; sources and targets are taken in
//! ascending order.
//!
//! Shapes: `coefs` is sources x targets, one source after the other.

use crate::{
    code::{PARITY_MAX, Shape},
    gf,
    kernel::Coef,
};

/// Coefficients of targets over sources, ready for the kernels.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    targets: usize,
    coefs: Box<[Coef]>,
}

impl Transform {
    /// The transform from the `k` splits in `sources` to those in `targets`.
    ///
    /// Cost: `k` squared table look-ups at most, some microseconds; hence the cache.
    ///
    /// # Panics
    /// If `sources` are not `k` splits or share one with `targets`.
    pub(crate) fn new(shape: Shape, sources: u64, targets: u64) -> Self {
        assert_eq!(sources.count_ones() as usize, shape.k);
        assert_eq!(sources & targets, 0);
        let solved = Solved::new(shape, sources);
        let count = targets.count_ones() as usize;
        let mut coefs = Vec::with_capacity(shape.k * count);
        for source in bits(sources) {
            coefs.extend(bits(targets).map(|target| Coef::new(solved.coef(target, source))));
        }
        Self {
            targets: count,
            coefs: coefs.into_boxed_slice(),
        }
    }

    /// Every coefficient, for a kernel that makes all targets.
    pub(crate) fn coefs(&self) -> &[Coef] {
        &self.coefs
    }

    /// The coefficient of the `target`-th target over the `source`-th source.
    pub(crate) fn coef(&self, target: usize, source: usize) -> &Coef {
        assert!(target < self.targets);
        &self.coefs[source * self.targets + target]
    }
}

/// Indices of the bits set in `mask`, ascending.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        lowest
    })
}

/// The missing data splits, solved for over the parities that stand in for them.
struct Solved {
    shape: Shape,
    /// Data splits that are no source.
    missing: Vec<usize>,
    /// Parities that are sources, as many.
    parities: Vec<usize>,
    /// Missing data x parities: the inverse of that part of the generator.
    inverse: Square,
}

impl Solved {
    fn new(shape: Shape, sources: u64) -> Self {
        let missing: Vec<_> = bits(!sources & shape.data()).collect();
        let parities: Vec<_> = bits(sources & !shape.data()).collect();
        let mut matrix = Square::default();
        for (row, &parity) in parities.iter().enumerate() {
            for (col, &data) in missing.iter().enumerate() {
                matrix[row][col] = shape.coef(parity, data);
            }
        }
        Self {
            inverse: invert(matrix, missing.len()),
            shape,
            missing,
            parities,
        }
    }

    /// What `target` takes of `source`.
    fn coef(&self, target: usize, source: usize) -> u8 {
        if target < self.shape.k {
            return self.data_coef(target, source);
        }
        let direct = if source < self.shape.k {
            self.shape.coef(target, source)
        } else {
            0
        };
        self.missing.iter().fold(direct, |sum, &data| {
            sum ^ gf::mul(self.shape.coef(target, data), self.data_coef(data, source))
        })
    }

    /// What the missing data split `target` takes of `source`.
    fn data_coef(&self, target: usize, source: usize) -> u8 {
        let find = |list: &[usize], wanted| list.iter().position(|&index| index == wanted);
        let row = find(&self.missing, target).expect("a data target is missing from the sources");
        if let Some(col) = find(&self.parities, source) {
            return self.inverse[row][col];
        }
        let terms = self.parities.iter().enumerate();
        terms.fold(0, |sum, (col, &parity)| {
            sum ^ gf::mul(self.inverse[row][col], self.shape.coef(parity, source))
        })
    }
}

/// Top left part used; no more than `r` splits are ever solved for.
type Square = [[u8; PARITY_MAX]; PARITY_MAX];

/// Inverse of the top left `size` x `size` of a Cauchy matrix, by Gauss and Jordan.
fn invert(mut matrix: Square, size: usize) -> Square {
    let mut inverse = Square::default();
    for (row, line) in inverse.iter_mut().enumerate() {
        line[row] = 1;
    }
    for pivot in 0..size {
        // Every leading minor of a Cauchy matrix is one itself, so no pivot is ever zero.
        let scale = gf::inverse(matrix[pivot][pivot]);
        for col in 0..size {
            matrix[pivot][col] = gf::mul(matrix[pivot][col], scale);
            inverse[pivot][col] = gf::mul(inverse[pivot][col], scale);
        }
        for row in (0..size).filter(|&row| row != pivot) {
            let factor = matrix[row][pivot];
            for col in 0..size {
                matrix[row][col] ^= gf::mul(factor, matrix[pivot][col]);
                inverse[row][col] ^= gf::mul(factor, inverse[pivot][col]);
            }
        }
    }
    inverse
}
