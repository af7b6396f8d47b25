//! A process of a group: what it does in the present view.
//!
//! A member is told of views ([`Member::adopt`]), of links ([`Member::connected`]), of messages
//! ([`Member::handle`]) and of the time ([`Member::tick`]); requests go to its [owners](Member::owner).
//! After any of these [`Member::take_messages`] has what is to be sent. It does no I/O and knows no
//! clock. What is sent to a process that is not connected may be dropped.
//!
//! Invariant: whatever has another view's number than this member's is refused, but a newer view.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::Code;
use serde::{Deserialize, Serialize};

use super::arrival::Arrival;
use super::message::Message;
use super::owner::Owner;
use super::parity::{Parity, Stream};
use super::process::Process;
use super::recovery::Recovery;
use super::replica::Diverged;
use super::room::Bound;
use super::settlement::Settling;
use super::takeover::Takeovers;
use super::view::{self, Scheme, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::key_hash::KeyHasher;

/// What a group is made of. The same at every member.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How values are kept.
    pub scheme: Scheme,
    /// Partitions.
    pub k: usize,
    /// Parities.
    pub m: usize,
    /// Bytes of each address space: a multiple of a unit.
    pub region_bytes: u64,
    /// Whether items make room for others.
    pub evicts: bool,
    /// What is served while values are recovered.
    pub service: Service,
    /// What each partition may take.
    pub bound: Bound,
    /// By which keys are ordered.
    pub hasher: KeyHasher,
}

/// What is served while lost values are recovered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Everything; what requests need is recovered first.
    #[default]
    Online,
    /// Reads alone: a change waits until all of its group is recovered. For comparison.
    /// Paper: \[cocytus16\] section 6.4.
    Blocked,
}

/// One process's part in one group.
pub struct Member {
    pub(super) me: Process,
    pub(super) shape: Shape,
    pub(super) code: Arc<Code>,
    pub(super) view: Option<View>,
    pub(super) parity: Option<Parity>,
    /// The view in which the parity came.
    pub(super) parity_since: u32,
    /// A partition that is on its way here.
    pub(super) arriving: Option<Arrival>,
    pub(super) owners: BTreeMap<usize, Owned>,
    /// When this process last answered the owner of each partition, in nanoseconds.
    pub(super) answered: Vec<Option<u64>>,
    pub(super) recovery: Recovery,
    pub(super) takeovers: Takeovers,
    /// Acknowledgements were held back.
    is_mute: bool,
    pub(super) out: Vec<Outgoing>,
    /// Processes that said what cannot be.
    accused: Vec<Process>,
    pub(super) failure: Option<Diverged>,
}

/// A message on its way out.
#[derive(Debug)]
pub struct Outgoing {
    /// To whom.
    pub to: Process,
    /// The view in which it was said.
    pub view: u32,
    /// What.
    pub message: Message,
}

/// A partition that this process owns.
pub(super) struct Owned {
    pub(super) owner: Owner,
    /// Parities do not agree yet on what was acknowledged.
    pub(super) settling: Option<Settling>,
    /// When it may be served: an earlier owner reads no more.
    pub(super) serves_from: u64,
    /// It gives the partition away and takes no more operations.
    pub(super) is_leaving: bool,
}

impl Owned {
    /// Whether all agree on what was acknowledged, and no earlier owner reads any more. A write that
    /// came before that could be missing from a read there.
    pub(super) fn is_served(&self, now: u64) -> bool {
        let is_alone = now >= self.serves_from || is_injected(InjectedFault::NoLease);
        self.settling.is_none() && is_alone
    }
}

