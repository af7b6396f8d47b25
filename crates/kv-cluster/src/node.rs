//! A node of a cluster: registers in etcd, has views agreed on there, and serves by its lanes.
//!
//! The thread that runs it talks to etcd and tells the lanes what was agreed on. Each lane is a worker
//! of the server: its links, its groups and some of the clients.

mod board;
mod entry;
mod keeper;
mod leaving;
mod report;
mod times;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

use cenote_fabric::ClusterKey;
use mio::net::TcpListener;

pub(super) use super::steward::Proposal;
pub(super) use board::{Order, Parting, Shared};
use entry::Entry;
use keeper::Keeper;
use leaving::Leaving;
pub use report::{
    ChangeReport, GroupReport, HandoffReport, NodeReport, PartitionReport, PeerReport, PeerState,
    PlaceReport, StrangersReport,
};
pub(super) use times::Clock;
pub use times::{AgreedReport, TakeoverReport};

use super::NodeId;
use super::ask;
use super::config::{ClusterConfig, DocumentError, DocumentKeys, NodeState, Registration, VERSION};
use super::detector::{Detector, Settings, State};
use super::etcd::{Credentials, Etcd, Tls, Watch};
use super::forward;
use super::handshake::Hello;
use super::lane::{Lane, Parts, now_ns};
use super::links::Links;
use super::membership::Registered;
use super::registrar::RegistrarError;
use super::seeding::Testimony;
use super::steward::{Notice, Steward};
use super::store::{EtcdError, LeaseId};
use cenote_kv::group::process::Process;
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_kv::protocol::Limits;
use cenote_memcached::threads;
use cenote_memcached::{BindError, FIRST_TOKEN, Server};

/// Longest wait, should a wake-up be lost.
const TURN_MAX: Duration = Duration::from_secs(1);
/// The same where something is to be tried again, or looked at, soon.
const BUSY_TURN: Duration = Duration::from_millis(5);
/// How long another node may take to say what it has.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// What a node is told.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node.
    pub name: String,
    /// Endpoints of etcd, separated by commas.
    pub etcd: String,
    /// User at etcd, where it asks for one.
    pub credentials: Option<Credentials>,
    /// Where it speaks TLS.
    pub tls: Option<Tls>,
    /// The cluster's key.
    pub key: ClusterKey,
    /// Address of this machine at which peers connect, each lane at a port of its own.
    pub listen: IpAddr,
    /// How clients are served. Threads and memory are the cluster's.
    pub serving: cenote_memcached::Settings,
    /// Times of failure detection.
    pub settings: Settings,
    /// How long it may take, when it is asked to stop, until others have what it has.
    pub drain_limit: Duration,
}

/// Why a node ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The cluster's documents.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The system refuses a socket.
    #[error("{what}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The address for clients.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// What it was told by its group cannot be; its place is taken by others.
    #[error("{0}")]
    Failed(String),
    /// The cluster was made with another key.
    #[error(
        "this is not the key of cluster {0}: copy the file cluster.key from where the cluster was made"
    )]
    Key(String),
    /// Clients may ask for more than nodes can tell each other.
    #[error("requests or items may be too long for the links between nodes: {0:?}")]
    Limits(Limits),
    /// Peers cannot connect to where it listens.
    #[error("peers cannot reach this node: {0} {1}")]
    Listen(IpAddr, String),
    /// Another process runs under this name.
    #[error("another process has taken the place of node {0}")]
    Replaced(String),
}

impl From<RegistrarError> for NodeError {
    fn from(error: RegistrarError) -> Self {
        match error {
            RegistrarError::Store(error) => error.into(),
            RegistrarError::Document(error) => error.into(),
            RegistrarError::Replaced(name) => Self::Replaced(name),
        }
    }
}

impl From<EtcdError> for NodeError {
    fn from(error: EtcdError) -> Self {
        Self::Document(error.into())
    }
}

/// Ends a node from another thread.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    shared: Arc<StopShared>,
}

