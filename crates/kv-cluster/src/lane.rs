//! A lane: one worker's part of a node. It has the node's members of some groups, and one link to
//! each other node, on which these groups speak.
//!
//! Group g is on lane g mod lanes, on every node. A request for a key of another lane goes to that
//! worker, one for another node's partition over the link of its lane. Nothing here blocks: what
//! has to be agreed on in etcd is [proposed](super::node::Proposal), and comes back as an [`Order`](super::node::Order).
//!
//! Invariant: all of a group's messages between two nodes are on one link, in order; when one cannot be
//! taken the link is broken, and both sides begin again.

mod backend;
mod bounds;
mod classes;
mod departure;
mod forwarder;
mod orders;
mod outbox;
mod passages;
mod request_order;
mod steering;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_kv::group::Bound;
use cenote_kv::group::member::{Member, Shape};
use cenote_kv::group::owner::Owner;
use cenote_kv::group::process::Process;
use cenote_kv::group::view;
use cenote_kv::group::wire;
use cenote_kv::memory::buffer;
use cenote_kv::memory::key_hash::KeyHasher;
use mio::net::UnixStream;

use super::NodeId;
use super::config::{ClusterConfig, Scheme};
use super::detector::{Action, Cause, Detector, State};
use super::frame::{self, Frame, kind};
use super::links::{LinkEvent, Links};
use super::membership::{Membership, Refused};
use super::node::{ChangeReport, Clock, GroupReport, Shared};
use super::steering::Steering;

use bounds::LinkBounds;
use cenote_memcached::Batch;
pub(super) use cenote_memcached::now_ns;
use forwarder::Forwarding;
use outbox::{Outbox, drop_early_acks};
use passages::Passages;
use request_order::Changing;

/// Longest time between two turns: leases are asked for, and what is stable is told.
const TURN_MAX: Duration = Duration::from_millis(10);
/// The same where nothing has happened for [`BUSY_NS`].
const IDLE_TURN_MAX: Duration = Duration::from_millis(50);
const BUSY_NS: u64 = 200_000_000;
/// How often a lane says how its groups are.
const REPORT_EVERY_NS: u64 = 200_000_000;

/// A member and what is known of its group.
struct Seat {
    group: usize,
    member: Member,
    steering: Steering,
    refused: Refused,
    passages: Passages,
}

/// How far this node is with another.
#[derive(Clone, Copy, Debug, Default)]
struct Goodbye {
    /// The last question, and when it was asked.
    asked: Option<(u64, u64)>,
    /// The last one that was answered; 0: none.
    answered: u64,
}

/// Where messages go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// To the link, as long as it has room. A link that is new may not have been told of yet, so not
    /// before all events have been taken.
    Link,
    /// To what waits for it.
    Outbox,
}

/// See the [module](self).
pub(super) struct Lane {
    index: usize,
    config: Arc<ClusterConfig>,
    me: Process,
    links: Links,
    bounds: LinkBounds,
    membership: Membership,
    events: Vec<LinkEvent>,
    seats: Vec<Seat>,
    /// In place of a partition that is not here.
    closed: Owner,
    /// Messages that a link has no room for yet.
    outboxes: BTreeMap<NodeId, Outbox>,
    /// Where a message is encoded.
    head: BytesMut,
    forwarding: Forwarding,
    changing: Changing,
    /// Where the node leaves: how far it is with each other.
    goodbyes: BTreeMap<NodeId, Goodbye>,
    shared: Arc<Shared>,
    waker: UnixStream,
    seconds: u32,
    reported_at: u64,
    idle_at: u64,
    /// When it last looked at what it refuses.
    refused_at: u64,
    /// Partitions whose items were counted by class last, with their groups and terms.
    counted: Vec<(usize, usize, u32)>,
    /// When something last happened that may have to be followed up.
    busy_at: u64,
}

