//! Names of hosts to listen on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::options::Refused;

/// The addresses of a name, and its port if one is said.
pub fn resolve(name: &str) -> Result<Vec<(IpAddr, Option<u16>)>, Refused> {
    if name == "*" {
        return Ok(vec![(Ipv4Addr::UNSPECIFIED.into(), None)]);
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![(address, None)]);
    }
    if let Ok(address) = name.parse::<SocketAddr>() {
        return Ok(vec![(address.ip(), Some(address.port()))]);
    }
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) => {
            let wrong =
                |_| Refused::new(Refused::USAGE, format!("Invalid port number: \"{port}\""));
            (host, Some(port.parse().map_err(wrong)?))
        }
        None => (name.trim_start_matches('[').trim_end_matches(']'), None),
    };
    let found = (host, 0)
        .to_socket_addrs()
        .map_err(|error| Refused::new(71, format!("getaddrinfo(): {host}: {error}")))?;
    Ok(found.map(|address| (address.ip(), port)).collect())
}

pub fn has_ipv6() -> bool {
    std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}
