//! Pages on their way out, and an agent that is slow; and pages that are out of reach for a while.

use cenote_volume::IoError;

use super::forks::{fork_and_access, fork_and_ask};
use super::*;
use crate::shares::LEAVING_MAX;

impl Program {
    /// Pages that are in memory, as the kernel counts them.
    fn present(&self) -> u32 {
        let pages = self.space.layout.count() - 1;
        let mut there = vec![0_u8; pages as usize];
        let at = self.word(1) as *mut libc::c_void;
        let len = pages as usize * PAGE_BYTES;
        // SAFETY: the range is of the test's mapping, and `there` has a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(at, len, there.as_mut_ptr()) }, 0);
        there.iter().map(|page| u32::from(page & 1)).sum()
    }
}

#[test]
fn an_agent_that_says_nothing_does_not_exceed_the_room() {
    const ALL: u32 = 600;
    const ROOM: u32 = 64;
    let Some(mut program) = Program::of_pages(ALL, Turn::shared()) else {
        return;
    };
    program.space.set_room(ROOM, &mut program.store);
    // Every page is written, and then read: some come with bytes, and some as zeros.
    let words: Vec<usize> = (1..=ALL).map(|page| program.word(page)).collect();
    let thread = thread::spawn(move || {
        for (value, at) in (1..).zip(&words) {
            access(*at, Some(value));
        }
        words.iter().map(|at| access(*at, None)).collect::<Vec<_>>()
    });
    let (mut most, mut waits) = (0, 0);
    while !thread.is_finished() {
        program.turn();
        most = most.max(program.present());
        assert!(most <= ROOM + LEAVING_MAX, "{most} pages are in memory");
        // The agent answers when nothing else can happen.
        let space = &program.space;
        let held = [
            space.held_faults.len(),
            space.held_zeros.len(),
            space.held_ends.len(),
        ];
        let is_quiet = space.in_flight == space.held_ends.len() as u32;
        if is_quiet && held.iter().any(|count| *count > 0) && program.drop_pages() {
            waits += 1;
            program.say_gone();
        }
    }
    let read = thread.join().expect("the thread ends");
    assert!(read.into_iter().eq(1..=u64::from(ALL)));
    assert!(waits > 0 && most > ROOM, "{waits} waits, {most} pages");
}

/// Whether a system call can read a page's first byte. It says EFAULT where a thread gets SIGBUS.
fn can_be_read(at: usize) -> bool {
    let file = tempfile::tempfile().expect("a file");
    // SAFETY: the kernel checks the address.
    let written = unsafe { libc::write(file.as_raw_fd(), at as *const libc::c_void, 1) };
    let error = io::Error::last_os_error().raw_os_error();
    assert!(written == 1 || error == Some(libc::EFAULT), "{error:?}");
    written == 1
}

#[test]
fn a_page_that_was_out_of_reach_is_there_again() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    program.space.set_room(8, &mut program.store);
    while program.space.pages.is_resident(1) || !program.space.leaving.is_empty() {
        program.go_on();
    }
    // Nobody answers for the first page.
    program.fault(&[1]);
    let mut done = Vec::new();
    while done.is_empty() {
        program.store.ends(&mut done);
    }
    for mut end in done {
        let (_, page, purpose) = untag(end.tag);
        if (page, purpose) == (1, Purpose::Read) {
            end.result = Err(IoError::Lost);
        }
        program.space.end(page, purpose, end, &mut program.store);
    }
    assert_eq!(program.space.counters().lost, 1);
    let at = program.word(1);
    assert!(!can_be_read(at));
    // It can be read, and its poison is on its way out while the program forks.
    program.wait_until_gone();
    program.until(|space| space.leaving.poisoned().next().is_some());
    let forked = fork_and_ask(program.space.layout.doorbell() as usize);
    program.until(|space| !space.children.is_empty());
    let mut child = program.space.children.pop().expect("a child was forked");
    while !forked.is_finished() {
        child.turn(&mut program.store);
    }
    // The child has it to read again by itself.
    child.pages.retry_lost(Duration::MAX);
    assert_eq!(child.pages.next_action(), Some(Action::Read(1)));
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 1);
    assert!(can_be_read(at));
}

#[test]
fn a_child_writes_to_a_page_of_its_own_that_is_out_of_reach() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page)));
    }
    // The first page is on its way out while the program forks: the child has it.
    program.space.set_room(8, &mut program.store);
    program.until(|space| space.leaving.is_sent(1));
    let forked = fork_and_access(program.word(1), Some(77));
    program.until(|space| !space.children.is_empty());
    let mut child = program.space.children.pop().expect("a child was forked");
    assert!(child.pages.is_stored(1) && !child.pages.is_resident(1));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !forked.is_finished() {
        assert!(Instant::now() < deadline, "the child waits for ever");
        child.turn(&mut program.store);
        let mut done = Vec::new();
        program.store.ends(&mut done);
        for mut end in done {
            let (_, page, purpose) = untag(end.tag);
            assert_eq!((page, purpose), (1, Purpose::Read));
            end.result = Err(IoError::Lost);
            child.end(page, purpose, end, &mut program.store);
        }
    }
    assert_eq!(forked.join().expect("the thread ends"), 77);
    assert_eq!(child.counters().lost, 0);
    assert!(child.pages.is_writable(1) && child.pages.resident() > 0);
    program.wait_until_gone();
    assert_eq!(program.touch(1, None), 1);
}
