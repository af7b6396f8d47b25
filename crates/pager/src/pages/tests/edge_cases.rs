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
