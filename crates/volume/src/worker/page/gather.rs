//! Reading a page's splits, and judging what came: what reads, writes of part of a page, and moves begin
//! with.
//!
//! `ask -> (enough splits landed) -> judge`: the page is whole, and its operation goes on; or it asks for
//! more splits and judges again; or it is an error.
//!
//! Invariants:
//! - Splits are judged when no writer was in between, never before: two versions of a page disagree
//!   without anybody being wrong.
//! - A page whose last write ended unknown is judged by tags alone: its parities may fit neither version.
//! - With k splits there is nothing to compare (soundness Y4): such reads are counted.
//!
//! Paper: \[hydra22\] 4.1.2 (late binding), 4.1 (corruption detection and correction), 4.2.

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::comparison::turns;
use super::state::{Next, Page, Then};
use super::{claim, comparison, disk, late, protection};
use crate::IoError;
use crate::directory::Stripe;
use crate::marks::Soundness;
use crate::worker::data_path::DataPath;
use crate::worker::verdict::{self, Verdict};

/// The reading of a page's splits.
#[derive(Clone, Copy, Default)]
pub(super) struct Gather {
    /// Whether it asks for all there is.
    pub is_wide: bool,
    /// Whether nobody's claim is held: a writer may come in between.
    pub is_optimistic: bool,
}

impl Gather {
    /// Has the page read: as many members' splits as the mode asks for, or by the disk, which is waited for
    /// then. In the newest epoch.
    pub fn ask(&self, page: &mut Page, path: &mut DataPath) -> Next {
        let k = page.cut().k();
        let members = match is_injected(InjectedFault::DecodeStale) {
            true => Stripe::present,
            false => Stripe::readable,
        };
        let readable = page.stripe(&path.views).map_or(0, members);
        let Some(readable) = claim::usable(page, path, readable) else {
            return Next::Park;
        };
        let is_there = readable.count_ones() as usize >= k;
        if path.is_backed() && !(is_there && page.is_remote(path)) {
            // The disk would refuse it until its slabs are back, or are given up and its bit is clear.
            return match !page.is_only_on_slabs(path) && disk::fetch(page, path) {
                true => Next::Wait,
                false => Next::Park,
            };
        }
        if !is_there {
            // Between the look at the bitmap and the epoch it may have been discarded and unmapped.
            let is_stale = self.is_optimistic && !page.is_unchanged(&path.core);
            return match is_stale || awaits_splits(page, path) {
                true => Next::Park,
                false => Next::End(Err(IoError::Lost)),
            };
        }
        let data = (1 << k) - 1;
        let soundness = page.soundness(&path.core);
        let is_compared = self.is_compared(page, path, soundness);
        let chosen = match soundness {
            _ if is_compared => self.first_look(page, path, readable),
            Soundness::Sound => late::choose(page, path, readable),
            // Copies may differ: all readers take the same one.
            Soundness::Doubtful if k == 1 => readable & readable.wrapping_neg(),
            Soundness::Doubtful if readable & data == data => data,
            Soundness::Doubtful if awaits_splits(page, path) => return Next::Park,
            Soundness::Doubtful | Soundness::Torn => return Next::End(Err(IoError::Lost)),
        };
        let waits = match is_compared {
            true => chosen.count_ones(),
            false => page.resilience().read_waits() as u32,
        };
        page.memory.in_scratch = !path.switches.in_place || path.is_sealed() || page.is_nobodys();
        page.verbs.begin_read(chosen, waits);
        if k == 1 && chosen & 1 << page.verbs.primary == 0 {
            page.verbs.primary = chosen.trailing_zeros() as u8;
        }
        if let Some(tags) = path.tags() {
            // It comes while splits do.
            tags.prefetch(page.number);
        }
        Next::Read { splits: chosen }
    }

