//! The sums that an owner lays over the marks when it ends in good order, and the next one checks.
//!
//! The marks are written by plain stores, which keep no checksum. Once nobody stores any more the
//! whole file is summed, in the words of the header that are free: a **group** of blocks has a sum,
//! the list has one, and so have the sums themselves. A bit that flips on the disk until the next
//! owner comes is found then, and put right if it is the only one of its group. A killed owner
//! leaves no sums.
//!
//! They name their owner by its epoch. An owner of an earlier version of this program stores marks
//! and does not take the sums off: they are of an earlier owner than the journal's last one then,
//! and say nothing.
//!
//! Layout: `docs/protocols/journal.md`. Decision 155.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::xxh3;

use super::bitmap::{BLOCK_PAGES, BLOCK_WORDS, KINDS};
use super::{HEADER_WORDS, Marks, MarksError};
use crate::limits::IN_FLIGHT_MAX;

/// Word of the header: the owner that summed, by its epoch; 0: nobody did.
pub(super) const OWNER: usize = 6;
/// The sum of these words themselves.
const OWN_SUM: usize = 7;
/// Pages whose bits are summed, in whole blocks.
const PAGES: usize = 8;
/// Pages that are listed as being written.
const LISTED: usize = 9;
/// The sum of the list.
const LIST_SUM: usize = 10;
/// The first of the sums of groups.
const GROUPS: usize = 16;
const GROUPS_MAX: usize = HEADER_WORDS - GROUPS;
const BLOCK_BYTES: usize = (BLOCK_WORDS * KINDS * 8) as usize;

/// What the marks say that nobody stores to any more, in sums.
struct Sums([u64; HEADER_WORDS - OWNER]);

impl Sums {
    fn at(&mut self, word: usize) -> &mut u64 {
        &mut self.0[word - OWNER]
    }

    /// Of all others.
    fn own(&self) -> u64 {
        let mut words = self.0;
        words[OWN_SUM - OWNER] = 0;
        xxh3(&bytes_of(words.iter().copied()))
    }
}

/// How many blocks share a sum: one has its own up to 62 GiB.
fn group_blocks(pages: u64) -> u64 {
    let blocks = pages.div_ceil(BLOCK_PAGES);
    blocks.div_ceil(GROUPS_MAX as u64).max(1)
}

impl Marks {
    /// Sums the marks of an owner that ends. Nobody stores to them any more.
    pub fn sum_up(&self) {
        if self.file.is_none() {
            return;
        }
        let header = self.header.as_slice();
        let pages = self.written.room().min(self.written.pages());
        let mut sums = Sums([0; HEADER_WORDS - OWNER]);
        *sums.at(OWNER) = self.owner;
        *sums.at(PAGES) = pages;
        *sums.at(LISTED) = self.listed_count();
        *sums.at(LIST_SUM) = self.list_sum();
        for (group, blocks) in (GROUPS..).zip(groups(pages)) {
            *sums.at(group) = self.group_sum(blocks);
        }
        *sums.at(OWN_SUM) = sums.own();
        // The owner last: without it there are no sums.
        for at in (OWNER + 1..HEADER_WORDS).chain([OWNER]) {
            header[at].store(*sums.at(at), Ordering::Release);
        }
    }

    /// Checks the sums of the last owner, which was the one of this epoch, and takes them off: from
    /// here on marks are stored. The pages of a group whose bits are not those that were summed are
    /// torn, up to `page_count`: which of them hold data is not known.
    ///
    /// # Errors
    /// [`MarksError::Damaged`]: pages were being written, and which is not known. The sums stay.
    pub(super) fn check_sums(&self, epoch: u64, page_count: u64) -> Result<(), MarksError> {
        let header = self.header.as_slice();
        let mut sums = Sums(std::array::from_fn(|at| {
            header[OWNER + at].load(Ordering::Acquire)
        }));
        let pages = *sums.at(PAGES);
        if *sums.at(OWNER) == epoch && epoch != 0 {
            if *sums.at(OWN_SUM) == sums.own() && pages <= self.written.pages() {
                self.check(&mut sums, page_count)?;
            } else {
                tracing::warn!("checksums of the list of pages are damaged: it is not checked");
            }
        }
        header[OWNER].store(0, Ordering::Release);
        Ok(())
    }

