//! How the arena is set up, and this address space introduced to those who serve it. Whatever may
//! fail without harm comes before the first hello; after it a part of the memory is served.

use core::sync::atomic::Ordering;

use super::{ARENA_END, ARENA_START, Arena, HEAP_END, HEAP_START, State, doorbell};
use crate::agent::Agent;
use crate::bits::Bits;
use crate::settings::{Settings, settings};
use crate::stripes::{SHARDS_MAX, Stripes};
use crate::wire::PAGE;
use crate::{agent, heap, sys, wire};

/// Sets the arena up.
pub fn begin() -> State {
    let Some(settings) = settings() else {
        return State::Off;
    };
    match set_up(&settings) {
        Some(arena) => State::On(arena),
        None => {
            sys::write(
                2,
                b"cenote run: memory of a program stays here: it cannot be served\n",
            );
            State::Off
        }
    }
}

fn set_up(settings: &Settings) -> Option<Arena> {
    let mut lines = [Line::NONE; SHARDS_MAX];
    let memory = sys::open_memory();
    let mut is_ready = memory >= 0;
    let taken = &mut lines[..settings.handlers];
    for (shard, line) in taken.iter_mut().enumerate() {
        *line = Line {
            shard,
            socket: settings.connect(shard),
            userfaultfd: sys::userfaultfd(),
            agent: None,
        };
        is_ready &= line.socket >= 0 && line.userfaultfd >= 0;
    }
    // Before the first hello, after which there is no way back.
    let has_agents = is_ready && taken.iter_mut().all(Line::start_agent);
    let arena = has_agents
        .then(|| introduce(settings, taken, memory))
        .flatten();
    let unneeded = lines.iter_mut().filter_map(|line| line.agent.take());
    unneeded.for_each(Agent::end);
    // The agents have their own.
    let fds = lines
        .iter()
        .flat_map(|line| [line.socket, line.userfaultfd]);
    for fd in fds.chain([memory]) {
        if fd >= 0 {
            sys::close(fd);
        }
    }
    arena
}

/// What a handler is talked to by.
struct Line {
    shard: usize,
    socket: i32,
    userfaultfd: i32,
    /// Until it serves.
    agent: Option<Agent>,
}

impl Line {
    const NONE: Self = Self {
        shard: 0,
        socket: -1,
        userfaultfd: -1,
        agent: None,
    };

    /// Whether there is an agent; says why not.
    fn start_agent(&mut self) -> bool {
        match agent::start(self.socket, self.userfaultfd) {
            Ok(agent) => self.agent = Some(agent),
            Err(errno) => {
                let what = b"cenote run: a thread for memory of the program cannot start: error ";
                sys::write_number(2, what, errno.unsigned_abs());
            }
        }
        self.agent.is_some()
    }
}

fn introduce(settings: &Settings, lines: &mut [Line], memory: i32) -> Option<Arena> {
    let (pages, shard_count) = (settings.arena_bytes / PAGE, lines.len());
    let words = pages.div_ceil(64);
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    let map = |len| {
        let at = sys::mmap(0, len, sys::PROT_RW, flags, -1, 0);
        (at > 0).then_some(at as usize)
    };
    // Before: the mailboxes, which nothing is merged with, each with its doorbell.
    let base = map(settings.arena_bytes + 2 * shard_count * PAGE)?;
    let start = base + 2 * shard_count * PAGE;
    let bells = doorbell(start, shard_count, 0);
    sys::madvise(
        bells,
        start + settings.arena_bytes - bells,
        sys::MADV_NOHUGEPAGE,
    );
    let heap = heap::extend(settings.heap_bytes);
    if !heap.is_empty() {
        sys::madvise(heap.start, heap.len(), sys::MADV_NOHUGEPAGE);
    }
    let tables = map(words * 16 + pages * 4)?;
    // SAFETY: the mapping is new, zeroed, large enough and never unmapped.
    let (used, foreign, lens) = unsafe {
        (
            core::slice::from_raw_parts_mut(tables as *mut u64, words),
            core::slice::from_raw_parts_mut((tables + words * 8) as *mut u64, words),
            core::slice::from_raw_parts_mut((tables + words * 16) as *mut u32, pages),
        )
    };
    let mut spaces = [0; SHARDS_MAX];
    for (shard, line) in lines.iter_mut().enumerate() {
        let hello = [
            wire::MAGIC,
            wire::HELLO_NEW,
            doorbell(start, shard_count, shard) as u64,
            start as u64,
            pages as u64,
            heap.start as u64,
            (heap.len() / PAGE) as u64,
            shard as u64,
            shard_count as u64,
        ];
        match greet(settings, line, &hello, memory) {
            Ok(space) => spaces[shard] = space,
            Err(errno) => {
                let what = b"cenote run: memory of the program is refused: error ";
                sys::write_number(2, what, errno.unsigned_abs());
                if shard == 0 {
                    return None;
                }
                end_half_served()
            }
        }
    }
    HEAP_END.store(heap.end, Ordering::Relaxed);
    HEAP_START.store(heap.start, Ordering::Relaxed);
    ARENA_END.store(start + settings.arena_bytes, Ordering::Relaxed);
    ARENA_START.store(start, Ordering::Relaxed);
    Some(Arena {
        settings: *settings,
        start,
        stripes: Stripes::new(pages, shard_count),
        heap: Stripes::new(heap.len() / PAGE, shard_count),
        spaces,
        sequence: 0,
        used: Bits::new(used, pages),
        foreign: Bits::new(foreign, pages),
        lens,
        is_noted: false,
    })
}

/// Has a handler serve its shard: the number of the address space, or why it does not.
fn greet(
    settings: &Settings,
    line: &mut Line,
    hello: &[u64; wire::HELLO_WORDS],
    memory: i32,
) -> Result<u64, i32> {
    let fds = [line.userfaultfd, memory];
    let answer = settings.greet(line.shard, &mut line.socket, hello, &fds)?;
    if answer.is_reconnected {
        // Its agent has the old socket.
        line.agent.take().into_iter().for_each(Agent::end);
        line.start_agent();
    }
    let Some(agent) = line.agent.take() else {
        // Nobody would be there to bound the range.
        end_half_served();
    };
    agent.serve();
    Ok(answer.space)
}

/// The first handler says whether there is room. What those before another one serve they get back
/// by the program's end.
fn end_half_served() -> ! {
    sys::write(
        2,
        b"cenote run: the program is ended: a part of its memory is served already\n",
    );
    sys::die()
}
