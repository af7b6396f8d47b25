//! Where a host listens: a unix socket beside its shared memory, a TCP address, or one with RDMA.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::host_port::HostPort;
use crate::{Error, Result};

/// The address of a host, in the form that users write: `shm:/run/h1.sock`, `tcp:10.0.0.7:7400`,
/// `tcp:db1.example:7400`, `rdma:10.0.0.7:7400`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Address {
    /// A unix socket on this machine; memory is mapped, not copied.
    Shm(PathBuf),
    /// A TCP socket; a name is resolved at each connect.
    Tcp(HostPort),
    /// A TCP socket for the control connection, on the IP address of an RDMA device.
    Rdma(HostPort),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || Error::Address {
            text: text.to_owned(),
        };
        let misplaced = |source| Error::Host {
            text: text.to_owned(),
            source,
        };
        let (family, rest) = text.split_once(':').ok_or_else(refused)?;
        match family {
            "shm" if rest.starts_with('/') && rest.len() <= SOCKET_PATH_BYTES_MAX => {
                if rest.contains('\0') {
                    Err(refused())
                } else {
                    Ok(Self::Shm(rest.into()))
                }
            }
            "tcp" => rest.parse().map(Self::Tcp).map_err(misplaced),
            "rdma" => rest.parse().map(Self::Rdma).map_err(misplaced),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Rdma(address) => write!(f, "rdma:{address}"),
        }
    }
}

/// `sun_path` holds 108 bytes with its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_parses_to_the_same_address() {
        for text in [
            "shm:/run/a b.sock",
            "tcp:127.0.0.1:7400",
            "tcp:[::1]:1",
            "rdma:10.0.0.7:7400",
            "tcp:db1.example:7400",
            "rdma:localhost:7400",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            "shm:/x".parse::<Address>().unwrap(),
            Address::Shm("/x".into())
        );
    }

    #[test]
    fn refuses_what_is_no_address() {
        let long = format!("shm:/{}", "x".repeat(107));
        for text in [
            "",
            "shm",
            "shm:",
            "shm:relative",
            "shm:/a\0b",
            "udp:1.2.3.4:5",
            &long,
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(matches!(error, Error::Address { text: t } if t == text));
        }
        for text in ["tcp:1.2.3.4", "tcp:1.2.3.4:70000", "tcp:a b:1", "rdma:host"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(matches!(error, Error::Host { text: t, .. } if t == text));
        }
    }
}
