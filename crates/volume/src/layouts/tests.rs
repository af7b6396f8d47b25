use super::*;

fn cut(scheme: &str) -> Cut {
    Cut::of(scheme.parse().unwrap())
}

fn layouts() -> Layouts {
    Layouts::new(LayoutId::First, "rs:8+2".parse().unwrap(), 1 << 16, 1000)
}

#[test]
fn a_page_is_where_its_bit_says_and_the_rest_stays() {
    let layouts = layouts();
    let before = layouts.locate(130);
    layouts.prepare().unwrap();
    layouts.begin(cut("rs:2+1"));
    assert_eq!(layouts.locate(130), before, "it begins with nothing moved");
    layouts.pass(130, layouts.target());
    assert_eq!(LayoutId::of(layouts.locate(130).extent), LayoutId::Second);
    assert_eq!(layouts.locate(130).cut, cut("rs:2+1"));
    assert_eq!(LayoutId::of(layouts.locate(129).extent), LayoutId::First);
    let there = layouts.next_in(LayoutId::Second, 0, 1000);
    assert_eq!(
        (there, layouts.next_in(LayoutId::Second, 131, 1000)),
        (Some(130), None)
    );
    assert_eq!(layouts.next_in(LayoutId::First, 130, 131), None);
    assert_eq!(layouts.next_in(LayoutId::First, 130, 132), Some(131));
}

#[test]
fn a_change_ends_the_next_begins_and_one_is_taken_back() {
    let layouts = layouts();
    for (to, scheme) in [(LayoutId::Second, "mirror:2"), (LayoutId::First, "rs:4+1")] {
        layouts.prepare().unwrap();
        layouts.begin(cut(scheme));
        assert_eq!(layouts.target(), to);
        for page in 0..1000 {
            layouts.pass(page, to);
        }
        let places: Vec<PageLocation> = (0..1000).map(|page| layouts.locate(page)).collect();
        layouts.end();
        assert!(!layouts.is_mixed() && layouts.has(to) && !layouts.has(to.other()));
        for (page, place) in (0..).zip(places) {
            assert_eq!(layouts.locate(page), place, "it ends with everything moved");
            assert_eq!(place.cut, cut(scheme));
        }
    }
    layouts.prepare().unwrap();
    layouts.begin(cut("rs:8+2"));
    layouts.pass(5, LayoutId::Second);
    layouts.turn(LayoutId::First);
    assert_eq!(
        LayoutId::of(layouts.locate(5).extent),
        LayoutId::Second,
        "until it is moved back"
    );
    layouts.pass(5, LayoutId::First);
    layouts.end();
    assert_eq!(layouts.locate(5).cut, cut("rs:4+1"));
}

/// The volume need not end where an extent of either layout does.
#[test]
fn an_extent_has_no_pages_past_the_last() {
    let layouts = layouts();
    layouts.prepare().unwrap();
    layouts.begin(cut("rs:32+2"));
    let layout = layouts.layout(LayoutId::Second);
    assert_eq!(layout.extent_pages(), 512);
    assert_eq!(layouts.pages(LayoutId::Second.extent(1)), 512..1000);
    assert_eq!(layouts.pages(LayoutId::Second.extent(2)), 1000..1000);
    assert_eq!(layouts.pages(LayoutId::First.extent(7)), 896..1000);
}

/// Its owner died in the middle of a change, and another volume, or another boot, has the file now.
#[test]
fn bits_that_are_refused_take_no_more_of_the_disk() {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    let file = tempfile::tempfile().unwrap();
    let kept = |volume, page_count| {
        let scheme = "rs:8+2".parse().unwrap();
        let layouts = Layouts::new(LayoutId::First, scheme, 1 << 16, page_count);
        layouts.keep(file.try_clone().unwrap(), volume)
    };
    let room = || {
        let metadata = file.metadata().unwrap();
        (metadata.len(), metadata.blocks())
    };
    kept(42, 1000).prepare().unwrap();
    let (before, other) = (room(), "rs:2+1".parse().unwrap());
    let foreign = kept(43, 1 << 24).take_over(other);
    assert!(matches!(foreign, Err(MarksError::Foreign)));
    assert_eq!(room(), before);
    // Word 3 begins the boot's number.
    file.write_all_at(&[0xa5; 8], 3 * 8).unwrap();
    let restarted = kept(42, 1 << 24).take_over(other);
    assert!(matches!(restarted, Err(MarksError::Restarted)));
    assert_eq!(room(), before);
}
