//! Sessions over sockets: connecting, the client's half of the handshake, the control connection.

mod line;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{CallerOpener, receive_rings};
use crate::channel::Channel;
use crate::frame::{Frame, Welcome};
use crate::memory::Mapping;
use crate::noise::{
    HANDSHAKE_BYTES, Initiator, Purpose, Refusal, TAG_BYTES, VERSION_CALLS, VERSION_PROTECTED,
};
use crate::rdma::Tuning;
use crate::resolver::Resolver;
use crate::session::Opener;
use crate::{
    Address, ClusterKey, Connector, Error, FAILURE_TIMEOUT, Hello, HostPort, Incoming,
    RemoteWindow, Result, Session, Versions, WindowDescriptor, WireProtection, memory, socket,
    wait,
};
use line::Line;

/// Opens sessions over `shm`, `tcp` and `rdma`, as the address says. Page traffic over `tcp` is
/// encrypted.
#[must_use]
pub fn connector(key: ClusterKey) -> impl Connector {
    connector_with(key, WireProtection::default())
}

/// As [`connector`]; page traffic over `tcp` is protected as told, or there is none.
#[must_use]
pub fn connector_with(key: ClusterKey, page_traffic: WireProtection) -> impl Connector {
    connector_tuned(key, page_traffic, Tuning::default())
}

/// As [`connector_with`], with choices of `rdma` that may be switched off.
#[must_use]
pub fn connector_tuned(
    key: ClusterKey,
    page_traffic: WireProtection,
    tuning: Tuning,
) -> impl Connector {
    memory::raise_descriptor_limit();
    SocketConnector {
        key,
        page_traffic,
        tuning,
        resolver: Resolver::default(),
    }
}

struct SocketConnector {
    key: ClusterKey,
    page_traffic: WireProtection,
    #[cfg_attr(
        not(feature = "rdma"),
        expect(dead_code, reason = "of rdma's connections alone")
    )]
    tuning: Tuning,
    resolver: Resolver,
}

impl Connector for SocketConnector {
    fn connect(
        &self,
        address: &Address,
        hello: &Hello,
        timeout: Duration,
    ) -> Result<Box<dyn Session>> {
        #[cfg(not(feature = "rdma"))]
        if let Address::Rdma(_) = address {
            return Err(unusable(address));
        }
        hello.check_name()?;
        let dialog = Dialog::new(address, timeout);
        let (socket, reached) = dialog.dial(&self.resolver)?;
        let channel = open(&dialog, socket, &self.key, Purpose::Control, hello)?;
        if !matches!(address, Address::Shm(_)) {
            socket::end_when_unreachable(channel.as_fd(), FAILURE_TIMEOUT)
                .map_err(|e| Error::os(format!("set up a connection to {address}"), e))?;
        }
        Ok(Box::new(SocketSession {
            channel,
            address: reached,
            key: self.key.clone(),
            page_traffic: self.page_traffic,
            #[cfg(feature = "rdma")]
            tuning: self.tuning,
            hello: hello.clone(),
            attaching: 0,
            host_lost: Arc::new(AtomicBool::new(false)),
        }))
    }
}

struct SocketSession {
    channel: Channel,
    /// Where the host was reached: a name may lead its data connections elsewhere.
    address: Address,
    key: ClusterKey,
    page_traffic: WireProtection,
    #[cfg(feature = "rdma")]
    tuning: Tuning,
    hello: Hello,
    /// Attach requests without an answer yet.
    attaching: usize,
    /// Set when any connection to the host breaks: its memory counts as lost, mapped or not.
    host_lost: Arc<AtomicBool>,
}

impl SocketSession {
    fn say(&mut self, frame: &Frame<'_>) -> Result<()> {
        if self.host_lost.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.channel.queue(frame, None)?;
        let flushed = self.channel.flush();
        self.noting(flushed)
    }

    fn line(&self) -> Line {
        Line {
            // Over shm there is no wire, and over rdma the device's is not ours to protect.
            protection: match self.address {
                Address::Tcp(_) => self.page_traffic,
                Address::Shm(_) | Address::Rdma(_) => WireProtection::Plain,
            },
            address: self.address.clone(),
            key: self.key.clone(),
            #[cfg(feature = "rdma")]
            tuning: self.tuning,
            hello: self.hello.clone(),
            host_lost: Arc::clone(&self.host_lost),
        }
    }

