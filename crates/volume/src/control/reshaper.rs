//! Changing a volume's mode, delta and number of parities while it is in use. Another k: `restriper`.
//!
//! Mode and delta are of the directory's epoch: whoever enters the next one goes by the new ones, and
//! who is in an older one ends by the old. The number of splits is each extent's own. One that is to
//! have more gets empty places at its end, which are filled like those of lost slabs (`repairer`). One
//! that is to have fewer gives the last ones up:
//!
//! `ACTIVE -> ` dropped from the directory `-> DRAINED` (no worker is left in an older epoch, and the
//! journal does not name them) `-> RETIRED` (unmapped).
//!
//! Row i of a code's parities is the same however many there are, so no page is written again.
//!
//! Invariants: nobody expects of an extent what its scheme has not come to yet, for operations count
//! the splits of their stripe; few extents grow at a time, and none while others have lost something;
//! a parity is not given up for one that is missing while a host could hold that, and never when fewer
//! than k+1 splits would be left of an extent that lacks some.
//! Decision 28.

use std::sync::Arc;

use cenote_fabric::Time;
use cenote_pool::control::Window;
use cenote_pool::injected_faults::{InjectedFault, is_injected};
use cenote_pool::placement::Candidate;

use super::context::Context;
use super::pace::RELOCATIONS_MAX;
use super::repairer::Repairer;
use super::restriper::Restriper;
use crate::core::Core;
use crate::directory::{HostIndex, Session, Snapshot, Stripe};
use crate::extents::LayoutId;
use crate::scheme::Cut;
use crate::status::ChangeStatus;
use crate::{PAGE_BYTES, Resilience, Scheme};

/// What of the volume's resilience is yet to come true.
#[derive(Default)]
pub(super) struct Reshaper {
    change: Option<Change>,
    surplus: Vec<Surplus>,
}

struct Change {
    from: Scheme,
    /// From which on everybody goes by the new mode.
    epoch: u64,
    /// What traces have of it; ends with it.
    _span: tracing::Span,
}

impl Change {
    fn new(from: Scheme, to: Scheme, epoch: u64) -> Self {
        let (from_scheme, to_scheme) = (from.to_string(), to.to_string());
        let _span = tracing::info_span!(
            "reshape volume",
            cenote.scheme.from = from_scheme,
            cenote.scheme.to = to_scheme,
        );
        Self { from, epoch, _span }
    }
}

/// A slab that no stripe has any more.
struct Surplus {
    /// In which it is gone.
    epoch: u64,
    session: Session,
    window: Window,
}

impl Reshaper {
    /// Expects something else of hosts from the next epoch on.
    pub fn begin(&mut self, cx: &mut Context, restriper: &mut Restriper, resilience: Resilience) {
        let before = cx.core.resilience();
        if before == resilience {
            return;
        }
        let (from, to) = (before.scheme(), resilience.scheme());
        tracing::info!(%from, %to, mode = %resilience.mode(), delta = resilience.delta(), "the volume's resilience changes");
        restriper.begin(cx, to);
        // Before anybody has pages to code in a stripe of that shape.
        cx.core.codes.with(Cut::of(to), to.r());
        cx.placer.set_scheme(to, &cx.hosts);
        let epoch = cx.core.directory.publish(|next| {
            next.resilience = resilience;
            true
        });
        self.change = Some(Change::new(from, to, epoch));
        cx.search_soon();
    }

    /// Gives extents the splits that the volume's scheme has, where nothing else goes on.
    pub fn step(&mut self, cx: &Context, repairer: &Repairer, restriper: &Restriper, now: Time) {
        let target = cx.core.layouts.target();
        let scheme = cx.core.layouts.scheme(target);
        let snapshot = cx.core.directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let misfits: Vec<(usize, &Stripe)> = mapped
            // The others are left as they are.
            .filter(|&(extent, _)| LayoutId::of(extent) == target)
            .filter_map(|(extent, stripe)| Some((extent, stripe.as_deref()?)))
            .filter(|(_, stripe)| stripe.splits() != scheme.members())
            .collect();
        let Some(&(_, first)) = misfits.first() else {
            return self.end(cx, restriper, &snapshot);
        };
        if self.change.is_none() {
            // The last owner ended in the middle of it, or an extent was being mapped meanwhile.
            let from = first.cut.with_parities(first.parities());
            self.change = Some(Change::new(from, scheme, snapshot.epoch));
        }
        let candidates = cx.candidates(now);
        let ready: Vec<(usize, bool)> = misfits
            .into_iter()
            .filter(|&(extent, _)| !repairer.has(extent))
            .map(|(extent, stripe)| (extent, is_stuck(cx, extent, stripe, scheme, &candidates)))
            .collect();
        let mut growing = RELOCATIONS_MAX.saturating_sub(mendable(&snapshot));
        let mut surplus = Vec::new();
        let splits = scheme.members();
        cx.core.directory.publish(|next| {
            let epoch = next.epoch;
            let mut has_changed = false;
            for &(extent, is_stuck) in &ready {
                let stripe = next.extents[extent].as_mut();
                // Workers may have dropped slabs of it since.
                let Some(stripe) = stripe.filter(|stripe| fits(stripe, splits, is_stuck)) else {
                    continue;
                };
                let grows = stripe.splits() < splits;
                if grows && growing == 0 {
                    continue;
                }
                has_changed = true;
                let stripe = Arc::make_mut(stripe);
                if grows {
                    growing -= 1;
                    stripe.members.resize(splits, None);
                    continue;
                }
                let given_up = stripe.members.drain(splits..).flatten();
                surplus.extend(given_up.map(|member| Surplus {
                    epoch,
                    session: member.session,
                    window: member.window.name(),
                }));
                // Who still reads them must have left before a write that skips them counts.
                stripe.changed_in = epoch;
            }
            has_changed
        });
        self.surplus.append(&mut surplus);
    }

