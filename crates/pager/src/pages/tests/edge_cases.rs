//! Single rules of [`Pages`].

use super::*;

#[test]
fn room_that_becomes_less_is_kept_again() {
    let mut pages = Pages::new(64, 32);
    for page in 0..30 {
        pages.fault(page, true, Duration::ZERO);
    }
    pages.set_room(16, Duration::ZERO);
    loop {
        match pages.next_action() {
            Some(Action::Write(page)) => {
                pages.write_done(page, Some(WrittenAs::Bytes), Duration::ZERO)
            }
            Some(Action::Zero(page)) => {
                pages.zero_done(page, Duration::ZERO);
            }
            Some(_) => {}
            None => break,
        }
    }
    assert!(pages.resident() <= 16, "{}", pages.resident());
}

#[test]
fn a_page_that_gets_zeros_is_not_chosen_before_and_may_be_discarded() {
    let mut pages = Pages::new(64, 16);
    for page in 0..16 {
        pages.fault(page, true, Duration::ZERO);
    }
    // Room for none: what is on its way in cannot go.
    pages.set_room(8, Duration::ZERO);
    assert!(pages.discard(3, Duration::ZERO));
    let actions: Vec<Action> = std::iter::from_fn(|| pages.next_action()).collect();
    assert_eq!(actions, (0..16).map(Action::Zero).collect::<Vec<_>>());
    assert_eq!(pages.zero_done(3, Duration::ZERO), Arrival::Ignore);
    assert_eq!(pages.resident(), 15);
    assert_eq!(pages.next_action(), None);
    let install = Arrival::Install { protected: false };
    assert_eq!(pages.zero_done(4, Duration::ZERO), install);
    assert_eq!(pages.next_action(), Some(Action::Protect(4)));
}

#[test]
fn a_thread_that_faults_again_and_again_waits_once() {
    let mut pages = Pages::new(64, 8);
    for page in 0..8 {
        pages.fault(page, true, Duration::ZERO);
    }
    for page in [20, 21].into_iter().cycle().take(1_000) {
        pages.fault(page, page == 20, Duration::ZERO);
    }
    // What one fault of a page asks for, all get.
    pages.fault(21, true, Duration::ZERO);
    pages.fault(21, false, Duration::ZERO);
    assert_eq!(pages.waiting.len(), 2);
    assert_eq!(pages.waiting, [(20, true), (21, true)]);
    assert_eq!(pages.counters().waits, 2);
}

/// Does what the pages want, but for writes, which stay under way.
fn serve_reads(pages: &mut Pages, now: Duration) {
    while let Some(action) = pages.next_action() {
        match action {
            Action::Read(page) => {
                pages.read_done(page, true, now);
            }
            Action::Zero(page) => {
                pages.zero_done(page, now);
            }
            _ => {}
        }
    }
}

#[test]
fn what_is_read_does_not_wait_for_writes_that_do_not_end() {
    const ROOM: u32 = 32;
    let mut pages = Pages::new(256, ROOM);
    for page in &mut pages.pages {
        (page.is_stored, page.state) = (true, State::Stored);
    }
    let mut now = Duration::ZERO;
    // In no order, so that nothing is read ahead.
    let scattered = |index: u32| index * index % 251;
    // Pages are written to until writes begin, of which none ends.
    let mut written = Vec::new();
    while pages.writing == 0 {
        let page = scattered(written.len() as u32);
        pages.fault(page, true, now);
        serve_reads(&mut pages, now);
        written.push(page);
    }
    for index in 0..100 {
        let page = scattered(index);
        pages.fault(page, false, now);
        serve_reads(&mut pages, now);
        if !pages.is_resident(page) {
            // The handler looks again when it is told to.
            now += pages.deadline(now).expect("something is to be tried again");
            pages.tick(now);
            serve_reads(&mut pages, now);
        }
        assert!(pages.is_resident(page), "{index}");
    }
    // What was written to is here still: nobody else has it.
    assert!(written.iter().all(|page| pages.is_resident(*page)));
    assert!(pages.resident() <= ROOM);
}

