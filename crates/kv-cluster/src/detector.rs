//! Which peers are alive: pure, time is given.
//!
//! Every peer is probed at an interval. A peer is *suspect* when nothing was heard of it for a
//! while, or at once when its connection ended and was not made again within a grace; it is alive
//! again when it is heard on a new connection or answers. Suspicion is no verdict: only a new view
//! takes a role away.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::NodeId;

/// Probes of one peer whose answers still count; later ones have made older ones worthless.
const PROBES_MAX: usize = 64;

/// Times of the detector.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Between two probes of one peer.
    pub interval: Duration,
    /// Without a sign for so long, a peer is suspect.
    pub silence: Duration,
    /// Without a connection for so long after one ended, a peer is suspect.
    pub grace: Duration,
}

impl Default for Settings {
    /// 50 ms, 500 ms and 40 ms: a dead process is noticed by its connection long before the lease that
    /// its successor waits for has run out, and a link that is made again on a busy machine is no death; a
    /// stopped machine after half a second.
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            silence: Duration::from_millis(500),
            grace: Duration::from_millis(40),
        }
    }
}

/// What is thought of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Heard of lately.
    Alive,
    /// Perhaps dead.
    Suspect(Cause),
}

/// Why a peer is suspect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// There was never a connection to it.
    NeverMet,
    /// No sign for the time of silence.
    Silent,
    /// Its connection ended and was not made again.
    Disconnected,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Send a probe with this number.
    Probe {
        /// To whom.
        peer: NodeId,
        /// Comes back in the answer.
        number: u64,
    },
    /// A peer's state has changed.
    Changed {
        /// Whose.
        peer: NodeId,
        /// To what.
        state: State,
    },
}

/// The detector of one node.
#[derive(Debug)]
pub struct Detector {
    settings: Settings,
    peers: BTreeMap<NodeId, Peer>,
    next_number: u64,
}

#[derive(Debug)]
struct Peer {
    state: State,
    connected: bool,
    /// When it was last heard, or added.
    heard: Instant,
    /// When its connection ended; `None` while there is one, or was none.
    ended: Option<Instant>,
    next_probe: Instant,
    /// Number and sending time of probes without an answer, oldest first.
    probes: VecDeque<(u64, Instant)>,
    /// Sending to receiving of the last answer.
    round_trip: Option<Duration>,
}

impl Detector {
    /// One that knows nobody yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            peers: BTreeMap::new(),
            next_number: 1,
        }
    }

    /// A peer to look after; no effect on one that is known.
    pub fn add(&mut self, peer: NodeId, now: Instant) {
        self.peers.entry(peer).or_insert_with(|| Peer {
            state: State::Suspect(Cause::NeverMet),
            connected: false,
            heard: now,
            ended: None,
            next_probe: now,
            probes: VecDeque::new(),
            round_trip: None,
        });
    }

    /// A peer that is none any more.
    pub fn remove(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
    }

    /// A connection to the peer stands, proven to be its own.
    pub fn handle_connected(&mut self, peer: NodeId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.connected = true;
            peer.ended = None;
            peer.heard = peer.heard.max(now);
            peer.next_probe = now;
            // Answers come on the connection on which was asked.
            peer.probes.clear();
        }
    }

    /// The connection to the peer has ended.
    pub fn handle_disconnected(&mut self, peer: NodeId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&peer)
            && peer.connected
        {
            peer.connected = false;
            peer.ended = Some(now);
            peer.probes.clear();
        }
    }

    /// Anything came from the peer.
    pub fn handle_heard(&mut self, peer: NodeId, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.heard = peer.heard.max(now);
        }
    }

    /// An answer to a probe. One that was not asked for, or twice given, changes nothing but that
    /// the peer was heard.
    pub fn handle_answer(&mut self, peer: NodeId, number: u64, now: Instant) {
        let Some(peer) = self.peers.get_mut(&peer) else {
            return;
        };
        peer.heard = peer.heard.max(now);
        let Some(place) = peer.probes.iter().position(|probe| probe.0 == number) else {
            return;
        };
        let (_, sent) = peer.probes[place];
        peer.probes.drain(..=place);
        peer.round_trip = Some(now.saturating_duration_since(sent));
    }

    /// What is thought of a peer; `None`: not known.
    #[must_use]
    pub fn state(&self, peer: NodeId) -> Option<State> {
        self.peers.get(&peer).map(|peer| peer.state)
    }

    /// Whether a peer that is not suspect yet may be about to be: its connection has ended, or it is
    /// silent for half of what makes it suspect. Whoever is cut off misses some before the others.
    #[must_use]
    pub fn is_in_doubt(&self, peer: NodeId, now: Instant) -> bool {
        self.peers.get(&peer).is_some_and(|peer| {
            let is_late = now.saturating_duration_since(peer.heard) >= self.settings.silence / 2;
            peer.state == State::Alive && (!peer.connected || is_late)
        })
    }

    /// How long the last answered probe took.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<Duration> {
        self.peers.get(&peer)?.round_trip
    }

    /// How long ago the peer was last heard.
    #[must_use]
    pub fn silence(&self, peer: NodeId, now: Instant) -> Option<Duration> {
        let peer = self.peers.get(&peer)?;
        Some(now.saturating_duration_since(peer.heard))
    }

    /// All peers with their states.
    pub fn peers(&self) -> impl Iterator<Item = (NodeId, State)> + '_ {
        self.peers.iter().map(|(&peer, entry)| (peer, entry.state))
    }

    /// What is due; to be called again by [`Detector::next_deadline`]. Called later than that, this process
    /// has stood still: no peer is to blame for that time, in which it was neither asked nor heard.
    pub fn poll(&mut self, now: Instant) -> Vec<Action> {
        let due = self.next_deadline();
        let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        let mut actions = Vec::new();
        for (&id, peer) in &mut self.peers {
            peer.heard = peer.heard.max((peer.heard + late).min(now));
            if late >= self.settings.grace {
                peer.ended = peer.ended.map(|_| now);
            }
            let state = peer.judge(&self.settings, now);
            if state != peer.state {
                peer.state = state;
                actions.push(Action::Changed { peer: id, state });
            }
            if peer.connected && now >= peer.next_probe {
                let number = self.next_number;
                self.next_number += 1;
                if peer.probes.len() == PROBES_MAX {
                    peer.probes.pop_front();
                }
                peer.probes.push_back((number, now));
                peer.next_probe = now + self.settings.interval;
                actions.push(Action::Probe { peer: id, number });
            }
        }
        actions
    }

    /// When [`Detector::poll`] has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.peers.values().flat_map(|peer| {
            let probe = peer.connected.then_some(peer.next_probe);
            let alive = peer.state == State::Alive;
            let silent = alive.then(|| peer.heard + self.settings.silence);
            let ended = peer.ended.filter(|_| alive);
            [probe, silent, ended.map(|at| at + self.settings.grace)]
        });
        due.flatten().min()
    }
}

impl Peer {
    fn judge(&self, settings: &Settings, now: Instant) -> State {
        if let Some(ended) = self.ended
            && now >= ended + settings.grace
        {
            // Who is silent has its link taken away: that is no news.
            return match self.state {
                State::Suspect(Cause::Silent) => self.state,
                _ => State::Suspect(Cause::Disconnected),
            };
        }
        if now >= self.heard + settings.silence {
            return match self.state {
                State::Alive => State::Suspect(Cause::Silent),
                suspect => suspect,
            };
        }
        // In the grace, and before it was ever met, as it was.
        if self.connected {
            State::Alive
        } else {
            self.state
        }
    }
}

#[cfg(test)]
mod tests;
