//! What a code refuses, and how it is shared.

use super::{Code, Shape, Splits};
use crate::{CodeError, Kernel};

fn page() -> Vec<u8> {
    (0..4096)
        .map(|at: usize| (at * 31 + at / 256) as u8)
        .collect()
}

#[test]
fn shapes_outside_the_limits_are_refused() {
    for (k, r) in [(0, 0), (0, 2), (33, 0), (8, 9), (usize::MAX, usize::MAX)] {
        assert_eq!(Code::new(k, r).unwrap_err(), CodeError::Shape { k, r });
    }
    for (k, r) in [(1, 0), (1, 8), (32, 0), (32, 8)] {
        let code = Code::new(k, r).unwrap();
        assert_eq!((code.k(), code.r()), (k, r));
    }
}

#[test]
fn a_kernel_the_cpu_lacks_is_refused() {
    for kernel in Kernel::ALL {
        let made = Code::with_kernel(8, 2, kernel);
        if kernel.is_supported() {
            assert_eq!(made.unwrap().kernel(), kernel);
        } else {
            let refused = CodeError::KernelUnsupported { kernel };
            assert_eq!(made.unwrap_err(), refused);
        }
    }
}

#[test]
fn reconstruct_refuses_bad_arguments_and_changes_nothing() {
    let code = Code::new(8, 2).unwrap();
    let mut data = page();
    let parity = vec![7; 1024];
    let refusals = [
        (
            code.reconstruct(0b00_0111_1111, &mut data, &parity),
            CodeError::TooFewSplits {
                needed: 8,
                given: 7,
            },
        ),
        (
            code.reconstruct(1 << 10 | 0xff, &mut data, &parity),
            CodeError::NoSuchSplit {
                index: 10,
                splits: 10,
            },
        ),
        (
            code.reconstruct(0xff, &mut data[..4095], &parity),
            CodeError::Length {
                expected: 4088,
                given: 4095,
            },
        ),
        (
            code.reconstruct(0xff, &mut data, &parity[..1023]),
            CodeError::Length {
                expected: 1024,
                given: 1023,
            },
        ),
    ];
    for (answer, error) in refusals {
        assert_eq!(answer.unwrap_err(), error);
    }
    assert_eq!(data, page());
}

/// Rows that are taken in several runs, of more sources than are read side by side.
#[test]
#[cfg_attr(
    miri,
    ignore = "takes minutes, and its accesses are those of short rows"
)]
fn long_rows_are_rebuilt_as_short_ones_are() {
    for (k, len) in [(1, 16384), (4, 16384), (5, 40_000), (32, 16385), (9, 65536)] {
        let code = Code::new(k, 2).unwrap();
        let byte = |row: usize, at: usize| (row * 31 + at * 7 + at / 251) as u8;
        let rows: Vec<Vec<u8>> = (1..=k)
            .map(|row| (0..len).map(|at| byte(row, at)).collect())
            .collect();
        let sources: Vec<_> = (1..=k).zip(rows.iter().map(Vec::as_slice)).collect();
        let (mut expected, mut raw) = (vec![1; len], vec![2; len]);
        code.rebuild(0, &sources, &mut expected).unwrap();
        let rows: Vec<_> = sources.iter().map(|(i, row)| (*i, row.as_ptr())).collect();
        // SAFETY: every row is `len` bytes long.
        unsafe { code.rebuild_raw(0, &rows, raw.as_mut_ptr(), len) }.unwrap();
        assert_eq!(raw, expected, "k {k}, {len} bytes");
    }
}

