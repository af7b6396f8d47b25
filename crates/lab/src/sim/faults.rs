//! What goes wrong and when: drawn at a rate, ended after a while, bounded while the world is gentle.
//!
//! A host is *impaired* from its fault on until every client has it back and has made whole what
//! it lost. In a gentle epoch at most r hosts are impaired at a time, so nothing may be lost.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::sim::{Memory, Notice};

use super::world::{Actor, World};

/// The faults under way.
#[derive(Default)]
pub struct Faults {
    impaired: Vec<usize>,
    /// In a gentle epoch no further host is impaired after this time, until all is whole again:
    /// what is mapped meanwhile may have fewer slabs than it should.
    round_ends: Time,
    ends: Vec<(Time, End)>,
    next_at: Time,
}

/// How a fault ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Restart(usize),
    Heal(usize, usize),
    Undelay(usize, usize),
    Lose(usize, usize),
    Resume(Actor),
}

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

impl Faults {
    /// Ends what is over and draws what is due; `pause_ns` is the mean time between faults.
    pub fn tick(&mut self, world: &mut World, r: usize, pause_ns: u64) {
        let now = world.net.now();
        self.end_due(world, now);
        let is_whole = world
            .clients
            .iter_mut()
            .all(super::client::Client::is_settled);
        if is_whole && self.ends.is_empty() {
            self.impaired.clear();
            self.round_ends = Time(u64::MAX);
        }
        if now >= self.next_at {
            self.next_at = Time(now.0 + 1 + world.random.below(2 * pause_ns));
            let bound = if world.is_gentle {
                r
            } else {
                world.hosts.len() / 2
            };
            self.inject(world, now, bound);
        }
    }

    /// Ends everything at once.
    pub fn heal(&mut self, world: &mut World) {
        self.end_due(world, Time(u64::MAX));
    }

    fn end_due(&mut self, world: &mut World, now: Time) {
        let (over, on) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.ends = on;
        for (_, end) in over {
            world.note(format!("ends: {end:?}"));
            match end {
                Restart(host) => {
                    let net = world.net.clone();
                    world.hosts[host].restart(&net);
                    let node = world.hosts[host].node;
                    world.wake(node, net.now());
                }
                Heal(client, host) => {
                    let (c, h) = nodes(world, client, host);
                    world.net.heal(c, h);
                    world.net.heal(h, c);
                }
                Undelay(client, host) => {
                    let (c, h) = nodes(world, client, host);
                    world.net.set_extra_delay(c, h, Duration::ZERO);
                    world.net.set_extra_delay(h, c, Duration::ZERO);
                }
                Lose(client, host) => {
                    let (c, h) = nodes(world, client, host);
                    world.net.lose_connections(c, h);
                }
                Resume(actor) => world.pause(actor, false),
            }
        }
    }

    fn inject(&mut self, world: &mut World, now: Time, bound: usize) {
        let host = index(world.random.below(world.hosts.len() as u64));
        let client = index(world.random.below(world.clients.len() as u64));
        let what = world.random.below(100);
        if (60..75).contains(&what) {
            return self.trouble_client(world, now, client, what);
        }
        let is_busy = self.ends.iter().any(|(_, end)| match end {
            Restart(other) | Heal(_, other) | Undelay(_, other) | Lose(_, other) => *other == host,
            Resume(actor) => *actor == Actor::Host(host),
        });
        if is_busy {
            return;
        }
        // A delay below the failure time impairs nobody.
        let is_delay = (75..90).contains(&what);
        if !is_delay {
            let is_new = !self.impaired.contains(&host);
            let is_late = world.is_gentle && now > self.round_ends;
            if is_new && (self.impaired.len() >= bound || is_late) {
                return;
            }
            if is_new {
                self.impaired.push(host);
                self.round_ends = self.round_ends.min(Time(now.0 + 2 * S));
            }
        }
        world.faults += 1;
        let (c, h) = nodes(world, client, host);
        let net = world.net.clone();
        let longest_cut = if world.is_gentle { 6 * S } else { 30 * S };
        let random_delay = world.random.between(5 * MS, 100 * MS);
        let random = &mut world.random;
        match what {
            0..20 => {
                let notice = if random.percent(50) {
                    Notice::AtOnce
                } else {
                    Notice::BySilence
                };
                let end = Time(now.0 + random.between(100 * MS, 10 * S));
                world.note(format!("crash h{host:02}, {notice:?}"));
                world.hosts[host].crash(&net, Memory::Lost, notice);
                self.ends.push((end, Restart(host)));
            }
            20..35 => {
                let ways = random.below(3);
                let end = Time(now.0 + random.between(10 * MS, longest_cut));
                world.note(format!("cut c{client} and h{host:02}, way {ways}"));
                if ways != 1 {
                    net.cut(c, h);
                }
                if ways != 0 {
                    net.cut(h, c);
                }
                self.ends.push((end, Heal(client, host)));
            }
            35..45 => {
                let connections = net.connections(c, h);
                if random.percent(50) {
                    // Much is under way when they break.
                    world.note(format!("slow down and lose c{client} and h{host:02}"));
                    net.set_extra_delay(c, h, Duration::from_nanos(random_delay));
                    self.ends
                        .push((Time(now.0 + random_delay), Lose(client, host)));
                    self.ends.push((Time(now.0 + S), Undelay(client, host)));
                } else if !connections.is_empty() {
                    let lost = *random.pick(&connections);
                    world.note(format!("lose {lost:?} of c{client} and h{host:02}"));
                    net.lose_connection(lost);
                }
            }
            45..60 => {
                let end = Time(now.0 + random.between(10 * MS, 5 * S));
                world.note(format!("pause h{host:02}"));
                world.pause(Actor::Host(host), true);
                self.ends.push((end, Resume(Actor::Host(host))));
            }
            75..90 => {
                let delay = Duration::from_nanos(random.between(MS / 100, 300 * MS));
                let end = Time(now.0 + random.between(10 * MS, 10 * S));
                world.note(format!("delay c{client} and h{host:02} by {delay:?}"));
                net.set_extra_delay(c, h, delay);
                net.set_extra_delay(h, c, delay);
                self.ends.push((end, Undelay(client, host)));
            }
            _ => {
                world.note(format!(
                    "lose an acknowledgement of h{host:02} to c{client}"
                ));
                net.lose_next_acknowledgement(c, h);
            }
        }
    }

    fn trouble_client(&mut self, world: &mut World, now: Time, client: usize, what: u64) {
        let actor = Actor::Client(client);
        if world.is_paused(actor) {
            return;
        }
        world.faults += 1;
        if what < 70 {
            // In a gentle epoch no lease runs out.
            let longest = if world.is_gentle { 8 * S } else { 30 * S };
            let end = Time(now.0 + world.random.between(10 * MS, longest));
            world.note(format!("pause c{client}"));
            world.pause(actor, true);
            self.ends.push((end, Resume(actor)));
        } else {
            world.note(format!("replace c{client}"));
            let is_new = world.random.percent(30);
            world.replace_client(client, is_new);
        }
    }
}

use End::{Heal, Lose, Restart, Resume, Undelay};

fn nodes(
    world: &World,
    client: usize,
    host: usize,
) -> (cenote_fabric::sim::NodeId, cenote_fabric::sim::NodeId) {
    (
        world.node(Actor::Client(client)),
        world.node(Actor::Host(host)),
    )
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("an index")
}
