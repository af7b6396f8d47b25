//! An address space of this process. The test is its agent: it says when pages are gone.

use std::os::fd::FromRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cenote_preload::wire;
use cenote_volume::{PAGE_BYTES, Volume};

use super::super::slots::Slots;
use super::super::socket::{self, Packet};
use super::super::store::untag;
use super::requests::FORGET_MAX;
use super::*;
use cenote_test_kit::cluster::{Cluster, Transport};

const MIB: u64 = 1 << 20;
const PAGES: u32 = 31;
const SPACES_MAX: usize = 4;

struct Program {
    space: Space,
    store: Store,
    agent: OwnedFd,
    /// What its pages are in.
    _volume: (Volume, Cluster),
    _turn: Turn,
}

/// A fork is one of all programs of this process: one that has no turn then holds it up.
static FORKS: RwLock<()> = RwLock::new(());

/// Whether this process forks while there is a program, or others have programs, too.
enum Turn {
    Shared(#[expect(dead_code, reason = "held until it is dropped")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held until it is dropped")] RwLockWriteGuard<'static, ()>),
}

impl Turn {
    fn shared() -> Self {
        Self::Shared(FORKS.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn alone() -> Self {
        Self::Alone(FORKS.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Program {
    fn begin() -> Option<Self> {
        Self::of_pages(PAGES, Turn::shared())
    }

    /// None where the kernel does not let programs be served.
    fn of_pages(pages: u32, turn: Turn) -> Option<Self> {
        if let Err(error) = crate::works() {
            println!("skipped: memory of programs: needs {error}");
            return None;
        }
        let cluster = Cluster::start(3, Transport::Shm, 32 * MIB, MIB);
        let volume = cluster.volume("rs:2+1", 8 * MIB);
        let len = (2 + pages as usize) * PAGE_BYTES;
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, which stays: nobody has the memory but the test.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the range was just mapped.
        unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        let start = base as u64 + 2 * PAGE_BYTES as u64;
        let hello = [
            0,
            0,
            start - PAGE_BYTES as u64,
            start,
            u64::from(pages),
            0,
            0,
            0,
            1,
        ];
        let layout = Layout::of(&hello, 0, 1, u64::from(pages)).expect("a layout");
        let (keeper, agent) = pair();
        let uffd = crate::memory::descriptor().expect("a descriptor");
        let memory = File::open("/proc/self/mem").expect("this process's memory");
        let mut space = Space::begin(1, uffd, memory, layout).expect("memory is registered");
        space.bound_by(keeper);
        let slots = Arc::new(Mutex::new(Slots::of_volume(volume.size_bytes())));
        let store = Store::new(volume.worker().expect("a worker"), slots, SPACES_MAX);
        Some(Self {
            space,
            store,
            agent,
            _volume: (volume, cluster),
            _turn: turn,
        })
    }

    fn word(&self, page: u32) -> usize {
        self.space.layout.address(page) as usize
    }

    fn turn(&mut self) {
        self.space.turn(&mut self.store);
        self.space.flush();
        let mut done = Vec::new();
        self.store.ends(&mut done);
        for end in done {
            let (_, place, purpose) = untag(end.tag);
            self.space.end(place, purpose, end, &mut self.store);
        }
        thread::yield_now();
    }

    fn until(&mut self, is_so: impl Fn(&Space) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(&self.space) {
            assert!(Instant::now() < deadline, "nothing more happens");
            self.turn();
        }
    }

    /// Drops what the agent is told to. Whether it was told anything.
    fn drop_pages(&mut self) -> bool {
        let mut list = vec![0; 1 + 2 * wire::RANGES_MAX];
        let Packet::Words(..) = socket::receive(&self.agent, &mut list) else {
            return false;
        };
        for range in list[1..1 + 2 * list[0] as usize].chunks_exact(2) {
            let (at, len) = (range[0] as *mut libc::c_void, range[1] as usize);
            // SAFETY: the range is of the test's mapping, and its bytes are in the store.
            assert_eq!(unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }, 0);
        }
        true
    }

    fn say_gone(&mut self) {
        assert!(socket::send(&self.agent, &[0], None));
    }

    /// Has a thread write a page's first word, or read it, while pages come and go.
    fn touch(&mut self, page: u32, write: Option<u64>) -> u64 {
        let at = self.word(page);
        let thread = thread::spawn(move || access(at, write));
        while !thread.is_finished() {
            self.go_on();
        }
        thread.join().expect("the thread ends")
    }

    /// Pages are wanted, to be read.
    fn fault(&mut self, pages: &[u32]) {
        let now = self.store.now();
        for page in pages {
            self.space.pages.fault(*page, false, now);
        }
        self.space.act(&mut self.store);
    }

    /// From here on the kernel refuses whatever it is asked for.
    fn cut_off(&mut self) -> File {
        let null = File::open("/dev/null").expect("it is there");
        // SAFETY: both descriptors are open, and the second is the space's own.
        let put = unsafe { libc::dup2(null.as_raw_fd(), self.space.uffd()) };
        assert_eq!(put, self.space.uffd());
        null
    }

    fn wait_until_gone(&mut self) {
        while !self.space.leaving.is_empty() {
            self.go_on();
        }
    }

    /// A turn, and what an agent does.
    fn go_on(&mut self) {
        self.turn();
        if self.drop_pages() {
            self.say_gone();
        }
    }
}

/// The two ends of an agent's connection.
fn pair() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for both descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0);
    // SAFETY: the kernel just made them.
    let [keeper, agent] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (keeper, agent)
}

fn access(at: usize, write: Option<u64>) -> u64 {
    let word = at as *mut u64;
    // SAFETY: the word is in the test's mapping, and one thread at a time has it.
    unsafe {
        if let Some(value) = write {
            word.write_volatile(value);
        }
        word.read_volatile()
    }
}

#[test]
fn a_page_that_comes_before_its_fault_is_heard_loses_no_write() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // The first page goes; its agent has not said so when it is read again.
    program.space.set_room(8, &mut program.store);
    program.until(|space| space.leaving.is_sent(1));
    program.fault(&[1]);
    program.until(|space| space.held_ends.iter().any(|(page, ..)| *page == 1));
    // It is gone, and a thread is there before the agent has said so.
    assert!(program.drop_pages());
    let at = program.word(1);
    let thread = thread::spawn(move || access(at, None));
    program.until(|space| !space.held_faults.is_empty());
    program.say_gone();
    while !thread.is_finished() {
        program.turn();
    }
    assert_eq!(thread.join().expect("the thread ends"), 1);
    program.until(|space| space.held_faults.is_empty() && space.kernel.faults.is_empty());
    // What is written to it now is there when it has gone and come back.
    program.touch(1, Some(100));
    let mut others = (2..=12).cycle();
    while program.space.pages.is_resident(1) {
        let page = others.next().expect("a cycle has no end");
        assert_eq!(program.touch(page, None), u64::from(page));
    }
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 100);
}

#[test]
fn a_stopped_agent_holds_up_who_waits_for_its_pages_alone() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    // The first pages are zeros, and go.
    for page in 1..=8 {
        program.touch(page, (page > 4).then_some(1));
    }
    program.space.set_room(8, &mut program.store);
    program.until(|space| [1, 2].iter().all(|page| space.leaving.is_sent(*page)));
    program.space.set_room(UNBOUNDED, &mut program.store);
    let (first, second) = (program.word(1), program.word(2));
    // The agent is stopped while zeros are wanted of a page on its way out. It goes on in the end,
    // so that a handler that waits for it fails here and does not hang.
    let (acted, has_acted) = mpsc::channel();
    let agent = program.agent.try_clone().expect("a descriptor");
    let waiting = thread::spawn(move || {
        let is_late = has_acted.recv_timeout(Duration::from_secs(10)).is_err();
        is_late.then(|| socket::send(&agent, &[0], None))
    });
    program.fault(&[1]);
    acted.send(()).ok();
    let woken = waiting.join().expect("the thread ends");
    assert_eq!(woken, None, "the handler waited for the agent");
    assert_eq!(program.space.held_zeros, [1]);
    // Other pages come meanwhile; those on their way out do not, whoever wants them.
    let other = program.word(9);
    let other = thread::spawn(move || access(other, Some(9)));
    program.until(|_| other.is_finished());
    assert_eq!(other.join().expect("the thread ends"), 9);
    assert_eq!(program.space.held_zeros, [1]);
    assert!(program.drop_pages());
    let writer = thread::spawn(move || access(first, Some(7)));
    let reader = thread::spawn(move || access(second, None));
    program.until(|space| space.held_faults.len() == 2);
    assert!(!writer.is_finished() && !reader.is_finished());
    program.say_gone();
    program.until(|_| writer.is_finished() && reader.is_finished());
    assert_eq!(writer.join().expect("the thread ends"), 7);
    assert_eq!(reader.join().expect("the thread ends"), 0);
    assert!(program.space.held_zeros.is_empty() && !program.space.is_awaited());
    // What was written is there when the page has gone and come back.
    program.space.set_room(8, &mut program.store);
    let mut others = (2..=12).cycle();
    while program.space.pages.is_resident(1) {
        program.touch(others.next().expect("a cycle has no end"), None);
    }
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 7);
}

