//! Slabs that their hosts want back: each is copied to another host, then given back.
//!
//! A host asks by EVICT and repeats it while it means it, so what is noted here fades by itself.
//! A move is a repair (`repair`) whose slab is still there: the copy is filled beside it, chunk
//! by chunk under the same fence and drain, and writes below the watermark go to both. Then
//!
//! `PUBLISHED` (the copy takes the slab's place) `-> ` no worker is left in an older epoch
//! `-> RETIRED` (the slab is unmapped, which tells its host that it is DONE).
//!
//! A stripe with a slab that is awaited is not copied from. With a disk behind it, it is dropped (`slab_drops`);
//! one that cannot be is declined.
//!
//! Invariants: at most one slab of a stripe moves at a time; no byte of a slab is given up before
//! its copy is read like any other; a slab with nowhere to go is declined and stays in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Request, Window};

use super::mapping::Purpose;
use super::repair::{REPAIRS_MAX, Repair, Stage};
use super::{Control, pool_window};
use crate::directory::{HostIndex, Member, MemberState, Stripe};
use crate::fence::Fence;

/// Slabs that hosts want back.
#[derive(Default)]
pub(super) struct Wanted(BTreeMap<(HostIndex, u32, u64), Asked>);

struct Asked {
    since: Time,
    at: Time,
    /// Whether the host was told that there is nowhere to go since it asked last.
    declined: bool,
}

/// A host repeats itself every second; one that no longer does has changed its mind.
const FADES: Duration = Duration::from_secs(5);

impl Wanted {
    fn key(host: HostIndex, window: &Window) -> (HostIndex, u32, u64) {
        (host, window.id, window.generation)
    }

    fn contains(&self, host: HostIndex, window: &Window) -> bool {
        self.0.contains_key(&Self::key(host, window))
    }

    fn is_leaving(&self, host: HostIndex) -> bool {
        let from = (host, 0, 0);
        self.0
            .range(from..)
            .next()
            .is_some_and(|(key, _)| key.0 == host)
    }

    /// Since when a slab is wanted, which it is no more.
    pub fn take(&mut self, host: HostIndex, window: &Window) -> Option<Time> {
        let asked = self.0.remove(&Self::key(host, window));
        asked.map(|asked| asked.since)
    }

    /// What a lost host wanted; it asks again when it is back.
    pub fn forget_host(&mut self, host: HostIndex) {
        self.0.retain(|key, _| key.0 != host);
    }
}

impl Control {
    /// A host wants slabs back.
    pub(super) fn on_evict(&mut self, host: HostIndex, windows: &[Window]) {
        let at = self.now();
        for window in windows {
            let entry = self.wanted.0.entry(Wanted::key(host, window));
            let asked = entry.or_insert(Asked {
                since: at,
                at,
                declined: false,
            });
            (asked.at, asked.declined) = (at, false);
        }
        self.look_for_strange(host, windows);
        // It says the same in its next answer to a ping; nothing is to be asked of it until then.
        self.hosts[host].slabs_free = 0;
        self.repair_retry = Time(0);
    }

    /// Starts to move the first few slabs that are wanted back.
    pub(super) fn start_moves(&mut self, now: Time) {
        self.wanted.0.retain(|_, asked| now.since(asked.at) < FADES);
        if (self.wanted.0.is_empty() && !self.has_excluded()) || self.is_opening() {
            return;
        }
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            let Some(stripe) = stripe else { continue };
            if self.find_repair(extent).is_some() {
                continue;
            }
            let Some((split, member)) = self.wanted_of(stripe) else {
                continue;
            };
            let (session, window) = (member.session, pool_window(&member.window.descriptor));
            if stripe.has_unreachable() {
                // Where the disk has its pages, who wants memory back does not wait for another host.
                if self.may_drop(extent) {
                    self.begin_drop(extent);
                } else {
                    self.decline(session.host, window);
                }
                continue;
            }
            // Of a stripe with parities or copies the one slab is moved; the disk is slower.
            let is_plain = stripe.parities() == 0;
            if is_plain && self.may_drop(extent) {
                self.begin_drop(extent);
                continue;
            }
            if self.rebuilding() >= REPAIRS_MAX {
                return;
            }
            let Some(target) = self.place_of_copy(extent, split, stripe, now) else {
                if self.may_drop(extent) {
                    self.begin_drop(extent);
                    continue;
                }
                self.decline(session.host, window);
                continue;
            };
            let slot = stripe.splits();
            self.repairs
                .push(Repair::new(extent, split, slot, Stage::Acquiring, now));
            self.acquire(extent, split, target, Purpose::Repair);
        }
    }

    /// The first slab of a stripe that is wanted back, or that its host is not to have any longer.
    fn wanted_of<'a>(&self, stripe: &'a Stripe) -> Option<(usize, &'a Member)> {
        let members = stripe.members.iter().enumerate();
        members
            .filter_map(|(split, member)| Some((split, member.as_ref()?)))
            .find(|(_, member)| {
                let window = pool_window(&member.window.descriptor);
                let host = member.session.host;
                member.state == MemberState::Live
                    && (self.wanted.contains(host, &window) || self.is_excluded(host))
            })
    }

    /// A host that keeps its memory, in a failure domain that no other slab of the stripe is in.
    fn place_of_copy(
        &self,
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
        let mut candidates = self.candidates(now);
        candidates.retain(|candidate| {
            let host = &self.hosts[candidate.host];
            let stays =
                !self.wanted.is_leaving(candidate.host) && !self.is_excluded(candidate.host);
            now >= host.no_repairs_until && stays
        });
        self.place_replacement(extent, &held, &candidates)
    }

    /// Tells a host, once each time that it asks, that a slab has nowhere to go.
    fn decline(&mut self, host: HostIndex, window: Window) {
        let Some(asked) = self.wanted.0.get_mut(&Wanted::key(host, &window)) else {
            return;
        };
        if !std::mem::replace(&mut asked.declined, true) {
            tracing::info!(host = %self.hosts[host].config.name, "no other host for a slab that is wanted back");
            self.send(host, &Request::Decline { window });
        }
    }

    /// Puts a whole copy, which the next owner would find, in the place of the slab that it was
    /// made of.
    pub(super) fn replace(&mut self, at: usize) {
        let Repair { extent, split, .. } = self.repairs[at];
        let mut replaced = None;
        let epoch = self.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[extent] else {
                return false;
            };
            let whole = stripe.moved == Some(split) && stripe.members[split].is_some();
            if !whole || stripe.members.last().is_none_or(Option::is_none) {
                return false;
            }
            let stripe = Arc::make_mut(stripe);
            let copy = stripe.members.pop().flatten();
            let copy = copy.map(|member| Member {
                state: MemberState::Live,
                ..member
            });
            replaced = std::mem::replace(&mut stripe.members[split], copy);
            stripe.moved = None;
            stripe.fence = Fence::default();
            // Who still reads the slab must have left before a write that skips it counts.
            stripe.changed_in = epoch;
            true
        });
        let Some(replaced) = replaced else {
            return self.abandon(at);
        };
        tracing::info!(extent, split, "slab moved");
        self.core
            .counters
            .slabs_moved
            .fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let began = std::mem::replace(&mut self.repairs[at].began, now);
        self.core.timings.fill.note(now.since(began));
        self.repairs[at].stage = Stage::Leaving {
            epoch,
            session: replaced.session,
            window: pool_window(&replaced.window.descriptor),
        };
    }
}
