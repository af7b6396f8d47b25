//! Which resident page goes next: S3-FIFO over page numbers.
//!
//! Newcomers enter a small queue, a tenth of the resident pages. At its end they go, unless they
//! were seen in use; whoever is faulted in again soon after it went enters the main queue at once.
//! So a scan passes through the small queue and leaves the main one alone. What is seen of use is
//! what costs nothing to see: a first write after a page was cleaned, and a return. Reads of
//! resident pages are not seen.
//!
//! Here a page has a place of its own in a table, so "soon after" needs no list of ghosts: each
//! page remembers when it went, counted in departures. Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues
//! are all you need for cache eviction. SOSP 2023.

/// The small queue's part of all resident pages is 1 / this.
const SMALL_PART: u32 = 10;

/// Uses that are counted.
const USES_MAX: u8 = 3;

/// No page.
const NONE: u32 = u32::MAX;

/// The order in which pages go. At most `u32::MAX - 1` pages; 14 bytes for each.
#[derive(Clone)]
pub struct Queues {
    links: Vec<Link>,
    small: Queue,
    main: Queue,
    /// Pages that went so far; wraps.
    departures: u32,
}

/// In which queue a page is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EvictionQueue {
    /// In none.
    Nowhere,
    /// Among newcomers.
    Small,
    /// Among those that were in use for longer.
    Main,
}

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    /// In a queue the next older page. In none: when the page went, if `has_gone`.
    older: u32,
    place: EvictionQueue,
    uses: u8,
    has_gone: bool,
}

#[derive(Clone, Copy)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Queues {
    /// For pages `0 .. count`.
    ///
    /// # Panics
    /// If there are too many pages for a number of 32 bits.
    #[must_use]
    pub fn new(count: usize) -> Self {
        assert!(count < NONE as usize, "a region has at most 2^32 - 2 pages");
        let link = Link {
            newer: NONE,
            older: NONE,
            place: EvictionQueue::Nowhere,
            uses: 0,
            has_gone: false,
        };
        Self {
            links: vec![link; count],
            small: Queue::new(),
            main: Queue::new(),
            departures: 0,
        }
    }

    /// Pages in the queues.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.small.len + self.main.len
    }

    /// Whether no page is in a queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In which queue `page` is.
    #[must_use]
    pub fn place(&self, page: u32) -> EvictionQueue {
        self.links[page as usize].place
    }

    /// A page became resident. It is a newcomer unless it went within the last `memory` departures.
    pub fn enter(&mut self, page: u32, memory: u32) {
        let link = self.links[page as usize];
        let is_back = link.has_gone && self.departures.wrapping_sub(link.older) <= memory;
        self.push(
            page,
            if is_back {
                EvictionQueue::Main
            } else {
                EvictionQueue::Small
            },
        );
    }

    /// A page that was chosen stays after all: it was in use.
    pub fn stay(&mut self, page: u32) {
        self.push(page, EvictionQueue::Main);
    }

    /// A page was seen in use.
    pub fn count_use(&mut self, page: u32) {
        let link = &mut self.links[page as usize];
        link.uses = (link.uses + 1).min(USES_MAX);
    }

    /// A page that was chosen is not resident any more.
    pub fn go(&mut self, page: u32) {
        self.departures = self.departures.wrapping_add(1);
        let link = &mut self.links[page as usize];
        debug_assert_eq!(link.place, EvictionQueue::Nowhere);
        link.has_gone = true;
        link.older = self.departures;
    }

    /// A page leaves its queue, and what is known of it is forgotten.
    pub fn forget(&mut self, page: u32) {
        if self.links[page as usize].place != EvictionQueue::Nowhere {
            self.unlink(page);
        }
        let link = &mut self.links[page as usize];
        (link.uses, link.has_gone) = (0, false);
    }

    /// Takes the next page to go out of its queue.
    pub fn choose(&mut self) -> Option<u32> {
        // Each turn takes a use from a page or ends, and a page has few: so this ends.
        loop {
            let from_small = self.small.len > 0
                && (self.small.len >= (self.len() / SMALL_PART).max(1) || self.main.len == 0);
            let page = if from_small {
                self.small.oldest
            } else {
                self.main.oldest
            };
            if page == NONE {
                return None;
            }
            self.unlink(page);
            let uses = self.links[page as usize].uses;
            if uses == 0 {
                return Some(page);
            }
            self.links[page as usize].uses = uses - 1;
            self.push(page, EvictionQueue::Main);
        }
    }

    /// Takes the oldest newcomer out of its queue, or else the oldest of the others.
    pub fn take_oldest(&mut self) -> Option<u32> {
        let queue = match self.small.len {
            0 => self.main,
            _ => self.small,
        };
        (queue.oldest != NONE).then(|| {
            self.unlink(queue.oldest);
            queue.oldest
        })
    }

    fn queue(&mut self, place: EvictionQueue) -> &mut Queue {
        match place {
            EvictionQueue::Small => &mut self.small,
            EvictionQueue::Main => &mut self.main,
            EvictionQueue::Nowhere => unreachable!("a page in no queue has no queue"),
        }
    }

    fn push(&mut self, page: u32, place: EvictionQueue) {
        assert_eq!(
            self.place(page),
            EvictionQueue::Nowhere,
            "page {page} is queued"
        );
        let newest = self.queue(place).newest;
        let link = &mut self.links[page as usize];
        (link.place, link.newer, link.older, link.has_gone) = (place, NONE, newest, false);
        if newest != NONE {
            self.links[newest as usize].newer = page;
        }
        let queue = self.queue(place);
        queue.newest = page;
        queue.len += 1;
        if queue.oldest == NONE {
            queue.oldest = page;
        }
    }

    fn unlink(&mut self, page: u32) {
        let Link {
            newer,
            older,
            place,
            ..
        } = self.links[page as usize];
        if newer != NONE {
            self.links[newer as usize].older = older;
        }
        if older != NONE {
            self.links[older as usize].newer = newer;
        }
        let queue = self.queue(place);
        queue.len -= 1;
        if queue.newest == page {
            queue.newest = older;
        }
        if queue.oldest == page {
            queue.oldest = newer;
        }
        self.links[page as usize].place = EvictionQueue::Nowhere;
    }
}

