//! Answers that hosts owe and that nobody waits for: of reads that went on without them.

use crate::directory::Session;

/// How many each host owes, on its newest session of which there are any.
pub(super) struct LateAnswers {
    by_host: Vec<Owed>,
}

#[derive(Clone, Copy, Default)]
struct Owed {
    session_number: u64,
    count: u32,
}

impl LateAnswers {
    pub fn new(host_count: usize) -> Self {
        Self {
            by_host: vec![Owed::default(); host_count],
        }
    }

    /// A read goes on without an answer of this session.
    pub fn add(&mut self, session: Session) {
        let owed = &mut self.by_host[session.host];
        if owed.session_number < session.number {
            // What an earlier session owes is over with it.
            *owed = Owed {
                session_number: session.number,
                count: 0,
            };
        }
        if owed.session_number == session.number {
            owed.count += 1;
        }
    }

    /// Such an answer has come, or never will.
    pub fn remove(&mut self, session: Session) {
        let owed = &mut self.by_host[session.host];
        if owed.session_number == session.number {
            owed.count = owed.count.saturating_sub(1);
        }
    }

    /// Whether the session's host owes any.
    pub fn owes(&self, session: Session) -> bool {
        let owed = self.by_host[session.host];
        owed.session_number == session.number && owed.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_session_owes_is_over_with_it() {
        let [old, new] = [3, 4].map(|number| Session { host: 1, number });
        let mut late = LateAnswers::new(2);
        late.add(old);
        late.add(old);
        assert!(late.owes(old) && !late.owes(new));
        late.add(new);
        assert!(!late.owes(old) && late.owes(new));
        late.remove(old);
        late.add(old);
        assert!(late.owes(new), "the old one counts no more");
        late.remove(new);
        assert!(!late.owes(new));
    }
}
