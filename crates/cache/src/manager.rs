//! What drives an [`Owner`]: sessions to hosts, whose messages are its events and who carry out its
//! actions.
//!
//! Stepped from outside with the time, so that the simulator runs the same. Clients are the
//! caller's: what they are to be told comes out of [`Manager::take_news`].

mod checkpoints;
mod host;
mod roster;
mod saving;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{Error, Incoming, Time};
use cenote_pool::control::{FillResult, HeldSlab, Refusal, Reply, Request, Source, Window};

use crate::links::{Arrival, Dial, HostConfig, Linked};
use crate::owner::{
    Action, BadRecord, ClientNumber, Entry, HostIndex, OWN_REQUEST, Owner, Record, Settings,
};
use host::{HostLink, Listed, State};
use saving::Checkpoints;
pub use saving::{CheckpointError, Made};

/// What the caller is to pass on.
#[derive(Clone, Debug)]
pub enum News {
    /// Keep [`Manager::record`] on the disk, then call [`Manager::confirm_record`]: until then
    /// nothing that the owner decided next is sent to a host or comes as news.
    Record,
    /// Tell a client.
    Tell {
        /// The client.
        client: ClientNumber,
        /// The entry.
        entry: Entry,
    },
}

/// See the module's text.
pub struct Manager {
    /// The decisions.
    pub owner: Owner,
    settings: Settings,
    /// Counts the owners of this cache, from 1.
    epoch: u64,
    hosts: Vec<HostLink>,
    dial: Box<dyn Dial>,
    news: VecDeque<News>,
    /// A record is the caller's to keep: what follows stays with the owner.
    is_recording: bool,
    /// Nothing is decided or carried out for a while.
    is_suspended: bool,
    /// A host said that the cache has a later owner.
    is_refused: bool,
    /// `None`: it makes none and uses none.
    checkpoints: Option<Checkpoints>,
}

/// A copy is a fill of a code in which both splits are the same: split 0 from split 1.
const COPY_SOURCE: u8 = 1;

/// Version of the protocol that a host has to speak: it renews windows, and tells of notices.
const OLDEST_HOST: u16 = 7;

impl Manager {
    /// Drives `owner`, the `epoch`th of its cache.
    #[must_use]
    pub fn new(
        owner: Owner,
        settings: Settings,
        epoch: u64,
        hosts: Vec<HostConfig>,
        dial: Box<dyn Dial>,
    ) -> Self {
        Self {
            owner,
            settings,
            epoch,
            hosts: hosts.into_iter().map(HostLink::new).collect(),
            dial,
            news: VecDeque::new(),
            is_recording: false,
            is_suspended: false,
            is_refused: false,
            checkpoints: None,
        }
    }

    /// Drives the `epoch`th owner of a cache, with what the one before it recorded. The list of
    /// hosts may be another one by now: those that it lacks are taken for silent, and given up in
    /// their time.
    ///
    /// # Errors
    /// The record is not that of such a cache.
    pub fn recover(
        record: Record,
        settings: Settings,
        epoch: u64,
        hosts: Vec<HostConfig>,
        dial: Box<dyn Dial>,
        now: Time,
    ) -> Result<Self, BadRecord> {
        let record = record.for_hosts(&names(&hosts))?;
        let owner = Owner::recover(settings, record, &Self::domains(&hosts), now)?;
        Ok(Self::new(owner, settings, epoch, hosts, dial))
    }

    /// What is to be kept for the next owner.
    #[must_use]
    pub fn record(&self) -> Record {
        let names: Vec<String> = self.hosts.iter().map(|h| h.config.name.clone()).collect();
        self.owner.record(&names)
    }

    /// The failure domains of hosts, numbered, as an [`Owner`] takes them.
    #[must_use]
    pub fn domains(hosts: &[HostConfig]) -> Vec<u32> {
        let number = |host: &HostConfig| {
            let same = hosts.iter().position(|other| other.domain == host.domain);
            u32::try_from(same.expect("its own at least")).expect("at most 4096 hosts")
        };
        hosts.iter().map(number).collect()
    }

    /// Takes what has come and does what follows, without blocking. Nothing, once the cache has a
    /// later owner ([`Owner::is_superseded`]): its sessions are closed, so that hosts pass on to
    /// that one.
    pub fn step(&mut self, now: Time) {
        if self.owner.is_superseded() {
            return self.stand_down();
        }
        while let Some(arrival) = self.dial.poll() {
            self.take_link(now, arrival);
        }
        for host in 0..self.hosts.len() {
            self.receive(now, host);
            self.tend(now, host);
        }
        self.tend_checkpoints(now);
        self.owner.handle_tick(now);
        self.carry_out(now);
        if self.owner.is_superseded() {
            self.stand_down();
        }
    }

