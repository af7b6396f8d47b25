//! What a shard's persister is handed by clients and by who waits in a fence, in every interleaving.
//!
//! The hand-over is the store's own file, compiled with the lock of the model checker, in which no sleep ends
//! by itself: a wake-up that is lost shows as a deadlock. The turns are as small as can be.

#[path = "../src/server/handover.rs"]
mod handover;
#[path = "../../../tests/model/weakened.rs"]
mod weakened;

/// What the hand-over takes its lock from.
mod sync {
    pub use crate::weakened::{Condvar, Mutex, MutexGuard};
}

use std::time::Duration;

use handover::{Handover, Left, News, Turns};
use loom::sync::{Arc, MutexGuard, mpsc};
use loom::thread;
use weakened::Source;

const SOURCE: Source = Source(
    "src/server/handover.rs",
    include_str!("../src/server/handover.rs"),
);

/// What the threads share.
struct State {
    /// Versions that somebody waits for.
    wanted: u32,
    durable: u32,
    is_fenced: bool,
    is_stopping: bool,
    looks_again: bool,
}

impl News for State {
    fn has_news(&self) -> bool {
        self.looks_again && (self.wanted > 0 || self.is_fenced)
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping
    }
}

/// Makes durable what is wanted, a group at a time, and has another thread wait in the fence of each.
struct Persister<'a> {
    shared: &'a Handover<State>,
    fencer: mpsc::Sender<()>,
    in_fence: u32,
}

impl<'a> Turns<'a, State> for Persister<'a> {
    type Error = ();

    fn turn(
        &mut self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<(MutexGuard<'a, State>, Left), ()> {
        let mut found = 0;
        if std::mem::take(&mut state.is_fenced) {
            found = std::mem::take(&mut self.in_fence);
            state.durable += found;
        }
        if self.in_fence == 0 && state.wanted > 0 {
            self.in_fence = std::mem::take(&mut state.wanted);
            // Writes back, without the lock.
            drop(state);
            self.fencer.send(()).unwrap();
            state = self.shared.lock();
        }
        let left = Left {
            is_more: false,
            is_pending: found + self.in_fence > 0,
        };
        Ok((state, left))
    }

    fn pause(&mut self, _: &State) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// A client wants a version to be durable, and the store stops: it is.
fn a_version_is_wanted_and_the_store_stops(looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Handover::new(State {
            wanted: 0,
            durable: 0,
            is_fenced: false,
            is_stopping: false,
            looks_again,
        }));
        let (begin, begun) = mpsc::channel();
        let theirs = Arc::clone(&shared);
        let persister = thread::spawn(move || {
            let mut persister = Persister {
                shared: &theirs,
                fencer: begin,
                in_fence: 0,
            };
            theirs.run(&mut persister).unwrap();
        });
        let of_fence = Arc::clone(&shared);
        let fencer = thread::spawn(move || {
            begun.recv().unwrap();
            of_fence.hand(|state| state.is_fenced = true);
        });
        {
            let mut state = shared.lock();
            state.wanted += 1;
            // Under the lock, as a shard does.
            shared.wake();
        }
        shared.hand(|state| state.is_stopping = true);
        persister.join().unwrap();
        fencer.join().unwrap();
        assert_eq!(shared.lock().durable, 1, "stopped before all was durable");
    });
}

#[test]
fn nothing_that_is_handed_to_a_persister_waits_for_its_sleep_to_end() {
    let test = "nothing_that_is_handed_to_a_persister_waits_for_its_sleep_to_end";
    let lines = weakened::lines(test, SOURCE, || {
        a_version_is_wanted_and_the_store_stops(true);
    });
    lines.assert_needed(&["self.work.notify_one();"]);
}

#[test]
fn a_persister_that_does_not_look_again_sleeps_on_what_came() {
    let test = "a_persister_that_does_not_look_again_sleeps_on_what_came";
    let is_found = weakened::is_found(test, || a_version_is_wanted_and_the_store_stops(false));
    assert!(is_found, "the model does not see a lost wake-up");
}
