//! What a worker serves: the partitions that are its own, and the way to all others.
//!
//! A server alone ([`Alone`]) has one partition for each worker. In a cluster this is the place of
//! the links to other nodes, which the worker polls along with its clients.

use std::net::SocketAddr;
use std::time::Duration;

use cenote_kv::engine::Partition;
use cenote_kv::group::owner::{Owner, Refusal};
use cenote_kv::group::{Bound, Counts, SWEEP_NS};
use cenote_kv::memory::classes::Gauge;
use cenote_kv::memory::footprint::{Footprint, Others, Roles};
use cenote_kv::memory::key_hash::KeyHasher;
use mio::event::Event;
use mio::{Registry, Token};

use super::batch::{Batch, Ticket};
use super::clock::now_ns;

#[cfg(doc)]
use cenote_kv::memory::key_hash::place_hash;

/// Where a key is served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// By this worker, in its partition of this index.
    Here(usize),
    /// By another worker of this process.
    Worker(usize),
    /// By another node.
    Node(u32),
}

/// How full the partitions of a worker are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Figures {
    /// Items.
    pub items: u64,
    /// Bytes that they take, keys and overhead included.
    pub bytes: u64,
    /// Memory that is taken for items.
    pub resident_bytes: u64,
    /// Items that went without being asked to.
    pub went: Counts,
}

/// The items of one class.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClassFigures {
    /// Those that are here.
    pub here: Gauge,
    /// Those that went without being asked to.
    pub went: Counts,
}

impl ClassFigures {
    /// Adds those of a partition.
    pub fn add(&mut self, owner: &Owner, class: usize) {
        let (here, went) = owner.class(class);
        self.here.items += here.items;
        self.here.bytes += here.bytes;
        self.went += went;
    }
}

/// The first token of those that are a backend's own; a worker uses none from here on.
pub const FIRST_TOKEN: Token = Token(1 << 40);

/// The partitions that a worker serves. All of it is called on the worker's thread and must not block.
pub trait Partitions {
    /// One of them.
    type Partition: Partition;

    /// Where the key with this [hash](place_hash) is served.
    fn route(&self, place: u32) -> Route;
    /// Partitions that are, or were, served here: the bound of their indices. It never shrinks.
    fn partition_count(&self) -> usize;
    /// One of them. One that is served here no longer refuses what is proposed.
    fn partition(&mut self, index: usize) -> &mut Self::Partition;
    /// Whether one of them may be served at this moment: no other owner can have come.
    fn may_serve(&mut self, index: usize) -> bool;
    /// What is answered to a request for a partition that is gone for good; `None` for one that is not.
    fn loss(&self, index: usize, text: &[u8]) -> Option<&'static [u8]>;
    /// Whether a partition that is, or was, served here still is, or others still ask here for it.
    fn is_here(&self, index: usize) -> bool;
    /// Changes when what was proposed to a partition and is not committed may have been dropped.
    fn term(&self, index: usize) -> u32;
    /// A request could not be served for this reason; it is tried again.
    fn on_refusal(&mut self, index: usize, refusal: Refusal);
    /// Gives them their share of so much memory of the whole process. Whether that can be.
    fn set_memory(&mut self, bytes: u64) -> bool;
    /// How full they are.
    fn figures(&self) -> Figures;
    /// Classes of items of which something has changed since this was last asked, as bits.
    fn take_changed_classes(&mut self) -> u64;
    /// The items of a class.
    fn class(&self, class: usize) -> ClassFigures;
    /// The system says that it is `said`, seconds since 1970; called when that changes, and at the start.
    /// It may jump.
    fn tick(&mut self, said: u64);
    /// The time moves on by so many seconds, as what the system says does from now on.
    fn leap(&mut self, seconds: u32);
}

