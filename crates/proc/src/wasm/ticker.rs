//! Counts epochs while guests run, and sleeps while none does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::Engine;

/// A thread that moves an engine's epoch on.
pub struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// While it lives, epochs are counted.
pub struct Running<'a>(&'a Shared);

#[derive(Default)]
struct Shared {
    /// Guards alive.
    running: AtomicUsize,
    ends: AtomicBool,
    /// Whether the thread sleeps until it is woken; otherwise nobody pays for waking it.
    sleeps: AtomicBool,
    /// Held by who looks at the above in order to sleep, and by who wakes the sleeper.
    gate: Mutex<()>,
    wake: Condvar,
}

impl Ticker {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the system has no thread left.
    pub(super) fn start(engine: &Engine) -> Self {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let engine = engine.clone();
        let thread = std::thread::Builder::new()
            .name("proc-epochs".into())
            .spawn(move || seen.count(&engine))
            .expect("a thread for epochs");
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Has epochs counted until the guard is dropped.
    pub(super) fn running(&self) -> Running<'_> {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleeps.load(Ordering::SeqCst) {
            self.shared.wake();
        }
        Running(&self.shared)
    }
}

impl Shared {
    fn count(&self, engine: &Engine) {
        while !self.ends.load(Ordering::SeqCst) {
            std::thread::sleep(EPOCH);
            engine.increment_epoch();
            let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            // Either this thread sees the guard, or who made it sees this.
            self.sleeps.store(true, Ordering::SeqCst);
            while self.running.load(Ordering::SeqCst) == 0 && !self.ends.load(Ordering::SeqCst) {
                gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleeps.store(false, Ordering::SeqCst);
        }
    }

    fn wake(&self) {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_one();
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has said what it had to say.
            let _ended = thread.join();
        }
    }
}

/// Long beside a step, short beside a client's patience.
const EPOCH: Duration = Duration::from_millis(1);
