//! Hosts and one volume, whose one worker has one page under way.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use cenote_fabric::sim::{Config, Net, SimConnector};
use cenote_fabric::{ClientId, Time, sim};
use cenote_volume::{
    HostConfig, Op, PAGE_BYTES, Request, Resilience, Scheme, Stepped, VolumeConfig, Worker,
};

use super::{FLOW_HOSTS, Network, Operation};
use crate::sim::dialer::Dialing;
use crate::sim::host::{Host, address_of};
use crate::sim::random::Random;

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
}

/// Pages of the volume: few, so that it is quickly written; none of the model depends on it.
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
    pub fn new(seed: u64, scheme: Scheme) -> Result<Self> {
        let net = Net::new(seed, Config::default());
        let mut random = Random::new(seed);
        let seen = crate::sim::watched::Sightings::default();
        let count = HOSTS.max(scheme.members() + FLOW_HOSTS);
        let slabs = u32::try_from(PAGES)?;
        let hosts: Vec<Host> = (0..count)
            .map(|index| Host::new(&net, index, (slabs, SLAB_BYTES, false), &seen))
            .collect();
        let connector = net.client("client");
        let dialing = Dialing::new(Arc::new(connector.clone()));
        let known = |(index, host): (usize, &Host)| HostConfig {
            name: host.name.clone(),
            address: address_of(index),
            domain: host.name.clone(),
        };
        let size_bytes = PAGES * PAGE_BYTES as u64;
        let config = VolumeConfig {
            name: "latency".into(),
            id: random.u128(),
            resilience: Resilience::of(scheme),
            size_bytes,
            size_bytes_max: size_bytes,
            hosts: hosts.iter().enumerate().map(known).collect(),
        };
        let client = ClientId(random.u128());
        let volume = Stepped::open(config, SLAB_BYTES, client, dialing.orders(), sim::now)?;
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
        self.worker = Some(self.volume.worker()?);
        for page in 0..PAGES {
            self.write(page)?;
        }
        Ok(())
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
        let page = self.random.below(PAGES);
        match operation {
            Operation::Read => self.read(page),
            Operation::Write => self.write(page),
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
            self.worker()?.poll(&mut done);
            if let Some(end) = done.pop() {
                end.result?;
                if let Op::Read(buffer) | Op::Write(buffer) = end.op {
                    self.buffer = buffer;
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
    fn pass(&mut self, end: Time) {
        while self.net.next_event().is_some_and(|next| next <= end) || self.tick_at <= end {
            self.step();
        }
        self.net.advance_to(end);
    }

    /// The next event of the network, or the next look at everybody's timers.
    fn step(&mut self) {
        let event = self.net.next_event().unwrap_or(Time(u64::MAX));
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
        if let Some(worker) = self.worker.take() {
            worker.abandon();
        }
    }
}
