//! Owner, clients, hosts and the faults between them, moved from event to event.

mod faults;
mod inspection;
mod links;
mod succession;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cenote_cache::client::Geometry;
use cenote_cache::links::{AtOnce, Caller, HostConfig};
use cenote_cache::manager::{Manager, News};
use cenote_cache::owner::{Entry, Owner, Record, Renewal, Settings};
use cenote_fabric::sim::{self, Net, SimConnector};
use cenote_fabric::{ClientId, Hello, Time};
use cenote_measure::random::Random;

use super::member::{Channel, Member, ToClient, ToOwner, Whose};
use super::model::Model;
use super::muffles::{Muffles, Muffling};
use super::{Options, Report, Tally};
use crate::cluster::host::{Host, address_of};
use crate::cluster::observer::Sightings;
use links::Links;
use succession::{Former, REIGN};

const SLAB_BYTES: u64 = 16 << 10;
const SLABS_PER_REGION: u32 = 2;
const CACHE: u128 = 0xcac4e;
/// Everybody looks at least this often.
const TICK: Duration = Duration::from_millis(3);
/// Until everything has to be whole once faults end.
const PATIENCE: Duration = Duration::from_secs(90);
/// A request may wait for as long as the worst faults in a row last.
const REQUEST_PATIENCE: Duration = Duration::from_secs(120);
const LOG_LINES: usize = 40;
/// Of clients that send batches.
const BATCH_REQUESTS: usize = 4;

/// What is to be undone, and when.
enum Repair {
    StartHost(usize),
    ResumeHost(usize),
    EndDrain(usize),
    Unmuffle(usize),
    Heal(sim::NodeId, sim::NodeId),
    EndDelay(sim::NodeId, sim::NodeId),
    KillHost(usize),
    TakeOver,
    AllowRecords,
    /// The owner has had time to see what happened while it did not look.
    OwnerLooked,
}

/// See the module's text.
pub struct World {
    options: Options,
    copies: usize,
    net: Net,
    hosts: Vec<Host>,
    configs: Vec<HostConfig>,
    settings: Settings,
    manager: Option<Manager>,
    owner_connector: SimConnector,
    muffles: Muffles,
    owner_back_at: Time,
    /// The owner's process is stopped until then.
    owner_paused_until: Time,
    /// Hosts that the owner has a session to.
    reached: Vec<bool>,
    links: Links,
    /// One that another followed while it was stopped, and that does not know yet.
    former: Option<Former>,
    /// The owner's disk takes no records.
    refuses_records: bool,
    /// One waits for that to end.
    is_record_waiting: bool,
    /// What the owner wrote down last.
    record: Option<Record>,
    epoch: u64,
    members: Vec<Member>,
    joined: u64,
    model: Model,
    random: Random,
    repairs: Vec<(Time, Repair)>,
    seen: Sightings,
    report: Report<Tally>,
    /// Clients submit at ticks alone: a load that fills the network hides nothing and costs time.
    submits: bool,
}

impl World {
    pub fn new(options: &Options) -> Self {
        let mut random = Random::new(options.seed);
        let drawn = 1 + usize::try_from(random.below(2)).expect("0 or 1");
        let copies = options.copies.unwrap_or(drawn);
        let net = Net::new(options.seed, sim::Config::default());
        let seen = Sightings::default();
        let slabs = options.regions * SLABS_PER_REGION * 2;
        let host = |index| Host::new(&net, index, (slabs, SLAB_BYTES, false), &seen);
        let hosts: Vec<Host> = (0..options.hosts).map(host).collect();
        let config = |index: usize| HostConfig {
            name: format!("h{index}"),
            address: address_of(index),
            domain: format!("d{}", if copies == 2 { index / 2 } else { index }),
        };
        let configs: Vec<HostConfig> = (0..options.hosts).map(config).collect();
        let member = |index| Member::new(net.client(&format!("c{index}")));
        let members: Vec<Member> = (0..options.clients).map(member).collect();
        let settings = Settings {
            cache: CACHE,
            slab_bytes: SLAB_BYTES,
            slabs_per_region: SLABS_PER_REGION,
            copies,
            give_up_after: Duration::from_secs(8),
        };
        let region_bytes = settings.region_bytes();
        let bytes = region_bytes * u64::from(options.regions);
        let owner_connector = net.client("owner");
        let mut world = Self {
            options: options.clone(),
            copies,
            hosts,
            configs,
            settings,
            manager: None,
            owner_connector,
            muffles: (0..options.hosts).map(|_| AtomicBool::new(false)).collect(),
            owner_back_at: Time(0),
            owner_paused_until: Time(0),
            reached: Vec::new(),
            links: Links::new(options.hosts, &mut Random::new(options.seed)),
            former: None,
            refuses_records: false,
            is_record_waiting: false,
            record: None,
            epoch: 0,
            members,
            joined: 0,
            model: Model::new(bytes, region_bytes, options.clients),
            random,
            repairs: Vec::new(),
            seen,
            report: Report::new(options.seed),
            submits: false,
            net,
        };
        world.report.tally.copies = copies;
        // A write whose connection breaks may land, in part and late.
        world.net.set_late(Some(sim::Late {
            chance_ppm: 600_000,
            torn_ppm: 300_000,
            delay_ns_max: 1_500_000_000,
        }));
        world.start_owner();
        for client in 0..options.clients {
            world.start_client(client);
        }
        world
    }

