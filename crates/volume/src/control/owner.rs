//! Owning a volume that outlives its owners, and taking back slabs that missed nothing.
//!
//! A slab is **unreachable** when it holds current data and cannot be reached: its connection went
//! when no more than k of its stripe were left, or after its host had said that another process
//! takes its place (decision 57), or it is named in the journal that an earlier owner left. Its
//! host is asked for it by its birth on the next connection (`RETAKE`); a host that has been
//! started again knows nothing of it. While a slab of a stripe is unreachable no write is acknowledged
//! there, but by a backing store, which has it alone then (decision 61). Once at least k are back,
//! the others are waited for a while and then given up.
//!
//! Taking over: the journal's next epoch is on the disk, then every host is told (`OWN`), asked
//! for what the journal names (`RETAKE`), and told to free the rest (`LEAVE`).
//!
//! Invariants: a slab that missed an acknowledged write is never taken back, unless the page's bit
//! says so; nothing of a volume that outlives its owners is asked of a host that has not confirmed
//! the owner's epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use cenote_fabric::{FAILURE_TIMEOUT, Time};
use cenote_pool::control::{Refusal, Request};
use cenote_pool::ledger::LEASE;

use super::acquires::{Acquire, Granted, Purpose};
use super::context::{Context, Opening};
use super::host::{AWAITED_MAX, Host};
use super::hosts::Hosts;
use super::ownership::Ownership;
use super::reach::Reach;
use crate::VolumeError;
use crate::core::{Core, Mapping};
use crate::directory::{HostIndex, Member, MemberState, Snapshot, Stripe, Unreachable};
use crate::extents::LayoutId;
use crate::journal::Image;

/// Owns the volume at its hosts, and has what is unreachable come back or be given up.
#[derive(Default)]
pub(super) struct Owner {
    // Extents that can be read while slabs of theirs are awaited, and since when.
    waits: BTreeMap<usize, Time>,
    // Extents that cannot be read while slabs of theirs are awaited.
    reach: Reach,
}

/// Slabs that a host is asked for at a time: far fewer than its connection takes, and enough to keep it busy.
const RETAKEN_AT_ONCE: usize = 256;

/// Pause before a host is asked again whether the earlier owner is gone.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// And before one that refuses for a reason of its own.
const ASK_UNWILLING_AGAIN: Duration = Duration::from_secs(5);

/// And before one that runs an earlier version is looked at again.
const ASK_OLD_AGAIN: Duration = Duration::from_secs(60);

/// How long hosts that do not answer are waited for while at least k slabs are there.
const ABSENT_MAX: Duration = FAILURE_TIMEOUT.saturating_mul(2);

/// And hosts that do, since a slab came back: the earlier owner's lease may have to run out.
const PRESENT_MAX: Duration = LEASE.saturating_add(Duration::from_secs(5));

impl Owner {
    /// Makes what the journal names unreachable, to be taken back as hosts are reached.
    pub fn inherit(
        &self,
        cx: &mut Context,
        image: &Image,
        ended: Option<SyncSender<Result<(), VolumeError>>>,
    ) {
        let mut found = stripes_of(&cx.core, &cx.hosts, image);
        // A page that holds data where no slab does is lost, and does not become zeros.
        for (extent, _) in cx.core.directory.snapshot().extents.numbered() {
            if cx.core.holds(extent) {
                found
                    .entry(extent)
                    .or_insert_with(|| empty_stripe(&cx.core, extent));
            }
        }
        for stripe in found.values() {
            cx.core.codes.with(stripe.cut, stripe.parities());
        }
        cx.core.directory.publish(|next| {
            let epoch = next.epoch;
            for (extent, mut stripe) in found {
                stripe.changed_in = epoch;
                next.extents[extent] = Some(stripe.into());
            }
            true
        });
        cx.opening = Some(Opening {
            since: cx.now(),
            ended,
        });
    }

    /// A connection is up: what is unreachable there comes back, once the volume is owned there.
    pub fn begin(&self, cx: &mut Context, host: HostIndex) {
        if let Some((volume, epoch)) = cx.recorder.identity() {
            return self.ask_to_own(cx, host, volume, epoch);
        }
        cx.hosts[host].ownership = Ownership::Retaking;
        self.retake(cx, host);
    }

    fn ask_to_own(&self, cx: &mut Context, host: HostIndex, volume: u128, epoch: u64) {
        let request = cx.hosts.next_request();
        let message = Request::Own {
            request,
            volume,
            epoch,
        };
        if !cx.hosts[host].understands(&message) {
            tracing::warn!(host = %cx.hosts.name(host), "host runs an earlier version, which has no volumes that outlive their owner; it is left out");
            let ask_at = cx.now().after(ASK_OLD_AGAIN);
            cx.hosts[host].ownership = Ownership::Unknown { ask_at };
            return;
        }
        cx.hosts[host].ownership = Ownership::Asked { request };
        cx.hosts.send(host, &message);
    }