#[test]
fn a_program_whose_memory_the_kernel_does_not_serve_is_ended_and_gets_nothing_wrong() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    program.touch(1, Some(5));
    program.cut_off();
    program.fault(&[2]);
    let mut word = [0; 1];
    let heard = socket::receive(&program.agent, &mut word);
    assert!(matches!(heard, Packet::End), "its agent ends it");
    assert!(!program.space.is_bounded() && program.space.is_watched());
    // One that introduces itself only now ends as well.
    let (keeper, agent) = pair();
    program.space.bound_by(keeper);
    assert!(matches!(socket::receive(&agent, &mut word), Packet::End));
    assert!(!program.space.turn(&mut program.store));
}

#[test]
fn an_agent_that_cannot_be_told_holds_nothing() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=8 {
        program.touch(page, Some(u64::from(page)));
    }
    // The agent hears nothing more, and is there.
    let agent = program.space.agent.as_ref().expect("an agent");
    while socket::send(agent, &[0], None) {}
    program.space.set_room(8, &mut program.store);
    program.until(|space| !space.is_bounded());
    let all = [1, 2, 3, 4, 5, 6, 7, 8].map(|page| program.word(page));
    let thread = thread::spawn(move || all.map(|at| access(at, Some(access(at, None) + 100))));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !thread.is_finished() {
        assert!(Instant::now() < deadline, "pages are held");
        program.turn();
    }
    let read = thread.join().expect("the thread ends");
    assert_eq!(read, [101, 102, 103, 104, 105, 106, 107, 108]);
    // It ends the program.
    let mut word = [0; 1];
    while let Packet::Words(..) = socket::receive(&program.agent, &mut word) {}
    let heard = socket::receive(&program.agent, &mut word);
    assert!(matches!(heard, Packet::End));
    assert!(!program.space.is_awaited());
}

