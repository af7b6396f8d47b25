//! A store and its clients on the simulated network: the real server, the real clients, and what may happen
//! to either.
//!
//! Clients die, stall and come back, connections break, links are cut, READs are torn, and the power of the
//! store's machine fails at any boundary of its medium. What is checked is what [`super`] checks, from
//! the clients' side: a value that is read was written whole by somebody, and nothing that was read, or told
//! as durable, goes away.

mod member;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::sim::{self, Late, LinkModel, Memory, Net, Notice, Serving, SimAnswerer};
use cenote_fabric::sim::{Config, SimListener, Torn};
use cenote_fabric::{Address, ClusterKey, Listen as _, Time, WireProtection};
use cenote_measure::random::Random;
use cenote_store::schemes::{Durable, GetStep, Named, PutStep, Scheme, by_name};
use cenote_store::{ModelMedium, Pool, PoolConfig, ServerConfig, ServerParts};
use serde::Serialize;

use super::oracle::{Checked, Oracle};
use member::Member;

/// Small, so that the log is cleaned many times.
const POOL_BYTES: usize = 96 << 10;
const POOL: PoolConfig = PoolConfig {
    entry_count: 32,
    seed: 42,
};
const SHARDS: usize = 2;
const CLIENTS: u64 = 3;
/// Of a workload.
const STEPS: u32 = 6_000;
pub(super) const KEYS: u64 = 6;
/// How long a value may take to come: the network's own troubles last longer.
const PATIENCE: Duration = Duration::from_millis(20);

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Ran {
    /// Commands that ended well.
    pub done: u64,
    /// Commands whose connection broke.
    pub lost: u64,
    /// GETs that READs alone answered, and those that asked.
    pub gets: (u64, u64),
    /// Powers cut.
    pub crashes: u64,
}

/// What came of a scheme under so many storms.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Storms {
    /// The scheme.
    pub scheme: String,
    /// Workloads.
    pub rounds: u64,
    /// What was done in them, and to them.
    #[serde(flatten)]
    pub ran: Ran,
    /// Each with its seed.
    pub violations: Vec<String>,
}

/// Whether reads of a scheme promise anything: those that see neither a flag nor a checksum, of versions
/// that are named before their values are there, do not.
#[must_use]
pub fn promises_anything(scheme: &dyn Scheme) -> bool {
    let looks = |step: &GetStep| !matches!(step, GetStep::ReadEntry | GetStep::ReadObject);
    scheme.named() == Named::WhenDurable || scheme.get_steps().iter().any(looks)
}

/// Runs so many workloads from `seed` on, up to the first that breaks a promise; `on_round` hears of each.
#[must_use]
pub fn storms(
    scheme: &dyn Scheme,
    seed: u64,
    rounds: u64,
    on_round: &mut dyn FnMut(u64),
) -> Storms {
    let mut storms = Storms {
        scheme: scheme.name().to_owned(),
        ..Storms::default()
    };
    for seed in (seed..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        match run(scheme, seed, STEPS) {
            Ok(ran) => storms.ran.add(ran),
            Err(wrong) => {
                storms.violations.push(format!("seed {seed}: {wrong}"));
                break;
            }
        }
        storms.rounds += 1;
        on_round(storms.rounds);
    }
    storms
}

impl Ran {
    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.lost += other.lost;
        self.crashes += other.crashes;
        self.gets = (self.gets.0 + other.gets.0, self.gets.1 + other.gets.1);
    }
}

type Parts = ServerParts<ModelMedium, SimListener, SimAnswerer>;

struct World {
    net: Net,
    random: Random,
    scheme: Arc<dyn Scheme>,
    /// `None` while its machine is off.
    server: Option<Parts>,
    host: cenote_fabric::sim::NodeId,
    /// What survived, while it is off.
    media: Vec<ModelMedium>,
    back_at: Time,
    members: Vec<Member>,
    oracle: Oracle,
    troubles: Vec<(Time, Trouble)>,
    ran: Ran,
}

/// What is wrong for a while.
enum Trouble {
    Cut(usize),
    Slow(usize),
    HostPaused,
    MemberPaused(usize),
}

