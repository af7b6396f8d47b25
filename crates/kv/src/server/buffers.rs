//! Memory that one worker's clients hold: requests that are not whole, answers that are not read. What they
//! have asked of other nodes takes room beside that, also once they are gone.
//!
//! A client is served while the others leave room. One whose request needs a large buffer has all of it set
//! aside first, so that whoever has begun can end; the others wait, in their order. Who holds something
//! and waits for its own peer while others wait for room is closed after [`PATIENCE_SECONDS`], and sooner the
//! more often that happens.

use std::collections::VecDeque;

/// How long a client may keep others from being served by doing nothing.
pub(super) const PATIENCE_SECONDS: u64 = 5;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Buffers {
    held: usize,
    /// What is under way for clients that may be gone.
    elsewhere: usize,
    max: usize,
    /// Places of clients that wait for room, and how much each wants.
    waiting: VecDeque<(usize, usize)>,
}

impl Buffers {
    pub(super) fn new(max: usize) -> Self {
        Self {
            held: 0,
            elsewhere: 0,
            max,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether there is room for `wanted` bytes beside what others have than a client that has `own`. One that
    /// is alone has room.
    pub(super) fn has_room(&self, own: usize, wanted: usize) -> bool {
        let others = self.held - own + self.elsewhere;
        others == 0 || others + wanted <= self.max
    }

    /// Whether clients are to be content with short buffers.
    pub(super) fn is_scarce(&self) -> bool {
        self.held + self.elsewhere > self.max / 2
    }

    pub(super) fn set_elsewhere(&mut self, bytes: usize) {
        self.elsewhere = bytes;
    }

    /// What a client holds changes.
    pub(super) fn change(&mut self, from: usize, to: usize) {
        self.held = self.held - from + to;
    }

    /// A client waits for room.
    pub(super) fn wait(&mut self, place: usize, wanted: usize) {
        self.waiting.push_back((place, wanted));
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next client for which there is room now. `own` says what it holds.
    pub(super) fn next(&mut self, own: impl FnOnce(usize) -> usize) -> Option<usize> {
        let (place, wanted) = *self.waiting.front()?;
        if !self.has_room(own(place), wanted) {
            return None;
        }
        self.waiting.pop_front();
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_goes_to_who_has_waited_longest() {
        let mut buffers = Buffers::new(100);
        assert!(buffers.has_room(0, 1000), "nobody else has any");
        buffers.change(0, 60);
        assert!(buffers.is_scarce() && buffers.has_room(0, 40) && !buffers.has_room(0, 41));
        assert!(buffers.has_room(60, 1000), "its own does not count");
        buffers.wait(7, 50);
        buffers.wait(8, 1);
        assert_eq!(buffers.next(|_| 0), None, "8 would fit, but comes after 7");
        buffers.change(60, 50);
        assert_eq!(buffers.next(|_| 0), Some(7));
        assert_eq!(buffers.next(|_| 0), Some(8));
        assert!(!buffers.is_waited_for());
        buffers.change(50, 0);
        buffers.set_elsewhere(60);
        assert!(buffers.is_scarce() && buffers.has_room(0, 40) && !buffers.has_room(0, 41));
        buffers.set_elsewhere(0);
        assert!(buffers.has_room(0, 1000));
        assert_eq!(buffers.next(|_| 0), None);
    }
}
