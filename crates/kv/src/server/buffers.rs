//! Memory that one worker's clients hold, in parts that do not wait for each other: requests that are not
//! whole, small and large ones apart, and answers that are not read, with what has been asked elsewhere.
//!
//! A request counts with what has been received of it, not with what it has announced, and with nothing up to
//! [`FREE_BYTES`], which every line but a long `get` has: so reads never wait for stores. Where a part is used
//! up its clients wait, in their order, but a few may exceed it and come to their end. Who holds something there
//! and does not go on at [`LEAST_BYTES`] a second while others wait is closed after [`PATIENCE_SECONDS`], and
//! sooner the more often that happens; one of the few at once.

use std::collections::VecDeque;

/// What a client may hold of a request in any case: a part of what a connection costs.
pub(super) const FREE_BYTES: usize = (2 << 10) + 2;

/// For so many seconds in a row a client may be slower than ...
pub(super) const PATIENCE_SECONDS: u32 = 2;

/// ... this while others wait for what it holds; arbitrary.
pub(super) const LEAST_BYTES: usize = 64 << 10;

/// Of all memory for clients one part in so many is for small requests ...
const SMALL_PART: usize = 8;
/// ... and so many of these parts for large ones; the rest is for answers.
const LARGE_PARTS: usize = 3;
/// A request is large that has more than this, or than half of what is for all small ones.
const LARGE_BYTES_MIN: usize = 128 << 10;
/// A large request is taken to have so many bytes: what items have at the most, if nobody says otherwise.
const REQUEST_BYTES: usize = 1 << 20;

/// One of the parts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// Requests of some KiB that are not whole.
    Small,
    /// Larger ones.
    Large,
    /// What is not read, or is under way elsewhere, also for clients that have gone.
    Answers,
}

impl Part {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Answers];
}

/// What one client holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Held {
    small: usize,
    large: usize,
    answers: usize,
}

impl Held {
    /// In one part.
    pub(super) fn of(&self, part: Part) -> usize {
        match part {
            Part::Small => self.small,
            Part::Large => self.large,
            Part::Answers => self.answers,
        }
    }

