//! Where the manager's hosts come from: the cluster's file as it is now, or machines of a catalogue.
//!
//! The catalogue is read on a thread ([`Prices`]); providers work on threads of their own ([`Desk`]), so one that hangs
//! holds up nothing but its own machines.

mod prices;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cenote_fabric::{Time, Waker};

use self::prices::Prices;
use super::leadership::Proof;
use super::{Life, Record, Server};
use crate::fleet::{Action, Demand, Fleet, Order, Shape};
use crate::links::HostConfig;
use crate::market::{Catalogue, Source, SourceKind};
use crate::owner::HostIndex;
use crate::providers::{Desk, Machine, PROCESS_LIMIT, Provider, Task};
use crate::service::journal::{Image, KeptHost};
use crate::service::message::{ToClient, is_short};
use crate::service::question;

/// Where hosts come from, as the caller says.
pub enum Supply {
    /// The hosts of the cluster: what its file says, if that is other than at the call before.
    Cluster(ReadHosts),
    /// The machines of a catalogue.
    Market(Market),
}

/// A catalogue, and who gets its machines.
pub struct Market {
    /// Reads it, with the prices of now.
    pub read: Box<dyn FnMut() -> Result<Catalogue, String> + Send>,
    /// A provider, of whose machines these are in use already.
    pub provider: MakeProvider,
    /// Whether machines that their owner may want back are taken.
    pub is_spot_allowed: bool,
}

/// Makes the provider that a catalogue names.
pub type MakeProvider =
    Box<dyn FnMut(&Source, Vec<String>) -> Result<Box<dyn Provider>, String> + Send>;

/// Reads the hosts of a cluster's file; `None` where that is as at the call before.
pub type ReadHosts = Box<dyn FnMut() -> Option<Result<Vec<HostConfig>, String>> + Send>;

/// As the server has it.
pub(super) enum Supplier {
    Cluster(ClusterHosts),
    Market(Box<Machines>),
}

/// Hosts of the cluster's file.
pub(super) struct ClusterHosts {
    read: ReadHosts,
    look_at: Time,
    /// Hosts that are not in it any more, and have regions still.
    leaving: BTreeSet<HostIndex>,
    error: Option<String>,
}

/// Machines of a catalogue.
pub(super) struct Machines {
    fleet: Fleet,
    prices: Prices,
    make: MakeProvider,
    desks: BTreeMap<String, Desk<(Order, Asked)>>,
    look_at: Time,
    waker: Waker,
    /// Without it no provider begins anything.
    proof: Proof,
}

/// What a provider was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    ToGet,
    ToTakeBack,
}

/// Between two looks at the cluster's file.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at what machines are needed.
const FLEET_EVERY: Duration = Duration::from_millis(50);
/// For a provider that the catalogue has no more: as long as any command may be given.
const LIMIT_MAX: Duration = Duration::from_secs(3600);

impl Supplier {
    /// What was left, and what there is now. `server_threads` are those of the cache's configuration.
    pub fn begin(
        supply: Supply,
        image: &Image,
        server_threads: u32,
        epoch: u64,
        now: Time,
        waker: Waker,
        proof: Proof,
    ) -> std::io::Result<Self> {
        let mut market = match supply {
            Supply::Cluster(read) => {
                return Ok(Self::Cluster(ClusterHosts {
                    read,
                    look_at: now,
                    leaving: BTreeSet::new(),
                    error: None,
                }));
            }
            Supply::Market(market) => market,
        };
        let identity = image.identity;
        let shape = Shape {
            cache: identity.cache,
            region_bytes: identity.slab_bytes * u64::from(identity.slabs_per_region),
            slab_bytes: identity.slab_bytes,
            copies: u32::from(identity.copies),
            server_threads,
            is_spot_allowed: market.is_spot_allowed,
        };
        let read = (market.read)();
        let catalogue = read.as_ref().ok().cloned().unwrap_or_default();
        let limit = |provider: &str| match catalogue.source(provider).map(|source| &source.kind) {
            Some(SourceKind::Command { limit, .. }) => *limit,
            Some(SourceKind::Processes) => PROCESS_LIMIT,
            Some(SourceKind::Running) => Duration::ZERO,
            None => LIMIT_MAX,
        };
        let left = image.machines.clone();
        let mut fleet = Fleet::new(shape, epoch, catalogue.clone(), left, limit, now);
        fleet.set_catalogue(read);
        Ok(Self::Market(Box::new(Machines {
            fleet,
            prices: Prices::new(market.read, waker.clone())?,
            make: market.provider,
            desks: BTreeMap::new(),
            look_at: now,
            waker,
            proof,
        })))
    }

