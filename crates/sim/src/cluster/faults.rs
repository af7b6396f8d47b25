//! What goes wrong and when: drawn at a rate, ended after a while, bounded while the world is gentle.
//!
//! A host is *impaired* from its fault on until every client has it back and has made whole what
//! it lost. In a gentle epoch at most r hosts are impaired at a time, so nothing may be lost.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::sim::{Memory, NodeId, Notice};

use super::ambush::{ARROWS, Ambush, VICTIMS};
use super::client::Client;
use super::disk::Mood;
use super::world::{Actor, World};
use super::{Options, Weights};

/// The faults under way.
pub struct Faults {
    options: Options,
    weights: Weights,
    /// Hosts that a volume survives the loss of.
    r: usize,
    is_backed: bool,
    /// Mean time between two faults.
    pause_ns: u64,
    impaired: Vec<usize>,
    /// In a gentle epoch no further host is impaired after this time, until all is whole again:
    /// what is mapped meanwhile may have fewer slabs than it should.
    round_ends: Time,
    /// From then on everybody has noticed what happened.
    noticed_at: Time,
    ends: Vec<(Time, End)>,
    next_at: Time,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Crash,
    Cut,
    Lose,
    PauseHost,
    PauseClient,
    ReplaceClient,
    Delay,
    LoseAcknowledgement,
    Drain,
    Squeeze,
    Reshape,
    Restripe,
    Ambush,
    Rot,
    Part,
    Upgrade,
    Disk,
}

impl Kind {
    /// Whether slabs of volumes with a disk behind them may go by it, and are not waited for.
    fn is_lossy(self) -> bool {
        use Kind::{Delay, Disk, Drain, Part, Reshape, Restripe, Squeeze, Upgrade};
        let spares = [
            Delay, Disk, Drain, Part, Restripe, Reshape, Squeeze, Upgrade,
        ];
        !spares.contains(&self)
    }
}

/// How a fault ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Restart(usize),
    /// Another process has what a host left, in time.
    Return(usize),
    Heal(usize, usize),
    Undelay(usize, usize),
    /// All connections between the two break.
    Lose(usize, usize),
    /// One of them does.
    LoseOne(usize, usize),
    Resume(Actor),
    /// A host lends again.
    Undrain(usize),
    /// Its machine's programs end.
    Relieve(usize),
    /// Two hosts reach each other again.
    Join(usize, usize),
    /// A client's disk is well again.
    Cure(usize),
}

impl End {
    /// Whether slabs may go until then, as [`Kind::is_lossy`] says.
    fn is_lossy(&self) -> bool {
        let spares = matches!(
            self,
            Return(_) | Undelay(..) | Join(..) | Cure(_) | Undrain(_) | Relieve(_)
        );
        !spares
    }
}

/// A host that was away for less than the failure timeout is missed this late: until then its
/// clients believe that they are whole. A ping and its patience, and some.
const NOTICED: Duration = Duration::from_secs(2);

/// And this long after its end a fault may still have effects: word of a closed connection comes late, and
/// so does a write.
pub const FELT: Duration = Duration::from_secs(5);

/// Hosts say that they will be back within five seconds: those that are well before that are waited for.
const IN_TIME: Duration = Duration::from_secs(4);

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

impl Faults {
    pub fn new(options: &Options) -> Self {
        let pause_ns = u64::try_from(options.fault_pause.as_nanos());
        Self {
            options: options.clone(),
            weights: options.weights,
            r: options.spare_hosts(),
            is_backed: options.is_backed,
            pause_ns: pause_ns.unwrap_or(u64::MAX / 2).clamp(1, u64::MAX / 2),
            impaired: Vec::new(),
            round_ends: Time(u64::MAX),
            noticed_at: Time(0),
            ends: Vec::new(),
            next_at: Time(0),
        }
    }

