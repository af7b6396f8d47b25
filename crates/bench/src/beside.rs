//! Threads beside what leads them: loads, and what stands in their way.

use std::sync::atomic::{AtomicBool, Ordering};

/// Runs `work` of each worker on a thread of its own while `lead` runs here; what `lead` came to, and
/// each worker in its order. Once `lead` has ended, by a panic too, the workers are told to stop, and
/// waited for.
///
/// # Panics
/// If one of them does.
pub(crate) fn beside<W: Send, R: Send, T>(
    workers: impl IntoIterator<Item = W>,
    work: impl Fn(W, &AtomicBool) -> R + Sync,
    lead: impl FnOnce() -> T,
) -> (T, Vec<R>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (work, stop) = (&work, &stop);
        let workers = workers.into_iter();
        let threads: Vec<_> = workers
            .map(|worker| scope.spawn(move || work(worker, stop)))
            .collect();
        let guard = StopOnDrop(stop);
        let led = lead();
        drop(guard);
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended = ended.map(|end| end.expect("a worker does not panic"));
        (led, ended.collect())
    })
}

/// As [`beside`], with nobody to lead: until each worker has ended by itself.
pub(crate) fn all<W: Send, R: Send>(
    workers: impl IntoIterator<Item = W>,
    work: impl Fn(W) -> R + Sync,
) -> Vec<R> {
    beside(workers, |worker, _| work(worker), || ()).1
}

/// As [`beside`], of one worker that goes on for as long as `lead` takes, and has nothing to tell but
/// errors.
///
/// # Errors
/// Those of both.
pub(crate) fn in_background<T>(
    work: impl FnMut(&AtomicBool) -> anyhow::Result<()> + Send,
    lead: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (led, ended) = beside([work], |mut work, stop| work(stop), lead);
    ended.into_iter().collect::<anyhow::Result<()>>()?;
    led
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn until_stopped(stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn workers_go_on_until_the_lead_has_ended_and_are_told_in_their_order() {
        let work = |number, stop: &AtomicBool| {
            until_stopped(stop);
            number
        };
        let (led, ended) = beside(1..=3, work, || "led");
        assert_eq!((led, ended), ("led", vec![1, 2, 3]));
        assert_eq!(all(1..=3, |number| 2 * number), [2, 4, 6]);
    }

    #[test]
    fn a_lead_that_panics_stops_the_workers() {
        let lead = || -> anyhow::Result<()> { panic!("as it is to") };
        let work = |stop: &AtomicBool| {
            until_stopped(stop);
            Ok(())
        };
        let run = || in_background(work, lead);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
}
