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

use super::mapping::{Acquire, Purpose};
use super::reach::AWAITED_MAX;
use super::{Control, Granted, pool_window};
use crate::VolumeError;
use crate::core::Mapping;
use crate::directory::{HostIndex, Member, MemberState, Stripe, Unreachable};
use crate::extents::LayoutId;
use crate::journal::Image;

/// How far a host has confirmed that this client owns the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ownership {
    /// Not asked, or asked again when the time has come.
    Unknown {
        ask_at: Time,
    },
    Asked {
        request: u64,
    },
    /// Confirmed, or nothing to confirm; slabs that are unreachable there are being asked for.
    Retaking,
    /// All that was unreachable there is asked for.
    Owned,
}

/// A volume that is being taken over.
pub(super) struct Opening {
    since: Time,
    /// Told how it ended; the simulator looks by itself.
    ended: Option<SyncSender<Result<(), VolumeError>>>,
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

/// And hosts that do: the earlier owner's lease may have to run out.
const PRESENT_MAX: Duration = LEASE.saturating_add(Duration::from_secs(5));

impl Control {
    /// Makes what the journal names unreachable, to be taken back as hosts are reached.
    pub(super) fn inherit(
        &mut self,
        image: &Image,
        ended: Option<SyncSender<Result<(), VolumeError>>>,
    ) {
        let index_of: BTreeMap<&str, HostIndex> = self
            .hosts
            .iter()
            .enumerate()
            .map(|(index, host)| (host.config.name.as_str(), index))
            .collect();
        let layouts = &self.core.layouts;
        let members_of = |extent: usize| layouts.scheme(LayoutId::of(extent)).members();
        let mut found: BTreeMap<usize, Stripe> = BTreeMap::new();
        for (&(extent, split), held) in &image.held {
            let extent = extent as usize;
            let members = members_of(extent);
            let stripe = found.entry(extent).or_insert_with(|| Stripe {
                cut: self.core.layout_of(extent).cut(),
                members: vec![None; members],
                unreachable: vec![None; members],
                ..Stripe::default()
            });
            // The last owner ended while the scheme changed: the extent has slabs to give up.
            let splits = members.max(usize::from(split) + 1).max(stripe.splits());
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
        // A page that holds data where no slab does is lost, and does not become zeros.
        for (extent, _) in self.core.directory.snapshot().extents.numbered() {
            if self.core.holds(extent) {
                let members = members_of(extent);
                found.entry(extent).or_insert_with(|| Stripe {
                    cut: self.core.layout_of(extent).cut(),
                    members: vec![None; members],
                    ..Stripe::default()
                });
            }
        }
        for stripe in found.values() {
            self.core.codes.with(stripe.cut, stripe.parities());
        }
        self.core.directory.publish(|next| {
            let epoch = next.epoch;
            for (extent, mut stripe) in found {
                stripe.changed_in = epoch;
                next.extents[extent] = Some(stripe.into());
            }
            true
        });
        self.opening = Some(Opening {
            since: self.now(),
            ended,
        });
    }

    /// Whether the volume is still being taken over: nobody reads, writes or repairs it.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// Whether hosts are to be told of an owner's epoch.
    fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    /// A connection is up: what is unreachable there comes back, once the volume is owned there.
    pub(super) fn begin_owning(&mut self, host: HostIndex) {
        if self.is_kept() {
            self.ask_to_own(host);
        } else {
            self.hosts[host].ownership = Ownership::Retaking;
            self.retake(host);
        }
    }

    fn ask_to_own(&mut self, host: HostIndex) {
        let request = self.next_request();
        let record = self.record.as_ref().expect("only kept volumes ask");
        let message = Request::Own {
            request,
            volume: record.volume(),
            epoch: record.epoch(),
        };
        if !self.hosts[host].understands(&message) {
            tracing::warn!(host = %self.hosts[host].config.name, "host runs an earlier version, which has no volumes that outlive their owner; it is left out");
            let ask_at = self.now().after(ASK_OLD_AGAIN);
            self.hosts[host].ownership = Ownership::Unknown { ask_at };
            return;
        }
        self.hosts[host].ownership = Ownership::Asked { request };
        self.send(host, &message);
    }

    pub(super) fn on_owned(&mut self, host: HostIndex, request: u64) {
        if self.hosts[host].ownership != (Ownership::Asked { request }) {
            return;
        }
        self.hosts[host].ownership = Ownership::Retaking;
        self.retake(host);
    }

    /// A host refuses to let this client own the volume.
    pub(super) fn on_not_owned(&mut self, host: HostIndex, reason: Refusal) {
        let name = &self.hosts[host].config.name;
        let pause = match reason {
            Refusal::Owned => {
                tracing::debug!(host = %name, "the earlier owner is not gone yet");
                ASK_AGAIN
            }
            Refusal::Superseded => {
                tracing::error!(host = %name, "the volume has another owner since");
                return self.end_opening(Err(VolumeError::Superseded));
            }
            reason => {
                tracing::warn!(host = %name, ?reason, "a host does not let this volume in");
                ASK_UNWILLING_AGAIN
            }
        };
        let ask_at = self.now().after(pause);
        self.hosts[host].ownership = Ownership::Unknown { ask_at };
    }

    /// Every slab that is unreachable at the host has been asked for.
    fn end_retaking(&mut self, host: HostIndex) {
        self.hosts[host].ownership = Ownership::Owned;
        if self.is_kept() {
            let volume = self.volume;
            // After the last of what was asked for, on one connection.
            self.send(host, &Request::Leave { volume });
            self.repair_retry = Time(0);
        }
        self.compare_books(host);
    }

    /// Asks a host for slabs that are unreachable there, as long as any is left: some at a time. Called again
    /// when it has answered, or time has passed.
    pub(super) fn retake(&mut self, host: HostIndex) {
        if self.hosts[host].ownership != Ownership::Retaking || !self.hosts[host].is_up() {
            return;
        }
        let returns = |acquire: &&Acquire| {
            acquire.session.host == host && matches!(acquire.purpose, Purpose::Return { .. })
        };
        let under_way = self.acquires.values().filter(returns).count();
        if under_way > RETAKEN_AT_ONCE / 2 {
            return;
        }
        let room = RETAKEN_AT_ONCE - under_way;
        let snapshot = self.core.directory.snapshot();
        // A slab may still be on its way from an earlier question.
        let on_its_way: BTreeSet<(usize, usize)> = self
            .acquires
            .values()
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
            self.acquire(extent, split, host, Purpose::Return { birth });
        }
        // The host may have been lost meanwhile, or refused one.
        let goes_on = self.hosts[host].ownership == Ownership::Retaking;
        if is_last && goes_on && self.hosts[host].is_up() {
            self.end_retaking(host);
        }
    }