#[derive(Debug, Default)]
struct StopShared {
    asked_at: OnceLock<Instant>,
    is_at_once: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Stop {
    /// Asks it to end when others have what it has.
    pub fn stop(&self) {
        self.shared.asked_at.get_or_init(Instant::now);
        if let Some(thread) = self.shared.thread.get() {
            thread.unpark();
        }
    }

    /// Asks it to end whatever is lost by that.
    pub fn stop_at_once(&self) {
        self.shared.is_at_once.store(true, Ordering::SeqCst);
        self.stop();
    }

    fn is_asked(&self) -> bool {
        self.shared.asked_at.get().is_some()
    }

    /// Whether it is to end though others do not have all that it has.
    fn is_over(&self, limit: Duration) -> bool {
        let asked_at = self.shared.asked_at.get();
        self.shared.is_at_once.load(Ordering::SeqCst)
            || asked_at.is_some_and(|at| at.elapsed() >= limit)
    }
}

/// What a node that runs says of itself.
#[derive(Clone)]
pub struct Ready {
    /// Its number.
    pub node: NodeId,
    /// Where peers, and observers, connect.
    pub peers: Vec<SocketAddr>,
    /// Where clients connect.
    pub clients: Vec<SocketAddr>,
    /// The server of its clients.
    pub server: cenote_memcached::Handle,
    /// What it says of its groups.
    pub groups: Groups,
}

/// The groups of a node that runs, as seen from another thread.
#[derive(Clone)]
pub struct Groups(Arc<Shared>);

impl Groups {
    /// What each lane last said, of those groups of which it knows a view.
    #[must_use]
    pub fn report(&self) -> Vec<GroupReport> {
        self.0.groups()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.homes.len()
    }

    /// What has become of connections to its lanes that had not proven the key.
    #[must_use]
    pub fn strangers(&self) -> StrangersReport {
        self.0.strangers().into()
    }
}

/// Runs a node until it is asked to stop; `ready` is called once, when others can find it.
///
/// # Errors
/// See [`NodeError`]. That etcd is away for a while is none: the node goes on with what it knows.
pub fn run(config: &NodeConfig, stop: &Stop, ready: impl FnOnce(&Ready)) -> Result<(), NodeError> {
    stop.shared.thread.get_or_init(std::thread::current);
    let started = {
        let span = tracing::info_span!("join cluster", cenote.kv.node = config.name);
        span.in_scope(|| Node::start(config, stop))?
    };
    let Some((mut node, server)) = started else {
        tracing::info!("stopped before it joined");
        return Ok(());
    };
    let handle = server.handle();
    ready(&Ready {
        node: node.id,
        peers: node.registration.peers.clone(),
        clients: node.registration.clients.clone(),
        server: handle.clone(),
        groups: Groups(Arc::clone(&node.shared)),
    });
    let serving = threads::spawn("front", move || server.serve()).map_err(os("start a thread"))?;
    let ended = node.steer(stop, &handle, || serving.is_finished());
    handle.stop();
    let served = serving.join().expect("a worker does not panic");
    ended.and(served.map_err(os("serve")))
}

struct Node {
    id: NodeId,
    name: String,
    etcd: Etcd,
    key: ClusterKey,
    config: Arc<ClusterConfig>,
    keys: DocumentKeys,
    registration: Registration,
    keeper: Keeper,
    watch: Watch,
    steward: Steward,
    shared: Arc<Shared>,
    drain_limit: Duration,
    /// It gives its places up, to end.
    leaving: Option<Leaving>,
}

/// A server and what its workers serve.
struct Bound {
    server: Server,
    lanes: Vec<Lane>,
}

impl Bound {
    fn handle(&self) -> cenote_memcached::Handle {
        self.server.handle()
    }

