//! What an owner knows of one of its backups.

use std::collections::VecDeque;

use super::message::Lacks;
use super::process::Process;
use super::replica::Xid;
use super::view::{Parity, Partition, View};

/// One backup.
#[derive(Clone, Debug)]
pub(super) struct Backup {
    pub(super) process: Process,
    /// The view in which it came.
    since: u32,
    kind: Kind,
    /// It has said in this view, on this connection, what it has.
    pub(super) is_heard: bool,
    /// It has all operations up to here.
    pub(super) acked: Xid,
    /// It has been sent all up to here.
    pub(super) sent: Xid,
    /// It has been told that all up to here are stable.
    pub(super) told: Xid,
    /// What it is still to be told.
    pub(super) lacks: Lacks,
    /// Messages with some of it that it has not taken yet.
    pub(super) in_flight: usize,
    /// When the last probe was sent that it has answered in this view, in nanoseconds.
    pub(super) answered: Option<u64>,
    /// Probes that it has not answered: (number, when sent).
    pub(super) probes: VecDeque<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Parity,
    Joining,
    Arriving,
}

impl Backup {
    /// The backups of a partition in a view.
    pub(super) fn all(view: &View, partition: usize) -> Vec<Self> {
        let of = |process: Process| match view.parity_of(process) {
            Some((_, parity)) => {
                let kind = match parity {
                    Parity::Joining { .. } => Kind::Joining,
                    _ => Kind::Parity,
                };
                Self::new(process, parity.since(), kind)
            }
            None => {
                let since = match view.partitions[partition] {
                    Partition::Arriving { since, .. } => since,
                    _ => view.handoff.map_or(0, |handoff| handoff.since),
                };
                Self::new(process, since, Kind::Arriving)
            }
        };
        view.backups(partition).map(of).collect()
    }

    fn new(process: Process, since: u32, kind: Kind) -> Self {
        Self {
            process,
            since,
            kind,
            is_heard: false,
            acked: 0,
            sent: 0,
            told: 0,
            lacks: Lacks::NOTHING,
            in_flight: 0,
            answered: None,
            probes: VecDeque::new(),
        }
    }

    pub(super) fn is_joining(&self) -> bool {
        self.kind == Kind::Joining
    }

    /// Whether it can take the partition over, so that reads need its word.
    pub(super) fn grants_lease(&self) -> bool {
        self.kind != Kind::Arriving
    }

    /// Whether it is the same one, with all that it had.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.process == other.process && self.since == other.since
    }

    /// Nothing is under way to it any more.
    pub(super) fn forget_link(&mut self) {
        self.is_heard = false;
        self.in_flight = 0;
        self.probes.clear();
    }
}
