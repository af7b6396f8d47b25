//! What handlers have to say. Another thread says it: whoever takes the lines may be stopped, or may
//! wait for a page itself, and a handler waits for neither.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::time::Duration;

/// Lines that wait to be said. More are left out: the first ones say what is wrong.
const WAITING_MAX: usize = 64;

/// How long [`flush`] waits. Arbitrary: long beside a line, short for people.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How often a handler says that pages cannot be moved.
const PERIOD: Duration = Duration::from_secs(1);

/// How long writes fail before it is said what that means. Arbitrary: longer than a host's restart.
const REFUSED_MIN: Duration = Duration::from_secs(5);

type Line = Box<dyn FnOnce() + Send>;

static LINES: OnceLock<SyncSender<Line>> = OnceLock::new();

/// Has `line` said by a thread that may wait.
pub(crate) fn say(line: impl FnOnce() + Send + 'static) {
    let lines = LINES.get_or_init(|| {
        let (lines, inbox) = sync_channel::<Line>(WAITING_MAX);
        let thread = std::thread::Builder::new().name("cenote-pager-log".to_owned());
        // Without a thread nothing is said, and pages are served all the same.
        drop(thread.spawn(move || inbox.into_iter().for_each(|line| line())));
        lines
    });
    // No room: as said above.
    drop(lines.try_send(Box::new(line)));
}

/// Returns when all is said, or nobody takes it: before a process ends.
pub(crate) fn flush() {
    let (said, is_said) = channel();
    if LINES.get().is_some() {
        say(move || said.send(()).unwrap_or(()));
        // An error says that there is no thread, or no room.
        is_said.recv_timeout(FLUSH_MAX).ok();
    }
}

/// Pages that could not be moved, of one handler.
#[derive(Default)]
pub(crate) struct Failures {
    /// Since the last line about them.
    unsaid: u64,
    say_at: Duration,
    writes: Writes,
}

/// Whether pages can be written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Writes {
    #[default]
    Done,
    /// None since then.
    RefusedSince(Duration),
    /// And it was said what that means.
    Said,
}

impl Failures {
    /// One more, for that reason: said now and then.
    pub fn note(&mut self, now: Duration, what: &'static str, error: &impl ToString) {
        self.unsaid += 1;
        if now < self.say_at {
            return;
        }
        self.say_at = now + PERIOD;
        let (pages, error) = (std::mem::take(&mut self.unsaid), error.to_string());
        say(move || tracing::warn!(pages, error, "{what}"));
    }

    /// A write has ended. Where all fail for long whoever needs room waits, which is said once.
    pub fn note_write(&mut self, now: Duration, is_done: bool) {
        self.writes = match self.writes {
            _ if is_done => Writes::Done,
            Writes::Done => Writes::RefusedSince(now),
            Writes::RefusedSince(since) if now >= since + REFUSED_MIN => {
                say(|| {
                    tracing::error!(
                        "too few hosts take pages: programs that need room for them wait until hosts \
                         are back: start hosts, or end the program"
                    );
                });
                Writes::Said
            }
            waiting => waiting,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn who_says_something_waits_for_nobody() {
        let said = Arc::new(AtomicU64::new(0));
        let held = Arc::new(Mutex::new(()));
        let guard = held.lock().expect("no test panics with it");
        // More than are kept, while the first one cannot be said.
        for _ in 0..WAITING_MAX * 3 {
            let (held, said) = (Arc::clone(&held), Arc::clone(&said));
            say(move || {
                drop(held.lock());
                said.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(guard);
        // The next one that finds room is said after them.
        let is_over = Arc::new(AtomicBool::new(false));
        while !is_over.load(Ordering::SeqCst) {
            let is_over = Arc::clone(&is_over);
            say(move || is_over.store(true, Ordering::SeqCst));
            flush();
        }
        let said = said.load(Ordering::Relaxed);
        assert!((1..=WAITING_MAX as u64 + 1).contains(&said), "{said}");
    }

    #[test]
    fn pages_that_cannot_be_moved_are_counted_between_two_lines() {
        let mut failures = Failures::default();
        for millis in 0..1500 {
            failures.note(Duration::from_millis(millis), "no page is moved", &"why");
        }
        assert_eq!(failures.unsaid, 499);
    }

    #[test]
    fn what_refused_writes_mean_is_said_once_until_one_is_done() {
        let mut failures = Failures::default();
        let mut at = |millis, is_done| {
            failures.note_write(Duration::from_millis(millis), is_done);
            failures.writes
        };
        let refused = |millis| Writes::RefusedSince(Duration::from_millis(millis));
        assert_eq!(at(100, true), Writes::Done);
        assert_eq!(at(200, false), refused(200));
        assert_eq!(at(5199, false), refused(200));
        assert_eq!(at(5200, false), Writes::Said);
        assert_eq!(at(90_000, false), Writes::Said);
        assert_eq!(at(90_001, true), Writes::Done);
        assert_eq!(at(90_002, false), refused(90_002));
    }
}
