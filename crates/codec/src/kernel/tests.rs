//! The Galois-field kernels through a model of their one instruction, so that
//! their tables and their use of vectors are checked on CPUs without it too.

use super::{
    Coef, Job, Kernel,
    lanes::{Lanes, dot},
    mirrored,
};
use crate::gf;

/// A vector of `N` bytes with `gf2p8affineqb` done as the manual defines it.
#[derive(Clone, Copy)]
struct Model<const N: usize>([u8; N]);

impl<const N: usize> Lanes for Model<N> {
    const BYTES: usize = N;
    type Factor = u64;
    type Parts = [u8; N];

    unsafe fn zero() -> Self {
        Self([0; N])
    }

    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's pointer is valid for `N` bytes.
        Self(unsafe { from.cast::<[u8; N]>().read_unaligned() })
    }

    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's pointer is valid for `N` bytes.
        unsafe { to.cast::<[u8; N]>().write_unaligned(self.0) }
    }

    unsafe fn load_part(from: *const u8, len: usize) -> Self {
        assert!((1..N).contains(&len));
        let mut bytes = [0; N];
        // SAFETY: the caller's pointer is valid for `len` bytes.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        Self(bytes)
    }

    unsafe fn store_part(self, to: *mut u8, len: usize) {
        assert!((1..N).contains(&len));
        // SAFETY: the caller's pointer is valid for `len` bytes.
        unsafe { to.copy_from_nonoverlapping(self.0.as_ptr(), len) };
    }

    unsafe fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] ^ other.0[at]))
    }

    unsafe fn factor(coef: &Coef) -> u64 {
        coef.affine
    }

    unsafe fn parts(self) -> [u8; N] {
        self.0
    }

    unsafe fn add_product(self, factor: u64, parts: [u8; N]) -> Self {
        Self(std::array::from_fn(|at| {
            self.0[at] ^ affine_byte(factor, parts[at])
        }))
    }
}

