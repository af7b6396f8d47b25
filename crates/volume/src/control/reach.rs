//! How long requests wait for slabs that are out of reach, and for hosts to map extents on.
//!
//! Silence is not death. While fewer than k slabs of a stripe are there, and enough of those that are
//! unreachable are on hosts that may answer again, its requests wait. A host whose process has ended (nothing
//! listens at its address) is not waited for, and no host for longer than [`AWAITED_MAX`]: then requests are
//! errors, as long as it lasts, and what the slabs hold stays theirs.
//! Decision 59.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_fabric::Time;

use super::context::Context;
use super::host::AWAITED_MAX;
use crate::directory::{Snapshot, Stripe};

/// Extents of which too few slabs are there, and since when.
#[derive(Default)]
pub(super) struct Reach {
    since: BTreeMap<usize, Time>,
}

impl Reach {
    /// Forgets extents that can be read again, or are gone.
    pub(super) fn retain(&mut self, snapshot: &Snapshot) {
        self.since.retain(|&extent, _| {
            let stripe = snapshot.extents.get(extent).and_then(Option::as_deref);
            stripe.is_some_and(|stripe| !stripe.is_there())
        });
    }

    /// The time that has passed does not count.
    pub(super) fn begin_again(&mut self) {
        self.since.clear();
    }

    /// Whether the requests of an extent have waited for as long as they do.
    fn has_waited(&mut self, extent: usize, now: Time) -> bool {
        now.since(*self.since.entry(extent).or_insert(now)) >= AWAITED_MAX
    }

    /// Decides whether requests of extents with fewer than k slabs wait for those that are unreachable.
    pub(super) fn judge(
        &mut self,
        cx: &Context,
        snapshot: &Snapshot,
        extents: &[usize],
        now: Time,
    ) {
        let mut changed = Vec::new();
        for &extent in extents {
            let Some(stripe) = snapshot.extents[extent].as_deref() else {
                continue;
            };
            let is_out_of_reach = self.has_waited(extent, now) || is_hopeless(cx, stripe, now);
            if is_out_of_reach != stripe.is_out_of_reach {
                changed.push((extent, is_out_of_reach));
            }
        }
        if changed.is_empty() {
            return;
        }
        let given_up = changed
            .iter()
            .filter(|(_, is_out_of_reach)| *is_out_of_reach);
        let extents = given_up.count();
        if extents > 0 {
            tracing::error!(
                extents,
                "too few hosts are there, and none is awaited: requests are errors until enough answer"
            );
        }
        cx.core.directory.publish(|next| {
            for (extent, is_out_of_reach) in changed {
                if let Some(stripe) = &mut next.extents[extent] {
                    Arc::make_mut(stripe).is_out_of_reach = is_out_of_reach;
                }
            }
            true
        });
    }
}

/// Whether too few slabs of a stripe are there, or on hosts that may answer again soon.
fn is_hopeless(cx: &Context, stripe: &Stripe, now: Time) -> bool {
    let unreachable = stripe.unreachable.iter().flatten();
    let awaited = unreachable.filter(|slab| cx.hosts[slab.host].is_awaited(now));
    stripe.readable().count_ones() as usize + awaited.count() < stripe.cut.k()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_for_so_long_and_again_once_their_extent_was_there() {
        let mut reach = Reach::default();
        let (start, end) = (Time(5), Time(5).after(AWAITED_MAX));
        assert!(!reach.has_waited(3, start));
        assert!(!reach.has_waited(3, Time(end.0 - 1)) && reach.has_waited(3, end));
        assert!(!reach.has_waited(4, end), "each for itself");
        reach.begin_again();
        assert!(!reach.has_waited(3, end));
    }
}