impl Queue {
    const fn new() -> Self {
        Self {
            newest: NONE,
            oldest: NONE,
            len: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Brings `page` in as a region with room for `room` pages does.
    fn touch(queues: &mut Queues, page: u32, room: u32) -> bool {
        if queues.place(page) != EvictionQueue::Nowhere {
            return true;
        }
        if queues.len() == room {
            let gone = queues.choose().unwrap();
            queues.go(gone);
        }
        queues.enter(page, room);
        false
    }

    #[test]
    fn pages_that_come_back_outlive_a_scan() {
        let mut queues = Queues::new(10_000);
        // Twenty pages that return between others, until they are known.
        let mut other = 1_000;
        for _ in 0..20 {
            for page in 0..20 {
                touch(&mut queues, page, 100);
            }
            for _ in 0..100 {
                touch(&mut queues, other, 100);
                other += 1;
            }
        }
        let stayed = |queues: &Queues| {
            (0..20)
                .filter(|page| queues.place(*page) == EvictionQueue::Main)
                .count()
        };
        assert_eq!(stayed(&queues), 20);
        for page in 5_000..9_000 {
            assert!(!touch(&mut queues, page, 100));
        }
        assert_eq!(stayed(&queues), 20);
    }

    #[test]
    fn a_page_seen_in_use_goes_round_once_for_each_use() {
        let mut queues = Queues::new(4);
        for page in 0..3 {
            queues.enter(page, 4);
        }
        queues.count_use(0);
        queues.count_use(0);
        let order: Vec<u32> = std::iter::from_fn(|| queues.choose()).collect();
        assert_eq!(order, [1, 2, 0]);
        assert!(queues.is_empty());
    }

    #[test]
    fn a_page_that_returns_late_is_a_newcomer() {
        let mut queues = Queues::new(64);
        for page in 0..40 {
            touch(&mut queues, page, 4);
        }
        touch(&mut queues, 0, 4);
        assert_eq!(queues.place(0), EvictionQueue::Small);
        let gone = queues.choose().unwrap();
        queues.go(gone);
        touch(&mut queues, gone, 4);
        assert_eq!(queues.place(gone), EvictionQueue::Main);
    }
}