    pub fn fleet(&self) -> Option<&Fleet> {
        match self {
            Self::Cluster(_) => None,
            Self::Market(machines) => Some(&machines.fleet),
        }
    }

    pub fn fleet_mut(&mut self) -> Option<&mut Fleet> {
        match self {
            Self::Cluster(_) => None,
            Self::Market(machines) => Some(&mut machines.fleet),
        }
    }

    /// What is wrong, for people.
    pub fn troubles(&self) -> Vec<question::Trouble> {
        let trouble = |(with, what): (&str, &str)| question::Trouble {
            with: with.to_owned(),
            what: what.to_owned(),
        };
        match self {
            Self::Cluster(hosts) => {
                let error = hosts.error.iter();
                error.map(|what| trouble(("cluster file", what))).collect()
            }
            Self::Market(machines) => machines.fleet.troubles().map(trouble).collect(),
        }
    }
}

impl Server {
    /// Brings the hosts together with where they come from.
    pub(super) fn tend_supply(&mut self, now: Time) {
        if !self.leadership.holds(now) {
            return;
        }
        let Some(mut supplier) = self.supplier.take() else {
            return;
        };
        match &mut supplier {
            Supplier::Cluster(hosts) => self.tend_cluster(now, hosts),
            Supplier::Market(machines) => self.tend_machines(now, machines),
        }
        let is_changed = supplier.fleet().is_some_and(Fleet::is_changed);
        self.supplier = Some(supplier);
        let is_refused = matches!(self.record, Record::Refused { retry_at, .. } if now < retry_at);
        if (is_changed || self.has_new_hosts()) && !is_refused {
            self.keep(now);
        }
    }

    fn has_new_hosts(&self) -> bool {
        self.is_kept() && self.manager.hosts().count() != self.journal.wanted().hosts.len()
    }

    fn tend_cluster(&mut self, now: Time, hosts: &mut ClusterHosts) {
        if now < hosts.look_at {
            return;
        }
        hosts.look_at = now.after(FILE_EVERY);
        match (hosts.read)() {
            None => {}
            Some(Err(error)) => hosts.error = Some(error),
            Some(Ok(listed)) => {
                hosts.error = None;
                let names: BTreeSet<String> = listed.iter().map(|host| host.name.clone()).collect();
                for host in listed {
                    self.take_renamed(now, &host, &names);
                    self.take_host(now, host);
                }
                let known: Vec<String> = self
                    .manager
                    .hosts()
                    .map(|(host, _)| host.name.clone())
                    .collect();
                for (host, name) in known.iter().enumerate() {
                    let is_listed = names.contains(name);
                    if is_listed && hosts.leaving.remove(&host) {
                        self.manager.owner.handle_unlisted(now, host, false);
                    } else if !is_listed
                        && !self.manager.is_put_aside(host)
                        && hosts.leaving.insert(host)
                    {
                        tracing::info!(host = name, "is not in the cluster file any more");
                        self.manager.owner.handle_unlisted(now, host, true);
                    }
                }
            }
        }
        let manager = &mut self.manager;
        hosts.leaving.retain(|&host| {
            let summary = manager.owner.summary(host);
            if summary.is_empty {
                manager.drop_host(now, host);
            }
            !summary.is_empty
        });
    }

