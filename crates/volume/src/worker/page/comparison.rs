//! Reads that compare what they get: which splits they ask for first, and who is blamed for a difference.
//!
//! A split that is found wrong is written again under the page's claim once the read has its bytes (`heal`).
//!
//! Paper: \[hydra22\] 4.1 (corruption detection and correction), 4.2.

use std::sync::atomic::Ordering;

use super::gather::Gather;
use super::state::Page;
use crate::Mode;
use crate::marks::Soundness;
use crate::worker::data_path::DataPath;
use crate::worker::verbs::bits;
use crate::worker::verdict::Rule;

impl Gather {
    /// The splits that are read at first: all data, so that nothing is decoded while they agree,
    /// and parities in turn, so that each is looked at. Copies all take turns.
    pub(super) fn first_look(&self, page: &Page, path: &DataPath, readable: u64) -> u64 {
        let resilience = page.resilience();
        let k = page.cut().k();
        let is_doubtful = || page.soundness(&path.core) != Soundness::Sound;
        let wanted = if page.is_scrub() || self.is_wide || is_doubtful() {
            page.split_count()
        } else if is_doubted(page, path) && resilience.compares() {
            resilience.correction_splits()
        } else if resilience.compares() {
            resilience.read_splits()
        } else {
            k + 1
        };
        let data = if k == 1 { 0 } else { readable & ((1 << k) - 1) };
        let others = readable & !data;
        let missing = wanted.saturating_sub(data.count_ones() as usize);
        data | turns(others, page.number, missing)
    }

    /// Whether a read of the page asks for splits to compare.
    #[inline]
    pub(super) fn is_compared(&self, page: &Page, path: &DataPath, soundness: Soundness) -> bool {
        let is_tagged = path.tags().is_some();
        match soundness {
            Soundness::Sound => {
                page.resilience().compares()
                    || page.is_scrub()
                    || self.is_wide
                    || is_tagged && is_doubted(page, path)
            }
            // Some of its splits are of the old page and some of the new: the tags tell.
            Soundness::Doubtful => is_tagged,
            Soundness::Torn => false,
        }
    }

    /// How the splits of the page are compared.
    pub(super) fn rule(&self, page: &Page) -> Rule {
        let resilience = page.resilience();
        let sees_all = page.is_scrub() || (page.is_move() && self.is_wide);
        let tolerated = match resilience.mode() {
            Mode::Correction => resilience.delta(),
            // All that is there was read, or is yet to be: one that is wrong shows.
            _ if sees_all => 1,
            _ => 0,
        };
        Rule {
            tolerated,
            needed: resilience.correction_splits(),
        }
    }
}

/// `count` bits of `mask`, or all of it, beginning with another one for each page.
pub(super) fn turns(mask: u64, page: u64, count: usize) -> u64 {
    let all = mask.count_ones() as usize;
    if count >= all {
        return mask;
    }
    let skip = usize::try_from(page % all as u64).expect("below 64");
    let chosen = bits(mask).chain(bits(mask)).skip(skip).take(count);
    chosen.fold(0, |chosen, bit| chosen | 1 << bit)
}

/// Whether some host of the page's stripe has sent wrong splits lately.
fn is_doubted(page: &Page, path: &DataPath) -> bool {
    let integrity = &path.core.pages.integrity;
    integrity.has_suspects()
        && page.stripe(&path.views).is_some_and(|stripe| {
            let mut members = stripe.members.iter().flatten();
            members.any(|member| integrity.is_suspicious(member.session.host))
        })
}

/// Blames the hosts of splits that were found wrong, and remembers to write these again.
pub(super) fn note_wrong(page: &mut Page, path: &mut DataPath, wrong: u64) {
    page.wrong = wrong;
    if wrong == 0 {
        return;
    }
    if page.is_scrub() {
        path.guard.wrong_count += u64::from(wrong.count_ones());
    }
    let Some(stripe) = page.stripe(&path.views) else {
        return;
    };
    for split in bits(wrong) {
        if let Some(member) = &stripe.members[split] {
            path.core.pages.integrity.name(member.session.host);
        }
    }
    tracing::debug!(page = page.number, wrong, "splits of a page are wrong");
}

/// Splits disagree, and which of them are wrong cannot be told.
pub(super) fn note_corrupt(page: &Page, path: &DataPath) {
    let integrity = &path.core.pages.integrity;
    integrity
        .counters
        .corrupt_reads
        .fetch_add(1, Ordering::Relaxed);
    let is_sound = page.soundness(&path.core) == Soundness::Sound;
    if let Some(stripe) = page.stripe(&path.views).filter(|_| is_sound) {
        let among = page.verbs.acked.count_ones();
        let read = bits(page.verbs.acked).filter_map(|split| stripe.members[split].as_ref());
        read.for_each(|member| integrity.suspect(member.session.host, among));
    }
    tracing::warn!(
        page = page.number,
        read = page.verbs.acked,
        "splits of a page disagree"
    );
}

#[cfg(test)]
mod tests {
    use super::turns;

    #[test]
    fn every_bit_has_its_turn() {
        assert_eq!(turns(0b1011, 0, 2), 0b0011);
        assert_eq!(turns(0b1011, 1, 2), 0b1010);
        assert_eq!(turns(0b1011, 2, 2), 0b1001);
        assert_eq!(turns(0b1011, 3, 2), 0b0011);
        assert_eq!(turns(0b1011, 7, 3), 0b1011);
        assert_eq!(turns(0b1011, 7, 9), 0b1011);
        assert_eq!(turns(0, 7, 1), 0);
        assert_eq!(turns(0b1, 7, 0), 0);
    }
}
