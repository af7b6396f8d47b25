//! Which thread helps which, when load is uneven.
//!
//! A thread without requests takes some of the thread that has most. Only requests that wait to be
//! run move; who answers, and who keeps the books of a client, stays.
//! Paper: `[compucache]` the server-wide scheduler.

/// Whom an idle thread helps, and with how many requests; `lengths` are the threads' queues.
///
/// Nobody is helped who has less than two rounds: moving costs a lock and cold caches.
#[must_use]
pub fn whom_to_help(lengths: &[usize], idle: usize) -> Option<(usize, usize)> {
    let others = lengths.iter().enumerate().filter(|(at, _)| *at != idle);
    let (busiest, longest) = others.max_by_key(|(at, len)| (**len, usize::MAX - *at))?;
    if *longest < LEAST {
        return None;
    }
    Some((busiest, (longest / 2).min(MOST)))
}

/// Requests that a thread runs in one round.
pub const ROUND: usize = 16;
/// A shorter queue is soon run by its own thread.
const LEAST: usize = 2 * ROUND;
/// Taken at once: their answers come back together, and should not be late.
const MOST: usize = 64;

#[cfg(test)]
mod tests;
