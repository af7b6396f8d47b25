//! Pages on their way out, and an agent that is slow.

use super::*;

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
