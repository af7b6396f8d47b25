//! One host: the daemon's real parts behind a listener that is watched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cenote_fabric::sim::{self, Net, NodeId, SimListener};
use cenote_fabric::{Address, ClientId, ClusterKey, Listen, Region, Time, WindowDescriptor};
use cenote_host::{Config, Gauge, Headroom, Inheritance, LockMemory, Reading, Share, Stepped};
use cenote_pool::ledger::Handover;

use super::observer::{Observer, Records, Sightings, complain};

/// Windows that one process of a host passes on to the next.
type Windows = Vec<(Arc<Region>, WindowDescriptor)>;

/// A host and its process, while it has one.
pub struct Host {
    /// As the cluster file has it.
    pub name: String,
    /// Where it is on the simulated network.
    pub node: NodeId,
    config: Config,
    process: Option<Stepped>,
    /// What was seen of its process, and of those before it that left theirs to it.
    records: Records,
    /// Its clients are being told that another process takes its place.
    is_leaving: bool,
    /// What the next process is to have.
    left: Option<Inheritance>,
    seen: Sightings,
    /// What the programs of its machine use, in bytes: at most as much as it lends.
    others: Arc<AtomicU64>,
}

impl Host {
    /// Slabs that it lends, their size, and whether it gives way to the programs of its machine.
    pub fn new(
        net: &Net,
        index: usize,
        (slabs, slab_bytes, gives_way): (u32, u64, bool),
        seen: &Sightings,
    ) -> Self {
        let name = format!("h{index:02}");
        let address: Address = address_of(index);
        let listener = net.host(address.clone(), &name);
        let node = listener.node();
        let config = Config {
            name: name.clone(),
            domain: name.clone(),
            addresses: vec![address],
            memory_bytes: u64::from(slabs) * slab_bytes,
            slab_bytes,
            key: ClusterKey::from_hex(&"00".repeat(32)).expect("a key of the right length"),
            huge_pages: false,
            lock_memory: LockMemory::Never,
            clients_max: 256,
            cache_threads: 0,
            modules: None,
            page_traffic: cenote_fabric::WireProtection::default(),
            // The machine is never below the floor: nothing is taken from a live client.
            headroom: gives_way.then(|| Headroom {
                keep: Share::Bytes(u64::from(slabs) * slab_bytes),
                floor: Some(Share::Bytes(0)),
                reclaim: true,
                ..Headroom::infiniswap()
            }),
        };
        let mut host = Self {
            name,
            node,
            config,
            process: None,
            records: Records::default(),
            is_leaving: false,
            left: None,
            seen: Arc::clone(seen),
            others: Arc::default(),
        };
        host.start(net, |_| listener);
        host
    }

    /// Starts a process, on a machine that has none: with what the one before it left, if it left anything.
    fn start(&mut self, net: &Net, listen: impl FnOnce(Windows) -> SimListener) {
        if self.left.is_none() {
            self.records = Records::default();
        }
        let outward = net.client_on(self.node);
        let identity = ClientId(u128::from(self.node.0) << 64 | u128::from(net.now().0));
        let (name, seen, records) = (&self.name, &self.seen, &self.records);
        let node = self.node;
        let mut serving = None;
        let watched = |windows: Windows| {
            let mut book = records.lock().unwrap_or_else(PoisonError::into_inner);
            let inherited = book.inherit(&windows);
            drop(book);
            if let Err(what) = inherited {
                complain(seen, format!("{name}: {what}"));
            }
            let mut listener = listen(windows);
            serving = Some((listener.answerer()?, listener.windows()?));
            let machine = (net.clone(), node);
            let watched = Observer::new(Box::new(listener), machine, name, records, seen);
            Ok(Box::new(watched) as Box<dyn Listen>)
        };
        let process = Stepped::start_with(
            self.config.clone(),
            self.left.take().unwrap_or_default(),
            watched,
            (Box::new(outward), identity),
            sim::now,
            Some(self.gauge()),
        );
        let mut process = process.expect("the simulated configuration is sound");
        if let Some((answerer, windows)) = serving {
            process.serve_caches(Box::new(answerer), windows);
        }
        self.process = Some(process);
    }

