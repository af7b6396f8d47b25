//! A control thread without a thread, and hosts without a process: messages go in, and come out.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard};

use cenote_fabric::{
    Address, ClientId, Error, Hello, Incoming, Opener, RemoteWindow, Result, Session as Connection,
    Time, Waker, WindowDescriptor,
};
use cenote_pool::control::{HeldSlab, Reply, Request, VERSION, Window};
use cenote_pool::placement::{Placement, Policy};

use super::super::*;
use crate::backing::{Backing, Store};
use crate::config::HostConfig;
use crate::core::Shape;
use crate::directory::{Member, Stripe};
use crate::extents::LayoutId;
use crate::flights::Flights;
use crate::layouts::Layouts;
use crate::marks::Marks;
use crate::{PAGE_BYTES, Resilience, Scheme};

pub const VOLUME: u128 = 5;
/// Pages of an extent.
pub const PAGES: u64 = 16384;

/// A volume of one extent, all of whose hosts are connected.
pub struct World {
    pub control: Control,
    hosts: Vec<Arc<Mutex<Wire>>>,
    windows: u32,
    pub commands: Sender<Command>,
}

/// What goes to a host and comes from it.
#[derive(Default)]
struct Wire {
    sent: VecDeque<Request>,
    arrived: VecDeque<Incoming>,
    /// What is sent fails.
    is_broken: bool,
    /// What is received fails.
    is_closed: bool,
}

struct Scripted(Arc<Mutex<Wire>>);

/// Nobody is reached again.
struct Nowhere;

thread_local! {
    static NOW: AtomicU64 = const { AtomicU64::new(1_000_000_000) };
}

fn now() -> Time {
    NOW.with(|now| Time(now.load(Ordering::Relaxed)))
}

pub fn window(id: u32) -> Window {
    Window {
        id,
        generation: 1,
        len_bytes: PAGES * PAGE_BYTES as u64,
        rights: 3,
    }
}

impl World {
    /// Each host in a rack of its own.
    pub fn new(scheme: &str, host_count: usize) -> Self {
        Self::in_racks(scheme, host_count, 1)
    }

    /// So many hosts to a rack.
    pub fn in_racks(scheme: &str, host_count: usize, rack: usize) -> Self {
        let hosts = (0..host_count).map(|index| config(index, index / rack));
        Self::over(None, scheme, hosts.collect())
    }

    /// With a disk behind it, which nobody asks for anything.
    pub fn backed(scheme: &str, host_count: usize) -> Self {
        let backing = Backing::over(Vec::new());
        let (store, _) = Store::new(PAGES, PAGES * PAGE_BYTES as u64, backing).expect("room");
        let hosts = (0..host_count).map(|index| config(index, index));
        Self::over(Some(store), scheme, hosts.collect())
    }

    fn over(store: Option<Arc<Store>>, scheme: &str, configs: Vec<HostConfig>) -> Self {
        let host_count = configs.len();
        let scheme: Scheme = scheme.parse().expect("a scheme");
        let slab_bytes = PAGES * PAGE_BYTES as u64 / scheme.k() as u64;
        let resilience = Resilience::of(scheme);
        let shape = Shape {
            layouts: Layouts::new(LayoutId::First, scheme, slab_bytes, PAGES),
            resilience,
            slab_bytes,
            size_bytes: PAGES * PAGE_BYTES as u64,
            host_count,
            return_max: crate::RETURN_MAX,
        };
        let marks = Marks::anonymous(PAGES).expect("marks");
        let (flights, wake) = (
            Flights::new().expect("room"),
            Waker::new().expect("a waker"),
        );
        let core = Arc::new(Core::new(shape, marks, None, flights, store, wake, now));
        let hosts: Vec<Arc<Mutex<Wire>>> = (0..host_count).map(|_| Arc::default()).collect();
        let links = hosts.iter().enumerate().map(|(index, wire)| {
            let link = Link {
                session: Box::new(Scripted(Arc::clone(wire))),
                slab_bytes,
                slabs_total: 8,
                slabs_free: 8,
            };
            (index, link)
        });
        let (orders, commands) = channel();
        let control = Control::new(Parts {
            core,
            dialer: Arc::new(Nowhere),
            client: ClientId(1),
            machine: 0,
            name: "test".to_owned(),
            volume: VOLUME,
            slab_bytes,
            placement: Placement::Policy(Policy::LeastLoaded),
            hosts: configs,
            links: links.collect(),
            commands,
            orders: orders.clone(),
            journal: None,
            opened: None,
        });
        let mut world = Self {
            control,
            hosts,
            windows: 0,
            commands: orders,
        };
        for host in 0..host_count {
            world.list(host, Vec::new());
        }
        world.take_sent();
        world
    }

