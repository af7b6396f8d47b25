//! Comparing more than `k` splits, and finding the wrong ones among them.
//!
//! The splits beyond the first `k` are computed from these and subtracted; what
//! is left, the syndrome, is zero if and only if all belong to one code word.
//! Wrong splits are solved for at one byte position where it is not zero, set
//! aside, and the search goes on among the rest.
//! Rule: \[hydra22\] section 4, correction; an accepted word agrees with all but
//! at most `d` of the splits given.

use std::mem::MaybeUninit;

use crate::{
    code::{Code, DATA_MAX, PARITY_MAX, Splits, first_bits},
    error::CodeError,
    gf,
    kernel::Job,
    transform::bits,
};

impl Code {
    /// Finds up to `d` wrong splits; the answer is ascending, and empty if all agree.
    ///
    /// Among `k + 2d + 1` splits the accepted word agrees with at least
    /// `k + d + 1`, and `d + 1` wrong splits are still noticed. `k + 2d` are
    /// taken too (a slab may be lost just then): `d` wrong splits are found as
    /// surely, but with more the answer may be false.
    ///
    /// # Errors
    /// [`CodeError::NotLocatable`] if more than `d` are wrong;
    /// [`CodeError::TooFewSplits`] with fewer than `k + 2d` or no more than `k`;
    /// [`CodeError::NoSuchSplit`]; [`CodeError::RepeatedSplit`]; [`CodeError::Length`].
    pub fn locate(&self, splits: &[(usize, &[u8])], d: usize) -> Result<Vec<usize>, CodeError> {
        Ok(bits(self.locate_set(splits, d)?).collect())
    }

    /// As [`locate`](Self::locate), as a bit per split and without allocating.
    ///
    /// # Errors
    /// As `locate`.
    pub fn locate_set(&self, splits: &[(usize, &[u8])], d: usize) -> Result<u64, CodeError> {
        let checked = Splits::new(self.shape(), splits)?;
        let given = splits.len();
        let needed = self.shape().k.saturating_add(d.saturating_mul(2).max(1));
        if given < needed {
            return Err(CodeError::TooFewSplits { needed, given });
        }
        let mut wrong = 0u64;
        while let Some(difference) = self.first_difference(&checked, checked.mask & !wrong) {
            let budget = d - wrong.count_ones() as usize;
            wrong |= self
                .explain(&difference, budget)
                .ok_or(CodeError::NotLocatable {
                    tolerated: d,
                    given,
                })?;
        }
        Ok(wrong)
    }

    /// The first position at which the splits in `mask`, more than `k`, disagree.
    pub(crate) fn first_difference(&self, splits: &Splits<'_>, mask: u64) -> Option<Difference> {
        let sources = first_bits(mask, self.shape().k);
        let targets = mask & !sources;
        let transform = self.transform(sources, targets);
        let mut scratch = [const { MaybeUninit::uninit() }; PARITY_MAX];
        let mut rows: [&mut [u8]; PARITY_MAX] = Default::default();
        let rows = &mut rows[..targets.count_ones() as usize];
        for (row, block) in rows.iter_mut().zip(&mut scratch) {
            *row = block.write([0; BLOCK_BYTES]);
        }
        for start in (0..splits.split_bytes).step_by(BLOCK_BYTES) {
            let len = BLOCK_BYTES.min(splits.split_bytes - start);
            let mut job = Job::new(len).adding();
            for index in bits(sources) {
                job.source(&splits.bytes[index][start..][..len]);
            }
            for (row, index) in rows.iter_mut().zip(bits(targets)) {
                row[..len].copy_from_slice(&splits.bytes[index][start..][..len]);
                job.target(&mut row[..len]);
            }
            self.run(&job, transform.coefs());
            if rows.iter().all(|row| is_zero(&row[..len])) {
                continue;
            }
            let at = (0..len).find(|&at| rows.iter().any(|row| row[at] != 0));
            let at = at.expect("a block that is not zero has a byte that is not");
            let mut syndrome = [0; PARITY_MAX];
            for (value, row) in syndrome.iter_mut().zip(&*rows) {
                *value = row[at];
            }
            return Some(Difference {
                sources,
                targets,
                syndrome,
            });
        }
        None
    }

    /// The fewest splits, at most `budget`, that being wrong make this syndrome.
    ///
    /// Cost: tries all sets of `budget` among the splits: 92 for two among
    /// (8,5), about 100,000 for four among (32,8).
    fn explain(&self, difference: &Difference, budget: usize) -> Option<u64> {
        let transform = self.transform(difference.sources, difference.targets);
        let rows = difference.targets.count_ones() as usize;
        let mut columns = [(0, [0; PARITY_MAX]); DATA_MAX + PARITY_MAX];
        let mut count = 0;
        for (at, index) in bits(difference.sources).enumerate() {
            for (row, value) in columns[count].1[..rows].iter_mut().enumerate() {
                *value = transform.coef(row, at).value();
            }
            columns[count].0 = index;
            count += 1;
        }
        for (row, index) in bits(difference.targets).enumerate() {
            columns[count].0 = index;
            columns[count].1[row] = 1;
            count += 1;
        }
        (1..=budget).find_map(|size| pick(&columns[..count], size, difference.syndrome))
    }
}

/// Where splits disagree, and how.
pub(crate) struct Difference {
    /// The `k` splits taken as given.
    sources: u64,
    /// The others, compared with what follows from these.
    targets: u64,
    /// By target, at that byte position; the rest is zero.
    syndrome: Column,
}

/// One byte per compared split.
type Column = [u8; PARITY_MAX];

/// Bytes of a split compared at once; a page of eight splits in one go, on the stack.
const BLOCK_BYTES: usize = 512;

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |sum, byte| sum | byte) == 0
}

/// A set of `size` columns, each taken at least once, that spans `syndrome`.
///
/// Each level takes one column out of all that follow and of the syndrome, so
/// that what remains must be spanned by the columns still to be picked.
fn pick(columns: &[(usize, Column)], size: usize, syndrome: Column) -> Option<u64> {
    if size == 0 {
        return (syndrome == Column::default()).then_some(0);
    }
    for (at, &(index, column)) in columns.iter().enumerate() {
        let rest = &columns[at + 1..];
        if rest.len() + 1 < size {
            break;
        }
        let Some(pivot) = column.iter().position(|&value| value != 0) else {
            continue;
        };
        let scale = gf::inverse(column[pivot]);
        let reduce = |other: Column| {
            let factor = gf::mul(other[pivot], scale);
            std::array::from_fn(|row| other[row] ^ gf::mul(factor, column[row]))
        };
        let mut reduced = [(0, Column::default()); DATA_MAX + PARITY_MAX];
        if size > 1 {
            for (to, &(index, other)) in reduced.iter_mut().zip(rest) {
                *to = (index, reduce(other));
            }
        }
        if let Some(set) = pick(&reduced[..rest.len()], size - 1, reduce(syndrome)) {
            return Some(set | 1 << index);
        }
    }
    None
}

#[cfg(test)]
mod tests;
