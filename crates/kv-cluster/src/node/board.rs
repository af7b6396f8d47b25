//! What the node's thread and its lanes share.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use cenote_fabric::strangers::Counts;
use cenote_kv::group::progress::Leave;
use cenote_kv::group::view::View;
use cenote_kv::memory::reaper;

use super::super::NodeId;
use super::super::balance::HandOver;
use super::super::config::{NodeState, Registration};
use super::super::detector::Detector;
use super::super::links::Links;
use super::super::membership::Registered;
use super::super::registration_lease::RegistrationLease;
use super::super::steward::Proposal;
use super::report::{ChangeReport, GroupReport, NodeReport, PeerReport, PeerState};
use super::times::AgreedReport;

/// Changes of peers' states that a report tells.
const CHANGES_MAX: usize = 64;
/// Views that it tells.
const AGREED_MAX: usize = 256;

/// Who owns what, and where clients find them.
#[derive(Default)]
struct Map {
    /// By group.
    views: Vec<Option<Arc<View>>>,
    clients: BTreeMap<NodeId, SocketAddr>,
}

/// What the node's thread tells a lane.
#[derive(Clone, Debug)]
pub(in super::super) enum Order {
    /// A node is registered; or it is not any more.
    Node {
        node: NodeId,
        registered: Option<Registered>,
    },
    /// A view was agreed on.
    View { group: usize, view: Arc<View> },
    /// What was proposed was not agreed on, for sure.
    Refused { group: usize, number: u32 },
    /// A partition of this node is to go to another.
    HandOver(HandOver),
    /// Etcd was seeded again; what was agreed on before has been told.
    Seeded(u64),
}

/// How far a lane of a node that ends is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in super::super) enum Parting {
    /// It has places, or others may ask for something yet.
    Begun,
    /// Others have what they asked for, and ask for nothing more. Clients of the node still may.
    Apart,
    /// Nor has it asked others for anything.
    Done,
}

/// See the [module](self).
pub(in super::super) struct Shared {
    pub(super) node: NodeId,
    pub(super) region_bytes: u64,
    /// By group: the nodes of the plan, data first.
    pub(super) homes: Vec<Vec<u32>>,
    registration: Mutex<Registration>,
    names: Mutex<BTreeMap<NodeId, String>>,
    orders: Vec<Mutex<VecDeque<Order>>>,
    /// A byte for a lane wakes it.
    bells: Vec<UnixStream>,
    proposals: Mutex<Vec<Proposal>>,
    /// The node's thread.
    steward: OnceLock<Thread>,
    groups: Mutex<Vec<Vec<GroupReport>>>,
    /// By lane.
    strangers: Mutex<Vec<Counts>>,
    map: Mutex<Map>,
    changes: Mutex<VecDeque<ChangeReport>>,
    agreed: Mutex<VecDeque<AgreedReport>>,
    failure: Mutex<Option<String>>,
    ends_soon: AtomicBool,
    parting: Mutex<Vec<Parting>>,
    started: Instant,
    /// Until when the node's registration stands.
    pub(in super::super) registration_lease: Arc<RegistrationLease>,
    /// By lane: the milliseconds after the start at which it last turned.
    turned_ms: Vec<AtomicU64>,
    /// By lane: for what content of etcd its groups' reports are.
    seeds: Vec<AtomicU64>,
}

