//! What an owner sends to its backups: operations, what they lack, and questions that let it serve reads.

use super::message::{Item, Lacks, Message, RUN_UNITS_MAX, Run, UNIT_BYTES};
use super::owner::Owner;
use super::process::Process;
use super::replica::{Diverged, Xid};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::buffer::Buffer;
use crate::memory::region::Region;
use bytes::Bytes;

/// How long a parity's answer lets an owner serve reads, counted from when it was asked.
pub const LEASE_NS: u64 = 100_000_000;
/// How long a parity that takes over waits after its last answer: clocks may run apart by 1 %.
pub(super) const LEASE_WAIT_NS: u64 = LEASE_NS + LEASE_NS / 100;
/// How much of a lease is left when the next one is asked for.
const PROBE_AFTER_NS: u64 = LEASE_NS / 4;
/// Probes that one backup has not answered: as many as are sent in 1.6 s. A round trip may be longer than
/// the time between two.
const PROBES_MAX: usize = 64;
/// For how long leases are renewed after the last time that one was needed.
const WANTED_NS: u64 = 1_000_000_000;
/// Messages of what it lacks that are under way to one backup.
const IN_FLIGHT_MAX: usize = 8;
/// Operations that are sent to a backup before it has acknowledged any.
const WINDOW: Xid = 4096;

impl Owner {
    /// A backup tells what it has.
    pub(super) fn hear(&mut self, from: Process, xid: Xid, lacks: Lacks) -> Result<(), Diverged> {
        let (stable, last) = (self.committed_xid(), self.last_xid());
        let Some(backup) = self.backups.iter_mut().find(|known| known.process == from) else {
            return Ok(());
        };
        // One that has nothing yet is told what there is, and then what is under way.
        let has_nothing = lacks.keys_from == Some(0);
        let xid = if has_nothing { stable } else { xid };
        backup.forget_link();
        backup.is_heard = true;
        backup.acked = xid;
        backup.sent = xid;
        backup.told = 0;
        backup.lacks = lacks;
        if is_injected(InjectedFault::JoinWithoutInFlight) && has_nothing {
            backup.acked = last;
            backup.sent = last;
        }
        self.advance()
    }

    /// A backup has all operations up to one.
    pub(super) fn on_ack(&mut self, from: Process, xid: Xid) -> Result<(), Diverged> {
        if let Some(backup) = self.backups.iter_mut().find(|known| known.process == from) {
            backup.acked = backup.acked.max(xid);
        }
        self.advance()
    }

    /// A backup has taken a part of what it lacks.
    pub(super) fn on_taken(&mut self, from: Process) {
        if let Some(backup) = self.backups.iter_mut().find(|known| known.process == from) {
            backup.in_flight = backup.in_flight.saturating_sub(1);
        }
    }

    /// A parity has answered.
    pub(super) fn on_answer(&mut self, from: Process, number: u64) {
        if let Some(backup) = self.backups.iter_mut().find(|known| known.process == from)
            && let Some(index) = backup.probes.iter().position(|(asked, _)| *asked == number)
        {
            // Those before it were answered, too, or will not be.
            backup.answered = backup.probes.drain(..=index).next_back().map(|(_, at)| at);
        }
    }

    /// Whether reads may be served: no other owner can have come meanwhile. A lease that has run out
    /// because nobody read is asked for again from then on.
    pub fn may_read(&self, now: u64) -> bool {
        self.wanted_at.set(Some(now));
        self.has_leave(now)
    }

    /// The same, of who does not ask for any.
    pub(super) fn has_leave(&self, now: u64) -> bool {
        let is_granted = |at: u64| now.saturating_sub(at) < LEASE_NS;
        is_injected(InjectedFault::NoLease)
            || self
                .backups
                .iter()
                .filter(|backup| backup.grants_lease())
                .all(|backup| backup.answered.is_some_and(is_granted))
    }

    /// Reads are served no more until parities have been asked again.
    pub(super) fn give_up_lease(&mut self) {
        for backup in &mut self.backups {
            backup.answered = None;
            backup.probes.clear();
        }
    }

    /// The link to a backup is new: what was on the last one is lost.
    pub(super) fn forget_link(&mut self, process: Process) {
        for backup in &mut self.backups {
            if backup.process == process {
                backup.forget_link();
            }
        }
    }

    /// Whether a backup lacks nothing but what is under way.
    pub(super) fn has_all(&self, process: Process) -> bool {
        self.backups.iter().any(|backup| {
            let is_told = backup.lacks == Lacks::NOTHING && backup.in_flight == 0;
            backup.process == process && backup.is_heard && is_told
        })
    }

