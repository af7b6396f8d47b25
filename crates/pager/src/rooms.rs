//! How many pages each shard of a heap may have resident: parts of one bound.
//!
//! A shard says what it has and is told its room. Nothing moves while no shard is **pressed**, which
//! is one that fills its room and has faults. Then who has more than it uses, or more than an equal
//! part, is told a smaller room, and one without faults gives up a quarter of what it has each time:
//! in one queue for all, its pages would go first. What is given up is another's once the pages are
//! gone.
//!
//! Invariant: what is granted is at least what each shard has, and at most the bound in all. So no
//! handler asks another before it brings a page, and the bound is kept all the same.

use crate::injected_faults::{InjectedFault, is_injected};
use crate::shares::fill;

/// Pages that a shard has room for at least: a page that is read, one that is written, and others.
pub const ROOM_MIN: u32 = 8;

/// The bound, and the parts of it.
#[derive(Clone)]
pub struct Rooms {
    total: u32,
    shards: Vec<Shard>,
    /// Most pages that were resident at once, as the shards said.
    resident_max: u64,
}

#[derive(Clone, Copy)]
struct Shard {
    page_count: u32,
    /// As it last said.
    held: Held,
    granted: u32,
}

/// Pages that a shard has in this machine's memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Held {
    /// Resident, or on their way in.
    pub resident: u32,
    /// Gone by the books, while they may be in memory still.
    pub leaving: u32,
    /// Nobody has waited for a page of it for a while.
    pub is_idle: bool,
}

impl Held {
    fn count(self) -> u32 {
        self.resident.saturating_add(self.leaving)
    }
}

/// A shard's room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Room {
    /// Pages that may be resident.
    pub pages: u32,
    /// What has to follow.
    pub next: Next,
}

/// What has to follow a [`Rooms::settle`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// The shard has more than its room: it says so again when the pages are gone.
    Again,
    /// Others have what it is to get: they are to say what they have.
    Others,
}

impl Rooms {
    /// `total` pages of room for shards of so many pages.
    ///
    /// # Panics
    /// If there is no shard, or not [`ROOM_MIN`] for each.
    #[must_use]
    pub fn new(total: u32, page_counts: &[u32]) -> Self {
        assert!(!page_counts.is_empty() && total / page_counts.len() as u32 >= ROOM_MIN);
        let least = |count: &u32| (*count).max(ROOM_MIN);
        let granted = fill(total, &page_counts.iter().map(least).collect::<Vec<_>>());
        let shards = page_counts.iter().zip(granted);
        let shard = |(page_count, granted): (&u32, u32)| Shard {
            page_count: *page_count,
            held: Held::default(),
            granted,
        };
        Self {
            total,
            shards: shards.map(shard).collect(),
            resident_max: 0,
        }
    }

    /// The bound.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// What a shard was granted last.
    #[must_use]
    pub fn granted(&self, shard: usize) -> u32 {
        self.shards[shard].granted
    }

    /// Most pages that were resident at once, as the shards said.
    #[must_use]
    pub fn resident_max(&self) -> u64 {
        self.resident_max
    }

    /// Changes the bound; it is kept when every shard has settled, and its pages are gone.
    pub fn set_total(&mut self, total: u32) {
        self.total = total.max(ROOM_MIN * self.shards.len() as u32);
    }

    /// A shard says what it has, and is told its room.
    pub fn settle(&mut self, shard: usize, held: Held) -> Room {
        self.shards[shard].held = held;
        let all = self.shards.iter();
        let all = all.map(|shard| u64::from(shard.held.resident));
        self.resident_max = self.resident_max.max(all.sum());
        let (granted, target) = (self.shards[shard].granted, self.target(shard));
        if target < granted {
            self.shards[shard].granted = target.max(held.count());
            let next = match held.count() > target {
                true => Next::Again,
                false => Next::Nothing,
            };
            return Room {
                pages: target,
                next,
            };
        }
        let free = u64::from(self.total).saturating_sub(self.sum()) as u32;
        let more = match is_injected(InjectedFault::RoomGivenTwice) {
            true => target - granted,
            false => free.min(target - granted),
        };
        let pages = granted + more;
        self.shards[shard].granted = pages;
        let next = match pages < target {
            true => Next::Others,
            false => Next::Nothing,
        };
        Room { pages, next }
    }

    /// The room that a shard is to have.
    fn target(&self, shard: usize) -> u32 {
        let wanted: Vec<u32> = self.shards.iter().map(|shard| self.wanted(shard)).collect();
        let (share, granted) = (fill(self.total, &wanted)[shard], self.shards[shard].granted);
        let mut others = (0..self.shards.len()).filter(|at| *at != shard);
        let is_wanted = others.any(|at| self.shards[at].is_pressed());
        match (self.shards[shard].is_pressed(), is_wanted) {
            _ if self.sum() > u64::from(self.total) => share,
            (true, true) => share,
            (true, false) => share.max(granted),
            (false, true) => share.min(granted),
            (false, false) => granted,
        }
    }

    /// What a shard has a use for: what it has, and some to grow, so that growth is seen; less, if
    /// nobody waits for its pages.
    fn wanted(&self, shard: &Shard) -> u32 {
        let held = shard.held.count();
        let wanted = match shard.held.is_idle {
            true => held - held / 4,
            false => held.saturating_add((held / 4).max(self.total / 16)),
        };
        wanted.min(shard.page_count).max(ROOM_MIN)
    }

    fn sum(&self) -> u64 {
        let granted = self.shards.iter().map(|shard| u64::from(shard.granted));
        granted.sum()
    }
}

