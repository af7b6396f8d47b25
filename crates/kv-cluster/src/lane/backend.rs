//! What a lane is to the worker that runs it: its partitions, the other nodes, and its turns.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cenote_kv::group::owner::{Owner, Refusal};
use cenote_kv::group::process::Process;
use cenote_memcached::{
    Asker, Backend, Batch, ClassFigures, FIRST_TOKEN, Figures, Partitions, Peers, Route, Ticket,
};
use mio::event::Event;
use mio::{Interest, Registry, Token};

use super::super::NodeId;
use super::super::links::TOKENS;
use super::super::membership::Closed;
use super::{BUSY_NS, IDLE_TURN_MAX, Lane, TURN_MAX, Way, forwarder, now_ns};

impl Partitions for Lane {
    type Partition = Owner;

    fn route(&self, place: u32) -> Route {
        let index = match self.index_of(place) {
            Ok(index) => index,
            Err(lane) => return Route::Worker(lane),
        };
        let (seat, partition) = self.place(index);
        if self.seats[seat].refused.of(partition).is_some() {
            return Route::Here(index);
        }
        let view = self.seats[seat].member.view();
        match view.and_then(|view| view.owner(partition)) {
            Some(owner) if owner.node != self.me.node => Route::Node(owner.node),
            _ => Route::Here(index),
        }
    }

    fn partition_count(&self) -> usize {
        self.seats.len() * self.config.code.data()
    }

    fn partition(&mut self, index: usize) -> &mut Owner {
        let (seat, partition) = self.place(index);
        let seat = &mut self.seats[seat];
        match seat.member.owner(partition) {
            Some(owner) if seat.refused.of(partition).is_none() => owner,
            _ => &mut self.closed,
        }
    }

    fn may_serve(&mut self, index: usize) -> bool {
        let (seat, partition) = self.place(index);
        self.busy_at = now_ns();
        if !self.knows_what_to_refuse(self.busy_at) {
            return false;
        }
        let seat = &self.seats[seat];
        seat.refused.of(partition).is_none() && seat.member.may_read(partition, self.busy_at)
    }

    fn loss(&self, index: usize, text: &[u8]) -> Option<&'static [u8]> {
        let (seat, partition) = self.place(index);
        let seat = &self.seats[seat];
        if let Some(why) = seat.refused.of(partition) {
            return Some(forwarder::refusal(why, text));
        }
        // Other requests wait for the next view. By that a flush would pass the partition over, and
        // its sender, who may not know that view, would take it for done.
        if self.was_an_earlier_ones(index) && forwarder::is_flush(text) {
            return Some(forwarder::refusal(Closed::Missing, text));
        }
        let view = seat.member.view()?;
        view.is_lost(partition).then(|| forwarder::loss(text))
    }

    fn is_here(&self, index: usize) -> bool {
        self.is_mine(index) || self.was_an_earlier_ones(index)
    }

    fn term(&self, index: usize) -> u32 {
        let (seat, partition) = self.place(index);
        let seat = &self.seats[seat];
        // What is committed by a node that may have been counted out is not to be told.
        match seat.refused.of(partition) {
            Some(_) => 0,
            None => seat.member.term(partition).unwrap_or(0),
        }
    }

    fn on_refusal(&mut self, index: usize, refusal: Refusal) {
        let (seat, partition) = self.place(index);
        if let Refusal::Units(run) = refusal {
            self.seats[seat].member.want(partition, run, now_ns());
        }
    }

    /// Memory is shared out when the node starts.
    fn set_memory(&mut self, _bytes: u64) -> bool {
        false
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for seat in &self.seats {
            for (_, owner) in seat.member.owned_partitions() {
                let replica = owner.replica();
                let allocator = replica.allocator();
                let values = allocator.region_bytes() - allocator.free_bytes();
                figures.items += replica.table().len() as u64;
                figures.bytes += values + replica.table().used_bytes();
                figures.resident_bytes += owner.resident_bytes();
                figures.went += owner.counts();
            }
        }
        figures
    }

    fn take_changed_classes(&mut self) -> u64 {
        self.changed_classes()
    }

    fn class(&self, class: usize) -> ClassFigures {
        self.class_figures(class)
    }

    fn tick(&mut self, said: u64) {
        self.seconds = u32::try_from(said).unwrap_or(u32::MAX);
    }

    /// Nodes agree on what time it is by what their systems say.
    fn leap(&mut self, _seconds: u32) {}
}