    /// Whether slabs of a host that is connected are still on their way back.
    pub(super) fn is_returning(&self, host: HostIndex) -> bool {
        let returns = |acquire: &Acquire| {
            acquire.session.host == host && matches!(acquire.purpose, Purpose::Return { .. })
        };
        self.hosts[host].ownership != Ownership::Owned || self.acquires.values().any(returns)
    }

    /// An unreachable slab is back: it takes its place again as it was.
    pub(super) fn return_granted(&mut self, acquire: &Acquire, birth: u64, granted: Granted) {
        let (extent, split) = (acquire.extent, acquire.member);
        let Granted { session, window } = granted;
        let descriptor = window.descriptor;
        let mut member = Some(Member {
            session,
            window,
            birth,
            state: MemberState::Live,
        });
        self.core.directory.publish_stripe(extent, |stripe| {
            let is_awaited = stripe.unreachable.get(split).is_some_and(|slab| {
                slab.is_some_and(|slab| slab.host == session.host && slab.birth == birth)
            });
            if is_awaited {
                stripe.unreachable[split] = None;
                stripe.members[split] = member.take();
                stripe.is_out_of_reach &= !stripe.is_there();
            }
            is_awaited
        });
        if let Some(member) = member {
            let snapshot = self.core.directory.snapshot();
            let stripe = snapshot.stripe(extent);
            let known = stripe.and_then(|stripe| stripe.members.get(split)?.as_ref());
            if known.is_none_or(|known| known.birth != member.birth) {
                self.give_back(session, pool_window(&descriptor));
            }
        } else {
            tracing::info!(extent, split, host = %self.hosts[session.host].config.name, "slab taken back");
        }
    }

