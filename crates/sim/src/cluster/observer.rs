//! A host's listener with an eye on it: what the host does to memory, windows and leases.
//!
//! It keeps a book of its own of what was registered, granted and asked back, from what passes
//! through, and asks the host nothing.
//!
//! Checked: what is granted is zero, stands, and was never granted before; a client is told
//! `Unmapped` only once its window is closed (I3, I4); a granted slab is taken back only when its
//! client asked, mapped its place again, or was silent for a lease; a process that takes another's place has
//! every slab that was lent; requests arrive in order. What clients give back it tells the network,
//! whose witness looks for writes that arrive there nevertheless.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_fabric::sim::{Net, NodeId};
use cenote_fabric::{
    Address, ClientId, Event, Generation, Listen, PeerId, Region, Result, Rights, Time, Waker,
    WindowDescriptor, WindowId, sim,
};
use cenote_pool::control::{Reply, Request, Window};
use cenote_pool::ledger::{LEASE, StripeMember};

/// What was seen of hosts.
#[derive(Default)]
pub struct Seen {
    /// What they did that they must not.
    pub broken: Vec<String>,
    /// Whose slabs were taken back.
    pub retired: Vec<ClientId>,
}

/// What is seen of all hosts.
pub type Sightings = Arc<Mutex<Seen>>;

/// See the module's text.
pub struct Observer {
    listener: Box<dyn Listen>,
    machine: (Net, NodeId),
    host: String,
    book: Records,
    seen: Sightings,
}

/// What is known of a host, and goes on when another process takes its place.
pub type Records = Arc<Mutex<Book>>;

/// What has passed through.
#[derive(Default)]
pub struct Book {
    peers: BTreeMap<PeerId, Peer>,
    /// Those that went since the last look: the host may still answer what they had asked before.
    gone: BTreeMap<PeerId, Peer>,
    clients: BTreeMap<ClientId, Heard>,
    /// By window: its generation and its memory.
    standing: BTreeMap<WindowId, (Generation, Arc<Region>)>,
    grants: BTreeMap<Generation, Grant>,
    granted: BTreeSet<Generation>,
    /// Who asked to own a volume last.
    owners: BTreeMap<u128, ClientId>,
}

struct Peer {
    client: ClientId,
    /// The number of its last request: they grow.
    last: u64,
    /// What it asked slabs for.
    places: BTreeMap<u64, StripeMember>,
    /// What it asked for again.
    retakes: BTreeMap<u64, StripeMember>,
    /// Volumes that it asked to own.
    owns: BTreeMap<u64, u128>,
    /// Windows of its own that it asked another name for.
    renewals: BTreeMap<u64, Generation>,
}

/// When a client was heard of last, and how long it had been silent before.
#[derive(Clone, Copy)]
struct Heard {
    at: Time,
    silence: Duration,
}

struct Grant {
    client: ClientId,
    place: StripeMember,
    is_asked_back: bool,
    /// It was an earlier owner's and was not asked for since.
    is_left: bool,
}

/// A slab whose client spoke again is taken back at most this much later: the daemon had decided
/// before it heard.
const DECIDED: Duration = Duration::from_secs(2);

