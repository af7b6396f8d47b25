//! Addresses that a command listens at, which may be given by name: resolved once, at the start.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_fabric::{Host, HostPort};

/// Where `flag` says to listen.
///
/// # Errors
/// The name has no address.
pub fn resolved(flag: &str, at: &HostPort) -> Result<SocketAddr> {
    at.to_listen().map_err(|error| unresolved(flag, at, &error))
}

/// On which address of this machine `flag` says to listen.
///
/// # Errors
/// As [`resolved`].
pub fn resolved_host(flag: &str, at: &Host) -> Result<IpAddr> {
    at.to_listen().map_err(|error| unresolved(flag, at, &error))
}

fn unresolved(flag: &str, at: &dyn std::fmt::Display, error: &std::io::Error) -> anyhow::Error {
    let what = format!("{flag} {at}: cannot resolve the name: {error}");
    Failure::new(
        what,
        "check the name with getent hosts NAME, or use an IP address",
    )
    .into()
}
