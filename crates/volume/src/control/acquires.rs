//! Slabs on their way from hosts.
//!
//! An **acquire** is one slab: ask the host (MAP, or RETAKE for one that is unreachable), attach the
//! window that it grants. Whoever asked learns how it ended from [`Acquires::take_ended`].
//!
//! Invariant: a slab that was granted is attached, or goes back. One that was to come back stays where it
//! is: it is asked for again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cenote_fabric::{Error, RemoteWindow, Result, Time, WindowDescriptor};
use cenote_pool::control::{Refusal, Request, Window};

use super::hosts::{Hosts, shortage};
use super::recorder::Recorder;
use crate::directory::{HostIndex, Member, MemberState, Session};
use crate::extents::LayoutId;

/// A slab that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acquire {
    pub extent: usize,
    /// Which member of the extent's stripe it is to be.
    pub member: usize,
    pub session: Session,
    pub purpose: Purpose,
    asked_at: Time,
    /// The slab, once the host has granted it.
    pub granted: Option<Window>,
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

/// How it ended.
pub(super) enum Outcome {
    Granted(Granted),
    /// The host has no such slab any more.
    NotHeld,
    /// It may be there another time.
    Failed,
    /// This machine has no descriptor or no memory for it.
    Short(std::io::Error),
}

/// A slab that a host granted and this client attached.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub session: Session,
    pub window: RemoteWindow,
}

/// All that are under way.
pub(super) struct Acquires {
    volume: u128,
    under_way: BTreeMap<u64, Acquire>,
    ended: VecDeque<(Acquire, Outcome)>,
}

/// How long a host that answers pings may take for a slab: it may have to populate 1 GiB.
const ACQUIRE_MAX: Duration = Duration::from_secs(30);

impl Acquire {
    fn returns(&self) -> bool {
        matches!(self.purpose, Purpose::Return { .. })
    }
}

impl Granted {
    /// The pool's name of it.
    pub fn slab(&self) -> Window {
        self.window.name()
    }

    /// A stripe's member that is new with it.
    pub fn into_member(self, state: MemberState) -> Member {
        Member {
            session: self.session,
            birth: self.window.descriptor.generation.0,
            window: self.window,
            state,
        }
    }
}