    pub fn on_owned(&self, cx: &mut Context, host: HostIndex, request: u64) {
        if !cx.hosts[host].is_asked_to_own(request) {
            return;
        }
        cx.hosts[host].ownership = Ownership::Retaking;
        self.retake(cx, host);
    }

    /// A host refuses to let this client own the volume.
    pub fn on_not_owned(&self, cx: &mut Context, host: HostIndex, reason: Refusal) {
        let name = cx.hosts.name(host);
        let pause = match reason {
            Refusal::Owned => {
                tracing::debug!(host = %name, "the earlier owner is not gone yet");
                ASK_AGAIN
            }
            Refusal::Superseded => {
                tracing::error!(host = %name, "the volume has another owner since");
                return end_opening(cx, Err(VolumeError::Superseded));
            }
            reason => {
                tracing::warn!(host = %name, ?reason, "a host does not let this volume in");
                ASK_UNWILLING_AGAIN
            }
        };
        let ask_at = cx.now().after(pause);
        cx.hosts[host].ownership = Ownership::Unknown { ask_at };
    }

    /// Every slab that is unreachable at the host has been asked for.
    fn end_retaking(&self, cx: &mut Context, host: HostIndex) {
        cx.hosts[host].ownership = Ownership::Owned;
        if let Some((volume, _)) = cx.recorder.identity() {
            // After the last of what was asked for, on one connection.
            cx.hosts.send(host, &Request::Leave { volume });
            cx.search_soon();
        }
        cx.hosts.compare_books(host);
    }

    /// Asks a host for slabs that are unreachable there, as long as any is left: some at a time. Called again
    /// when it has answered, or time has passed.
    pub fn retake(&self, cx: &mut Context, host: HostIndex) {
        if cx.hosts[host].ownership != Ownership::Retaking || !cx.hosts[host].is_up() {
            return;
        }
        let under_way = cx.acquires.returning_from(host).count();
        if under_way > RETAKEN_AT_ONCE / 2 {
            return;
        }
        let room = RETAKEN_AT_ONCE - under_way;
        let snapshot = cx.core.directory.snapshot();
        // A slab may still be on its way from an earlier question.
        let on_its_way: BTreeSet<(usize, usize)> = cx
            .acquires
            .iter()
            .map(|acquire| (acquire.extent, acquire.member))
            .collect();
        let mut asked = Vec::new();
        // One more, which says that it is not the last.
        for (extent, stripe) in snapshot.stripes() {
            let unreachable = stripe.unreachable.iter().enumerate();
            let here = unreachable.filter_map(|(split, slab)| {
                slab.filter(|slab| slab.host == host)
                    .map(|slab| (extent, split, slab.birth))
            });
            asked.extend(here.filter(|&(extent, split, _)| !on_its_way.contains(&(extent, split))));
            if asked.len() > room {
                break;
            }
        }
        let is_last = asked.len() <= room;
        asked.truncate(room);
        for (extent, split, birth) in asked {
            let purpose = Purpose::Return { birth };
            let acquires = &mut cx.acquires;
            acquires.begin(&mut cx.hosts, extent, split, host, purpose);
        }
        // The host may have been lost meanwhile, or refused one.
        let goes_on = cx.hosts[host].ownership == Ownership::Retaking;
        if is_last && goes_on && cx.hosts[host].is_up() {
            self.end_retaking(cx, host);
        }
    }

    /// An unreachable slab is back: it takes its place again as it was, and in the same epoch all
    /// others that are back as well.
    pub fn on_returned(&self, cx: &mut Context, acquire: &Acquire, granted: Granted) {
        let mut returned = cx.acquires.take_returned();
        returned.push((*acquire, granted));
        let (mut back, mut strange) = (Vec::new(), Vec::new());
        cx.core.directory.publish(|next| {
            (back, strange) = returned
                .into_iter()
                .partition(|(acquire, granted)| take_back(next, acquire, granted));
            !back.is_empty()
        });
        for (acquire, _) in &back {
            let (extent, split, host) = (acquire.extent, acquire.member, acquire.session.host);
            tracing::info!(extent, split, host = %cx.hosts.name(host), "slab taken back");
        }
        let now = cx.now();
        if let Some(opening) = cx.opening.as_mut().filter(|_| !back.is_empty()) {
            opening.since = now;
        }
        let snapshot = cx.core.directory.snapshot();
        for (acquire, granted) in strange {
            let stripe = snapshot.stripe(acquire.extent);
            let known = stripe.and_then(|stripe| stripe.members.get(acquire.member)?.as_ref());
            let known = known.map(|known| Purpose::Return { birth: known.birth });
            if known != Some(acquire.purpose) {
                cx.give_back(granted.session, granted.slab());
            }
        }
    }

