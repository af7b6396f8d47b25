//! A worker: one thread's way into a volume.
//!
//! Requests (`requests`) are cut into page operations (`page`), which post verbs on the worker's
//! own endpoints (`endpoints`) and are moved on by completions. `submit`/`poll` serve a front end
//! with many requests in flight; `read`/`write`/`discard` run one to its end on the calling
//! thread (Hydra's run-to-completion). Here is the loop that both turn. Nothing on the page path
//! allocates or takes a lock shared with other workers.
//!
//! Drop order matters: the endpoints go first, after which nothing can land in buffers.

mod endpoints;
mod page;
mod random;
mod requests;
mod scratch;
mod switches;
mod timer;
mod views;

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use cenote_codec::{DATA_MAX, PARITY_MAX};
use cenote_fabric::{CompletionQueue, FAILURE_TIMEOUT};

use crate::Done;
use crate::control::Command;
use crate::core::Core;
use crate::directory::WorkerEpoch;
use crate::volume::Farewell;
use endpoints::Endpoints;
use page::{Guard, Ops, PageOp};
use random::Random;
use requests::Requests;
use scratch::Scratch;
use views::Views;

pub use switches::{Switches, Work};

/// Requests that one worker accepts before it wants to be polled.
pub const REQUESTS_MAX: usize = 256;

/// Page operations in flight per worker; fewer than an endpoint's queue, so that a post always fits.
pub(crate) const OPS_MAX: usize = 256;

/// One thread's endpoints, operations and landing buffers.
pub struct Worker {
    endpoints: Endpoints,
    completions: Completions,
    core: Arc<Core>,
    // Said before the epoch slot is free for another worker.
    farewell: Farewell,
    views: Views,
    ops: Ops,
    agenda: Agenda,
    scratch: Scratch,
    requests: Requests,
    guard: Guard,
    // How long a host is waited for before any other will do.
    patience: Duration,
    // Decides which splits are read.
    random: Random,
    switches: Switches,
    // Hears of the processor's work, in a simulation.
    meter: Option<fn(Work)>,
    is_abandoned: bool,
}

/// Verbs that have ended.
struct Completions {
    queue: CompletionQueue,
    // Of endpoints that complete at once; empty between posts.
    inline: CompletionQueue,
}

/// Operations that are to go on.
struct Agenda {
    // Their last verb completed at once.
    ready: Vec<u16>,
    // They wait for something other than a completion.
    parked: Vec<u16>,
    // Those that waited before this turn.
    retry: Vec<u16>,
    // Their data splits are posted, and their parities are not.
    encode: Vec<u16>,
}

impl Completions {
    fn new() -> Self {
        Self {
            // A slab that is being moved is written twice.
            queue: CompletionQueue::with_capacity(OPS_MAX * (DATA_MAX + PARITY_MAX + 1)),
            inline: CompletionQueue::with_capacity(1),
        }
    }
}

impl Agenda {
    fn new() -> Self {
        let list = || Vec::with_capacity(OPS_MAX);
        Self {
            ready: list(),
            parked: list(),
            retry: list(),
            encode: list(),
        }
    }
}

// SAFETY: the raw pointers in slots point into buffers that the slots own (or that a
// caller of `run` lends for the call); nothing is tied to a thread.
unsafe impl Send for Worker {}

/// The places of a worker's operations in the list of pages in flight.
pub(crate) fn slots_of(id: usize) -> Range<usize> {
    id * OPS_MAX..(id + 1) * OPS_MAX
}

impl Worker {
    /// One that writes has to have room for what its pages will be: `Marks::reserve_slots`.
    pub(crate) fn new(
        core: Arc<Core>,
        id: usize,
        epoch: WorkerEpoch,
        host_count: usize,
        commands: Sender<Command>,
    ) -> std::io::Result<Self> {
        let parities = epoch.known().resilience.scheme().r();
        // First: it takes the worker back when what follows fails.
        let farewell = Farewell { id, commands };
        let mut worker = Self {
            endpoints: Endpoints::new(host_count)?,
            completions: Completions::new(),
            views: Views::new(epoch),
            ops: Ops::new(),
            agenda: Agenda::new(),
            scratch: Scratch::new(core.layout().cut(), parities),
            requests: Requests::new(),
            guard: Guard::new(),
            patience: Duration::MAX,
            random: Random::new(id as u64),
            switches: Switches::default(),
            meter: None,
            is_abandoned: false,
            farewell,
            core,
        };
        if let Some(store) = &worker.core.backing {
            worker.endpoints.watch_disk(store.bell_of(id)?.fd());
            store.disown(id);
        }
        worker.take_mail();
        Ok(worker)
    }

