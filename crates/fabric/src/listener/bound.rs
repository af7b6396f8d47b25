//! One address that a host serves: binding it alone, and accepting strangers.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
#[cfg(feature = "rdma")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "rdma")]
use crate::rdma::host::HostDevice;
use crate::strangers::{Limits, Source, Strangers};
use crate::{Address, Error, HostPort, Result, socket};

/// A listening socket.
pub(super) struct Bound {
    address: Address,
    socket: Socket,
    path: DataPath,
    /// Who came by it and has not proven the key.
    pub(super) strangers: Strangers,
}

/// How the clients of an address reach memory.
#[derive(Clone)]
pub(super) enum DataPath {
    /// They map it.
    Shm,
    /// By the agent's thread.
    Tcp,
    /// By a device.
    #[cfg(feature = "rdma")]
    Rdma(Arc<HostDevice>),
}

enum Socket {
    Shm { listener: UnixListener, lock: Lock },
    Tcp(TcpListener),
}

/// Says that this process serves a unix path; ends with the process, however it ends.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Bound {
    pub(super) fn new(address: &Address) -> Result<Self> {
        match address {
            Address::Shm(path) => Self::shm(address, path),
            Address::Tcp(target) => Self::tcp(address, target, Address::Tcp, DataPath::Tcp),
            #[cfg(feature = "rdma")]
            Address::Rdma(target) => {
                let at = socket_address(address, target)?;
                let device = Arc::new(HostDevice::open(at.ip(), address)?);
                Self::tcp(address, &at.into(), Address::Rdma, DataPath::Rdma(device))
            }
            #[cfg(not(feature = "rdma"))]
            Address::Rdma(_) => Err(Error::Unusable {
                address: address.clone(),
                reason: crate::rdma::support().to_string(),
            }),
        }
    }

    fn tcp(
        address: &Address,
        target: &HostPort,
        family: fn(HostPort) -> Address,
        path: DataPath,
    ) -> Result<Self> {
        let os = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse {
                address: address.clone(),
            },
            _ => Error::os(format!("serve {address}"), e),
        };
        let listener = TcpListener::bind(socket_address(address, target)?).map_err(os)?;
        listener.set_nonblocking(true).map_err(os)?;
        Ok(Self {
            address: family(listener.local_addr().map_err(os)?.into()),
            socket: Socket::Tcp(listener),
            path,
            strangers: Strangers::new(STRANGERS),
        })
    }

    /// The lock decides between hosts; connecting finds others. What is left is a dead host's socket.
    fn shm(address: &Address, path: &Path) -> Result<Self> {
        let os = |e| Error::os(format!("serve {address}"), e);
        let in_use = || Error::AddressInUse {
            address: address.clone(),
        };
        if std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(Error::NoSocket {
                address: address.clone(),
            });
        }
        let lock = Lock::take(path).map_err(os)?.ok_or_else(in_use)?;
        match socket::connect_unix(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(os)?;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(os(error)),
            Ok(_) | Err(_) => return Err(in_use()),
        }
        let listener = UnixListener::bind(path).map_err(os)?;
        listener.set_nonblocking(true).map_err(os)?;
        Ok(Self {
            address: address.clone(),
            socket: Socket::Shm { listener, lock },
            path: DataPath::Shm,
            strangers: Strangers::new(STRANGERS),
        })
    }

    /// The address with its real port.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn path(&self) -> &DataPath {
        &self.path
    }

    /// The next stranger, non-blocking, and where it comes from; `None` when nobody waits.
    pub(super) fn accept(&self) -> io::Result<Option<(OwnedFd, Source)>> {
        let accepted = match &self.socket {
            Socket::Shm { listener, .. } => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                let user = socket::peer_user(stream.as_fd())?;
                Ok((stream.into(), Source::User(user)))
            }),
            Socket::Tcp(listener) => listener.accept().and_then(|(stream, from)| {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok((stream.into(), from.ip().into()))
            }),
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Where to listen; a name is resolved here, once.
fn socket_address(address: &Address, target: &HostPort) -> Result<SocketAddr> {
    target.to_listen().map_err(|source| Error::Unresolved {
        address: address.clone(),
        source,
    })
}

/// Of each address that is served. A quarter for one source: more than the workers that one machine
/// has connect at the same moment. Places go to who comes later, so patience costs nobody a place; a
/// client on a machine that swaps may need seconds.
pub(super) const STRANGERS: Limits = Limits {
    places: 256,
    places_of_source: 64,
    patience: Duration::from_secs(5),
};

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Shm { listener, .. } => listener.as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Bound {
    /// Takes the files away while the lock is held; a host that comes later makes its own.
    fn drop(&mut self) {
        if let (Socket::Shm { lock, .. }, Address::Shm(path)) = (&self.socket, &self.address) {
            for path in [path, &lock.path] {
                if let Err(error) = std::fs::remove_file(path) {
                    tracing::debug!(%error, path = %path.display(), "remove a socket's file");
                }
            }
        }
    }
}

impl Lock {
    /// `None`: another process holds it.
    fn take(socket: &Path) -> io::Result<Option<Self>> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            // SAFETY: no pointers; the descriptor is open.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::WouldBlock {
                    Ok(None)
                } else {
                    Err(error)
                };
            }
            // The holder before us may have removed the file between our open and our lock.
            let named = std::fs::metadata(&path).map(|m| m.ino());
            if named.is_ok_and(|inode| file.metadata().is_ok_and(|m| m.ino() == inode)) {
                return Ok(Some(Self { path, _file: file }));
            }
        }
    }
}
