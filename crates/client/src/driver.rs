//! A thread of its own for a connection that is one thread's, so that any thread may use it.
//!
//! Requests come over a bounded channel and are begun as they come, up to [`UNDER_WAY_MAX`] at a time.
//! Who asked waits for a [`Pending`]; one that is dropped is done all the same, and nobody hears of it.
//! The thread ends when its [`Driver`] is dropped and all that was asked has ended.

use std::collections::HashMap;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError, channel,
    sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_fabric::{Time, Waker};

/// Requests under way on a connection. A round trip's worth even of small ones; both kinds of
/// connection take more.
pub(crate) const UNDER_WAY_MAX: usize = 512;
/// Requests that wait to be begun. Who has more waits.
const WAITING_MAX: usize = 1024;
/// Longest sleep of the thread: a cache's client is called often enough to keep its lease.
const REST: Duration = Duration::from_millis(20);
/// Longest wait of who asked: a clock takes no sum with the longest `Duration`.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long the thread looks for ends before it sleeps.
const SPIN: Duration = Duration::from_micros(20);

/// Many requests under way, each with a token.
pub(crate) trait Connection {
    /// What is asked.
    type Request: Send + 'static;
    /// Its end.
    type End: Send + 'static;

    /// Begins a request that was asked for at `asked`, whose end comes out of `poll`.
    fn begin(&mut self, request: Self::Request, token: u64, asked: Time);
    /// Goes on without blocking, and appends what ended.
    fn poll(&mut self, ended: &mut Vec<(u64, Self::End)>);
    /// Sleeps until there may be something to poll, its waker was woken, or `timeout` has passed.
    fn wait(&mut self, timeout: Duration);
    /// What ends `wait` from another thread.
    fn waker(&self) -> Waker;
}

struct Job<C: Connection> {
    request: C::Request,
    reply: Sender<(usize, C::End)>,
    at: usize,
    asked: Time,
}

/// The thread.
pub(crate) struct Driver<C: Connection> {
    // Dropped first, by `Drop`: the thread ends for it.
    jobs: Option<SyncSender<Job<C>>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Ends that are waited for.
#[derive(Debug)]
pub struct Pending<T> {
    from: Receiver<(usize, T)>,
    ends: Vec<Option<T>>,
    missing: usize,
}

impl<T> Pending<T> {
    /// Ends that are there already.
    #[cfg(feature = "store")]
    pub(crate) fn ended(ends: impl Iterator<Item = T>) -> Self {
        Self {
            from: channel().1,
            ends: ends.map(Some).collect(),
            missing: 0,
        }
    }

    /// Waits for all ends, at most for `timeout`: whether they are there.
    ///
    /// # Errors
    /// [`Over`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Over> {
        let until = Instant::now() + timeout.min(WAIT_MAX);
        while self.missing > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left) {
                Ok((at, end)) => {
                    self.ends[at] = Some(end);
                    self.missing -= 1;
                }
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => return Err(Over),
            }
        }
        Ok(true)
    }

    /// The ends, in the order in which they were asked for.
    ///
    /// # Errors
    /// [`Over`].
    pub fn ends(mut self) -> Result<Vec<T>, Over> {
        while !self.wait(WAIT_MAX)? {}
        let ends = self.ends.into_iter();
        Ok(ends.map(|end| end.expect("none is missing")).collect())
    }
}

/// The connection's thread has ended, and does nothing more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the connection's thread has ended")]
pub struct Over;

impl<C: Connection + 'static> Driver<C> {
    /// Opens a connection on a thread of its own, which drives it from then on.
    pub fn start<E: Send + 'static>(
        name: &str,
        open: impl FnOnce() -> Result<C, E> + Send + 'static,
    ) -> Result<Result<Self, E>, std::io::Error> {
        let (jobs, taken) = sync_channel(WAITING_MAX);
        let (say, opened) = channel();
        let body = move || match open() {
            Ok(connection) => {
                drop(say.send(Ok(connection.waker())));
                drive(connection, &taken);
            }
            Err(error) => drop(say.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(body)?;
        match opened.recv() {
            Ok(Ok(waker)) => Ok(Ok(Self {
                jobs: Some(jobs),
                waker,
                thread: Some(thread),
            })),
            Ok(Err(error)) => Ok(Err(error)),
            Err(_) => Err(std::io::Error::other(Over)),
        }
    }

    /// Asks for all of `requests`; blocks while more wait than may.
    pub fn begin(&self, requests: impl IntoIterator<Item = C::Request>) -> Pending<C::End> {
        let (reply, from) = channel();
        let asked = Time::now();
        let mut count = 0;
        for request in requests {
            let job = Job {
                request,
                reply: reply.clone(),
                at: count,
                asked,
            };
            let jobs = self.jobs.as_ref().expect("only drop takes it");
            // Without its thread the reply is gone with the job, which `Pending` says.
            if let Err(TrySendError::Full(job)) = jobs.try_send(job) {
                self.waker.wake();
                drop(jobs.send(job));
            }
            count += 1;
        }
        self.waker.wake();
        Pending {
            from,
            ends: (0..count).map(|_| None).collect(),
            missing: count,
        }
    }
}

impl<C: Connection> Drop for Driver<C> {
    fn drop(&mut self) {
        self.jobs = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It panicked: who waited was told.
            drop(thread.join());
        }
    }
}

