//! This host as a client of the hosts that it reads from.
//!
//! One session per address, an endpoint where sources are not mapped, and the windows attached
//! through them, least recently used first out. Between fills dead connections are dropped.

use std::os::fd::RawFd;
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, CompletionQueue, Connector, Endpoint, Error, FAILURE_TIMEOUT, Generation,
    Hello, Incoming, RemoteWindow, Rights, Session, Time, WindowDescriptor, WindowId,
};
use cenote_pool::control::{NAME_BYTES_MAX, Window};

/// Most hosts connected at the same time: the sources of one fill, and as many again.
const HOSTS_MAX: usize = 64;
/// Most windows attached per host.
const WINDOWS_MAX: usize = 64;
/// Most messages of a host that are read at once; it has no reason to send more.
const MESSAGES_MAX: usize = 1024;
/// How long a wait lasts before endpoints look at their own timeouts.
const WAIT: Duration = Duration::from_millis(100);

/// Open connections to other hosts, the longest open first.
pub(super) struct Sources {
    connector: Box<dyn Connector>,
    hello: Hello,
    hosts: Vec<Host>,
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
    session: Box<dyn Session>,
}

/// A source cannot be used; the reason is logged where it is found.
pub(super) struct Unusable;

impl Sources {
    /// No connections yet. To other hosts this one is the client `fill:NAME`, which
    /// never holds slabs.
    pub(super) fn new(connector: Box<dyn Connector>, client: ClientId, host: &str) -> Self {
        let mut name = format!("fill:{host}");
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        Self {
            connector,
            hello: Hello { client, name },
            hosts: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Closes everything.
    pub(super) fn clear(&mut self) {
        self.hosts.clear();
    }

    /// A connection to `address`, made if need be. Its index holds until the next
    /// `prepare` or `clear`.
    pub(super) fn open(&mut self, address: &str) -> Result<usize, Unusable> {
        if let Some(found) = self.hosts.iter().position(|host| host.address == address) {
            return Ok(found);
        }
        let host = self.connect(address).map_err(|error| {
            tracing::warn!(address, %error, "reach a source of a fill");
            Unusable
        })?;
        self.hosts.push(host);
        Ok(self.hosts.len() - 1)
    }

    /// Drops what is dead and makes room for the sources of one fill; call it before one.
    pub(super) fn prepare(&mut self, now: Time) {
        self.hosts.retain_mut(|host| host.is_live(now));
        let surplus = self.hosts.len().saturating_sub(HOSTS_MAX / 2);
        self.hosts.drain(..surplus);
    }

    pub(super) fn host(&mut self, index: usize) -> &mut Host {
        &mut self.hosts[index]
    }

    fn connect(&self, address: &str) -> cenote_fabric::Result<Host> {
        let parsed: Address = address.parse()?;
        let session = self
            .connector
            .connect(&parsed, &self.hello, FAILURE_TIMEOUT)?;
        Ok(Host {
            address: address.to_owned(),
            endpoint: None,
            windows: Vec::new(),
            refused: Vec::new(),
            session,
        })
    }
}

impl Host {
    /// Opens the connection that verbs go over, if there is none.
    pub(super) fn equip(&mut self) -> Result<(), Unusable> {
        if self.endpoint.is_none() {
            let opened = self.session.endpoint(FAILURE_TIMEOUT);
            self.endpoint = Some(opened.map_err(|error| self.unusable(&error))?);
        }
        Ok(())
    }

    /// For a fill to post on, after [`Host::equip`].
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
        let descriptor = descriptor(window);
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
        let asked = descriptor(window);
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

    /// Forgets a window whose verbs fail; attached anew it may be another.
    pub(super) fn forget(&mut self, window: &RemoteWindow) {
        self.windows.retain(|w| w.descriptor != window.descriptor);
    }
}

fn descriptor(window: Window) -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(window.id),
        generation: Generation(window.generation),
        len_bytes: window.len_bytes,
        rights: Rights(window.rights),
    }
}
