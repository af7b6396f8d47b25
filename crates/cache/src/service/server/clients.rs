//! The connections of clients: what each may say, and what it is still to be told.

use cenote_fabric::{Error, Event, Listen, PeerId, Time};

use super::flow::Flow;
use super::{Life, Server};
use crate::owner::{CLIENTS_MAX, ClientNumber, Renewal};
use crate::service::allowance::Allowance;
use crate::service::message::{Refusal, ToClient, ToManager, VERSION};
use crate::service::outbox::Outbox;

/// A connection.
pub struct Connected {
    name: String,
    pub outbox: Outbox,
    allowance: Allowance,
    /// As the owner numbers it, once it joined.
    number: Option<ClientNumber>,
    flow: Flow,
}

/// Connections at a time: of clients that joined, and of others, for questions. Where all are taken, the
/// one goes that is silent longest.
pub(super) const PLACES: usize = CLIENTS_MAX + 256;
/// What messages cost of an allowance at least; others cost 1.
const JOIN_COST: u32 = 200;
const QUESTION_COST: u32 = 100;
const TROUBLE_COST: u32 = 10;
/// Regions that are looked at for the price of one that is told. Arbitrary.
const REGIONS_LOOKED_AT: u32 = 64;

impl Connected {
    pub fn has_joined(&self) -> bool {
        self.number.is_some()
    }

    pub fn is_blocked(&self) -> bool {
        self.flow.is_blocked()
    }
}

impl Server {
    pub(super) fn handle_event(&mut self, now: Time, event: Event) {
        match event {
            Event::Connected { peer, hello } => {
                let connected = Connected {
                    name: hello.name,
                    outbox: Outbox::default(),
                    allowance: Allowance::new(now),
                    number: None,
                    flow: Flow::default(),
                };
                self.connected.insert(peer, connected);
            }
            Event::Message { peer, bytes } => self.handle_message(now, peer, &bytes),
            // Its process may be there: it keeps its lease.
            Event::Disconnected { peer } => self.forget(peer),
            _ => {}
        }
    }

    fn handle_message(&mut self, now: Time, peer: PeerId, bytes: &[u8]) {
        let Some(connected) = self.connected.get_mut(&peer) else {
            return;
        };
        let message = match ToManager::decode(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(client = connected.name, %error, "cut off");
                return self.cut_off(peer);
            }
        };
        let regions = self.manager.owner.region_count();
        if !connected
            .allowance
            .take(now, regions, cost(&message, regions))
        {
            tracing::warn!(client = connected.name, "cut off: it says too much");
            return self.cut_off(peer);
        }
        let number = connected.number;
        match (message, number) {
            (ToManager::Join { version }, _) => self.join(now, peer, version),
            (ToManager::Ask { number, question }, _) => self.ask(now, peer, number, &question),
            (ToManager::Alive { asked_at }, Some(number)) => {
                self.handle_alive(now, peer, number, asked_at);
            }
            (ToManager::Known(known), Some(number)) => {
                let known = known.into_iter();
                let known: Vec<(usize, u64)> = known.map(|(r, g)| (r as usize, g)).collect();
                self.manager.owner.note_all_known(number, &known);
            }
            (ToManager::Doubt { region, generation }, Some(number)) => {
                let region = region as usize;
                self.manager.owner.note_doubt(number, region, generation);
            }
            (ToManager::Trouble { host }, Some(_)) => {
                self.manager.handle_trouble(usize::from(host));
            }
            (ToManager::Leave, Some(number)) => {
                self.manager.owner.handle_client_left(now, number);
                self.joined.remove(&number);
                connected_number(self.connected.get_mut(&peer), None);
            }
            // Its lease ended, and it does not know yet.
            (_, None) => {
                let connected = self.connected.get_mut(&peer).expect("it speaks");
                connected.outbox.forget();
            }
        }
    }

    fn join(&mut self, now: Time, peer: PeerId, version: u16) {
        if version != VERSION {
            return self.refuse(peer, Refusal::Version);
        }
        if self.is_ending() {
            return self.refuse(peer, Refusal::Ending);
        }
        let connected = self.connected.get_mut(&peer).expect("it speaks");
        // One that joins again is another client to the owner; the one before keeps what lease it has.
        if let Some(before) = connected.number.take() {
            self.joined.remove(&before);
        }
        self.clients_made += 1;
        let number = self.clients_made;
        let welcome = ToClient::Welcome(self.welcome());
        let hosts = (0..).zip(self.manager.hosts()).map(|(number, (host, _))| {
            let (name, domain) = (host.name.clone(), host.domain.clone());
            ToClient::Host {
                number,
                name,
                address: host.address.to_string(),
                domain,
            }
        });
        let greeting: Vec<ToClient> = std::iter::once(welcome).chain(hosts).collect();
        let connected = self.connected.get_mut(&peer).expect("it speaks");
        connected.outbox.greet(greeting.into_iter());
        connected.number = Some(number);
        self.joined.insert(number, peer);
        if !self.manager.join(now, number) {
            return self.refuse(peer, Refusal::Full);
        }
        self.pass_on(now);
    }

    fn handle_alive(&mut self, now: Time, peer: PeerId, number: ClientNumber, asked_at: u64) {
        if let Some(connected) = self.connected.get_mut(&peer) {
            connected.flow.note_asked(now);
        }
        if matches!(self.life, Life::Founding { .. }) {
            // It asks again: who has a lease was told of every region.
            return;
        }
        if !self.leadership.holds(now) && self.manager.owner.is_untold(number) {
            // What it knows may be from before it was away.
            return;
        }
        let renewal = self.manager.owner.handle_client_alive(now, number);
        // What was decided before goes out before.
        self.manager.flush(now);
        self.pass_on(now);
        let Some(connected) = self.connected.get_mut(&peer) else {
            return;
        };
        match renewal {
            Renewal::Granted => connected.outbox.grant(asked_at),
            Renewal::Withheld => {}
            Renewal::Superseded => self.refuse(peer, Refusal::Superseded),
            Renewal::Unknown => {
                connected.number = None;
                connected.outbox.forget();
                self.joined.remove(&number);
            }
        }
    }

    /// Sends what waits, to whoever takes it.
    pub(super) fn send_all(&mut self, now: Time) {
        let may_lease = self.may_lease();
        let sign = ToClient::Welcome(self.welcome());
        let mut lost = Vec::new();
        for (&peer, connected) in &mut self.connected {
            let listener = &mut self.listener;
            let (mut is_lost, mut has_said) = (false, false);
            if connected.flow.wants_sign(now) {
                connected.outbox.greet_again(&sign);
            }
            let sent = connected.outbox.send(may_lease, |message| {
                let sent = listener.send(peer, message);
                is_lost |= !matches!(sent, Ok(()) | Err(Error::Bound(_)));
                has_said |= sent.is_ok();
                sent.is_ok()
            });
            connected.flow.note_sent(now, sent, has_said);
            let is_stuck = connected.flow.is_stuck(now);
            if is_stuck {
                tracing::warn!(client = connected.name, "cut off: it reads nothing");
            }
            if is_lost || is_stuck {
                lost.push(peer);
            }
        }
        for peer in lost {
            self.cut_off(peer);
        }
    }

    pub(super) fn cut_off(&mut self, peer: PeerId) {
        self.forget(peer);
        self.listener.close(peer);
    }

    fn forget(&mut self, peer: PeerId) {
        let connected = self.connected.remove(&peer);
        if let Some(number) = connected.and_then(|connected| connected.number) {
            self.joined.remove(&number);
        }
    }
}