    /// Ends what is over and draws what is due.
    pub fn tick(&mut self, world: &mut World) {
        let now = world.net.now();
        self.end_due(world, now);
        for host in std::mem::take(&mut world.sprung) {
            self.impair(host, now);
            let end = Time(now.0 + world.random.between(100 * MS, 10 * S));
            self.ends.push((end, Restart(host)));
        }
        for host in 0..world.hosts.len() {
            self.end_leaving(world, now, host);
        }
        let is_whole = world.clients.iter_mut().all(Client::is_settled);
        if is_whole && self.ends.is_empty() && now >= self.noticed_at {
            self.impaired.clear();
            self.round_ends = Time(u64::MAX);
        }
        if now >= self.next_at {
            self.next_at = Time(now.0 + 1 + world.random.below(2 * self.pause_ns));
            self.inject(world, now);
        }
        self.note_troubles(world, now);
        if self.ends.iter().any(|(_, end)| end.is_lossy()) {
            world.note_loss();
        }
        let may = self.may_impair(world, now);
        if let Some(ambush) = &mut world.ambush {
            ambush.hosts = may;
        }
    }

    /// Notes who may lose something now, or may have a moment ago.
    fn note_troubles(&self, world: &mut World, now: Time) {
        let until = now.after(FELT);
        for host in 0..world.hosts.len() {
            if self.is_busy(host) || self.impaired.contains(&host) || !world.hosts[host].is_up() {
                world.troubles.note_host(host, until);
            }
        }
        for client in 0..world.clients.len() {
            if world.is_paused(Actor::Client(client)) {
                world.troubles.note_client(client, until);
            }
        }
    }

    /// Ends everything at once.
    pub fn heal(&mut self, world: &mut World) {
        world.ambush = None;
        for host in std::mem::take(&mut world.sprung) {
            self.ends.push((Time(0), Restart(host)));
        }
        for host in 0..world.hosts.len() {
            let net = world.net.clone();
            if world.hosts[host].leave(&net, true) {
                // Its clients may not know.
                world.note_loss();
                self.ends.push((Time(0), Restart(host)));
            }
        }
        self.end_due(world, Time(u64::MAX));
    }

    /// Ends the process of a host whose clients know that another takes its place: mostly one that is there
    /// while they wait, and has what it left.
    fn end_leaving(&mut self, world: &mut World, now: Time, host: usize) {
        let net = world.net.clone();
        if !world.hosts[host].leave(&net, false) {
            return;
        }
        let longest = if world.random.percent(80) { S } else { 10 * S };
        let end = Time(now.0 + world.random.between(MS, longest));
        let has_left = !world.random.percent(10);
        if !has_left {
            world.hosts[host].forget_left();
        }
        world.note(format!("h{host:02} has left"));
        self.impair(host, now);
        let is_in_time = has_left && end < now.after(IN_TIME);
        let end_of_it = if is_in_time { Return } else { Restart };
        self.ends.push((end, end_of_it(host)));
    }

    fn impair(&mut self, host: usize, now: Time) {
        self.noticed_at = now.after(NOTICED);
        if !self.impaired.contains(&host) {
            self.impaired.push(host);
            self.round_ends = self.round_ends.min(Time(now.0 + 2 * S));
        }
    }

    /// Hosts that may be impaired now; `None`: any.
    fn may_impair(&self, world: &World, now: Time) -> Option<Vec<usize>> {
        let bound = if world.is_gentle {
            self.r
        } else {
            world.hosts.len() / 2
        };
        let is_late = world.is_gentle && !self.is_backed && now > self.round_ends;
        let is_full = self.impaired.len() >= bound || is_late;
        is_full.then(|| self.impaired.clone())
    }

    fn is_busy(&self, host: usize) -> bool {
        self.ends.iter().any(|(_, end)| match *end {
            Restart(other)
            | Return(other)
            | Heal(_, other)
            | Undelay(_, other)
            | Lose(_, other)
            | LoseOne(_, other)
            | Undrain(other)
            | Relieve(other) => other == host,
            Join(one, other) => one == host || other == host,
            Cure(_) => false,
            Resume(actor) => actor == Actor::Host(host),
        })
    }

