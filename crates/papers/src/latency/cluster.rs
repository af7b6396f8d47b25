//! Hosts and one volume, whose one worker has one page under way.

mod trouble;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use cenote_fabric::sim::{Config, Net, SimConnector};
use cenote_fabric::{ClientId, Time, sim};
use cenote_measure::random::Random;
use cenote_sim::cluster::dialer::Dialing;
use cenote_sim::cluster::disk::Disk;
use cenote_sim::cluster::host::{Host, address_of};
use cenote_volume::{
    Backing, HostConfig, Op, PAGE_BYTES, Placement, Protection, RETURN_MAX, Request, Resilience,
    Scheme, Stepped, Switches, VolumeConfig, Worker,
};

use super::costs::{self, Costs};
use super::{FLOW_HOSTS, Network, Operation};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What the volume expects of its hosts.
    pub resilience: Resilience,
    /// What of the page path is on.
    pub switches: Switches,
    /// How the hosts of its stripes are chosen.
    pub placement: Placement,
    /// What the processor's work costs; 0: nothing.
    pub costs: Costs,
    /// Hosts; `None`: some more than the scheme needs.
    pub hosts: Option<usize>,
    /// Whether a disk is behind the volume, and how long it takes for a page.
    pub disk_ns: Option<u64>,
    /// Pages of the volume: few, so that it is quickly written; none of the model depends on it.
    pub pages: u64,
}

impl Setup {
    /// Everything on, at no cost.
    pub fn of(scheme: Scheme) -> Self {
        Self {
            resilience: Resilience::of(scheme),
            switches: Switches::default(),
            placement: Placement::over_all_hosts(scheme.r()),
            costs: Costs::default(),
            hosts: None,
            disk_ns: None,
            pages: PAGES,
        }
    }

    /// The same with a disk behind it, by kernel threads that are woken: Infiniswap's.
    pub fn on_disk(self, disk_ns: u64) -> Self {
        Self {
            disk_ns: Some(disk_ns),
            switches: Switches {
                run_to_completion: false,
                in_place: false,
                ..Switches::default()
            },
            ..self
        }
    }
}

/// A volume on hosts, in virtual time.
pub struct Cluster {
    net: Net,
    connector: SimConnector,
    hosts: Vec<Host>,
    dialing: Dialing,
    volume: Stepped,
    /// Until it is dropped.
    worker: Option<Worker>,
    random: Random,
    /// When everybody's timers are looked at next.
    tick_at: Time,
    tag: u64,
    /// The page's bytes, back from the last request.
    buffer: Vec<u8>,
    setup: Setup,
    disk: Disk,
    /// The client has had something to poll since it was last charged for waking up.
    is_rung: bool,
}

/// Pages of a volume, where nothing else is said.
const PAGES: u64 = 64;
/// So small that extents lie on many choices of hosts.
const SLAB_BYTES: u64 = PAGE_BYTES as u64;
/// Hosts of a cluster, where the scheme does not need more.
const HOSTS: usize = 12;
/// Timers are due at this grain: pings, leases.
const TICK: Duration = Duration::from_millis(100);
/// Virtual time in which the volume must be up, and a page be done.
const PATIENCE: Duration = Duration::from_secs(10);

