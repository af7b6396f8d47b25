//! Two parities whose matrix is mirrored, with three products where four would be.
//!
//! With an even `k` and two parities every two data splits `x`, `y` have coefficients `a`, `b` in
//! the first parity and `b`, `a` in the second: `(k + 1) ^ j` is `k ^ (j ^ 1)`. With `s = x + y`
//! and `d = a + b` they add `as + dy` to the first, and `ds` more than that to the second.
//!
//! The rows lie end to end, so no list of them is made: for a page that would take as long as a
//! tenth of its coding.

use super::{
    Coef,
    lanes::{Lanes, load, store},
};

/// `a` and `d` of every two sources; nothing unless `coefs`, of two targets, are mirrored.
pub(crate) fn pairs(coefs: &[Coef]) -> Option<Box<[Coef]>> {
    let (blocks, []) = coefs.as_chunks::<4>() else {
        return None;
    };
    let mut pairs = Vec::with_capacity(coefs.len() / 2);
    for [a, b, c, d] in blocks {
        if (a, b) != (d, c) {
            return None;
        }
        pairs.extend([*a, Coef::new(a.value() ^ b.value())]);
    }
    Some(pairs.into_boxed_slice())
}

/// Makes both parities, `V` vectors of each at a time.
///
/// # Safety
/// The CPU has the instructions of `L`; `parity` is two splits and `data` one for each of `pairs`.
#[inline(always)]
pub(super) unsafe fn encode<L: Lanes, const V: usize>(
    data: &[u8],
    parity: &mut [u8],
    pairs: &[Coef],
) {
    let split = parity.len() / 2;
    debug_assert_eq!(data.len(), split * pairs.len());
    let mut at = 0;
    // SAFETY: every step stays below `split`; the rest is the caller's.
    unsafe {
        while split - at >= V * L::BYTES {
            step::<L, V>(data, parity, pairs, at, L::BYTES);
            at += V * L::BYTES;
        }
        while split - at >= L::BYTES {
            step::<L, 1>(data, parity, pairs, at, L::BYTES);
            at += L::BYTES;
        }
        if at < split {
            step::<L, 1>(data, parity, pairs, at, split - at);
        }
    }
}

/// `V` vectors of every row, from byte `at`; with `V` 1 the first `len` bytes of a vector.
///
/// # Safety
/// As [`encode`], and a split holds as many bytes from `at`.
#[inline(always)]
unsafe fn step<L: Lanes, const V: usize>(
    data: &[u8],
    parity: &mut [u8],
    pairs: &[Coef],
    at: usize,
    len: usize,
) {
    let split = parity.len() / 2;
    // SAFETY: `x` and `y` are the rows of a pair, of which `data` has as many as there are `pairs`,
    // and the step ends where the row does or before.
    unsafe {
        let mut first = [L::zero(); V];
        let mut difference = [L::zero(); V];
        let mut x = data.as_ptr().add(at);
        for [a, d] in pairs.as_chunks::<2>().0 {
            let (a, d) = (L::factor(a), L::factor(d));
            let y = x.add(split);
            for v in 0..V {
                let y = load::<L>(y.add(v * L::BYTES), len);
                let sum = load::<L>(x.add(v * L::BYTES), len).plus(y).parts();
                difference[v] = difference[v].add_product(d, sum);
                first[v] = first[v].add_product(a, sum).add_product(d, y.parts());
            }
            // Past the end after the last pair, and not read there.
            x = x.wrapping_add(2 * split);
        }
        let parity = parity.as_mut_ptr().add(at);
        for (v, (first, difference)) in first.into_iter().zip(difference).enumerate() {
            store(first, parity.add(v * L::BYTES), len);
            store(
                first.plus(difference),
                parity.add(split + v * L::BYTES),
                len,
            );
        }
    }
}