impl Peers for Lane {
    fn nodes(&self) -> Vec<u32> {
        let nodes = self.owners_in_views().flatten().map(|owner| owner.node);
        let mut nodes: Vec<u32> = nodes.filter(|node| *node != self.me.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn owners(&self) -> u64 {
        // Other nodes compare it: see `docs/protocols/kv-peers.md`.
        let mut bytes = Vec::new();
        for seat in &self.seats {
            let Some(view) = seat.member.view() else {
                continue;
            };
            let group = u32::try_from(seat.group).expect("fewer than 65,536 groups");
            bytes.extend_from_slice(&group.to_le_bytes());
            for index in 0..view.partitions.len() {
                let owner = view.owner(index);
                bytes.push(owner.is_some().into());
                if let Some(Process { node, incarnation }) = owner {
                    bytes.extend_from_slice(&node.to_le_bytes());
                    bytes.extend_from_slice(&incarnation.to_le_bytes());
                }
            }
        }
        cenote_codec::xxh3(&bytes)
    }

    fn is_in_order(&self, place: u32) -> bool {
        let is = |index| self.changing.is_in_order(index, &self.forwarding);
        self.index_of(place).map_or(true, is)
    }

    fn shards(&self) -> Vec<Option<SocketAddr>> {
        self.shared.shards(self.config.code.data())
    }

    fn forward(&mut self, node: u32, ticket: Ticket, text: &[u8]) {
        self.forwarding.ask(NodeId(node), ticket, text);
    }

    fn asked_bytes(&self) -> usize {
        self.forwarding.asked_bytes()
    }

    fn has_room_for_answers(&self, node: u32, held_bytes: usize) -> bool {
        held_bytes + self.forwarding.reply_bytes(NodeId(node)) < self.bounds.answer_bytes
    }

    fn is_awaited(&self, ticket: &Ticket) -> bool {
        self.forwarding.is_awaited(ticket)
    }

    fn answer(&mut self, ticket: Ticket, text: &[u8]) {
        if let Asker::Node(node) = ticket.asker {
            self.forwarding.reply(NodeId(node), ticket, text);
        }
    }

    fn poll(&mut self, asks: &mut Batch, answers: &mut Batch) {
        let now = Instant::now();
        self.shared.note_turn(self.index);
        self.take_orders(now);
        self.links.tick(now, &mut self.events);
        self.take_events(asks, answers);
        self.refuse(now_ns());
        self.refuse_flushes();
        self.note_owners(asks, now);
        self.forwarding.take_waiting(asks);
        self.forwarding.take_refused(answers);
        self.detect(now);
        let clock = now_ns();
        self.report(clock);
    }
}

impl Backend for Lane {
    type Peers = Self;

    fn peers(&self) -> Option<&Self> {
        Some(self)
    }

    fn peers_mut(&mut self) -> Option<&mut Self> {
        Some(self)
    }

    fn register(&mut self, registry: &Registry) -> std::io::Result<()> {
        let token = Token(FIRST_TOKEN.0 + TOKENS);
        registry.register(&mut self.waker, token, Interest::READABLE)
    }

    fn on_event(&mut self, event: &Event) {
        let now = Instant::now();
        if self.links.owns(event.token()) {
            self.links.handle(event, now, &mut self.events);
        } else {
            self.shared.drain(&mut self.waker);
        }
    }

    fn flush(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let clock = now_ns();
        let is_idle = clock.saturating_sub(self.idle_at) >= 5_000_000;
        if is_idle {
            self.idle_at = clock;
            self.steer(clock);
        }
        for seat in &mut self.seats {
            seat.member.tick(self.seconds, clock);
            seat.member.flush(clock, is_idle);
        }
        self.post(Way::Link);
        self.fill_links(now);
        self.forwarding.send(&mut self.links);
        self.say_goodbye(clock);
        self.links.flush(now, &mut self.events);
        if !self.events.is_empty() || self.seats.iter().any(|seat| seat.member.is_folding()) {
            // Links that broke just now, or more to do than one turn has time for.
            return Some(Duration::ZERO);
        }
        let deadlines = [
            self.links.next_deadline(now),
            self.membership.detector.next_deadline(),
        ];
        let due = deadlines.into_iter().flatten().min();
        let is_busy = clock.saturating_sub(self.busy_at) < BUSY_NS;
        let turn_max = if is_busy { TURN_MAX } else { IDLE_TURN_MAX };
        let wait = due.map_or(turn_max, |at| at.saturating_duration_since(now));
        let opens = self.seats.iter().filter_map(|seat| seat.member.serves_at());
        let opens = opens.filter(|at| *at > clock).min();
        let opens = opens.map_or(turn_max, |at| Duration::from_nanos(at - clock));
        Some(wait.min(turn_max).min(opens))
    }
}
