//! Writing splits again, once a read has found what they should be: those that were wrong; and, by scrubs,
//! all of a page whose last write ended unknown, so that it can be read from any k of them again.
//!
//! Under the page's claim, taken only if nobody wrote the page since the read began, so that the
//! bytes are the newest; in the newest epoch, so that no slab is written that is gone or fenced. What
//! stands in the way leaves the split as it is: the next read of the page finds it again.

use std::sync::atomic::Ordering;

use super::state::Page;
use crate::directory::Stripe;
use crate::marks::Soundness;
use crate::worker::data_path::DataPath;

/// The members to which the page's wrong splits are to be written again, under its claim, which it then
/// has; `None` when there are none, or it cannot be done now.
pub(super) fn claim_wrong(page: &mut Page, path: &mut DataPath) -> Option<u64> {
    // Verbs that nobody waits for keep the operation's place: it can post no others.
    let is_late = !page.verbs.is_over();
    if page.wrong == 0 || is_late || !page.try_claim_read(&path.core) {
        return None;
    }
    page.leave(path);
    page.enter(path);
    let index = page.place.index;
    let stripe = page
        .stripe(&path.views)
        .filter(|stripe| stripe.is_there() && !stripe.fence.contains(index));
    let members = stripe.map_or(0, |stripe| holders(stripe, index, page.wrong));
    (members != 0).then_some(members)
}

/// The page's wrong splits are written again.
pub(super) fn count_healed(page: &mut Page, path: &mut DataPath) {
    let wrong = std::mem::take(&mut page.wrong);
    let counters = &path.core.pages.integrity.counters;
    let count = u64::from(wrong.count_ones());
    counters.healed_splits.fetch_add(count, Ordering::Relaxed);
    if page.is_scrub() {
        path.guard.healed_count += count;
    }
}

/// The members to which a scrub writes a page again whose last write ended unknown, under its claim, which it
/// then has; `None` when it is no such page, or it cannot be done now.
pub(super) fn claim_doubtful(page: &mut Page, path: &mut DataPath) -> Option<u64> {
    let is_doubtful = page.soundness(&path.core) == Soundness::Doubtful;
    // Not if verbs keep its place, as above.
    let is_to_be_mended = page.is_scrub() && is_doubtful && page.verbs.is_over();
    if !is_to_be_mended || !page.try_claim_read(&path.core) {
        return None;
    }
    page.leave(path);
    page.enter(path);
    let index = page.place.index;
    let stripe = page.stripe(&path.views).filter(|stripe| {
        stripe.is_there() && !stripe.has_unreachable() && !stripe.fence.contains(index)
    })?;
    Some(page.required(path, stripe))
}

/// The page was written again to all of them; if it was not, its data splits are what they were.
pub(super) fn end_mending(page: &mut Page, path: &mut DataPath) {
    // A slab that was skipped is out of everybody's sight, and the next owner finds the others.
    let stripe = page.stripe(&path.views);
    let is_known = stripe.is_some_and(|stripe| {
        path.core.directory.is_settled(stripe.changed_in)
            && path.core.is_journaled(stripe.changed_in)
    });
    if page.verbs.failed || !is_known {
        return;
    }
    // In this order: should the owner end in between, the page is read as doubtful as it was.
    page.decide_tag(path);
    path.core.pages.marks.heal(page.number);
}

/// Members that hold one of these splits of the page, copies in the making included.
fn holders(stripe: &Stripe, page: u32, splits: u64) -> u64 {
    let writable = stripe.writable(page);
    let members = 0..stripe.members.len();
    members
        .filter(|&member| writable >> member & 1 == 1)
        .filter(|&member| splits >> stripe.split_of(member) & 1 == 1)
        .fold(0, |members, member| members | 1 << member)
}
