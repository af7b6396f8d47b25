//! This host as a client of the hosts that it reads from.
//!
//! One session per address, an endpoint where sources are not mapped, and the windows attached
//! through them, least recently used first out. Between fills dead connections are dropped.
//!
//! The sources of a fill are reached side by side, and one that was silent is not waited for again for a
//! while: several that are silent cost one wait, also where one fill after another names them.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, CompletionQueue, Connector, Endpoint, Error, FAILURE_TIMEOUT, Generation,
    Hello, Incoming, RemoteWindow, Session, Time, WindowDescriptor, WindowId,
};
use cenote_pool::control::{NAME_BYTES_MAX, Window};

use super::together::Reach;

/// Most hosts connected at the same time: the sources of one fill, and as many again.
const HOSTS_MAX: usize = 64;
/// Most windows attached per host.
const WINDOWS_MAX: usize = 64;
/// Most messages of a host that are read at once; it has no reason to send more.
const MESSAGES_MAX: usize = 1024;
/// How long a source that did not answer in time is not tried again, from when the try ended: as long
/// as a try lasts, so that the fills that follow the first one fail at once.
const SHUNNED: Duration = FAILURE_TIMEOUT;
/// How long a wait lasts before endpoints look at their own timeouts.
const WAIT: Duration = Duration::from_millis(100);

/// Open connections to other hosts, the longest open first.
pub(super) struct Sources {
    connector: Box<dyn Connector>,
    reach: Reach,
    hello: Hello,
    hosts: Vec<Host>,
    /// Addresses of hosts that were silent, and until when they are not tried again.
    shunned: BTreeMap<String, Time>,
}

/// A connection to one host.
pub(super) struct Host {
    address: String,
    /// For the fill to post on; `None` until one does: a connection costs more than some fills.
    endpoint: Option<Box<dyn Endpoint>>,
    /// The most recently used last. Before the session, whose end they may outlive.
    windows: Vec<RemoteWindow>,
    /// Windows of the fill in hand that the host would not open.
    refused: Vec<(WindowId, Generation)>,
    /// It owed an answer for too long: what it says later is not waited for.
    is_silent: bool,
    session: Box<dyn Session>,
}

/// A source cannot be used; the reason is logged where it is found.
pub(super) struct Unusable;

