//! Gives much memory back to the system on a thread of its own.
//!
//! The system takes some 40 ms for a GiB, and who drops a region or a table is a lane that its peers wait for. The
//! thread begins when it is first needed, and ends with the process.
//!
//! Bound: [`QUEUE_MAX`] things wait. What there is no place for goes at once, as all does where there is no thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread;

/// What is less goes at once: that takes a fraction of a millisecond.
pub const BYTES_MIN: u64 = 8 << 20;
/// More than a node has of groups, as a rule; arbitrary.
const QUEUE_MAX: usize = 1024;

static REAPER: OnceLock<Reaper> = OnceLock::new();

/// Bytes that the system does not have back yet.
static WAITING_BYTES: AtomicU64 = AtomicU64::new(0);

/// Drops what nobody needs any more, of so many bytes, later: worth it from [`BYTES_MIN`] on.
pub fn reap(bytes: u64, memory: impl Send + 'static) {
    let reaper = REAPER.get_or_init(|| Reaper::start(&WAITING_BYTES));
    reaper.take(bytes, Box::new(memory));
}

/// Memory of this process that nobody needs any more, and the system does not have back yet.
pub fn waiting_bytes() -> u64 {
    WAITING_BYTES.load(Ordering::Relaxed)
}

/// The thread; none: the system has none to give.
struct Reaper {
    queue: Option<SyncSender<Garbage>>,
    waiting_bytes: &'static AtomicU64,
}

struct Garbage {
    bytes: u64,
    memory: Box<dyn Send>,
}

impl Reaper {
    fn start(waiting_bytes: &'static AtomicU64) -> Self {
        let (queue, garbage) = mpsc::sync_channel::<Garbage>(QUEUE_MAX);
        let reap = move || garbage.iter().for_each(|one| one.drop_from(waiting_bytes));
        let thread = thread::Builder::new().name("reaper".to_owned()).spawn(reap);
        Self {
            queue: thread.is_ok().then_some(queue),
            waiting_bytes,
        }
    }

    fn take(&self, bytes: u64, memory: Box<dyn Send>) {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let garbage = Garbage { bytes, memory };
        let left = match &self.queue {
            Some(queue) => queue.try_send(garbage).err().map(|error| match error {
                TrySendError::Full(garbage) | TrySendError::Disconnected(garbage) => garbage,
            }),
            None => Some(garbage),
        };
        if let Some(garbage) = left {
            garbage.drop_from(self.waiting_bytes);
        }
    }
}

impl Garbage {
    fn drop_from(self, waiting_bytes: &AtomicU64) {
        drop(self.memory);
        waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Says which thread drops it, and then waits.
    struct Slow(Sender<ThreadId>, Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).expect("it is awaited");
            self.1.recv_timeout(PATIENCE).expect("it may go on");
        }
    }

    #[test]
    fn memory_counts_until_a_thread_of_its_own_has_dropped_it() {
        static WAITING: AtomicU64 = AtomicU64::new(0);
        let reaper = Reaper::start(&WAITING);
        let ((says, said), (goes, may_go)) = (channel(), channel());
        reaper.take(BYTES_MIN, Box::new(Slow(says, may_go)));
        let dropper = said.recv_timeout(PATIENCE).expect("it is dropped");
        assert_ne!(dropper, thread::current().id());
        assert_eq!(WAITING.load(Ordering::Relaxed), BYTES_MIN);
        goes.send(()).expect("it waits");
        let deadline = Instant::now() + PATIENCE;
        while WAITING.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < deadline, "it counts for ever");
            thread::yield_now();
        }
    }

    #[test]
    fn without_a_thread_memory_goes_at_once() {
        static WAITING: AtomicU64 = AtomicU64::new(0);
        let reaper = Reaper {
            queue: None,
            waiting_bytes: &WAITING,
        };
        let (says, said) = channel();
        let (goes, may_go) = channel();
        goes.send(()).expect("the other end is here");
        reaper.take(BYTES_MIN, Box::new(Slow(says, may_go)));
        assert_eq!(said.try_recv(), Ok(thread::current().id()));
        assert_eq!(WAITING.load(Ordering::Relaxed), 0);
    }
}
