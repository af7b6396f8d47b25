//! A worker: one thread's way into a volume.
//!
//! Requests (`requests`) are cut into page operations. These are state machines (`page`), which the
//! engine drives: it posts their verbs on the worker's own endpoints, and completions move them on.
//! `submit`/`poll` serve a front end with many requests in flight; `read`/`write`/`discard` run one to
//! its end on the calling thread (Hydra's run-to-completion): see `calls`. Here is the loop that both
//! turn. Nothing on the page path allocates or takes a lock shared with other workers.

mod calls;
mod data_path;
mod endpoints;
mod engine;
mod guard;
mod late_answers;
mod order;
mod page;
mod random;
mod requests;
mod scratch;
mod splits;
mod switches;
mod timer;
mod verbs;
mod verdict;
mod views;

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cenote_fabric::FAILURE_TIMEOUT;

use crate::Done;
use crate::command::{Command, Farewell};
use crate::core::Core;
use crate::directory::WorkerEpoch;
use data_path::DataPath;
use endpoints::Endpoints;
use engine::Engine;
use requests::Requests;

pub use switches::{Switches, Work};

/// One thread's endpoints, operations and landing buffers.
pub struct Worker {
    // First: said before the epoch slot is free for another worker.
    _farewell: Farewell,
    engine: Engine,
    requests: Requests,
    // How long a host is waited for before any other will do.
    patience: Duration,
    is_abandoned: bool,
}

// SAFETY: the raw pointers in slots and operations point into buffers that the slots own (or that a
// caller of `run` lends for the call), or into the worker's own memory; nothing is tied to a thread.
unsafe impl Send for Worker {}

impl Worker {
    /// One that writes has to have room for what its pages will be: `Marks::reserve_slots`.
    pub(crate) fn new(
        core: Arc<Core>,
        id: usize,
        epoch: WorkerEpoch,
        host_count: usize,
        commands: Sender<Command>,
    ) -> std::io::Result<Self> {
        // First: it takes the worker back when what follows fails.
        let farewell = Farewell { id, commands };
        let mut endpoints = Endpoints::new(host_count)?;
        if let Some(store) = &core.backing {
            endpoints.watch_disk(store.bell_of(id)?.as_fd().as_raw_fd());
            store.disown(id);
        }
        let path = DataPath::new(core, id, epoch, host_count);
        Ok(Self {
            _farewell: farewell,
            engine: Engine::new(path, endpoints),
            requests: Requests::new(),
            patience: Duration::MAX,
            is_abandoned: false,
        })
    }

    /// Current size of the volume in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.engine.path.core.size_bytes.load(Ordering::Acquire)
    }

    /// Makes progress without blocking and moves ended requests to `done`.
    pub fn poll(&mut self, done: &mut Vec<Done>) {
        self.turn(Duration::ZERO);
        done.extend(self.requests.done.drain(..));
    }

    /// Requests submitted and not yet handed out by [`Worker::poll`].
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    /// Readable when [`Worker::poll`] would make progress.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.engine.endpoints().fd()
    }

    /// Poll again within this time even when the descriptor stays quiet: something waits for
    /// another worker or for the control thread. `None`: the descriptor says it all.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        /// Short beside any network, long beside a spin.
        const PARKED: Duration = Duration::from_millis(1);
        const OUTSTANDING: Duration = Duration::from_millis(100);
        /// Of what no request waits for.
        const STRANDED: Duration = Duration::from_millis(100);
        if !self.requests.done.is_empty() {
            Some(Duration::ZERO)
        } else if self.engine.has_parked() || self.requests.has_waiting() {
            Some(PARKED)
        } else if self.engine.is_owed() {
            Some(OUTSTANDING)
        } else if self.engine.has_stranded() {
            Some(STRANDED)
        } else {
            None
        }
    }

    /// Turns parts of the page path off. Between requests.
    ///
    /// # Panics
    /// If a request is under way.
    pub fn set_switches(&mut self, switches: Switches) {
        assert_eq!(self.in_flight(), 0, "requests are under way");
        self.engine.path.switches = switches;
    }

    /// Has `meter` hear of each piece of the processor's work before it counts as done: a simulated
    /// one takes its time there.
    pub fn set_meter(&mut self, meter: fn(Work)) {
        self.engine.path.meter = Some(meter);
    }

    /// Pages whose writes were acknowledged, and that not every member has yet.
    pub fn landing_pages(&self) -> impl Iterator<Item = u64> {
        self.engine.path.landing.iter().map(|write| write.page)
    }

    /// System calls made on the data path so far, for benchmarks.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.engine.endpoints().system_calls()
    }

    /// Splits that [`Worker::scrub`] found wrong so far, and those of them that it wrote again.
    pub(crate) fn scrubbed(&self) -> (u64, u64) {
        let guard = &self.engine.path.guard;
        (guard.wrong_count, guard.healed_count)
    }

    /// One turn of the loop: arrivals, completions, parked operations, new pages.
    fn turn(&mut self, timeout: Duration) {
        self.engine.take_mail();
        // Woken with nothing in flight: a connection has something to say.
        let is_owed = self.engine.endpoints().outstanding() > 0;
        if self.requests.is_idle() || !timeout.is_zero() || is_owed {
            let waits_in_order = !timeout.is_zero() && self.engine.path.switches.run_to_completion;
            self.engine
                .hear(timeout, waits_in_order.then_some(self.patience));
        }
        self.requests.start_deferred();
        self.engine.begin_turn();
        self.advance();
    }

    /// Starts pages and moves operations on until nothing more can be done at once.
    fn advance(&mut self) {
        loop {
            self.requests.start_pages(&mut self.engine);
            let has_advanced = self.engine.advance();
            let requests = &mut self.requests;
            self.engine
                .tell_ended(|core, ended| requests.on_ended(core, ended));
            if !has_advanced {
                break;
            }
        }
    }
}

impl Worker {
    /// Ends without waiting for what is on its way, as the end of its process would: writes may
    /// have reached some members and not others. For tests of what survives that.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Whether writes are held that may be ended as soon as their slabs are back, or given up; of a volume
    /// that ends with its owner they need not be.
    fn awaits_held(&self) -> bool {
        let core = &self.engine.path.core;
        let is_over = core.life.ending.load(Ordering::Acquire) && !core.pages.marks.has_images();
        !is_over && self.engine.has_paused()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_abandoned {
            return self.engine.close(true);
        }
        // A write cut off in the middle would leave a stripe that agrees with neither the old
        // page nor the new: what is on its way ends first, what waits does not begin.
        self.requests.forget_waiting();
        self.engine.retain_paused();
        let core = Arc::clone(&self.engine.path.core);
        let begun = (core.clock)();
        // For as long as a host may take to come back, and is missed then.
        let held_max = core.limits.return_max.saturating_add(FAILURE_TIMEOUT * 2);
        // Since when nothing is held.
        let mut moving_since = begun;
        loop {
            let now = (core.clock)();
            if self.awaits_held() && now.since(begun) < held_max {
                moving_since = now;
            }
            let is_moving = self.engine.is_working() || self.awaits_held();
            if !is_moving || now.since(moving_since) >= FAILURE_TIMEOUT * 2 {
                break;
            }
            self.turn(Duration::from_millis(1));
            self.engine.retain_paused();
        }
        self.engine.close(false);
    }
}
