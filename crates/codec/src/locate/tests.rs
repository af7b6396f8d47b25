//! Every corruption of few splits is found, and one of too many is never passed over.

use crate::{Code, CodeError};

const SPLIT_BYTES: usize = 700;

/// Data that differs from split to split, and its parities.
fn word(code: &Code) -> Vec<Vec<u8>> {
    let data: Vec<u8> = (0..code.k() * SPLIT_BYTES)
        .map(|at| (at * 197 + at / 251) as u8)
        .collect();
    let mut parity = vec![0; code.r() * SPLIT_BYTES];
    code.encode(&data, &mut parity);
    let rows = data.chunks(SPLIT_BYTES).chain(parity.chunks(SPLIT_BYTES));
    rows.map(<[u8]>::to_vec).collect()
}

fn given(word: &[Vec<u8>], indices: impl IntoIterator<Item = usize>) -> Vec<(usize, &[u8])> {
    let rows = indices.into_iter().map(|index| (index, &word[index][..]));
    rows.collect()
}

/// Three ways in which a split goes wrong: one bit, its last byte, all of it.
fn corrupt(row: &mut [u8], how: usize) {
    match how {
        0 => row[300] ^= 0x10,
        1 => *row.last_mut().unwrap() ^= 0xff,
        _ => row.iter_mut().for_each(|byte| *byte ^= 0x5a),
    }
}

#[test]
fn every_single_corruption_of_8_3_is_found() {
    let code = Code::new(8, 3).unwrap();
    let clean = word(&code);
    assert_eq!(code.locate(&given(&clean, 0..11), 1), Ok(vec![]));
    for wrong in 0..11 {
        for how in 0..3 {
            let mut word = clean.clone();
            corrupt(&mut word[wrong], how);
            assert_eq!(code.locate(&given(&word, 0..11), 1), Ok(vec![wrong]));
            let reversed = given(&word, (0..11).rev());
            assert_eq!(code.locate(&reversed, 1), Ok(vec![wrong]));
        }
    }
}

#[test]
fn every_double_corruption_of_8_3_is_noticed() {
    let code = Code::new(8, 3).unwrap();
    let clean = word(&code);
    let unlocatable = CodeError::NotLocatable {
        tolerated: 1,
        given: 11,
    };
    for first in 0..11 {
        for second in first + 1..11 {
            let mut word = clean.clone();
            corrupt(&mut word[first], 2);
            corrupt(&mut word[second], 0);
            assert_eq!(code.locate(&given(&word, 0..11), 1), Err(unlocatable));
        }
    }
}

#[test]
fn every_single_and_double_corruption_of_8_5_is_found() {
    let code = Code::new(8, 5).unwrap();
    let clean = word(&code);
    assert_eq!(code.locate(&given(&clean, 0..13), 2), Ok(vec![]));
    for first in 0..13 {
        for second in first..13 {
            for how in 0..9 {
                let mut word = clean.clone();
                corrupt(&mut word[first], how / 3);
                if first != second {
                    corrupt(&mut word[second], how % 3);
                }
                let mut wrong = vec![first, second];
                wrong.dedup();
                assert_eq!(code.locate(&given(&word, 0..13), 2), Ok(wrong));
            }
        }
    }
}

#[test]
fn k_plus_2d_splits_are_enough_whichever_is_lost() {
    let code = Code::new(8, 3).unwrap();
    let clean = word(&code);
    for lost in 0..11 {
        let rest = (0..11).filter(|&index| index != lost);
        for wrong in rest.clone() {
            let mut word = clean.clone();
            corrupt(&mut word[wrong], 0);
            assert_eq!(code.locate(&given(&word, rest.clone()), 1), Ok(vec![wrong]));
        }
    }
}

#[test]
fn four_wrong_splits_of_the_widest_code_are_found() {
    let code = Code::new(32, 8).unwrap();
    let mut word = word(&code);
    for (how, wrong) in [3, 17, 31, 38].into_iter().enumerate() {
        corrupt(&mut word[wrong], how % 3);
    }
    assert_eq!(
        code.locate(&given(&word, 0..40), 4),
        Ok(vec![3, 17, 31, 38])
    );
}

#[test]
fn consistent_sees_one_wrong_bit_in_any_split() {
    let code = Code::new(4, 2).unwrap();
    let clean = word(&code);
    for lost in 0..6 {
        let rest = (0..6).filter(|&index| index != lost);
        assert_eq!(code.consistent(&given(&clean, rest.clone())), Ok(true));
        for wrong in rest.clone() {
            for at in [0, 511, 512, SPLIT_BYTES - 1] {
                let mut word = clean.clone();
                word[wrong][at] ^= 1;
                assert_eq!(code.consistent(&given(&word, rest.clone())), Ok(false));
            }
        }
    }
}

#[test]
fn too_few_splits_to_tell_are_refused() {
    let code = Code::new(8, 3).unwrap();
    let word = word(&code);
    for (splits, d, needed) in [
        (8, 0, 9),
        (9, 1, 10),
        (11, 2, 12),
        (11, usize::MAX, usize::MAX),
    ] {
        let error = CodeError::TooFewSplits {
            needed,
            given: splits,
        };
        assert_eq!(code.locate(&given(&word, 0..splits), d), Err(error));
    }
}