impl Member {
    /// A process without a view.
    ///
    /// # Panics
    /// If the shape is impossible: it has been checked where it was configured.
    pub fn new(me: Process, shape: Shape) -> Self {
        assert!(
            shape
                .region_bytes
                .is_multiple_of(super::message::UNIT_BYTES)
        );
        assert!((1..=view::PARTITIONS_MAX).contains(&shape.k) && shape.m <= view::PARITIES_MAX);
        let code = Code::new(shape.k, shape.m).expect("32 + 4 is what a code can have, or less");
        Self {
            me,
            answered: vec![None; shape.k],
            shape,
            code: Arc::new(code),
            view: None,
            parity: None,
            parity_since: 0,
            arriving: None,
            owners: BTreeMap::new(),
            recovery: Recovery::default(),
            takeovers: Takeovers::default(),
            is_mute: false,
            out: Vec::new(),
            accused: Vec::new(),
            failure: None,
        }
    }

    /// Who this is.
    pub fn me(&self) -> Process {
        self.me
    }

    /// Its view.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The partitions that it owns.
    pub fn owned(&self) -> impl Iterator<Item = usize> + '_ {
        self.owners.keys().copied()
    }

    /// A partition that it owns; requests are decided there.
    pub fn owner(&mut self, partition: usize) -> Option<&mut Owner> {
        Some(&mut self.owners.get_mut(&partition)?.owner)
    }

    /// Whether reads of a partition may be answered now.
    pub fn may_read(&self, partition: usize, now: u64) -> bool {
        let Some(owned) = self.owners.get(&partition) else {
            return false;
        };
        let reads_on = !owned.is_leaving || is_injected(InjectedFault::LeaseKept);
        owned.is_served(now) && reads_on && owned.owner.may_read(now)
    }

    /// Why this member is of no use any more: what it was told cannot be. It says nothing from then on.
    pub fn failure(&self) -> Option<Diverged> {
        self.failure
    }

    /// Processes that said what cannot be: the next view should do without them.
    pub fn take_accused(&mut self) -> Vec<Process> {
        std::mem::take(&mut self.accused)
    }

    /// What is to be sent, in this order.
    pub fn take_messages(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.out)
    }

    /// A link to another process is new.
    pub fn connected(&mut self, other: Process) {
        for owned in self.owners.values_mut() {
            owned.owner.forget_link(other);
        }
        self.tell_view(other);
        self.announce(other);
    }

    /// Tells another process of the present view.
    pub fn tell_view(&mut self, other: Process) {
        if let Some(view) = self.view.clone() {
            self.send(other, Message::View(view));
        }
    }

    /// Tells another what this process has of its partitions.
    pub(super) fn announce(&mut self, other: Process) {
        let Some(view) = &self.view else { return };
        let mut said = Vec::new();
        for index in 0..view.partitions.len() {
            if view.owner(index) != Some(other) {
                continue;
            }
            let stream = match (&self.parity, &self.arriving) {
                (Some(parity), _) => Some(&parity.streams[index]),
                (None, Some(arrival)) if arrival.partition == index => Some(&arrival.stream),
                _ => None,
            };
            let Some(stream) = stream.filter(|stream| stream.replica.is_some()) else {
                continue;
            };
            said.push(Message::Have {
                partition: index,
                xid: stream.latest,
                lacks: match &self.parity {
                    Some(parity) => parity.lacks(index),
                    None => stream.lacks(),
                },
            });
        }
        for message in said {
            self.send(other, message);
        }
        self.announce_ready(other);
    }

    /// Takes a message that was sent in the sender's view of this number.
    pub fn handle(&mut self, from: Process, number: u32, message: Message, now: u64) {
        if self.failure.is_some() {
            return;
        }
        if let Message::View(view) = &message {
            let is_possible = view.partitions.len() == self.shape.k
                && view.parities.len() == self.shape.m
                && view.scheme == self.shape.scheme;
            if is_possible {
                self.adopt(view);
            }
            return;
        }
        let Some(view) = &self.view else { return };
        if number != view.number {
            let is_taken =
                is_injected(InjectedFault::NoFence) && matches!(message, Message::Update { .. });
            if number < view.number && !is_taken {
                let view = view.clone();
                return self.send(from, Message::View(view));
            }
            if number > view.number {
                return;
            }
        }
        let done = self.dispatch(from, message, now);
        self.note(done);
    }

    fn dispatch(&mut self, from: Process, message: Message, now: u64) -> Result<(), Diverged> {
        if let Some(index) = message.partition()
            && (index >= self.shape.k || message.is_from_owner() && !self.is_owner(from, index))
        {
            return Ok(());
        }
        match message {
            Message::View(_) => Ok(()),
            Message::Have {
                partition,
                xid,
                lacks,
            } => self.on_have(from, partition, xid, lacks),
            Message::Update {
                partition,
                xid,
                stable,
                operation,
            } => self.on_update(from, partition, xid, stable, operation),
            Message::Stable { partition, stable } => self.apply(partition, stable),
            Message::Ack { partition, xid } => match self.owners.get_mut(&partition) {
                Some(owned) if owned.settling.is_none() => {
                    if xid > owned.owner.last_xid() {
                        self.accuse(from);
                        return Ok(());
                    }
                    owned.owner.on_ack(from, xid)
                }
                _ => Ok(()),
            },
            Message::Settle { partition, stable } => self.on_settle(from, partition, stable),
            Message::Settled { partition } => self.on_settled(from, partition),
            Message::Items {
                partition,
                at,
                basis,
                from: cursor,
                items,
                end,
            } => {
                let Some(stream) = self.stream(partition) else {
                    return Ok(());
                };
                if stream.applied() < at && stream.lacks().keys_from != Some(0) {
                    self.apply(partition, at)?;
                }
                let stream = self.stream(partition).expect("it was there");
                stream.take(at, basis, cursor, &items, end)?;
                self.send(from, Message::Taken { partition });
                Ok(())
            }
            Message::Copy {
                partition,
                at,
                run,
                bytes,
            } => {
                if !self.shape.has(run, &bytes) {
                    return Ok(());
                }
                match (&mut self.parity, &mut self.arriving) {
                    (Some(parity), _) => parity.copy(partition, at, run, &bytes)?,
                    (None, Some(arrival)) if arrival.partition == partition => {
                        arrival.copy(at, run, &bytes)?;
                    }
                    _ => return Ok(()),
                }
                self.send(from, Message::Taken { partition });
                Ok(())
            }
            Message::Taken { partition } => {
                if let Some(owned) = self.owners.get_mut(&partition) {
                    owned.owner.on_taken(from);
                }
                Ok(())
            }
            Message::Probe { number } => {
                self.note_answer(from, now);
                self.send(from, Message::Answer { number });
                Ok(())
            }
            Message::Answer { number } => {
                for owned in self.owners.values_mut() {
                    owned.owner.on_answer(from, number);
                }
                Ok(())
            }
            Message::Ready { .. }
            | Message::Want { .. }
            | Message::Fetch { .. }
            | Message::Units { .. }
            | Message::Residual { .. }
            | Message::Mixed { .. }
            | Message::Solved { .. }
            | Message::Pull { .. }
            | Message::Pulled { .. } => self.on_recovery(from, message, now),
        }
    }

    fn on_update(
        &mut self,
        from: Process,
        partition: usize,
        xid: u64,
        stable: u64,
        operation: super::operation::Operation,
    ) -> Result<(), Diverged> {
        if !self.shape.fits(&operation) {
            return Err(Diverged::Outside { xid });
        }
        let Some(stream) = self.stream(partition) else {
            return Ok(());
        };
        // What is behind a gap was sent before this side said what it has: it comes again.
        if stream.replica.is_none() || !stream.receive(xid, operation) {
            return Ok(());
        }
        let xid = stream.latest;
        if self.is_blocking() {
            self.is_mute = true;
        } else {
            self.send(from, Message::Ack { partition, xid });
        }
        self.apply(partition, stable)
    }

    /// Applies what is stable of a partition that this process backs up.
    pub(super) fn apply(&mut self, partition: usize, stable: u64) -> Result<(), Diverged> {
        if let Some(parity) = &mut self.parity {
            return match parity.streams[partition].replica {
                Some(_) => parity.apply(partition, stable),
                None => Ok(()),
            };
        }
        match &mut self.arriving {
            Some(arrival) if arrival.partition == partition => arrival.apply(stable),
            _ => Ok(()),
        }
    }

    pub(super) fn stream(&mut self, partition: usize) -> Option<&mut Stream> {
        if let Some(parity) = &mut self.parity {
            return Some(&mut parity.streams[partition]);
        }
        let arrival = self.arriving.as_mut()?;
        (arrival.partition == partition).then_some(&mut arrival.stream)
    }

    fn note_answer(&mut self, to: Process, now: u64) {
        let Some(view) = &self.view else { return };
        for (index, answered) in self.answered.iter_mut().enumerate() {
            if view.owner(index) == Some(to) {
                *answered = Some(now);
            }
        }
    }

    /// Sends what requests and messages have made due. To be called once for many of them; `is_idle`
    /// where nothing has happened for some milliseconds.
    pub fn flush(&mut self, now: u64, is_idle: bool) {
        if self.failure.is_some() {
            return;
        }
        let mut due = Vec::new();
        if self.is_mute && !self.is_blocking() {
            self.acknowledge_all();
        }
        self.open_owners(now);
        for owned in self.owners.values_mut() {
            if owned.settling.is_none() {
                owned.owner.sweep(now);
                owned.owner.send(now, is_idle, &mut due);
            }
        }
        for (to, message) in due {
            self.send(to, message);
        }
        self.fold_on();
        self.pump_recovery(now);
        self.note_takeovers(now);
    }

    /// Lets owners take operations, where they may now. Those of a member that failed stay as they are.
    pub(super) fn open_owners(&mut self, now: u64) {
        if self.failure.is_some() {
            return;
        }
        let is_blocking = self.is_blocking();
        for owned in self.owners.values_mut() {
            owned.owner.is_open = owned.is_served(now) && !owned.is_leaving && !is_blocking;
        }
    }

    /// Whether changes wait for what is recovered here: no owner commits what this member does not
    /// acknowledge.
    fn is_blocking(&self) -> bool {
        let recovers = |(index, owned): (&usize, &Owned)| {
            let slot = self
                .view
                .as_ref()
                .and_then(|view| view.slot_holding(*index));
            let is_here = slot.is_some() && slot == self.parity.as_ref().map(|parity| parity.slot);
            is_here && (owned.settling.is_some() || owned.owner.missing_units() > 0)
        };
        self.shape.service == Service::Blocked && self.owners.iter().any(recovers)
    }

    /// Says what was held back.
    fn acknowledge_all(&mut self) {
        self.is_mute = false;
        let (Some(view), Some(parity)) = (&self.view, &self.parity) else {
            return;
        };
        let streams = parity.streams.iter().enumerate();
        let acks: Vec<(Process, Message)> = streams
            .filter(|(_, stream)| stream.replica.is_some())
            .filter_map(|(partition, stream)| {
                let xid = stream.latest;
                Some((view.owner(partition)?, Message::Ack { partition, xid }))
            })
            .collect();
        acks.into_iter().for_each(|(to, ack)| self.send(to, ack));
    }

    pub(super) fn advance_all(&mut self) -> Result<(), Diverged> {
        for owned in self.owners.values_mut() {
            if owned.settling.is_none() {
                owned.owner.advance()?;
            }
        }
        self.settle_alone()
    }

    pub(super) fn send(&mut self, to: Process, message: Message) {
        if to != self.me && self.failure.is_none() {
            let view = self.view.as_ref().map_or(0, |view| view.number);
            self.out.push(Outgoing { to, view, message });
        }
    }

    /// Whether a process owns a partition. Members of the last view do not where fences are forgotten.
    fn is_owner(&self, process: Process, partition: usize) -> bool {
        let owner = self.view.as_ref().and_then(|view| view.owner(partition));
        owner == Some(process) || is_injected(InjectedFault::NoFence)
    }

    pub(super) fn accuse(&mut self, process: Process) {
        if !self.accused.contains(&process) {
            self.accused.push(process);
        }
    }

    pub(super) fn note(&mut self, done: Result<(), Diverged>) {
        self.failure = self.failure.or(done.err());
    }
}
