//! Slabs that their hosts want back: each is copied to another host, then given back.
//!
//! A host asks by EVICT and repeats it while it means it, so what is noted here fades by itself.
//! A stripe with a slab that is awaited is not copied from. With a disk behind it, it is dropped (`slab_drop`);
//! one that cannot be is declined. The slabs of an excluded host are moved as well.
//!
//! Invariants: at most one slab of a stripe moves at a time; a slab with nowhere to go is declined,
//! stays in use, and holds up no other slab of its stripe.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Request, Window};

use super::context::Context;
use super::pace::RELOCATIONS_MAX;
use super::relocation::Relocation;
use super::repairer::Repairer;
use crate::directory::{HostIndex, Member, MemberState, Stripe};

/// Slabs that hosts want back.
#[derive(Default)]
pub(super) struct Evictor {
    wanted: BTreeMap<Key, Asked>,
}

/// A host, and what tells a window from all others of it.
type Key = (HostIndex, u32, u64);

struct Asked {
    since: Time,
    at: Time,
    /// Whether the host was told that there is nowhere to go since it asked last.
    declined: bool,
}

/// A host repeats itself every second; one that no longer does has changed its mind.
const FADES: Duration = Duration::from_secs(5);

impl Evictor {
    fn key(host: HostIndex, window: &Window) -> Key {
        (host, window.id, window.generation)
    }

    /// Whether a host wants any slab back.
    fn is_leaving(&self, host: HostIndex) -> bool {
        let from = (host, 0, 0);
        let next = self.wanted.range(from..).next();
        next.is_some_and(|(key, _)| key.0 == host)
    }

    /// Forgets what a lost host wanted; it asks again when it is back.
    pub fn forget_host(&mut self, host: HostIndex) {
        self.wanted.retain(|key, _| key.0 != host);
    }

    /// A slab is given back: since when it was wanted, if it was.
    pub fn note_given_back(&mut self, host: HostIndex, window: &Window) -> Option<Time> {
        let asked = self.wanted.remove(&Self::key(host, window));
        asked.map(|asked| asked.since)
    }

    /// A host wants slabs back.
    pub fn on_evict(&mut self, cx: &mut Context, host: HostIndex, windows: &[Window]) {
        let at = cx.now();
        for window in windows {
            let entry = self.wanted.entry(Self::key(host, window));
            let asked = entry.or_insert(Asked {
                since: at,
                at,
                declined: false,
            });
            (asked.at, asked.declined) = (at, false);
        }
        // It says the same in its next answer to a ping; nothing is to be asked of it until then.
        cx.hosts[host].slabs_free = 0;
        cx.search_soon();
    }

    /// Starts to move the first few slabs that are wanted back.
    pub fn start(&mut self, cx: &mut Context, repairer: &mut Repairer, now: Time) {
        self.wanted.retain(|_, asked| now.since(asked.at) < FADES);
        if self.wanted.is_empty() && !cx.reputations.has_excluded() {
            return;
        }
        let snapshot = cx.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let Some(stripe) = stripe.as_deref().filter(|_| !repairer.has(extent)) else {
                continue;
            };
            let wanted = self.wanted_of(cx, stripe);
            if wanted.is_empty() {
                continue;
            }
            let may_drop = repairer.may_drop(cx, extent);
            // Where the disk has its pages, who wants memory back does not wait for another host. Of a stripe
            // with parities or copies the one slab is moved; the disk is slower.
            if may_drop && (stripe.has_unreachable() || stripe.parities() == 0) {
                repairer.drop_slabs(cx, extent);
                continue;
            }
            let mut stuck = wanted.len();
            if !stripe.has_unreachable() {
                if repairer.rebuilding() >= RELOCATIONS_MAX {
                    return;
                }
                let place =
                    |&(split, _): &(usize, _)| self.place_of_copy(cx, extent, split, stripe, now);
                let mut places = wanted.iter().map(place).enumerate();
                if let Some((at, target)) = places.find_map(|(at, host)| Some((at, host?))) {
                    let copy = Relocation::copy(extent, wanted[at].0, stripe.splits(), now);
                    repairer.relocate(cx, copy, target);
                    // Those behind it are looked at when it has moved.
                    stuck = at;
                } else if may_drop {
                    repairer.drop_slabs(cx, extent);
                    continue;
                }
            }
            for (_, member) in &wanted[..stuck] {
                let window = member.window.name();
                self.decline(cx, member.session.host, window);
            }
        }
    }

    /// The slabs of a stripe that are wanted back, or that their hosts are not to have any longer.
    fn wanted_of<'a>(&self, cx: &Context, stripe: &'a Stripe) -> Vec<(usize, &'a Member)> {
        let members = stripe.members.iter().enumerate();
        members
            .filter_map(|(split, member)| Some((split, member.as_ref()?)))
            .filter(|(_, member)| {
                let host = member.session.host;
                let key = Self::key(host, &member.window.name());
                member.state == MemberState::Live
                    && (self.wanted.contains_key(&key) || cx.reputations.is_excluded(host))
            })
            .collect()
    }

    /// A host that keeps its memory, in a failure domain that no other slab of the stripe is in.
    fn place_of_copy(
        &self,
        cx: &Context,
        extent: usize,
        split: usize,
        stripe: &Stripe,
        now: Time,
    ) -> Option<HostIndex> {
        let others = stripe.members.iter().enumerate();
        let held: Vec<HostIndex> = others
            .filter(|&(index, _)| index != split)
            .filter_map(|(_, member)| Some(member.as_ref()?.session.host))
            .collect();
        let mut candidates = cx.candidates(now);
        candidates.retain(|candidate| {
            let host = candidate.host;
            let stays = !self.is_leaving(host) && !cx.reputations.is_excluded(host);
            now >= cx.hosts[host].no_repairs_until && stays
        });
        cx.placing().replacement(extent, &held, &candidates)
    }

    /// Tells a host, once each time that it asks, that a slab has nowhere to go.
    fn decline(&mut self, cx: &mut Context, host: HostIndex, window: Window) {
        let Some(asked) = self.wanted.get_mut(&Self::key(host, &window)) else {
            return;
        };
        if !std::mem::replace(&mut asked.declined, true) {
            tracing::info!(host = %cx.hosts.name(host), "no other host for a slab that is wanted back");
            cx.hosts.send(host, &Request::Decline { window });
        }
    }
}
