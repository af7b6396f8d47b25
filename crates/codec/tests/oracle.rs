//! Against `rusty_erasure`, an independent library with ISA-L's matrices, on
//! every kernel that this CPU can run.

use cenote_codec::{Code, Kernel};
use proptest::{prelude::*, test_runner::FileFailurePersistence};
use rusty_erasure::{Coder, Matrix};

/// The code on every kernel of this CPU; names on standard error those it lacks.
fn codes(k: usize, r: usize) -> Vec<Code> {
    let (can, cannot): (Vec<_>, Vec<_>) = Kernel::ALL
        .into_iter()
        .partition(|kernel| kernel.is_supported());
    if k == 8 && r == 2 {
        for kernel in cannot {
            eprintln!("skipped: this CPU cannot run kernel {}", kernel.name());
        }
    }
    let made = can
        .into_iter()
        .map(|kernel| Code::with_kernel(k, r, kernel));
    made.map(Result::unwrap).collect()
}

/// Parities of `data` by the oracle on its scalar kernel, `r` splits end to end.
fn oracle_parity(k: usize, r: usize, data: &[u8]) -> Vec<u8> {
    let split = data.len() / k;
    let mut parity = vec![0; r * split];
    if parity.is_empty() {
        return parity;
    }
    let coder = Coder::new(Matrix::cauchy(k, r).unwrap()).unwrap();
    let rows: Vec<&[u8]> = data.chunks(split).collect();
    let mut targets: Vec<&mut [u8]> = parity.chunks_mut(split).collect();
    coder.encode(&rows, &mut targets).unwrap();
    parity
}

/// Bytes that no two positions of interest share.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// A mask of `count` of the lowest `of` bits, picked by `seed`.
fn some_bits(seed: u64, count: usize, of: usize) -> u64 {
    let mut order: Vec<usize> = (0..of).collect();
    let keys = noise(seed, of);
    order.sort_by_key(|&bit| (keys[bit], bit));
    order[..count].iter().fold(0, |sum, bit| sum | 1 << bit)
}

fn holds(mask: u64, index: usize) -> bool {
    mask >> index & 1 == 1
}

/// Any shape with a split length around and between vector widths.
fn shapes() -> impl Strategy<Value = (usize, usize, usize, u64)> {
    let split = prop_oneof![0usize..200, 240usize..530, Just(512), Just(4096)];
    (1usize..=32, 0usize..=8, split, any::<u64>())
}