    /// Leaves the cache to its later owner.
    fn stand_down(&mut self) {
        self.news.clear();
        self.is_recording = false;
        for host in &mut self.hosts {
            host.go_down(Time(u64::MAX));
        }
    }

    /// Has what the owner decided sent, and its news ready to be taken: before a lease is answered.
    /// A lease is answered when all news was taken and every record among them confirmed.
    pub fn flush(&mut self, now: Time) {
        self.carry_out(now);
    }

    /// What the caller is to pass on, in order.
    pub fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The record that came as news is kept: what waited for it is sent, or is news now.
    pub fn confirm_record(&mut self, now: Time) {
        self.is_recording = false;
        if !self.is_suspended {
            self.owner.handle_recorded(now);
        }
        self.carry_out(now);
    }

    /// Has nothing decided or carried out until [`Manager::resume`]: another owner may have followed. Sessions
    /// to hosts are kept, and what happens meanwhile counts against nobody. Clients that come go by what is
    /// recorded, as the others do.
    pub fn suspend(&mut self, now: Time) {
        self.is_suspended = true;
        if self.news.is_empty() {
            self.owner.handle_suspended(now);
        } else {
            self.owner.handle_recording(now);
        }
    }

    /// Whether [`Manager::suspend`] is near: writes that would be stopped all the while are not
    /// stopped any more.
    pub fn expect_suspension(&mut self, now: Time, is_near: bool) {
        self.owner.handle_wary(now, is_near);
    }

    /// A client came: what it is to be told is news. False: there are too many.
    #[must_use]
    pub fn join(&mut self, now: Time, client: ClientNumber) -> bool {
        if !self.owner.handle_client_joined(now, client) {
            return false;
        }
        let kept = self.owner.kept_entries().iter().cloned();
        let told = kept.map(|entry| News::Tell { client, entry });
        self.news.extend(told);
        self.carry_out(now);
        true
    }

    /// Goes on.
    pub fn resume(&mut self, now: Time) {
        self.is_suspended = false;
        if !self.is_recording {
            self.owner.handle_recorded(now);
        }
        self.carry_out(now);
    }

    /// A client found a host other than the table has it: the books are compared.
    pub fn handle_trouble(&mut self, host: HostIndex) {
        if let Some(link) = self.hosts.get_mut(host) {
            link.compare_again();
        }
    }

    /// Nothing more is placed on a host; what is there stays.
    pub fn keep_out(&mut self, host: HostIndex) {
        self.owner.handle_kept_out(host, true);
    }

    /// The same, and nobody looks for the host: another one is at its address, or none.
    pub fn put_aside(&mut self, host: HostIndex) {
        self.keep_out(host);
        self.hosts[host].put_aside();
    }

    /// Descriptors to wait for, and whether for writing too.
    pub fn fds(&self) -> impl Iterator<Item = (std::os::fd::RawFd, bool)> {
        let checkpoint = self.checkpoint_fd().map(|fd| (fd, false));
        self.hosts
            .iter()
            .filter_map(HostLink::interest)
            .chain(checkpoint)
    }

    /// When it wants to be stepped although nothing comes.
    #[must_use]
    pub fn due(&self, now: Time) -> Time {
        let links = self.hosts.iter().filter_map(|host| host.due(now));
        links
            .chain([self.owner.due(now)])
            .min()
            .expect("one at least")
    }