impl Cluster {
    /// A volume in which every page is written, over a quiet network.
    pub fn new(seed: u64, setup: Setup) -> Result<Self> {
        let scheme = setup.resilience.scheme();
        let net = Net::new(seed, Config::default());
        let mut random = Random::new(seed);
        let seen = cenote_sim::cluster::observer::Sightings::default();
        let count = setup
            .hosts
            .unwrap_or(HOSTS.max(scheme.members() + FLOW_HOSTS));
        let pages = setup.pages;
        let slabs = u32::try_from(pages)?;
        // One extent, where it is to go all at once.
        let slab_bytes = match setup.disk_ns {
            Some(_) => pages * PAGE_BYTES as u64,
            None => SLAB_BYTES,
        };
        let hosts: Vec<Host> = (0..count)
            .map(|index| Host::new(&net, index, (slabs, slab_bytes, false), &seen))
            .collect();
        let connector = net.client("client");
        let dialing = Dialing::new(Arc::new(connector.clone()));
        let known = |(index, host): (usize, &Host)| HostConfig {
            lends: true,
            name: host.name.clone(),
            address: address_of(index),
            domain: host.name.clone(),
            power: None,
            retired: false,
        };
        let size_bytes = pages * PAGE_BYTES as u64;
        let config = VolumeConfig {
            name: "latency".into(),
            id: random.u128(),
            protection: Protection::None,
            resilience: setup.resilience,
            placement: setup.placement,
            size_bytes,
            size_bytes_max: size_bytes,
            hosts: hosts.iter().enumerate().map(known).collect(),
            return_max: RETURN_MAX,
        };
        let client = ClientId(random.u128());
        let disk = Disk::steady(seed, setup.disk_ns.unwrap_or(1));
        let orders = dialing.orders();
        let volume = if setup.disk_ns.is_some() {
            let backing = Backing {
                hot_slab: 0.0,
                ..disk.backing()
            };
            Stepped::open_backed(config, backing, slab_bytes, client, orders, sim::now)?
        } else {
            Stepped::open(config, slab_bytes, client, orders, sim::now)?
        };
        let mut cluster = Self {
            net,
            connector,
            hosts,
            dialing,
            volume,
            worker: None,
            random,
            tick_at: Time(0),
            tag: 0,
            buffer: vec![0; PAGE_BYTES],
            setup,
            disk,
            is_rung: false,
        };
        cluster.come_up(count)?;
        Ok(cluster)
    }

    fn come_up(&mut self, hosts: usize) -> Result<()> {
        while self.volume.connected_count() < hosts {
            ensure!(
                self.net.now() < Time(0).after(PATIENCE),
                "hosts are not reached"
            );
            self.step();
        }
        let mut worker = self.volume.worker()?;
        worker.set_switches(self.setup.switches);
        worker.set_meter(costs::charge);
        self.worker = Some(worker);
        // With a disk behind it, the first writes of an extent go there alone.
        let rounds = if self.setup.disk_ns.is_some() { 2 } else { 1 };
        let pages = self.setup.pages;
        for page in (0..rounds).flat_map(|_| 0..pages) {
            self.write(page)?;
        }
        costs::set(&self.net, self.setup.costs);
        Ok(())
    }

    /// Ends the host that has the first split of the first extent, with its memory, and has the
    /// volume find out.
    pub fn lose_host(&mut self) -> Result<()> {
        let seats = self.volume.seats();
        let seat = seats.first().ok_or_else(|| anyhow!("nothing is mapped"))?;
        let at = seat.host;
        self.kill(at, sim::Notice::AtOnce);
        self.pass(self.net.now().after(TICK * 3));
        Ok(())
    }

    /// Ends a host, with its memory.
    pub fn kill(&mut self, host: usize, notice: sim::Notice) {
        let net = self.net.clone();
        self.hosts[host].crash(&net, sim::Memory::Lost, notice);
    }

    /// Has two hosts reach each other no more, though the client reaches both; or again.
    #[cfg(test)]
    pub fn part(&mut self, one: usize, other: usize, are_parted: bool) {
        let (one, other) = (self.hosts[one].node, self.hosts[other].node);
        for (from, to) in [(one, other), (other, one)] {
            if are_parted {
                self.net.cut(from, to);
            } else {
                self.net.heal(from, to);
            }
        }
        if are_parted {
            self.net.lose_connections(one, other);
        }
    }

    /// Has every message to a host be late.
    pub fn slow_down(&mut self, host: usize, delay: Duration) {
        let (client, host) = (self.connector.node(), self.hosts[host].node);
        self.net.set_extra_delay(client, host, delay);
    }

    /// The worker that measures, for somebody else.
    #[cfg(test)]
    pub fn take_worker(&mut self) -> Option<Worker> {
        self.worker.take()
    }

    #[cfg(test)]
    pub fn now(&self) -> Time {
        self.net.now()
    }

    #[cfg(test)]
    pub fn volume(&mut self) -> &mut Stepped {
        &mut self.volume
    }

    /// Has the network be another from now on.
    pub fn set_network(&mut self, network: Network) {
        let client = self.connector.node();
        for (index, host) in self.hosts.iter().enumerate() {
            self.net.set_link(client, host.node, network.link());
            self.net.set_link(host.node, client, network.link());
            if index < FLOW_HOSTS {
                self.net.set_nic(host.node, network.busy_card());
            }
        }
    }