    /// Current size of the volume in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core.size_bytes.load(Ordering::Acquire)
    }

    /// Makes progress without blocking and moves ended requests to `done`.
    pub fn poll(&mut self, done: &mut Vec<Done>) {
        self.turn(Duration::ZERO);
        done.extend(self.requests.done.drain(..));
    }

    /// Requests submitted and not yet handed out by [`Worker::poll`].
    #[must_use]
    pub fn in_flight(&self) -> usize {
        REQUESTS_MAX - self.requests.free.len() + self.requests.done.len()
    }

    /// Readable when [`Worker::poll`] would make progress.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.endpoints.fd()
    }

    /// Poll again within this time even when the descriptor stays quiet: something waits for
    /// another worker or for the control thread. `None`: the descriptor says it all.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        /// Short beside any network, long beside a spin.
        const PARKED: Duration = Duration::from_millis(1);
        const OUTSTANDING: Duration = Duration::from_millis(100);
        if !self.requests.done.is_empty() {
            Some(Duration::ZERO)
        } else if !self.agenda.parked.is_empty()
            || !self.requests.starting.is_empty()
            || !self.requests.deferred.is_empty()
        {
            Some(PARKED)
        } else if self.views.working() > 0 || self.ops.at_disk > 0 || self.views.lingering() > 0 {
            Some(OUTSTANDING)
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
        self.switches = switches;
    }

    /// Has `meter` hear of each piece of the processor's work before it counts as done: a simulated
    /// one takes its time there.
    pub fn set_meter(&mut self, meter: fn(Work)) {
        self.meter = Some(meter);
    }

    #[inline]
    fn spend(&self, work: Work) {
        if let Some(meter) = self.meter {
            meter(work);
        }
    }

    /// Pages whose writes were acknowledged, and that not every member has yet.
    pub fn landing_pages(&self) -> impl Iterator<Item = u64> {
        self.ops.iter().filter_map(PageOp::landing_page)
    }

    /// System calls made on the data path so far, for benchmarks.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.endpoints.system_calls()
    }

    /// Splits that [`Worker::scrub`] found wrong so far, and those of them that it wrote again.
    pub(crate) fn scrubbed(&self) -> (u64, u64) {
        (self.guard.wrong_count, self.guard.healed_count)
    }

    /// One turn of the loop: arrivals, completions, parked operations, new pages.
    fn turn(&mut self, timeout: Duration) {
        if self.core.mailboxes.has_mail(self.farewell.id) {
            self.take_mail();
        }
        // Woken with nothing in flight: a connection has something to say.
        let is_idle = self.requests.free.len() == REQUESTS_MAX && self.requests.done.is_empty();
        let owed = self.endpoints.outstanding() > 0;
        if is_idle || !timeout.is_zero() || owed {
            let (endpoints, clock, queue) = (
                &mut self.endpoints,
                self.core.clock,
                &mut self.completions.queue,
            );
            let dead = match timeout {
                Duration::ZERO => endpoints.poll(timeout, clock, queue),
                _ if !self.switches.run_to_completion => endpoints.poll(timeout, clock, queue),
                _ => endpoints.wait(timeout, self.patience, clock, queue),
            };
            for session in dead {
                self.fail_session(session);
            }
        }
        self.completions.queue.received.clear();
        self.hear_disk();
        self.start_deferred();
        std::mem::swap(&mut self.agenda.parked, &mut self.agenda.retry);
        while let Some(op) = self.agenda.retry.pop() {
            self.resume(op);
        }
        self.advance();
    }

    pub(crate) fn take_mail(&mut self) {
        for (session, endpoint) in self.core.mailboxes.collect(self.farewell.id) {
            self.endpoints.adopt(session, endpoint);
        }
    }

    /// Starts pages, rings doorbells, encodes while data splits fly, and handles completions
    /// until nothing more can be done at once.
    fn advance(&mut self) {
        loop {
            self.start_pages();
            if !self.agenda.encode.is_empty() {
                self.endpoints.flush(&mut self.completions.queue);
                while let Some(op) = self.agenda.encode.pop() {
                    self.post_parities(op);
                }
            }
            self.endpoints.flush(&mut self.completions.queue);
            if self.completions.queue.is_empty() && self.agenda.ready.is_empty() {
                break;
            }
            while let Some(op) = self.agenda.ready.pop() {
                self.step(op);
            }
            while let Some(completion) = self.completions.queue.pop() {
                self.complete(completion);
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
        let is_over =
            self.core.life.ending.load(Ordering::Acquire) && !self.core.pages.marks.has_images();
        !is_over && self.has_held()
    }

    /// Without endpoints nothing can land any more; only then may buffers go.
    fn drop_endpoints(&mut self) {
        self.unmark_unended();
        if self.is_abandoned {
            self.endpoints.close();
            self.unclaim_whole();
        } else {
            self.fail_unanswered();
            self.endpoints.close();
            self.fail_writes();
            self.unclaim_all();
        }
        self.forget_disk();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_abandoned {
            return self.drop_endpoints();
        }
        // A write cut off in the middle would leave a stripe that agrees with neither the old
        // page nor the new: what is on its way ends first, what waits does not begin.
        self.requests.starting.clear();
        self.requests.deferred.clear();
        self.retain_settling();
        let begun = (self.core.clock)();
        // For as long as a host may take to come back, and is missed then.
        let held_max = self
            .core
            .limits
            .return_max
            .saturating_add(FAILURE_TIMEOUT * 2);
        // Since when nothing is held.
        let mut moving_since = begun;
        loop {
            let now = (self.core.clock)();
            if self.awaits_held() && now.since(begun) < held_max {
                moving_since = now;
            }
            let is_moving = self.views.working() > 0 || self.ops.at_disk > 0 || self.awaits_held();
            if !is_moving || now.since(moving_since) >= FAILURE_TIMEOUT * 2 {
                break;
            }
            self.turn(Duration::from_millis(1));
            self.retain_settling();
        }
        self.drop_endpoints();
    }
}
