//! What traces have of a group's places here that are not yet what they are to be: each has a span from
//! the view in which that begins to the one in which it is over.
//!
//! Views tell all of it, so nothing else has to say when something begins or ends.

use std::collections::BTreeMap;

use cenote_kv::group::process::Process;
use cenote_kv::group::view::{Parity, Partition, View};
use tracing::{Span, info_span};

/// Those of one group.
#[derive(Debug, Default)]
pub(super) struct Passages {
    open: BTreeMap<(Passage, usize), Span>,
}

/// What is under way with a place.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Passage {
    /// A parity recovers a partition whose owner is gone.
    Recovers,
    /// This process is told what a partition has that is to be its own.
    Arrives,
    /// It has the partition, and takes its values.
    Migrates,
    /// It is told what there is in a parity.
    Joins,
}

impl Passages {
    /// Goes by the group's view from now on.
    pub fn note(&mut self, group: usize, view: &View, me: Process) {
        let mut before = std::mem::take(&mut self.open);
        for key in under_way(view, me) {
            let span = before.remove(&key);
            self.open
                .insert(key, span.unwrap_or_else(|| begin(key, group, view.number)));
        }
    }
}

/// What is under way at a process.
fn under_way(view: &View, me: Process) -> impl Iterator<Item = (Passage, usize)> + '_ {
    let data = view.partitions.iter().enumerate();
    let data = data.filter_map(move |(partition, state)| {
        let passage = match state {
            Partition::Recovering(_) if view.owner(partition) == Some(me) => Passage::Recovers,
            Partition::Arriving { process, .. } if *process == me => Passage::Arrives,
            Partition::Migrating { process, .. } if *process == me => Passage::Migrates,
            _ => return None,
        };
        Some((passage, partition))
    });
    let parities = view.parities.iter().enumerate();
    let parities = parities.filter_map(move |(slot, state)| match state {
        Parity::Joining { process, .. } if *process == me => Some((Passage::Joins, slot)),
        _ => None,
    });
    data.chain(parities)
}

fn begin((passage, place): (Passage, usize), group: usize, view: u32) -> Span {
    let name = match passage {
        Passage::Recovers => "recover partition",
        Passage::Arrives => "take partition over",
        Passage::Migrates => "migrate partition",
        Passage::Joins => "join parity",
    };
    let (partition, slot) = match passage {
        Passage::Joins => (None, Some(place as i64)),
        _ => (Some(place as i64), None),
    };
    info_span!(
        "passage",
        otel.name = name,
        cenote.kv.group = group as i64,
        cenote.kv.partition = partition,
        cenote.kv.slot = slot,
        cenote.kv.view = i64::from(view),
    )
}

#[cfg(test)]
mod tests {
    use cenote_kv::group::view::Scheme;

    use super::*;

    const fn process(node: u32) -> Process {
        let incarnation = 1;
        Process { node, incarnation }
    }

    #[test]
    fn a_passage_lasts_as_long_as_views_say_so_and_only_at_its_process() {
        let (home, parity, comer) = (process(0), process(1), process(2));
        let mut view = View::first(Scheme::Coded, &[home], &[parity]);
        let mut all = [home, parity, comer].map(|me| (me, Passages::default()));
        let mut note = |view: &View| {
            all.each_mut().map(|(me, passages)| {
                passages.note(7, view, *me);
                passages.open.keys().copied().collect::<Vec<_>>()
            })
        };
        let none: Vec<(Passage, usize)> = Vec::new();
        assert_eq!(note(&view), [none.clone(), none.clone(), none.clone()]);
        view.partitions[0] = Partition::Recovering(0);
        let recovers = vec![(Passage::Recovers, 0)];
        assert_eq!(note(&view), [none.clone(), recovers.clone(), none.clone()]);
        // Others' views go on meanwhile.
        view.number += 1;
        assert_eq!(note(&view), [none.clone(), recovers, none.clone()]);
        let since = view.number;
        view.partitions[0] = Partition::Arriving {
            slot: 0,
            process: comer,
            since,
        };
        let arrives = vec![(Passage::Arrives, 0)];
        assert_eq!(note(&view), [none.clone(), none.clone(), arrives]);
        view.partitions[0] = Partition::Migrating {
            slot: 0,
            process: comer,
            since,
        };
        view.parities[0] = Parity::Joining {
            process: home,
            since,
        };
        let (joins, migrates) = (vec![(Passage::Joins, 0)], vec![(Passage::Migrates, 0)]);
        assert_eq!(note(&view), [joins, none.clone(), migrates]);
        let view = View::first(Scheme::Coded, &[comer], &[home]);
        assert_eq!(note(&view), [none.clone(), none.clone(), none]);
    }
}