    fn end_due(&mut self, world: &mut World, now: Time) {
        let (over, on) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.ends = on;
        for (_, end) in over {
            self.noticed_at = world.net.now().after(NOTICED);
            world.note(format!("ends: {end:?}"));
            match end {
                Restart(host) | Return(host) => {
                    let net = world.net.clone();
                    world.hosts[host].restart(&net);
                    let node = world.hosts[host].node;
                    world.wake(node, net.now());
                }
                Heal(client, host) => heal(world, nodes(world, client, host)),
                Join(one, other) => heal(world, host_nodes(world, one, other)),
                Undelay(client, host) => slow_down(world, client, host, Duration::ZERO),
                Lose(client, host) => {
                    let (c, h) = nodes(world, client, host);
                    world.net.lose_connections(c, h);
                }
                LoseOne(client, host) => {
                    let (c, h) = nodes(world, client, host);
                    lose_one(world, c, h);
                }
                Resume(actor) => world.pause(actor, false),
                Undrain(host) => drain(world, host, false),
                Cure(client) => world.clients[client].set_disk_mood(Mood::Well),
                Relieve(host) => world.hosts[host].squeeze(0),
            }
        }
    }

    fn inject(&mut self, world: &mut World, now: Time) {
        let host = index(world.random.below(world.hosts.len() as u64));
        let client = index(world.random.below(world.clients.len() as u64));
        let Some(kind) = self.weights.draw(world) else {
            return;
        };
        match kind {
            Kind::PauseClient | Kind::ReplaceClient => {
                return self.trouble_client(world, now, client, kind);
            }
            Kind::Reshape => {
                let k = world.clients[client].k();
                let resilience = self.options.another_resilience(k, &mut world.random);
                world.faults += 1;
                world.note(format!("c{client} is to be {resilience}"));
                return world.clients[client].reshape(resilience);
            }
            Kind::Restripe => return self.restripe(world, client),
            Kind::Disk => return self.sicken_disk(world, now, client),
            Kind::Rot => {
                world.rot(client);
                return;
            }
            Kind::Ambush => {
                let arrow = *world.random.pick(&ARROWS);
                let victim = *world.random.pick(&VICTIMS);
                world.note(format!("in wait: {victim:?} at {arrow:?}"));
                world.ambush = Some(Ambush {
                    arrow,
                    victim,
                    hosts: Some(Vec::new()),
                });
                return;
            }
            _ => {}
        }
        let is_up = world.hosts[host].is_up() && !world.hosts[host].is_leaving();
        if self.is_busy(host) || world.sprung.contains(&host) || !is_up {
            return;
        }
        // A delay below the failure time impairs nobody, nor does a host that only asks, nor one that
        // everybody but another host reaches.
        if !matches!(kind, Kind::Delay | Kind::Drain | Kind::Squeeze | Kind::Part) {
            let may = self.may_impair(world, now);
            if may.is_some_and(|may| !may.contains(&host)) {
                return;
            }
            self.impair(host, now);
        }
        world.faults += 1;
        if kind.is_lossy() {
            world.note_loss();
        }
        match kind {
            Kind::Crash => self.crash(world, now, host),
            Kind::Cut => self.cut(world, now, client, host),
            Kind::Part => self.part(world, now, host),
            Kind::Lose => self.lose(world, now, client, host),
            Kind::Upgrade => {
                world.note(format!(
                    "another process is to take the place of h{host:02}"
                ));
                world.hosts[host].begin_leaving();
            }
            Kind::Drain => {
                let end = Time(now.0 + world.random.between(10 * MS, 10 * S));
                world.note(format!("drain h{host:02}"));
                drain(world, host, true);
                self.ends.push((end, Undrain(host)));
            }
            Kind::Squeeze => {
                let percent = world.random.between(20, 100);
                let end = Time(now.0 + world.random.between(S, 20 * S));
                world.note(format!("squeeze h{host:02} by {percent}%"));
                world.hosts[host].squeeze(percent);
                self.ends.push((end, Relieve(host)));
            }
            Kind::PauseHost => {
                let end = Time(now.0 + world.random.between(10 * MS, 5 * S));
                world.note(format!("pause h{host:02}"));
                world.pause(Actor::Host(host), true);
                self.ends.push((end, Resume(Actor::Host(host))));
            }
            Kind::Delay => {
                let delay = Duration::from_nanos(world.random.between(MS / 100, 300 * MS));
                let end = Time(now.0 + world.random.between(10 * MS, 10 * S));
                world.note(format!("delay c{client} and h{host:02} by {delay:?}"));
                slow_down(world, client, host, delay);
                self.ends.push((end, Undelay(client, host)));
            }
            _ => {
                world.note(format!(
                    "lose an acknowledgement of h{host:02} to c{client}"
                ));
                let (c, h) = nodes(world, client, host);
                world.net.lose_next_acknowledgement(c, h);
            }
        }
    }

