//! Memory that one worker's clients hold, in parts that do not wait for each other: requests that are not
//! whole, small and large ones apart, and answers that are not read, with what has been asked elsewhere.
//!
//! A request counts with what has been received of it, not with what it has announced, and with nothing up to
//! [`FREE_BYTES`], which every line but a long `get` has: so reads never wait for stores. Where a part is used
//! up its clients wait, those of one source in their order, sources in turns. A few may exceed it and come to
//! their end, and one source never has all places of these. Who holds something there and does not go on at
//! [`LEAST_BYTES`] a second while others wait is closed after [`PATIENCE_SECONDS`], and sooner the more often that
//! happens, unless its source holds less than an even share; one of the few at once, if somebody may have its
//! place.
//!
//! Where answers have used up their part small ones are given all the same ([`small_answers`]), and one
//! client may exceed it ([`guest`]).
//!
//! [`guest`]: super::guest
//! [`small_answers`]: super::small_answers

use std::collections::BTreeMap;

use cenote_fabric::strangers::Source;

use super::guest::Guest;
use super::turns::{Turns, Waiter};

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
/// An answer is taken to have so many bytes: what items have at the most, if nobody says otherwise.
const ANSWER_BYTES: usize = 1 << 20;
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
    /// Who may exceed the answers.
    guest: Guest,
    large_bytes_min: usize,
}

#[derive(Debug, Default)]
struct Pool {
    max: usize,
    held: usize,
    /// What is under way for clients that may be gone.
    elsewhere: usize,
    /// Clients that may exceed it, to come to an end, by their places.
    enders: BTreeMap<usize, Source>,
    enders_max: usize,
    /// Clients that wait for room.
    waiting: Turns,
}

impl Pool {
    fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    /// Of requests that have so many bytes at the most: half is for those that may exceed the other half. They are
    /// two at least, so that one can be of another source.
    fn of_requests(max: usize, request_bytes_max: usize) -> Self {
        Self {
            enders_max: (max / 2 / request_bytes_max).max(2),
            ..Self::new(max / 2)
        }
    }

    /// Of answers: 1 MiB is reserved for the guest, but never more than half.
    fn of_answers(max: usize) -> Self {
        Self::new(max.saturating_sub(ANSWER_BYTES).max(max / 2))
    }

    /// Whether a source may have one more client that exceeds it: all but one may be of one source.
    fn is_below_limit(&self, source: Source, more: usize) -> bool {
        let own = self.enders.values().filter(|of| **of == source).count();
        own < self.enders_max.saturating_sub(1) + more
    }

