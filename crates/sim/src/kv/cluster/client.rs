//! A client: reads and writes few keys through any node, and remembers what it saw.

use cenote_kv::group::marks::Marks;
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv_cluster::NodeId;

use super::super::linear::{Call, Kind, Value};
use super::world::{Handle, World};

/// How long it waits for what is not served, in nanoseconds.
const PATIENCE_NS: u64 = 3_000_000_000;
/// Its longest pause between two operations.
const PAUSE_NS: u64 = 1_500_000_000;
/// So many keys for each partition.
const KEYS: u64 = 2;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Client {
    index: u32,
    written: u32,
    rests_until: u64,
    open: Option<Open>,
    pub(super) calls: Vec<(u64, Call)>,
}

struct Open {
    key: u64,
    begun: u64,
    /// None: it reads.
    writes: Option<Value>,
    at: Handle,
    sent: Option<Sent>,
}

struct Sent {
    owner: Handle,
    term: u32,
    xid: u64,
    kind: Kind,
}

/// What came of a step.
enum Outcome {
    Waits,
    /// Nothing was done, for sure.
    Refused,
    /// Nobody knows.
    Lost(Kind),
    Done(Kind),
}

pub(super) fn keys(world: &World) -> u64 {
    KEYS * (world.options.k * world.options.groups) as u64
}

/// The group of a key, and its partition there.
pub(super) fn partition_of(key: u64, world: &World) -> (usize, usize) {
    let place = usize::try_from(key).expect("few keys") % (world.options.k * world.options.groups);
    (place / world.options.k, place % world.options.k)
}

fn name_of(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

impl Client {
    pub(super) fn new(index: usize) -> Self {
        Self {
            index: u32::try_from(index).expect("few clients"),
            ..Self::default()
        }
    }

    pub(super) fn step(&mut self, world: &mut World) {
        match self.open.take() {
            Some(open) => self.go_on(open, world),
            None if world.now >= self.rests_until && !world.nodes.is_empty() => {
                let all: Vec<Handle> = world.nodes.keys().copied().collect();
                let at = *world.random.pick(&all);
                let key = world.random.below(keys(world));
                let writes = world.random.percent(60).then(|| {
                    self.written += 1;
                    let number = self.written * 16 + self.index;
                    Value { number, expiry: 0 }
                });
                self.begin(key, writes, at, world);
            }
            None => {}
        }
    }

    /// Begins to read a key at a node, or to write it.
    pub(super) fn begin(&mut self, key: u64, writes: Option<Value>, at: Handle, world: &World) {
        self.open = Some(Open {
            key,
            begun: world.now,
            writes,
            at,
            sent: None,
        });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// Leaves what it waits for.
    pub(super) fn give_up(&mut self) {
        if let Some(Open {
            key,
            begun,
            sent: Some(sent),
            ..
        }) = self.open.take()
        {
            let ended = None;
            self.calls.push((
                key,
                Call {
                    kind: sent.kind,
                    begun,
                    ended,
                },
            ));
        }
    }

    fn go_on(&mut self, mut open: Open, world: &mut World) {
        let outcome = match &open.sent {
            Some(sent) => await_commit(&open, sent, world),
            None => attempt(&mut open, world),
        };
        let (kind, ended) = match outcome {
            Outcome::Waits if open.sent.is_none() && world.now - open.begun > PATIENCE_NS => {
                world.report.tally.refused += 1;
                return self.rest(world);
            }
            Outcome::Waits => return self.open = Some(open),
            Outcome::Refused => {
                world.report.tally.refused += 1;
                return self.rest(world);
            }
            Outcome::Lost(kind) => (kind, None),
            Outcome::Done(kind) => (kind, Some(world.now)),
        };
        world.report.tally.operations += 1;
        let begun = open.begun;
        self.calls.push((open.key, Call { kind, begun, ended }));
        self.rest(world);
    }

    fn rest(&mut self, world: &mut World) {
        self.rests_until = world.now + world.random.below(PAUSE_NS);
    }
}

/// What was proposed is done when its owner has committed it, and may say so.
fn await_commit(open: &Open, sent: &Sent, world: &mut World) -> Outcome {
    let (group, partition) = partition_of(open.key, world);
    let now = world.now;
    let Some(node) = world.nodes.get_mut(&sent.owner) else {
        return Outcome::Lost(sent.kind);
    };
    if !node.answers(now) {
        return Outcome::Waits;
    }
    if node.seats[group].refused.of(partition).is_some() {
        return Outcome::Lost(sent.kind);
    }
    match node.seats[group].member.owner(partition) {
        Some(owner) if owner.term() != sent.term => Outcome::Lost(sent.kind),
        Some(owner) if owner.committed_xid() >= sent.xid => Outcome::Done(sent.kind),
        Some(_) => Outcome::Waits,
        None => Outcome::Lost(sent.kind),
    }
}

/// Asks the node that the client is connected to, which serves it or passes it on.
fn attempt(open: &mut Open, world: &mut World) -> Outcome {
    let (group, partition) = partition_of(open.key, world);
    let now = world.now;
    let Some(entry) = world.nodes.get(&open.at) else {
        return Outcome::Refused;
    };
    if !entry.answers(now) {
        return Outcome::Waits;
    }
    if entry.seats[group].refused.of(partition).is_some() {
        return Outcome::Refused;
    }
    let Some(owner) = entry.view(group).and_then(|view| view.owner(partition)) else {
        return Outcome::Waits;
    };
    let is_linked = |node| entry.membership.linked(NodeId(node)) == Some(owner);
    let is_here = owner == entry.me;
    if !is_here && !is_linked(owner.node) {
        return Outcome::Waits;
    }
    let handle = match is_here {
        true => Some(open.at),
        false => world.handle_of(owner),
    };
    let Some((handle, node)) =
        handle.and_then(|handle| Some((handle, world.nodes.get_mut(&handle)?)))
    else {
        return Outcome::Waits;
    };
    if !node.answers(now) || !node.seats[group].member.may_read(partition, now) {
        return Outcome::Waits;
    }
    if node.seats[group].refused.of(partition).is_some() {
        return Outcome::Refused;
    }
    let name = name_of(open.key);
    let owner = node.seats[group]
        .member
        .owner(partition)
        .expect("it may be read");
    let hash = owner.hash_of(&name);
    let term = owner.term();
    let (kind, proposed) = match open.writes {
        None => {
            let newest = owner.newest(hash, &name);
            let value = newest.found.map(|found| Value {
                number: found.entry.client_flags,
                expiry: 0,
            });
            (Kind::Read(value), Ok(newest.pending.unwrap_or(0)))
        }
        Some(value) => {
            let change = Change::Put {
                client_flags: value.number,
                expiry: 0,
                marks: Marks::NONE,
                value: &[&value.number.to_le_bytes()],
            };
            (Kind::Write(Some(value)), owner.propose(hash, &name, change))
        }
    };
    match proposed {
        Ok(xid) => {
            open.sent = Some(Sent {
                owner: handle,
                term,
                xid,
                kind,
            });
            let sent = open.sent.as_ref().expect("just put there");
            await_commit(open, sent, world)
        }
        Err(Refusal::Units(run)) => {
            node.seats[group].member.want(partition, run, now);
            node.say();
            world.deliver_out(handle);
            Outcome::Waits
        }
        Err(_) => Outcome::Waits,
    }
}
