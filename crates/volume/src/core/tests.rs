use super::*;
use crate::layouts::Layouts;
use crate::marks::Soundness;

const PAGES: u64 = 1000;

/// Written pages 0 to 7 of a volume that is on its way from rs:8+2 to rs:2+1; 4 to 7 are there.
pub fn restriping() -> Core {
    let scheme = |text: &str| -> crate::Scheme { text.parse().unwrap() };
    let slab_bytes = 1 << 16;
    let shape = Shape {
        layouts: Layouts::new(LayoutId::First, scheme("rs:8+2"), slab_bytes, PAGES),
        resilience: Resilience::of(scheme("rs:8+2")),
        slab_bytes,
        size_bytes: PAGES * PAGE_BYTES as u64,
        host_count: 10,
        return_max: crate::RETURN_MAX,
    };
    let marks = Marks::anonymous(PAGES).unwrap();
    let (flights, wake) = (Flights::new().unwrap(), Waker::new().unwrap());
    let core = Core::new(shape, marks, None, flights, None, wake, ticking);
    core.layouts.prepare().unwrap();
    core.layouts.begin(Cut::of(scheme("rs:2+1")));
    for page in 0..8 {
        core.pages.marks.written.insert(page);
        core.pages.marks.doubt(page);
    }
    for page in 4..8 {
        core.layouts.pass(page, LayoutId::Second);
    }
    core
}

fn soundness(core: &Core) -> [Soundness; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|page| core.pages.marks.soundness(page))
}

#[test]
fn an_extent_that_lost_a_split_tears_only_pages_that_it_has() {
    use Soundness::{Doubtful, Torn};
    let core = restriping();
    let (old, new) = (LayoutId::First.extent(0), LayoutId::Second.extent(0));
    core.tear_doubtful(old, 2..8);
    let [d, t] = [Doubtful, Torn];
    assert_eq!(soundness(&core), [d, d, t, t, d, d, d, d]);
    core.tear_doubtful(new, 0..6);
    assert_eq!(soundness(&core), [d, d, t, t, t, t, d, d]);
}

#[test]
fn a_page_whose_splits_disagree_is_torn_only_where_it_is() {
    let core = restriping();
    let (old, new) = (LayoutId::First.extent(0), LayoutId::Second.extent(0));
    for page in 0..8 {
        core.pages.marks.heal(page);
    }
    assert!(core.tear(old, 5), "it has gone from there");
    assert_eq!(core.pages.marks.soundness(5), Soundness::Sound);
    assert!(core.tear(new, 5));
    assert_eq!(core.pages.marks.soundness(5), Soundness::Torn);
    // Whoever has it may be about to bring it to the other layout.
    assert!(core.pages.claims.try_claim(1));
    assert!(!core.tear(old, 1));
    core.pages.claims.release(1);
    assert_eq!(core.pages.marks.soundness(1), Soundness::Sound);
    assert!(core.tear(old, 1));
    assert_eq!(core.pages.marks.soundness(1), Soundness::Torn);
    core.layouts.turn(LayoutId::Second);
    core.layouts.end();
    assert!(core.tear(new, 6));
    assert_eq!(
        core.pages.marks.soundness(6),
        Soundness::Torn,
        "at rest as well"
    );
}

#[test]
fn an_extent_holds_what_is_in_its_layout() {
    let core = restriping();
    let (old, new) = (LayoutId::First.extent(0), LayoutId::Second.extent(0));
    assert_eq!((core.held_count(old), core.held_count(new)), (4, 4));
    assert_eq!(
        (core.held(old, 0, 100), core.held(new, 0, 100)),
        (Some(0), Some(4))
    );
    assert_eq!(core.held(old, 4, 100), None);
    for page in 0..4 {
        core.layouts.pass(page, LayoutId::Second);
    }
    assert!(!core.holds(old) && core.holds(new));
    core.layouts.end();
    assert!(!core.holds(old) && core.holds(new));
    assert_eq!((core.held_count(old), core.held_count(new)), (0, 8));
}

/// A tenth of a second later each time it is asked.
fn ticking() -> Time {
    static NANOS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    Time(NANOS.fetch_add(100_000_000, std::sync::atomic::Ordering::Relaxed))
}
