//! Closing a volume: every slab goes back to its host, as far as hosts can still be told.

use std::collections::BTreeMap;

use cenote_fabric::{FAILURE_TIMEOUT, Incoming, Time};
use cenote_pool::control::{Reply, Request, Window};

use super::books::RETURNED_MAX;
use super::{Control, pool_window};
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

impl Control {
    /// Starts to give every slab back: those in use, those granted to an extent that is still being
    /// mapped, and those on their way; of each host a few at a time. The leases see to what is not
    /// answered within [`FAILURE_TIMEOUT`] of the last answer.
    pub(super) fn begin_closing(&mut self) {
        // Gives back what workers had dropped.
        self.take_failures();
        if !self.record_end() {
            // Its slabs are those of the next owner.
            self.closing = Some(Closing {
                owed: BTreeMap::new(),
                give_up_at: self.now(),
            });
            return;
        }
        let snapshot = self.core.directory.snapshot();
        let held = snapshot.stripes();
        let held = held.flat_map(|(_, stripe)| stripe.members.iter().flatten());
        let granted = self.jobs.values().flat_map(|job| job.members());
        let mut windows: Vec<(HostIndex, Window)> = held
            .chain(granted)
            .map(|member| {
                let window = pool_window(&member.window.descriptor);
                (member.session.host, window)
            })
            .collect();
        windows.extend(self.repairs.iter().filter_map(|repair| repair.leaving()));
        windows.extend(self.surplus());
        let mut owed: BTreeMap<HostIndex, Owed> = BTreeMap::new();
        for (&request, acquire) in &self.acquires {
            let host = acquire.session.host;
            match acquire.window() {
                Some(window) => windows.push((host, window)),
                None => owed.entry(host).or_default().requests.push(request),
            }
        }
        for (host, window) in windows {
            owed.entry(host).or_default().waiting.push(window);
        }
        for (&host, owed) in &mut owed {
            self.give_back_some(host, owed);
        }
        self.closing = Some(Closing {
            owed,
            give_up_at: self.now().after(FAILURE_TIMEOUT),
        });
    }

    /// Takes answers of `ready` hosts while the volume closes; whether more are to come.
    pub(super) fn is_still_closing(&mut self, ready: Vec<HostIndex>) -> bool {
        let Some(mut closing) = self.closing.take() else {
            return true;
        };
        let now = self.now();
        for host in ready {
            let Some(owed) = closing.owed.get_mut(&host) else {
                continue;
            };
            for _ in 0..ANSWERS_PER_TURN {
                if !self.settle(host, owed) {
                    break;
                }
                closing.give_up_at = now.after(FAILURE_TIMEOUT);
            }
            self.give_back_some(host, owed);
        }
        closing.owed.retain(|_, owed| !owed.is_settled());
        let goes_on = !closing.owed.is_empty() && now < closing.give_up_at;
        self.closing = Some(closing);
        goes_on
    }

    /// Gives slabs back as long as the host owes few answers: more than its connection takes would be lost.
    fn give_back_some(&mut self, host: HostIndex, owed: &mut Owed) {
        while let Some(window) = owed.next() {
            if !self.hosts[host].send(&Request::Unmap { window }) {
                *owed = Owed::default();
            }
        }
    }

    /// Takes one answer of a host; whether it was one that is waited for. A slab that is granted only now goes
    /// back.
    fn settle(&mut self, host: HostIndex, owed: &mut Owed) -> bool {
        match self.hosts[host].receive() {
            Ok(Some(Incoming::Message(bytes))) => match Reply::decode(&bytes) {
                Ok(Reply::Unmapped { window }) => owed.end_return(window),
                Ok(Reply::Mapped { request, window }) if owed.end_request(request) => {
                    owed.waiting.push(window);
                    true
                }
                // Given up long ago: told, but not waited for.
                Ok(Reply::Mapped { window, .. }) => {
                    self.hosts[host].send(&Request::Unmap { window });
                    false
                }
                Ok(Reply::Refused { request, .. }) => owed.end_request(request),
                // What else it says, or says wrongly, no longer matters.
                Ok(_) | Err(_) => false,
            },
            Ok(_) => false,
            Err(_) => {
                self.hosts[host].hang_up();
                *owed = Owed::default();
                false
            }
        }
    }
}

impl Owed {
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