    /// An unreachable slab could not be reached this time.
    pub fn on_return_failed(&self, cx: &mut Context, acquire: &Acquire) {
        let ask_at = cx.now().after(ASK_AGAIN);
        cx.hosts[acquire.session.host].ownership = Ownership::Unknown { ask_at };
    }

    /// A host that answered does not have an unreachable slab any more: it was started again, or has freed it.
    pub fn on_not_held(&self, cx: &mut Context, acquire: &Acquire, birth: u64) {
        let (extent, split, host) = (acquire.extent, acquire.member, acquire.session.host);
        cx.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = next.stripe_mut(extent) else {
                return false;
            };
            let awaited = stripe.unreachable.get(split).copied().flatten();
            let is_awaited = awaited.is_some_and(|slab| (slab.host, slab.birth) == (host, birth));
            if is_awaited {
                let stripe = Arc::make_mut(stripe);
                stripe.unreachable[split] = None;
                stripe.changed_in = epoch;
            }
            is_awaited
        });
        // The extent may have been lost by this.
        cx.search_soon();
    }

    /// Asks hosts again, and decides on stripes whose other slabs do not come back.
    pub fn tend(&mut self, cx: &mut Context, now: Time) {
        for host in 0..cx.hosts.len() {
            let is_due = matches!(cx.hosts[host].ownership,
                Ownership::Unknown { ask_at } if now >= ask_at);
            if is_due && cx.hosts[host].is_up() {
                self.begin(cx, host);
            }
            self.retake(cx, host);
        }
        let unreachable = self.judge_the_waiting(cx, now);
        if !cx.is_opening() {
            return;
        }
        if !unreachable.is_empty() {
            let names = unreachable.iter().map(|&host| cx.hosts.name(host));
            let hosts = names.collect::<Vec<_>>().join(", ");
            return end_opening(cx, Err(VolumeError::Unreachable { hosts }));
        }
        // What is mapped first is not to be mapped on few hosts because others are yet to answer.
        let opening = cx.opening.as_ref();
        let is_early = opening.is_some_and(|opening| now.since(opening.since) < ABSENT_MAX);
        let is_asking = |host: &Host| host.answers(now) && host.ownership != Ownership::Owned;
        if is_early && cx.hosts.iter().any(is_asking) {
            return;
        }
        let snapshot = cx.core.directory.snapshot();
        let mut stripes = snapshot.extents.iter().flatten();
        if !stripes.any(|stripe| stripe.has_unreachable()) {
            end_opening(cx, Ok(()));
        }
    }

    /// Decides on every stripe with slabs that are awaited. The hosts whose slabs would be needed, and that were
    /// waited for long enough.
    fn judge_the_waiting(&mut self, cx: &mut Context, now: Time) -> BTreeSet<HostIndex> {
        let snapshot = cx.core.directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let mapped = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_deref()?)));
        let waiting: BTreeMap<usize, &Stripe> = mapped
            .filter(|(_, stripe)| stripe.has_unreachable())
            .collect();
        self.waits.retain(|extent, _| waiting.contains_key(extent));
        self.reach.retain(&snapshot);
        let (mut unreachable, mut unread) = (BTreeSet::new(), Vec::new());
        let is_backed = cx.core.backing.is_some();
        for (extent, stripe) in waiting {
            if stripe.is_past_hope() {
                // Nothing is to be gained by those that may come back.
                cx.give_up_unreachable(extent);
                continue;
            }
            // From the others, or from the disk.
            let is_readable = stripe.is_there() || is_backed;
            let since = match &cx.opening {
                Some(opening) => opening.since,
                None if is_readable => *self.waits.entry(extent).or_insert(now),
                None => {
                    unread.push(extent);
                    continue;
                }
            };
            let mut hosts = hosts_of_unreachable(stripe);
            // Those that said so are waited for as long as they said.
            let returns = hosts.any(|host| cx.hosts[host].is_being_replaced(now));
            if now.since(since) < patience(&cx.hosts, stripe, is_readable, now) || returns {
                continue;
            }
            match is_readable {
                true => cx.give_up_unreachable(extent),
                false => unreachable.extend(hosts_of_unreachable(stripe)),
            }
        }
        self.reach.judge(cx, &snapshot, &unread, now);
        unreachable
    }

    /// This process was stopped: in that time no host could have answered it.
    pub fn begin_waits_again(&mut self, cx: &mut Context, now: Time) {
        if let Some(opening) = &mut cx.opening {
            opening.since = now;
        }
        self.waits.clear();
        self.reach.begin_again();
        cx.hosts.await_again(now);
    }
}