impl Acquires {
    pub fn new(volume: u128) -> Self {
        Self {
            volume,
            under_way: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// The next that has ended.
    pub fn take_ended(&mut self) -> Option<(Acquire, Outcome)> {
        self.ended.pop_front()
    }

    /// All of those whose unreachable slab is back.
    pub fn take_returned(&mut self) -> Vec<(Acquire, Granted)> {
        let mut returned = Vec::new();
        for (acquire, outcome) in std::mem::take(&mut self.ended) {
            match outcome {
                Outcome::Granted(granted) if acquire.returns() => returned.push((acquire, granted)),
                outcome => self.ended.push_back((acquire, outcome)),
            }
        }
        returned
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether a slab is on its way to an extent of a layout.
    pub fn has_any(&self, layout_id: LayoutId) -> bool {
        self.iter()
            .any(|acquire| LayoutId::of(acquire.extent) == layout_id)
    }

    /// Those under way, by the number of their request.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Acquire)> {
        self.under_way
            .iter()
            .map(|(&request, acquire)| (request, acquire))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Acquire> {
        self.under_way.values()
    }

    /// Slabs on their way to the mapping of an extent.
    pub fn mapping(&self, extent: usize) -> impl Iterator<Item = &Acquire> {
        self.iter()
            .filter(move |it| it.extent == extent && it.purpose == Purpose::Map)
    }

    /// Slabs on their way back from a host.
    pub fn returning_from(&self, host: HostIndex) -> impl Iterator<Item = &Acquire> {
        self.iter()
            .filter(move |it| it.session.host == host && it.returns())
    }

    /// Asks one host for one slab.
    pub fn begin(
        &mut self,
        hosts: &mut Hosts,
        extent: usize,
        member: usize,
        host: HostIndex,
        purpose: Purpose,
    ) {
        if let Some(request) = self.note(hosts, extent, member, host, purpose) {
            self.ask(hosts, request);
        }
    }

    /// Enters one in the books, before it is asked for; `None` when the host is not connected.
    pub fn note(
        &mut self,
        hosts: &mut Hosts,
        extent: usize,
        member: usize,
        host: HostIndex,
        purpose: Purpose,
    ) -> Option<u64> {
        let session = hosts[host].session()?;
        let request = hosts.next_request();
        let acquire = Acquire {
            extent,
            member,
            session,
            purpose,
            asked_at: hosts.now(),
            granted: None,
        };
        let free = &mut hosts[host].slabs_free;
        *free = free.saturating_sub(u32::from(!acquire.returns()));
        self.under_way.insert(request, acquire);
        Some(request)
    }

    /// Sends the message of one that was noted.
    pub fn ask(&mut self, hosts: &mut Hosts, request: u64) {
        let Some(acquire) = self.under_way.get(&request) else {
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
        if hosts[host].understands(&message) {
            // Losing the host ends the acquire as well.
            hosts.send(host, &message);
        } else {
            // A host of an earlier version keeps nothing for those who come back.
            self.on_refused(hosts, host, request, Refusal::NotHeld);
        }
    }

    /// A host has granted a slab.
    pub fn on_mapped(
        &mut self,
        hosts: &mut Hosts,
        recorder: &Recorder,
        host: HostIndex,
        request: u64,
        window: Window,
    ) {
        let session = hosts[host].session();
        let known = self
            .under_way
            .get_mut(&request)
            .filter(|acquire| Some(acquire.session) == session);
        let fits = window.len_bytes >= hosts.slab_bytes();
        match (known, session) {
            (Some(acquire), _) if fits => {
                acquire.granted = Some(window);
                if !hosts[host].attach(window) {
                    hosts.lose(host);
                }
            }
            // Too late, or of no use: the slab goes back.
            (known, Some(session)) => {
                let failed = known.is_some();
                hosts.give_back(recorder, session, window);
                if failed {
                    self.on_refused(hosts, host, request, Refusal::NotHeld);
                }
            }
            (_, None) => {}
        }
    }

    /// A host refuses a slab; whether it was asked for one by this request.
    pub fn on_refused(
        &mut self,
        hosts: &mut Hosts,
        host: HostIndex,
        request: u64,
        reason: Refusal,
    ) -> bool {
        let asked = |acquire: &&Acquire| acquire.session.host == host;
        if self.under_way.get(&request).filter(asked).is_none() {
            return false;
        }
        let acquire = self.under_way.remove(&request).expect("just found");
        if !acquire.returns() {
            hosts[host].slabs_free = 0;
        }
        let outcome = match acquire.returns() && reason == Refusal::NotHeld {
            true => Outcome::NotHeld,
            // It may still be there.
            false => Outcome::Failed,
        };
        self.ended.push_back((acquire, outcome));
        true
    }

    /// The fabric has attached a window, or could not.
    pub fn on_attached(
        &mut self,
        hosts: &mut Hosts,
        recorder: &Recorder,
        host: HostIndex,
        descriptor: WindowDescriptor,
        window: Result<RemoteWindow>,
    ) {
        // By its name alone: a host that refuses knows neither its length nor its rights.
        let named = (descriptor.id.0, descriptor.generation.0);
        let attaching = |(&request, acquire): (&u64, &Acquire)| {
            let granted = acquire.granted.filter(|granted| {
                acquire.session.host == host && (granted.id, granted.generation) == named
            })?;
            Some((request, granted))
        };
        let Some((request, granted)) = self.under_way.iter().find_map(attaching) else {
            return;
        };
        let acquire = self.under_way.remove(&request).expect("just found");
        let outcome = match window {
            Ok(window) if WindowDescriptor::from(granted) == descriptor => {
                Outcome::Granted(Granted {
                    session: acquire.session,
                    window,
                })
            }
            refused => {
                let error = refused
                    .err()
                    .unwrap_or(Error::Protocol("not as it was granted"));
                tracing::warn!(host = %hosts.name(host), %error, "a slab cannot be attached");
                if !acquire.returns() {
                    hosts.give_back(recorder, acquire.session, granted);
                }
                shortage(&error).map_or(Outcome::Failed, Outcome::Short)
            }
        };
        self.ended.push_back((acquire, outcome));
    }

    /// Ends those of a session that is gone.
    pub fn lose(&mut self, hosts: &mut Hosts, recorder: &Recorder, session: Session) {
        self.fail(hosts, recorder, |_, acquire| acquire.session == session);
        // A slab that was attached before has not been taken.
        let ended = self.ended.iter_mut();
        for (acquire, outcome) in ended.filter(|(acquire, _)| acquire.session == session) {
            if let Outcome::Granted(granted) = outcome {
                if !acquire.returns() {
                    hosts.give_back(recorder, session, granted.slab());
                }
                *outcome = Outcome::Failed;
            }
        }
    }

    /// Gives up on hosts that answer neither pings nor in the time that any slab takes.
    pub fn tend(&mut self, hosts: &mut Hosts, recorder: &Recorder, now: Time) {
        self.fail(hosts, recorder, |hosts, acquire| {
            hosts[acquire.session.host].is_silent(now) || now.since(acquire.asked_at) > ACQUIRE_MAX
        });
    }

    fn fail(
        &mut self,
        hosts: &mut Hosts,
        recorder: &Recorder,
        is_over: impl Fn(&Hosts, &Acquire) -> bool,
    ) {
        let over = self
            .under_way
            .extract_if(.., |_, acquire| is_over(hosts, acquire));
        let over: Vec<Acquire> = over.map(|(_, acquire)| acquire).collect();
        for acquire in over {
            if let Some(window) = acquire.granted.filter(|_| !acquire.returns()) {
                hosts.give_back(recorder, acquire.session, window);
            }
            self.ended.push_back((acquire, Outcome::Failed));
        }
    }
}
