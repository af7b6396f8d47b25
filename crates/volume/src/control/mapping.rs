//! Mapping an extent: k+r slabs on as many failure domains, or fewer and degraded.
//!
//! Each slab is one **acquire**: ask the host (MAP), attach the window it grants. A host
//! that refuses, dies or stays silent is replaced by the next candidate; when there is
//! none, the extent is mapped DEGRADED on at least k (completed later by `repair`), and
//! with fewer than k everything is given back and the writers get "no space", unless hosts that
//! are silent may make it k: then it is tried again.

use std::time::Duration;

use cenote_fabric::{Error, RemoteWindow, Result, Time, WindowDescriptor};
use cenote_pool::control::{Refusal, Request, Window};

use super::{Control, Granted, fabric_window, pool_window};
use crate::core::Mapping;
use crate::directory::{HostIndex, Member, MemberState, Session, Stripe};
use crate::extents::LayoutId;

/// One slab on its way from a host.
pub(super) struct Acquire {
    pub extent: usize,
    pub member: usize,
    pub session: Session,
    pub purpose: Purpose,
    asked_at: Time,
    stage: Stage,
}

/// Who gets the slab.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    Map,
    Repair,
    /// An unreachable slab comes back.
    Return {
        birth: u64,
    },
}

enum Stage {
    Asked,
    Attaching(Window),
}

/// An extent on its way to being mapped.
pub(super) struct MapJob {
    members: Vec<Option<Member>>,
    tried: Vec<HostIndex>,
    begun: Time,
}

impl Acquire {
    /// The slab, once the host has granted it.
    pub fn window(&self) -> Option<Window> {
        match self.stage {
            Stage::Asked => None,
            Stage::Attaching(window) => Some(window),
        }
    }
}

impl MapJob {
    /// The slabs that are there already.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }
}

/// How long a host that answers pings may take for a slab: it may have to populate 1 GiB.
const ACQUIRE_MAX: Duration = Duration::from_secs(30);

/// How long an extent stays refused before a write may ask again, and until it is tried again by itself where
/// hosts are silent.
const REFUSED_FOR: Duration = Duration::from_secs(1);

impl Control {
    pub(super) fn start_mapping(&mut self, extent: usize) {
        let snapshot = self.core.directory.snapshot();
        let mapped = snapshot.extents.get(extent).is_some_and(Option::is_some);
        // Slabs that are on their way back are gone first.
        let is_leaving = self.find_repair(extent).is_some();
        let is_of_use = self.is_of_use(extent);
        if mapped || is_leaving || !is_of_use || self.jobs.contains_key(&extent) {
            if mapped || is_leaving || !is_of_use {
                self.core.mapping_ended(extent, Mapping::Idle);
            }
            return;
        }
        let members = self.core.layouts.scheme(LayoutId::of(extent)).members();
        self.jobs.insert(
            extent,
            MapJob {
                members: vec![None; members],
                tried: Vec::new(),
                begun: self.now(),
            },
        );
        self.pursue(extent);
    }

    /// Whether an extent has pages, or is to have some: those of whoever asked for it may be in the other
    /// layout by now, or that layout gone.
    fn is_of_use(&self, extent: usize) -> bool {
        let (layouts, layout_id) = (&self.core.layouts, LayoutId::of(extent));
        let pages = self.core.pages(extent);
        let has_pages = || layouts.next_in(layout_id, pages.start, pages.end).is_some();
        !pages.is_empty() && (layout_id == layouts.target() || has_pages())
    }