    /// Faults, then rest, then everything read back.
    pub fn run(mut self) -> Report<Tally> {
        let begin = Duration::from_secs(3);
        self.run_for(begin);
        self.begin_faults();
        let end = self.net.now().after(self.options.duration);
        while self.net.now() < end && !self.report.is_broken() {
            let pause = self.random.between(100, 1500);
            self.run_for(Duration::from_millis(pause));
            if !self.report.is_broken() {
                self.trouble();
            }
        }
        self.end_faults();
        self.rest();
        self.read_back();
        self.compare_copies();
        if self.copies == 2 && !self.report.is_broken() {
            let domain = usize::try_from(self.random.below(self.hosts.len() as u64 / 2));
            let first = domain.expect("an index") * 2;
            self.note(format!("domain of h{first} dies for good"));
            self.kill_host(first, sim::Notice::AtOnce);
            self.kill_host(first + 1, sim::Notice::AtOnce);
            self.repairs.clear();
            self.run_for(Duration::from_secs(5));
            self.read_back();
        }
        self.report.tally.trace_hash = format!("{:016x}", self.net.trace_hash());
        self.report
    }

    fn note(&mut self, what: String) {
        let at = Duration::from_nanos(self.net.now().0);
        self.report.note(format!("{at:?}: {what}"), LOG_LINES);
    }

    fn violate(&mut self, what: String) {
        self.note(what.clone());
        self.report.violate(what);
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.net.now().after(time);
        let mut tick_at = self.net.now();
        let mut ready = Vec::new();
        while !self.report.is_broken() {
            let event = self.net.next_event().unwrap_or(Time(u64::MAX));
            if event.min(tick_at) > end {
                self.net.advance_to(end);
                return;
            }
            if event <= tick_at {
                let _happened = self.net.step();
                self.net.take_ready(&mut ready);
                let is_any = !ready.is_empty();
                let woken: Vec<sim::NodeId> = std::mem::take(&mut ready);
                if is_any {
                    self.turn(|node| woken.contains(&node));
                }
            } else {
                self.net.advance_to(tick_at);
                tick_at = tick_at.after(TICK);
                self.undo_due();
                self.submits = true;
                self.turn(|_| true);
                self.submits = false;
            }
        }
    }

    /// Lets those run whose node is meant.
    fn turn(&mut self, is_meant: impl Fn(sim::NodeId) -> bool) {
        for host in &mut self.hosts {
            if is_meant(host.node) {
                host.turn();
            }
        }
        if is_meant(self.owner_connector.node()) {
            self.turn_owner();
        }
        if self
            .former
            .as_ref()
            .is_some_and(|former| is_meant(former.node()))
        {
            self.turn_former();
        }
        for client in 0..self.members.len() {
            if is_meant(self.members[client].connector.node()) {
                self.turn_client(client);
            }
        }
        let mut broken = self.net.take_broken();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        broken.append(&mut seen.broken);
        drop(seen);
        if let Some(what) = broken.into_iter().next() {
            self.violate(what);
        }
    }