    /// Any failure of the connection is the loss of the host.
    fn noting<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.host_lost.store(true, Ordering::Relaxed);
        }
        result
    }

    fn take(&mut self) -> Result<Option<Incoming>> {
        // A host that has gone may have said something before, which counts.
        let flushed = self.channel.flush();
        loop {
            match self.channel.next()? {
                Some(Frame::Message(bytes)) => return Ok(Some(Incoming::Message(bytes.to_vec()))),
                Some(Frame::Attached {
                    descriptor,
                    granted,
                }) => {
                    self.attaching = self
                        .attaching
                        .checked_sub(1)
                        .ok_or(Error::Protocol("an attach answer without request"))?;
                    return Ok(Some(Incoming::Attached(
                        descriptor,
                        self.window(descriptor, granted)?,
                    )));
                }
                #[cfg(feature = "rdma")]
                Some(Frame::Keyed {
                    descriptor,
                    address,
                    key,
                }) if matches!(self.address, Address::Rdma(_)) => {
                    self.attaching = self
                        .attaching
                        .checked_sub(1)
                        .ok_or(Error::Protocol("an attach answer without request"))?;
                    let mut window = RemoteWindow::new(descriptor, None);
                    window.remote = Some(Arc::new(crate::rdma::RemoteMemory {
                        address,
                        key,
                        session: Arc::clone(&self.host_lost),
                        stale: AtomicBool::new(false),
                    }));
                    return Ok(Some(Incoming::Attached(descriptor, Ok(window))));
                }
                Some(_) => return Err(Error::Protocol("not for a client")),
                None => match self.channel.fill() {
                    Ok(true) => {}
                    filled => return flushed.and(filled).map(|_| None),
                },
            }
        }
    }

    /// The outer result is the session's, the inner one the window's.
    fn window(
        &mut self,
        descriptor: WindowDescriptor,
        granted: bool,
    ) -> Result<Result<RemoteWindow>> {
        if !granted {
            return Ok(Err(Error::StaleWindow));
        }
        match self.address {
            Address::Shm(_) => {}
            Address::Tcp(_) => return Ok(Ok(RemoteWindow::new(descriptor, None))),
            Address::Rdma(_) => return Err(Error::Protocol("a grant without its key")),
        }
        let fd = self.channel.take_descriptor()?;
        let mapping = fd.and_then(|fd| Mapping::new(fd.as_fd(), descriptor));
        Ok(mapping.map(|mapping| RemoteWindow::new(descriptor, Some(Arc::new(mapping)))))
    }
}

impl Session for SocketSession {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.say(&Frame::Message(message))
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        self.say(&Frame::Attach {
            id: window.id,
            generation: window.generation,
        })?;
        self.attaching += 1;
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        let taken = self.take();
        self.noting(taken)
    }

    fn opener(&self) -> Opener {
        let line = self.line();
        Box::new(move |timeout| line.endpoint(timeout))
    }

    fn caller_opener(&self) -> CallerOpener {
        let line = self.line();
        Box::new(move |timeout| line.caller(timeout))
    }

    fn fd(&self) -> Option<RawFd> {
        Some(self.channel.as_raw_fd())
    }

    fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    fn version(&self) -> u16 {
        self.channel.version()
    }
}

impl Drop for SocketSession {
    /// The host ends a client's data connections with its session.
    fn drop(&mut self) {
        self.host_lost.store(true, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "rdma"))]
fn unusable(address: &Address) -> Error {
    Error::Unusable {
        address: address.clone(),
        reason: crate::rdma::support().to_string(),
    }
}

/// The device with the address that this end of the connection has.
#[cfg(feature = "rdma")]
fn our_device(channel: &Channel, address: &Address) -> Result<Arc<cenote_verbs::Device>> {
    let os = |e| Error::os(format!("look at a connection to {address}"), e);
    let socket = channel.as_fd().try_clone_to_owned().map_err(os)?;
    let ours = TcpStream::from(socket).local_addr().map_err(os)?;
    crate::rdma::device::with_ip(ours.ip(), address)
}

