//! Pages that could not be read when somebody touched them. They are poisoned, so nobody faults
//! there again; but hosts that were silent may come back with their bytes. So they are read again
//! now and then, and one that can be read is not poisoned any more.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Action, BATCH_MAX, Pages, State};
use crate::injected_faults::{InjectedFault, is_injected};

/// Pause after a lost page could not be read again. Arbitrary: short for people, and the reads of a
/// batch are little beside those of a program.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Pages that are lost, and whose turn it is.
#[derive(Clone, Default)]
pub(super) struct LostPages {
    /// Those that are [`State::Lost`].
    pages: BTreeSet<u32>,
    /// Those that are [`State::Retried`].
    reading: u32,
    /// The next page to be read, or the first after it: those that stay lost keep no other waiting.
    next: u32,
    /// No page is read before.
    retry_at: Duration,
}

impl LostPages {
    /// A page is lost from now on.
    pub fn enter(&mut self, page: u32, now: Duration) {
        self.retry_at = now + RETRY_AFTER;
        self.pages.insert(page);
    }

    /// A page is not lost any more.
    pub fn leave(&mut self, page: u32) {
        self.pages.remove(&page);
    }

    /// A read has ended, or nobody cares for its end.
    pub fn end(&mut self) {
        self.reading -= 1;
    }

    /// When lost pages are to be read again.
    pub fn deadline(&self) -> Option<Duration> {
        (!self.pages.is_empty()).then_some(self.retry_at)
    }

    /// The page whose turn it is.
    fn take(&mut self) -> Option<u32> {
        let after = self.pages.range(self.next..).next();
        let page = *after.or_else(|| self.pages.first())?;
        self.pages.remove(&page);
        self.next = page.saturating_add(1);
        Some(page)
    }

    /// Those of a copy of the memory; the reads are not its own.
    pub fn copied(&self, states: impl Iterator<Item = State>) -> Self {
        let lost = (0..).zip(states);
        let lost = lost.filter(|(_, state)| matches!(state, State::Lost | State::Retried));
        Self {
            pages: lost.map(|(page, _)| page).collect(),
            reading: 0,
            ..*self
        }
    }
}

impl Pages {
    /// Reads lost pages again that are due, some at once. To be called at each turn of a handler
    /// that can drop pages.
    pub fn retry_lost(&mut self, now: Duration) {
        // Half of what is kept free is for faults.
        while now >= self.lost.retry_at
            && self.lost.reading < BATCH_MAX
            && self.free() > self.spare() / 2
        {
            let Some(page) = self.lost.take() else {
                return;
            };
            self.lost.reading += 1;
            self.resident += 1;
            self.set(page, State::Retried);
            self.actions.push_back(Action::Read(page));
        }
    }

    /// A lost page was read again. If it can be read, others are tried at once: a host is back.
    pub(super) fn retried(&mut self, page: u32, is_read: bool, now: Duration) {
        self.lost.end();
        if is_read && !is_injected(InjectedFault::PoisonKept) {
            self.lost.retry_at = now;
            self.set(page, State::Stored);
            self.actions.push_back(Action::Unpoison(page));
        } else {
            self.set(page, State::Lost);
            self.lost.enter(page, now);
        }
    }

    /// In a copy of the memory: a page that could not be read is there all the same, since it was
    /// copied on its way out. It is writable, and has the store's bytes.
    pub(crate) fn found(&mut self, page: u32, now: Duration) {
        self.lost.leave(page);
        self.counters.lost -= 1;
        self.resident += 1;
        self.settle(page, State::Dirty);
        self.tick(now);
    }

    /// In a copy of the memory: a page is poisoned, since it was copied before its original was not
    /// any more.
    pub(crate) fn stays_poisoned(&mut self, page: u32) {
        if self.pages[page as usize].state == State::Stored {
            self.set(page, State::Lost);
            self.lost.pages.insert(page);
        }
    }
}