    pub(super) fn set(&mut self, part: Part, bytes: usize) {
        match part {
            Part::Small => self.small = bytes,
            Part::Large => self.large = bytes,
            Part::Answers => self.answers = bytes,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Buffers {
    small: Pool,
    large: Pool,
    answers: Pool,
    large_bytes_min: usize,
}

#[derive(Debug, Default)]
struct Pool {
    max: usize,
    held: usize,
    /// What is under way for clients that may be gone.
    elsewhere: usize,
    /// Places of clients that may exceed it, to come to an end.
    enders: Vec<usize>,
    enders_max: usize,
    /// Places of clients that wait for room, and how much each wants to hold.
    waiting: VecDeque<(usize, usize)>,
}

impl Pool {
    fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    /// Of requests that have so many bytes at the most: half is for those that may exceed the other half.
    fn of_requests(max: usize, request_bytes_max: usize) -> Self {
        Self {
            enders_max: (max / 2 / request_bytes_max).max(1),
            ..Self::new(max / 2)
        }
    }

    /// Whether a client may exceed it.
    fn may_end(&mut self, place: usize) -> bool {
        if !self.enders.contains(&place) && self.enders.len() < self.enders_max {
            self.enders.push(place);
        }
        self.enders.contains(&place)
    }

    /// Whether a client that has `own` may hold `wanted`. One that is alone may.
    fn has_room(&self, own: usize, wanted: usize) -> bool {
        let others = self.held - own + self.elsewhere;
        others == 0 || others + wanted <= self.max
    }
}

impl Buffers {
    pub(super) fn new(max: usize) -> Self {
        let small = max / SMALL_PART;
        let large = small * LARGE_PARTS;
        let large_bytes_min = LARGE_BYTES_MIN.min(small / 2).max(1);
        Self {
            small: Pool::of_requests(small, large_bytes_min),
            large: Pool::of_requests(large, REQUEST_BYTES),
            answers: Pool::new(max - small - large),
            large_bytes_min,
        }
    }

    /// The part of a request of so many bytes.
    pub(super) fn part_of(&self, needed: usize) -> Part {
        match needed > self.large_bytes_min {
            true => Part::Large,
            false => Part::Small,
        }
    }

    fn pool(&self, part: Part) -> &Pool {
        match part {
            Part::Small => &self.small,
            Part::Large => &self.large,
            Part::Answers => &self.answers,
        }
    }

    fn pool_mut(&mut self, part: Part) -> &mut Pool {
        match part {
            Part::Small => &mut self.small,
            Part::Large => &mut self.large,
            Part::Answers => &mut self.answers,
        }
    }

    /// Bytes that clients hold.
    pub(super) fn held(&self) -> usize {
        self.small.held + self.large.held + self.answers.held
    }

    /// What is asked of other workers and nodes counts as answers.
    pub(super) fn set_elsewhere(&mut self, bytes: usize) {
        self.answers.elsewhere = bytes;
    }

    /// Whether a client at a place may hold `wanted` bytes of its request, which has `own`.
    pub(super) fn may_receive(
        &mut self,
        part: Part,
        place: usize,
        own: usize,
        wanted: usize,
    ) -> bool {
        let pool = self.pool_mut(part);
        // Who waits already is not passed by.
        let is_first = pool.waiting.is_empty() || own > 0;
        is_first && pool.has_room(own, wanted) || pool.may_end(place)
    }

    /// Whether the client at a place may exceed a part.
    pub(super) fn is_ender(&self, part: Part, place: usize) -> bool {
        self.pool(part).enders.contains(&place)
    }

    /// The client at a place is gone.
    pub(super) fn leave(&mut self, place: usize) {
        self.end(place);
        for pool in [&mut self.small, &mut self.large, &mut self.answers] {
            pool.waiting.retain(|(waiting, _)| *waiting != place);
        }
    }

    /// The request of the client at a place has come to its end.
    pub(super) fn end(&mut self, place: usize) {
        for pool in [&mut self.small, &mut self.large] {
            pool.enders.retain(|ender| *ender != place);
        }
    }

    /// Whether there is room for `wanted` bytes of answers, beside those of others than a client that has `own`.
    pub(super) fn may_answer(&self, own: usize, wanted: usize) -> bool {
        self.answers.has_room(own, wanted)
    }

    /// Whether clients are to be content with short buffers.
    pub(super) fn is_scarce(&self, part: Part) -> bool {
        let pool = self.pool(part);
        pool.held + pool.elsewhere > pool.max / 2
    }

    /// What clients hold of a part changes.
    pub(super) fn change(&mut self, part: Part, from: usize, to: usize) {
        let pool = self.pool_mut(part);
        pool.held = pool.held - from + to;
    }

    /// A client waits for room.
    pub(super) fn wait(&mut self, part: Part, place: usize, wanted: usize) {
        self.pool_mut(part).waiting.push_back((place, wanted));
    }

    pub(super) fn is_waited_for(&self, part: Part) -> bool {
        !self.pool(part).waiting.is_empty()
    }

    /// The next client for which there is room now. `own` says what it holds.
    pub(super) fn next(&mut self, part: Part, own: impl FnOnce(usize) -> usize) -> Option<usize> {
        let pool = self.pool_mut(part);
        let (place, wanted) = *pool.waiting.front()?;
        if !pool.has_room(own(place), wanted) && !pool.may_end(place) {
            return None;
        }
        pool.waiting.pop_front();
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn room_for_answers_goes_to_who_has_waited_longest() {
        let mut buffers = Buffers::new(200);
        let part = Part::Answers;
        assert!(buffers.may_answer(0, 1000), "nobody else has any");
        buffers.change(part, 0, 60);
        assert!(buffers.is_scarce(part) && buffers.may_answer(0, 40) && !buffers.may_answer(0, 41));
        assert!(buffers.may_answer(60, 1000), "its own does not count");
        buffers.wait(part, 7, 50);
        buffers.wait(part, 8, 1);
        assert_eq!(
            buffers.next(part, |_| 0),
            None,
            "8 would fit, but comes after 7"
        );
        buffers.change(part, 60, 50);
        assert_eq!(buffers.next(part, |_| 0), Some(7));
        assert_eq!(buffers.next(part, |_| 0), Some(8));
        assert!(!buffers.is_waited_for(part));
    }

    /// 100 clients receive 200 kB each of 1 MB and stop.
    #[test]
    fn stalled_requests_leave_room_for_small_ones_and_for_answers() {
        let mut buffers = Buffers::new(2 * MIB);
        let large = buffers.part_of(MIB);
        assert_eq!(large, Part::Large);
        let mut waiting = 0;
        for place in 0..100 {
            let mut own = 0;
            while own < 200_000 && buffers.may_receive(large, place, own, own + 20_000) {
                buffers.change(large, own, own + 20_000);
                own += 20_000;
            }
            if own < 200_000 {
                buffers.wait(large, place, own + 20_000);
                waiting += 1;
            }
        }
        assert!(waiting > 90, "{waiting}");
        let all = buffers.held();
        assert!(all <= 2 * MIB * 3 / 8, "{all} bytes");
        assert!(buffers.may_answer(0, MIB - 1));
        let small = buffers.part_of(50_000);
        assert_eq!(small, Part::Small);
        assert!(buffers.may_receive(small, 100, 0, 50_000));
    }

    #[test]
    fn one_that_exceeds_its_part_comes_to_its_end_and_then_the_next_does() {
        let mut buffers = Buffers::new(800);
        let part = Part::Large;
        for place in [1, 2] {
            assert!(buffers.may_receive(part, place, 0, 75));
            buffers.change(part, 0, 75);
        }
        // Neither could end within the part.
        assert!(buffers.may_receive(part, 1, 75, 900) && buffers.is_ender(part, 1));
        buffers.change(part, 75, 900);
        assert!(!buffers.may_receive(part, 2, 75, 900), "one at a time");
        buffers.wait(part, 2, 900);
        buffers.wait(part, 3, 900);
        assert_eq!(buffers.next(part, |_| 75), None);
        buffers.end(1);
        buffers.change(part, 900, 0);
        assert_eq!(buffers.next(part, |_| 75), Some(2));
        buffers.change(part, 75, 900);
        assert_eq!(
            buffers.next(part, |_| 0),
            Some(3),
            "it may exceed the part, which 2 does alone"
        );
        assert!(!buffers.may_receive(part, 4, 0, 1));
        buffers.wait(part, 4, 1);
        // Those who go are waited for no more.
        buffers.leave(4);
        assert!(!buffers.is_waited_for(part));
        buffers.leave(3);
        buffers.change(part, 900, 0);
        assert!(buffers.may_receive(part, 4, 0, 1) && !buffers.is_ender(part, 4));
    }
}
