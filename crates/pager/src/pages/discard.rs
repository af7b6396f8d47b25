//! Pages that their owner gives up.

use std::time::Duration;

use super::{Action, Pages, State};

impl Pages {
    /// Makes `page` zeros, for good. `false`: it is being written, or erased; to be asked again
    /// after that.
    pub fn discard(&mut self, page: u32, now: Duration) -> bool {
        match self.pages[page as usize].state {
            State::Cleaning | State::Redirtied | State::Erasing => return false,
            State::Void => {}
            State::Empty => self.queues.forget(page),
            State::Fetching | State::FetchingToWrite | State::Ahead | State::Zeroing => {
                self.set(page, State::Void)
            }
            State::Stored | State::Lost => {
                // A lost page is out of the memory only when its poison is.
                self.lost.leave(page);
                self.actions.push_back(Action::Drop(page));
                self.erase(page);
            }
            State::Retried => {
                self.lost.end();
                self.actions.push_back(Action::Drop(page));
                self.set(page, State::Void);
            }
            State::Clean | State::Dirty => {
                self.leave();
                self.actions.push_back(Action::Drop(page));
                self.erase(page);
            }
        }
        self.tick(now);
        true
    }

    /// Has the write of a page that is under way go on for nobody, if there is one: then the page can
    /// be discarded. For a driver that has copied its bytes, and writes it to another place the next
    /// time. The write's end is [`Pages::orphan_done`].
    pub(crate) fn disown_write(&mut self, page: u32) -> bool {
        let state = self.pages[page as usize].state;
        let is_written = matches!(state, State::Cleaning | State::Redirtied);
        if is_written {
            self.writing -= 1;
            self.orphans += 1;
            self.pages[page as usize].is_stored = false;
            self.set(page, State::Dirty);
        }
        is_written
    }

    /// A write has ended that was disowned.
    pub(crate) fn orphan_done(&mut self, is_written: bool, now: Duration) {
        self.orphans -= 1;
        self.note_write(is_written, now);
        self.tick(now);
    }

    /// The store has forgotten `page`, or keeps what nobody will read.
    pub fn erase_done(&mut self, page: u32, now: Duration) {
        self.set(page, State::Empty);
        self.tick(now);
    }

    pub(super) fn erase(&mut self, page: u32) {
        self.queues.forget(page);
        self.pages[page as usize].is_rewritten = false;
        if std::mem::take(&mut self.pages[page as usize].is_stored) {
            self.set(page, State::Erasing);
            self.actions.push_back(Action::Erase(page));
        } else {
            self.set(page, State::Empty);
        }
    }
}