/// The other nodes of a cluster, as one worker reaches them. It must not block either.
pub trait Peers {
    /// Those that have partitions of this worker's: what `flush_all` reaches, beside all workers.
    fn nodes(&self) -> Vec<u32>;
    /// Changes when another process comes to own a partition of this worker's, here or elsewhere; the same on
    /// all nodes that know the same owners.
    fn owners(&self) -> u64;
    /// Whether a client of this node may ask for the key with this hash, now that its owner may be another:
    /// what was sent to the former one has been answered.
    fn is_in_order(&self, place: u32) -> bool;
    /// Where clients find the owner of each partition of the cluster, in the order of hashes: partition
    /// `(h * n) >> 32` of n has a key whose XXH3-64 ends in the 32 bits h. `None`: not known now.
    fn shards(&self) -> Vec<Option<SocketAddr>>;
    /// Sends a request to a node. It is answered through [`Peers::poll`] in any case, if need be by an
    /// error.
    fn forward(&mut self, node: u32, ticket: Ticket, text: &[u8]);
    /// Memory of requests that are on their way.
    fn asked_bytes(&self) -> usize;
    /// Whether a node may be answered more, where so many bytes of answers to it are held already.
    fn has_room_for_answers(&self, node: u32, held_bytes: usize) -> bool;
    /// Whether a node still waits for the answer to a request: its link has not broken since.
    fn is_awaited(&self, ticket: &Ticket) -> bool;
    /// Sends an answer to the node that has asked.
    fn answer(&mut self, ticket: Ticket, text: &[u8]);
    /// Once in every turn, after the clients' requests: tells what nodes ask and answer.
    fn poll(&mut self, asks: &mut Batch, answers: &mut Batch);
}

/// What a worker has beside its clients: partitions, and in a cluster the way to other nodes.
pub trait Backend: Partitions + Send + 'static {
    /// The other nodes.
    type Peers: Peers;

    /// `None` of a server that is alone.
    fn peers(&self) -> Option<&Self::Peers>;
    /// The same, to ask and to answer.
    fn peers_mut(&mut self) -> Option<&mut Self::Peers>;
    /// Registers what it waits for, with tokens from [`FIRST_TOKEN`].
    ///
    /// # Errors
    /// The poll refuses it.
    fn register(&mut self, registry: &Registry) -> std::io::Result<()>;
    /// Something that it waits for has happened.
    fn on_event(&mut self, event: &Event);
    /// At the end of every turn: sends what is to be sent. Returns when it wants to be called again
    /// at the latest.
    fn flush(&mut self) -> Option<Duration>;
}

/// Least memory of a worker's partition: with less it could not keep an item of the usual limit.
const SHARE_BYTES_MIN: u64 = 2 << 20;

/// Addresses for values that there are, for each byte of them that `-m` allows at first.
const ADDRESSES_FACTOR: u64 = 8;
/// Beyond it there are no more than `-m` needs: a chunk costs some bytes, used or not.
const ADDRESSES_MAX: u64 = 64 << 30;

/// The partition of one worker of a server that is alone.
pub struct Alone {
    partition: Owner,
    worker: usize,
    workers: u64,
}

impl Alone {
    /// The backend of one of some workers, which share a process's memory equally.
    pub fn new(
        worker: usize,
        workers: usize,
        memory_bytes: u64,
        evicts: bool,
        hasher: KeyHasher,
    ) -> Self {
        let workers = workers as u64;
        let footprint = footprint(memory_bytes, workers);
        // Addresses are for what `cache_memlimit` may give.
        let region_bytes = footprint.map_or(0, |footprint| footprint.region_cap(0));
        let region_bytes = region_bytes.max((region_bytes * ADDRESSES_FACTOR).min(ADDRESSES_MAX));
        let bound = Bound {
            footprint,
            ..Bound::NONE
        };
        let mut partition = Owner::alone(hasher, region_bytes, bound);
        partition.set_eviction(evicts);
        // No two workers' items have one cas number.
        partition.begin_view(u32::try_from(worker).unwrap_or(u32::MAX).saturating_add(1));
        Self {
            partition,
            worker,
            workers,
        }
    }
}

/// What one of some workers may take of a process's memory.
fn footprint(memory_bytes: u64, workers: u64) -> Option<Footprint> {
    let others = Others::new(memory_bytes, Roles::ALONE);
    let share = (memory_bytes - others.all) / workers;
    Footprint::new(share.max(SHARE_BYTES_MIN), 0, Roles::ALONE)
}

impl Partitions for Alone {
    type Partition = Owner;

    fn route(&self, place: u32) -> Route {
        let worker = (u64::from(place) * self.workers) >> 32;
        match usize::try_from(worker).expect("is below their number") {
            worker if worker == self.worker => Route::Here(0),
            worker => Route::Worker(worker),
        }
    }

    fn partition_count(&self) -> usize {
        1
    }

    fn partition(&mut self, _index: usize) -> &mut Owner {
        &mut self.partition
    }

