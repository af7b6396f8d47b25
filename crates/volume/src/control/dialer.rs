//! Reaching hosts: what blocks runs beside the control thread, on threads that live as long as it.

use std::os::fd::RawFd;

use cenote_fabric::{
    Address, Connector, Error, FAILURE_TIMEOUT, Hello, Incoming, Result, Session, Time,
};
use cenote_pool::control::{Reply, Request, VERSION};

/// A connected host, and what it said first.
pub struct Link {
    /// The connection.
    pub session: Box<dyn Session>,
    /// Size of its slabs.
    pub slab_bytes: u64,
    /// Slabs that it lends in all.
    pub slabs_total: u32,
    /// Slabs that nobody holds.
    pub slabs_free: u32,
}

/// Runs what may block, elsewhere. The simulator has its own.
pub trait Dialer: Send + Sync {
    /// Connects to a host as `hello` and asks what it has, then hands over how that went.
    ///
    /// # Errors
    /// It cannot be started; `then` is dropped.
    fn dial(
        &self,
        address: Address,
        hello: Hello,
        then: Box<dyn FnOnce(Result<Link>) + Send>,
    ) -> std::io::Result<()>;

    /// Runs `work`.
    ///
    /// # Errors
    /// It cannot be started; `work` is dropped.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()>;
}

/// A short-lived thread for each call.
pub struct Threads(pub std::sync::Arc<dyn Connector>);

impl Dialer for Threads {
    fn dial(
        &self,
        address: Address,
        hello: Hello,
        then: Box<dyn FnOnce(Result<Link>) + Send>,
    ) -> std::io::Result<()> {
        let connector = std::sync::Arc::clone(&self.0);
        self.run(Box::new(move || then(dial(&*connector, &address, &hello))))
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        let builder = std::thread::Builder::new().name("cenote-connect".into());
        builder.spawn(work).map(drop)
    }
}

/// A new session whose host has been asked what it has.
pub struct Greeting {
    session: Box<dyn Session>,
    deadline: Time,
}

/// How far a [`Greeting`] is.
pub enum Greeted {
    /// The host has not answered yet.
    Waiting(Greeting),
    /// It has.
    Ready(Link),
}

impl Greeting {
    /// Asks.
    ///
    /// # Errors
    /// As [`Session::send`].
    pub fn begin(mut session: Box<dyn Session>, now: Time) -> Result<Self> {
        let mut query = Vec::new();
        Request::Query.encode_as(spoken(&*session), &mut query);
        session.send(&query)?;
        let deadline = now.after(FAILURE_TIMEOUT);
        Ok(Self { session, deadline })
    }

    /// Takes the answer, if it is there.
    ///
    /// # Errors
    /// `Timeout`; `Protocol` when the host answers something else; as [`Session::receive`].
    pub fn poll(mut self, now: Time) -> Result<Greeted> {
        let unexpected = Error::Protocol("expected the host's free memory");
        match self.session.receive()? {
            Some(Incoming::Message(bytes)) => match Reply::decode(&bytes) {
                Ok(Reply::Free {
                    slab_bytes,
                    slabs_total,
                    slabs_free,
                    ..
                }) if SLAB_BYTES.contains(&slab_bytes) => Ok(Greeted::Ready(Link {
                    session: self.session,
                    slab_bytes,
                    slabs_total,
                    slabs_free,
                })),
                _ => Err(unexpected),
            },
            Some(_) => Err(unexpected),
            None if now >= self.deadline => Err(Error::Timeout(FAILURE_TIMEOUT)),
            None => Ok(Greeted::Waiting(self)),
        }
    }

    fn interest(&self) -> (Option<RawFd>, bool) {
        (self.session.fd(), self.session.wants_write())
    }
}

/// Connects to a host and asks what it has; within [`FAILURE_TIMEOUT`] each.
///
/// # Errors
/// As [`Connector::connect`] and [`Greeting::poll`].
pub fn dial(connector: &dyn Connector, address: &Address, hello: &Hello) -> Result<Link> {
    let session = connector.connect(address, hello, FAILURE_TIMEOUT)?;
    let mut greeting = Greeting::begin(session, Time::now())?;
    loop {
        greeting = match greeting.poll(Time::now())? {
            Greeted::Ready(link) => return Ok(link),
            Greeted::Waiting(greeting) => greeting,
        };
        let (fd, wants_write) = greeting.interest();
        let mut fd = entry(fd, wants_write);
        let left = greeting.deadline.since(Time::now());
        let millis = i32::try_from(left.as_millis()).expect("within the failure timeout") + 1;
        // A wait that fails is one that ends early: the session and the deadline are looked at again.
        // SAFETY: `fd` is one valid entry for the duration of the call.
        unsafe { libc::poll(&raw mut fd, 1, millis) };
    }
}

/// The version of the messages that both ends of a session speak.
pub(super) fn spoken(session: &dyn Session) -> u8 {
    u8::try_from(session.version()).map_or(VERSION, |agreed| agreed.min(VERSION))
}

/// Sizes of slabs that make sense: a page to a terabyte. Anything else is a broken host.
const SLAB_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 40;

/// An entry for `poll(2)`, which skips one without a descriptor.
pub(super) fn entry(fd: Option<RawFd>, wants_write: bool) -> libc::pollfd {
    let events = libc::POLLIN | if wants_write { libc::POLLOUT } else { 0 };
    libc::pollfd {
        fd: fd.unwrap_or(-1),
        events,
        revents: 0,
    }
}