impl Sources {
    /// No connections yet. To other hosts this one is the client `fill:NAME`, which
    /// never holds slabs.
    pub(super) fn new(
        connector: Box<dyn Connector>,
        reach: Reach,
        client: ClientId,
        host: &str,
    ) -> Self {
        let mut name = format!("fill:{host}");
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        Self {
            connector,
            reach,
            hello: Hello { client, name },
            hosts: Vec::new(),
            shunned: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Whether a host was silent a moment ago.
    pub(super) fn is_silent(&self, index: usize, now: Time) -> bool {
        self.is_shunned(&self.hosts[index].address, now)
    }

    /// Closes everything.
    pub(super) fn clear(&mut self) {
        self.hosts.clear();
    }

    /// Connections to hosts, made where there are none, all at the same time; by address, the index or why
    /// not. An index holds until the next `prepare` or `clear`.
    pub(super) fn open(&mut self, addresses: &[&str], now: Time) -> Vec<Result<usize, Unusable>> {
        let is_new =
            |address: &&str| self.find(address).is_none() && !self.is_shunned(address, now);
        let mut new: Vec<&str> = addresses.iter().copied().filter(is_new).collect();
        new.sort_unstable();
        new.dedup();
        let (connector, hello) = (&*self.connector, &self.hello);
        let connected = self
            .reach
            .all(new, |address| (address, connect(connector, hello, address)));
        for (address, host) in connected {
            match host {
                Ok(host) => self.hosts.push(host),
                Err(error) => {
                    tracing::warn!(address, %error, "reach a source of a fill");
                    // One that refuses costs no time.
                    if matches!(error, Error::Timeout(_)) {
                        self.shun(address, self.ended(&error, now));
                    }
                }
            }
        }
        let found = addresses.iter().map(|address| self.find(address));
        found.map(|found| found.ok_or(Unusable)).collect()
    }

    fn find(&self, address: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == address)
    }

    fn is_shunned(&self, address: &str, now: Time) -> bool {
        self.shunned.get(address).is_some_and(|&until| now < until)
    }

    fn shun(&mut self, address: &str, now: Time) {
        self.shunned.insert(address.to_owned(), now.after(SHUNNED));
    }

    /// When a try ended that began at `now` and failed.
    fn ended(&self, error: &Error, now: Time) -> Time {
        match (self.reach, error) {
            (Reach::SideBySide, Error::Timeout(lasted)) => now.after(*lasted),
            // Nothing blocks.
            _ => now,
        }
    }

    /// A host owes an answer for so long that it is taken for silent.
    pub(super) fn give_up(&mut self, index: usize, now: Time) {
        let address = self.hosts[index].address.clone();
        tracing::warn!(address, "a source of a fill is silent");
        self.hosts[index].is_silent = true;
        self.shun(&address, now);
    }

    /// Opens the connections that verbs go over, where there are none, all at the same time; the first host
    /// that has none afterwards.
    pub(super) fn equip(&mut self, indices: &[usize], now: Time) -> Result<(), usize> {
        let mut bare = indices.to_vec();
        bare.sort_unstable();
        bare.dedup();
        bare.retain(|&index| self.hosts[index].endpoint.is_none());
        let openers = bare
            .iter()
            .map(|&index| (index, self.hosts[index].session.opener()));
        let opened = self.reach.all(openers.collect(), |(index, open)| {
            (index, open(FAILURE_TIMEOUT))
        });
        for (index, endpoint) in opened {
            match endpoint {
                Ok(endpoint) => self.hosts[index].endpoint = Some(endpoint),
                Err(error) => {
                    self.hosts[index].unusable(&error);
                    self.give_up(index, self.ended(&error, now));
                }
            }
        }
        let failed = indices
            .iter()
            .find(|&&index| self.hosts[index].endpoint.is_none());
        failed.map_or(Ok(()), |&index| Err(index))
    }

    /// Drops what is dead and makes room for the sources of one fill; call it before one.
    pub(super) fn prepare(&mut self, now: Time) {
        self.shunned.retain(|_, until| now < *until);
        self.hosts
            .retain_mut(|host| !host.is_silent && host.is_live(now));
        let surplus = self.hosts.len().saturating_sub(HOSTS_MAX / 2);
        self.hosts.drain(..surplus);
    }

    pub(super) fn host(&mut self, index: usize) -> &mut Host {
        &mut self.hosts[index]
    }
}

fn connect(connector: &dyn Connector, hello: &Hello, address: &str) -> cenote_fabric::Result<Host> {
    let parsed: Address = address.parse()?;
    let session = connector.connect(&parsed, hello, FAILURE_TIMEOUT)?;
    Ok(Host {
        address: address.to_owned(),
        endpoint: None,
        windows: Vec::new(),
        refused: Vec::new(),
        is_silent: false,
        session,
    })
}

impl Host {
    /// For a fill to post on, after [`Sources::equip`].
    pub(super) fn endpoint(&mut self) -> &mut dyn Endpoint {
        self.endpoint
            .as_deref_mut()
            .expect("equipped before the fill posts")
    }