/// Intel's SDM, GF2P8AFFINEQB: bit `i` of the result is the parity of the source
/// AND byte `7 - i` of the matrix; the immediate is zero here.
fn affine_byte(matrix: u64, byte: u8) -> u8 {
    (0..8).fold(0, |sum, bit| {
        let row = matrix.to_le_bytes()[7 - bit];
        let parity = (row & byte).count_ones() & 1 == 1;
        sum | u8::from(parity) << bit
    })
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone")]
fn the_bit_matrix_of_every_coefficient_multiplies() {
    for value in 0..=255 {
        let coef = Coef::new(value);
        assert_eq!(coef.value(), value);
        for byte in 0..=255 {
            assert_eq!(
                affine_byte(coef.affine, byte),
                gf::mul(value, byte),
                "{value} * {byte}"
            );
        }
    }
}

/// `targets[t][i] = sum of coefs[s][t] * sources[s][i]`, one byte at a time.
fn expected(values: &[u8], sources: &[Vec<u8>], target: usize, at: usize) -> u8 {
    let rows = values.len() / sources.len();
    (0..sources.len()).fold(0, |sum, source| {
        sum ^ gf::mul(values[source * rows + target], sources[source][at])
    })
}

fn check<L: Lanes, const R: usize, const V: usize, const S: usize>() {
    // Miri takes half a minute for each.
    let step = if cfg!(miri) { 3 * L::BYTES - 5 } else { 1 };
    for len in (0..=(V + 2) * L::BYTES + 1).step_by(step) {
        let sources: Vec<Vec<u8>> = (0..5)
            .map(|row| (0..len).map(|at| (at * 89 + row * 41 + 7) as u8).collect())
            .collect();
        let values: Vec<u8> = (0..5 * R).map(|at| (at * 53) as u8).collect();
        let coefs: Vec<Coef> = values.iter().map(|&value| Coef::new(value)).collect();
        for add in [false, true] {
            let mut targets = vec![vec![0xa5u8; len]; R];
            let mut job = Job::new(len);
            if add {
                job = job.adding();
            }
            sources.iter().for_each(|row| job.source(row));
            targets.iter_mut().for_each(|row| job.target(row));
            // SAFETY: the model needs no instructions; the job has R targets and 5 sources.
            unsafe { dot::<L, R, V, S>(&job, &coefs) };
            for (target, row) in targets.iter().enumerate() {
                for (at, byte) in row.iter().enumerate() {
                    let before = if add { 0xa5 } else { 0 };
                    let product = expected(&values, &sources, target, at);
                    assert_eq!(*byte, product ^ before, "len {len} target {target} at {at}");
                }
            }
        }
    }
}

#[test]
fn the_loop_is_right_for_every_length_in_the_shapes_of_the_wide_kernels() {
    if cfg!(miri) {
        return check::<Model<32>, 2, 1, 2>();
    }
    check::<Model<64>, 1, 8, 2>();
    check::<Model<64>, 2, 8, 2>();
    check::<Model<64>, 3, 4, 2>();
    check::<Model<64>, 8, 2, 2>();
    check::<Model<32>, 2, 4, 1>();
    check::<Model<32>, 8, 1, 1>();
}

/// Coefficients of two targets: those of every second source are the ones before, swapped.
fn mirrored_values(sources: usize) -> Vec<u8> {
    let pairs =
        (0..sources / 2).map(|pair| [pair * 53 + 9, pair * 91 + 4].map(|value| value as u8));
    pairs.flat_map(|[a, b]| [a, b, b, a]).collect()
}

/// Whether `encode` makes the parities that `values` say, for each length of a split.
fn check_mirrored(
    sources: usize,
    lens: impl Iterator<Item = usize>,
    encode: impl Fn(&[u8], &mut [u8], &[Coef]),
) {
    let values = mirrored_values(sources);
    let coefs: Vec<Coef> = values.iter().map(|&value| Coef::new(value)).collect();
    let pairs = mirrored::pairs(&coefs).unwrap();
    for len in lens {
        let data: Vec<u8> = (0..sources * len).map(|at| (at * 89 + 7) as u8).collect();
        let rows: Vec<Vec<u8>> = (0..sources)
            .map(|row| data[row * len..][..len].to_vec())
            .collect();
        let mut parity = vec![0xa5; 2 * len];
        encode(&data, &mut parity, &pairs);
        for (at, byte) in parity.iter().enumerate() {
            let wanted = expected(&values, &rows, at / len, at % len);
            assert_eq!(*byte, wanted, "{sources} sources of {len} bytes, at {at}");
        }
    }
}

#[test]
fn mirrored_parities_are_those_of_the_matrix_on_every_kernel() {
    let lens = || [1, 7, 8, 31, 32, 63, 64, 65, 127, 200, 512, 1024, 1111].into_iter();
    for kernel in Kernel::ALL
        .into_iter()
        .filter(|kernel| kernel.is_supported())
    {
        for sources in [2, 8, 32] {
            check_mirrored(sources, lens(), |data, parity, pairs| {
                kernel.encode_mirrored(data, parity, pairs);
            });
        }
    }
}

#[test]
fn the_mirrored_loop_is_right_for_every_length_in_the_shapes_of_the_wide_kernels() {
    let step = if cfg!(miri) { 59 } else { 1 };
    check_mirrored(4, (1..10 * 64).step_by(step), |data, parity, pairs| {
        // SAFETY: the model needs no instructions; the lengths are as `encode` has them.
        unsafe { mirrored::encode::<Model<64>, 8>(data, parity, pairs) }
    });
    check_mirrored(4, (1..6 * 32).step_by(step), |data, parity, pairs| {
        // SAFETY: as above.
        unsafe { mirrored::encode::<Model<32>, 4>(data, parity, pairs) }
    });
}

#[test]
fn other_matrices_are_not_mirrored() {
    let pairs = |values: &[u8]| {
        let coefs: Vec<Coef> = values.iter().map(|&value| Coef::new(value)).collect();
        mirrored::pairs(&coefs)
    };
    assert!(pairs(&mirrored_values(4)).is_some());
    assert!(pairs(&[1, 2, 2, 3]).is_none());
    assert!(pairs(&[1, 2, 2, 1, 5, 6]).is_none());
    assert!(pairs(&[1, 2, 1, 2]).is_none());
}
