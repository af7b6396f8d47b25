//! The ranges whose faults are answered elsewhere: the **arena**, from which big allocations come,
//! and the program's heap. Which pages of the arena are used; how they are asked for and forgotten.
//!
//! Pages are divided between the handlers of the serving process by [`Stripes`]. Each has a doorbell
//! of its own, and what is said to it is about its shard alone.
//!
//! Pages that the program covers with another kind of mapping are **foreign** and used for good, so
//! that no address of the arena is ever the kernel's to give away.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use crate::bits::Bits;
use crate::lock::{Guard, Lock};
use crate::settings::Settings;
use crate::stripes::{SHARDS_MAX, Stripes};
use crate::wire::PAGE;
use crate::{agent, heap, sys, wire};

/// What is at least so large comes from the arena: as of libc's `malloc`, a mapping of its own.
pub const BIG: usize = 128 << 10;
/// Big allocations that are left to the kernel, in bytes, before any is taken.
const SMALL_PROGRAM: usize = 4 << 20;

static ARENA: Lock<State> = Lock::new(State::Waiting(0));
/// The arena's addresses, and the heap's; 0 before.
static ARENA_START: AtomicUsize = AtomicUsize::new(0);
static ARENA_END: AtomicUsize = AtomicUsize::new(0);
static HEAP_START: AtomicUsize = AtomicUsize::new(0);
static HEAP_END: AtomicUsize = AtomicUsize::new(0);

/// How far things are.
pub enum State {
    /// So many bytes of big allocations were left to the kernel.
    Waiting(usize),
    /// Being set up: what the library needs itself is the kernel's.
    Beginning,
    /// Nothing is taken.
    Off,
    /// The arena is there.
    On(Arena),
}

/// What is known of the arena.
pub struct Arena {
    /// A copy: a program may change its environment before it forks.
    settings: Settings,
    /// Where its pages begin. Before them each shard has a mailbox and a doorbell.
    start: usize,
    stripes: Stripes,
    heap: Stripes,
    /// For each shard the number of this address space.
    spaces: [u64; SHARDS_MAX],
    sequence: u64,
    used: Bits<'static>,
    foreign: Bits<'static>,
    /// At the first page of a block of `malloc` its length in pages.
    lens: &'static mut [u32],
    /// It was said that foreign pages are why there is no room.
    is_noted: bool,
}

/// Whose pages are counted.
#[derive(Clone, Copy)]
enum Of {
    Arena,
    Heap,
}

/// Whether an address may be the arena's.
pub fn has(addr: usize) -> bool {
    let start = ARENA_START.load(Ordering::Relaxed);
    start != 0 && (start..ARENA_END.load(Ordering::Relaxed)).contains(&addr)
}

/// Whether there is one.
pub fn is_there() -> bool {
    ARENA_START.load(Ordering::Relaxed) != 0
}

/// The part of a range that is in the arena.
pub fn part(addr: usize, len: usize) -> Range<usize> {
    clip(addr, len, &ARENA_START, &ARENA_END)
}

/// The part of a range that is in the heap.
pub fn heap_part(addr: usize, len: usize) -> Range<usize> {
    clip(addr, len, &HEAP_START, &HEAP_END)
}

/// Where the heap that is served ends, or 0.
pub fn heap_end() -> usize {
    HEAP_END.load(Ordering::Relaxed)
}

fn clip(addr: usize, len: usize, start: &AtomicUsize, end: &AtomicUsize) -> Range<usize> {
    let start = start.load(Ordering::Relaxed);
    if start == 0 {
        return 0..0;
    }
    let end = end.load(Ordering::Relaxed).min(addr.saturating_add(len));
    let from = addr.max(start);
    if from < end { from..end } else { 0..0 }
}

/// The arena, if it is there or becomes it by these bytes.
pub fn wanted(bytes: usize) -> Option<Guard<'static, State>> {
    // The loader's lock comes first: constructors of libraries allocate while it is held.
    heap::resolve();
    let mut state = ARENA.lock();
    if let State::Waiting(so_far) = &mut *state {
        *so_far = so_far.saturating_add(bytes);
        if *so_far >= SMALL_PROGRAM {
            *state = State::Beginning;
            *state = introduction::begin();
        }
    }
    matches!(*state, State::On(_)).then_some(state)
}

/// Has the arena's lock from now on, for a fork.
pub fn begin_fork() {
    ARENA.begin_fork();
}

/// Gives it back. A child begins to be served first.
pub fn end_fork(is_child: bool) {
    if is_child && let State::On(arena) = &mut *ARENA.lock() {
        arena.begin_child();
    }
    ARENA.end_fork(is_child);
}

/// The arena, if it is there.
pub fn there() -> Option<Guard<'static, State>> {
    if !is_there() {
        return None;
    }
    let state = ARENA.lock();
    matches!(*state, State::On(_)).then_some(state)
}

impl State {
    /// The arena, of a guard of [`wanted`] or [`there`].
    pub fn on(&mut self) -> &mut Arena {
        match self {
            Self::On(arena) => arena,
            _ => sys::die(),
        }
    }
}