    /// Makes the page from what was read, as many splits as were waited for: it is whole where it lies.
    ///
    /// # Errors
    /// How its operation goes on instead: it judges later, or the page is lost or corrupt.
    pub fn judge(&self, page: &mut Page, path: &mut DataPath) -> Result<(), Next> {
        // Before anything else is asked: both are of one write.
        let tag = path.tags().map(|tags| tags.load(page.number));
        let soundness = page.soundness(&path.core);
        if tag.is_none() && !self.is_compared(page, path, soundness) {
            path.note_made(page.splits(path).reconstruct(page.verbs.acked));
            return Ok(());
        }
        if self.is_optimistic && !page.is_unchanged(&path.core) {
            path.count_repeat();
            return Err(Next::Apart(Then::Park));
        }
        if soundness == Soundness::Torn {
            // It became so after it was asked for.
            return Err(Next::End(Err(IoError::Lost)));
        }
        // Out of its epoch it asks again.
        let all = (1 << page.split_count()) - 1;
        let readable = page.stripe(&path.views).map_or(all, Stripe::readable);
        let more = page.claim.landed.among(readable) & !page.verbs.acked;
        let more_count = more.count_ones() as usize;
        let verdict = match tag {
            Some(tag) => protection::verdict(page, path, tag, more_count),
            None => self.verdict(page, path, more_count),
        };
        match verdict {
            Verdict::Right { wrong, made } => {
                path.note_made(made);
                // Of a page whose last write ended unknown nobody is wrong.
                let is_sound = soundness == Soundness::Sound;
                comparison::note_wrong(page, path, if is_sound { wrong } else { 0 });
                protection::hand_over(page, &path.guard, &path.core.pages.integrity);
                Ok(())
            }
            Verdict::Ask(count) => {
                let counters = &path.core.pages.integrity.counters;
                counters.extended_reads.fetch_add(1, Ordering::Relaxed);
                Err(ask_more(page, turns(more, 0, count)))
            }
            Verdict::Corrupt if awaits_splits(page, path) => Err(Next::Apart(Then::Park)),
            Verdict::Corrupt => {
                comparison::note_corrupt(page, path);
                Err(Next::End(Err(IoError::Corrupt)))
            }
        }
    }

    /// Judges the splits that were read by each other.
    fn verdict(&self, page: &Page, path: &DataPath, more: usize) -> Verdict {
        let present = page.verbs.acked;
        let splits = page.splits(path);
        if present.count_ones() as usize <= page.cut().k() {
            let counters = &path.core.pages.integrity.counters;
            counters.unchecked_reads.fetch_add(1, Ordering::Relaxed);
            let made = splits.reconstruct(present);
            return Verdict::Right { wrong: 0, made };
        }
        verdict::compare(&splits, present, more, self.rule(page))
    }
}

/// Whether slabs of the page's stripe are out of reach, and what they hold may yet decide what the
/// page is.
pub(super) fn awaits_splits(page: &Page, path: &DataPath) -> bool {
    // The newest: an operation that asked again may have left its epoch.
    let stripe = path.views.known().extents.get(page.place.extent);
    let stripe = stripe.and_then(Option::as_deref);
    let stripe = stripe.filter(|stripe| stripe.cut == page.place.cut);
    stripe.is_some_and(|stripe| {
        stripe.is_awaited() || (stripe.is_there() && stripe.has_unreachable())
    })
}

/// Asks for more splits of the page; for all, where its epoch has been left, or verbs are still out
/// that nobody waits for.
fn ask_more(page: &mut Page, more: u64) -> Next {
    if !page.verbs.is_over() || page.view.epoch == 0 {
        return Next::Apart(Then::Widen);
    }
    page.verbs.ask_more(more);
    Next::Read { splits: more }
}

/// What keeps an operation that has the page's claim from judging what was read: it goes on so instead.
pub(super) fn obstacle(page: &Page, path: &DataPath) -> Option<Next> {
    if !page.verbs.is_over() {
        return Some(Next::Apart(Then::Step));
    }
    // Its place in the list may be one that is left to the next owner.
    path.is_closed().then_some(Next::End(Err(IoError::Closed)))
}
