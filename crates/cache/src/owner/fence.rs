//! What follows when a client is gone that may have writes on their way: fence, then make copies
//! equal.
//!
//! A write that nobody will end may land late, or be in one copy alone. Its region is **doubtful**
//! until its windows have new generations, so that nothing lands any more, and its second copy was
//! filled from the first. A region with one copy is fenced while it is open: clients do what they
//! had under way again, under the new windows. One with two copies is frozen for as long as its
//! copy takes.
//!
//! Until then its reads stay sound: a write reaches the copy that is read last, so what was read is
//! in the other copy, too.

use std::collections::BTreeSet;

use cenote_fabric::Time;
use cenote_pool::control::Window;

use super::clients::{ClientNumber, Gone, Role};
use super::host::HostIndex;
use super::region::{Access, Contents, CopyState, Fencing, Purpose, Renewing, Target, Task};
use super::relocation::{ANSWER_LIMIT, PAUSE};
use super::{Action, Owner};
use crate::injected_faults::{InjectedFault, is_injected};

/// Windows that a host is asked to renew at once: a client that goes leaves all regions doubtful,
/// and a session takes only so many messages. Arbitrary.
const RENEWING_MAX: usize = 64;

impl Owner {
    /// Forgets clients whose lease is over, and doubts what they may have been writing to.
    pub(super) fn forget_clients(&mut self, now: Time) {
        for gone in self.clients.drop_silent(now) {
            self.doubt_writes_of(&gone);
        }
    }

    /// Procedures of hosts write to regions with two copies from now on: what a host leaves behind
    /// is to be fenced off. None stores anything before this is noted.
    pub fn note_hosts_write(&mut self) {
        self.hosts_write = true;
    }

    /// The process behind a client is another one, with the same memory, or is elsewhere: what it
    /// was writing is in doubt. Concluded by the next [`Owner::handle_tick`].
    pub fn note_host_restarted(&mut self, client: ClientNumber) {
        if let Some(gone) = self.clients.take(client) {
            self.doubt_writes_of(&gone);
        }
    }

    /// Doubtful regions with a copy on a host, with their generations: nothing new is to be stored
    /// there by another process before they are fenced ([`Owner::are_fenced`]).
    #[must_use]
    pub fn doubtful_on(&self, host: HostIndex) -> Vec<(usize, u64)> {
        let regions = self.regions.iter().enumerate();
        let concerned = regions.filter(|(_, region)| {
            region.contents == Contents::Doubtful && region.holds(|copy| copy.host == host)
        });
        concerned
            .map(|(at, region)| (at, region.generation))
            .collect()
    }

    /// Whether regions that were doubtful were made sure since. They may be doubtful again.
    #[must_use]
    pub fn are_fenced(&self, doubtful: &[(usize, u64)]) -> bool {
        doubtful.iter().all(|&(region, generation)| {
            let region = self.regions.get(region);
            region.is_none_or(|region| {
                region.contents == Contents::Sure || region.sure_since > generation
            })
        })
    }

    fn doubt_writes_of(&mut self, gone: &Gone) {
        if is_injected(InjectedFault::CopiesDiverge) {
            return;
        }
        let hosts_write = self.hosts_write || self.settings.copies == 1;
        for (index, region) in self.regions.iter_mut().enumerate() {
            let writes = match gone.role {
                // Procedures write to both copies, and which one is the first may have changed.
                Role::Host(host) => {
                    hosts_write && region.copies.iter().any(|copy| copy.host == host)
                }
                Role::Listener => false,
                Role::User => true,
            };
            if !writes {
                continue;
            }
            let known = gone.known.get(index).copied().unwrap_or(0);
            // It has no write under way from before what it knew, and begins none while frozen.
            if region.opened_at > 0 && region.opened_at >= known && !region.copies.is_empty() {
                region.contents = Contents::Doubtful;
            }
        }
    }

    /// A host says that a store which it sent to a second copy, by an entry of this generation, may
    /// be there alone, or land late. As [`Owner::note_doubt`], also of one whose lease is over.
    pub fn note_host_doubt(&mut self, region: usize, generation: u64) {
        if let Some(region) = self.regions.get_mut(region)
            && generation > region.sure_since
            && !region.copies.is_empty()
        {
            region.contents = Contents::Doubtful;
        }
    }

    /// [`Owner::handle_doubt`], concluded by the next [`Owner::handle_tick`].
    pub fn note_doubt(&mut self, client: ClientNumber, region: usize, generation: u64) {
        if self.clients.contains(client) {
            self.note_host_doubt(region, generation);
        }
    }

    pub(super) fn is_doubtful(&self, region: usize) -> bool {
        self.regions[region].contents == Contents::Doubtful
    }

    /// Whether the host has not said yet what the region's windows are called.
    pub(super) fn is_renewing(&self, region: usize) -> bool {
        self.renewing.values().any(|window| window.region == region)
    }

    /// Makes a doubtful region sure that nothing else is under way for.
    pub(super) fn settle(&mut self, region: usize, now: Time) {
        let copies = &self.regions[region].copies;
        if self.is_wary
            || now < self.regions[region].rest_until
            || !copies.iter().all(|copy| self.hosts[copy.host].is_up())
        {
            return;
        }
        let is_busy = |host: HostIndex| {
            let there = self.renewing.values().filter(|it| it.host == host);
            there.count() >= RENEWING_MAX
        };
        match &copies[..] {
            [] => {}
            [copy] if is_busy(copy.host) => {}
            [_] => {
                self.regions[region].rest_until = now.after(PAUSE * 5);
                self.fence(region, None, now);
            }
            [first, second, ..] => {
                let (source, copy) = (first.host, second.clone());
                if self.is_busy(source, copy.host) {
                    return;
                }
                self.regions[region].rest_until = now.after(PAUSE * 5);
                let purpose = Purpose::Converge;
                self.freeze(region, Target::new(copy, purpose), now);
            }
        }
    }