/// 256 cases a property; a failing one is kept beside this file.
fn config() -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig {
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn parities_are_the_oracles((k, r, split, seed) in shapes()) {
        let data = noise(seed, k * split);
        let expected = oracle_parity(k, r, &data);
        for code in codes(k, r) {
            let mut parity = vec![0xcc; r * split];
            code.encode(&data, &mut parity);
            prop_assert_eq!(&parity, &expected, "{:?}", code);
        }
    }

    #[test]
    fn any_k_splits_give_the_data_back((k, r, split, seed) in shapes(), spare in 0usize..=8) {
        let data = noise(seed, k * split);
        let parity = oracle_parity(k, r, &data);
        let present = some_bits(seed, (k + spare.min(r)).min(k + r), k + r);
        for code in codes(k, r) {
            let mut damaged = data.clone();
            let mut left = parity.clone();
            for index in (0..k + r).filter(|&index| !holds(present, index)) {
                let row = match index.checked_sub(k) {
                    None => &mut damaged[index * split..][..split],
                    Some(row) => &mut left[row * split..][..split],
                };
                row.fill(0xee);
            }
            code.reconstruct(present, &mut damaged, &left).unwrap();
            prop_assert_eq!(&damaged, &data, "{:?} {:b}", code, present);
        }
    }

    #[test]
    fn any_split_is_rebuilt_from_any_k_others(
        (k, r, split, seed) in shapes(),
        target in any::<prop::sample::Index>(),
    ) {
        prop_assume!(r > 0);
        let data = noise(seed, k * split);
        let word = [&data[..], &oracle_parity(k, r, &data)].concat();
        let row = |index: usize| &word[index * split..][..split];
        let target = target.index(k + r);
        let others = some_bits(seed, k, k + r - 1);
        let sources: Vec<_> = (0..k + r)
            .filter(|&index| index != target)
            .enumerate()
            .filter(|&(at, _)| holds(others, at))
            .map(|(_, index)| (index, row(index)))
            .collect();
        for code in codes(k, r) {
            let mut out = vec![0xcc; split];
            code.rebuild(target, &sources, &mut out).unwrap();
            prop_assert_eq!(&out[..], row(target), "{:?} {}", code, target);
            let rows: Vec<_> = sources.iter().map(|(i, row)| (*i, row.as_ptr())).collect();
            let mut raw = vec![0xcc; split + 2];
            // SAFETY: every row is `split` bytes long, and `raw` is from its second byte.
            unsafe { code.rebuild_raw(target, &rows, raw.as_mut_ptr().add(1), split) }.unwrap();
            prop_assert_eq!(&raw[1..=split], row(target), "{:?} {}, raw", code, target);
            prop_assert_eq!((raw[0], raw[split + 1]), (0xcc, 0xcc), "around the target");
        }
    }

    #[test]
    fn data_that_are_known_to_be_zero_need_not_be_given(
        (k, r, split, seed) in shapes(),
        zero_count in any::<prop::sample::Index>(),
        target in any::<prop::sample::Index>(),
    ) {
        prop_assume!(r > 0);
        let zeroes = some_bits(seed ^ 2, zero_count.index(k), k);
        let mut data = noise(seed, k * split);
        for index in (0..k).filter(|&index| holds(zeroes, index)) {
            data[index * split..][..split].fill(0);
        }
        let word = [&data[..], &oracle_parity(k, r, &data)].concat();
        let row = |index: usize| &word[index * split..][..split];
        let target = target.index(k + r);
        prop_assume!(!holds(zeroes, target));
        let others = (0..k + r).filter(|&index| index != target && !holds(zeroes, index));
        let needed = k - zeroes.count_ones() as usize;
        let sources: Vec<_> = others.take(needed).map(|index| (index, row(index))).collect();
        for code in codes(k, r) {
            let mut out = vec![0xcc; split];
            code.rebuild_beside(target, &sources, zeroes, &mut out).unwrap();
            prop_assert_eq!(&out[..], row(target), "{:?} {}", code, target);
            let twice = code.rebuild_beside(target, &sources, zeroes | 1 << sources[0].0, &mut out);
            prop_assert!(twice.is_err(), "a split that is given and known to be zero");
        }
    }

    #[test]
    fn an_updated_parity_is_that_of_the_changed_data(
        (k, r, split, seed) in shapes(),
        changed in any::<prop::sample::Index>(),
        part in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let mut data = noise(seed, k * split);
        let before = oracle_parity(k, r, &data);
        let (a, b) = (part.0.index(split + 1), part.1.index(split + 1));
        let range = a.min(b)..a.max(b);
        let changed = changed.index(k);
        let delta = noise(!seed, range.len());
        for (byte, change) in data[changed * split..][range.clone()].iter_mut().zip(&delta) {
            *byte ^= change;
        }
        let after = oracle_parity(k, r, &data);
        for code in codes(k, r) {
            let mut parity = before.clone();
            for row in 0..r {
                let part = &mut parity[row * split..][range.clone()];
                code.update(row, changed, &delta, part);
            }
            prop_assert_eq!(&parity, &after, "{:?}", code);
        }
    }

    #[test]
    fn more_than_k_splits_agree_until_one_bit_turns(
        (k, r, split, seed) in shapes(),
        at in any::<prop::sample::Index>(),
    ) {
        prop_assume!(r > 0 && split > 0);
        let data = noise(seed, k * split);
        let mut word = [&data[..], &oracle_parity(k, r, &data)].concat();
        let given = some_bits(seed, k + 1 + (seed as usize % r), k + r);
        let indices: Vec<usize> = (0..k + r).filter(|&index| holds(given, index)).collect();
        for code in codes(k, r) {
            let rows = indices.iter().map(|&index| (index, &word[index * split..][..split]));
            prop_assert!(code.consistent(&rows.collect::<Vec<_>>()).unwrap(), "{:?}", code);
        }
        let wrong = indices[at.index(indices.len())];
        word[wrong * split + at.index(split)] ^= 1 << (seed % 8);
        for code in codes(k, r) {
            let rows = indices.iter().map(|&index| (index, &word[index * split..][..split]));
            prop_assert!(!code.consistent(&rows.collect::<Vec<_>>()).unwrap(), "{:?}", code);
        }
    }
}