    fn crash(&mut self, world: &mut World, now: Time, host: usize) {
        let notice = if world.random.percent(50) {
            Notice::AtOnce
        } else {
            Notice::BySilence
        };
        let end = Time(now.0 + world.random.between(100 * MS, 10 * S));
        world.note(format!("crash h{host:02}, {notice:?}"));
        let net = world.net.clone();
        world.hosts[host].crash(&net, Memory::Lost, notice);
        self.ends.push((end, Restart(host)));
    }

    fn cut(&mut self, world: &mut World, now: Time, client: usize, host: usize) {
        let end = cut(world, now, nodes(world, client, host));
        world.note(format!("cut c{client} and h{host:02}"));
        self.ends.push((end, Heal(client, host)));
    }

    /// What one of two hosts is to rebuild, it cannot read from the other.
    fn part(&mut self, world: &mut World, now: Time, host: usize) {
        let other = index(world.random.below(world.hosts.len() as u64));
        if other == host || self.is_busy(other) {
            return;
        }
        let end = cut(world, now, host_nodes(world, host, other));
        world.note(format!("cut h{host:02} and h{other:02}"));
        self.ends.push((end, Join(host, other)));
    }

    /// Breaks connections: one, or one or all while much is under way.
    fn lose(&mut self, world: &mut World, now: Time, client: usize, host: usize) {
        let (c, h) = nodes(world, client, host);
        let how = world.random.below(3);
        if how == 0 {
            return lose_one(world, c, h);
        }
        let delay_ns = world.random.between(5 * MS, 100 * MS);
        let (name, end) = if how == 1 {
            ("all", Lose(client, host))
        } else {
            ("one", LoseOne(client, host))
        };
        world.note(format!(
            "slow down and lose {name}: c{client} and h{host:02}"
        ));
        slow_down(world, client, host, Duration::from_nanos(delay_ns));
        self.ends.push((Time(now.0 + delay_ns), end));
        self.ends.push((Time(now.0 + S), Undelay(client, host)));
    }

    fn restripe(&self, world: &mut World, client: usize) {
        let k = world.clients[client].k();
        let Some(k) = self.options.another_k(k, &mut world.random) else {
            return;
        };
        let resilience = self.options.another_resilience(k, &mut world.random);
        if world.clients[client].restripe(resilience) {
            world.faults += 1;
            world.restripes += 1;
            world.note(format!("c{client} is to be restriped: {resilience}"));
        }
    }

