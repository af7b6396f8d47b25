//! Threads that take the process with them when they panic.
//!
//! A process that has lost one of its threads still answers on the others: its peers and its registration
//! take it for alive though it serves nothing. Others can only replace what has ended.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use cenote_cli::stderr;

/// Starts a thread; a panic of it ends the process, at once, by SIGABRT.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = name.to_owned();
    Builder::new().name(name.clone()).spawn(move || {
        let end_as_one = EndAsOne(name);
        let result = work();
        std::mem::forget(end_as_one);
        result
    })
}

/// Ends the process when it is dropped, which happens only while its thread panics.
struct EndAsOne(String);

impl Drop for EndAsOne {
    fn drop(&mut self) {
        // Whoever else was to write this may be the one that has panicked.
        stderr::say(format_args!(
            "thread {} panicked: this process ends",
            self.0
        ));
        std::process::abort();
    }
}

/// A lock whose holder panicked has whole contents here: single inserts and removals.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Run by the other test alone, as a process of its own that would go on for ever.
    #[test]
    #[ignore = "ends its process"]
    fn panics_in_one_of_its_threads() {
        let thread = spawn("victim", || panic!("on purpose")).expect("a thread");
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            std::thread::park_timeout(PATIENCE);
        }
        drop(thread);
    }

    #[test]
    fn a_panic_of_a_thread_ends_the_process() {
        let this = std::env::current_exe().expect("our own file");
        let ended = Command::new(this)
            .args([
                "--ignored",
                "--exact",
                "threads::tests::panics_in_one_of_its_threads",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("this program again");
        assert_eq!(ended.signal(), Some(6), "{ended}: by SIGABRT");
    }

    #[test]
    fn a_thread_that_ends_well_says_what_came_of_it() {
        let thread = spawn("well", || 7).expect("a thread");
        assert_eq!(thread.join().expect("it does not panic"), 7);
    }
}