/// Does the client's half of the handshake on a new connection, up to the host's welcome.
fn open(
    dialog: &Dialog<'_>,
    socket: OwnedFd,
    key: &ClusterKey,
    purpose: Purpose,
    hello: &Hello,
) -> Result<Channel> {
    let address = dialog.address;
    let (initiator, first) = Initiator::start(key);
    dialog.send(&socket, &first)?;
    let mut answer = [0; HANDSHAKE_BYTES];
    dialog.receive(&socket, &mut answer)?;
    let mut transport = initiator.finish(&answer).map_err(|refusal| match refusal {
        Refusal::Unauthenticated => Error::Unauthenticated {
            address: address.clone(),
        },
        Refusal::Version(theirs) => Error::Version {
            address: address.clone(),
            ours: Versions::OURS,
            theirs,
        },
    })?;
    if let Purpose::Calls(_) = purpose
        && transport.version() < VERSION_CALLS
    {
        return Err(Error::Unanswered {
            address: address.clone(),
            reason: "the host is of a version that answers no calls; upgrade it",
        });
    }
    if let Purpose::Data(wanted) = purpose
        && wanted > WireProtection::Plain
        && transport.version() < VERSION_PROTECTED
    {
        let version = transport.version();
        return Err(Error::Unprotected {
            address: address.clone(),
            reason: format!(
                "page traffic is to be {wanted}, and the host speaks version {version} of the \
                 protocol, in which it is plain; upgrade the host, or allow plain page traffic here"
            ),
        });
    }
    let said = transport.hello(purpose, hello);
    dialog.send(&socket, &said)?;
    // Read to its exact end: on `tcp` data connections what follows are no frames.
    let mut sealed = [0; WELCOME_BYTES];
    dialog.receive(&socket, &mut sealed)?;
    let mut plain = [0; WELCOME_BYTES];
    let opened = transport.open(&sealed[2..], &mut plain);
    let len = opened.ok_or_else(|| Error::Unauthenticated {
        address: address.clone(),
    })?;
    match Frame::decode(&plain[..len])? {
        Frame::Welcome(Welcome::Served) => Ok(Channel::new(
            socket,
            transport,
            matches!(address, Address::Shm(_)),
        )),
        Frame::Welcome(Welcome::Unprotected) => Err(Error::Unprotected {
            address: address.clone(),
            reason:
                "the host takes no page traffic that is protected so little; choose a stronger \
                     protection here, or allow a weaker one there"
                    .into(),
        }),
        Frame::Welcome(Welcome::Unanswered) => Err(Error::Unanswered {
            address: address.clone(),
            reason: "the host has no server threads; start it with --cache-threads",
        }),
        Frame::Welcome(Welcome::Full) => Err(Error::Bound("the host's connections")),
        Frame::Welcome(Welcome::NoSession) => Err(Error::Closed),
        _ => Err(Error::Protocol("no welcome")),
    }
}

/// Blocking steps towards one address, up to one deadline.
struct Dialog<'a> {
    address: &'a Address,
    deadline: Instant,
    timeout: Duration,
}

impl<'a> Dialog<'a> {
    fn new(address: &'a Address, timeout: Duration) -> Self {
        Self {
            address,
            deadline: Instant::now() + timeout,
            timeout,
        }
    }

    /// Connects; also where that led to, without a name.
    fn dial(&self, resolver: &Resolver) -> Result<(OwnedFd, Address)> {
        match self.address {
            Address::Shm(path) => Ok((self.connect_unix(path)?, self.address.clone())),
            Address::Tcp(to) => {
                let (socket, reached) = self.connect_tcp(to, resolver)?;
                Ok((socket, Address::Tcp(reached.into())))
            }
            Address::Rdma(to) => {
                let (socket, reached) = self.connect_tcp(to, resolver)?;
                Ok((socket, Address::Rdma(reached.into())))
            }
        }
    }