#[test]
fn a_page_that_is_read_and_then_written_comes_back_writable_mostly() {
    const ROOM: u32 = 32;
    let mut pages = Pages::new(256, ROOM);
    for page in &mut pages.pages {
        (page.is_stored, page.state) = (true, State::Stored);
    }
    let now = Duration::ZERO;
    // Does what the pages want, until `page` is gone.
    let push_out = |pages: &mut Pages, page: u32| {
        for other in (0..45).cycle().map(|index| 100 + index * index % 151) {
            while let Some(action) = pages.next_action() {
                match action {
                    Action::Read(page) => _ = pages.read_done(page, true, now),
                    Action::Write(page) => pages.write_done(page, Some(WrittenAs::Bytes), now),
                    _ => {}
                }
            }
            if !pages.is_resident(page) {
                return;
            }
            pages.fault(other, false, now);
        }
    };
    // Reads the page, and writes to it if that is a fault: how it had come back.
    let visit = |pages: &mut Pages, page: u32, writes: bool| {
        pages.fault(page, false, now);
        serve_reads(pages, now);
        let came_writable = pages.is_writable(page);
        if writes && !came_writable {
            pages.fault(page, true, now);
        }
        push_out(pages, page);
        came_writable
    };
    assert!(!visit(&mut pages, 3, true), "nothing is known of it");
    let writable = (0..32).filter(|_| visit(&mut pages, 3, true)).count();
    assert_eq!(writable, 28, "one in eight comes back protected");
    // Once nobody writes to it any more, that one is seen.
    let writable = (0..32).filter(|_| visit(&mut pages, 3, false)).count();
    assert_eq!(writable, 7);
    // What is only read is never writable.
    assert!((0..32).all(|_| !visit(&mut pages, 4, false)));
}

/// Pages of which so many are lost.
fn lost(count: u32) -> Pages {
    let mut pages = Pages::new(256, 64);
    for page in 0..count {
        (
            pages.pages[page as usize].is_stored,
            pages.pages[page as usize].state,
        ) = (true, State::Stored);
    }
    for page in 0..count {
        pages.fault(page, false, Duration::ZERO);
        while let Some(action) = pages.next_action() {
            if let Action::Read(page) = action {
                pages.read_done(page, false, Duration::ZERO);
            }
        }
    }
    assert_eq!(pages.counters().lost, u64::from(count));
    pages
}

/// The pages that are read next, and what else is to be done.
fn reads(pages: &mut Pages) -> (Vec<u32>, Vec<Action>) {
    let (mut reads, mut others) = (Vec::new(), Vec::new());
    while let Some(action) = pages.next_action() {
        match action {
            Action::Read(page) => reads.push(page),
            action => others.push(action),
        }
    }
    (reads, others)
}

#[test]
fn a_page_that_was_out_of_reach_is_there_again() {
    const COUNT: u32 = 100;
    let mut pages = lost(COUNT);
    let mut now = Duration::ZERO;
    pages.retry_lost(now);
    assert_eq!(pages.next_action(), None, "a host needs time to come back");
    // Each has its turn while none can be read, and they begin again.
    let mut seen = Vec::new();
    while seen.len() < COUNT as usize + 20 {
        now += pages.deadline(now).expect("they are to be read again");
        pages.retry_lost(now);
        let (read, others) = reads(&mut pages);
        assert!((1..=BATCH_MAX as usize).contains(&read.len()) && others.is_empty());
        for page in &read {
            assert_eq!(pages.read_done(*page, false, now), Arrival::Ignore);
        }
        seen.extend(read);
    }
    assert!(seen.iter().copied().eq((0..COUNT).cycle().take(seen.len())));
    // Once one can be read, all are tried without a pause.
    now += pages.deadline(now).expect("they are to be read again");
    let mut unpoisoned = Vec::new();
    loop {
        pages.retry_lost(now);
        let (read, others) = reads(&mut pages);
        unpoisoned.extend(others);
        if read.is_empty() {
            break;
        }
        for page in read {
            assert_eq!(pages.read_done(page, true, now), Arrival::Ignore);
        }
    }
    assert_eq!(unpoisoned.len(), COUNT as usize);
    assert!(
        unpoisoned
            .iter()
            .all(|action| matches!(action, Action::Unpoison(_)))
    );
    assert_eq!((pages.deadline(now), pages.resident()), (None, 0));
    // A fault reads it as any other.
    pages.fault(7, false, now);
    assert_eq!(pages.next_action(), Some(Action::Read(7)));
}

#[test]
fn a_lost_page_that_is_discarded_is_not_read_again() {
    let mut pages = lost(2);
    let now = pages
        .deadline(Duration::ZERO)
        .expect("they are to be read again");
    pages.retry_lost(now);
    assert_eq!(reads(&mut pages).0, [0, 1]);
    assert_eq!(pages.read_done(0, false, now), Arrival::Ignore);
    for page in [0, 1] {
        assert!(pages.discard(page, now));
    }
    // One that is being read is erased when that has ended.
    assert_eq!(pages.next_action(), Some(Action::Drop(0)));
    assert_eq!(pages.next_action(), Some(Action::Erase(0)));
    assert_eq!(pages.next_action(), Some(Action::Drop(1)));
    assert_eq!(pages.next_action(), None);
    assert_eq!(pages.read_done(1, true, now), Arrival::Ignore);
    assert_eq!(pages.next_action(), Some(Action::Erase(1)));
    assert_eq!((pages.deadline(now), pages.resident()), (None, 0));
}