    fn start_owner(&mut self) {
        let now = self.net.now();
        self.epoch += 1;
        let caller = Caller {
            connector: Arc::new(self.owner_connector.clone()),
            hello: Hello {
                client: ClientId(1000 + u128::from(self.epoch)),
                name: "owner".to_owned(),
            },
            with_data: false,
        };
        let dial = Box::new(Muffling {
            dial: AtOnce::new(caller),
            muffles: Arc::clone(&self.muffles),
        });
        let (settings, configs) = (self.settings, self.configs.clone());
        let manager = match self.record.clone() {
            None => {
                let domains = Manager::domains(&configs);
                let owner = Owner::new(settings, self.options.regions, &domains, now);
                Manager::new(owner, settings, self.epoch, configs, dial)
            }
            Some(record) => Manager::recover(record, settings, self.epoch, configs, dial, now)
                .expect("an owner's record is sound"),
        };
        self.is_record_waiting = false;
        self.manager = Some(manager);
    }

    fn start_client(&mut self, client: usize) {
        let geometry = Geometry {
            slab_bytes: SLAB_BYTES,
            slabs_per_region: SLABS_PER_REGION,
        };
        let id = self.random.u128();
        let batches = self.options.is_batched.then_some(BATCH_REQUESTS);
        self.members[client].start(geometry, &self.configs, id, batches, REQUEST_PATIENCE);
    }

    fn turn_owner(&mut self) {
        let now = self.net.now();
        if now < self.owner_paused_until {
            return;
        }
        if self.owner_paused_until != Time(0) {
            self.owner_paused_until = Time(0);
            self.later(3000, 3001, Repair::OwnerLooked);
            self.net.resume(self.owner_connector.node());
        }
        if self.manager.is_none() && now >= self.owner_back_at {
            self.net.restart_client(self.owner_connector.node());
            self.start_owner();
            self.note("another owner".to_owned());
        }
        let Some(mut manager) = self.manager.take() else {
            return;
        };
        self.hear_all(&mut manager, Whose::Current, now);
        manager.owner.handle_reign(now.after(REIGN));
        manager.step(now);
        if self.is_record_waiting {
            self.pass_on(&mut manager, News::Record, now);
        }
        // Also in a release build, where the owner leaves it out.
        manager.owner.audit();
        while let Some(news) = manager.take_news() {
            self.pass_on(&mut manager, news, now);
        }
        self.note_reached(&manager);
        self.manager = Some(manager);
    }

    fn note_reached(&mut self, manager: &Manager) {
        let reached: Vec<bool> = manager.hosts().map(|(_, is_up)| is_up).collect();
        let before = std::mem::replace(&mut self.reached, reached);
        for host in 0..self.reached.len() {
            let is_up = self.reached[host];
            if before.get(host).is_some_and(|&was| was != is_up) {
                let what = if is_up { "reaches" } else { "has lost" };
                self.note(format!("the owner {what} h{host}"));
            }
        }
    }

    fn hear_all(&mut self, manager: &mut Manager, whose: Whose, now: Time) {
        for client in 0..self.members.len() {
            while self.members[client].owner == whose
                && now >= self.members[client].deaf_until
                && let Some(message) = self.members[client].to_owner.take(now)
            {
                self.hear(manager, client, message, now);
            }
        }
    }

    fn hear(&mut self, manager: &mut Manager, client: usize, message: ToOwner, now: Time) {
        let number = self.members[client].number;
        match message {
            ToOwner::Join => {
                self.joined += 1;
                let member = &mut self.members[client];
                member.to_client.clear();
                member.number = self.joined;
                let is_taken = manager.owner.handle_client_joined(now, self.joined);
                assert!(is_taken, "few clients");
            }
            ToOwner::Alive(asked_at) => {
                let answer = match manager.owner.handle_client_alive(now, number) {
                    Renewal::Granted => ToClient::Lease(asked_at),
                    Renewal::Withheld => return,
                    Renewal::Unknown => ToClient::Unknown,
                    Renewal::Superseded => ToClient::Superseded,
                };
                // What it was told before comes before.
                manager.flush(now);
                while let Some(news) = manager.take_news() {
                    self.pass_on(manager, news, now);
                }
                if self.is_record_waiting && manager.epoch() == self.epoch {
                    return;
                }
                let delay = Channel::<ToClient>::delay(&mut self.random);
                self.members[client].to_client.send(now, delay, answer);
            }
            ToOwner::Doubt(region, generation) => {
                let region = region as usize;
                manager.owner.handle_doubt(now, number, region, generation);
            }
            ToOwner::Known(region, generation) => {
                let region = region as usize;
                manager.owner.handle_known(now, number, region, generation);
            }
            ToOwner::Trouble(host) => manager.handle_trouble(host),
        }
    }

