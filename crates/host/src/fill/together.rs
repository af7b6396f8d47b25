//! Doing what blocks for several hosts at a time.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// How several hosts are reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reach {
    /// Side by side, on short-lived threads: those that are silent cost one wait together.
    SideBySide,
    /// One after the other on the calling thread, where nothing blocks: in a simulation.
    InTurn,
}

impl Reach {
    /// Carries `reach` out for each of `items`; the results in their order. One for which the system has no
    /// thread is reached on this one.
    pub(super) fn all<T: Send, R: Send>(
        self,
        items: Vec<T>,
        reach: impl Fn(T) -> R + Sync,
    ) -> Vec<R> {
        if self == Self::InTurn || items.len() < 2 {
            return items.into_iter().map(reach).collect();
        }
        let slots: Vec<Mutex<(Option<T>, Option<R>)>> = items
            .into_iter()
            .map(|item| Mutex::new((Some(item), None)))
            .collect();
        let reach_one = |slot: &Mutex<(Option<T>, Option<R>)>| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(item) = slot.0.take() {
                slot.1 = Some(reach(item));
            }
        };
        thread::scope(|scope| {
            // The first one is this thread's own.
            for slot in &slots[1..] {
                let spawned = thread::Builder::new()
                    .name("cenote-reach".into())
                    .spawn_scoped(scope, || reach_one(slot));
                if let Err(error) = spawned {
                    tracing::warn!(%error, "no thread to reach a source of a fill with");
                    break;
                }
            }
            reach_one(&slots[0]);
        });
        let reached = slots.into_iter().map(|slot| {
            reach_one(&slot);
            let (_, result) = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            result.expect("reached just now at the latest")
        });
        reached.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn all_are_reached_side_by_side_and_answer_in_their_order() {
        // Each waits for all others: one after the other they would wait for ever.
        let barrier = Barrier::new(5);
        let reach = |item: usize| {
            barrier.wait();
            item * 2
        };
        let all = Reach::SideBySide.all((0..5).collect(), reach);
        assert_eq!(all, [0, 2, 4, 6, 8]);
    }

    #[test]
    fn in_turn_nothing_leaves_the_calling_thread() {
        let here = thread::current().id();
        let ids = Reach::InTurn.all(vec![(), ()], |()| thread::current().id());
        assert_eq!(ids, [here, here]);
    }
}