impl Observer {
    /// Sees what a host hears and says on `listener`.
    pub fn new(
        listener: Box<dyn Listen>,
        machine: (Net, NodeId),
        host: &str,
        book: &Records,
        seen: &Sightings,
    ) -> Self {
        Self {
            listener,
            machine,
            host: host.to_owned(),
            book: Arc::clone(book),
            seen: Arc::clone(seen),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complain(&self, what: &str) {
        complain(&self.seen, format!("{}: {what}", self.host));
    }

    fn look_at(&self, event: &Event) {
        let mut book = self.book();
        match event {
            Event::Connected { peer, hello } => {
                let client = hello.client;
                book.hear(client);
                let peer_book = Peer {
                    client,
                    last: 0,
                    places: BTreeMap::new(),
                    retakes: BTreeMap::new(),
                    owns: BTreeMap::new(),
                    renewals: BTreeMap::new(),
                };
                book.peers.insert(*peer, peer_book);
            }
            Event::Disconnected { peer } => book.forget(*peer),
            Event::Message { peer, bytes } => {
                let Some(client) = book.peers.get(peer).map(|peer| peer.client) else {
                    return;
                };
                book.hear(client);
                let Ok(request) = Request::decode(bytes) else {
                    return;
                };
                let outcome = book.ask(*peer, client, &request);
                drop(book);
                if let Request::Unmap { window } = request {
                    let (net, node) = &self.machine;
                    net.note_given_back(*node, Generation(window.generation), client);
                }
                if let Err(what) = outcome {
                    self.complain(&what);
                }
            }
            _ => {}
        }
    }

    /// Holds an answer against the book.
    fn check(&self, peer: PeerId, reply: &Reply) {
        let outcome = match reply {
            Reply::Mapped { request, window } => self.book().grant(peer, *request, *window),
            Reply::Unmapped { window } => self.book().give_back(*window),
            Reply::Owned { request, .. } => self.book().own(peer, *request),
            _ => Ok(()),
        };
        if let Err(what) = outcome {
            self.complain(&what);
        }
    }
}

impl Book {
    /// What a process knows that has these windows of the one before it.
    ///
    /// # Errors
    /// A slab that is lent is not among them.
    pub fn inherit(
        &mut self,
        windows: &[(Arc<Region>, WindowDescriptor)],
    ) -> std::result::Result<(), String> {
        self.peers.clear();
        self.gone.clear();
        let standing = windows.iter().map(|(region, window)| {
            let standing = (window.generation, Arc::clone(region));
            (window.id, standing)
        });
        self.standing = standing.collect();
        let stands = |generation: &Generation| {
            let mut windows = windows.iter();
            windows.any(|(_, window)| window.generation == *generation)
        };
        let lent = self.grants.iter();
        let mut lent = lent.filter(|(_, grant)| !grant.is_asked_back);
        let forgotten = lent.find(|(generation, _)| !stands(generation));
        let forgotten = forgotten.map(|(_, grant)| grant.place);
        self.grants.retain(|generation, _| stands(generation));
        match forgotten {
            Some(place) => Err(format!("the slab of {place:?} is lent and not handed over")),
            None => Ok(()),
        }
    }

    fn hear(&mut self, client: ClientId) {
        let now = sim::now();
        let before = self.clients.get(&client).copied();
        let heard = match before {
            Some(heard) if heard.at == now => heard,
            Some(heard) => Heard {
                at: now,
                silence: now.since(heard.at),
            },
            None => Heard {
                at: now,
                silence: Duration::ZERO,
            },
        };
        self.clients.insert(client, heard);
    }

    fn ask(
        &mut self,
        peer: PeerId,
        client: ClientId,
        request: &Request,
    ) -> std::result::Result<(), String> {
        let peer = self.peers.get_mut(&peer).expect("a known peer asks");
        let last = peer.last;
        match *request {
            Request::Map {
                request,
                volume,
                extent,
                member,
            } => {
                let place = StripeMember {
                    volume,
                    extent,
                    member,
                };
                peer.places.insert(request, place);
                peer.last = request;
                // A second slab for one place ends the first.
                let theirs = |grant: &&mut Grant| grant.client == client && grant.place == place;
                for grant in self.grants.values_mut().filter(theirs) {
                    grant.is_asked_back = true;
                }
            }
            Request::Fill { request, .. } => peer.last = request,
            Request::Own {
                request, volume, ..
            } => {
                peer.owns.insert(request, volume);
                peer.last = request;
                self.owners.insert(volume, client);
            }
            Request::Retake {
                request,
                volume,
                extent,
                member,
                ..
            } => {
                let place = StripeMember {
                    volume,
                    extent,
                    member,
                };
                peer.retakes.insert(request, place);
                peer.last = request;
            }
            Request::Renew { request, window } => {
                let generation = Generation(window.generation);
                peer.renewals.insert(request, generation);
                peer.last = request;
            }
            Request::Leave { volume } => {
                let left = |grant: &&mut Grant| {
                    grant.is_left && grant.client == client && grant.place.volume == volume
                };
                for grant in self.grants.values_mut().filter(left) {
                    grant.is_asked_back = true;
                }
                return Ok(());
            }
            Request::Unmap { window } => {
                if let Some(grant) = self.grants.get_mut(&Generation(window.generation))
                    && grant.client == client
                {
                    grant.is_asked_back = true;
                }
                return Ok(());
            }
            _ => return Ok(()),
        }
        if peer.last > last {
            Ok(())
        } else {
            Err(format!("request {} arrived after {last}", peer.last))
        }
    }

    fn grant(
        &mut self,
        peer: PeerId,
        request: u64,
        window: Window,
    ) -> std::result::Result<(), String> {
        let generation = Generation(window.generation);
        let standing = self.standing.get(&WindowId(window.id));
        let Some((_, region)) = standing.filter(|(standing, _)| *standing == generation) else {
            return Err(format!("window {} is granted and closed", window.id));
        };
        let known = self.peers.get_mut(&peer).or(self.gone.get_mut(&peer));
        let renewed = known.and_then(|peer| peer.renewals.remove(&request));
        if let Some(renewed) = renewed {
            return match renewed == generation {
                true => Ok(()),
                false => Err(format!("window {} has an old name", window.id)),
            };
        }
        let retaken = self
            .peers
            .get_mut(&peer)
            .and_then(|peer| Some((peer.client, peer.retakes.remove(&request)?)));
        if let Some((client, place)) = retaken {
            return match self.grants.get_mut(&generation) {
                Some(grant) if grant.client == client && grant.place == place => {
                    grant.is_left = false;
                    Ok(())
                }
                _ => Err(format!("window {} is not what was asked for", window.id)),
            };
        }
        let mut bytes = vec![0xff; usize::try_from(region.len_bytes()).expect("slabs are small")];
        if region.read(0, &mut bytes).is_err() {
            return Err(format!("window {} is granted without memory", window.id));
        }
        if bytes.iter().any(|&byte| byte != 0) {
            return Err("a slab with a former client's bytes is lent".to_owned());
        }
        if !self.granted.insert(generation) {
            return Err(format!("window {} is granted twice", window.id));
        }
        let peers = [&mut self.peers, &mut self.gone];
        let Some(peer) = peers.into_iter().find_map(|peers| peers.get_mut(&peer)) else {
            return Ok(());
        };
        let Some(place) = peer.places.remove(&request) else {
            return Err(format!("grant {request} was not asked for"));
        };
        self.grants.insert(
            generation,
            Grant {
                client: peer.client,
                place,
                is_asked_back: false,
                is_left: false,
            },
        );
        Ok(())
    }

    fn forget(&mut self, peer: PeerId) {
        if let Some(gone) = self.peers.remove(&peer) {
            self.gone.insert(peer, gone);
        }
    }

    /// A slab has a new name: with it a new client, or what its client asked for.
    fn renew(&mut self, renewed: WindowDescriptor) -> std::result::Result<(), String> {
        let id = renewed.id.0;
        let Some((generation, _)) = self.standing.get_mut(&renewed.id) else {
            return Err(format!("window {id} is renewed and closed"));
        };
        let old = std::mem::replace(generation, renewed.generation);
        let Some(grant) = self.grants.remove(&old) else {
            return Err(format!("window {id} is renewed and was nobody's"));
        };
        let known = self.peers.values_mut().chain(self.gone.values_mut());
        let its_own = known.filter(|peer| peer.client == grant.client);
        let mut is_asked = false;
        for peer in its_own {
            is_asked |= peer.retakes.values().any(|place| *place == grant.place);
            let asked = peer.renewals.values_mut().find(|asked| **asked == old);
            is_asked |= asked.is_some();
            if let Some(asked) = asked {
                *asked = renewed.generation;
            }
        }
        if is_asked {
            self.granted.insert(renewed.generation);
            self.grants.insert(renewed.generation, grant);
            return Ok(());
        }
        let is_live = self.peers.values().any(|peer| peer.client == grant.client)
            && !self.is_silent(grant.client);
        if is_live {
            return Err(format!("window {id} passes on from a live owner"));
        }
        let owner = self.owners.get(&grant.place.volume);
        let client = *owner.ok_or_else(|| format!("window {id} passes on to nobody"))?;
        self.granted.insert(renewed.generation);
        self.grants.insert(
            renewed.generation,
            Grant {
                client,
                is_left: true,
                ..grant
            },
        );
        Ok(())
    }

    /// A client is told that it owns a volume: nobody else has a name for any slab of it.
    fn own(&mut self, peer: PeerId, request: u64) -> std::result::Result<(), String> {
        let Some(peer) = self.peers.get_mut(&peer) else {
            return Ok(());
        };
        let volume = peer.owns.remove(&request);
        let volume = volume.ok_or_else(|| format!("request {request} to own was not made"))?;
        let client = peer.client;
        let others = |grant: &&Grant| grant.place.volume == volume && grant.client != client;
        match self.grants.values().find(others) {
            Some(grant) => Err(format!(
                "{:?} has another owner and its former one still has a name for it",
                grant.place
            )),
            None => Ok(()),
        }
    }

    fn is_silent(&self, client: ClientId) -> bool {
        let now = sim::now();
        self.clients.get(&client).is_none_or(|heard| {
            let silence = now.since(heard.at);
            silence > LEASE || (silence <= DECIDED && heard.silence > LEASE)
        })
    }

    /// A client is told that its slab is gone.
    fn give_back(&self, window: Window) -> std::result::Result<(), String> {
        let standing = self.standing.get(&WindowId(window.id));
        let is_open = standing.is_some_and(|(standing, _)| standing.0 == window.generation);
        if is_open && self.granted.contains(&Generation(window.generation)) {
            return Err(format!("window {} is given back and open", window.id));
        }
        Ok(())
    }

    /// Whose slab was taken back, if it was lent.
    fn revoke(&mut self, window: WindowId) -> std::result::Result<Option<ClientId>, String> {
        let Some((generation, _)) = self.standing.remove(&window) else {
            return Ok(None);
        };
        let Some(grant) = self.grants.remove(&generation) else {
            return Ok(None);
        };
        if grant.is_asked_back || self.is_silent(grant.client) {
            Ok(Some(grant.client))
        } else {
            Err(format!("window {} is taken from a live client", window.0))
        }
    }
}

/// Notes a broken promise.
pub fn complain(seen: &Sightings, text: String) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.broken.push(text);
}

impl Listen for Observer {
    fn addresses(&self) -> Vec<Address> {
        self.listener.addresses()
    }