impl Shard {
    /// Whether it has faults and fills its room, but for what it keeps free for the next.
    fn is_pressed(&self) -> bool {
        let spare = (self.granted / 8).max(2);
        !self.held.is_idle
            && self.granted < self.page_count
            && self.held.count().saturating_add(spare) >= self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(rooms: &mut Rooms, shard: usize, resident: u32) -> Room {
        let held = Held {
            resident,
            ..Held::default()
        };
        rooms.settle(shard, held)
    }

    #[test]
    fn all_begin_with_their_pages_or_equal_parts() {
        let rooms = Rooms::new(1_000, &[300, 400]);
        assert_eq!((rooms.granted(0), rooms.granted(1)), (300, 700));
        let rooms = Rooms::new(1_000, &[u32::MAX; 4]);
        assert!((0..4).all(|shard| rooms.granted(shard) == 250));
    }

    #[test]
    fn what_one_does_not_use_is_anothers_at_once() {
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        let nothing = |pages| Room {
            pages,
            next: Next::Nothing,
        };
        // Nobody is pressed: nothing moves.
        assert_eq!(settle(&mut rooms, 0, 100), nothing(500));
        let pressed = settle(&mut rooms, 1, 490);
        assert_eq!((pressed.pages, pressed.next), (500, Next::Others));
        // What it has and a sixteenth of all.
        assert_eq!(settle(&mut rooms, 0, 100), nothing(162));
        assert_eq!(settle(&mut rooms, 1, 490), nothing(838));
    }

    #[test]
    fn what_one_gives_up_is_anothers_when_it_is_gone() {
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        settle(&mut rooms, 0, 0);
        settle(&mut rooms, 1, 490);
        settle(&mut rooms, 0, 0);
        settle(&mut rooms, 1, 900);
        assert_eq!(rooms.granted(1), 938);
        // The first one grows.
        assert_eq!(settle(&mut rooms, 0, 60).next, Next::Others);
        let less = settle(&mut rooms, 1, 930);
        assert_eq!(less.next, Next::Again);
        assert!(less.pages < 930, "{less:?}");
        assert_eq!(settle(&mut rooms, 0, 60).pages, 70);
        // When both fill what they get they end with the same.
        let mut last = (70, less.pages);
        for _ in 0..50 {
            last = (
                settle(&mut rooms, 0, last.0).pages,
                settle(&mut rooms, 1, last.1).pages,
            );
        }
        assert_eq!(last, (500, 500));
    }

    #[test]
    fn pages_on_their_way_out_take_room() {
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        let held = |resident, leaving| Held {
            resident,
            leaving,
            is_idle: false,
        };
        assert_eq!(rooms.settle(0, held(300, 128)).next, Next::Nothing);
        assert_eq!(rooms.settle(0, held(320, 128)).next, Next::Others);
        assert_eq!(rooms.settle(1, held(400, 90)).pages, 500);
        assert_eq!(rooms.resident_max(), 720);
    }

    #[test]
    fn pages_that_nobody_waits_for_make_room_for_those_of_others() {
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        let (mut busy, mut idle) = (500, 500);
        for _ in 0..30 {
            busy = settle(&mut rooms, 0, busy).pages;
            let held = Held {
                resident: idle,
                leaving: 0,
                is_idle: true,
            };
            idle = rooms.settle(1, held).pages;
        }
        assert!(busy >= 980 && idle >= ROOM_MIN, "{busy}, {idle}");
        // Not when nobody has a use for it.
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        settle(&mut rooms, 0, 200);
        let held = Held {
            resident: 500,
            leaving: 0,
            is_idle: true,
        };
        assert_eq!(rooms.settle(1, held).pages, 500);
    }

    #[test]
    fn a_lower_bound_is_kept_when_all_have_settled() {
        let mut rooms = Rooms::new(1_000, &[5_000; 2]);
        let _before = [0, 1].map(|at| settle(&mut rooms, at, 480));
        rooms.set_total(400);
        assert_eq!(
            (0..2)
                .map(|at| settle(&mut rooms, at, 480).pages)
                .sum::<u32>(),
            400
        );
        assert_eq!(
            (0..2)
                .map(|at| settle(&mut rooms, at, 200).pages)
                .sum::<u32>(),
            400
        );
        assert_eq!(rooms.sum(), 400);
    }

    #[test]
    fn no_more_is_granted_than_there_is_nor_less_than_is_resident() {
        let mut state = 3_u64;
        let mut below = |limit: u32| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u32 % limit
        };
        for _ in 0..50 {
            let page_counts: Vec<u32> = (0..1 + below(8)).map(|_| below(4_000)).collect();
            let mut rooms = Rooms::new(64 + below(4_000), &page_counts);
            let mut resident = vec![0; page_counts.len()];
            let mut room: Vec<u32> = (0..resident.len()).map(|at| rooms.granted(at)).collect();
            for _ in 0..400 {
                let at = below(resident.len() as u32) as usize;
                // Pages come up to the room, and go one after the other.
                let most = room[at].min(page_counts[at]);
                resident[at] = match resident[at] > most {
                    true => resident[at] - below(resident[at] - most + 1),
                    false => below(most + 1),
                };
                room[at] = settle(&mut rooms, at, resident[at]).pages;
                assert!(room[at] >= ROOM_MIN && rooms.sum() <= u64::from(rooms.total()));
                assert!((0..room.len()).all(|at| rooms.granted(at) >= resident[at].max(room[at])));
            }
        }
    }
}