/// What a lane is made of.
pub(super) struct Parts {
    pub(super) index: usize,
    pub(super) config: Arc<ClusterConfig>,
    pub(super) me: Process,
    pub(super) links: Links,
    pub(super) detector: Detector,
    pub(super) shared: Arc<Shared>,
    pub(super) waker: UnixStream,
    /// Whether items make room for others.
    pub(super) evicts: bool,
    /// By which keys are ordered, on all nodes alike.
    pub(super) hasher: KeyHasher,
}

impl Lane {
    pub(super) fn new(parts: Parts) -> Self {
        let config = &parts.config;
        let (others, footprint) = config.memory();
        let shape = Shape {
            scheme: match config.scheme {
                Scheme::Coded => view::Scheme::Coded,
                Scheme::Replicated => view::Scheme::Replicated,
            },
            k: config.code.data(),
            m: config.code.parities(),
            region_bytes: config.region_bytes,
            evicts: parts.evicts,
            service: config.service,
            bound: Bound {
                footprint,
                pending_bytes: usize::try_from(others.operations).unwrap_or(usize::MAX),
            },
            hasher: parts.hasher,
        };
        let groups = (parts.index..config.groups).step_by(config.lanes);
        let bounds = LinkBounds::of(config);
        let mut links = parts.links;
        links.bound(bounds.out_bytes);
        let seat = |group| Seat {
            group,
            member: Member::new(parts.me, shape.clone()),
            steering: Steering::default(),
            refused: Refused::default(),
            passages: Passages::default(),
        };
        let seats: Vec<Seat> = groups.map(seat).collect();
        Self {
            index: parts.index,
            me: parts.me,
            links,
            bounds,
            membership: Membership::new(parts.me, parts.detector),
            events: Vec::new(),
            closed: Owner::closed(parts.hasher),
            counted: Vec::new(),
            outboxes: BTreeMap::new(),
            head: BytesMut::new(),
            forwarding: Forwarding::new(bounds.window_bytes),
            changing: Changing::new(seats.len(), config.code.data()),
            seats,
            goodbyes: BTreeMap::new(),
            shared: parts.shared,
            waker: parts.waker,
            seconds: 0,
            reported_at: 0,
            idle_at: 0,
            refused_at: 0,
            busy_at: 0,
            config: parts.config,
        }
    }

    /// The seat and the partition of an index.
    fn place(&self, index: usize) -> (usize, usize) {
        let k = self.config.code.data();
        (index / k, index % k)
    }

    /// The index of the partition of a key with this hash, or the lane that has it.
    fn index_of(&self, place: u32) -> Result<usize, usize> {
        let k = self.config.code.data();
        let partitions = (self.config.groups * k) as u64;
        let number = (u64::from(place) * partitions) >> 32;
        let number = usize::try_from(number).expect("is below their number");
        let (group, partition) = (number / k, number % k);
        match group % self.config.lanes {
            lane if lane == self.index => Ok(group / self.config.lanes * k + partition),
            lane => Err(lane),
        }
    }

    fn is_mine(&self, index: usize) -> bool {
        let (seat, partition) = self.place(index);
        let member = &self.seats[seat].member;
        member.owned().any(|owned| owned == partition)
    }

    /// Whether a partition is, by the view, still that of an earlier process of this node.
    fn was_an_earlier_ones(&self, index: usize) -> bool {
        let (seat, partition) = self.place(index);
        let view = self.seats[seat].member.view();
        let owner = view.and_then(|view| view.owner(partition));
        owner.is_some_and(|owner| owner.node == self.me.node && owner != self.me)
    }

    /// The owner of each partition of the groups whose views are known.
    fn owners_in_views(&self) -> impl Iterator<Item = Option<Process>> {
        let views = self.seats.iter().filter_map(|seat| seat.member.view());
        views.flat_map(|view| (0..view.partitions.len()).map(|index| view.owner(index)))
    }

    fn seat_of(&mut self, group: usize) -> Option<&mut Seat> {
        let is_here = group % self.config.lanes == self.index;
        let seat = self.seats.get_mut(group / self.config.lanes);
        seat.filter(|_| is_here)
    }