/// A page of the real size.
const PAGE_BYTES: usize = 4096;

#[test]
fn every_erasure_pattern_of_the_codes_in_use_is_decoded() {
    for (k, r) in [(2, 1), (3, 2), (4, 2), (8, 2), (8, 3)] {
        let split = PAGE_BYTES / k;
        let data = noise(99, k * split);
        let parity = oracle_parity(k, r, &data);
        let patterns = (0u64..1 << (k + r)).filter(|present| present.count_ones() as usize >= k);
        let mut decoded = 0;
        for present in patterns {
            for code in codes(k, r) {
                let mut damaged = data.clone();
                for lost in (0..k).filter(|&index| !holds(present, index)) {
                    damaged[lost * split..][..split].fill(0xee);
                }
                let mut left = parity.clone();
                for lost in (0..r).filter(|&row| !holds(present, k + row)) {
                    left[lost * split..][..split].fill(0xee);
                }
                code.reconstruct(present, &mut damaged, &left).unwrap();
                assert!(damaged == data, "{code:?} present {present:b}");
                decoded += 1;
            }
        }
        assert!(decoded >= 1 << r, "({k}, {r}) tried {decoded}");
    }
}

/// A target may lie between sources in one buffer; what lies around it stays.
#[test]
fn reconstruct_writes_nothing_but_missing_splits() {
    for code in codes(8, 2) {
        let split = 77;
        let data = noise(5, 8 * split);
        let parity = oracle_parity(8, 2, &data);
        let mut buffer = noise(6, 3 + data.len() + 3);
        let around = buffer.clone();
        buffer[3..][..data.len()].copy_from_slice(&data);
        buffer[3 + 2 * split..][..2 * split].fill(0);
        let present = 0x3ff & !0b1100;
        code.reconstruct(present, &mut buffer[3..][..data.len()], &parity)
            .unwrap();
        assert_eq!(&buffer[3..][..data.len()], &data[..]);
        assert_eq!(&buffer[..3], &around[..3]);
        assert_eq!(&buffer[3 + data.len()..], &around[3 + data.len()..]);
    }
}

/// A volume's pages get and lose parities without being coded again: how many there are says nothing
/// about any one of them.
#[test]
fn a_parity_is_the_same_however_many_there_are() {
    for k in [2, 4, 8, 16, 32] {
        let data: Vec<u8> = (0..k * 64).map(|at| (at * 167 + at / 7) as u8).collect();
        let all = cenote_codec::Code::new(k, cenote_codec::PARITY_MAX).unwrap();
        let mut parities = vec![0; cenote_codec::PARITY_MAX * 64];
        all.encode(&data, &mut parities);
        for r in 1..cenote_codec::PARITY_MAX {
            let mut fewer = vec![0; r * 64];
            cenote_codec::Code::new(k, r)
                .unwrap()
                .encode(&data, &mut fewer);
            assert_eq!(fewer, parities[..r * 64], "{k}+{r}");
        }
    }
}