#[test]
fn an_agent_that_ends_while_pages_are_written_holds_nothing() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // No end of a write is heard before that of the agent.
    program.space.set_room(8, &mut program.store);
    assert!(program.space.in_flight > 0 && program.space.leaving.is_empty());
    program.agent = pair().1;
    while program.space.is_bounded() {
        program.space.turn(&mut program.store);
    }
    program.until(|space| space.in_flight == 0);
    assert!(program.space.leaving.is_empty());
    for page in 1..=12 {
        assert_eq!(program.touch(page, None), u64::from(page));
        program.touch(page, Some(100));
    }
    assert!(!program.space.is_awaited());
}

#[test]
fn a_page_that_cannot_be_read_stays_as_it_is() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // The first page was taken out by the program, the others are there.
    let (at, len) = (program.word(1) as *mut libc::c_void, PAGE_BYTES);
    // SAFETY: the page is of the test's mapping.
    assert_eq!(unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }, 0);
    let null = File::open("/dev/null").expect("it is there");
    let memory = program.space.memory.replace(null);
    program.space.set_room(8, &mut program.store);
    let deadline = Instant::now() + Duration::from_secs(60);
    while program.space.counters().write_failures < 3 {
        assert!(Instant::now() < deadline, "they are said to be written");
        program.go_on();
    }
    for page in 1..=12 {
        assert!(program.space.pages.is_resident(page), "page {page}");
        let read = program.touch(page, None);
        assert_eq!(read, if page == 1 { 0 } else { u64::from(page) });
    }
    // What is written to it from now on is there when it has gone and come back.
    program.touch(1, Some(77));
    program.space.memory = memory;
    for page in (2..=12).cycle() {
        assert_eq!(program.touch(page, None), u64::from(page));
        if !program.space.pages.is_resident(1) {
            break;
        }
    }
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 77);
}

#[test]
fn a_program_that_gives_much_memory_up_lets_others_have_their_turn() {
    let Some(mut program) = Program::of_pages(3 * FORGET_MAX, Turn::shared()) else {
        return;
    };
    let last = 3 * FORGET_MAX;
    program.touch(last, Some(7));
    program.space.request = Some(Request::new(1..last + 1, 1));
    for part in 1..3 {
        assert!(program.space.turn(&mut program.store), "there is more");
        let next = program.space.request.as_ref().map(|request| request.next);
        assert_eq!(next, Some(1 + part * FORGET_MAX));
    }
    program.until(|space| space.answered == 1);
    assert!(!program.space.pages.is_resident(last));
}

