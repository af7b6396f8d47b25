//! The pages of a copy of the memory, as `fork` makes one.

use std::collections::VecDeque;

use super::{Pages, State};
use crate::counters::Counters;
use crate::stream::Streams;

impl Pages {
    /// The pages of a copy of the memory, as `fork` makes one, when no action is left to be done;
    /// and those of it that are writable from now on.
    pub(crate) fn copied(&self) -> (Self, Vec<u32>) {
        assert!(self.actions.is_empty(), "a fork comes between actions");
        let mut copy = Self {
            pages: self.pages.clone(),
            queues: self.queues.clone(),
            streams: Streams::new(self.pages.len() as u32),
            actions: VecDeque::new(),
            waiting: VecDeque::new(),
            resident: 0,
            room: self.room,
            clean: self.clean,
            writing: 0,
            orphans: 0,
            progress_at: self.progress_at,
            arrived_at: self.arrived_at,
            retry_at: self.retry_at,
            likely: 0,
            lost: self.lost.copied(self.pages.iter().map(|page| page.state)),
            counters: Counters::default(),
        };
        let mut writable = Vec::new();
        for page in 0..self.pages.len() as u32 {
            let next = match self.pages[page as usize].state {
                State::Empty | State::Stored | State::Lost => continue,
                State::Fetching | State::FetchingToWrite | State::Ahead => State::Stored,
                State::Retried => State::Lost,
                State::Zeroing => State::Empty,
                State::Void | State::Erasing => {
                    copy.pages[page as usize].is_stored = false;
                    State::Empty
                }
                state @ (State::Clean | State::Dirty) => state,
                State::Cleaning | State::Redirtied => {
                    writable.push(page);
                    copy.queues.stay(page);
                    State::Dirty
                }
            };
            copy.resident += u32::from(matches!(next, State::Clean | State::Dirty));
            copy.set(page, next);
        }
        (copy, writable)
    }
}
