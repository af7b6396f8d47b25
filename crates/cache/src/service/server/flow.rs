//! How what one client is told gets on: whether it reads it, and whether it hears anything.

use std::time::Duration;

use cenote_fabric::Time;

use crate::owner::LEASE;
use crate::service::outbox::Sent;

/// One that reads nothing for so long is cut off.
const UNREAD_MAX: Duration = Duration::from_secs(10);

/// One that asks for its lease and hears nothing for so long is given a sign: while the journal cannot be written
/// no lease goes out, and a client takes silence for the manager's end.
pub const SIGN_AFTER: Duration = LEASE;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Something waits for the socket, which took nothing since.
    blocked_since: Option<Time>,
    /// It asked for its lease then, and was told nothing since.
    unheard_since: Option<Time>,
}

impl Flow {
    /// It asks for its lease.
    pub fn note_asked(&mut self, now: Time) {
        self.unheard_since.get_or_insert(now);
    }

    /// Whether it is to be told something, whatever that is.
    pub fn wants_sign(&self, now: Time) -> bool {
        let is_due = |since: Time| now.since(since) >= SIGN_AFTER;
        self.unheard_since.is_some_and(is_due) && !self.is_blocked()
    }

    /// How far what waits was sent, and whether the socket took any of it.
    pub fn note_sent(&mut self, now: Time, sent: Sent, has_said: bool) {
        if has_said {
            self.unheard_since = None;
        }
        self.blocked_since = match (sent, self.blocked_since) {
            // It reads, however slowly.
            (Sent::Blocked, Some(since)) if !has_said => Some(since),
            (Sent::Blocked, _) => Some(now),
            (Sent::All | Sent::Held, _) => None,
        };
    }

    /// Whether something waits for the socket.
    pub fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Whether it reads nothing, and is to be cut off.
    pub fn is_stuck(&self, now: Time) -> bool {
        self.blocked_since
            .is_some_and(|since| now.since(since) > UNREAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(7).after(Duration::from_secs(seconds))
    }

    #[test]
    fn one_that_reads_slowly_is_not_cut_off() {
        let mut flow = Flow::default();
        for minute in 0..60 {
            let minute = minute * 60;
            for seconds in [0, 9, 18, 27, 36, 45, 54] {
                // One message goes out, and the next finds no room again.
                flow.note_sent(at(minute + seconds), Sent::Blocked, true);
                assert!(!flow.is_stuck(at(minute + seconds + 9)));
            }
        }
        // It reads no more.
        let last = 59 * 60 + 54;
        for seconds in 1..=10 {
            flow.note_sent(at(last + seconds), Sent::Blocked, false);
            assert!(!flow.is_stuck(at(last + seconds)), "{seconds}");
        }
        assert!(flow.is_stuck(at(last + 11)));
        flow.note_sent(at(last + 11), Sent::All, true);
        assert!(!flow.is_stuck(at(last + 100)));
    }

    #[test]
    fn one_that_asks_for_a_lease_and_hears_nothing_is_given_a_sign_and_no_other() {
        let mut flow = Flow::default();
        assert!(!flow.wants_sign(at(100)), "it has not asked");
        let later = |seconds| at(seconds).after(SIGN_AFTER);
        flow.note_asked(at(1));
        flow.note_asked(at(2));
        assert!(!flow.wants_sign(at(2)) && flow.wants_sign(later(1)));
        flow.note_sent(later(1), Sent::Held, true);
        assert!(!flow.wants_sign(later(100)), "it heard something");
        flow.note_asked(at(5));
        flow.note_sent(at(5), Sent::Blocked, false);
        assert!(!flow.wants_sign(later(5)), "it does not read");
    }
}