    fn take_events(&mut self, asks: &mut Batch, answers: &mut Batch) {
        while !self.events.is_empty() {
            let events = std::mem::take(&mut self.events);
            // All of them came before.
            let (now, clock) = (Instant::now(), now_ns());
            for event in events {
                if !is_routine(&event) {
                    self.busy_at = clock;
                }
                match event {
                    LinkEvent::Up { peer, incarnation } => self.link_up(peer, incarnation, now),
                    LinkEvent::Down { peer, error } => {
                        tracing::debug!(%peer, %error, lane = self.index, "link");
                        self.link_down(peer, now, asks, answers);
                    }
                    LinkEvent::Frame { peer, frame } => {
                        self.membership.detector.handle_heard(peer, now);
                        if let Err(error) =
                            self.take_frame(peer, frame, asks, answers, (now, clock))
                        {
                            tracing::warn!(%peer, error, "give the link up");
                            self.links.reset(peer, now, &mut self.events);
                        }
                    }
                    LinkEvent::Asked { observer, frame } => {
                        if frame.kind == kind::QUESTION {
                            let report =
                                self.shared
                                    .report(&self.membership.detector, &self.links, now);
                            let report = Bytes::from(report.to_bytes());
                            self.links.answer(observer, kind::REPORT, &report);
                        }
                    }
                }
            }
        }
    }

    fn link_up(&mut self, peer: NodeId, incarnation: u64, now: Instant) {
        let process = Process {
            node: peer.0,
            incarnation,
        };
        // What was said to it before is lost: `connected` comes first on a connection.
        self.post(Way::Outbox);
        self.membership.link_up(process, now);
        self.goodbyes.remove(&peer);
        self.outboxes.remove(&peer);
        self.forwarding.link_up(peer);
        for seat in &mut self.seats {
            seat.member.connected(process);
        }
        self.post(Way::Outbox);
    }

    fn link_down(&mut self, peer: NodeId, now: Instant, asks: &mut Batch, answers: &mut Batch) {
        self.membership.link_down(peer, now);
        self.goodbyes.remove(&peer);
        self.outboxes.remove(&peer);
        self.forwarding.link_down(peer, asks, answers);
    }

    /// Puts what members say where it leaves from, in its order.
    fn post(&mut self, way: Way) {
        for seat in &mut self.seats {
            let mut messages = seat.member.take_messages();
            drop_early_acks(&mut messages);
            let group = u16::try_from(seat.group).expect("fewer than 65,536 groups");
            for outgoing in messages {
                let node = NodeId(outgoing.to.node);
                // Another process of that node is none of the view's.
                if self.membership.linked(node) != Some(outgoing.to) {
                    continue;
                }
                let (head, links) = (&mut self.head, &mut self.links);
                head.clear();
                let body = wire::encode_into(group, outgoing.view, &outgoing.message, head);
                let outbox = self.outboxes.entry(node).or_default();
                if way == Way::Link && outbox.is_empty() {
                    let sent = links.send_behind(node, kind::GROUP, head, body.as_slice());
                    if sent.is_ok() {
                        continue;
                    }
                }
                let body = body.unwrap_or_default();
                outbox.push(head, body);
            }
        }
    }

    /// Gives links what they have room for.
    fn fill_links(&mut self, now: Instant) {
        let (links, bytes_max) = (&mut self.links, self.bounds.outbox_bytes);
        for (&node, outbox) in &mut self.outboxes {
            if !outbox.fill(node, links, bytes_max) {
                links.reset(node, now, &mut self.events);
            }
        }
    }