    /// Pages are on their way to another cut: a change, of whoever began it.
    pub fn note_restripe(&mut self, core: &Core) {
        let layouts = &core.layouts;
        let from = layouts.scheme(layouts.target().other());
        let epoch = core.directory.epoch();
        let to = core.resilience().scheme();
        self.change
            .get_or_insert_with(|| Change::new(from, to, epoch));
    }

    /// Ends the change once every extent is what it is to be, and nothing of the old is in use.
    fn end(&mut self, cx: &Context, restriper: &Restriper, snapshot: &Snapshot) {
        let Some(change) = &self.change else {
            return;
        };
        let mut stripes = snapshot.extents.iter().flatten();
        let is_over = !restriper.is_under_way(&cx.core)
            && !restriper.is_to_begin(&cx.core)
            && cx.core.directory.is_settled(change.epoch)
            && self.surplus.is_empty()
            && stripes.all(|stripe| lacking(stripe, stripe.splits()) == 0);
        if is_over {
            tracing::info!(scheme = %cx.core.resilience().scheme(), "the volume's resilience has changed");
            self.change = None;
        }
    }

    /// Gives back the slabs that nobody works with any more, and no next owner would look for.
    pub fn give_up_surplus(&mut self, cx: &mut Context) {
        let core = Arc::clone(&cx.core);
        let is_free = |surplus: &Surplus| {
            let is_unused = core.directory.is_settled(surplus.epoch)
                || is_injected(InjectedFault::GiveBackUnsettled);
            is_unused && core.is_journaled(surplus.epoch)
        };
        let all = std::mem::take(&mut self.surplus);
        let (free, used): (Vec<_>, Vec<_>) = all.into_iter().partition(is_free);
        self.surplus = used;
        for Surplus {
            session, window, ..
        } in free
        {
            cx.give_back(session, window);
            cx.search_soon();
        }
    }

    /// Whether slabs are about to be given back. Not while the journal cannot be written.
    pub fn is_giving_up(&self, core: &Core) -> bool {
        let mut surplus = self.surplus.iter();
        surplus.any(|surplus| {
            !core.directory.is_settled(surplus.epoch) || core.is_journaled(surplus.epoch)
        })
    }

    /// The slabs that are in no stripe any more and not given back yet.
    pub fn surplus(&self) -> impl Iterator<Item = (HostIndex, Window)> {
        let surplus = self.surplus.iter();
        surplus.map(|surplus| (surplus.session.host, surplus.window))
    }

    /// For status.
    pub fn status(
        &self,
        core: &Core,
        restriper: &Restriper,
        snapshot: &Snapshot,
    ) -> Option<ChangeStatus> {
        let change = self.change.as_ref()?;
        let scheme = snapshot.resilience.scheme();
        let mapped = snapshot.extents.numbered();
        let stripes = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_deref()?)));
        let is_done = |(_, stripe): &(usize, &Stripe)| {
            stripe.cut == Cut::of(scheme)
                && stripe.splits() == scheme.members()
                && lacking(stripe, stripe.splits()) == 0
        };
        let pages_of = |(extent, _): (usize, &Stripe)| core.held_count(extent);
        let (pages_done, pages) = match restriper.pages_moved(core) {
            Some(moved) => moved,
            None => (
                stripes.clone().filter(is_done).map(pages_of).sum(),
                stripes.clone().map(pages_of).sum(),
            ),
        };
        Some(ChangeStatus {
            from: change.from.to_string(),
            to: scheme.to_string(),
            extents_done: stripes.clone().filter(is_done).count(),
            extents: stripes.count(),
            bytes_done: pages_done * PAGE_BYTES as u64,
            bytes: pages * PAGE_BYTES as u64,
        })
    }
}

/// Extents that lack splits and can be made whole, as far as they matter: what was lost is rebuilt
/// before anybody gets more.
fn mendable(snapshot: &Snapshot) -> usize {
    let stripes = snapshot.extents.iter().flatten();
    let lacks = |stripe: &&Arc<Stripe>| {
        let live = stripe.readable().count_ones() as usize;
        stripe.is_there() && live < stripe.splits()
    };
    stripes.filter(lacks).take(RELOCATIONS_MAX).count()
}

/// Whether an extent lacks splits that it is to keep, and no host could have one.
fn is_stuck(
    cx: &Context,
    extent: usize,
    stripe: &Stripe,
    scheme: Scheme,
    candidates: &[Candidate],
) -> bool {
    if lacking(stripe, scheme.members()) == 0 {
        return false;
    }
    let members = stripe.members.iter().flatten();
    let held: Vec<HostIndex> = members.map(|member| member.session.host).collect();
    cx.placing()
        .replacement(extent, &held, candidates)
        .is_none()
}

/// Of its first `splits`, those that are not there to be read.
fn lacking(stripe: &Stripe, splits: usize) -> u64 {
    !stripe.readable() & ((1 << splits) - 1)
}

/// Whether a stripe may get so many splits now.
fn fits(stripe: &Stripe, splits: usize, is_stuck: bool) -> bool {
    if stripe.moved.is_some() || stripe.has_unreachable() {
        return false;
    }
    let kept = (stripe.readable() & ((1 << splits) - 1)).count_ones() as usize;
    let grows = stripe.splits() < splits;
    grows || kept == splits || (is_stuck && kept > stripe.cut.k())
}