    /// Whether hosts have heard all that the owner decided, but for those that are out of reach.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.hosts.iter().all(HostLink::has_heard_all)
    }

    /// Whether a host said that the cache has a later owner.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether each host said whom the cache belongs to, could not be reached, or is not looked
    /// for.
    #[must_use]
    pub fn has_tried_hosts(&self) -> bool {
        let is_tried = |host: &HostLink| host.was_tried || host.is_put_aside();
        self.hosts.iter().all(is_tried)
    }

    /// Which of the cache's owners it drives.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Name and connection of each host, for people.
    pub fn hosts(&self) -> impl Iterator<Item = (&HostConfig, bool)> + Clone {
        self.hosts.iter().map(|host| (&host.config, host.is_up()))
    }

    /// What opens connections to the server threads of a host that is up, in the owner's name.
    #[must_use]
    pub fn caller_opener(&self, host: HostIndex) -> Option<CallerOpener> {
        self.hosts.get(host)?.caller_opener()
    }

    fn take_link(&mut self, now: Time, arrival: Arrival) {
        let Arrival {
            host,
            address,
            linked,
        } = arrival;
        let link = &mut self.hosts[host];
        // It was given up while somebody connected, or is elsewhere by now: what answers where it
        // was, or does not, says nothing of it.
        if link.is_put_aside() || link.config.address != address {
            return;
        }
        link.was_tried |= linked.is_err();
        match linked {
            Ok(Linked { session, .. }) if session.version() < OLDEST_HOST => {
                let (name, version) = (&link.config.name, session.version());
                tracing::warn!(
                    host = name,
                    version,
                    "this host is left out until its program is upgraded: it speaks version \
                     {version} of the protocol, and a cache needs {OLDEST_HOST}"
                );
                link.leave_out(now);
                link.was_tried = true;
            }
            Ok(Linked { session, .. }) => {
                let own = Request::Own {
                    request: OWN_REQUEST,
                    volume: self.settings.cache,
                    epoch: self.epoch,
                };
                link.begin(session, &own, now);
            }
            Err(error) => {
                let has_ended = error.is_nobody_there() && !link.is_returning(now);
                link.go_down(now);
                if has_ended {
                    self.owner.handle_host_ended(now, host);
                } else {
                    self.owner.handle_host_silent(now, host);
                }
            }
        }
    }

    fn receive(&mut self, now: Time, host: HostIndex) {
        loop {
            match self.hosts[host].receive() {
                Ok(Some(Incoming::Message(bytes))) => match Reply::decode(&bytes) {
                    Ok(reply) => self.take_reply(now, host, reply),
                    Err(error) => {
                        tracing::warn!(host, %error, "a host's message");
                        return self.lose(now, host);
                    }
                },
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => return self.lose(now, host),
            }
        }
    }

    fn lose(&mut self, now: Time, host: HostIndex) {
        self.hosts[host].lose(now);
        self.owner.handle_host_silent(now, host);
    }

    fn take_reply(&mut self, now: Time, host: HostIndex, reply: Reply) {
        match reply {
            Reply::Mapped { request, window } => {
                self.hosts[host].note_mapped();
                self.owner.handle_granted(now, host, request, window);
            }
            Reply::Refused {
                request: OWN_REQUEST,
                reason,
            } => {
                tracing::debug!(host, ?reason, "not owned yet");
                self.hosts[host].go_down(now);
                if reason == Refusal::Superseded {
                    self.is_refused = true;
                    tracing::warn!(host, epoch = self.epoch, "the cache has a later owner");
                    self.owner.handle_superseded();
                } else {
                    // It is there, with everything: it is asked again until it passes to this owner.
                    self.owner.handle_host_kept(now, host);
                }
            }
            // Somebody else owns the cache there: owning it again tells who that is.
            Reply::Refused {
                reason: Refusal::Owned | Refusal::Superseded,
                ..
            } => self.lose(now, host),
            Reply::Refused { request, reason } => {
                self.owner.handle_refused(now, host, request, reason);
            }
            Reply::Owned { .. } => {
                self.hosts[host].was_tried = true;
                self.hosts[host].begin_listing();
            }
            Reply::Free {
                slabs_free,
                slab_bytes,
                ..
            } => {
                if slab_bytes != self.settings.slab_bytes {
                    tracing::warn!(host, slab_bytes, "other slabs than this cache's: left out");
                    return self.hosts[host].leave_out(now);
                }
                self.hosts[host].slabs_free = slabs_free;
            }
            Reply::Pong { slabs_free, .. } => {
                self.hosts[host].note_pong(slabs_free);
                if self.hosts[host].is_up() {
                    self.owner.handle_room(now, host, slabs_free);
                }
            }
            Reply::Held { skip, slabs } => self.take_listing(now, host, skip, &slabs),
            Reply::Evict { windows } => self.owner.handle_evict(now, host, &windows),
            Reply::Filled { request, result } => self.take_filled(now, host, request, result),
            Reply::Notice { within_ms: 0 } => self.owner.handle_host_notice(now, host, None),
            Reply::Notice { within_ms } => {
                let deadline = now.after(Duration::from_millis(within_ms.into()));
                self.owner.handle_host_notice(now, host, Some(deadline));
            }
            // It was not given back: its host was about to be out of memory.
            Reply::Unmapped { window } if self.owner.uses(host, window) => {
                self.hosts[host].compare_again();
            }
            Reply::HandsOver { back_within_ms } => {
                let back_within = Duration::from_millis(back_within_ms.into());
                self.hosts[host].await_return(now, back_within);
            }
            Reply::CheckActivity { .. }
            | Reply::Unmapped { .. }
            | Reply::Status(_)
            | Reply::Reclaim { .. } => {}
        }
        self.carry_out(now);
    }

    fn take_listing(&mut self, now: Time, host: HostIndex, skip: u32, slabs: &[HeldSlab]) {
        let listed = self.hosts[host].take_listing(skip, slabs);
        let ours = |held: Vec<HeldSlab>| {
            let cache = self.settings.cache;
            let held = held.into_iter();
            held.filter(|slab| slab.volume == cache).collect::<Vec<_>>()
        };
        match listed {
            Listed::More => {}
            Listed::TooMany => self.lose(now, host),
            Listed::First(held) => {
                let (held, slabs_free) = (ours(held), self.hosts[host].slabs_free);
                self.owner.handle_host_up(now, host, slabs_free, &held);
            }
            Listed::Again(held) => self.owner.handle_books(now, host, &ours(held)),
        }
    }

    fn take_filled(&mut self, now: Time, host: HostIndex, request: u64, result: FillResult) {
        if result != FillResult::Done {
            tracing::warn!(host, request, ?result, "a fill failed");
        }
        self.owner.handle_filled(now, host, request, result);
    }

    fn tend(&mut self, now: Time, host: HostIndex) {
        let link = &mut self.hosts[host];
        if link.is_to_be_dialled(now) {
            let address = link.config.address.clone();
            link.state = State::Dialling;
            self.dial.dial(host, &address);
        } else if link.is_silent(now) {
            self.lose(now, host);
        } else {
            link.ping(now);
        }
    }

    fn carry_out(&mut self, now: Time) {
        while !self.is_recording
            && !self.is_suspended
            && let Some(action) = self.owner.poll_action()
        {
            match action {
                Action::Record => {
                    self.is_recording = true;
                    self.owner.handle_recording(now);
                    self.news.push_back(News::Record);
                }
                Action::Tell { client, entry } => {
                    self.news.push_back(News::Tell { client, entry });
                }
                Action::Map {
                    host,
                    request,
                    place,
                } => {
                    let extent = place.extent(self.settings.slabs_per_region);
                    let map = Request::Map {
                        request,
                        volume: self.settings.cache,
                        extent,
                        member: 0,
                    };
                    self.send(now, host, &map);
                }
                Action::Renew {
                    host,
                    request,
                    window,
                } => self.send(now, host, &Request::Renew { request, window }),
                Action::Reconnect { host } => self.hosts[host].go_down(now),
                Action::Restore {
                    request,
                    region,
                    host,
                    windows,
                } => self.restore(now, (request, region), host, windows),
                Action::Unmap { host, window } => {
                    self.send(now, host, &Request::Unmap { window });
                }
                Action::Decline { host, window } => {
                    self.send(now, host, &Request::Decline { window });
                }
                Action::Fill {
                    host,
                    request,
                    target,
                    source,
                    source_window,
                    offset,
                    len_bytes,
                } => {
                    let fill =
                        self.fill(request, target, (source, source_window), offset, len_bytes);
                    self.send(now, host, &fill);
                }
            }
        }
    }

    fn fill(
        &self,
        request: u64,
        target: Window,
        (source, window): (HostIndex, Window),
        offset: u64,
        len_bytes: u64,
    ) -> Request {
        let address = self.hosts[source].config.address.to_string();
        Request::Fill {
            request,
            target,
            split: 0,
            k: 1,
            r: 1,
            offset,
            len_bytes,
            sources: vec![Source {
                split: COPY_SOURCE,
                address,
                window,
            }],
        }
    }

    /// What cannot be sent is not asked again: the host is lost with its connection.
    fn send(&mut self, now: Time, host: HostIndex, request: &Request) {
        if self.hosts[host].is_up() && !self.hosts[host].send(request) {
            self.hosts[host].go_down(now);
            self.owner.handle_host_silent(now, host);
        }
    }
}

fn names(hosts: &[HostConfig]) -> Vec<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}

/// Whether an error is the end of a session, as opposed to a bound that will pass.
#[must_use]
pub fn is_end(error: &Error) -> bool {
    !matches!(error, Error::Bound(_))
}
