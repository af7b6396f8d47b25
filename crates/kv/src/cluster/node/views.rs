//! Agreement on views: one key of etcd for each group, changed by compare-and-swap.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::super::NodeId;
use super::super::config::{Place, Registration};
use super::super::etcd::{Entry, Etcd, Swap};
use super::shared::Wish;
use crate::group::process::Process;
use crate::group::view::{Parity, Partition, Scheme, View};
use crate::group::wire::{decode_view, encode_view};

/// Between two tries to learn what became of a wish.
const PAUSE: Duration = Duration::from_millis(50);

/// The views that are known.
#[derive(Default)]
pub(super) struct Views {
    /// By group: the view, and the revision of its key.
    known: BTreeMap<usize, (i64, Arc<View>)>,
}

/// What came of a wish.
pub(super) enum Outcome {
    /// This view stands, which may be another's.
    Agreed(Arc<View>),
    /// Nothing has come of it, and this stands.
    Refused(Option<Arc<View>>),
}

impl Views {
    pub(super) fn get(&self, group: usize) -> Option<&Arc<View>> {
        Some(&self.known.get(&group)?.1)
    }

    /// Takes what etcd has; a view that is new is returned.
    pub(super) fn take(&mut self, group: usize, entry: &Entry) -> Option<Arc<View>> {
        let known = self.known.get(&group).map_or(0, |(revision, _)| *revision);
        if entry.mod_revision <= known {
            return None;
        }
        match decode_view(Bytes::copy_from_slice(&entry.value)) {
            Ok(view) => {
                let view = Arc::new(view);
                let value = (entry.mod_revision, Arc::clone(&view));
                self.known.insert(group, value);
                Some(view)
            }
            Err(error) => {
                tracing::error!(key = entry.key, %error, "a view");
                None
            }
        }
    }

    /// Has a view agreed on, if it is the next one. Does not return before the outcome is known, or
    /// `gives_up` says so.
    pub(super) fn agree(
        &mut self,
        etcd: &Etcd,
        place: &Place,
        wish: &Wish,
        gives_up: impl Fn() -> bool,
    ) -> Outcome {
        let group = wish.group;
        let (revision, number) = match self.known.get(&group) {
            Some((revision, view)) => (*revision, view.number),
            None => (0, wish.view.number - 1),
        };
        if wish.view.number != number + 1 {
            return Outcome::Refused(self.get(group).cloned());
        }
        let key = place.view(group);
        let mut bytes = BytesMut::new();
        encode_view(&wish.view, &mut bytes);
        loop {
            match etcd.swap(&key, revision, &bytes, None) {
                Ok(Swap::Done(revision)) => {
                    let view = Arc::new(wish.view.clone());
                    self.known.insert(group, (revision, Arc::clone(&view)));
                    return Outcome::Agreed(view);
                }
                Ok(Swap::Changed(found)) => {
                    let found = found.and_then(|entry| self.take(group, &entry));
                    return Outcome::Refused(found);
                }
                // It may have been agreed on: nobody may act as if it was not.
                Err(error) => tracing::warn!(%error, group, "ask for a view"),
            }
            if gives_up() {
                return Outcome::Refused(None);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The view with everybody of the plan at home, where there is none, or where nobody is left of it.
    pub(super) fn anew(
        &self,
        group: usize,
        scheme: Scheme,
        k: usize,
        plan: &[NodeId],
        registered: &BTreeMap<NodeId, Registration>,
    ) -> Option<View> {
        let is_there = |process: &Process| {
            let found = registered.get(&NodeId(process.node));
            found.is_some_and(|found| found.incarnation == process.incarnation)
        };
        let before = self.get(group);
        if before.is_some_and(|view| view.processes().iter().any(is_there)) {
            return None;
        }
        let process = |node: &NodeId| {
            Some(Process {
                node: node.0,
                incarnation: registered.get(node)?.incarnation,
            })
        };
        let players: Option<Vec<Process>> = plan.iter().map(process).collect();
        let players = players?;
        let number = before.map_or(0, |view| view.number) + 1;
        let (data, parities) = players.split_at(k);
        let full = |process: &Process| Parity::Full {
            process: *process,
            since: number,
        };
        if let Some(before) = before {
            tracing::warn!(group, view = before.number, "nobody is left: begin empty");
        }
        Some(View {
            number,
            scheme,
            partitions: data.iter().copied().map(Partition::Home).collect(),
            begun: vec![number; k],
            parities: parities.iter().map(full).collect(),
            heir: None,
            let_go: 0,
        })
    }
}
