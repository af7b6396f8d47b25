//! Whether a host is to leave, and how far it is with that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cenote_fabric::{PeerId, Time};
use cenote_pool::ledger::Handover;

/// Why a host ended its loop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It was told to.
    Stopped,
    /// It was drained, and was to end then.
    Drained,
    /// The time of a notice is up: its machine goes, and nothing is left of what it lent.
    NoticeOver,
    /// Another process is to take its place; everything is as it was.
    Upgrade,
}

/// What a host that is to leave knows of it.
#[derive(Default)]
pub(super) struct Leaving {
    /// Whether another process is wanted in its place.
    pub upgrade: Arc<AtomicBool>,
    /// Who asked for that. The end of their connections is what they wait for.
    pub askers: BTreeSet<u128>,
    /// While clients are told of it.
    pub farewell: Option<Farewell>,
    /// Whether to leave everything as it is when told to stop.
    pub keeps: bool,
    /// Whether to end once drained.
    pub stops: bool,
    /// How long clients have to take their bytes away when it is told to stop.
    pub grace: Duration,
    /// When the machine goes, drained or not.
    pub goes_at: Option<Time>,
    /// Who ordered that, and looks on.
    pub ordered_by: Option<u128>,
    /// Whether that client was told that it is drained, or anybody if nobody looks on.
    pub is_told: bool,
    pub drained_at: Option<Time>,
    /// What traces have of a drain that goes on.
    pub drain_span: Option<tracing::Span>,
}

impl Leaving {
    /// As the process before left it: an order to stop, and the end of the machine, are still meant.
    pub fn inherit(handover: &Handover, now: Time) -> Self {
        Self {
            stops: handover.stops,
            goes_at: handover.goes_in.map(|within| now.after(within)),
            ..Self::default()
        }
    }
}

/// Clients are told that another process is about to take this one's place.
pub(super) struct Farewell {
    pub until: Time,
    pub told: BTreeSet<PeerId>,
    /// Those of them that have not said that they wait for it.
    pub unanswered: BTreeSet<u128>,
}
