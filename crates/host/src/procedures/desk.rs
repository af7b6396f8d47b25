//! Calls with requests of one connection that are not answered yet, and the answers on their way to
//! it.
//!
//! A call is answered as soon as some requests of its connection have ended, whichever they are. So
//! one that waits for bytes holds up nobody, and a client always has a call under way while
//! requests of it are. What ends while there is no call to answer goes out together with the next:
//! what waits counts as under way, so a client that does not ask is answered `Busy` in the end.

use std::collections::VecDeque;

use cenote_fabric::Time;
use cenote_fabric::calls::{CALL_BYTES_MAX, CallId};
use cenote_proc::Response;
use cenote_proc::message::write_responses;

/// An answer to a call.
pub(crate) type Answer = (CallId, Vec<u8>);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Desk {
    /// Who it is, as its session says.
    pub(super) user: u128,
    open: VecDeque<CallId>,
    /// Requests that came and did not end.
    running: usize,
    ready: VecDeque<Response>,
    answered_at: Time,
}

impl Desk {
    pub(super) fn new(user: u128, now: Time) -> Self {
        Self {
            user,
            open: VecDeque::new(),
            running: 0,
            ready: VecDeque::new(),
            answered_at: now,
        }
    }

    /// Requests that came and whose answers did not go out.
    pub(super) fn under_way(&self) -> usize {
        self.running + self.ready.len()
    }

    /// A call came, with so many requests.
    pub(super) fn take(&mut self, call: CallId, requests: usize, now: Time) {
        if self.open.is_empty() {
            self.answered_at = now;
        }
        self.open.push_back(call);
        self.running += requests;
    }

    /// Requests ended.
    pub(super) fn answer(&mut self, responses: Vec<Response>, now: Time, out: &mut Vec<Answer>) {
        self.running = self.running.saturating_sub(responses.len());
        self.ready.extend(responses);
        self.send(now, out);
    }

    /// Answers what can be; whether the connection has nothing left here.
    pub(super) fn send(&mut self, now: Time, out: &mut Vec<Answer>) -> bool {
        while !self.ready.is_empty()
            && let Some(call) = self.open.pop_front()
        {
            out.push((call, self.pack()));
            self.answered_at = now;
        }
        if self.under_way() == 0 {
            // Nothing more will come for them.
            out.extend(self.open.drain(..).map(|call| (call, nothing())));
        }
        self.under_way() == 0
    }

    /// As many answers as a call carries.
    fn pack(&mut self) -> Vec<u8> {
        let mut len_bytes = nothing().len();
        let fits = |response: &&Response| -> bool {
            len_bytes += RESPONSE_BYTES + response.state.len();
            len_bytes <= CALL_BYTES_MAX
        };
        let count = self.ready.iter().take_while(fits).count();
        let responses: Vec<_> = self.ready.drain(..count).collect();
        let mut bytes = Vec::with_capacity(64 + responses.len() * 64);
        write_responses(&responses, &mut bytes);
        bytes
    }

    /// A sign of life for a client whose requests all wait.
    pub(super) fn tend(&mut self, now: Time, out: &mut Vec<Answer>) {
        if now.since(self.answered_at) >= SIGN_OF_LIFE
            && let Some(call) = self.open.pop_front()
        {
            out.push((call, nothing()));
            self.answered_at = now;
        }
    }
}

fn nothing() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_responses(&[], &mut bytes);
    bytes
}

/// Of a response without its state, in an answer: number, status, detail, length.
const RESPONSE_BYTES: usize = 8 + 1 + 4 + 4;
/// Well below [`cenote_fabric::FAILURE_TIMEOUT`], after which a client takes a silent host for
/// dead.
const SIGN_OF_LIFE: std::time::Duration = std::time::Duration::from_millis(200);
