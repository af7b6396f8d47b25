//! The first words between a handle and the manager: what the cache is, and its hosts.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use cenote_fabric::{Time, Waker, WireProtection, wait};

use super::correspondent::{Correspondent, Told};
use super::message::{Refusal, ToClient, Welcome};
use crate::links::HostConfig;

/// Longest sleep.
pub(super) const REST: Duration = Duration::from_millis(20);

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// For people: shown by the status of hosts and of the cache. At most 64 bytes.
    pub name: String,
    /// A request that cannot go on for so long fails.
    pub patience: Duration,
    /// How long opening, and a question, may take.
    pub timeout: Duration,
    /// How bytes travel over tcp.
    pub page_traffic: WireProtection,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "cache client".to_owned(),
            patience: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            page_traffic: WireProtection::default(),
        }
    }
}

/// Why a cache is not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No manager answers. Try again when it runs.
    #[error("no manager of the cache answers within {0:?}")]
    NoManager(Duration),
    /// The manager does not take it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The system refuses.
    #[error(transparent)]
    Fabric(#[from] cenote_fabric::Error),
    /// The system has no randomness.
    #[error("read random bytes: {0}")]
    Random(getrandom::Error),
}

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
                    let is_said_again =
                        |before: Welcome| (before.cache, before.epoch) == (one.cache, one.epoch);
                    if welcome.is_some_and(is_said_again) {
                        // A sign of life, behind which hosts are not told again: these keep their numbers.
                        rest.push(Told::Message(ToClient::Welcome(one)));
                    } else {
                        hosts.clear();
                        rest.clear();
                        welcome = Some(one);
                    }
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