    /// Asks hosts for the slabs that a job lacks; ends it when nothing more can be asked.
    fn pursue(&mut self, extent: usize) {
        let now = self.now();
        let job = &self.jobs[&extent];
        let pending: Vec<(usize, Session)> = self
            .acquires
            .values()
            .filter(|acquire| acquire.extent == extent && acquire.purpose == Purpose::Map)
            .map(|acquire| (acquire.member, acquire.session))
            .collect();
        let lacking: Vec<usize> = (0..job.members.len())
            .filter(|&member| {
                job.members[member].is_none() && pending.iter().all(|&(at, _)| at != member)
            })
            .collect();
        let members = job.members.iter().flatten();
        let held = members.map(|member| member.session.host);
        let asked = pending.iter().map(|&(_, session)| session.host);
        let taken: Vec<HostIndex> = held.chain(asked).collect();
        let mut candidates = self.candidates(now);
        candidates.retain(|candidate| !job.tried.contains(&candidate.host));
        let chosen = self.place_members(extent, &taken, lacking.len(), &candidates);
        // All are noted before the first is asked: a host that is lost while it is asked
        // has this job pursued again, which must see what is already under way.
        if let Some(job) = self.jobs.get_mut(&extent) {
            job.tried.extend(&chosen);
        }
        let noted: Vec<u64> = lacking
            .iter()
            .zip(&chosen)
            .filter_map(|(&member, &host)| self.note_acquire(extent, member, host, Purpose::Map))
            .collect();
        for request in noted {
            self.ask(request);
        }
        let is_over = self.jobs.contains_key(&extent) && !self.is_acquiring(extent);
        if is_over {
            self.end_mapping(extent);
        }
    }

    /// Whether a slab is on its way to the mapping of an extent.
    fn is_acquiring(&self, extent: usize) -> bool {
        let belongs =
            |acquire: &Acquire| acquire.extent == extent && acquire.purpose == Purpose::Map;
        self.acquires.values().any(belongs)
    }

    /// By host: whether this volume has a slab of it, or asked for one. Looks no further than
    /// until every host is known: a volume may have a million extents.
    pub(super) fn hosts_in_use(&self) -> Vec<bool> {
        let snapshot = self.core.directory.snapshot();
        let stripes = snapshot.stripes();
        let members = stripes.flat_map(|(_, stripe)| stripe.members.iter().flatten());
        let held = members.map(|member| member.session.host);
        let asked = self.acquires.values().map(|acquire| acquire.session.host);
        let mut in_use = vec![false; self.hosts.len()];
        let mut left = in_use.len();
        for host in asked.chain(held) {
            left -= usize::from(!std::mem::replace(&mut in_use[host], true));
            if left == 0 {
                break;
            }
        }
        in_use
    }