    fn check(&self, sums: &mut Sums, page_count: u64) -> Result<(), MarksError> {
        if self.list_sum() != *sums.at(LIST_SUM) {
            if *sums.at(LISTED) > 0 {
                let at = HEADER_WORDS * 8;
                return Err(MarksError::Damaged { at });
            }
            tracing::warn!("a flipped bit in the list of pages being written: none was");
            (0..IN_FLIGHT_MAX).for_each(|slot| self.list.end(slot));
        }
        for (group, blocks) in (GROUPS..).zip(groups(*sums.at(PAGES))) {
            let wanted = *sums.at(group);
            if self.group_sum(blocks.clone()) == wanted {
                continue;
            }
            if self.unflip(blocks.clone(), wanted) {
                tracing::warn!("a flipped bit in the list of pages was put right");
                continue;
            }
            let (from, end) = (blocks.start * BLOCK_PAGES, blocks.end * BLOCK_PAGES);
            let end = end.min(page_count);
            tracing::error!(
                from,
                end,
                "the list of pages is damaged on the disk: pages are errors until they are written \
                 whole"
            );
            for page in from..end {
                // In this order it reads as zeros, if at all, where it did before.
                self.torn.insert(page);
                self.written.insert(page);
                self.doubtful.remove(page);
            }
        }
        Ok(())
    }

    fn listed_count(&self) -> u64 {
        let slots = (0..IN_FLIGHT_MAX).filter(|&slot| self.list.entry(slot).is_some());
        slots.count() as u64
    }

    fn list_sum(&self) -> u64 {
        sum_of(self.list.words())
    }

    fn group_sum(&self, blocks: Range<u64>) -> u64 {
        let sums = blocks.map(|block| sum_of(self.written.block(block)));
        xxh3(&bytes_of(sums))
    }

    /// Puts the one bit right with which a group has its sum again, if there is one. Another than
    /// the one that flipped is found by chance once in 2^40 times: a group has some 2^22 bits.
    fn unflip(&self, blocks: Range<u64>, wanted: u64) -> bool {
        let sums = blocks
            .clone()
            .map(|block| sum_of(self.written.block(block)));
        let mut sums: Vec<u64> = sums.collect();
        for (at, block) in blocks.enumerate() {
            let words = self.written.block(block);
            let mut bytes = bytes_of(words.iter().map(|word| word.load(Ordering::Relaxed)));
            let before = sums[at];
            for bit in 0..8 * bytes.len() {
                let (byte, mask) = (bit / 8, 1 << (bit % 8));
                bytes[byte] ^= mask;
                sums[at] = xxh3(&bytes);
                if xxh3(&bytes_of(sums.iter().copied())) == wanted {
                    let mut flip = [0; 8];
                    flip[byte % 8] = mask;
                    words[byte / 8].fetch_xor(u64::from_ne_bytes(flip), Ordering::AcqRel);
                    return true;
                }
                bytes[byte] ^= mask;
            }
            sums[at] = before;
        }
        false
    }
}

/// The blocks of each group.
fn groups(pages: u64) -> impl Iterator<Item = Range<u64>> {
    let (blocks, each) = (pages.div_ceil(BLOCK_PAGES), group_blocks(pages));
    (0..blocks.div_ceil(each)).map(move |group| group * each..blocks.min((group + 1) * each))
}

fn sum_of(words: &[AtomicU64]) -> u64 {
    xxh3(&bytes_of(
        words.iter().map(|word| word.load(Ordering::Relaxed)),
    ))
}

fn bytes_of(words: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    words.for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}