#[test]
fn a_program_that_gives_memory_up_waits_for_no_other_page() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // Pages are on their way out, of an agent that is stopped.
    program.space.set_room(8, &mut program.store);
    program.until(|space| space.leaving.is_sent(1) && space.in_flight == 0);
    let others = 20..25;
    assert!(!program.space.leaving.has_any(&others));
    program.space.request = Some(Request::new(others, 1));
    program.until(|space| space.answered == 1);
    // Its own it waits for.
    program.space.request = Some(Request::new(1..2, 2));
    for _ in 0..10 {
        program.turn();
    }
    assert_eq!(program.space.answered, 1);
    assert!(program.drop_pages());
    program.say_gone();
    program.until(|space| space.answered == 2);
}

#[test]
fn pages_are_forgotten_while_they_are_written() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // Nobody hears that a write has ended.
    program.space.set_room(8, &mut program.store);
    let in_flight = program.space.in_flight;
    assert!(in_flight > 0 && program.space.writes.values().any(|page| *page == Some(1)));
    program.space.request = Some(Request::new(1..13, 1));
    program.space.turn(&mut program.store);
    assert_eq!(
        (program.space.answered, program.space.in_flight),
        (1, in_flight)
    );
    assert_eq!(program.space.resident(), 0);
    assert_eq!(program.store.slots().used(), in_flight);
    // The program has them again before.
    let (at, len) = (program.word(1) as *mut libc::c_void, 12 * PAGE_BYTES);
    // SAFETY: the range is of the test's mapping, and nobody needs its bytes.
    assert_eq!(unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }, 0);
    let at = program.word(1);
    let thread = thread::spawn(move || [access(at, None), access(at, Some(77))]);
    while !thread.is_finished() {
        program.space.turn(&mut program.store);
    }
    assert_eq!(thread.join().expect("the thread ends"), [0, 77]);
    program.until(|space| space.in_flight == 0);
    assert_eq!(program.store.slots().used(), 0);
    for page in (2..=12).cycle() {
        assert_eq!(program.touch(page, None), 0);
        if !program.space.pages.is_resident(1) {
            break;
        }
    }
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 77);
}

#[test]
fn a_program_that_forks_for_long_holds_up_nobody_and_loses_nothing() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    assert!(!program.space.is_due(program.store.now()));
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // Some pages have to go and come back while the kernel refuses every change.
    program.space.set_room(8, &mut program.store);
    while program.space.pages.is_resident(1) || !program.space.leaving.is_empty() {
        program.go_on();
    }
    let forks = Arc::clone(&program.space.kernel.forks);
    for round in 0..10 {
        forks.store(true, Ordering::SeqCst);
        // It goes on in the end, so that a handler that waits for it fails here and does not hang.
        let (acted, has_acted) = mpsc::channel();
        let thread_forks = Arc::clone(&forks);
        let waiting = thread::spawn(move || {
            let is_late = has_acted.recv_timeout(Duration::from_secs(60)).is_err();
            thread_forks.fetch_and(!is_late, Ordering::SeqCst);
            is_late
        });
        let words = [1, 2, 5, 9, 12, 20 + round].map(|page| program.word(page));
        let threads =
            words.map(|at| thread::spawn(move || access(at, Some(access(at, None) + 100))));
        program.until(|space| space.put_off.is_some());
        for _ in 0..10 {
            program.go_on();
        }
        acted.send(()).ok();
        let is_late = waiting.join().expect("the thread ends");
        assert!(!is_late, "the handler waited for the program");
        assert!(program.space.is_awaited() && !program.space.is_told());
        // Its agent, which may have something to say, is not heard, and so not waited for.
        let waits: Vec<_> = program.space.waits().collect();
        assert_eq!(waits, [program.space.uffd()]);
        // Its descriptors say nothing, and it has its turn all the same.
        assert!(program.space.is_due(program.store.now()));
        assert_eq!(
            program.space.deadline(program.store.now()),
            Some(AGAIN_AFTER)
        );
        forks.store(false, Ordering::SeqCst);
        while !threads.iter().all(thread::JoinHandle::is_finished) {
            program.go_on();
        }
        let read = threads.map(|thread| thread.join().expect("the thread ends"));
        let sum = 100 * u64::from(round + 1);
        assert_eq!(read[..5], [1, 2, 5, 9, 12].map(|page| page + sum));
        assert_eq!(read[5], 100);
    }
    assert!(program.space.put_off.is_none());
    assert_eq!(program.space.waits().count(), 2, "its faults and its agent");
}

mod forks;
mod leaving;
