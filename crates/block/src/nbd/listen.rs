//! Listening sockets: bound here, or passed by whoever started this process.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::slots::Source;
use super::sys;
use super::transport::Socket;
use super::{Address, NbdError};

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// None of a socket that somebody else bound.
        _file: Option<SocketFile>,
    },
    Tcp(TcpListener),
}

/// The file of a unix socket, which goes when this does.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(%error, path = %self.0.display(), "remove the socket file");
        }
    }
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
                let file = Some(SocketFile(path.clone()));
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
                    .map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Unix {
                    listener,
                    path: path.clone(),
                    _file: file,
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

    /// Takes a socket over that listens already.
    pub(crate) fn adopt(fd: OwnedFd, allow_remote: bool) -> Result<Self, NbdError> {
        let number = fd.as_raw_fd();
        let refused = |source| NbdError::Passed { number, source };
        let family = sys::listening_family(number).map_err(refused)?;
        if family == libc::AF_UNIX {
            let listener = UnixListener::from(fd);
            listener.set_nonblocking(true).map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            // One without a name in the file system has none to tell either.
            let path = address.as_pathname().unwrap_or(Path::new("")).to_owned();
            return Ok(Self::Unix {
                listener,
                path,
                _file: None,
            });
        }
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        if !allow_remote && !address.ip().is_loopback() {
            return Err(NbdError::NotLoopback(address));
        }
        Ok(Self::Tcp(listener))
    }

    /// Where clients connect, with the port that the kernel chose for port 0.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix { path, .. } => Address::Unix(path.clone()),
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?),
        })
    }

    /// Accepts a connection that waits, if one does.
    pub(crate) fn accept(&self) -> io::Result<(Socket, Option<Source>)> {
        Ok(match self {
            Self::Unix { listener, .. } => (Socket::Unix(listener.accept()?.0), None),
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                (Socket::Tcp(stream), Some(Source::of(address.ip())))
            }
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