#[test]
fn rebuild_refuses_bad_arguments() {
    let code = Code::new(3, 2).unwrap();
    let row = [1u8; 16];
    let mut out = [0u8; 16];
    let mut rebuild = |target, sources: &[usize]| {
        let sources: Vec<_> = sources.iter().map(|&index| (index, &row[..])).collect();
        let refused = code.rebuild(target, &sources, &mut out).unwrap_err();
        let rows: Vec<_> = sources.iter().map(|(i, row)| (*i, row.as_ptr())).collect();
        // SAFETY: the rows and `out` are 16 bytes each.
        let raw = unsafe { code.rebuild_raw(target, &rows, out.as_mut_ptr(), 16) };
        assert_eq!(raw.unwrap_err(), refused);
        refused
    };
    let few = CodeError::TooFewSplits {
        needed: 3,
        given: 2,
    };
    let many = CodeError::TooManySplits {
        needed: 3,
        given: 4,
    };
    let none = CodeError::NoSuchSplit {
        index: 5,
        splits: 5,
    };
    assert_eq!(rebuild(0, &[1, 2]), few);
    assert_eq!(rebuild(0, &[1, 2, 3, 4]), many);
    assert_eq!(rebuild(5, &[0, 1, 2]), none);
    assert_eq!(rebuild(0, &[1, 2, 5]), none);
    assert_eq!(
        rebuild(0, &[1, 2, 2]),
        CodeError::RepeatedSplit { index: 2 }
    );
    assert_eq!(
        rebuild(0, &[0, 1, 2]),
        CodeError::RepeatedSplit { index: 0 }
    );
    assert_eq!(out, [0; 16]);
    let sources = [(1, &row[..]), (2, &row[..]), (3, &row[..15])];
    let length = CodeError::Length {
        expected: 16,
        given: 15,
    };
    assert_eq!(code.rebuild(0, &sources, &mut out).unwrap_err(), length);
}

#[test]
fn consistent_refuses_k_splits_and_fewer() {
    let code = Code::new(2, 2).unwrap();
    let row = [1u8; 8];
    for given in 0..=2 {
        let splits: Vec<_> = (0..given).map(|index| (index, &row[..])).collect();
        let error = CodeError::TooFewSplits { needed: 3, given };
        assert_eq!(code.consistent(&splits).unwrap_err(), error);
    }
}

#[test]
fn two_parities_are_mirrored_if_k_is_even() {
    for k in 1..=32 {
        for r in 0..=8 {
            let code = Code::with_kernel(k, r, Kernel::Portable).unwrap();
            assert_eq!(code.pairs.is_some(), r == 2 && k % 2 == 0, "{k} + {r}");
        }
    }
}

#[test]
#[should_panic(expected = "data is not k splits")]
fn encode_panics_on_a_length_that_does_not_divide() {
    Code::new(8, 2).unwrap().encode(&[0; 4095], &mut [0; 1024]);
}

#[test]
#[should_panic(expected = "parity is not r splits")]
fn encode_panics_on_a_short_parity() {
    Code::new(8, 2).unwrap().encode(&[0; 4096], &mut [0; 512]);
}

#[test]
#[should_panic(expected = "no such parity")]
fn update_panics_on_a_row_that_is_not_there() {
    let code = Code::new(8, 2).unwrap();
    code.update(2, 0, &[0; 8], &mut [0; 8]);
}

#[test]
fn threads_share_a_code_without_a_lock() {
    let code = Code::new(8, 3).unwrap();
    let data = page();
    let mut parity = vec![0; 1536];
    code.encode(&data, &mut parity);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (code, data, parity) = (&code, &data, &parity);
            scope.spawn(move || {
                let rounds = if cfg!(miri) { 2 } else { 64 };
                for lost in (0..8).cycle().skip(thread).take(rounds) {
                    let mut page = data.clone();
                    page[lost * 512..][..512].fill(0xee);
                    let present = 0x7ff & !(1 << lost);
                    code.reconstruct(present, &mut page, parity).unwrap();
                    assert!(&page == data, "split {lost}");
                }
            });
        }
    });
}

#[test]
fn splits_of_no_bytes_are_no_error() {
    let code = Code::new(4, 2).unwrap();
    code.encode(&[], &mut []);
    code.reconstruct(0b11_1100, &mut [], &[]).unwrap();
    let empty: [(usize, &[u8]); 5] = std::array::from_fn(|index| (index, &[][..]));
    assert!(code.consistent(&empty).unwrap());
    let splits = Splits::new(Shape { k: 4, r: 2 }, &empty).unwrap();
    assert_eq!((splits.mask, splits.split_bytes), (0b1_1111, 0));
}
