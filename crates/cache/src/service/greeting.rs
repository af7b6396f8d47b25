//! The first words between a handle and the manager: what the cache is, and its hosts.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use cenote_fabric::{Time, Waker, wait};

use super::correspondent::{Correspondent, Told};
use super::handle::{OpenError, Options, REST};
use super::message::{Refusal, ToClient, Welcome};
use crate::links::HostConfig;

pub(super) fn host_of(name: String, address: &str, domain: String) -> Option<HostConfig> {
    let address = address.parse().ok()?;
    Some(HostConfig {
        name,
        address,
        domain,
    })
}

/// What the cache is, its hosts, and what came behind.
pub(super) fn greeted(
    manager: &mut Correspondent,
    options: &Options,
    begun: Time,
    waker: &Waker,
) -> Result<(Welcome, Vec<HostConfig>, Vec<Told>), OpenError> {
    let mut told = Vec::new();
    let mut welcome = None;
    let mut hosts = Vec::new();
    loop {
        let now = Time::now();
        manager.receive(now, &mut told);
        manager.send(now, true);
        let mut rest = Vec::new();
        for one in told.drain(..) {
            match one {
                Told::Message(ToClient::Welcome(one)) => {
                    welcome = Some(one);
                    hosts.clear();
                    rest.clear();
                }
                Told::Message(ToClient::Host {
                    number,
                    name,
                    address,
                    domain,
                }) if usize::from(number) == hosts.len() => {
                    hosts.extend(host_of(name, &address, domain));
                }
                Told::Refused(refusal @ (Refusal::Full | Refusal::Version | Refusal::Ending)) => {
                    return Err(refusal.into());
                }
                other => rest.push(other),
            }
        }
        told = rest;
        if let Some(welcome) = welcome
            && hosts.len() >= usize::from(welcome.hosts)
        {
            return Ok((welcome, hosts, told));
        }
        if now.since(begun) >= options.timeout {
            return Err(OpenError::NoManager(options.timeout));
        }
        let fds: Vec<RawFd> = [waker.as_fd().as_raw_fd()]
            .into_iter()
            .chain(manager.fd())
            .collect();
        wait(&fds, Some(REST))?;
        waker.clear();
    }
}
