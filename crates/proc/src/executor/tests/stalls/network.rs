//! Messages that are delayed, lost, and come late.

use super::{Event, MILLISECOND, TOKEN_BITS, World};
use crate::Machine;
use crate::executor::{Action, Delivery};
use crate::message::Replicate;

impl World {
    pub(super) fn send(&mut self, to: usize, event: Event) {
        self.send_within(to, event, 5);
    }

    pub(super) fn send_within(&mut self, to: usize, event: Event, most: usize) {
        let at = self.now + MILLISECOND * self.below(most) as u64;
        self.sent += 1;
        self.events.insert((at, self.sent), (to, event));
    }

    pub(super) fn next_event(&mut self, host: usize) -> Option<Event> {
        if self.now < self.hosts[host].still_until || self.hosts[host].executor.is_none() {
            return None;
        }
        let due = self.events.range(..=(self.now, u64::MAX));
        let key = due.filter(|(_, (to, _))| *to == host).map(|(key, _)| *key);
        let (_, event) = self.events.remove(&key.min()?)?;
        Some(event)
    }

    pub(super) fn send_action(&mut self, from: usize, action: Action) {
        let at = |machine: Machine| machine.0 as usize;
        match action {
            Action::Answer { responses, .. } => responses.into_iter().for_each(|r| self.check(&r)),
            Action::Move { to, moved, .. } => self.send(at(to), Event::Move(moved)),
            Action::Refuse { to, refused } => self.send(at(to), Event::Refuse(refused)),
            Action::Fetch { to, mut fetch } => {
                if at(fetch.from) == from {
                    fetch.token |= self.hosts[from].process << TOKEN_BITS;
                }
                self.send(at(to), Event::Fetch(fetch));
            }
            Action::Data { to, data } => self.send(at(to), Event::Data(data)),
            Action::Replicate { to, replicate } => self.send_replicate(from, at(to), replicate),
            // A machine has one thread.
            Action::Doubt { .. } => self.doubts += 1,
        }
    }

    /// Now and then its connection breaks: it may come late, or never.
    pub(super) fn send_replicate(&mut self, from: usize, to: usize, replicate: Replicate) {
        let is_lost = self.is_lively() && self.below(12) == 0;
        let (token, process) = (replicate.token, self.hosts[from].process);
        let replicate = Event::Replicate {
            from,
            replicate,
            process,
            is_lost,
        };
        if !is_lost {
            return self.send(to, replicate);
        }
        if self.below(4) > 0 {
            self.send_within(to, replicate, 600);
        }
        self.send_within(from, Event::Replicated(process, token, Delivery::Lost), 60);
    }
}