impl Shared {
    pub(in super::super) fn new(
        node: NodeId,
        region_bytes: u64,
        homes: Vec<Vec<u32>>,
        registration: Registration,
        bells: Vec<UnixStream>,
    ) -> Self {
        Self {
            node,
            region_bytes,
            registration: Mutex::new(registration),
            names: Mutex::default(),
            orders: bells.iter().map(|_| Mutex::default()).collect(),
            map: Mutex::new(Map {
                views: vec![None; homes.len()],
                ..Map::default()
            }),
            homes,
            groups: Mutex::new(bells.iter().map(|_| Vec::new()).collect()),
            strangers: Mutex::new(vec![Counts::default(); bells.len()]),
            parting: Mutex::new(vec![Parting::Begun; bells.len()]),
            ends_soon: AtomicBool::default(),
            registration_lease: Arc::default(),
            turned_ms: bells.iter().map(|_| AtomicU64::default()).collect(),
            seeds: bells.iter().map(|_| AtomicU64::default()).collect(),
            bells,
            proposals: Mutex::default(),
            steward: OnceLock::new(),
            changes: Mutex::default(),
            agreed: Mutex::default(),
            failure: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// The calling thread is the one that is woken from now on.
    pub(super) fn take_charge(&self) {
        self.steward.get_or_init(std::thread::current);
    }

    pub(super) fn wake(&self) {
        if let Some(steward) = self.steward.get() {
            steward.unpark();
        }
    }

    /// Tells a lane.
    pub(in super::super) fn order(&self, lane: usize, order: Order) {
        locked(&self.orders[lane]).push_back(order);
        // A full pipe rings already.
        match (&self.bells[lane]).write(&[0]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                tracing::warn!(%error, lane, "wake a lane");
            }
            _ => {}
        }
    }

    pub(super) fn lanes(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn set_view(&self, group: usize, view: Arc<View>) {
        locked(&self.map).views[group] = Some(view);
    }

    /// How many places each node has in all groups whose views are known.
    pub(in super::super) fn places(&self) -> BTreeMap<u32, usize> {
        let mut places = BTreeMap::new();
        for view in locked(&self.map).views.iter().flatten() {
            for process in view.processes() {
                *places.entry(process.node).or_default() += 1;
            }
        }
        places
    }

    /// Where clients find a node; `None`: it is gone.
    pub(super) fn set_clients(&self, node: NodeId, address: Option<SocketAddr>) {
        let clients = &mut locked(&self.map).clients;
        match address {
            Some(address) => drop(clients.insert(node, address)),
            None => drop(clients.remove(&node)),
        }
    }

    /// Where the owners of all groups' `k` partitions are found, as far as that is known.
    pub(in super::super) fn shards(&self, k: usize) -> Vec<Option<SocketAddr>> {
        let map = locked(&self.map);
        let partitions = map
            .views
            .iter()
            .flat_map(|view| (0..k).map(move |one| (view, one)));
        let owners = partitions.map(|(view, one)| view.as_ref()?.owner(one));
        owners
            .map(|owner| map.clients.get(&NodeId(owner?.node)).copied())
            .collect()
    }

    pub(super) fn set_name(&self, node: NodeId, name: String) {
        locked(&self.names).insert(node, name);
    }

    pub(super) fn set_registration(&self, registration: &Registration) {
        *locked(&self.registration) = registration.clone();
    }

    pub(in super::super) fn take_proposals(&self) -> Vec<Proposal> {
        std::mem::take(&mut *locked(&self.proposals))
    }

    pub(super) fn failure(&self) -> Option<String> {
        locked(&self.failure).clone()
    }

    pub(in super::super) fn take_orders(&self, lane: usize) -> VecDeque<Order> {
        std::mem::take(&mut *locked(&self.orders[lane]))
    }

    /// Empties a lane's end of its bell.
    pub(in super::super) fn drain(&self, bell: &mut mio::net::UnixStream) {
        let mut bytes = [0; 64];
        while matches!(bell.read(&mut bytes), Ok(read) if read > 0) {}
    }

    pub(in super::super) fn propose(&self, proposal: Proposal) {
        locked(&self.proposals).push(proposal);
        self.wake();
    }

    pub(in super::super) fn fail(&self, what: String) {
        locked(&self.failure).get_or_insert(what);
        self.wake();
    }

    pub(in super::super) fn state(&self) -> NodeState {
        locked(&self.registration).state
    }

    /// The node ends once others have its places.
    pub(in super::super) fn end_soon(&self) {
        self.ends_soon.store(true, Ordering::SeqCst);
    }

    /// Whether the node gives its places up.
    pub(in super::super) fn leave(&self) -> Leave {
        match self.state() {
            _ if self.ends_soon.load(Ordering::SeqCst) => Leave::Soon,
            NodeState::Draining => Leave::Whole,
            NodeState::Up => Leave::No,
        }
    }

    pub(in super::super) fn set_parting(&self, lane: usize, parting: Parting) {
        locked(&self.parting)[lane] = parting;
    }

    /// How far the lane is that is the least.
    pub(in super::super) fn parting(&self) -> Parting {
        let all = locked(&self.parting);
        all.iter().copied().min().unwrap_or(Parting::Done)
    }

    pub(in super::super) fn homes(&self, group: usize) -> &[u32] {
        &self.homes[group]
    }

    /// A lane goes on.
    pub(in super::super) fn note_turn(&self, lane: usize) {
        self.turned_ms[lane].store(millis(self.started.elapsed()), Ordering::Relaxed);
    }

    /// The longest time for which one of the lanes has not turned.
    pub(super) fn stillness(&self) -> Duration {
        let now = millis(self.started.elapsed());
        let turns = self.turned_ms.iter();
        let still = turns.map(|at| now.saturating_sub(at.load(Ordering::Relaxed)));
        Duration::from_millis(still.max().unwrap_or(0))
    }

    /// A lane has taken up all that was agreed on before etcd was seeded, and reported its groups since.
    pub(in super::super) fn set_seed(&self, lane: usize, seed: u64) {
        self.seeds[lane].store(seed, Ordering::SeqCst);
    }

    /// The seed that all lanes know of; 0: none, or not the same.
    fn seed(&self) -> u64 {
        let mut seeds = self.seeds.iter().map(|seed| seed.load(Ordering::SeqCst));
        let first = seeds.next().unwrap_or(0);
        if seeds.all(|seed| seed == first) {
            first
        } else {
            0
        }
    }

    pub(in super::super) fn set_groups(&self, lane: usize, reports: Vec<GroupReport>) {
        locked(&self.groups)[lane] = reports;
    }

    pub(in super::super) fn set_strangers(&self, lane: usize, counts: Counts) {
        locked(&self.strangers)[lane] = counts;
    }

    /// What has become of connections to all lanes.
    pub(super) fn strangers(&self) -> Counts {
        let mut all = Counts::default();
        locked(&self.strangers)
            .iter()
            .for_each(|counts| all += *counts);
        all
    }

    pub(in super::super) fn note_change(&self, change: ChangeReport) {
        push_bounded(&mut locked(&self.changes), change, CHANGES_MAX);
    }

    /// A view that this node proposed was agreed on just now.
    pub(super) fn note_agreed(&self, group: usize, view: u32) {
        let agreed = AgreedReport::now(group, view);
        push_bounded(&mut locked(&self.agreed), agreed, AGREED_MAX);
    }

    pub(in super::super) fn report(
        &self,
        detector: &Detector,
        links: &Links,
        now: Instant,
    ) -> NodeReport {
        let names = locked(&self.names);
        let peers = detector.peers().map(|(node, state)| PeerReport {
            node,
            name: names.get(&node).cloned().unwrap_or_default(),
            state: PeerState::of(state),
            silence_ms: detector.silence(node, now).map_or(0, millis),
            round_trip_us: detector
                .round_trip(node)
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            trouble: links.trouble(node).map(str::to_owned),
        });
        let registration = locked(&self.registration);
        NodeReport {
            node: self.node,
            name: registration.name.clone(),
            incarnation: registration.incarnation,
            state: registration.state,
            uptime_ms: millis(now.saturating_duration_since(self.started)),
            region_bytes: self.region_bytes,
            peers: peers.collect(),
            changes: locked(&self.changes).iter().cloned().collect(),
            groups: self.groups(),
            agreed: locked(&self.agreed).iter().copied().collect(),
            seed: self.seed(),
            strangers: self.strangers().into(),
            released_bytes: reaper::waiting_bytes(),
        }
    }

    /// What lanes last said of their groups.
    pub(super) fn groups(&self) -> Vec<GroupReport> {
        let groups = locked(&self.groups);
        let mut groups: Vec<GroupReport> = groups.iter().flatten().cloned().collect();
        groups.sort_by_key(|group| group.group);
        groups
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody holds one while it could panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
