//! Threads that stay on processors.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The processors that this thread may run on.
///
/// # Errors
/// The system refuses.
pub fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("ask for this thread's processors")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&one| allowed.is_set(one))
        .collect())
}

/// Keeps this thread, and those that it starts from now on, on `processors`.
///
/// # Errors
/// The system refuses.
pub fn this_thread(processors: &[usize]) -> Result<()> {
    keep(None, processors)
}

/// Keeps the thread that has this number on `processors`.
///
/// # Errors
/// There is no such thread, or the system refuses.
pub fn thread(number: i32, processors: &[usize]) -> Result<()> {
    let thread = Pid::from_raw(number).context("0 is no thread")?;
    keep(Some(thread), processors)
}

fn keep(thread: Option<Pid>, processors: &[usize]) -> Result<()> {
    let mut wanted = CpuSet::new();
    processors.iter().for_each(|&one| wanted.set(one));
    sched_setaffinity(thread, &wanted).context("keep a thread on its processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_and_what_it_starts_stay_where_they_are_put() {
        let all = processors().expect("it runs");
        let last = *all.last().expect("it runs somewhere");
        std::thread::spawn(move || {
            this_thread(&[last]).expect("it may run there");
            let child = std::thread::spawn(processors).join().expect("no panic");
            assert_eq!(child.expect("it runs"), [last]);
        })
        .join()
        .expect("no panic");
        assert_eq!(processors().expect("it runs"), all);
    }
}
