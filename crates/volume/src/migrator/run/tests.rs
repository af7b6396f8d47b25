use super::*;
use crate::core::tests::restriping;
use crate::extents::LayoutId;

#[test]
fn written_pages_are_asked_for_and_the_others_go_by_their_bit() {
    let core = restriping();
    let mut run = Run::new(2..20);
    assert_eq!(run.advance(&core), Some(2..8));
    assert_eq!(
        core.layouts.id_of(2),
        LayoutId::First,
        "that is the request's"
    );
    run.handle_moved(true);
    assert_eq!(run.advance(&core), None);
    assert!(run.is_whole);
    for page in 8..20 {
        assert_eq!(core.layouts.id_of(page), LayoutId::Second);
    }
    assert_eq!(core.layouts.id_of(20), LayoutId::First);
}

#[test]
fn what_could_not_be_moved_is_told() {
    let core = restriping();
    let mut run = Run::new(0..9);
    assert!(run.advance(&core).is_some());
    run.handle_moved(false);
    assert_eq!(run.advance(&core), None);
    assert!(!run.is_whole);
    assert!(core.pages.claims.try_claim(12));
    let mut run = Run::new(10..14);
    assert_eq!(run.advance(&core), None);
    assert!(!run.is_whole, "somebody writes one of them");
    let layouts = [10, 11, 12, 13].map(|page| core.layouts.id_of(page));
    assert_eq!(
        layouts.map(|layout_id| layout_id == LayoutId::Second),
        [true, true, false, true]
    );
}

/// More than a worker has operations for.
#[test]
fn a_request_is_not_longer_than_a_worker_is_wide() {
    let core = restriping();
    for page in 8..RUN_PAGES + 8 {
        core.pages.marks.written.insert(page);
    }
    let mut run = Run::new(0..RUN_PAGES + 8);
    assert_eq!(run.advance(&core), Some(0..RUN_PAGES));
    assert_eq!(run.advance(&core), Some(RUN_PAGES..RUN_PAGES + 8));
    assert_eq!(run.advance(&core), None);
}
