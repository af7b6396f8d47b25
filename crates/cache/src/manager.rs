//! What drives an [`Owner`]: sessions to hosts, whose messages are its events and who carry out its actions.
//!
//! Stepped from outside with the time, so that the simulator runs the same. Clients are the caller's: what
//! they are to be told comes out of [`Manager::take_news`].

mod host;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use cenote_fabric::{Error, Incoming, Time, WindowDescriptor};
use cenote_pool::control::{FillResult, Reply, Request, Source, Window};

use crate::links::{Dial, HostConfig, Linked};
use crate::owner::{Action, ClientNumber, Entry, HostIndex, OWN_REQUEST, Owner, Settings};
use host::{HostLink, State};

/// What the caller is to pass on.
#[derive(Clone, Debug)]
pub enum News {
    /// Keep the owner's entries on the disk, then call [`Manager::confirm_record`]: until then nothing that
    /// the owner decided next is sent to a host or comes as news.
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
}

/// A copy is a fill of a code in which both splits are the same: split 0 from split 1.
const COPY_SOURCE: u8 = 1;

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
        }
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

    /// Takes what has come and does what follows, without blocking.
    pub fn step(&mut self, now: Time) {
        while let Some((host, linked)) = self.dial.poll() {
            self.take_link(now, host, linked);
        }
        for host in 0..self.hosts.len() {
            self.receive(now, host);
            self.tend(now, host);
        }
        self.owner.handle_tick(now);
        self.carry_out(now);
    }

    /// Has what the owner decided sent, and its news ready to be taken: before a lease is answered. A lease
    /// is answered when all news was taken and every record among them confirmed.
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
        self.carry_out(now);
    }

    /// A client found a host other than the table has it: the books are compared.
    pub fn handle_trouble(&mut self, host: HostIndex) {
        if let Some(link) = self.hosts.get_mut(host) {
            link.compare_again();
        }
    }

    /// Descriptors to wait for, and whether for writing too.
    pub fn fds(&self) -> impl Iterator<Item = (std::os::fd::RawFd, bool)> {
        self.hosts.iter().filter_map(HostLink::interest)
    }

    /// Name and connection of each host, for people.
    pub fn hosts(&self) -> impl Iterator<Item = (&HostConfig, bool)> {
        self.hosts.iter().map(|host| (&host.config, host.is_up()))
    }

    fn take_link(&mut self, now: Time, host: HostIndex, linked: cenote_fabric::Result<Linked>) {
        let link = &mut self.hosts[host];
        match linked {
            Ok(Linked { session, .. }) => {
                let own = Request::Own {
                    request: OWN_REQUEST,
                    volume: self.settings.cache,
                    epoch: self.epoch,
                };
                link.begin(session, &own, now);
            }
            Err(error) => {
                let has_ended = host::is_nobody_there(&error);
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
        self.hosts[host].go_down(now);
        self.owner.handle_host_silent(now, host);
    }

    fn take_reply(&mut self, now: Time, host: HostIndex, reply: Reply) {
        match reply {
            Reply::Mapped { request, window } => {
                self.owner.handle_granted(now, host, request, window);
            }
            Reply::Refused {
                request: OWN_REQUEST,
                reason,
            } => {
                tracing::debug!(host, ?reason, "not owned yet");
                self.hosts[host].go_down(now);
            }
            Reply::Refused { request, reason } => {
                self.owner.handle_refused(now, host, request, reason);
            }
            Reply::Owned { .. } => self.hosts[host].begin_listing(),
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
            Reply::Held { skip, slabs } => {
                if let Some(held) = self.hosts[host].take_listing(skip, &slabs) {
                    let cache = self.settings.cache;
                    let ours = |slab: &cenote_pool::control::HeldSlab| slab.volume == cache;
                    let held: Vec<_> = held.into_iter().filter(ours).collect();
                    let slabs_free = self.hosts[host].slabs_free;
                    self.owner.handle_host_up(now, host, slabs_free, &held);
                }
            }
            Reply::Evict { windows } => self.owner.handle_evict(now, host, &windows),
            Reply::Filled { request, result } => self.take_filled(now, host, request, result),
            Reply::CheckActivity { .. }
            | Reply::Unmapped { .. }
            | Reply::Status(_)
            | Reply::Reclaim { .. }
            | Reply::HandsOver { .. } => {}
        }
        self.carry_out(now);
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
            && let Some(action) = self.owner.poll_action()
        {
            match action {
                Action::Record => {
                    self.is_recording = true;
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
                    let extent = place.region * self.settings.slabs_per_region + place.slab;
                    let map = Request::Map {
                        request,
                        volume: self.settings.cache,
                        extent,
                        member: 0,
                    };
                    self.send(now, host, &map);
                }
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

/// A window as the fabric has it.
#[must_use]
pub fn fabric_window(window: Window) -> WindowDescriptor {
    WindowDescriptor {
        id: cenote_fabric::WindowId(window.id),
        generation: cenote_fabric::Generation(window.generation),
        len_bytes: window.len_bytes,
        rights: cenote_fabric::Rights(window.rights),
    }
}

/// Whether an error is the end of a session, as opposed to a bound that will pass.
#[must_use]
pub fn is_end(error: &Error) -> bool {
    !matches!(error, Error::Bound(_))
}