    /// A new name at the address of a host that the file has no more is that host.
    fn take_renamed(&mut self, now: Time, new: &HostConfig, names: &BTreeSet<String>) {
        if self.manager.find_host(&new.name).is_some() {
            return;
        }
        let hosts = self.manager.hosts().map(|(host, _)| host);
        let is_it = |&(number, host): &(HostIndex, &HostConfig)| {
            let is_there = host.address == new.address && !self.manager.is_put_aside(number);
            is_there && !names.contains(&host.name)
        };
        let Some((number, _)) = hosts.enumerate().find(is_it) else {
            return;
        };
        self.manager.rename_host(number, new.name.clone());
        self.keep(now);
    }

    /// A host that is new, came back, or is elsewhere by now; its number, if there is one for it.
    fn take_host(&mut self, now: Time, config: HostConfig) -> Option<HostIndex> {
        let kept = super::start::kept(&config);
        if ![&kept.name, &kept.address, &kept.domain]
            .into_iter()
            .all(|text| is_short(text))
        {
            tracing::warn!(host = kept.name, "name, address or domain are too long");
            return None;
        }
        let known = self.manager.find_host(&config.name);
        let is_same = known.is_some_and(|host| {
            let (there, _) = self.manager.hosts().nth(host).expect("it was found");
            there.address == config.address
        });
        let host = self.manager.add_host(now, config)?;
        if !is_same {
            let number = u16::try_from(host).ok()?;
            let told = ToClient::Host {
                number,
                name: kept.name,
                address: kept.address,
                domain: kept.domain,
            };
            for connected in self.connected.values_mut().filter(|one| one.has_joined()) {
                connected.outbox.tell_host(number, told.clone());
            }
        }
        Some(host)
    }

    fn tend_machines(&mut self, now: Time, machines: &mut Machines) {
        let mut ended = Vec::new();
        for desk in machines.desks.values() {
            ended.extend(std::iter::from_fn(|| desk.poll()));
        }
        let is_to_act = machines.fleet.is_changed() && self.is_kept();
        if ended.is_empty() && now < machines.look_at && !is_to_act {
            return;
        }
        let regions = match self.life {
            _ if self.is_ending() => 0,
            Life::Founding { regions, .. } => regions,
            Life::Serving | Life::Parting { .. } => self.manager.owner.wanted_regions(),
        };
        let remaining = self.manager.owner.ends_at().map(|at| at.since(now));
        let demand = Demand { regions, remaining };
        machines.look_at = now.after(FLEET_EVERY);
        for ((order, asked), result) in ended {
            match (asked, result) {
                (Asked::ToGet, Ok(Some(machine))) => {
                    self.take_machine(now, machines, order, &machine, demand)
                }
                (Asked::ToGet, Ok(None)) => {}
                (Asked::ToGet, Err(error)) => {
                    tracing::warn!(%order, %error, "no machine");
                    let why = error.to_string();
                    machines.fleet.handle_no_machine(now, order, None, &why);
                }
                (Asked::ToTakeBack, result) => {
                    let result = result.map(drop).map_err(|error| error.to_string());
                    machines.fleet.handle_released(now, order, result);
                }
            }
        }
        if let Some(read) = machines.prices.tend(now, machines.fleet.wants_prices(now)) {
            machines.fleet.set_catalogue(read);
        }
        let owner = &self.manager.owner;
        machines
            .fleet
            .handle_tick(now, &|host| owner.summary(host), demand);
        // What follows is done once the journal says so.
        while let Some(action) = machines.fleet.poll_action() {
            self.carry_out(now, machines, action);
        }
    }

