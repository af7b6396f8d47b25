//! Hosts and ports as people write them: by address, or by a name that is resolved when it is used.
//!
//! What is kept and shown is what was written, so a host that moves is found under its name. Dialling
//! resolves each time (`resolver`), listening once ([`HostPort::to_listen`]).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

/// Why a text is no host, or no host and port.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} is {what}")]
pub struct NoHostPort {
    text: String,
    what: &'static str,
}

/// The name of a machine: letters, digits, `-`, `_` and dots, at most 253 bytes, labels of at most 63.
/// A last label of digits alone is refused, since resolvers take such names for addresses.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostName(Box<str>);

impl FromStr for HostName {
    type Err = NoHostPort;

    fn from_str(text: &str) -> Result<Self, NoHostPort> {
        let refused = |what| NoHostPort {
            text: text.to_owned(),
            what,
        };
        // A dot at the end says that the name is whole.
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(refused("no name of a host: it has 1 to 253 bytes"));
        }
        let is_label = |label: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && label.bytes().all(allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if !name.split('.').all(is_label) {
            return Err(refused(
                "no name of a host: letters, digits, '-' and '_', in parts with dots between them",
            ));
        }
        let last = name.rsplit('.').next().unwrap_or(name);
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused("neither an IP address nor the name of a host"));
        }
        Ok(Self(text.into()))
    }
}

impl HostName {
    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the system's resolver says now. Blocks for as long as that takes.
    ///
    /// # Errors
    /// The resolver's; `NotFound` when it knows no address.
    pub(crate) fn look_up(&self) -> io::Result<Vec<IpAddr>> {
        let mut found: Vec<IpAddr> = Vec::new();
        for address in (self.as_str(), 0).to_socket_addrs()? {
            if found.len() == ADDRESSES_MAX {
                break;
            }
            if !found.contains(&address.ip()) {
                found.push(address.ip());
            }
        }
        if found.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(found)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A machine without a port: `10.0.0.7`, `::1` or `db1.example`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Host {
    /// By address.
    Ip(IpAddr),
    /// By name.
    Name(HostName),
}

impl Host {
    /// The address of this machine to listen at: the first one that the name has and that is its own.
    ///
    /// # Errors
    /// The name has no address.
    pub fn to_listen(&self) -> io::Result<IpAddr> {
        let name = match self {
            Self::Ip(ip) => return Ok(*ip),
            Self::Name(name) => name,
        };
        let found = name.look_up()?;
        let is_ours = |ip: &&IpAddr| TcpListener::bind((**ip, 0)).is_ok();
        // One of another machine's is refused by whoever listens, with the system's reason.
        Ok(*found.iter().find(is_ours).unwrap_or(&found[0]))
    }
}

impl FromStr for Host {
    type Err = NoHostPort;

    fn from_str(text: &str) -> Result<Self, NoHostPort> {
        match text.parse() {
            Ok(ip) => Ok(Self::Ip(ip)),
            Err(_) => text.parse().map(Self::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// A machine and a port: `10.0.0.7:7400`, `[::1]:7400` or `db1.example:7400`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum HostPort {
    /// By address.
    Socket(SocketAddr),
    /// By name.
    Named(HostName, u16),
}

impl HostPort {
    /// The port; 0 where the system is to choose one.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Socket(address) => address.port(),
            Self::Named(_, port) => *port,
        }
    }

    /// What was written as an address.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Socket(address) => Some(*address),
            Self::Named(..) => None,
        }
    }

    /// The same machine with another port.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Self {
        match self {
            Self::Socket(address) => {
                let mut address = *address;
                address.set_port(port);
                Self::Socket(address)
            }
            Self::Named(name, _) => Self::Named(name.clone(), port),
        }
    }

    /// Where to listen, as [`Host::to_listen`] has it. Blocks while a name is resolved.
    ///
    /// # Errors
    /// The name has no address.
    pub fn to_listen(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Socket(address) => Ok(*address),
            Self::Named(name, port) => {
                let ip = Host::Name(name.clone()).to_listen()?;
                Ok(SocketAddr::new(ip, *port))
            }
        }
    }
}

impl FromStr for HostPort {
    type Err = NoHostPort;

    fn from_str(text: &str) -> Result<Self, NoHostPort> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Socket(address));
        }
        let refused = |what| NoHostPort {
            text: text.to_owned(),
            what,
        };
        let (name, port) = text
            .rsplit_once(':')
            .ok_or_else(|| refused("without a port: write HOST:PORT"))?;
        if [text, name]
            .iter()
            .any(|text| text.parse::<Ipv6Addr>().is_ok())
        {
            return Err(refused(
                "ambiguous: write an IPv6 address as [ADDRESS]:PORT",
            ));
        }
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number);
        let port = port.ok_or_else(|| refused("without a port from 0 to 65535"))?;
        Ok(Self::Named(name.parse()?, port))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Named(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// Resolves a name each time, and blocks meanwhile.
impl ToSocketAddrs for HostPort {
    type Iter = std::vec::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        let found = match self {
            Self::Socket(address) => vec![*address],
            Self::Named(name, port) => {
                let found = name.look_up()?.into_iter();
                found.map(|ip| SocketAddr::new(ip, *port)).collect()
            }
        };
        Ok(found.into_iter())
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

/// Longest name of DNS, as text without the dot at its end.
const NAME_BYTES_MAX: usize = 253;
/// Longest part of it.
const LABEL_BYTES_MAX: usize = 63;
/// Addresses of one name that are tried; arbitrary, a machine has a few.
const ADDRESSES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_parses_to_the_same() {
        for text in [
            "127.0.0.1:7400",
            "[::1]:0",
            "localhost:1",
            "db-1.rack_2.example:65535",
            "db1.example.:7400",
            "0x7f.example:80",
        ] {
            let parsed: HostPort = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            assert_eq!(
                matches!(parsed, HostPort::Socket(_)),
                text.parse::<SocketAddr>().is_ok()
            );
        }
        for text in ["10.0.0.7", "::1", "db1.example"] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_nonsense_and_says_why() {
        let long_label = format!("{}:1", "x".repeat(64));
        let long_name = format!("{}:1", ["x"; 128].join("."));
        for (text, why) in [
            ("", "without a port"),
            ("host", "without a port"),
            ("::1", "ambiguous"),
            ("fe80::1:7400", "ambiguous"),
            ("a b:1", "letters, digits"),
            ("a..b:1", "letters, digits"),
            ("-a:1", "letters, digits"),
            ("a-:1", "letters, digits"),
            ("b\u{fc}cher:1", "letters, digits"),
            ("http://a:1", "letters, digits"),
            (":1", "1 to 253"),
            (".:1", "1 to 253"),
            ("1.2.3:1", "neither an IP address"),
            ("300.1.2.3:1", "neither an IP address"),
            ("1:1", "neither an IP address"),
            ("host:", "from 0 to 65535"),
            ("host:+1", "from 0 to 65535"),
            ("host:65536", "from 0 to 65535"),
            ("host:http", "from 0 to 65535"),
            (&long_label, "letters, digits"),
            (&long_name, "1 to 253"),
        ] {
            let error = text.parse::<HostPort>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_name_of_this_machine_is_listened_on_at_an_address_of_it() {
        let at: HostPort = "localhost:7".parse().unwrap();
        let found = at.to_listen().unwrap();
        assert!(found.ip().is_loopback());
        assert_eq!(found.port(), 7);
        let nobody: Host = "nobody.invalid".parse().unwrap();
        assert!(nobody.to_listen().is_err());
    }
}