fn connected_number(connected: Option<&mut Connected>, number: Option<ClientNumber>) {
    if let Some(connected) = connected {
        connected.number = number;
    }
}

/// What a message costs of an allowance: as much as it has the manager do in a cache of so many
/// regions, which fills the allowance faster.
fn cost(message: &ToManager, regions: usize) -> u32 {
    let regions = u32::try_from(regions).unwrap_or(u32::MAX);
    match message {
        // Each region is told.
        ToManager::Join { .. } => JOIN_COST.max(regions),
        ToManager::Ask { .. } => QUESTION_COST,
        ToManager::Trouble { .. } => TROUBLE_COST,
        ToManager::Known(known) => u32::try_from(known.len()).unwrap_or(u32::MAX).max(1),
        // Each region is looked at.
        ToManager::Alive { .. } => 1 + regions / REGIONS_LOOKED_AT,
        // One for each region may come at once when a host is lost.
        ToManager::Doubt { .. } | ToManager::Leave => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::owner::REGIONS_MAX;

    /// Messages that are taken in a second, all at its end.
    fn taken_in_a_second(message: &ToManager, regions: usize) -> usize {
        let mut allowance = Allowance::new(Time(0));
        let second = Duration::from_secs(1);
        let mut take = |now| allowance.take(now, regions, cost(message, regions));
        let at_once = std::iter::from_fn(|| take(Time(0)).then_some(())).count();
        let later = Time(0).after(second);
        at_once + std::iter::from_fn(|| take(later).then_some(())).count()
    }

    #[test]
    fn a_client_of_a_long_cache_has_no_more_of_the_managers_time() {
        let join = ToManager::Join { version: VERSION };
        let alive = ToManager::Alive { asked_at: 1 };
        for regions in [1, 100, 4000, REGIONS_MAX as usize] {
            let joins = taken_in_a_second(&join, regions);
            let lives = taken_in_a_second(&alive, regions);
            // A client joins when its connection broke, and asks for its lease twice a second.
            assert!(joins >= 4 && lives >= 20, "{regions}: {joins}, {lives}");
            // Each join has every region told, and each lease has every region looked at.
            let told = joins * regions;
            assert!(told <= 16 * REGIONS_MAX as usize, "{regions}: {joins}");
            assert!(
                lives * regions <= 1000 * REGIONS_MAX as usize,
                "{regions}: {lives}"
            );
        }
    }
}