/// Has a slab that is back take its place, if it is awaited there.
fn take_back(next: &mut Snapshot, acquire: &Acquire, granted: &Granted) -> bool {
    let (split, host) = (acquire.member, granted.session.host);
    let Some(stripe) = next.stripe_mut(acquire.extent) else {
        return false;
    };
    let awaited = stripe.unreachable.get(split).copied().flatten();
    let Some(slab) = awaited.filter(|slab| {
        let birth = slab.birth;
        slab.host == host && acquire.purpose == Purpose::Return { birth }
    }) else {
        return false;
    };
    let stripe = Arc::make_mut(stripe);
    stripe.unreachable[split] = None;
    stripe.members[split] = Some(Member {
        birth: slab.birth,
        ..granted.clone().into_member(MemberState::Live)
    });
    stripe.is_out_of_reach &= !stripe.is_there();
    true
}

/// Hosts of slabs that are awaited.
fn hosts_of_unreachable(stripe: &Stripe) -> impl Iterator<Item = HostIndex> {
    stripe.unreachable.iter().flatten().map(|slab| slab.host)
}

/// How long the slabs of a stripe are awaited.
fn patience(hosts: &Hosts, stripe: &Stripe, is_readable: bool, now: Time) -> Duration {
    let mut awaited = hosts_of_unreachable(stripe);
    if awaited.any(|host| hosts[host].answers(now)) {
        return PRESENT_MAX;
    }
    // A host that is only silent may be all that is missing.
    let have_ended = hosts_of_unreachable(stripe).all(|host| hosts[host].has_ended());
    match is_readable || have_ended {
        true => ABSENT_MAX,
        false => AWAITED_MAX,
    }
}

/// The stripes that a journal names, all of their slabs unreachable.
fn stripes_of(core: &Core, hosts: &Hosts, image: &Image) -> BTreeMap<usize, Stripe> {
    let index_of: BTreeMap<&str, HostIndex> = hosts
        .iter()
        .enumerate()
        .map(|(index, host)| (host.config.name.as_str(), index))
        .collect();
    let mut found: BTreeMap<usize, Stripe> = BTreeMap::new();
    for (&(extent, split), held) in &image.held {
        let extent = extent as usize;
        let stripe = found
            .entry(extent)
            .or_insert_with(|| empty_stripe(core, extent));
        // The last owner ended while the scheme changed: the extent has slabs to give up.
        let splits = stripe.splits().max(usize::from(split) + 1);
        stripe.members.resize(splits, None);
        stripe.unreachable.resize(splits, None);
        // A host that is no longer of the cluster is one that never answers.
        if let Some(&host) = index_of.get(held.host.as_str()) {
            stripe.unreachable[usize::from(split)] = Some(Unreachable {
                host,
                birth: held.birth,
            });
        }
    }
    found
}

/// A stripe that has no slabs.
fn empty_stripe(core: &Core, extent: usize) -> Stripe {
    let members = core.layouts.scheme(LayoutId::of(extent)).members();
    Stripe {
        cut: core.layout_of(extent).cut(),
        members: vec![None; members],
        ..Stripe::default()
    }
}

/// The volume is taken over, or cannot be.
fn end_opening(cx: &mut Context, result: Result<(), VolumeError>) {
    let Some(opening) = cx.opening.take() else {
        if result.is_err() {
            // It had been this client's: nothing that it says is heard any more.
            cx.core.life.closed.store(true, Ordering::Release);
        }
        return;
    };
    if result.is_ok() {
        if let Some(tags) = &cx.core.pages.integrity.tags {
            tags.enter_owner();
        }
        tear_all_doubtful(&cx.core);
        // What was not taken back is known to be lost now.
        cx.record();
        // An owner may have ended between a reclaim and its note in the journal.
        cx.note_discarded();
    } else {
        // What was left stays as it was.
        cx.recorder.leave();
    }
    if let Some(ended) = opening.ended
        && ended.send(result).is_err()
    {
        tracing::debug!("nobody waits for the volume");
    }
}

/// Doubtful pages that lack a data split cannot be read any more.
fn tear_all_doubtful(core: &Core) {
    let snapshot: Arc<Snapshot> = core.directory.snapshot();
    for (extent, stripe) in snapshot.extents.numbered() {
        if let Some(stripe) = stripe {
            let data = (1_u64 << stripe.cut.k()) - 1;
            if stripe.readable() & data != data {
                core.lose_data_split(extent);
            }
            core.mapping_ended(extent, Mapping::Idle);
        }
    }
}
