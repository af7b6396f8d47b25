//! Progress of long work, on a terminal only, and not with `--quiet`.
//!
//! Work that takes longer than [`SHORT`] is told with the time that is left, at the rate so far.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Set once, by `main`.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Work that ends within this time is told without how much of it is left: the rate is a guess by then.
const SHORT: Duration = Duration::from_secs(2);

/// Nothing is drawn by this process from now on.
pub fn silence() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// A bar of `total` steps on stderr; nothing is drawn where stderr is no terminal.
pub fn steps(total: u64, what: &'static str) -> ProgressBar {
    let left = |state: &ProgressState, out: &mut dyn fmt::Write| {
        let done = state.pos();
        let left = left_of(state.elapsed(), done, state.len().unwrap_or(done));
        // What is written to is a string: that cannot fail.
        out.write_str(&left).unwrap_or(());
    };
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}{left}")
        .expect("the template is a literal that parses")
        .with_key("left", left);
    ProgressBar::with_draw_target(Some(total), target())
        .with_style(style)
        .with_message(what)
}

/// A spinner with a message; nothing is drawn where stderr is no terminal.
pub fn line() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}")
        .expect("the template is a literal that parses");
    ProgressBar::with_draw_target(None, target()).with_style(style)
}

/// A spinner that turns by itself while something is waited for, with the time that it has taken.
pub fn waiting(what: impl Into<String>) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}")
        .expect("the template is a literal that parses");
    let bar = ProgressBar::with_draw_target(None, target())
        .with_style(style)
        .with_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn target() -> ProgressDrawTarget {
    match IS_QUIET.load(Ordering::Relaxed) {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    }
}

/// How much time is left of work of which one looks now and then how much is done.
#[derive(Debug)]
pub struct Left {
    began: Instant,
    first: Option<u64>,
}

impl Default for Left {
    fn default() -> Self {
        Self::new()
    }
}

impl Left {
    /// Of work that begins now.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            first: None,
        }
    }

    /// So much of it is done: `, about 12s left`, or nothing while that is not known.
    pub fn after(&mut self, done: u64, total: u64) -> String {
        // What was done before the first look says nothing of the rate.
        let first = *self.first.get_or_insert(done);
        let (done, total) = (done.saturating_sub(first), total.saturating_sub(first));
        left_of(self.began.elapsed(), done, total)
    }
}

fn left_of(elapsed: Duration, done: u64, total: u64) -> String {
    if elapsed < SHORT || done == 0 || done >= total {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() * (total - done) as f64 / done as f64;
    let seconds = seconds.ceil();
    match seconds {
        0.0..120.0 => format!(", about {seconds:.0}s left"),
        120.0..7200.0 => format!(", about {:.0}m left", seconds / 60.0),
        _ => format!(", about {:.0}h left", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_by_the_rate_so_far() {
        let of = |seconds, done, total| left_of(Duration::from_secs(seconds), done, total);
        assert_eq!(of(10, 20, 60), ", about 20s left");
        assert_eq!(of(60, 1, 11), ", about 10m left");
        assert_eq!(of(3600, 1, 11), ", about 10h left");
        for (seconds, done, total) in [(1, 5, 10), (10, 0, 10), (10, 10, 10), (10, 11, 10)] {
            assert_eq!(of(seconds, done, total), "");
        }
    }

    #[test]
    fn what_was_done_before_does_not_count_to_the_rate() {
        let began = Instant::now() - Duration::from_secs(10);
        let mut left = Left { began, first: None };
        assert_eq!(left.after(90, 100), "");
        // 5 of 10 in ten seconds, and what the test took.
        let text = left.after(95, 100);
        assert!(text.starts_with(", about 1"), "{text}");
    }
}
