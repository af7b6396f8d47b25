//! A node that was asked to end: since when, and when it next tries to have others know.
//!
//! etcd may be away just then, or have lost the registration that is to be marked. Pure but for the
//! span: whoever drives it knows the time.

use std::time::{Duration, Instant};

use super::super::backoff::Backoff;

/// Pauses between two tries to mark the node. Short at first: without the mark others may give it
/// places as it gives them up.
const PAUSE_LEAST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(2);

/// See the [module](self).
pub(super) struct Leaving {
    /// What traces have of it, until it is dropped.
    _span: tracing::Span,
    backoff: Backoff,
    /// When it is tried next; none: it was not tried.
    due: Option<Instant>,
}

impl Leaving {
    /// Of the node of this name; the seed is one that others do not have.
    pub(super) fn begin(name: &str, seed: u64) -> Self {
        Self {
            _span: tracing::info_span!("drain node", cenote.kv.node = name),
            backoff: Backoff::new(PAUSE_LEAST, PAUSE_MOST, seed),
            due: None,
        }
    }

    /// Whether the node is to be marked now, if it is not.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// It was tried: what came of it will be heard, or it is tried again.
    pub(super) fn note_try(&mut self, now: Instant) {
        self.due = Some(now + self.backoff.pause());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_marked_at_once_and_again_after_a_pause() {
        let mut leaving = Leaving::begin("n00", 7);
        let mut now = Instant::now();
        assert!(leaving.is_due(now));
        for _ in 0..20 {
            leaving.note_try(now);
            assert!(!leaving.is_due(now));
            assert!(leaving.is_due(now + PAUSE_MOST));
            now += PAUSE_MOST;
        }
    }
}
