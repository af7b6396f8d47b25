//! One host: the daemon's real parts, and an eye on the memory that it lends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::sim::{self, Net, NodeId};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Event, Listen, PeerId, Region, Result, Rights, Time, Waker,
    WindowDescriptor, WindowId,
};
use cenote_host::{Config, LockMemory, Stepped};
use cenote_pool::control::Request;

/// A host and its process, while it has one.
pub struct Host {
    pub name: String,
    pub node: NodeId,
    config: Config,
    process: Option<Stepped>,
    complaints: Complaints,
}

/// What hosts did that they must not.
pub type Complaints = Arc<Mutex<Vec<String>>>;

impl Host {
    pub fn new(
        net: &Net,
        index: usize,
        slabs: u32,
        slab_bytes: u64,
        complaints: &Complaints,
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
        };
        let mut host = Self {
            name,
            node,
            config,
            process: None,
            complaints: Arc::clone(complaints),
        };
        host.start(net, Box::new(listener));
        host
    }

    /// Starts a process, on a machine that has none.
    fn start(&mut self, net: &Net, listener: Box<dyn Listen>) {
        let watched = Watched {
            listener,
            requests: BTreeMap::new(),
            host: self.name.clone(),
            complaints: Arc::clone(&self.complaints),
        };
        let outward = net.client_on(self.node);
        let identity = ClientId(u128::from(self.node.0) << 64 | u128::from(net.now().0));
        let process = Stepped::start(
            self.config.clone(),
            Box::new(watched),
            (Box::new(outward), identity),
            sim::now,
        );
        self.process = Some(process.expect("the simulated configuration is sound"));
    }

    /// Its process ends.
    pub fn crash(&mut self, net: &Net, memory: sim::Memory, notice: sim::Notice) {
        net.crash(self.node, memory, notice);
        self.process = None;
    }

    pub fn restart(&mut self, net: &Net) {
        let listener = net.restart(self.node);
        self.start(net, Box::new(listener));
    }

    /// Lets its process run.
    pub fn turn(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        loop {
            if let Err(error) = process.turn() {
                let text = format!("{}: the listener broke: {error}", self.name);
                complain(&self.complaints, text);
                return;
            }
            if !process.work() {
                break;
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
            complain(&self.complaints, text);
        }
    }

    /// When it wants a turn although nothing arrives.
    pub fn due(&self) -> Time {
        /// How often a fill looks at its time limits.
        const FILL: Duration = Duration::from_millis(100);
        let Some(process) = &self.process else {
            return Time(u64::MAX);
        };
        if process.is_filling() {
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

fn complain(complaints: &Complaints, text: String) {
    complaints
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(text);
}

/// A listener that looks at memory before it is lent: only zeros may be.
struct Watched {
    listener: Box<dyn Listen>,
    /// The last request of each peer: their numbers grow.
    requests: BTreeMap<PeerId, u64>,
    host: String,
    complaints: Complaints,
}

impl Watched {
    fn check_order(&mut self, peer: PeerId, bytes: &[u8]) {
        let Ok(Request::Map { request, .. } | Request::Fill { request, .. }) =
            Request::decode(bytes)
        else {
            return;
        };
        let last = self.requests.insert(peer, request);
        if last.is_some_and(|last| last >= request) {
            let text = format!("{}: request {request} arrived after {last:?}", self.host);
            complain(&self.complaints, text);
        }
    }
}

impl Listen for Watched {
    fn addresses(&self) -> Vec<Address> {
        self.listener.addresses()
    }

    fn waker(&self) -> Waker {
        self.listener.waker()
    }

    fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor> {
        let mut bytes = vec![0xff; usize::try_from(region.len_bytes()).expect("slabs are small")];
        if region.read(0, &mut bytes).is_ok() && bytes.iter().any(|&byte| byte != 0) {
            let text = format!("{}: a slab with a former client's bytes is lent", self.host);
            complain(&self.complaints, text);
        }
        self.listener.register(region, rights)
    }

    fn revoke(&self, window: WindowId) -> Result<()> {
        self.listener.revoke(window)
    }

    fn renew(&self, window: WindowId) -> Result<WindowDescriptor> {
        self.listener.renew(window)
    }

    fn send(&mut self, peer: PeerId, message: &[u8]) -> Result<()> {
        self.listener.send(peer, message)
    }

    fn close(&mut self, peer: PeerId) {
        self.listener.close(peer);
    }

    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<()> {
        let old = events.len();
        self.listener.poll(timeout, events)?;
        for event in &events[old..] {
            match event {
                Event::Message { peer, bytes } => self.check_order(*peer, bytes),
                Event::Disconnected { peer } => drop(self.requests.remove(peer)),
                _ => {}
            }
        }
        Ok(())
    }
}