    fn waker(&self) -> Waker {
        self.listener.waker()
    }

    fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor> {
        let window = self.listener.register(Arc::clone(&region), rights)?;
        let replaced = self
            .book()
            .standing
            .insert(window.id, (window.generation, region));
        if replaced.is_some() {
            self.complain(&format!("window {} is opened twice", window.id.0));
        }
        Ok(window)
    }

    fn revoke(&self, window: WindowId) -> Result<()> {
        let outcome = self.book().revoke(window);
        match outcome {
            Ok(owner) => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.retired.extend(owner);
            }
            Err(what) => self.complain(&what),
        }
        self.listener.revoke(window)
    }

    fn renew(&self, window: WindowId) -> Result<WindowDescriptor> {
        let renewed = self.listener.renew(window)?;
        let outcome = self.book().renew(renewed);
        if let Err(what) = outcome {
            self.complain(&what);
        }
        Ok(renewed)
    }

    fn send(&mut self, peer: PeerId, message: &[u8]) -> Result<()> {
        if let Ok(reply) = Reply::decode(message) {
            self.check(peer, &reply);
        }
        self.listener.send(peer, message)
    }

    fn close(&mut self, peer: PeerId) {
        self.book().forget(peer);
        self.listener.close(peer);
    }

    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> Result<()> {
        let old = events.len();
        self.book().gone.clear();
        self.listener.poll(timeout, events)?;
        for event in &events[old..] {
            self.look_at(event);
        }
        Ok(())
    }
}