    /// Whether a client of a source may come to exceed it now.
    fn has_place(&self, source: Source) -> bool {
        self.enders.len() < self.enders_max && self.is_below_limit(source, 0)
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
            answers: Pool::of_answers(max - small - large),
            guest: Guest::default(),
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

    /// Whether a client may hold so many bytes of its request, which has `own`; otherwise it is to [wait](Self::wait).
    pub(super) fn may_receive(&mut self, part: Part, client: Waiter, own: usize) -> bool {
        let pool = self.pool_mut(part);
        if pool.enders.contains_key(&client.place) {
            return true;
        }
        // Who waits already is not passed by. What has been received of a request stands in the way until the
        // request is whole, so that goes on while there is room, but it gets no place that others wait for.
        let is_first = pool.waiting.is_empty();
        if (is_first || own > 0) && pool.has_room(own, client.wanted) {
            return true;
        }
        let may_end = is_first && pool.has_place(client.source);
        if may_end {
            pool.enders.insert(client.place, client.source);
        }
        may_end
    }

    /// Whether the client at a place may exceed a part, and somebody who waits could do so in its stead.
    pub(super) fn is_in_the_way(&self, part: Part, place: usize) -> bool {
        let pool = self.pool(part);
        if part == Part::Answers {
            let mut sources = pool.waiting.sources();
            return self.guest.is_at(place) && sources.any(|source| self.guest.may_be_of(source));
        }
        pool.enders.get(&place).is_some_and(|own| {
            let mut sources = pool.waiting.sources();
            // Two sources at the most have as many as they may, so that this ends soon.
            sources.any(|source| pool.is_below_limit(source, usize::from(source == *own)))
        })
    }

    /// The client at a place is gone.
    pub(super) fn leave(&mut self, place: usize) {
        self.end(place);
        self.end_answers(place);
        for pool in [&mut self.small, &mut self.large, &mut self.answers] {
            pool.waiting.remove(place);
        }
    }

    /// The request of the client at a place has come to its end.
    pub(super) fn end(&mut self, place: usize) {
        for pool in [&mut self.small, &mut self.large] {
            pool.enders.remove(&place);
        }
    }

    /// The client at a place has no answers any more that it has not read, or none that could come now.
    pub(super) fn end_answers(&mut self, place: usize) {
        self.guest.leave(place);
    }

    /// Whether there is room for `wanted` bytes of answers, beside those of others than a client that has `own`.
    pub(super) fn has_room_for_answers(&self, own: usize, wanted: usize) -> bool {
        self.answers.has_room(own, wanted)
    }

    /// Whether a client that has `own` bytes of answers may have more; otherwise only small ones. The guest may
    /// once, and then as long as nobody else could be the guest.
    pub(super) fn may_answer(&mut self, client: Waiter, own: usize) -> bool {
        if self.answers.has_room(own, client.wanted) {
            return true;
        }
        if self.guest.is_at(client.place) {
            return self.guest.serve() || !self.is_in_the_way(Part::Answers, client.place);
        }
        let is_first = self.answers.waiting.is_empty();
        is_first && self.guest.admit(client.place, client.source) && self.guest.serve()
    }

    /// What a client of a source holds of answers changes.
    pub(super) fn change_source(&mut self, source: Source, from: usize, to: usize) {
        self.guest.change(source, from, to);
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

    /// A client waits for room. Who waits for that of answers is not the guest any more: nobody else
    /// would be until there is room.
    pub(super) fn wait(&mut self, part: Part, client: Waiter) {
        if part == Part::Answers {
            self.guest.leave(client.place);
        }
        self.pool_mut(part).waiting.push(client);
    }

    pub(super) fn is_waited_for(&self, part: Part) -> bool {
        !self.pool(part).waiting.is_empty()
    }

    /// The next client for which there is room now, or that may come to exceed the part. `own` says what it holds.
    pub(super) fn next(&mut self, part: Part, own: impl FnOnce(usize) -> usize) -> Option<usize> {
        let pool = self.pool_mut(part);
        let front = pool.waiting.front()?;
        if pool.has_room(own(front.place), front.wanted) {
            pool.waiting.take(front.place);
            return Some(front.place);
        }
        if part == Part::Answers {
            if self.guest.is_there() {
                return None;
            }
            let fronts = self.answers.waiting.fronts();
            let guest = { fronts }.find(|front| self.guest.admit(front.place, front.source))?;
            self.answers.waiting.take(guest.place);
            return Some(guest.place);
        }
        if pool.enders.len() == pool.enders_max {
            return None;
        }
        // One source at the most has all that it may while a place is free, so that this ends soon.
        let fronts = pool.waiting.fronts();
        let ender = { fronts }.find(|waiter| pool.has_place(waiter.source))?;
        pool.enders.insert(ender.place, ender.source);
        pool.waiting.take(ender.place);
        Some(ender.place)
    }

    /// What each source holds where others wait, if `all` are the clients that there are.
    pub(super) fn shares(&self, all: impl Iterator<Item = (Source, Held)>) -> Shares {
        let mut shares = Shares::default();
        for part in Part::ALL {
            let waiting = self.pool(part).waiting.sources();
            waiting.for_each(|source| shares.add(part, source, 0));
        }
        for (source, held) in all {
            let holds = Part::ALL.into_iter().filter(|part| held.of(*part) > 0);
            holds.for_each(|part| shares.add(part, source, held.of(part)));
        }
        shares
    }
}

/// What each source holds of each part at one moment, of those that hold something there or wait for it.
#[derive(Debug, Default)]
pub(super) struct Shares {
    small: BTreeMap<Source, usize>,
    large: BTreeMap<Source, usize>,
    answers: BTreeMap<Source, usize>,
}

impl Shares {
    fn add(&mut self, part: Part, source: Source, bytes: usize) {
        let sources = match part {
            Part::Small => &mut self.small,
            Part::Large => &mut self.large,
            Part::Answers => &mut self.answers,
        };
        *sources.entry(source).or_default() += bytes;
    }

    /// Whether a source holds an even share at least. The one that holds most always does.
    pub(super) fn is_even(&self, part: Part, source: Source) -> bool {
        let sources = match part {
            Part::Small => &self.small,
            Part::Large => &self.large,
            Part::Answers => &self.answers,
        };
        let own = sources.get(&source).copied().unwrap_or_default();
        own * sources.len() >= sources.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn client(user: u32, place: usize, wanted: usize) -> Waiter {
        Waiter {
            source: Source::User(user),
            place,
            wanted,
        }
    }

    #[test]
    fn room_for_answers_goes_to_who_has_waited_longest() {
        let mut buffers = Buffers::new(400);
        let part = Part::Answers;
        assert!(buffers.has_room_for_answers(0, 1000), "nobody else has any");
        buffers.change(part, 0, 60);
        // Nobody is a guest.
        buffers.change_source(Source::User(1), 0, 60);
        assert!(
            buffers.is_scarce(part)
                && buffers.has_room_for_answers(0, 40)
                && !buffers.has_room_for_answers(0, 41)
        );
        assert!(
            buffers.has_room_for_answers(60, 1000),
            "its own does not count"
        );
        buffers.wait(part, client(1, 7, 50));
        buffers.wait(part, client(1, 8, 1));
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
            while own < 200_000 && buffers.may_receive(large, client(1, place, own + 20_000), own) {
                buffers.change(large, own, own + 20_000);
                own += 20_000;
            }
            if own < 200_000 {
                buffers.wait(large, client(1, place, own + 20_000));
                waiting += 1;
            }
        }
        assert!(waiting > 90, "{waiting}");
        let all = buffers.held();
        assert!(all <= 2 * MIB * 3 / 8, "{all} bytes");
        assert!(buffers.has_room_for_answers(0, MIB - 1));
        let small = buffers.part_of(50_000);
        assert_eq!(small, Part::Small);
        assert!(buffers.may_receive(small, client(1, 100, 50_000), 0));
    }

    #[test]
    fn one_that_exceeds_its_part_comes_to_its_end_and_then_the_next_does() {
        let mut buffers = Buffers::new(800);
        let part = Part::Large;
        for place in [1, 2] {
            assert!(buffers.may_receive(part, client(1, place, 75), 0));
            buffers.change(part, 0, 75);
        }
        // Neither could end within the part.
        assert!(buffers.may_receive(part, client(1, 1, 900), 75));
        buffers.change(part, 75, 900);
        assert!(
            !buffers.may_receive(part, client(1, 2, 900), 75),
            "one at a time"
        );
        buffers.wait(part, client(1, 2, 900));
        buffers.wait(part, client(1, 3, 900));
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
        assert!(!buffers.may_receive(part, client(1, 4, 1), 0));
        buffers.wait(part, client(1, 4, 1));
        // Those who go are waited for no more.
        buffers.leave(4);
        assert!(!buffers.is_waited_for(part));
        buffers.leave(3);
        buffers.change(part, 900, 0);
        assert!(buffers.may_receive(part, client(1, 4, 1), 0));
    }

    #[test]
    fn a_source_that_has_all_room_leaves_a_place_for_another() {
        let mut buffers = Buffers::new(800);
        let part = Part::Large;
        // One is alone, one exceeds the part, and the rest wait.
        assert!(buffers.may_receive(part, client(1, 0, 900), 0));
        buffers.change(part, 0, 900);
        assert!(buffers.may_receive(part, client(1, 1, 900), 0));
        buffers.change(part, 0, 900);
        for place in 2..300 {
            assert!(!buffers.may_receive(part, client(1, place, 900), 0));
            buffers.wait(part, client(1, place, 900));
        }
        assert_eq!(buffers.next(part, |_| 0), None);
        assert!(buffers.is_in_the_way(part, 1) && !buffers.is_in_the_way(part, 0));
        buffers.wait(part, client(2, 300, 900));
        assert_eq!(buffers.next(part, |_| 0), Some(300), "no other has to go");
        buffers.change(part, 0, 900);
        assert!(buffers.may_receive(part, client(2, 300, 1800), 900));
        assert!(
            !buffers.is_in_the_way(part, 300),
            "the first source has what it may have"
        );
        buffers.wait(part, client(2, 301, 900));
        buffers.wait(part, client(3, 302, 900));
        assert!(buffers.is_in_the_way(part, 300) && buffers.is_in_the_way(part, 1));
        buffers.end(300);
        assert_eq!(buffers.next(part, |_| 0), Some(301), "it came first");
        buffers.wait(part, client(2, 303, 900));
        buffers.end(301);
        assert_eq!(buffers.next(part, |_| 0), Some(302));
        buffers.end(302);
        assert_eq!(buffers.next(part, |_| 0), Some(303));
    }

    #[test]
    fn who_comes_again_or_grows_gets_no_place_that_others_wait_for() {
        let mut buffers = Buffers::new(800);
        let part = Part::Large;
        for place in [1, 2] {
            assert!(buffers.may_receive(part, client(1, place, 75), 0));
            buffers.change(part, 0, 75);
        }
        buffers.wait(part, client(1, 3, 900));
        assert!(!buffers.may_receive(part, client(2, 4, 900), 0), "again");
        assert!(!buffers.may_receive(part, client(1, 1, 900), 75), "grows");
        assert!(buffers.may_receive(part, client(1, 1, 75), 75), "is there");
        assert_eq!(buffers.next(part, |_| 0), Some(3));
        assert_eq!(buffers.next(part, |_| 0), None);
        assert!(buffers.may_receive(part, client(2, 4, 900), 0));
    }

    #[test]
    fn those_go_first_whose_source_holds_an_even_share() {
        let mut buffers = Buffers::new(800);
        let part = Part::Large;
        let [many, one, other] = [1, 2, 3].map(Source::User);
        let held = |bytes| {
            let mut held = Held::default();
            held.set(part, bytes);
            held
        };
        let all = [(many, held(50)), (many, held(60)), (one, held(90))];
        let shares = buffers.shares(all.into_iter());
        assert!(shares.is_even(part, many) && !shares.is_even(part, one));
        // 200 bytes, of three that want some.
        buffers.wait(part, client(3, 7, 10));
        let shares = buffers.shares(all.into_iter());
        assert!(shares.is_even(part, one) && !shares.is_even(part, other));
    }
}