    /// Spreads ties between equally loaded hosts over extents, and draws over attempts.
    pub(super) fn seed(&self, extent: usize) -> u64 {
        let number = (extent as u64) << 32 ^ self.requests_made;
        (self.volume as u64) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Asks one host for one slab.
    pub(super) fn acquire(
        &mut self,
        extent: usize,
        member: usize,
        host: HostIndex,
        purpose: Purpose,
    ) {
        if let Some(request) = self.note_acquire(extent, member, host, purpose) {
            self.ask(request);
        }
    }

    /// Enters an acquire in the books; `None` when the host is not connected.
    fn note_acquire(
        &mut self,
        extent: usize,
        member: usize,
        host: HostIndex,
        purpose: Purpose,
    ) -> Option<u64> {
        let session = self.hosts[host].session()?;
        let request = self.next_request();
        let asked_at = self.now();
        self.acquires.insert(
            request,
            Acquire {
                extent,
                member,
                session,
                purpose,
                asked_at,
                stage: Stage::Asked,
            },
        );
        let is_new = !matches!(purpose, Purpose::Return { .. });
        let free = &mut self.hosts[host].slabs_free;
        *free = free.saturating_sub(u32::from(is_new));
        Some(request)
    }

    /// Sends the message of an acquire, unless its host was lost meanwhile.
    fn ask(&mut self, request: u64) {
        let Some(acquire) = self.acquires.get(&request) else {
            return;
        };
        let host = acquire.session.host;
        let volume = self.volume;
        let extent = u32::try_from(acquire.extent).expect("fewer than 2^32 extents");
        let member = u8::try_from(acquire.member).expect("at most 40 members");
        let message = match acquire.purpose {
            Purpose::Map | Purpose::Repair => Request::Map {
                request,
                volume,
                extent,
                member,
            },
            Purpose::Return { birth } => Request::Retake {
                request,
                volume,
                extent,
                member,
                birth,
            },
        };
        if !self.hosts[host].understands(&message) {
            // A host of an earlier version keeps nothing for those who come back.
            return self.on_refused(host, request, Refusal::NotHeld);
        }
        // Losing the host ends the acquire as well.
        self.send(host, &message);
    }

    pub(super) fn on_mapped(&mut self, host: HostIndex, request: u64, window: Window) {
        let session = self.hosts[host].session();
        let known = self
            .acquires
            .get_mut(&request)
            .filter(|acquire| Some(acquire.session) == session);
        let fits = window.len_bytes >= self.slab_bytes;
        match (known, session) {
            (Some(acquire), _) if fits => {
                acquire.stage = Stage::Attaching(window);
                if !self.hosts[host].attach(window) {
                    self.lose(host);
                }
            }
            // Too late, or of no use: the slab goes back.
            (known, Some(session)) => {
                let failed = known.is_some();
                self.give_back(session, window);
                if failed {
                    self.on_refused(host, request, Refusal::NotHeld);
                }
            }
            (_, None) => {}
        }
    }

    pub(super) fn on_refused(&mut self, host: HostIndex, request: u64, reason: Refusal) {
        let asked = |acquire: &&Acquire| acquire.session.host == host;
        if self.acquires.get(&request).filter(asked).is_none() {
            if self.hosts[host].is_asked_to_own(request) {
                self.on_not_owned(host, reason);
            }
            return;
        }
        let acquire = self.acquires.remove(&request).expect("just found");
        match acquire.purpose {
            Purpose::Map | Purpose::Repair => {
                self.hosts[host].slabs_free = 0;
                self.acquire_failed(&acquire);
            }
            Purpose::Return { birth } if reason == Refusal::NotHeld => {
                self.return_refused(&acquire, birth);
            }
            // It may still be there.
            Purpose::Return { .. } => self.return_failed(&acquire),
        }
    }

    pub(super) fn on_attached(
        &mut self,
        host: HostIndex,
        descriptor: WindowDescriptor,
        window: Result<RemoteWindow>,
    ) {
        // By its name alone: a host that refuses knows neither its length nor its rights.
        let named = (descriptor.id.0, descriptor.generation.0);
        let attaching = |(&request, acquire): (&u64, &Acquire)| {
            let granted = acquire.window().filter(|granted| {
                acquire.session.host == host && (granted.id, granted.generation) == named
            })?;
            Some((request, granted))
        };
        let Some((request, granted)) = self.acquires.iter().find_map(attaching) else {
            return;
        };
        let acquire = self.acquires.remove(&request).expect("just found");
        let window = match window {
            Ok(window) if fabric_window(granted) == descriptor => window,
            refused => {
                let error = refused
                    .err()
                    .unwrap_or(Error::Protocol("not as it was granted"));
                tracing::warn!(host = %self.hosts[host].config.name, %error, "a slab cannot be attached");
                if !matches!(acquire.purpose, Purpose::Return { .. }) {
                    self.give_back(acquire.session, granted);
                }
                return self.acquire_failed(&acquire);
            }
        };
        let granted = Granted {
            session: acquire.session,
            window,
        };
        match acquire.purpose {
            Purpose::Map => self.map_granted(acquire.extent, acquire.member, granted),
            Purpose::Repair => self.repair_granted(acquire.extent, acquire.member, granted),
            Purpose::Return { birth } => self.return_granted(&acquire, birth, granted),
        }
    }

    fn map_granted(&mut self, extent: usize, member: usize, granted: Granted) {
        let Some(job) = self.jobs.get_mut(&extent) else {
            return self.give_back(granted.session, pool_window(&granted.window.descriptor));
        };
        let Granted { session, window } = granted;
        job.members[member] = Some(Member {
            session,
            birth: window.descriptor.generation.0,
            window,
            state: MemberState::Live,
        });
        if !self.is_acquiring(extent) {
            self.pursue(extent);
        }
    }

    fn acquire_failed(&mut self, acquire: &Acquire) {
        match acquire.purpose {
            Purpose::Map => self.pursue_after_failure(acquire.extent),
            Purpose::Repair => self.repair_refused(acquire.extent),
            Purpose::Return { .. } => self.return_failed(acquire),
        }
    }

    fn pursue_after_failure(&mut self, extent: usize) {
        if self.jobs.contains_key(&extent) {
            self.pursue(extent);
        }
    }

    /// Publishes what a job got, or gives it back when it is too little.
    fn end_mapping(&mut self, extent: usize) {
        let job = self.jobs.remove(&extent).expect("a job is ended once");
        let mut members = job.members;
        for slot in &mut members {
            // A host may have gone since it granted; it gets its slab back when it returns.
            if let Some(gone) = slot.take_if(|member| !self.session_is_up(member.session)) {
                self.give_back(gone.session, pool_window(&gone.window.descriptor));
            }
        }
        let live = members.iter().flatten().count();
        let cut = self.core.layout_of(extent).cut();
        let all_data = cut.k();
        if live < all_data {
            for member in members.into_iter().flatten() {
                self.give_back(member.session, pool_window(&member.window.descriptor));
            }
            // With a disk behind it the volume does without, and asks again while it is busy.
            if self.core.backing.is_none() {
                let now = self.now();
                if live + self.lenders_awaited(now) >= all_data {
                    // Whoever asked for it waits.
                    return self.postponed.push((extent, now.after(REFUSED_FOR)));
                }
                tracing::warn!(
                    extent,
                    live,
                    needed = all_data,
                    "no space: too few hosts have memory left"
                );
            }
            self.core.mapping_ended(extent, Mapping::Refused);
            let until = self.now().after(REFUSED_FOR);
            self.refused.push((extent, until));
            return;
        }
        if live < members.len() {
            tracing::warn!(
                extent,
                live,
                wanted = members.len(),
                "extent mapped degraded"
            );
            self.repair_retry = Time(0);
        }
        self.core.directory.publish(|next| {
            next.extents[extent] = Some(std::sync::Arc::new(Stripe {
                cut,
                members,
                changed_in: next.epoch,
                ..Stripe::default()
            }));
            true
        });
        self.core.mapping_ended(extent, Mapping::Idle);
        let took = self.now().since(job.begun);
        self.core.timings.map.note(took);
    }

    /// Tries extents again for which too few hosts answered.
    pub(super) fn map_postponed(&mut self, now: Time) {
        let is_due = |(_, at): &mut (usize, Time)| now >= *at;
        let due: Vec<(usize, Time)> = self.postponed.extract_if(.., is_due).collect();
        for (extent, _) in due {
            self.start_mapping(extent);
        }
    }

    /// Ends the acquires of a session that is gone.
    pub(super) fn lose_acquires(&mut self, session: Session) {
        self.fail_acquires(|_, acquire| acquire.session == session);
    }

    /// Gives up on hosts that answer neither pings nor in the time that any slab takes.
    pub(super) fn tend_acquires(&mut self, now: Time) {
        self.fail_acquires(|control, acquire| {
            control.hosts[acquire.session.host].is_silent(now)
                || now.since(acquire.asked_at) > ACQUIRE_MAX
        });
    }

    fn fail_acquires(&mut self, is_over: impl Fn(&Self, &Acquire) -> bool) {
        let over: Vec<u64> = self
            .acquires
            .iter()
            .filter(|(_, acquire)| is_over(self, acquire))
            .map(|(&request, _)| request)
            .collect();
        for request in over {
            // A failure may have ended others of the list.
            if let Some(acquire) = self.acquires.remove(&request) {
                let is_new = !matches!(acquire.purpose, Purpose::Return { .. });
                if let Stage::Attaching(window) = acquire.stage
                    && is_new
                {
                    self.give_back(acquire.session, window);
                }
                self.acquire_failed(&acquire);
            }
        }
    }
}