    fn serve(self) -> io::Result<()> {
        let mut lanes = self.lanes.into_iter();
        let lane = |_| lanes.next().expect("a lane for each worker");
        self.server.run(lane).map(drop)
    }
}

impl Node {
    /// Joins the cluster; `None`: it is to stop before it has.
    fn start(config: &NodeConfig, stop: &Stop) -> Result<Option<(Self, Bound)>, NodeError> {
        if !forward::is_carried(&config.serving.limits) {
            return Err(NodeError::Limits(config.serving.limits));
        }
        let Some(entry) = Entry::ask(config, stop)? else {
            return Ok(None);
        };
        let Entry {
            etcd,
            keys,
            cluster,
            id,
            names,
            plan,
            incarnation,
        } = entry;
        let seed = random()?;
        let server = Server::bind(cenote_memcached::Settings {
            workers: cluster.lanes,
            memory_bytes: cluster.memory_bytes,
            buffer_bytes: cluster.memory().0.buffers,
            ..config.serving.clone()
        })?;
        let mut listeners = Vec::new();
        let (mut bells, mut wakers) = (Vec::new(), Vec::new());
        for _ in 0..cluster.lanes {
            let listener = TcpListener::bind(SocketAddr::new(config.listen, 0));
            listeners.push(listener.map_err(|error| {
                NodeError::Failed(format!("listen for peers at {}: {error}", config.listen))
            })?);
            let pair = std::os::unix::net::UnixStream::pair();
            let (bell, waker) = pair.map_err(os("make a pair of sockets"))?;
            for end in [&bell, &waker] {
                let set = end.set_nonblocking(true);
                set.map_err(os("set a socket up"))?;
            }
            bells.push(bell);
            wakers.push(mio::net::UnixStream::from_std(waker));
        }
        let peers = listeners.iter().map(TcpListener::local_addr);
        let peers: io::Result<Vec<SocketAddr>> = peers.collect();
        let registration = Registration {
            version: VERSION,
            name: config.name.clone(),
            clients: server.tcp_addresses(),
            peers: peers.map_err(os("find our address"))?,
            incarnation,
            state: NodeState::Up,
        };
        let homes = plan.iter();
        let homes = homes.map(|nodes| nodes.iter().map(|node| node.0).collect());
        let shared = Arc::new(Shared::new(
            id,
            cluster.region_bytes,
            homes.collect(),
            registration.clone(),
            bells,
        ));
        shared.take_charge();
        let registries = server.registries().map_err(os("watch sockets"))?;
        let hasher = KeyHasher::of_cluster(&config.key, &config.cluster);
        let mut lanes = Vec::new();
        for (index, (listener, waker)) in listeners.into_iter().zip(wakers).enumerate() {
            let hello = Hello {
                cluster: config.cluster.clone(),
                node: id,
                incarnation,
                lane: u16::try_from(index).expect("lanes are few"),
                protection: cluster.link_traffic,
            };
            let (key, registry) = (config.key.clone(), &registries[index]);
            let links = Links::new(hello, key, listener, registry, FIRST_TOKEN.0);
            lanes.push(Lane::new(Parts {
                index,
                config: Arc::clone(&cluster),
                me: Process {
                    node: id.0,
                    incarnation,
                },
                links: links.map_err(os("register a listener"))?,
                detector: Detector::new(config.settings),
                shared: Arc::clone(&shared),
                waker,
                evicts: config.serving.evicts,
                hasher,
            }));
        }
        let waking = Arc::clone(&shared);
        let watch = Watch::start(&etcd, &keys.prefix(), None, move || waking.wake());
        let me = Process {
            node: id.0,
            incarnation,
        };
        let node = Self {
            id,
            name: config.name.clone(),
            keeper: Keeper::start(&etcd, &keys, id, &registration, &shared)?,
            steward: Steward::new(me, keys.clone(), Arc::clone(&cluster), &names, plan, seed),
            etcd,
            key: config.key.clone(),
            config: cluster,
            keys,
            registration,
            watch,
            shared,
            drain_limit: config.drain_limit,
            leaving: None,
        };
        Ok(Some((node, Bound { server, lanes })))
    }

    /// Talks to etcd until it may stop, or the lanes have ended.
    fn steer(
        &mut self,
        stop: &Stop,
        server: &cenote_memcached::Handle,
        has_ended: impl Fn() -> bool,
    ) -> Result<(), NodeError> {
        while !has_ended() {
            if stop.is_asked() && self.has_left(stop, server) {
                break;
            }
            while let Some(change) = self.watch.poll() {
                self.steward.take(change);
            }
            for proposal in self.shared.take_proposals() {
                self.steward.propose(proposal);
            }
            let (key, cluster) = (&self.key, self.keys.cluster());
            let ask = |steward: &Steward, process| testimony(steward, process, key, cluster);
            let is_puzzled = self.steward.turn(&self.etcd, &ask, now_ns());
            if is_puzzled || self.keeper.take_rewritten() {
                self.watch.restart();
            }
            for notice in self.steward.take_notices() {
                self.tell(notice)?;
            }
            if let Some(failure) = self.shared.failure() {
                return Err(NodeError::Failed(failure));
            }
            if self.keeper.is_replaced() {
                return Err(NodeError::Replaced(self.name.clone()));
            }
            let turn_max = match self.leaving.is_some() || self.steward.is_busy() {
                true => BUSY_TURN,
                false => TURN_MAX,
            };
            std::thread::park_timeout(turn_max);
        }
        Ok(())
    }

