//! Hosts on the simulated network, run in this process whenever virtual time passes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Host, HostEvent, Traits, calls};
use cenote_fabric::sim::{
    Config, Memory, Net, NodeId, Notice, Serving, SimAnswerer, SimConnector, SimListener,
};
use cenote_fabric::{
    Address, ClientId, Connector, Event, Listen, PeerId, Region, RegionOptions, Rights, Time,
    WindowDescriptor, WindowId,
};

/// A network whose hosts are all of one kind.
pub struct Simulated {
    net: Net,
    name: &'static str,
    serving: Serving,
    connector: SimConnector,
    stranger: SimConnector,
    started: Cell<u32>,
    hosts: RefCell<Vec<Rc<RefCell<Served>>>>,
}

impl Simulated {
    /// A fresh network; the seed is fixed, so a failure comes again.
    #[must_use]
    pub fn new(name: &'static str, serving: Serving) -> Self {
        let config = Config {
            serving,
            ..Config::default()
        };
        let net = Net::new(1, config);
        Self {
            connector: net.client("client"),
            stranger: net.stranger("stranger"),
            net,
            name,
            serving,
            started: Cell::new(0),
            hosts: RefCell::default(),
        }
    }
}

impl Backend for Simulated {
    fn name(&self) -> &str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits {
            has_processes: true,
            memory_outlives_a_stop: self.serving == Serving::Card,
            has_sockets: false,
        }
    }

    fn start_host(&self) -> Box<dyn Host> {
        let number = self.started.get();
        self.started.set(number + 1);
        let address = Address::Shm(format!("/sim/{number}").into());
        let mut listener = self.net.host(address.clone(), "host");
        let answerer = listener.answerer().expect("the host runs");
        let host = Rc::new(RefCell::new(Served {
            node: listener.node(),
            answerer: Some(answerer),
            listener: Some(listener),
            is_deaf: false,
            regions: BTreeMap::new(),
            clients: BTreeMap::new(),
            seen: Vec::new(),
        }));
        self.hosts.borrow_mut().push(Rc::clone(&host));
        Box::new(SimHost {
            net: self.net.clone(),
            address,
            host,
        })
    }

    fn connector(&self) -> &dyn Connector {
        &self.connector
    }

    fn stranger(&self) -> &dyn Connector {
        &self.stranger
    }

    fn now(&self) -> Time {
        self.net.now()
    }

    /// Up to the next event and all that come soon after; then every host has its turn.
    fn pause(&self, _fds: &[RawFd]) {
        let next = self.net.next_event().unwrap_or_default();
        self.net.advance_to(next.max(self.net.now()).after(PAUSE));
        // A host that its case dropped is no more.
        let mut hosts = self.hosts.borrow_mut();
        hosts.retain(|host| Rc::strong_count(host) > 1);
        let mut ready = Vec::new();
        self.net.take_ready(&mut ready);
        for host in &*hosts {
            let node = host.borrow().node;
            if ready.contains(&node) {
                host.borrow_mut().take();
            }
        }
    }
}

/// Long enough for several verbs to end, as over sockets.
const PAUSE: Duration = Duration::from_micros(10);

/// A host, from outside.
struct SimHost {
    net: Net,
    address: Address,
    host: Rc<RefCell<Served>>,
}

/// A host's inside.
struct Served {
    node: NodeId,
    /// `None` once it is killed.
    listener: Option<SimListener>,
    answerer: Option<SimAnswerer>,
    is_deaf: bool,
    regions: BTreeMap<u32, Arc<Region>>,
    clients: BTreeMap<PeerId, ClientId>,
    seen: Vec<HostEvent>,
}

impl Served {
    fn listener(&mut self) -> &mut SimListener {
        self.listener.as_mut().expect("the host lives")
    }

    /// Takes what has arrived.
    fn take(&mut self) {
        let mut events = Vec::new();
        if let Some(listener) = self.listener.as_mut().filter(|_| !self.is_deaf) {
            listener
                .poll(Some(Duration::ZERO), &mut events)
                .expect("poll the listener");
        }
        for event in events {
            self.note(event);
        }
        if let Some(answerer) = &mut self.answerer {
            calls::serve(answerer, Some(Duration::ZERO)).expect("the host runs");
        }
    }

    fn note(&mut self, event: Event) {
        let seen = match event {
            Event::Connected { peer, hello } => {
                self.clients.insert(peer, hello.client);
                HostEvent::Connected(hello)
            }
            Event::Message { peer, bytes } => HostEvent::Message(self.clients[&peer], bytes),
            Event::Immediate {
                peer,
                window,
                offset,
                len_bytes,
                value,
            } => HostEvent::Immediate(self.clients[&peer], window, offset, len_bytes, value),
            Event::Disconnected { peer } => {
                HostEvent::Disconnected(self.clients.remove(&peer).expect("connected before"))
            }
            other => panic!("no case knows of {other:?}"),
        };
        self.seen.push(seen);
    }
}

impl Host for SimHost {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn register(&mut self, len_bytes: u64, rights: Rights) -> WindowDescriptor {
        let options = RegionOptions::default();
        let region = Region::create("conformance", len_bytes, options).expect("memory");
        let region = Arc::new(region);
        let mut host = self.host.borrow_mut();
        let window = host
            .listener()
            .register(Arc::clone(&region), rights)
            .expect("a window");
        host.regions.insert(window.id.0, region);
        window
    }

    fn begin_revoke(&mut self, window: WindowId) {
        let mut host = self.host.borrow_mut();
        host.listener().revoke(window).expect("revoke");
        host.regions.remove(&window.0);
    }

    fn is_revoked(&mut self) -> bool {
        true
    }

    fn renew(&mut self, window: WindowId) -> WindowDescriptor {
        let mut host = self.host.borrow_mut();
        host.listener().renew(window).expect("renew")
    }

    fn write(&mut self, window: WindowId, offset: u64, bytes: &[u8]) {
        let host = self.host.borrow();
        host.regions[&window.0]
            .write(offset, bytes)
            .expect("live memory");
    }

    fn read(&mut self, window: WindowId, offset: u64, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        let host = self.host.borrow();
        host.regions[&window.0]
            .read(offset, &mut bytes)
            .expect("live memory");
        bytes
    }

    fn events(&mut self) -> Vec<HostEvent> {
        let mut host = self.host.borrow_mut();
        host.take();
        std::mem::take(&mut host.seen)
    }

    fn set_deaf(&mut self, is_deaf: bool) {
        self.host.borrow_mut().is_deaf = is_deaf;
    }

    fn kill(&mut self) {
        let mut host = self.host.borrow_mut();
        self.net.crash(host.node, Memory::Lost, Notice::AtOnce);
        host.listener = None;
        host.answerer = None;
    }

    fn stop(&mut self) {
        self.net.pause(self.host.borrow().node);
    }

    fn resume(&mut self) {
        self.net.resume(self.host.borrow().node);
    }
}
