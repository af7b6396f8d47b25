//! Bytes that were stored and are in no copy yet, by address.

use std::collections::BTreeMap;

use smallvec::SmallVec;

/// What some steps store, the last of each byte. Kept by lines, so that a load finds quickly what
/// it is to see of them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WriteSet {
    /// By address in lines.
    lines: BTreeMap<u64, Line>,
}

/// Bytes of a line; of a mask, and arbitrary: most stores are of a few words.
const LINE: usize = 64;

#[derive(Clone, Debug, Eq, PartialEq)]
struct Line {
    /// A bit for each byte that was stored.
    stored: u64,
    bytes: [u8; LINE],
}

/// A range of one line: its number, the first byte in it, and where it is in the whole.
fn parts(addr: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = addr.wrapping_add(done as u64);
        let within = (at % LINE as u64) as usize;
        let count = (LINE - within).min(len - done);
        done += count;
        Some((at / LINE as u64, within, done - count..done))
    })
}

fn mask(within: usize, count: usize) -> u64 {
    let bits = if count == LINE {
        u64::MAX
    } else {
        (1 << count) - 1
    };
    bits << within
}

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Lines that it has something of: what it costs.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// How many lines of a range it has nothing of.
    pub(crate) fn lines_missing(&self, addr: u64, len: usize) -> usize {
        let lines = parts(addr, len).map(|(line, ..)| line);
        lines.filter(|line| !self.lines.contains_key(line)).count()
    }

    /// How many lines a range is in.
    pub(crate) fn lines_of(addr: u64, len: usize) -> usize {
        let within = (addr % LINE as u64) as usize;
        (within + len).div_ceil(LINE)
    }

    pub(crate) fn clear(&mut self) {
        self.lines.clear();
    }

    pub(crate) fn store(&mut self, addr: u64, source: &[u8]) {
        for (line, within, part) in parts(addr, source.len()) {
            let line = self.lines.entry(line).or_insert(Line {
                stored: 0,
                bytes: [0; LINE],
            });
            let source = &source[part];
            line.bytes[within..within + source.len()].copy_from_slice(source);
            line.stored |= mask(within, source.len());
        }
    }

    /// Puts what was stored over bytes that were loaded from `addr`; whether there was any.
    pub(crate) fn patch(&self, addr: u64, target: &mut [u8]) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        let mut any = false;
        for (number, within, part) in parts(addr, target.len()) {
            let Some(line) = self.lines.get(&number) else {
                continue;
            };
            let mut left = line.stored & mask(within, part.len());
            any |= left != 0;
            while left != 0 {
                let byte = left.trailing_zeros() as usize;
                target[part.start + byte - within] = line.bytes[byte];
                left &= left - 1;
            }
        }
        any
    }

    /// Takes in what was stored after it.
    pub(crate) fn absorb(&mut self, later: &Self) {
        for (number, line) in &later.lines {
            let known = self.lines.entry(*number).or_insert(Line {
                stored: 0,
                bytes: [0; LINE],
            });
            let mut left = line.stored;
            while left != 0 {
                let byte = left.trailing_zeros() as usize;
                known.bytes[byte] = line.bytes[byte];
                left &= left - 1;
            }
            known.stored |= line.stored;
        }
    }

    /// Its bytes, in pieces without gaps that cross no multiple of `border`, by address.
    pub(crate) fn pieces(&self, border: u64) -> Vec<(u64, SmallVec<[u8; 16]>)> {
        let mut pieces: Vec<(u64, SmallVec<[u8; 16]>)> = Vec::new();
        for (number, line) in &self.lines {
            let mut left = line.stored;
            while left != 0 {
                let byte = left.trailing_zeros() as usize;
                let addr = number * LINE as u64 + byte as u64;
                let goes_on = |(start, bytes): &&mut (u64, SmallVec<[u8; 16]>)| {
                    start + bytes.len() as u64 == addr && !addr.is_multiple_of(border)
                };
                match pieces.last_mut().filter(goes_on) {
                    Some((_, bytes)) => bytes.push(line.bytes[byte]),
                    None => pieces.push((addr, SmallVec::from_slice(&line.bytes[byte..=byte]))),
                }
                left &= left - 1;
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SPACE: usize = 400;

    fn stores() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        vec((0..300u64, vec(any::<u8>(), 1..100)), 0..12)
    }

    fn set_of(stores: &[(u64, Vec<u8>)]) -> (WriteSet, Vec<Option<u8>>) {
        let (mut set, mut model) = (WriteSet::default(), vec![None; SPACE]);
        for (addr, bytes) in stores {
            set.store(*addr, bytes);
            for (at, byte) in (*addr as usize..).zip(bytes) {
                model[at] = Some(*byte);
            }
        }
        (set, model)
    }

    proptest! {
        #[test]
        fn it_is_what_was_stored_last_of_each_byte(first in stores(), later in stores()) {
            let both = [&first[..], &later[..]].concat();
            let (whole, model) = set_of(&both);
            let (mut set, _) = set_of(&first);
            set.absorb(&set_of(&later).0);
            prop_assert_eq!(&set, &whole);

            for (addr, len) in [(0, SPACE), (7, 130), (64, 64), (299, 1)] {
                let mut target = vec![0xab; len];
                let expected = &model[addr..addr + len];
                let any = set.patch(addr as u64, &mut target);
                prop_assert_eq!(any, expected.iter().any(Option::is_some));
                let expected: Vec<_> = expected.iter().map(|byte| byte.unwrap_or(0xab)).collect();
                prop_assert_eq!(target, expected);
            }

            let mut pieced = vec![None; SPACE];
            let pieces = set.pieces(128);
            for (addr, bytes) in &pieces {
                let last = addr + bytes.len() as u64 - 1;
                prop_assert_eq!(addr / 128, last / 128);
                for (at, byte) in (*addr as usize..).zip(bytes) {
                    prop_assert!(pieced[at].replace(*byte).is_none());
                }
            }
            prop_assert_eq!(pieced, model);
            // As few as there can be.
            let touches = |pair: &[(u64, SmallVec<[u8; 16]>)]| {
                let end = pair[0].0 + pair[0].1.len() as u64;
                end == pair[1].0 && !end.is_multiple_of(128)
            };
            prop_assert!(!pieces.windows(2).any(touches));
        }
    }
}
