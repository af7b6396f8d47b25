//! Lists of slabs that come page by page while slabs come and go.

use cenote_wire::Window;
use proptest::prelude::*;

use super::*;

fn slab(number: u64) -> HeldSlab {
    HeldSlab {
        volume: 7,
        extent: u32::try_from(number).unwrap(),
        member: 0,
        window: Window {
            id: u32::try_from(number).unwrap(),
            generation: number,
            len_bytes: 1 << 20,
            rights: 7,
        },
    }
}

/// A page as a host makes it.
fn page(held: &[HeldSlab], skip: u32) -> &[HeldSlab] {
    let rest = held.get(skip as usize..).unwrap_or_default();
    &rest[..rest.len().min(HELD_SLABS_MAX)]
}

proptest! {
    /// Whatever goes and comes between two pages: a list that is taken for whole is what the host
    /// holds when it makes the last page.
    #[test]
    fn a_whole_list_is_what_the_host_holds(
        count in 0..1200_u64,
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u64), 0..12),
    ) {
        let mut held: Vec<HeldSlab> = (0..count).map(slab).collect();
        let (mut made, mut changes) = (count, changes.into_iter());
        let mut listing = HeldList::default();
        listing.request();
        let mut skip = listing.begin().unwrap();
        for _ in 0..200 {
            match listing.handle_page(skip, page(&held, skip)) {
                Page::Whole(listed) => {
                    prop_assert_eq!(listed, held);
                    prop_assert!(listing.is_idle());
                    return Ok(());
                }
                Page::Next(next) => skip = next,
                Page::Void => skip = listing.begin().expect("due again"),
                Page::TooMany => unreachable!("a host has fewer"),
            }
            if let Some((at, added)) = changes.next() {
                if !held.is_empty() {
                    held.remove(at.index(held.len()));
                }
                held.extend((made..made + added).map(slab));
                made += added;
            }
        }
        prop_assert!(false, "it ends once nothing changes");
    }
}

#[test]
fn who_asks_meanwhile_gets_a_list_that_was_begun_later() {
    let mut listing = HeldList::default();
    assert_eq!(listing.begin(), None, "nobody wants to know");
    listing.request();
    assert_eq!(listing.begin(), Some(0));
    listing.request();
    assert_eq!(listing.begin(), None, "one at a time");
    assert_eq!(
        listing.handle_page(0, &[slab(1)]),
        Page::Whole(vec![slab(1)])
    );
    assert_eq!(listing.begin(), Some(0));
    listing.forget();
    let late = listing.handle_page(0, &[slab(1)]);
    assert_eq!(late, Page::Void, "an answer to nothing");
    assert_eq!(listing.begin(), None);
}

#[test]
fn a_host_that_answers_something_else_is_not_believed() {
    let mut listing = HeldList::default();
    listing.request();
    listing.begin().unwrap();
    assert_eq!(listing.handle_page(5, &[slab(1)]), Page::Void);
    assert!(listing.is_idle());
}

#[test]
fn a_list_is_begun_again_when_a_slab_in_it_has_changed() {
    let held: Vec<HeldSlab> = (0..300).map(slab).collect();
    let mut listing = HeldList::default();
    listing.request();
    assert_eq!(listing.begin(), Some(0));
    // Nothing is listed yet.
    listing.note_changed();
    assert_eq!(listing.handle_page(0, page(&held, 0)), Page::Next(255));
    listing.note_changed();
    assert_eq!(listing.handle_page(255, page(&held, 255)), Page::Void);
    assert_eq!(listing.begin(), Some(0));
    assert_eq!(listing.handle_page(0, page(&held, 0)), Page::Next(255));
    let whole = listing.handle_page(255, page(&held, 255));
    assert_eq!(whole, Page::Whole(held));
}

#[test]
fn a_host_that_lists_without_end_is_not_listened_to() {
    let mut listing = HeldList::default();
    listing.request();
    let (mut skip, mut next) = (listing.begin().unwrap(), 0);
    let end = loop {
        let first = u64::from(skip);
        next += 1;
        assert!(next < 5000, "it ends");
        let made: Vec<HeldSlab> = (first..first + 256).map(slab).collect();
        match listing.handle_page(skip, &made) {
            Page::Next(after) => skip = after,
            end => break end,
        }
    };
    assert_eq!(end, Page::TooMany);
    assert!(listing.is_idle());
}
