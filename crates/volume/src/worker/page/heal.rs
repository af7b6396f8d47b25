//! Writing wrong splits again, once a read has found what they should be.
//!
//! Under the page's claim, taken only if nobody wrote the page since the read began, so that the
//! bytes are the newest; in the newest epoch, so that no slab is written that is gone or fenced. What
//! stands in the way leaves the split as it is: the next read of the page finds it again.

use std::sync::atomic::Ordering;

use super::state::Page;
use crate::directory::Stripe;
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

/// Members that hold one of these splits of the page, copies in the making included.
fn holders(stripe: &Stripe, page: u32, splits: u64) -> u64 {
    let writable = stripe.writable(page);
    let members = 0..stripe.members.len();
    members
        .filter(|&member| writable >> member & 1 == 1)
        .filter(|&member| splits >> stripe.split_of(member) & 1 == 1)
        .fold(0, |members, member| members | 1 << member)
}