    /// Whether all connections stand, as far as can be told without waiting.
    pub(super) fn is_live(&mut self, now: Time) -> bool {
        self.refused.clear();
        for _ in 0..MESSAGES_MAX {
            match self.session.receive() {
                Ok(Some(_)) => {} // A late answer to an attach that was given up.
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        let mut unowned = CompletionQueue::default();
        // No fill waits for a completion now: what still comes belongs to one that ended early.
        let Some(endpoint) = &mut self.endpoint else {
            return true;
        };
        endpoint.poll(now, &mut unowned);
        !endpoint.is_dead()
    }

    /// The window, if it is attached; otherwise asks the host for it, and [`Host::attached`]
    /// says how that ended.
    pub(super) fn window(&mut self, window: Window) -> Result<Option<RemoteWindow>, Unusable> {
        let descriptor = window.into();
        let Some(found) = self.windows.iter().position(|w| w.descriptor == descriptor) else {
            return match self.session.attach(descriptor) {
                Ok(()) => Ok(None),
                Err(error) => Err(self.unusable(&error)),
            };
        };
        let remote = self.windows.remove(found);
        self.windows.push(remote.clone());
        Ok(Some(remote))
    }

    /// A window that was asked for, once the host has answered.
    pub(super) fn attached(&mut self, window: Window) -> Result<Option<RemoteWindow>, Unusable> {
        let asked = WindowDescriptor::from(window);
        loop {
            match self.session.receive() {
                Ok(Some(Incoming::Attached(answered, end))) => match end {
                    Ok(remote) => {
                        if self.windows.len() >= WINDOWS_MAX {
                            self.windows.remove(0);
                        }
                        self.windows.push(remote);
                    }
                    // A refusal names no length and no rights.
                    Err(error)
                        if (answered.id, answered.generation) == (asked.id, asked.generation) =>
                    {
                        return Err(self.unusable(&error));
                    }
                    Err(_) => self.refused.push((answered.id, answered.generation)),
                },
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Err(self.unusable(&error)),
            }
        }
        if self.refused.contains(&(asked.id, asked.generation)) {
            return Err(self.unusable(&Error::StaleWindow));
        }
        let found = self.windows.iter().find(|w| w.descriptor == asked);
        Ok(found.cloned())
    }

    fn unusable(&self, error: &Error) -> Unusable {
        tracing::warn!(address = self.address, %error, "use a source of a fill");
        Unusable
    }

    /// What to wait for while an answer or a completion is owed, and for how long at most.
    pub(super) fn interest(&self) -> (impl Iterator<Item = RawFd>, Duration) {
        let limit = if self.session.wants_write() {
            // A send that waits for the socket is tried again by `receive`.
            Duration::from_millis(1)
        } else {
            WAIT
        };
        let endpoint = self.endpoint.as_ref().and_then(|endpoint| endpoint.fd());
        (endpoint.into_iter().chain(self.session.fd()), limit)
    }

    /// Forgets a window whose verbs fail; attached again it may be another.
    pub(super) fn forget(&mut self, window: &RemoteWindow) {
        self.windows.retain(|w| w.descriptor != window.descriptor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier};

    /// Connects to nobody, once so many are tried at a time.
    struct Nobody {
        tries: Arc<AtomicUsize>,
        barrier: Option<Barrier>,
        error: fn() -> Error,
    }

    impl Connector for Nobody {
        fn connect(
            &self,
            _: &Address,
            _: &Hello,
            _: Duration,
        ) -> cenote_fabric::Result<Box<dyn Session>> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            if let Some(barrier) = &self.barrier {
                barrier.wait();
            }
            Err((self.error)())
        }
    }

    const ADDRESSES: [&str; 3] = ["shm:/a", "shm:/b", "shm:/c"];

    fn sources(barrier: Option<Barrier>, error: fn() -> Error) -> (Sources, Arc<AtomicUsize>) {
        let tries = Arc::new(AtomicUsize::new(0));
        let connector = Nobody {
            tries: Arc::clone(&tries),
            barrier,
            error,
        };
        let connector = Box::new(connector);
        let sources = Sources::new(connector, Reach::SideBySide, ClientId(1), "h00");
        (sources, tries)
    }

    #[test]
    fn sources_that_are_silent_are_waited_for_at_the_same_time_and_once() {
        let silent = || Error::Timeout(FAILURE_TIMEOUT);
        // No try ends before all have begun.
        let (mut sources, tries) = sources(Some(Barrier::new(3)), silent);
        let begun = Time(1);
        let opened = sources.open(&ADDRESSES, begun);
        assert!(opened.iter().all(Result::is_err));
        // The fills that follow, each without the source that the last one named.
        let ended = begun.after(FAILURE_TIMEOUT / 2);
        for addresses in [&ADDRESSES[1..], &ADDRESSES[2..]] {
            sources.prepare(ended);
            assert!(sources.open(addresses, ended).iter().all(Result::is_err));
        }
        assert_eq!(tries.load(Ordering::Relaxed), 3);
        let later = begun.after(FAILURE_TIMEOUT).after(SHUNNED);
        sources.prepare(later);
        sources.open(&ADDRESSES, later);
        assert_eq!(tries.load(Ordering::Relaxed), 6, "they may be back");
    }

    #[test]
    fn fills_that_follow_one_that_waited_for_a_source_in_vain_do_not_wait_again() {
        let (mut sources, tries) = sources(None, || Error::Timeout(FAILURE_TIMEOUT));
        let begun = Time(1);
        sources.open(&ADDRESSES[..1], begun);
        // The thread that fills was in the first try until now.
        let ended = begun.after(FAILURE_TIMEOUT);
        sources.prepare(ended);
        assert!(sources.open(&ADDRESSES[..1], ended)[0].is_err());
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        sources.open(&ADDRESSES[..1], ended.after(SHUNNED));
        assert_eq!(tries.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_source_that_refuses_is_tried_again_at_once() {
        let (mut sources, tries) = sources(None, || Error::Closed);
        for round in 1..=2 {
            sources.open(&ADDRESSES, Time(1));
            assert_eq!(tries.load(Ordering::Relaxed), 3 * round);
        }
    }
}
