//! Listening sockets, and the thread that accepts from all of them.
//!
//! A new connection goes to the worker that has the fewest; above the limit it
//! is closed at once. Only this thread accepts, and it touches no request.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::connection::Socket;
use super::sys;
use super::worker::Mailbox;
use super::{Address, NbdError};

/// A bound socket; a unix socket's file goes with it.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix {
        listener: UnixListener,
        path: PathBuf,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Binds `address`. A socket file that nobody listens on is replaced.
    pub(crate) fn bind(address: &Address, allow_remote: bool) -> Result<Self, NbdError> {
        let failed = |source| NbdError::Bind {
            address: address.clone(),
            source,
        };
        match address {
            Address::Unix(path) => {
                remove_stale(path).map_err(failed)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                    .map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Unix {
                    listener,
                    path: path.clone(),
                })
            }
            Address::Tcp(socket_address) => {
                if !allow_remote && !socket_address.ip().is_loopback() {
                    return Err(NbdError::NotLoopback(*socket_address));
                }
                let listener = TcpListener::bind(socket_address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    /// Where clients connect, with the port that the kernel chose for port 0.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix { path, .. } => Address::Unix(path.clone()),
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?),
        })
    }

    fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Unix { listener, .. } => Socket::Unix(listener.accept()?.0),
            Self::Tcp(listener) => Socket::Tcp(listener.accept()?.0),
        })
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Unix { listener, .. } => listener.as_raw_fd(),
            Self::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self
            && let Err(error) = std::fs::remove_file(&*path)
        {
            tracing::debug!(%error, path = %path.display(), "remove the socket file");
        }
    }
}

/// The accepting thread's state.
pub(crate) struct Acceptor {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) workers: Vec<Arc<Mailbox>>,
    pub(crate) connections_max: usize,
    pub(crate) tally: Arc<Tally>,
    /// Readable, or closed, when it is time to stop.
    pub(crate) stop: UnixStream,
}

/// What the acceptor counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// Pause after an accept failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Acceptor {
    /// Accepts until told to stop; the listeners are closed then.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let stop_fd = self.stop.as_raw_fd();
        let mut fds = vec![stop_fd];
        fds.extend(self.listeners.iter().map(AsRawFd::as_raw_fd));
        let mut scratch = Vec::new();
        loop {
            sys::poll_readable(&fds, &mut scratch, None)?;
            if scratch[0].revents != 0 {
                // The byte is only a signal; there is nothing in it.
                let mut byte = [0];
                return self.stop.read(&mut byte).map(|_| ());
            }
            for listener in &self.listeners {
                if !self.accept_all(listener) {
                    sys::poll_readable(&[stop_fd], &mut scratch, Some(ACCEPT_PAUSE))?;
                }
            }
        }
    }

    /// Takes every connection that waits; `false` when the machine has no room for more.
    fn accept_all(&self, listener: &Listener) -> bool {
        loop {
            match listener.accept() {
                Ok(socket) => self.place(socket),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return true,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::warn!(%error, "accept a connection");
                        return false;
                    }
                },
            }
        }
    }

    fn place(&self, socket: Socket) {
        let open: usize = self.workers.iter().map(|w| w.connection_count()).sum();
        if open >= self.connections_max {
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Err(error) = socket.prepare() {
            tracing::warn!(%error, "prepare a connection");
            return;
        }
        self.tally.accepted.fetch_add(1, Ordering::Relaxed);
        if let Some(worker) = self.workers.iter().min_by_key(|w| w.connection_count()) {
            worker.hand_over(socket);
        }
    }
}

/// Removes a socket file that a dead server left; a live one is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}