    /// A client's disk refuses things for a while, or takes long.
    fn sicken_disk(&mut self, world: &mut World, now: Time, client: usize) {
        let is_it = |end: &End| matches!(end, Cure(other) if *other == client);
        if !self.is_backed || self.ends.iter().any(|(_, end)| is_it(end)) {
            return;
        }
        let mood = match world.random.below(6) {
            0 => Mood::Slow,
            1 => Mood::Full,
            _ => Mood::Refuses {
                percent: world.random.between(5, 100),
            },
        };
        let end = Time(now.0 + world.random.between(10 * MS, 5 * S));
        world.faults += 1;
        world.note(format!("c{client}'s disk: {mood:?}"));
        world.clients[client].set_disk_mood(mood);
        self.ends.push((end, Cure(client)));
    }

    fn trouble_client(&mut self, world: &mut World, now: Time, client: usize, kind: Kind) {
        let actor = Actor::Client(client);
        if world.is_paused(actor) {
            return;
        }
        world.faults += 1;
        world.note_loss();
        if kind == Kind::PauseClient {
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

use End::{Cure, Heal, Join, Lose, LoseOne, Relieve, Restart, Resume, Return, Undelay, Undrain};

impl Weights {
    fn draw(self, world: &mut World) -> Option<Kind> {
        let all = [
            (self.crash, Kind::Crash),
            (self.cut, Kind::Cut),
            (self.lose, Kind::Lose),
            (self.pause_host, Kind::PauseHost),
            (self.pause_client, Kind::PauseClient),
            (self.replace_client, Kind::ReplaceClient),
            (self.delay, Kind::Delay),
            (self.lose_acknowledgement, Kind::LoseAcknowledgement),
            (self.drain, Kind::Drain),
            (self.squeeze, Kind::Squeeze),
            (self.reshape, Kind::Reshape),
            (self.restripe, Kind::Restripe),
            (self.ambush, Kind::Ambush),
            (self.rot, Kind::Rot),
            (self.part, Kind::Part),
            (self.upgrade, Kind::Upgrade),
            (self.disk, Kind::Disk),
        ];
        let sum: u64 = all.iter().map(|(weight, _)| weight).sum();
        let mut at = world.random.below(sum.max(1));
        let drawn = all.iter().find(|&&(weight, _)| {
            let is_it = at < weight;
            at = at.saturating_sub(weight);
            is_it
        });
        drawn.map(|&(_, kind)| kind)
    }
}

fn drain(world: &mut World, host: usize, draining: bool) {
    world.hosts[host].drain(draining);
    let node = world.hosts[host].node;
    world.wake(node, world.net.now());
}

/// Cuts a link, in one direction or both; until when.
fn cut(world: &mut World, now: Time, (one, other): (NodeId, NodeId)) -> Time {
    let ways = world.random.below(3);
    let longest = if world.is_gentle { 6 * S } else { 30 * S };
    let end = Time(now.0 + world.random.between(10 * MS, longest));
    if ways != 1 {
        world.net.cut(one, other);
    }
    if ways != 0 {
        world.net.cut(other, one);
    }
    end
}

fn heal(world: &World, (one, other): (NodeId, NodeId)) {
    world.net.heal(one, other);
    world.net.heal(other, one);
}

/// Breaks one connection between two nodes, of those that there are.
fn lose_one(world: &mut World, client: NodeId, host: NodeId) {
    let connections = world.net.connections(client, host);
    if !connections.is_empty() {
        let lost = *world.random.pick(&connections);
        world.note(format!("lose {lost:?}"));
        world.net.lose_connection(lost);
    }
}

fn slow_down(world: &World, client: usize, host: usize, delay: Duration) {
    let (c, h) = nodes(world, client, host);
    world.net.set_extra_delay(c, h, delay);
    world.net.set_extra_delay(h, c, delay);
}

fn nodes(world: &World, client: usize, host: usize) -> (NodeId, NodeId) {
    (
        world.node(Actor::Client(client)),
        world.node(Actor::Host(host)),
    )
}

fn host_nodes(world: &World, one: usize, other: usize) -> (NodeId, NodeId) {
    (world.node(Actor::Host(one)), world.node(Actor::Host(other)))
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("an index")
}