    fn connect_unix(&self, path: &Path) -> Result<OwnedFd> {
        loop {
            match socket::connect_unix(path) {
                Ok(socket) => return Ok(socket),
                // A full backlog: there is nothing to wait on, so look again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(self.left()?.min(BACKLOG_RETRY));
                }
                Err(error) => return Err(self.os("connect to", error)),
            }
        }
    }

    /// Tries the addresses of a host in turn. A silent one takes no more than its share of the time
    /// that is left.
    fn connect_tcp(&self, to: &HostPort, resolver: &Resolver) -> Result<(OwnedFd, SocketAddr)> {
        let found = resolver.resolve(to, self.left()?);
        let found = found.map_err(|source| Error::Unresolved {
            address: self.address.clone(),
            source,
        })?;
        self.connect_any(&found)
    }

    /// A refusal is reported only where every address refuses that can be reached from here: of a
    /// host that is silent at one and does not listen at another nobody may think that it has
    /// ended.
    fn connect_any(&self, found: &[SocketAddr]) -> Result<(OwnedFd, SocketAddr)> {
        let mut left = found.len();
        let (mut unreachable, mut refused, mut failed) = (None, None, None);
        for &target in found {
            let share = self.left()? / u32::try_from(left).expect("a name has few addresses");
            left -= 1;
            match TcpStream::connect_timeout(&target, share) {
                Ok(stream) => {
                    stream
                        .set_nodelay(true)
                        .and_then(|()| stream.set_nonblocking(true))
                        .map_err(|e| self.os("set up a connection to", e))?;
                    return Ok((stream.into(), target));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    refused = Some(self.os("connect to", error));
                }
                // This machine has no address of that family, or no route: nothing was asked.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NetworkUnreachable
                            | io::ErrorKind::AddrNotAvailable
                            | io::ErrorKind::Unsupported
                    ) =>
                {
                    unreachable = Some(self.os("connect to", error));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    failed = Some(Error::Timeout(self.timeout));
                }
                Err(error) => failed = Some(self.os("connect to", error)),
            }
        }
        let said = failed.or(refused).or(unreachable);
        Err(said.unwrap_or(Error::Timeout(self.timeout)))
    }

    /// Waits for the rings that the host grants next.
    fn rings(&self, channel: &mut Channel) -> Result<Mapping> {
        loop {
            if let Some(rings) = receive_rings(channel)? {
                return Ok(rings);
            }
            let mut polled = [libc::pollfd {
                fd: channel.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            wait::poll(&mut polled, Some(self.left()?)).map_err(|e| self.os("wait for", e))?;
        }
    }

    fn send(&self, socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match socket::send(socket.as_fd(), bytes, None).map_err(|e| self.os("talk to", e))? {
                Some(sent) => bytes = &bytes[sent..],
                None => self.wait(socket, libc::POLLOUT)?,
            }
        }
        Ok(())
    }

    /// Fills the buffer. A host that hangs up before it proved the key does not hold it.
    fn receive(&self, socket: &OwnedFd, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            match socket::receive(socket.as_fd(), buffer, None)
                .map_err(|e| self.os("talk to", e))?
            {
                Some(0) => {
                    return Err(Error::Unauthenticated {
                        address: self.address.clone(),
                    });
                }
                Some(received) => buffer = &mut buffer[received..],
                None => self.wait(socket, libc::POLLIN)?,
            }
        }
        Ok(())
    }

    fn wait(&self, socket: &OwnedFd, events: libc::c_short) -> Result<()> {
        let mut polled = [libc::pollfd {
            fd: socket.as_raw_fd(),
            events,
            revents: 0,
        }];
        wait::poll(&mut polled, Some(self.left()?)).map_err(|e| self.os("wait for", e))?;
        Ok(())
    }

    /// Time to the deadline, more than zero.
    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(Error::Timeout(self.timeout))
        } else {
            Ok(left)
        }
    }

    fn os(&self, action: &str, source: io::Error) -> Error {
        Error::os(format!("{action} {}", self.address), source)
    }
}

/// Length, a frame of two bytes, a tag.
const WELCOME_BYTES: usize = 2 + 2 + TAG_BYTES;
/// Arbitrary; a backlog drains in microseconds unless the host is stopped.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