    /// An unreachable slab could not be reached this time.
    pub(super) fn return_failed(&mut self, acquire: &Acquire) {
        let ask_at = self.now().after(ASK_AGAIN);
        self.hosts[acquire.session.host].ownership = Ownership::Unknown { ask_at };
    }

    /// A host that answered does not have an unreachable slab any more: it was started again, or has freed it.
    pub(super) fn return_refused(&mut self, acquire: &Acquire, birth: u64) {
        let (extent, split, host) = (acquire.extent, acquire.member, acquire.session.host);
        self.core.directory.publish(|next| {
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
        self.repair_retry = Time(0);
    }

    /// Asks hosts again, and decides on stripes whose other slabs do not come back.
    pub(super) fn tend_owning(&mut self, now: Time) {
        for host in 0..self.hosts.len() {
            let is_due = matches!(self.hosts[host].ownership,
                Ownership::Unknown { ask_at } if now >= ask_at);
            if is_due && self.hosts[host].is_up() {
                self.begin_owning(host);
            }
            self.retake(host);
        }
        let snapshot = self.core.directory.snapshot();
        let unreachable = |stripe: &Stripe| stripe.has_unreachable();
        let mapped = snapshot.extents.numbered();
        let waiting: Vec<usize> = mapped
            .filter(|(_, stripe)| stripe.as_deref().is_some_and(unreachable))
            .map(|(extent, _)| extent)
            .collect();
        self.waits
            .retain(|extent, _| waiting.binary_search(extent).is_ok());
        self.reach.retain(&snapshot);
        let (mut unreachable, mut unread) = (Vec::new(), Vec::new());
        let is_backed = self.core.backing.is_some();
        for &extent in &waiting {
            let stripe = snapshot.extents[extent].as_deref().expect("just seen");
            if stripe.is_past_hope() {
                // Nothing is to be gained by those that may come back.
                self.give_up_unreachable(extent);
                continue;
            }
            let hosts = stripe.unreachable.iter().flatten().map(|slab| slab.host);
            let is_present = hosts.clone().any(|host| self.answers(host, now));
            // From the others, or from the disk.
            let is_readable = stripe.is_there() || is_backed;
            // A host that is only silent may be all that is missing.
            let may_answer =
                !is_readable && !hosts.clone().all(|host| self.hosts[host].has_ended());
            let patience = match is_present {
                true => PRESENT_MAX,
                false if may_answer => AWAITED_MAX,
                false => ABSENT_MAX,
            };
            let since = match &self.opening {
                Some(opening) => opening.since,
                None if is_readable => *self.waits.entry(extent).or_insert(now),
                None => {
                    unread.push(extent);
                    continue;
                }
            };
            // Those that said so are waited for as long as they said.
            let returns = hosts
                .clone()
                .any(|host| self.hosts[host].is_being_replaced(now));
            if now.since(since) < patience || returns {
                continue;
            }
            if is_readable {
                self.give_up_unreachable(extent);
            } else {
                unreachable.extend(hosts);
            }
        }
        self.judge_reach(&snapshot, &unread, now);
        if self.opening.is_none() {
            return;
        }
        if !unreachable.is_empty() {
            unreachable.sort_unstable();
            unreachable.dedup();
            let name = |host: &HostIndex| self.hosts[*host].config.name.clone();
            let hosts: Vec<String> = unreachable.iter().map(name).collect();
            let hosts = hosts.join(", ");
            return self.end_opening(Err(VolumeError::Unreachable { hosts }));
        }
        // What is mapped first is not to be mapped on few hosts because others are yet to answer.
        let is_early = self
            .opening
            .as_ref()
            .is_some_and(|opening| now.since(opening.since) < ABSENT_MAX);
        let is_asking = |host: HostIndex| {
            self.answers(host, now) && self.hosts[host].ownership != Ownership::Owned
        };
        if is_early && (0..self.hosts.len()).any(is_asking) {
            return;
        }
        let snapshot = self.core.directory.snapshot();
        if !snapshot
            .extents
            .iter()
            .flatten()
            .any(|stripe| stripe.has_unreachable())
        {
            self.end_opening(Ok(()));
        }
    }

    /// This process was stopped: in that time no host could have answered it.
    pub(super) fn begin_waits_again(&mut self, now: Time) {
        if let Some(opening) = &mut self.opening {
            opening.since = now;
        }
        self.waits.clear();
        self.reach.begin_again();
        self.await_hosts_again(now);
    }

    /// Whether the host is there to give slabs back.
    fn answers(&self, host: HostIndex, now: Time) -> bool {
        self.hosts[host].is_up() && !self.hosts[host].is_silent(now)
    }

    /// Writes go on without what is unreachable.
    pub(super) fn give_up_unreachable(&mut self, extent: usize) {
        let mut gone = Vec::new();
        self.core.directory.publish(|next| {
            let epoch = next.epoch;
            let Some(stripe) = &mut next.extents[extent] else {
                return false;
            };
            let stripe = Arc::make_mut(stripe);
            gone = std::mem::take(&mut stripe.unreachable);
            stripe.changed_in = epoch;
            true
        });
        tracing::warn!(
            extent,
            slabs = gone.iter().flatten().count(),
            "slabs did not come back; the extent goes on without them"
        );
        // What their hosts still have of them is known to them alone.
        for slab in gone.into_iter().flatten() {
            self.compare_books(slab.host);
        }
        self.repair_retry = Time(0);
    }

    /// The volume is taken over, or cannot be.
    fn end_opening(&mut self, result: Result<(), VolumeError>) {
        let Some(opening) = self.opening.take() else {
            if result.is_err() {
                // It had been this client's: nothing that it says is heard any more.
                self.core.closed.store(true, Ordering::Release);
            }
            return;
        };
        if result.is_ok() {
            if let Some(tags) = &self.core.integrity.tags {
                tags.enter_owner();
            }
            self.tear_all_doubtful();
            // What was not taken back is known to be lost now.
            self.record();
            // An owner may have ended between a reclaim and its note in the journal.
            self.core.discarded.store(true, Ordering::Release);
        } else {
            // What was left stays as it was.
            self.record = None;
        }
        if let Some(ended) = opening.ended
            && ended.send(result).is_err()
        {
            tracing::debug!("nobody waits for the volume");
        }
    }

    /// Doubtful pages that lack a data split cannot be read any more.
    fn tear_all_doubtful(&mut self) {
        let snapshot = self.core.directory.snapshot();
        for (extent, stripe) in snapshot.extents.numbered() {
            if let Some(stripe) = stripe {
                let data = (1_u64 << stripe.cut.k()) - 1;
                if stripe.readable() & data != data {
                    self.tear_doubtful(extent);
                }
                self.core.mapping_ended(extent, Mapping::Idle);
            }
        }
    }

    /// A data split of the extent is lost, and may be decoded from what remains.
    pub(super) fn tear_doubtful(&self, extent: usize) {
        // Copies do not depend on each other.
        if self.core.layout_of(extent).cut().k() > 1 {
            self.core.tear_doubtful(extent, self.core.pages(extent));
        }
    }
}
