use super::*;

#[test]
fn next_and_count_match_a_plain_array() {
    let marks = Marks::anonymous(100_000).unwrap();
    let pages = [0_u64, 1, 63, 64, 127, 200, 299, 32_767, 32_768, 99_999];
    for &page in &pages {
        assert!(marks.written.insert(page));
        assert!(!marks.written.insert(page));
    }
    assert!(marks.written.insert(5) && marks.written.remove(5));
    assert!(!marks.written.remove(5));
    for from in (0..300).chain([32_000, 32_768, 99_999]) {
        for end in [from, from + 1, 64, 65, 250, 300, 32_768, 32_769, 100_000] {
            let model = pages
                .iter()
                .copied()
                .filter(|&page| page >= from && page < end);
            assert_eq!(
                marks.written.next(from, end, true),
                model.clone().min(),
                "{from}..{end}"
            );
            if end >= from {
                assert_eq!(
                    marks.written.count(from, end),
                    model.count() as u64,
                    "{from}..{end}"
                );
            }
        }
    }
    assert_eq!(marks.written.next(63, 300, false), Some(65));
}

#[test]
fn a_doubtful_page_is_torn_once_condemned_and_sound_once_written() {
    let marks = Marks::anonymous(1000).unwrap();
    marks.doubt(7);
    marks.doubt(7);
    assert_eq!(marks.soundness(7), Soundness::Doubtful);
    assert_eq!(marks.soundness(8), Soundness::Sound);
    marks.condemn(8, 1000);
    assert_eq!(marks.soundness(7), Soundness::Doubtful);
    marks.condemn(0, 8);
    assert_eq!(marks.soundness(7), Soundness::Torn);
    marks.doubt(7);
    assert_eq!(
        marks.soundness(7),
        Soundness::Torn,
        "it does not get better"
    );
    assert_eq!(
        (marks.torn_count(0, 1000), marks.torn_count(8, 1000)),
        (1, 0)
    );
    marks.heal(7);
    assert_eq!(marks.soundness(7), Soundness::Sound);
    assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
}

#[test]
fn the_next_owner_finds_what_is_written_in_flight_and_torn() {
    let file = tempfile::tempfile().unwrap();
    let marks = Marks::create(&file, 42, 1000).unwrap();
    for page in [3, 4, 999] {
        marks.written.insert(page);
    }
    assert!(!marks.begin_write(0, 3));
    assert!(!marks.begin_write(IN_FLIGHT_MAX - 1, 999));
    assert!(!marks.begin_write(17, 4));
    marks.end_write(17, 4);
    assert!(marks.begin_write(18, 6), "a page that held no data ...");
    marks.doubt(5);
    marks.condemn(5, 6);
    drop(marks);
    // It may have grown meanwhile.
    let marks = Marks::take_over(&file, 42, 100_000).unwrap();
    assert_eq!(marks.written.count(0, 100_000), 3);
    assert_eq!(
        marks.doubtful_pages(0, 100_000).collect::<Vec<_>>(),
        [3, 999]
    );
    assert!(!marks.written.contains(6), "... holds none again");
    assert_eq!(marks.soundness(4), Soundness::Sound);
    assert_eq!(marks.soundness(5), Soundness::Torn);
    // An owner that ends before it healed them leaves them as doubtful.
    drop(marks);
    let marks = Marks::take_over(&file, 42, 1000).unwrap();
    assert_eq!(marks.doubtful_pages(0, 1000).count(), 2);
    marks.heal(3);
    marks.heal(999);
    marks.heal(5);
    assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
}

#[test]
fn marks_of_another_volume_or_another_boot_are_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(
        Marks::take_over(&file, 42, 1000),
        Err(MarksError::Foreign)
    ));
    let marks = Marks::create(&file, 42, 1000).unwrap();
    assert!(matches!(
        Marks::take_over(&file, 43, 1000),
        Err(MarksError::Foreign)
    ));
    // Word 3 begins the boot's number.
    let map = Arc::new(MmapRaw::map_raw(&file).unwrap());
    Words::new(&map, 0, HEADER_WORDS).as_slice()[3].fetch_add(1, Ordering::Relaxed);
    drop(marks);
    assert!(matches!(
        Marks::take_over(&file, 42, 1000),
        Err(MarksError::Restarted)
    ));
}

#[test]
fn a_page_healed_while_it_is_condemned_is_sound_and_counted_once() {
    let marks = Marks::anonymous(1000).unwrap();
    for page in 0..1000 {
        marks.doubt(page);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| marks.condemn(0, 1000));
        scope.spawn(|| (0..1000).for_each(|page| marks.heal(page)));
    });
    assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
    assert_eq!(marks.torn.count(0, 1000) + marks.doubtful.count(0, 1000), 0);
}

#[test]
fn marks_without_slabs_keep_what_is_lost() {
    let file = tempfile::tempfile().unwrap();
    let marks = Marks::without_slabs(&file, 42, 1000).unwrap();
    marks.written.insert(7);
    drop(marks);
    let marks = Marks::without_slabs(&file, 42, 1000).unwrap();
    assert!(marks.written.contains(7), "lost, and no zeros");
    marks.disown();
    drop(marks);
    let marks = Marks::without_slabs(&file, 42, 1000).unwrap();
    assert_eq!(marks.written.count(0, 1000), 0);
}
