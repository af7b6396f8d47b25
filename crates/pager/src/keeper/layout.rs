//! Where the pages of a shard of an address space are: page 0 is the doorbell, then its stripes of
//! the arena, then those of the heap.

use std::ops::Range;

use cenote_preload::stripes::Stripes;
use cenote_preload::wire;
use cenote_volume::PAGE_BYTES;

/// A shard's pages, and their addresses.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    doorbell: u64,
    arena: Part,
    heap: Part,
}

/// A shard's stripes of a range.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    stripes: Stripes,
    shard: usize,
}

impl Layout {
    /// As a program says in its hello, to the handler of this shard; none if it means another, more
    /// pages than `most`, or addresses that no program has.
    pub fn of(hello: &[u64], shard: usize, shard_count: usize, most: u64) -> Option<Self> {
        let [
            _,
            _,
            doorbell,
            arena,
            arena_pages,
            heap,
            heap_pages,
            says @ ..,
        ] = hello
        else {
            return None;
        };
        let is_meant = says == [shard as u64, shard_count as u64];
        let total = arena_pages.checked_add(*heap_pages)?;
        let part = |start: u64, pages: u64| Part {
            start,
            stripes: Stripes::new(pages as usize, shard_count),
            shard,
        };
        // Before the doorbell is its mailbox.
        let mailbox = doorbell.checked_sub(PAGE_BYTES as u64)?;
        let are_addresses =
            is_range(mailbox, 2) && is_range(*arena, *arena_pages) && is_range(*heap, *heap_pages);
        (is_meant && total <= most && are_addresses).then(|| Self {
            doorbell: *doorbell,
            arena: part(*arena, *arena_pages),
            heap: part(*heap, *heap_pages),
        })
    }

    pub fn doorbell(&self) -> u64 {
        self.doorbell
    }

    /// The page that questions are in.
    pub fn mailbox(&self) -> u64 {
        self.doorbell - PAGE_BYTES as u64
    }

    pub fn count(&self) -> u32 {
        1 + self.arena.len() + self.heap.len()
    }

    pub fn address(&self, page: u32) -> u64 {
        match (page.checked_sub(1), page.checked_sub(1 + self.arena.len())) {
            (None, _) => self.doorbell,
            (_, Some(page)) => self.heap.address(page),
            (Some(page), None) => self.arena.address(page),
        }
    }

    pub fn page(&self, address: u64) -> Option<u32> {
        let from_doorbell = address.checked_sub(self.doorbell);
        if from_doorbell.is_some_and(|bytes| bytes < PAGE_BYTES as u64) {
            return Some(0);
        }
        let arena = self.arena.page(address).map(|page| 1 + page);
        arena.or_else(|| Some(1 + self.arena.len() + self.heap.page(address)?))
    }

    /// Pages that a request names, without the doorbell.
    pub fn clip(&self, mailbox: &[u64; wire::MAILBOX_WORDS]) -> Range<u32> {
        let clip = |word: u64| word.min(u64::from(self.count())) as u32;
        let first = clip(mailbox[wire::AT_FIRST]).max(1);
        let end = clip(mailbox[wire::AT_FIRST].saturating_add(mailbox[wire::AT_COUNT]));
        first..end.max(first)
    }

    /// The ranges to be registered, each an address and a length.
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges = vec![(self.doorbell, PAGE_BYTES as u64)];
        for part in [&self.arena, &self.heap] {
            let stripes = part.stripes.stripes(part.shard);
            ranges.extend(stripes.map(|pages| {
                let bytes = PAGE_BYTES as u64;
                let start = part.start + pages.start as u64 * bytes;
                (start, pages.len() as u64 * bytes)
            }));
        }
        ranges
    }
}

/// Whether pages from `start` on may be a program's.
fn is_range(start: u64, pages: u64) -> bool {
    /// Past the addresses of programs, of any size that x86 gives them.
    const ADDRESS_END: u64 = 1 << 56;
    let bytes = pages.checked_mul(PAGE_BYTES as u64);
    let end = bytes.and_then(|bytes| start.checked_add(bytes));
    start.is_multiple_of(PAGE_BYTES as u64) && end.is_some_and(|end| end <= ADDRESS_END)
}

impl Part {
    fn len(&self) -> u32 {
        self.stripes.len(self.shard) as u32
    }

    fn address(&self, page: u32) -> u64 {
        let page = self.stripes.page(self.shard, page as usize);
        self.start + (page * PAGE_BYTES) as u64
    }

    fn page(&self, address: u64) -> Option<u32> {
        let page = (address.checked_sub(self.start)? / PAGE_BYTES as u64) as usize;
        if page >= self.stripes.page_count() {
            return None;
        }
        let (shard, page) = self.stripes.find(page);
        (shard == self.shard).then_some(page as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 32;
    const HEAP: u64 = 1 << 20;

    fn hello(
        arena_pages: u64,
        heap_pages: u64,
        shard: u64,
        shards: u64,
    ) -> [u64; wire::HELLO_WORDS] {
        let (start, pages) = (BASE + 2 * shards * 4096, [arena_pages, heap_pages]);
        let doorbell = BASE + (2 * shard + 1) * 4096;
        [
            0, 0, doorbell, start, pages[0], HEAP, pages[1], shard, shards,
        ]
    }

    #[test]
    fn every_address_is_one_page_of_one_shard() {
        for shards in 1..=3 {
            let mut seen = std::collections::HashMap::new();
            for shard in 0..shards {
                let hello = hello(1_000, 700, shard, shards);
                let layout = Layout::of(&hello, shard as usize, shards as usize, 1_700);
                let layout = layout.expect("as it says");
                for page in 0..layout.count() {
                    let address = layout.address(page);
                    assert_eq!(layout.page(address), Some(page));
                    assert_eq!(layout.page(address + 4095), Some(page));
                    assert_eq!(seen.insert(address, shard), None, "{address:x}");
                }
                let registered: u64 = layout.ranges().iter().map(|(_, len)| len).sum();
                assert_eq!(registered, u64::from(layout.count()) * 4096);
                for (start, len) in layout.ranges() {
                    assert!(layout.page(start).is_some() && layout.page(start + len - 1).is_some());
                }
            }
            // All of the arena and of the heap, and the doorbells.
            assert_eq!(seen.len() as u64, 1_000 + 700 + shards);
        }
    }

    #[test]
    fn addresses_that_no_program_has_are_refused() {
        let right = hello(10, 10, 0, 1);
        assert!(Layout::of(&right, 0, 1, 100).is_some());
        for (word, value) in [
            (2, 0),
            (2, BASE + 1),
            (2, 0_u64.wrapping_sub(4096)),
            (3, 0_u64.wrapping_sub(8192)),
            (3, 1 << 56),
            (5, HEAP + 8),
            (5, !4095),
        ] {
            let mut hello = right;
            hello[word] = value;
            let layout = Layout::of(&hello, 0, 1, 100);
            assert!(layout.is_none(), "word {word}: {value:x}");
        }
    }

    #[test]
    fn what_is_for_another_handler_or_too_much_is_refused() {
        for (hello, shard, most) in [
            (hello(10, 0, 0, 2), 1, 100),
            (hello(10, 0, 2, 2), 1, 100),
            (hello(10, 0, 1, 3), 1, 100),
            (hello(10, 91, 1, 2), 1, 100),
            (hello(u64::MAX, 9, 1, 2), 1, 100),
        ] {
            assert!(Layout::of(&hello, shard, 2, most).is_none(), "{hello:?}");
        }
        assert!(Layout::of(&hello(10, 0, 1, 2), 1, 2, 100).is_some());
    }
}