/// Runs a store and its clients for so many steps; then all troubles end, and every key is read.
///
/// # Errors
/// The promise that was broken.
fn run(scheme: &dyn Scheme, seed: u64, steps: u32) -> Result<Ran, String> {
    let mut world = World::new(scheme, seed)?;
    if std::env::var_os(HISTORY).is_some() {
        world.oracle.history = Some(Vec::new());
    }
    let storm = |world: &mut World| {
        for step in 0..steps {
            let stepped = world.step(true);
            stepped.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        world.settle()?;
        // A value that a client writes into the log itself may come late, and be found after a crash.
        let is_written_late =
            scheme.put_steps().contains(&PutStep::CallForSpace) && !scheme.lands_beside_log();
        match is_written_late {
            true => Ok(()),
            false => world.oracle.check_replaced(),
        }
    };
    let ended = storm(&mut world);
    for event in world.oracle.history.iter().flatten() {
        eprintln!("{event}");
    }
    ended.map(|()| world.ran)
}

/// With this in the environment all that clients asked and were told goes to standard error.
const HISTORY: &str = "CENOTE_LAB_HISTORY";

/// Clients go by it: of a store over TCP calls carry values.
fn address(seed: u64) -> Address {
    let text = match seed % 4 {
        3 => "tcp:127.0.0.1:1",
        _ => "shm:/sim/store",
    };
    text.parse().expect("an address")
}

impl World {
    fn new(scheme: &dyn Scheme, seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let link = LinkModel::default();
        let serving = match random.below(2) {
            0 => Serving::Card,
            _ => Serving::Agent,
        };
        let config = Config {
            link,
            serving,
            ..Config::default()
        };
        let net = Net::new(seed, config);
        let address = address(seed);
        let listener = net.host(address.clone(), "store");
        let host = listener.node();
        let unit = *random.pick(&super::UNITS);
        let mut media = Vec::new();
        for _ in 0..SHARDS {
            let made = Pool::create(ModelMedium::new(POOL_BYTES, unit), POOL);
            let made = made.map_err(|error| error.to_string())?;
            media.push(ModelMedium::clone(made.medium()));
        }
        net.set_torn_reads(Some(Torn {
            chance_ppm: 400_000,
            delay_ns_max: 40_000,
        }));
        net.set_late(Some(Late {
            chance_ppm: 500_000,
            torn_ppm: 300_000,
            delay_ns_max: 50_000_000,
        }));
        let members = (0..CLIENTS)
            .map(|number| Member::new(&net, number, &address))
            .collect();
        let mut world = Self {
            net,
            random,
            scheme: Arc::from(by_name(scheme.name()).ok_or("an unknown scheme")?),
            server: None,
            host,
            media,
            back_at: Time(0),
            members,
            oracle: Oracle::default(),
            troubles: Vec::new(),
            ran: Ran::default(),
        };
        world.start(listener)?;
        Ok(world)
    }

    /// The store's machine comes up with what survived.
    fn start(&mut self, mut listener: SimListener) -> Checked {
        let mut pools = Vec::new();
        for medium in self.media.drain(..) {
            let medium = medium.shared().map_err(|error| error.to_string())?;
            let opened = Pool::open_with(medium, Some(super::SECRET));
            let (pool, _) = opened.map_err(|error| format!("recovery: {error}"))?;
            if self.random.below(3) > 0 {
                pool.medium().crash_at(Some(self.random.below(3000)));
            }
            pools.push(pool);
        }
        let config = ServerConfig {
            addresses: Vec::new(),
            key: ClusterKey::generate().map_err(|error| error.to_string())?,
            scheme: Arc::clone(&self.scheme),
            threads: 1,
            landing_bytes: 4096,
            patience: PATIENCE,
            page_traffic: WireProtection::default(),
        };
        let answerer = listener.answerer().map_err(|error| error.to_string())?;
        let answerers = vec![(answerer, listener.waker())];
        let parts = ServerParts::new(pools, listener, answerers, &config);
        self.server = Some(parts.map_err(|error| error.to_string())?);
        self.oracle.begin_life();
        self.oracle.note(|| "the store is up".to_owned());
        Ok(())
    }

    /// Some time passes, and everybody does what there is to do.
    fn step(&mut self, is_stormy: bool) -> Checked {
        let pause = match self.random.below(200) {
            // Long enough for whatever gives up.
            0 => Duration::from_millis(self.random.between(1, 3000)),
            1..20 => Duration::from_micros(self.random.between(50, 2000)),
            _ => Duration::from_nanos(self.random.between(100, 15_000)),
        };
        let until = self.net.now().after(pause);
        // The server looks at what comes when it comes, but for the time that it takes to.
        while self.net.next_event().is_some_and(|next| next <= until) && self.net.step() {
            if self.random.below(3) == 0 {
                self.serve()?;
            }
        }
        self.net.advance_to(until);
        if is_stormy {
            self.trouble();
        }
        self.end_troubles(is_stormy);
        if self.server.is_none() && self.net.now() >= self.back_at {
            let listener = self.net.restart(self.host);
            self.start(listener)?;
        }
        self.serve()?;
        if self.random.below(4) == 0 {
            // While there is more to do the thread does not rest.
            for _ in 0..self.random.between(1, 3) {
                self.persist()?;
            }
        }
        let promises = member::Promises {
            scheme: &*self.scheme,
            is_durable: self.scheme.durable() != Durable::Never,
        };
        for member in &mut self.members {
            member.step(
                &self.net,
                &mut self.random,
                &mut self.oracle,
                &promises,
                is_stormy,
                &mut self.ran,
            )?;
        }
        match self.net.take_broken() {
            broken if broken.is_empty() => Ok(()),
            broken => Err(format!("the network: {broken:?}")),
        }
    }

    fn serve(&mut self) -> Checked {
        if self.is_paused() {
            return Ok(());
        }
        let Some(server) = self.server.as_mut() else {
            return Ok(());
        };
        let turned = server.turn(sim::now);
        turned.map_err(|error| format!("the server: {error}"))
    }

    fn is_paused(&self) -> bool {
        let mut troubles = self.troubles.iter();
        troubles.any(|(_, trouble)| matches!(trouble, Trouble::HostPaused))
    }

    fn persist(&mut self) -> Checked {
        if self.is_paused() {
            return Ok(());
        }
        let now = self.net.now();
        let Some(server) = self.server.as_mut() else {
            return Ok(());
        };
        match server.persist(now) {
            Ok(()) => Ok(()),
            Err(cenote_store::StoreError::Io(_)) => {
                self.crash();
                Ok(())
            }
            Err(error) => Err(format!("the persister: {error}")),
        }
    }

    /// The power fails.
    fn crash(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        let random = &mut self.random;
        self.media = server
            .media()
            .map(|medium| medium.crashed(|| random.below(2) == 0))
            .collect();
        let notice = match random.below(2) {
            0 => Notice::AtOnce,
            _ => Notice::BySilence,
        };
        self.net.crash(self.host, Memory::Lost, notice);
        drop(server);
        self.back_at = self
            .net
            .now()
            .after(Duration::from_micros(random.below(5_000)));
        self.ran.crashes += 1;
    }

    fn trouble(&mut self) {
        let member = self.random.below(CLIENTS) as usize;
        let node = self.members[member].node();
        let lasts = match self.random.below(4) {
            0 => Duration::from_millis(self.random.between(1, 5_000)),
            _ => Duration::from_micros(self.random.between(1, 5_000)),
        };
        let until = self.net.now().after(lasts);
        let trouble = match self.random.below(3_000) {
            0 => return self.crash(),
            1..4 => return self.members[member].die(&self.net, &mut self.random),
            4..10 => return self.net.lose_connections(node, self.host),
            10..13 => {
                self.net.cut(node, self.host);
                if self.random.below(2) == 0 {
                    self.net.cut(self.host, node);
                }
                Trouble::Cut(member)
            }
            13..20 => {
                let delay = Duration::from_micros(self.random.below(300));
                self.net.set_extra_delay(node, self.host, delay);
                Trouble::Slow(member)
            }
            20..22 => {
                self.net.pause(self.host);
                Trouble::HostPaused
            }
            22..25 => {
                self.net.pause(node);
                self.members[member].is_paused = true;
                Trouble::MemberPaused(member)
            }
            _ => return,
        };
        self.troubles.push((until, trouble));
    }

    fn end_troubles(&mut self, is_stormy: bool) {
        let now = self.net.now();
        let over = |(until, _): &(Time, Trouble)| *until <= now || !is_stormy;
        let (over, left): (Vec<_>, Vec<_>) = self.troubles.drain(..).partition(over);
        self.troubles = left;
        for (_, trouble) in over {
            match trouble {
                Trouble::Cut(member) => {
                    let node = self.members[member].node();
                    self.net.heal(node, self.host);
                    self.net.heal(self.host, node);
                }
                Trouble::Slow(member) => {
                    let node = self.members[member].node();
                    self.net.set_extra_delay(node, self.host, Duration::ZERO);
                }
                Trouble::HostPaused => {
                    if !self.is_paused() {
                        self.net.resume(self.host);
                    }
                }
                Trouble::MemberPaused(member) => {
                    self.net.resume(self.members[member].node());
                    self.members[member].is_paused = false;
                }
            }
        }
    }

    /// All is well from here on: whatever is under way ends, and each key is read once more.
    fn settle(&mut self) -> Checked {
        self.net.set_torn_reads(None);
        if let Some(server) = &self.server {
            server.media().for_each(|medium| medium.crash_at(None));
        }
        for member in &mut self.members {
            member.begin_last_reads();
        }
        for _ in 0..200_000 {
            self.step(false)?;
            if let Some(server) = &self.server {
                server.media().for_each(|medium| medium.crash_at(None));
            }
            if self.members.iter().all(Member::is_done) {
                return Ok(());
            }
        }
        let stuck: Vec<String> = self.members.iter().map(Member::describe).collect();
        Err(format!("commands that never end: {stuck:?}"))
    }
}