    /// Gives up what this node has. True when others have all of it and nobody waits for an answer, or
    /// that has taken too long.
    fn has_left(&mut self, stop: &Stop, server: &cenote_memcached::Handle) -> bool {
        let leaving = self.leaving.get_or_insert_with(|| {
            self.shared.end_soon();
            Leaving::begin(&self.name, self.registration.incarnation)
        });
        if stop.is_over(self.drain_limit) {
            tracing::warn!("end with places that nobody else has yet");
            return true;
        }
        // Others are not to give it anything meanwhile. It is marked once it hears so: the mark may
        // be lost with its registration, which is written again without.
        if self.registration.state != NodeState::Draining && leaving.is_due(Instant::now()) {
            match self.keys.drain(&self.etcd, self.id) {
                Ok(true) => {}
                Ok(false) => tracing::warn!("mark this node as draining: it is not registered"),
                Err(error) => tracing::warn!(%error, "mark this node as draining"),
            }
            leaving.note_try(Instant::now());
        }
        let parting = self.shared.parting();
        if parting >= Parting::Apart {
            server.drain();
        }
        server.is_drained() && parting == Parting::Done
    }

    /// Tells the lanes.
    fn tell(&mut self, notice: Notice) -> Result<(), NodeError> {
        match notice {
            Notice::View {
                group,
                view,
                is_ours,
            } => {
                if is_ours {
                    self.shared.note_agreed(group, view.number);
                }
                let lane = group % self.config.lanes;
                self.shared.set_view(group, Arc::clone(&view));
                self.shared.order(lane, Order::View { group, view });
            }
            Notice::Refused { group, number } => {
                let lane = group % self.config.lanes;
                self.shared.order(lane, Order::Refused { group, number });
            }
            Notice::HandOver(next) => {
                let lane = next.group % self.config.lanes;
                self.shared.order(lane, Order::HandOver(next));
            }
            Notice::Node { node, found } => self.tell_of_node(node, found),
            Notice::Seeded(seed) => {
                for lane in 0..self.shared.lanes() {
                    self.shared.order(lane, Order::Seeded(seed));
                }
            }
            Notice::Replaced => return Err(NodeError::Replaced(self.name.clone())),
        }
        Ok(())
    }

    fn tell_of_node(&mut self, node: NodeId, found: Option<(Registration, Option<LeaseId>)>) {
        if let Some((found, _)) = &found {
            // An operator may have it drained.
            if node == self.id && self.registration.state != found.state {
                self.registration.state = found.state;
                self.keeper.change(&self.registration);
                self.shared.set_registration(&self.registration);
            }
            self.shared.set_name(node, found.name.clone());
        }
        let address = found.as_ref().and_then(|(found, _)| found.reachable());
        self.shared.set_clients(node, address);
        for lane in 0..self.shared.lanes() {
            let registered = found.as_ref().map(|(found, lease)| Registered {
                incarnation: found.incarnation,
                address: found.peers.get(lane).copied(),
                state: found.state,
                lease: *lease,
            });
            self.shared.order(lane, Order::Node { node, registered });
        }
    }
}

/// Asks another process what it has.
fn testimony(
    steward: &Steward,
    process: Process,
    key: &ClusterKey,
    cluster: &str,
) -> Option<Testimony> {
    let address = steward.registration(NodeId(process.node))?.peers.first()?;
    let report = ask::report(*address, key, cluster, ASK_LIMIT)
        .inspect_err(|error| tracing::warn!(%process, %error, "ask for its views"))
        .ok()?;
    let report = NodeReport::parse(&report).ok()?;
    let views = report.groups.iter();
    (report.incarnation == process.incarnation).then(|| Testimony {
        seed: report.seed,
        views: views.map(|group| (group.group, group.view)).collect(),
    })
}

fn random() -> Result<u64, NodeError> {
    getrandom::u64().map_err(|error| NodeError::Os {
        what: "get random bytes",
        source: io::Error::other(error.to_string()),
    })
}

impl ChangeReport {
    pub(super) fn now(node: NodeId, state: State) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            node,
            state: PeerState::of(state),
            at_unix_ms: since.map_or(0, board::millis),
        }
    }
}

fn os(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |source| NodeError::Os { what, source }
}