    /// A provider gave a machine.
    fn take_machine(
        &mut self,
        now: Time,
        machines: &mut Machines,
        order: Order,
        machine: &Machine,
        demand: Demand,
    ) {
        if !machine.is_short() {
            let why = format!("the name, address or domain of {order} is too long");
            return machines.fleet.handle_no_machine(now, order, None, &why);
        }
        // To give one of these back by its id would take it away from who uses it, or be done twice.
        let known = self.manager.find_host(&machine.host.name);
        let is_used = known.is_some_and(|host| machines.fleet.uses(host));
        let refusal = match machines.fleet.is_given_back(order, &machine.id) {
            true => Some("is being given back"),
            false => is_used.then_some("was got already"),
        };
        if let Some(refusal) = refusal {
            let why = format!("{} {refusal}", machine.id);
            return machines.fleet.handle_no_machine(now, order, None, &why);
        }
        let domain = &machine.host.domain;
        let owner = &self.manager.owner;
        let summary = |host| owner.summary(host);
        if machines.fleet.is_useless(order, domain, &summary, demand) {
            let why = format!("{}: {domain} has a copy of each region already", machine.id);
            return machines
                .fleet
                .handle_no_machine(now, order, Some(machine), &why);
        }
        let Some(host) = self.take_host(now, machine.host.clone()) else {
            let why = format!("{}: no number is left for its host", machine.id);
            return machines
                .fleet
                .handle_no_machine(now, order, Some(machine), &why);
        };
        if known.is_some() {
            // It was emptied when it was given back.
            self.manager.owner.handle_notice_withdrawn(now, host);
        }
        tracing::info!(machine = machine.id, %order, "got a machine");
        machines.fleet.handle_acquired(now, order, machine, host);
    }

    fn carry_out(&mut self, now: Time, machines: &mut Machines, action: Action) {
        let name = |order: Order| order.name(self.settings.cache);
        match action {
            Action::Acquire(order, provider, wish) => {
                let asked = machines.desk(&provider);
                match asked {
                    Ok(desk) => desk.ask((order, Asked::ToGet), name(order), Task::Acquire(wish)),
                    Err(why) => machines.fleet.handle_no_machine(now, order, None, &why),
                }
            }
            Action::Release(order, provider, machine) => {
                tracing::info!(machine = machine.id, %order, "gives a machine back");
                machines.take_back(now, order, &provider, name(order), Task::Release(machine));
            }
            Action::Cancel(order, provider) => {
                machines.take_back(now, order, &provider, name(order), Task::Cancel);
            }
            Action::Empty(host) => self.manager.owner.handle_notice(now, host, None),
            Action::Drop(host) => self.manager.drop_host(now, host),
        }
    }

    /// The hosts as the journal has them.
    pub(super) fn kept_hosts(&self) -> Vec<KeptHost> {
        self.manager
            .hosts()
            .map(|(host, _)| super::start::kept(host))
            .collect()
    }
}

impl Machines {
    fn take_back(&mut self, now: Time, order: Order, provider: &str, name: String, task: Task) {
        match self.desk(provider) {
            Ok(desk) => desk.ask((order, Asked::ToTakeBack), name, task),
            Err(why) => self.fleet.handle_released(now, order, Err(why)),
        }
    }

    /// The desk of a provider. What its entry in the catalogue said first stays until the manager ends.
    fn desk(&mut self, provider: &str) -> Result<&Desk<(Order, Asked)>, String> {
        if !self.desks.contains_key(provider) {
            let source = self.fleet.source(provider).cloned();
            let source =
                source.ok_or_else(|| format!("the catalogue has no provider {provider}"))?;
            let shown = self.fleet.shown().map(|one| one.kept);
            let used = shown.filter(|kept| kept.provider == provider && !kept.id.is_empty());
            let used = used.map(|kept| kept.id.clone()).collect();
            let made = (self.make)(&source, used)?;
            let proof = self.proof.clone();
            let may_begin = Box::new(move || proof.holds(Time::now()));
            let desk = Desk::new(made, self.waker.clone(), may_begin);
            let desk = desk.map_err(|error| error.to_string())?;
            self.desks.insert(provider.to_owned(), desk);
        }
        Ok(&self.desks[provider])
    }
}