    fn wire(&self, host: HostIndex) -> MutexGuard<'_, Wire> {
        self.hosts[host].lock().expect("no panic")
    }

    pub fn turn(&mut self) {
        let connected = self.control.connected();
        assert!(self.control.turn(connected));
    }

    /// Time passes, and the control thread has a turn. Hosts answer its pings.
    pub fn pass(&mut self, time: Duration) {
        NOW.with(|now| {
            let nanos = u64::try_from(time.as_nanos()).expect("small");
            now.fetch_add(nanos, Ordering::Relaxed)
        });
        self.turn();
        for host in 0..self.hosts.len() {
            let mut wire = self.wire(host);
            let before = wire.sent.len();
            wire.sent
                .retain(|request| !matches!(request, Request::Ping { .. }));
            let pings = before - wire.sent.len();
            drop(wire);
            for _ in 0..pings {
                let pong = Reply::Pong {
                    sequence: 0,
                    slabs_free: 8,
                };
                self.say(host, &pong);
            }
        }
        self.turn();
    }

    /// What was sent since the last call, but for pings.
    pub fn take_sent(&mut self) -> Vec<(HostIndex, Request)> {
        let mut all = Vec::new();
        for host in 0..self.hosts.len() {
            let sent = std::mem::take(&mut self.wire(host).sent);
            let sent = sent
                .into_iter()
                .filter(|request| !matches!(request, Request::Ping { .. }));
            all.extend(sent.map(|request| (host, request)));
        }
        all
    }

    pub fn say(&mut self, host: HostIndex, reply: &Reply) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        self.say_bytes(host, bytes);
    }

    pub fn say_bytes(&mut self, host: HostIndex, bytes: Vec<u8>) {
        self.wire(host).arrived.push_back(Incoming::Message(bytes));
    }

    /// A host grants a slab, which the client attaches.
    pub fn grant(&mut self, host: HostIndex, request: u64) {
        self.windows += 1;
        let window = window(self.windows);
        self.say(host, &Reply::Mapped { request, window });
        self.turn();
        self.turn();
    }

    /// A host answers with a list of what the client holds there, which it is asked for if it was not.
    pub fn list(&mut self, host: HostIndex, slabs: Vec<HeldSlab>) {
        self.control.cx.hosts.compare_books(host);
        self.say(host, &Reply::Held { skip: 0, slabs });
        self.turn();
    }

    /// Has the extent be mapped; its hosts, by split.
    pub fn map(&mut self, extent: usize) -> Vec<HostIndex> {
        self.control.core().want(extent);
        self.turn();
        for (host, request) in self.take_sent() {
            if let Request::Map { request, .. } = request {
                self.grant(host, request);
            }
        }
        self.take_sent();
        let stripe = self.stripe(extent).expect("mapped");
        let members = stripe.members.iter().flatten();
        members.map(|member| member.session.host).collect()
    }

    /// Pages hold data from now on.
    pub fn write(&self, pages: std::ops::Range<u64>) {
        let written = &self.control.core().pages.marks.written;
        pages.for_each(|page| {
            written.insert(page);
        });
    }

    /// What is sent to a host fails from now on.
    pub fn break_off(&mut self, host: HostIndex) {
        self.wire(host).is_broken = true;
    }

    /// A host's connection is gone.
    pub fn hang_up(&mut self, host: HostIndex) {
        self.wire(host).is_closed = true;
    }

    pub fn stripe(&self, extent: usize) -> Option<Arc<Stripe>> {
        self.control.core().directory.snapshot().extents[extent].clone()
    }

    fn member(&self, extent: usize, split: usize) -> Member {
        let stripe = self.stripe(extent).expect("mapped");
        stripe.members[split].clone().expect("there")
    }

    pub fn window_of(&self, extent: usize, split: usize) -> Window {
        self.member(extent, split).window.name()
    }

    pub fn host_of(&self, extent: usize, split: usize) -> HostIndex {
        self.member(extent, split).session.host
    }
}

fn config(index: usize, rack: usize) -> HostConfig {
    HostConfig {
        name: format!("h{index}"),
        address: "tcp:127.0.0.1:1".parse::<Address>().expect("an address"),
        domain: format!("rack{rack}"),
        power: None,
        retired: false,
        lends: true,
    }
}

impl Connection for Scripted {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut wire = self.0.lock().expect("no panic");
        if wire.is_broken || wire.is_closed {
            return Err(Error::Closed);
        }
        let request = Request::decode(message).expect("a request");
        wire.sent.push_back(request);
        Ok(())
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        let mut wire = self.0.lock().expect("no panic");
        let attached = Incoming::Attached(window, Ok(RemoteWindow::unmapped(window)));
        wire.arrived.push_back(attached);
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        let mut wire = self.0.lock().expect("no panic");
        match wire.is_closed {
            true => Err(Error::Closed),
            false => Ok(wire.arrived.pop_front()),
        }
    }

    fn opener(&self) -> Opener {
        Box::new(|_| Err(Error::Closed))
    }

    fn caller_opener(&self) -> cenote_fabric::calls::CallerOpener {
        unreachable!("a volume calls nobody")
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn version(&self) -> u16 {
        VERSION.into()
    }
}

impl Dialer for Nowhere {
    fn dial(
        &self,
        _: Address,
        _: Hello,
        _: Box<dyn FnOnce(Result<Link>) + Send>,
    ) -> std::io::Result<()> {
        Ok(())
    }

    fn run(&self, _: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        Ok(())
    }
}
