use super::*;

fn cut(scheme: &str) -> Cut {
    Cut::of(scheme.parse().unwrap())
}

fn sides() -> Sides {
    Sides::new(Side::First, "rs:8+2".parse().unwrap(), 1 << 16, 1000)
}

#[test]
fn a_page_is_where_its_bit_says_and_the_rest_stays() {
    let sides = sides();
    let before = sides.locate(130);
    sides.prepare().unwrap();
    sides.begin(cut("rs:2+1"));
    assert_eq!(sides.locate(130), before, "it begins with nothing moved");
    sides.pass(130, sides.target());
    assert_eq!(Side::of(sides.locate(130).extent), Side::Second);
    assert_eq!(sides.locate(130).cut, cut("rs:2+1"));
    assert_eq!(Side::of(sides.locate(129).extent), Side::First);
    let there = sides.next_on(Side::Second, 0, 1000);
    assert_eq!(
        (there, sides.next_on(Side::Second, 131, 1000)),
        (Some(130), None)
    );
    assert_eq!(sides.next_on(Side::First, 130, 131), None);
    assert_eq!(sides.next_on(Side::First, 130, 132), Some(131));
}

#[test]
fn a_change_ends_the_next_begins_and_one_is_taken_back() {
    let sides = sides();
    for (to, scheme) in [(Side::Second, "mirror:2"), (Side::First, "rs:4+1")] {
        sides.prepare().unwrap();
        sides.begin(cut(scheme));
        assert_eq!(sides.target(), to);
        for page in 0..1000 {
            sides.pass(page, to);
        }
        let places: Vec<Place> = (0..1000).map(|page| sides.locate(page)).collect();
        sides.end();
        assert!(!sides.is_mixed() && sides.has(to) && !sides.has(to.other()));
        for (page, place) in (0..).zip(places) {
            assert_eq!(sides.locate(page), place, "it ends with everything moved");
            assert_eq!(place.cut, cut(scheme));
        }
    }
    sides.prepare().unwrap();
    sides.begin(cut("rs:8+2"));
    sides.pass(5, Side::Second);
    sides.turn(Side::First);
    assert_eq!(
        Side::of(sides.locate(5).extent),
        Side::Second,
        "until it is moved back"
    );
    sides.pass(5, Side::First);
    sides.end();
    assert_eq!(sides.locate(5).cut, cut("rs:4+1"));
}

/// The volume need not end where an extent of either side does.
#[test]
fn an_extent_has_no_pages_past_the_last() {
    let sides = sides();
    sides.prepare().unwrap();
    sides.begin(cut("rs:32+2"));
    let layout = sides.layout(Side::Second);
    assert_eq!(layout.extent_pages(), 512);
    assert_eq!(sides.pages(Side::Second.extent(1)), 512..1000);
    assert_eq!(sides.pages(Side::Second.extent(2)), 1000..1000);
    assert_eq!(sides.pages(Side::First.extent(7)), 896..1000);
}