    fn pass_on(&mut self, manager: &mut Manager, news: News, now: Time) {
        match news {
            // What keeps owners apart keeps their records apart, too.
            News::Record if manager.epoch() < self.epoch => {}
            News::Record if self.refuses_records => self.is_record_waiting = true,
            News::Record => {
                let record = manager.record();
                self.look(&record.entries);
                self.record = Some(record);
                self.is_record_waiting = false;
                manager.confirm_record(now);
            }
            News::Tell { client, entry } => {
                let delay = Channel::<ToClient>::delay(&mut self.random);
                let member = self.members.iter_mut().find(|m| m.number == client);
                if let Some(member) = member {
                    member.to_client.send(now, delay, ToClient::Entry(entry));
                }
            }
        }
    }

    /// What the owner's table says to the model: what was lost, and that nothing may have been.
    fn look(&mut self, entries: &[Entry]) {
        for entry in entries {
            let region = entry.region as usize;
            if entry.losses > self.model.losses(region) {
                self.report.tally.losses += 1;
                self.note(format!("region {region} lost its bytes"));
                if self.copies == 2 {
                    self.violate(format!("region {region} is lost, and had two copies"));
                }
                self.model.lose(region, entry.losses);
            }
            let before = self
                .record
                .as_ref()
                .and_then(|record| record.entries.get(region));
            let is_new = |before: &Entry| {
                let had = |host| before.copies.iter().any(|copy| copy.host == host);
                let is_copied = !before.copies.is_empty() && before.losses == entry.losses;
                is_copied && entry.copies.iter().any(|copy| !had(copy.host))
            };
            let is_moved = before.is_some_and(is_new);
            self.report.tally.moves += u64::from(is_moved);
        }
    }

    fn turn_client(&mut self, client: usize) {
        let now = self.net.now();
        let member = &mut self.members[client];
        if now < member.paused_until {
            return;
        }
        if member.paused_until != Time(0) {
            member.paused_until = Time(0);
            self.net.resume(member.connector.node());
        }
        let by = self.submits.then_some(client);
        let outcome = member.turn(now, by, &mut self.model, &mut self.random);
        self.report.tally.requests += outcome.requests;
        self.report.tally.failed += outcome.failed.len() as u64;
        if let Some(what) = outcome.wrong {
            self.violate(format!("c{client}: {what}"));
        }
        for what in outcome.failed {
            self.violate(format!("c{client}: a request failed: {what}"));
        }
    }

    /// Faults end; everything has to become whole, and every request to end.
    fn rest(&mut self) {
        if self.report.is_broken() {
            return;
        }
        self.note("faults end".to_owned());
        self.members
            .iter_mut()
            .for_each(|member| member.is_busy = false);
        let end = self.net.now().after(PATIENCE);
        loop {
            // What was begun ends by itself, in its time.
            self.run_for(Duration::from_millis(500));
            let is_whole = |manager: &Manager| manager.owner.is_settled();
            // One that is stopped for long holds up nobody before leases end.
            let is_done = self.repairs.is_empty()
                && self.owner_paused_until == Time(0)
                && self.manager.as_ref().is_some_and(is_whole)
                && self.members.iter().all(|member| member.outstanding() == 0);
            if is_done || self.report.is_broken() {
                return;
            }
            if self.net.now() > end {
                let requests: usize = self.members.iter().map(Member::outstanding).sum();
                let what = format!("{requests} requests hang: {}", self.what_lacks());
                return self.violate(what);
            }
        }
    }

    /// For who reads a report: where every region is.
    fn what_lacks(&self) -> String {
        let entries = self.manager.as_ref().map(|manager| {
            let stages = 0..self.options.regions as usize;
            let stages: Vec<_> = stages.map(|r| manager.owner.stage(r)).collect();
            format!("{stages:?} {:?}", manager.owner.entries())
        });
        format!("{entries:?}")
    }

    /// Every client reads everything.
    fn read_back(&mut self) {
        if self.report.is_broken() {
            return;
        }
        let now = self.net.now();
        for member in &mut self.members {
            member.read_all(now, &self.model);
        }
        self.run_for(Duration::from_secs(10));
        let left: usize = self.members.iter().map(Member::outstanding).sum();
        if left > 0 {
            self.violate(format!("{left} reads of everything hang"));
        }
    }
}