    /// Reads or writes a page at random; how long that took, in nanoseconds.
    pub fn measure(&mut self, operation: Operation) -> Result<u64> {
        // Not in step with the flows.
        let pause_ns = self.random.below(10_000);
        self.pass(self.net.now().after(Duration::from_nanos(pause_ns)));
        self.settle()?;
        let page = self.random.below(self.setup.pages);
        match operation {
            Operation::Read => self.read(page),
            Operation::Write => self.write(page),
        }
    }

    /// Has what was acknowledged early land, as it does while a thread polls.
    pub fn settle(&mut self) -> Result<()> {
        loop {
            let worker = self.worker()?;
            worker.poll(&mut Vec::new());
            if worker.landing_pages().next().is_none() {
                return Ok(());
            }
            self.step();
        }
    }

    fn read(&mut self, page: u64) -> Result<u64> {
        let buffer = std::mem::take(&mut self.buffer);
        self.run(page, Op::Read(buffer))
    }

    fn write(&mut self, page: u64) -> Result<u64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.fill(self.random.next() as u8);
        self.run(page, Op::Write(buffer))
    }

    /// Runs one request to its end, as a thread that polls would.
    fn run(&mut self, page: u64, op: Op) -> Result<u64> {
        let start = self.net.now();
        let is_woken = !self.setup.switches.run_to_completion;
        self.is_rung = false;
        self.tag += 1;
        let request = Request {
            tag: self.tag,
            offset: page * PAGE_BYTES as u64,
            op,
        };
        let worker = self.worker()?;
        ensure!(worker.submit(request).is_ok(), "one request is too many");
        let mut done = Vec::new();
        loop {
            if is_woken && std::mem::take(&mut self.is_rung) {
                // An interrupt, and a context switch to the thread that waits for it.
                costs::wake();
            }
            self.worker()?.poll(&mut done);
            if self.setup.disk_ns.is_some() {
                // The thread that moves pages to and from the disk.
                self.volume.turn();
            }
            if let Some(end) = done.pop() {
                end.result?;
                if let Op::Read(buffer) | Op::Write(buffer) = end.op {
                    self.buffer = buffer;
                }
                if is_woken {
                    // To the thread that asked.
                    costs::wake();
                }
                let took = self.net.now().since(start);
                return Ok(u64::try_from(took.as_nanos())?);
            }
            ensure!(
                self.net.now().since(start) < PATIENCE,
                "page {page} is not done"
            );
            self.step();
        }
    }

    fn worker(&mut self) -> Result<&mut Worker> {
        self.worker.as_mut().ok_or_else(|| anyhow!("no worker"))
    }

    /// Has everything happen up to `end`.
    pub fn pass(&mut self, end: Time) {
        while self.net.next_event().is_some_and(|next| next <= end) || self.tick_at <= end {
            self.step();
        }
        self.net.advance_to(end);
    }

    /// The next event of the network, or the next look at everybody's timers.
    pub fn step(&mut self) {
        let event = self.net.next_event().unwrap_or(Time(u64::MAX));
        if self.disk.due() <= event.min(self.tick_at) {
            self.net.advance_to(self.disk.due());
            self.is_rung = true;
            return self.control();
        }
        let mut ready = Vec::new();
        if event <= self.tick_at && self.net.step() {
            self.net.take_ready(&mut ready);
        } else {
            self.net.advance_to(self.tick_at);
            self.tick_at = self.net.now().after(TICK);
            ready.extend(self.hosts.iter().map(|host| host.node));
            ready.push(self.connector.node());
        }
        for node in ready {
            if node == self.connector.node() {
                self.is_rung = true;
                self.control();
            } else if let Some(host) = self.hosts.iter_mut().find(|host| host.node == node) {
                host.turn();
            }
        }
    }

    /// The volume's control side looks around, if a connection is due or the volume has not all
    /// hosts: on the page path it has a thread of its own, which costs a page nothing.
    fn control(&mut self) {
        let now = sim::now();
        self.dialing.step(now);
        self.volume.turn();
        self.dialing.take_orders(now, || 0);
    }
}

impl Drop for Cluster {
    /// A worker that is dropped waits for what is on its way, and no time passes any more.
    fn drop(&mut self) {
        costs::unset();
        if let Some(worker) = self.worker.take() {
            worker.abandon();
        }
    }
}