    fn may_serve(&mut self, _index: usize) -> bool {
        true
    }

    fn loss(&self, _index: usize, _text: &[u8]) -> Option<&'static [u8]> {
        None
    }

    fn is_here(&self, _index: usize) -> bool {
        true
    }

    fn term(&self, _index: usize) -> u32 {
        0
    }

    fn on_refusal(&mut self, _index: usize, _refusal: Refusal) {}

    fn set_memory(&mut self, bytes: u64) -> bool {
        let Some(footprint) = footprint(bytes, self.workers) else {
            return false;
        };
        self.partition.set_footprint(footprint)
    }

    fn figures(&self) -> Figures {
        let replica = self.partition.replica();
        let allocator = replica.allocator();
        let values = allocator.region_bytes() - allocator.free_bytes();
        Figures {
            items: replica.table().len() as u64,
            bytes: values + replica.table().used_bytes(),
            resident_bytes: self.partition.resident_bytes(),
            went: self.partition.counts(),
        }
    }

    fn take_changed_classes(&mut self) -> u64 {
        self.partition.take_changed_classes()
    }

    fn class(&self, class: usize) -> ClassFigures {
        let mut figures = ClassFigures::default();
        figures.add(&self.partition, class);
        figures
    }

    fn tick(&mut self, said: u64) {
        let said = u32::try_from(said).unwrap_or(u32::MAX);
        self.partition.follow(said, now_ns());
    }

    fn leap(&mut self, seconds: u32) {
        let now = self.partition.now().saturating_add(seconds);
        self.partition.tick(now);
    }
}

impl Backend for Alone {
    type Peers = Nobody;

    fn peers(&self) -> Option<&Nobody> {
        None
    }

    fn peers_mut(&mut self) -> Option<&mut Nobody> {
        None
    }

    fn register(&mut self, _registry: &Registry) -> std::io::Result<()> {
        Ok(())
    }

    fn on_event(&mut self, _event: &Event) {}

    fn flush(&mut self) -> Option<Duration> {
        if self.partition.has_to_sweep() {
            self.partition.sweep(now_ns());
        }
        // Nobody may ask for anything meanwhile.
        let is_to_go_on = self.partition.has_to_clear();
        is_to_go_on.then_some(Duration::from_nanos(SWEEP_NS))
    }
}

/// The other nodes of a server that is alone: there is no value of it.
pub enum Nobody {}

impl Peers for Nobody {
    fn nodes(&self) -> Vec<u32> {
        match *self {}
    }

    fn owners(&self) -> u64 {
        match *self {}
    }

    fn is_in_order(&self, _place: u32) -> bool {
        match *self {}
    }

    fn shards(&self) -> Vec<Option<SocketAddr>> {
        match *self {}
    }

    fn forward(&mut self, _node: u32, _ticket: Ticket, _text: &[u8]) {
        match *self {}
    }

    fn asked_bytes(&self) -> usize {
        match *self {}
    }

    fn has_room_for_answers(&self, _node: u32, _held_bytes: usize) -> bool {
        match *self {}
    }

    fn is_awaited(&self, _ticket: &Ticket) -> bool {
        match *self {}
    }

    fn answer(&mut self, _ticket: Ticket, _text: &[u8]) {
        match *self {}
    }

    fn poll(&mut self, _asks: &mut Batch, _answers: &mut Batch) {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use cenote_kv::group::marks::Marks;
    use cenote_kv::group::owner::Change;

    use super::*;

    #[test]
    fn a_server_that_nobody_asks_goes_on_giving_memory_back() {
        let mut alone = Alone::new(0, 1, 64 << 20, true, KeyHasher::new([7; 16]));
        // More small items than go in one step.
        for number in 0..100_000 {
            let key = format!("key {number}");
            let hash = alone.partition.hash_of(key.as_bytes());
            let change = Change::Put {
                client_flags: 0,
                expiry: 0,
                marks: Marks::NONE,
                value: &[&[7; 300]],
            };
            alone
                .partition
                .propose(hash, key.as_bytes(), change)
                .unwrap();
        }
        assert_eq!(alone.flush(), None);
        assert!(alone.set_memory(24 << 20));
        let mut now = now_ns();
        assert!(alone.flush().is_some());
        while alone.partition.has_to_clear() {
            now += SWEEP_NS;
            alone.partition.sweep(now);
        }
        assert_eq!(alone.flush(), None);
    }
}
