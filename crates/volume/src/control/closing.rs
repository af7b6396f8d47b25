//! Closing a volume: every slab goes back to its host, as far as hosts can still be told.

use cenote_fabric::{FAILURE_TIMEOUT, Incoming, Time};
use cenote_pool::control::{Reply, Request, Window};

use super::{Control, pool_window};
use crate::directory::HostIndex;

/// A close under way.
pub(super) struct Closing {
    owed: Owed,
    give_up_at: Time,
}

/// What hosts have not answered yet.
#[derive(Default)]
struct Owed {
    // Slabs that were given back.
    windows: Vec<(HostIndex, Window)>,
    // Requests for slabs that may still be granted.
    requests: Vec<(HostIndex, u64)>,
}

impl Control {
    /// Starts to give every slab back: those in use, those granted to an extent that is still being
    /// mapped, and those on their way. The leases see to what takes longer than [`FAILURE_TIMEOUT`].
    pub(super) fn begin_closing(&mut self) {
        // Gives back what workers had dropped.
        self.take_failures();
        if !self.record_end() {
            // Its slabs are those of the next owner.
            self.closing = Some(Closing {
                owed: Owed::default(),
                give_up_at: self.now(),
            });
            return;
        }
        let snapshot = self.core.directory.snapshot();
        let mapped = snapshot
            .extents
            .iter()
            .flatten()
            .flat_map(|stripe| stripe.members.iter().flatten());
        let granted = self.jobs.values().flat_map(|job| job.members());
        let mut windows: Vec<(HostIndex, Window)> = mapped
            .chain(granted)
            .map(|member| {
                let window = pool_window(&member.window.descriptor);
                (member.session.host, window)
            })
            .collect();
        windows.extend(self.repairs.iter().flat_map(|repair| repair.leaving()));
        windows.extend(self.surplus());
        let mut owed = Owed::default();
        for (&request, acquire) in &self.acquires {
            match acquire.window() {
                Some(window) => windows.push((acquire.session.host, window)),
                None => owed.requests.push((acquire.session.host, request)),
            }
        }
        for (host, window) in windows {
            self.release(host, window, &mut owed);
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
        for host in ready {
            self.settle(host, &mut closing.owed);
        }
        let goes_on = !closing.owed.is_settled() && self.now() < closing.give_up_at;
        self.closing = Some(closing);
        goes_on
    }

    fn release(&mut self, host: HostIndex, window: Window, owed: &mut Owed) {
        if self.hosts[host].send(&Request::Unmap { window }) {
            owed.windows.push((host, window));
        }
    }

    /// Takes one answer of a host; a slab that is granted only now goes back.
    fn settle(&mut self, host: HostIndex, owed: &mut Owed) {
        match self.hosts[host].receive() {
            Ok(Some(Incoming::Message(bytes))) => match Reply::decode(&bytes) {
                Ok(Reply::Unmapped { window }) => {
                    owed.windows.retain(|&known| known != (host, window));
                }
                Ok(Reply::Mapped { request, window }) if owed.end_request(host, request) => {
                    self.release(host, window, owed);
                }
                // Given up long ago: told, but not waited for.
                Ok(Reply::Mapped { window, .. }) => {
                    self.hosts[host].send(&Request::Unmap { window });
                }
                Ok(Reply::Refused { request, .. }) => {
                    owed.end_request(host, request);
                }
                // What else it says, or says wrongly, no longer matters.
                Ok(_) | Err(_) => {}
            },
            Ok(_) => {}
            Err(_) => {
                self.hosts[host].hang_up();
                owed.forget(host);
            }
        }
    }
}

impl Owed {
    fn is_settled(&self) -> bool {
        self.windows.is_empty() && self.requests.is_empty()
    }

    /// Whether the request was still open.
    fn end_request(&mut self, host: HostIndex, request: u64) -> bool {
        let before = self.requests.len();
        self.requests.retain(|&known| known != (host, request));
        self.requests.len() < before
    }

    fn forget(&mut self, host: HostIndex) {
        self.windows.retain(|&(owing, _)| owing != host);
        self.requests.retain(|&(owing, _)| owing != host);
    }
}