    /// Sends what is due; `is_idle` says that nothing else will tell backups what is stable.
    pub(super) fn send(&mut self, now: u64, is_idle: bool, out: &mut Vec<(Process, Message)>) {
        let partition = self.partition;
        let (stable, last) = (self.committed_xid(), self.last_xid());
        for index in 0..self.backups.len() {
            let backup = &self.backups[index];
            let process = backup.process;
            if !backup.is_heard {
                continue;
            }
            if backup.lacks.keys_from == Some(0) && backup.in_flight == 0 {
                self.send_items(index, out);
            }
            let backup = &self.backups[index];
            let (first, end) = (backup.sent + 1, last.min(backup.acked + WINDOW));
            for xid in first..=end {
                // What is not under way any more every backup has, but where a mistake is injected.
                let Some(operation) = self.pending_operation(xid).cloned() else {
                    continue;
                };
                let message = Message::Update {
                    partition,
                    xid,
                    stable,
                    operation,
                };
                out.push((process, message));
            }
            let backup = &mut self.backups[index];
            backup.sent = backup.sent.max(end);
            if first <= end {
                backup.told = stable;
            } else if is_idle && backup.told < stable && backup.sent >= stable {
                backup.told = stable;
                out.push((process, Message::Stable { partition, stable }));
            }
            self.send_lacking(index, out);
            self.send_probe(index, now, out);
        }
    }

    /// What a backup lacks follows all operations up to the one that it shows.
    fn send_lacking(&mut self, index: usize, out: &mut Vec<(Process, Message)>) {
        let stable = self.committed_xid();
        while self.backups[index].in_flight < IN_FLIGHT_MAX && self.backups[index].sent >= stable {
            match self.backups[index].lacks {
                Lacks {
                    keys_from: Some(_), ..
                } => self.send_items(index, out),
                Lacks {
                    units_from: Some(unit),
                    ..
                } => {
                    // What is not recovered yet is waited for.
                    if !self.send_units(index, unit, out) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn send_items(&mut self, index: usize, out: &mut Vec<(Process, Message)>) {
        let last = self.last_xid();
        let table = self.replica.table();
        let backup = &mut self.backups[index];
        let from = backup.lacks.keys_from.unwrap_or(0);
        let stretch = table.stretch(from);
        let end = stretch.next;
        let item = |(_, key, entry): (u64, &[u8], _)| Item {
            key: Bytes::copy_from_slice(key),
            entry,
        };
        let skips = is_injected(InjectedFault::JoinWithoutInFlight);
        let at = if skips { last } else { self.replica.applied() };
        let message = Message::Items {
            partition: self.partition,
            at,
            basis: self.replica.basis(),
            from,
            items: stretch.items.into_iter().map(item).collect(),
            end,
        };
        backup.lacks.keys_from = end;
        backup.in_flight += 1;
        out.push((backup.process, message));
    }

    fn send_units(&mut self, index: usize, unit: u64, out: &mut Vec<(Process, Message)>) -> bool {
        let total = self.region.bytes().div_ceil(UNIT_BYTES);
        let run = Run {
            first: unit,
            units: u32::try_from((total - unit).min(u64::from(RUN_UNITS_MAX))).expect("a run"),
        };
        let present = self.present.as_ref();
        if present.is_some_and(|present| present.count(&run) < run.units) {
            return false;
        }
        let end = unit + u64::from(run.units);
        let backup = &mut self.backups[index];
        backup.lacks.units_from = Some(end).filter(|end| *end < total);
        backup.in_flight += 1;
        let message = Message::Copy {
            partition: self.partition,
            at: self.replica.applied(),
            run,
            bytes: bytes_of(&self.region, run),
        };
        out.push((backup.process, message));
        true
    }

    fn send_probe(&mut self, index: usize, now: u64, out: &mut Vec<(Process, Message)>) {
        let wanted_at = self.wanted_at.get().unwrap_or(now);
        self.wanted_at.set(Some(wanted_at));
        if now.saturating_sub(wanted_at) >= WANTED_NS {
            return;
        }
        let backup = &mut self.backups[index];
        let last = backup.probes.back().copied();
        let asked = last.map(|(_, at)| at).or(backup.answered);
        let is_due = asked.is_none_or(|at| now.saturating_sub(at) >= PROBE_AFTER_NS);
        if backup.grants_lease() && is_due {
            let number = last.map_or(1, |(number, _)| number + 1).max(now);
            if backup.probes.len() >= PROBES_MAX {
                backup.probes.pop_front();
            }
            backup.probes.push_back((number, now));
            out.push((backup.process, Message::Probe { number }));
        }
    }
}

/// The bytes of a run; none where they are all zero for sure.
pub(super) fn bytes_of(region: &Region, run: Run) -> Bytes {
    if !region.is_touched(run.address(), run.bytes()) {
        return Bytes::new();
    }
    let mut bytes = Buffer::new(run.bytes());
    region.copy_out(run.address(), &mut bytes);
    bytes.freeze()
}
