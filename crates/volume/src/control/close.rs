//! Closing a volume: every slab goes back to its host, as far as hosts can still be told.

use std::collections::BTreeMap;

use cenote_fabric::{FAILURE_TIMEOUT, Incoming, Time};
use cenote_pool::control::{Reply, Request, Window};

use super::books::RETURNED_MAX;
use super::hosts::Hosts;
use crate::directory::HostIndex;

/// A close under way.
pub(super) struct Closing {
    owed: BTreeMap<HostIndex, Owed>,
    /// Moves on with every answer.
    give_up_at: Time,
}

/// What one host has not answered yet.
#[derive(Default)]
struct Owed {
    /// Slabs that are yet to be given back.
    waiting: Vec<Window>,
    /// Slabs that were given back: at most [`RETURNED_MAX`].
    given_back: Vec<Window>,
    /// Requests for slabs that may still be granted.
    requests: Vec<u64>,
}

/// Answers that are taken of a host in one turn.
const ANSWERS_PER_TURN: usize = RETURNED_MAX;

impl Closing {
    /// Of a volume whose slabs are those of the next owner: nothing goes back.
    pub fn at_once(now: Time) -> Self {
        Self {
            owed: BTreeMap::new(),
            give_up_at: now,
        }
    }

    /// Starts to give every slab back: those that the volume has, and those on their way, of which the requests
    /// are known; of each host a few at a time. The leases see to what is not answered within
    /// [`FAILURE_TIMEOUT`] of the last answer.
    pub fn begin(
        hosts: &mut Hosts,
        slabs: impl Iterator<Item = (HostIndex, Window)>,
        requests: impl Iterator<Item = (HostIndex, u64)>,
    ) -> Self {
        let mut owed: BTreeMap<HostIndex, Owed> = BTreeMap::new();
        for (host, request) in requests {
            owed.entry(host).or_default().requests.push(request);
        }
        for (host, window) in slabs {
            owed.entry(host).or_default().waiting.push(window);
        }
        for (&host, owed) in &mut owed {
            owed.give_back_some(hosts, host);
        }
        Self {
            owed,
            give_up_at: hosts.now().after(FAILURE_TIMEOUT),
        }
    }

    /// Takes answers of `ready` hosts; whether more are to come.
    pub fn step(&mut self, hosts: &mut Hosts, ready: Vec<HostIndex>) -> bool {
        let now = hosts.now();
        for host in ready {
            let Some(owed) = self.owed.get_mut(&host) else {
                continue;
            };
            for _ in 0..ANSWERS_PER_TURN {
                if !owed.settle(hosts, host) {
                    break;
                }
                self.give_up_at = now.after(FAILURE_TIMEOUT);
            }
            owed.give_back_some(hosts, host);
        }
        self.owed.retain(|_, owed| !owed.is_settled());
        !self.owed.is_empty() && now < self.give_up_at
    }
}

impl Owed {
    /// Gives slabs back as long as the host owes few answers: more than its connection takes would be lost.
    fn give_back_some(&mut self, hosts: &mut Hosts, host: HostIndex) {
        while let Some(window) = self.next() {
            if !hosts[host].send(&Request::Unmap { window }) {
                *self = Self::default();
            }
        }
    }

    /// Takes one answer of a host; whether it was one that is waited for. A slab that is granted only now goes
    /// back.
    fn settle(&mut self, hosts: &mut Hosts, host: HostIndex) -> bool {
        match hosts[host].receive() {
            Ok(Some(Incoming::Message(bytes))) => match Reply::decode(&bytes) {
                Ok(Reply::Unmapped { window }) => self.end_return(window),
                Ok(Reply::Mapped { request, window }) if self.end_request(request) => {
                    self.waiting.push(window);
                    true
                }
                // Given up long ago: told, but not waited for.
                Ok(Reply::Mapped { window, .. }) => {
                    hosts[host].send(&Request::Unmap { window });
                    false
                }
                Ok(Reply::Refused { request, .. }) => self.end_request(request),
                // What else it says, or says wrongly, no longer matters.
                Ok(_) | Err(_) => false,
            },
            Ok(_) => false,
            Err(_) => {
                hosts[host].hang_up();
                *self = Self::default();
                false
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.given_back.is_empty() && self.requests.is_empty()
    }

    /// The slab to give back now: nothing while the host owes as many answers as it may.
    fn next(&mut self) -> Option<Window> {
        if self.given_back.len() == RETURNED_MAX {
            return None;
        }
        let window = self.waiting.pop()?;
        self.given_back.push(window);
        Some(window)
    }

    /// Whether the slab's return was not answered yet.
    fn end_return(&mut self, window: Window) -> bool {
        let at = self.given_back.iter().position(|&known| known == window);
        at.map(|at| self.given_back.swap_remove(at)).is_some()
    }

    /// Whether the request was still open.
    fn end_request(&mut self, request: u64) -> bool {
        let at = self.requests.iter().position(|&known| known == request);
        at.map(|at| self.requests.swap_remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(id: u32) -> Window {
        Window {
            id,
            generation: 1,
            len_bytes: 4096,
            rights: 3,
        }
    }

    #[test]
    fn no_more_slabs_go_back_at_a_time_than_a_connection_takes() {
        let mut owed = Owed {
            waiting: (0..1000).map(window).collect(),
            ..Owed::default()
        };
        let mut answered = 0;
        while !owed.is_settled() {
            while owed.next().is_some() {}
            assert!(owed.given_back.len() <= RETURNED_MAX);
            let first = owed.given_back[0];
            assert!(owed.end_return(first) && !owed.end_return(first));
            answered += 1;
        }
        assert_eq!(answered, 1000);
    }
}