/// Who waits for an end, and as which of its requests.
type Waiting<E> = (Sender<(usize, E)>, usize);

fn drive<C: Connection>(mut connection: C, jobs: &Receiver<Job<C>>) {
    let mut under_way: HashMap<u64, Waiting<C::End>> = HashMap::new();
    let mut ended = Vec::new();
    let mut next = 0_u64;
    let mut is_over = false;
    let mut idle_since = Instant::now();
    loop {
        let mut has_moved = false;
        while under_way.len() < UNDER_WAY_MAX {
            match jobs.try_recv() {
                Ok(job) => {
                    under_way.insert(next, (job.reply, job.at));
                    connection.begin(job.request, next, job.asked);
                    next += 1;
                    has_moved = true;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    is_over = true;
                    break;
                }
            }
        }
        connection.poll(&mut ended);
        for (token, end) in ended.drain(..) {
            has_moved = true;
            if let Some((reply, at)) = under_way.remove(&token) {
                // Who asked may have gone.
                drop(reply.send((at, end)));
            }
        }
        if is_over && under_way.is_empty() {
            return;
        }
        let now = Instant::now();
        if has_moved {
            idle_since = now;
        } else if under_way.is_empty() || now.duration_since(idle_since) >= SPIN {
            connection.wait(REST);
            idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Doubles numbers, the last first, once `until` of them are under way; 0 is a bug.
    struct Doubling {
        waker: Waker,
        until: usize,
        under_way: Vec<(u64, u32)>,
        done: Arc<AtomicUsize>,
    }

    impl Connection for Doubling {
        type Request = u32;
        type End = u32;

        fn begin(&mut self, request: u32, token: u64, _: Time) {
            assert_ne!(request, 0, "a bug");
            self.under_way.push((token, request));
            assert!(self.under_way.len() <= UNDER_WAY_MAX);
        }

        fn poll(&mut self, ended: &mut Vec<(u64, u32)>) {
            if self.under_way.len() >= self.until {
                self.done.fetch_add(self.under_way.len(), Ordering::Relaxed);
                let ends = self.under_way.drain(..).rev();
                ended.extend(ends.map(|(token, number)| (token, 2 * number)));
            }
        }

        fn wait(&mut self, timeout: Duration) {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&self.waker));
            cenote_fabric::wait(&[fd], Some(timeout)).expect("it waits");
            self.waker.clear();
        }

        fn waker(&self) -> Waker {
            self.waker.clone()
        }
    }

    fn doubling(until: usize) -> (Driver<Doubling>, Arc<AtomicUsize>) {
        let done = Arc::new(AtomicUsize::new(0));
        let counts = done.clone();
        let open = move || -> Result<_, ()> {
            Ok(Doubling {
                waker: Waker::new().expect("a descriptor"),
                until,
                under_way: Vec::new(),
                done: counts,
            })
        };
        let driver = Driver::start("doubling", open).expect("a thread");
        (driver.expect("it opens"), done)
    }

    #[test]
    fn ends_come_in_the_order_in_which_they_were_asked_for() {
        let (driver, _) = doubling(1);
        // More than wait, and more than are under way.
        let threads = 4;
        let begin = Barrier::new(threads);
        std::thread::scope(|scope| {
            for thread in 0..threads as u32 {
                let (driver, begin) = (&driver, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let asked = (1..3000).map(|number| number + 10_000 * thread);
                    let ends = driver.begin(asked.clone()).ends().expect("all end");
                    assert!(ends.into_iter().eq(asked.map(|number| 2 * number)));
                });
            }
        });
    }

    #[test]
    fn who_waits_for_as_long_as_it_takes_gets_the_ends() {
        let (driver, _) = doubling(1);
        let mut pending = driver.begin(1..10);
        assert_eq!(pending.wait(Duration::MAX), Ok(true));
        assert_eq!(pending.ends().map(|ends| ends.len()), Ok(9));
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_done_before_the_thread_ends() {
        let (driver, done) = doubling(10);
        let mut pending = driver.begin(1..10);
        let is_there = pending.wait(Duration::from_millis(1));
        assert_eq!(is_there, Ok(false), "the tenth is missing");
        drop(pending);
        let last = driver.begin([10]);
        drop(driver);
        assert_eq!(done.load(Ordering::Relaxed), 10);
        assert_eq!(last.ends(), Ok(vec![20]));
    }

    #[test]
    fn who_waits_is_told_when_the_thread_ends_by_a_bug() {
        let (driver, _) = doubling(1);
        assert_eq!(driver.begin([0]).ends(), Err(Over));
        assert_eq!(driver.begin([1]).ends(), Err(Over));
    }
}