    /// Notes which partitions have another owner since it was last called.
    fn note_owners(&mut self, asks: &mut Batch, now: Instant) {
        let forwarding = &mut self.forwarding;
        for node in self.changing.late(forwarding, now) {
            tracing::warn!(%node, "it does not pass on what it was sent");
            self.links.reset(node, now, &mut self.events);
        }
        for (number, seat) in self.seats.iter().enumerate() {
            if let Some(view) = seat.member.view() {
                self.changing.note_view(number, view, forwarding, asks, now);
            }
        }
    }

    fn take_frame(
        &mut self,
        peer: NodeId,
        frame: Frame,
        asks: &mut Batch,
        answers: &mut Batch,
        (now, clock): (Instant, u64),
    ) -> Result<(), String> {
        let bad = |error: &dyn std::fmt::Display| error.to_string();
        match frame.kind {
            kind::PING => {
                let number = frame::read_ping(&frame.payload).map_err(|error| bad(&error))?;
                self.put(peer, kind::PONG, [frame::ping(number), Bytes::new()]);
            }
            kind::PONG => {
                let number = frame::read_ping(&frame.payload).map_err(|error| bad(&error))?;
                self.membership.detector.handle_answer(peer, number, now);
            }
            kind::FORWARD => self.forwarding.take_ask(peer, &frame.payload, asks)?,
            kind::REPLY => self.forwarding.take_reply(peer, &frame.payload, answers)?,
            kind::LEAVE => {
                let number = frame::read_ping(&frame.payload).map_err(|error| bad(&error))?;
                self.forwarding.let_go(peer, asks);
                self.put(peer, kind::LEFT, [frame::ping(number), Bytes::new()]);
            }
            kind::LEFT => {
                let number = frame::read_ping(&frame.payload).map_err(|error| bad(&error))?;
                self.take_left(peer, number);
            }
            kind::GROUP => {
                let from = self.membership.linked(peer).ok_or("it is not linked")?;
                let frame = wire::decode(frame.payload).map_err(|error| bad(&error))?;
                let seat = self.seat_of(usize::from(frame.group));
                let seat = seat.ok_or("a group of another lane")?;
                seat.member.handle(from, frame.view, frame.message, clock);
            }
            kind => return Err(format!("a frame of kind {kind}")),
        }
        Ok(())
    }

    /// A frame that may be left out.
    fn put(&mut self, node: NodeId, kind: u8, parts: [Bytes; 2]) {
        if let Err(error) = self.links.send(node, kind, &parts) {
            tracing::debug!(%node, %error, "send");
        }
    }

    fn detect(&mut self, now: Instant) {
        for action in self.membership.detector.poll(now) {
            match action {
                Action::Probe { peer, number } => {
                    self.put(peer, kind::PING, [frame::ping(number), Bytes::new()]);
                }
                Action::Changed { peer, state } => {
                    self.busy_at = now_ns();
                    tracing::info!(%peer, ?state, lane = self.index, "peer");
                    if state == State::Suspect(Cause::Silent) {
                        // What was asked over it would wait for as long as it is silent.
                        self.links.reset(peer, now, &mut self.events);
                    }
                    if self.index == 0 {
                        self.shared.note_change(ChangeReport::now(peer, state));
                    }
                }
            }
        }
    }

    fn report(&mut self, now: u64) {
        if now.saturating_sub(self.reported_at) >= REPORT_EVERY_NS {
            buffer::trim();
            self.report_at_once(now);
        }
    }

    fn report_at_once(&mut self, now: u64) {
        self.reported_at = now;
        self.shared
            .set_strangers(self.index, self.links.strangers());
        let clock = Clock::at(now);
        let reports = self.seats.iter().filter_map(|seat| {
            let view = seat.member.view()?.clone();
            Some(GroupReport::of(seat.group, &view, &seat.member, clock))
        });
        let reports = reports.collect();
        self.shared.set_groups(self.index, reports);
    }
}

/// Whether an event comes though nothing happens.
fn is_routine(event: &LinkEvent) -> bool {
    match event {
        LinkEvent::Frame { frame, .. } => matches!(frame.kind, kind::PING | kind::PONG),
        LinkEvent::Asked { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
