//! How strangers come in by the listener's sockets, and leave: as clients, or for others.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::stranger::{Progress, Stranger};
use super::{ACCEPT_PAUSE, Connection, Event, Listener};
use crate::socket::Interest;
use crate::strangers::{Parting, Report, Source, Stage};

impl Listener {
    /// Takes strangers in, each for another where there is no place left.
    pub(super) fn accept(&mut self, index: usize, events: &mut Vec<Event>) {
        for _ in 0..ACCEPTS_PER_ROUND {
            let Some(bound) = self.bound.get(index) else {
                return;
            };
            let (socket, source) = match bound.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    // Out of descriptors or memory, or the stranger hung up. Waiting helps the first two.
                    tracing::warn!(%error, address = %bound.address(), "accept a connection");
                    self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let stranger = Stranger::new(socket, bound.path().clone(), index);
            self.make_room(index, source, events);
            let id = self.next_id;
            self.next_id += 1;
            if self.epoll.add(stranger.as_fd(), id, Interest::READ).is_ok() {
                self.connections
                    .insert(id, Connection::Stranger(Box::new(stranger)));
                let strangers = &mut self.bound[index].strangers;
                strangers.admit(id, source, Instant::now());
                // A client speaks at once: what it said is often here.
                self.advance(id, events);
            }
        }
    }

    /// Where all places are taken, the client goes that has been silent longest: one that uses its
    /// connection says something four times in that time, and an operator always gets in.
    pub(super) fn make_place(&mut self, events: &mut Vec<Event>) {
        if self.peers.len() < self.places {
            return;
        }
        let silent = self
            .peers
            .values()
            .filter_map(|&id| match self.connections.get(&id.0) {
                Some(Connection::Peer(peer)) => peer.silent_since().map(|since| (since, id)),
                _ => None,
            });
        if let Some((since, id)) = silent.min()
            && since.elapsed() >= self.silence
        {
            let is_news = |told: Instant| told.elapsed() >= FULL_TOLD_EVERY;
            if self.full_told.is_none_or(is_news) {
                tracing::warn!("all places are taken: silent clients go for others");
                self.full_told = Some(Instant::now());
            }
            self.end_peer(id);
            events.push(Event::Disconnected { peer: id });
        }
    }

    /// Has strangers go until there is a place for one from `source`.
    fn make_room(&mut self, index: usize, source: Source, events: &mut Vec<Event>) {
        while let Some(id) = self.bound[index].strangers.displaced_by(source) {
            let stage = self.stage(id);
            // It may have spoken since we looked.
            self.advance(id, events);
            if self.bound[index].strangers.contains(id) && self.stage(id) == stage {
                self.end_stranger(id, Parting::Displaced);
            }
        }
    }

    fn stage(&self, id: u64) -> Option<Stage> {
        match self.connections.get(&id) {
            Some(Connection::Stranger(stranger)) => Some(stranger.stage()),
            _ => None,
        }
    }

    pub(super) fn end_stranger(&mut self, id: u64, how: Parting) -> Option<Box<Stranger>> {
        match self.connections.remove(&id) {
            Some(Connection::Stranger(stranger)) => {
                self.bound[stranger.bound].strangers.part(id, how);
                Some(stranger)
            }
            other => {
                debug_assert!(other.is_none(), "only strangers are ended so");
                None
            }
        }
    }

    pub(super) fn tell_of_strangers(&mut self) {
        for bound in &mut self.bound {
            if let Some(report) = bound.strangers.report(Instant::now()) {
                let Report {
                    wrong_key,
                    late,
                    displaced,
                    last,
                } = report;
                tracing::warn!(
                    address = %bound.address(), wrong_key, late, displaced, last_from = %last,
                    "connections that did not prove the cluster's key"
                );
            }
        }
    }

    pub(super) fn advance(&mut self, id: u64, events: &mut Vec<Event>) {
        let Some(Connection::Stranger(stranger)) = self.connections.get_mut(&id) else {
            return;
        };
        match stranger.advance(&self.key) {
            Progress::Waits => {
                let (bound, stage) = (stranger.bound, stranger.stage());
                self.bound[bound].strangers.advance(id, stage);
            }
            Progress::Refused(how) => drop(self.end_stranger(id, how)),
            Progress::Proven(proven) => self.welcome(id, *proven, events),
        }
    }

    pub(super) fn drop_late_strangers(&mut self) {
        let now = Instant::now();
        for index in 0..self.bound.len() {
            while let Some(id) = self.bound[index].strangers.late(now) {
                self.end_stranger(id, Parting::Late);
            }
        }
    }
}

/// How often it is said that all places are taken.
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Strangers taken in at a time, so that clients are served in between.
const ACCEPTS_PER_ROUND: usize = 64;