impl Arena {
    fn address(&self, page: usize) -> usize {
        self.start + page * PAGE
    }

    fn page(&self, addr: usize) -> usize {
        (addr - self.start) / PAGE
    }

    fn doorbell(&self, shard: usize) -> usize {
        doorbell(self.start, self.stripes.shard_count(), shard)
    }

    fn pages_of(&self, range: &Range<usize>) -> Range<usize> {
        self.page(range.start)..self.page(range.end + PAGE - 1)
    }

    /// Takes zeroed memory of so many bytes at a multiple of `align`.
    pub fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let count = len.div_ceil(PAGE);
        let align = align.div_ceil(PAGE).max(1);
        let skew = self.address(0) / PAGE % align;
        let Some(page) = self.used.find(count, align, skew) else {
            self.note_foreign(count);
            return None;
        };
        self.used.insert(page..page + count);
        Some(self.address(page))
    }

    /// As [`Arena::take`], for `malloc`.
    pub fn take_block(&mut self, len: usize, align: usize) -> Option<usize> {
        let addr = self.take(len, align)?;
        let page = self.page(addr);
        self.lens[page] = len.div_ceil(PAGE) as u32;
        Some(addr)
    }

    /// The bytes of a block of `malloc`, 0 if none begins there.
    pub fn block_len(&self, addr: usize) -> usize {
        match addr.is_multiple_of(PAGE) {
            true => self.lens[self.page(addr)] as usize * PAGE,
            false => 0,
        }
    }

    pub fn set_block_len(&mut self, addr: usize, len: usize) {
        let page = self.page(addr);
        self.lens[page] = len.div_ceil(PAGE) as u32;
    }

    /// Takes the pages after a range of whole pages as well, if they are free.
    pub fn grow(&mut self, range: Range<usize>, len: usize) -> bool {
        let pages = self.page(range.end)..self.page(range.start) + len.div_ceil(PAGE);
        let is_free = self.used.is_free(pages.clone());
        if is_free {
            self.used.insert(pages);
        }
        is_free
    }

    /// Whether the program has every page of a range, and none is foreign.
    pub fn is_ours(&self, range: Range<usize>) -> bool {
        let pages = self.pages_of(&range);
        self.used.run(pages.clone()) == Some(pages.clone()) && self.foreign.is_free(pages)
    }

    /// Whether every page of a range is foreign.
    pub fn is_foreign(&self, range: Range<usize>) -> bool {
        let pages = self.pages_of(&range);
        self.foreign.run(pages.clone()) == Some(pages)
    }

    /// Gives the program every page of a range that it does not have so far, unless some are
    /// foreign: then none. They hold anything.
    pub fn claim(&mut self, range: Range<usize>) -> bool {
        let pages = self.pages_of(&range);
        let is_served = self.foreign.is_free(pages.clone());
        if is_served {
            self.used.insert(pages);
        }
        is_served
    }

    /// As [`Arena::claim`], where it has none of them so far.
    pub fn claim_unmapped(&mut self, range: Range<usize>) -> bool {
        self.used.is_free(self.pages_of(&range)) && self.claim(range)
    }

    /// There is no room for so many pages. Once, says that foreign ones are why.
    fn note_foreign(&mut self, count: usize) {
        let all = self.stripes.page_count();
        let (mut at, mut foreign) = (0, 0);
        while !self.is_noted
            && let Some(run) = self.foreign.run(at..all)
        {
            at = run.end;
            foreign += run.len();
        }
        if foreign >= count {
            self.is_noted = true;
            sys::write(
                2,
                b"cenote run: memory of a program stays here: files or shared memory were mapped \
                  over what it had\n",
            );
        }
    }

    /// Makes a range zeros.
    pub fn clear(&mut self, range: Range<usize>) {
        let mut pages = self.pages_of(&range);
        while let Some(run) = self.used.run(pages.clone()) {
            pages.start = run.end;
            self.clear_run(run);
        }
    }

    /// A run of pages, some of which may be foreign.
    fn clear_run(&mut self, run: Range<usize>) {
        let mut at = run.start;
        while at < run.end {
            let foreign = self.foreign.run(at..run.end);
            let end = foreign.as_ref().map_or(run.end, |foreign| foreign.start);
            if at < end {
                self.forget(Of::Arena, at..end);
                self.advise(at..end);
            }
            at = end;
            if let Some(foreign) = foreign {
                at = foreign.end;
                self.advise(foreign);
            }
        }
    }

    fn advise(&self, pages: Range<usize>) {
        let (addr, len) = (self.address(pages.start), pages.len() * PAGE);
        sys::madvise(addr, len, sys::MADV_DONTNEED_LOCKED);
    }

    /// Makes a part of the heap zeros.
    pub fn clear_heap(&mut self, range: Range<usize>) {
        let first = (range.start - HEAP_START.load(Ordering::Relaxed)) / PAGE;
        let count = range.len().div_ceil(PAGE);
        self.forget(Of::Heap, first..first + count);
        sys::madvise(range.start, count * PAGE, sys::MADV_DONTNEED_LOCKED);
    }

    /// Takes a range back from the program.
    pub fn release(&mut self, range: Range<usize>) {
        let mut pages = self.pages_of(&range);
        while let Some(run) = self.used.run(pages.clone()) {
            pages.start = run.end;
            let mut at = run.start;
            while at < run.end {
                let foreign = self.foreign.run(at..run.end);
                let end = foreign.as_ref().map_or(run.end, |foreign| foreign.start);
                if at < end {
                    let (addr, len) = (self.address(at), (end - at) * PAGE);
                    self.clear_run(at..end);
                    sys::protect_as_new(addr, len, sys::PROT_RW);
                    self.lens[at..end].fill(0);
                    self.used.remove(at..end);
                }
                at = end;
                if let Some(foreign) = foreign {
                    at = foreign.end;
                    let (addr, len) = (self.address(foreign.start), foreign.len() * PAGE);
                    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
                    sys::mmap(addr, len, sys::PROT_NONE, flags | sys::MAP_FIXED, -1, 0);
                }
            }
        }
    }

    /// Gives a range up, for another mapping in its place.
    pub fn cede(&mut self, range: Range<usize>) {
        let pages = self.pages_of(&range);
        self.forget(Of::Arena, pages.clone());
        self.used.insert(pages.clone());
        self.foreign.insert(pages);
    }

    /// Has the serving process forget pages: each handler those of its shard.
    fn forget(&mut self, of: Of, pages: Range<usize>) {
        for shard in 0..self.stripes.shard_count() {
            let (part, before) = match of {
                Of::Arena => (self.stripes.part(shard, pages.clone()), 0),
                Of::Heap => (
                    self.heap.part(shard, pages.clone()),
                    self.stripes.len(shard),
                ),
            };
            if !part.is_empty() {
                let first = 1 + before + part.start;
                let request = [wire::REQUEST_FORGET, first as u64, part.len() as u64];
                self.ask(shard, request);
            }
        }
    }

    /// Asks a shard's handler, and waits for the answer: in a page fault.
    fn ask(&mut self, shard: usize, request: [u64; 3]) {
        self.sequence += 1;
        let mailbox = (self.doorbell(shard) - PAGE) as *mut u64;
        loop {
            for (at, word) in request.into_iter().enumerate() {
                // SAFETY: the mailbox is a page of this library's own.
                unsafe { mailbox.add(at).write_volatile(word) };
            }
            compiler_fence(Ordering::SeqCst);
            // SAFETY: as above.
            unsafe { mailbox.add(wire::AT_SEQUENCE).write_volatile(self.sequence) };
            let (space, answered) = self.ring(shard);
            if space != self.spaces[shard] {
                // A child that libc did not make: nobody has told who serves it.
                self.begin_child();
            } else if answered == self.sequence {
                return;
            }
        }
    }

    /// Touches a doorbell: whose address space this is, and which request is answered.
    fn ring(&self, shard: usize) -> (u64, u64) {
        let doorbell = self.doorbell(shard);
        sys::madvise(doorbell, PAGE, sys::MADV_DONTNEED_LOCKED);
        let page = doorbell as *const u64;
        // SAFETY: the page is registered: reading it waits until it is there.
        let space = unsafe { page.add(wire::AT_SPACE).read_volatile() };
        // SAFETY: as above.
        let answered = unsafe { page.add(wire::AT_ANSWERED).read_volatile() };
        (space, answered)
    }

    /// In a child: learns who it is, and introduces itself to every handler.
    fn begin_child(&mut self) {
        let memory = sys::open_memory();
        for shard in 0..self.stripes.shard_count() {
            self.spaces[shard] = self.ring(shard).0;
            self.introduce_child(shard, memory);
        }
        sys::close(memory);
    }

    /// In a child: has a shard's pages served and dropped on its own account.
    fn introduce_child(&mut self, shard: usize, memory: i32) {
        let mut hello = [0; wire::HELLO_WORDS];
        let space = self.spaces[shard];
        (hello[0], hello[1], hello[2]) = (wire::MAGIC, wire::HELLO_CHILD, space);
        if memory >= 0 {
            let mut socket = self.settings.connect(shard);
            let answer = self.settings.greet(shard, &mut socket, &hello, &[memory]);
            if let Ok(Some(userfaultfd)) = answer.map(|answer| answer.descriptor)
                && let Ok(agent) = agent::start(socket, userfaultfd)
            {
                agent.serve();
                sys::close(userfaultfd);
                sys::close(socket);
                return;
            }
        }
        // Its pages could neither be forgotten nor bounded, and would be zeros without the keeper.
        sys::write(
            2,
            b"cenote run: a child cannot reach the memory of its parent\n",
        );
        sys::die();
    }
}

/// A shard's doorbell, before pages that begin at `start`; the page before it is its mailbox.
fn doorbell(start: usize, shard_count: usize, shard: usize) -> usize {
    start - (2 * (shard_count - shard) - 1) * PAGE
}

#[path = "introduction.rs"]
mod introduction;