    /// Its machine holds what the host lends, as much that stays free, and a little more.
    fn gauge(&self) -> Gauge {
        let others = Arc::clone(&self.others);
        let (lent_bytes, slab_bytes) = (self.config.memory_bytes, self.config.slab_bytes);
        let total_bytes = 2 * lent_bytes + lent_bytes / 8 + 2 * slab_bytes;
        Box::new(move |_| {
            Some(Reading {
                total_bytes,
                available_bytes: total_bytes - others.load(Ordering::Relaxed),
                has_own: false,
                is_stalled: false,
            })
        })
    }

    /// The programs of its machine use as many percent of what it lends.
    pub fn squeeze(&mut self, percent: u64) {
        let used_bytes = self.config.memory_bytes * percent / 100;
        self.others.store(used_bytes, Ordering::Relaxed);
    }

    /// Its process ends.
    pub fn crash(&mut self, net: &Net, memory: sim::Memory, notice: sim::Notice) {
        net.crash(self.node, memory, notice);
        self.process = None;
        self.is_leaving = false;
    }

    /// Its clients are to be told that another process takes its place.
    pub fn begin_leaving(&mut self) {
        self.is_leaving = true;
    }

    /// Whether another process is to take the place of its own.
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Ends its process once its clients know, or now, if that `is_urgent`, and keeps what it lent for the next;
    /// whether it has.
    pub fn leave(&mut self, net: &Net, is_urgent: bool) -> bool {
        let Some(process) = self.process.as_mut().filter(|_| self.is_leaving) else {
            return false;
        };
        if !process.bids_farewell() && !is_urgent {
            return false;
        }
        let left = process.inheritance();
        self.left = Some(left.expect("descriptors are left"));
        self.crash(net, sim::Memory::Kept, sim::Notice::AtOnce);
        true
    }

    /// What its process left is gone, too.
    pub fn forget_left(&mut self) {
        self.left = None;
    }

    /// Whether it has a process.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// What its process knows of slabs and owners, while it has one.
    pub fn book(&self) -> Option<Handover> {
        self.process.as_ref().map(Stepped::book)
    }

    /// Gives it a process again, which finds its memory as the last one left it.
    pub fn restart(&mut self, net: &Net) {
        let node = self.node;
        self.start(net, |windows| {
            let listener = net.restart_with(node, windows);
            listener.expect("windows stand as they stood")
        });
    }

    /// Wants everything back, or no longer does.
    pub fn drain(&mut self, draining: bool) {
        if let Some(process) = &mut self.process {
            process.drain(draining);
        }
    }

    /// Lets its process run.
    pub fn turn(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let before = process.demand();
        loop {
            if let Err(error) = process.turn() {
                let text = format!("{}: the listener broke: {error}", self.name);
                complain(&self.seen, text);
                return;
            }
            if !process.work() {
                break;
            }
        }
        let now = process.demand();
        if now.asked > before.asked {
            // Some may have been given back or wanted in this turn, before or after the asking.
            let claimed = now.claimed.max(before.claimed);
            let (going, excess) = (now.going, claimed.saturating_sub(now.slabs_max));
            if going > excess {
                let text = format!(
                    "{}: {going} slabs are on their way back where {excess} have to go",
                    self.name
                );
                complain(&self.seen, text);
            }
        }
        let status = process.status();
        let slabs = status.slabs;
        let all = slabs.free
            + slabs.preparing
            + slabs.prepared
            + slabs.mapped
            + slabs.orphaned
            + slabs.retired;
        if all != self.config.slabs_total() {
            let text = format!("{}: {all} slabs where there are {slabs:?}", self.name);
            complain(&self.seen, text);
        }
    }

    /// When it wants a turn although nothing arrives.
    pub fn due(&self) -> Time {
        /// How often a fill looks at its time limits.
        const FILL: Duration = Duration::from_millis(100);
        let Some(process) = &self.process else {
            return Time(u64::MAX);
        };
        if self.is_leaving {
            // The faults look every now and then whether it may end.
            process.next_tick().max(sim::now().after(FILL))
        } else if process.is_filling() {
            process.next_tick().min(sim::now().after(FILL))
        } else {
            process.next_tick()
        }
    }
}

/// Where host `index` listens.
pub fn address_of(index: usize) -> Address {
    format!("tcp:10.0.{}.{}:7000", index / 250, index % 250 + 1)
        .parse()
        .expect("an address")
}