    /// Clients that are there have ended their writes: those of others are fenced off before the
    /// copy.
    pub(super) fn fence_and_fill(&mut self, region: usize, mut target: Target, now: Time) {
        // Clients go on with the first: what the second has alone would be lost with it.
        if target.purpose != Purpose::Converge {
            target.source = self.source_for(region, &target, now).or(target.source);
        }
        self.fence(region, Some(target), now);
    }

    fn fence(&mut self, region: usize, target: Option<Target>, now: Time) {
        let fenced = self.regions[region].copies.clone();
        let told = fenced.clone();
        self.regions[region].task = Task::Fencing(Fencing { target, told });
        for copy in fenced {
            let host = copy.host;
            if !self.hosts[host].is_up() || is_injected(InjectedFault::NoFence) {
                continue;
            }
            for (slab, &window) in copy.windows.iter().enumerate() {
                self.requests += 1;
                let request = self.requests;
                let renewing = Renewing {
                    region,
                    host,
                    slab,
                    asked_at: now,
                };
                self.renewing.insert(request, renewing);
                self.actions.push_back(Action::Renew {
                    host,
                    request,
                    window,
                });
            }
        }
        if !self.is_renewing(region) {
            self.end_fencing(region, now);
        }
    }

    /// A window was renewed. False: nobody asked for it.
    pub(super) fn take_renewed(
        &mut self,
        now: Time,
        host: HostIndex,
        request: u64,
        window: Window,
    ) -> bool {
        let Some(renewing) = self.take_renewing(host, request) else {
            return false;
        };
        let region = &mut self.regions[renewing.region];
        let mut copies = region.copies.iter_mut().chain(&mut region.retiring);
        let known = copies
            .find(|copy| copy.host == host)
            .and_then(|copy| copy.windows.get_mut(renewing.slab));
        match known {
            // It is the same slab, under another name.
            Some(known) if known.id == window.id && known.len_bytes == window.len_bytes => {
                *known = window;
            }
            Some(_) => self.reconnect(now, host),
            // The copy was given up meanwhile, under the name that it had.
            None => self.actions.push_back(Action::Unmap { host, window }),
        }
        if !self.is_renewing(renewing.region) {
            self.end_fencing(renewing.region, now);
        }
        true
    }

    /// A window was not renewed: its host does not have it.
    pub(super) fn take_renewal_refused(&mut self, host: HostIndex, request: u64) -> bool {
        let Some(renewing) = self.take_renewing(host, request) else {
            return false;
        };
        self.lose_copies(renewing.region, |copy| copy.host == host);
        true
    }

    fn take_renewing(&mut self, host: HostIndex, request: u64) -> Option<Renewing> {
        let renewing = self.renewing.get(&request).filter(|it| it.host == host);
        let renewing = renewing.copied()?;
        self.renewing.remove(&request);
        Some(renewing)
    }

    fn end_fencing(&mut self, region: usize, now: Time) {
        let fenced = &mut self.regions[region];
        let Task::Fencing(fencing) = &mut fenced.task else {
            // It was given up: clients only learn what the windows are called.
            let access = fenced.access;
            return self.publish(region, access);
        };
        let Some(mut target) = fencing.target.take() else {
            fenced.make_sure();
            return self.open(region);
        };
        if target.purpose == Purpose::Converge {
            let second = fenced.copies.iter().find(|c| c.host == target.copy.host);
            match second {
                Some(second) => target.copy = second.clone(),
                None => unreachable!("a copy that is lost ends what is done with it"),
            }
        }
        // From here on clients are told the new windows.
        fenced.task = Task::None;
        self.publish(region, Access::Frozen);
        self.begin_filling(region, target, now);
    }

    /// Windows that were to be renewed there are called what the host says once it is up again.
    pub(super) fn forget_renewing(&mut self, host: HostIndex) {
        let is_there = |_: &u64, renewing: &mut Renewing| renewing.host == host;
        let lost: Vec<Renewing> = self
            .renewing
            .extract_if(.., is_there)
            .map(|(_, renewing)| renewing)
            .collect();
        for renewing in lost {
            let region = &mut self.regions[renewing.region];
            let copies = region.copies.iter_mut().chain(&mut region.retiring);
            for copy in copies.filter(|copy| copy.host == host) {
                copy.state = CopyState::Unlearned;
            }
            if matches!(&region.task, Task::Fencing(_)) {
                let target = region.new_copy().cloned();
                region.task = Task::None;
                if let Some(copy) = target {
                    self.unmap(&copy);
                }
                if self.regions[renewing.region].access == Access::Frozen {
                    self.switch(renewing.region, Vec::new());
                }
            }
        }
    }

    /// Hosts that do not answer that they renewed a window: another session finds out.
    pub(super) fn reconnect_where_renewing(&mut self, now: Time) {
        // Also for a region that is fenced no more: nothing is begun there before it is known.
        let is_over = |it: &&Renewing| now.since(it.asked_at) >= ANSWER_LIMIT;
        let hosts = self.renewing.values().filter(is_over).map(|it| it.host);
        for host in hosts.collect::<BTreeSet<_>>() {
            self.reconnect(now, host);
        }
    }

    /// A host answers what keeps its connection up, and not what it is asked.
    pub(super) fn reconnect(&mut self, now: Time, host: HostIndex) {
        self.hosts[host].avoid_until = now.after(ANSWER_LIMIT);
        self.fall_silent(now, host);
        self.actions.push_back(Action::Reconnect { host });
    }
}
