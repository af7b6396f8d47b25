use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::PAGE_BYTES;

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
fn a_run_is_never_empty_while_its_first_page_changes() {
    let marks = Marks::anonymous(1000).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                marks.written.insert(7);
                marks.written.remove(7);
            }
        });
        let mut runs = (0..1_000_000).map(|_| marks.written.run(7, 9));
        let empty = runs.find(|(_, change)| change.is_some_and(|page| page <= 7));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(empty, None);
    });
}

#[test]
fn a_doubtful_page_is_torn_once_it_lacks_a_split_and_sound_once_written() {
    let marks = Marks::anonymous(1000).unwrap();
    marks.doubt(7);
    marks.doubt(7);
    assert_eq!(marks.soundness(7), Soundness::Doubtful);
    assert_eq!(marks.soundness(8), Soundness::Sound);
    marks.tear_doubtful(8, 1000);
    assert_eq!(marks.soundness(7), Soundness::Doubtful);
    marks.tear_doubtful(0, 8);
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

/// What stands behind marks.
struct Files {
    pages: File,
    images: File,
}

impl Files {
    fn new() -> Self {
        let [pages, images] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        Self { pages, images }
    }

    fn all(&self) -> MarksFiles<'_> {
        MarksFiles {
            pages: &self.pages,
            images: &self.images,
            epoch: 0,
        }
    }

    /// Marks that have room for the images of every slot.
    fn create(&self) -> Marks {
        let marks = Marks::create(self.all(), 42, 1000).unwrap();
        marks.reserve_slots(0..IN_FLIGHT_MAX).unwrap();
        marks
    }

    fn take_over(&self) -> Marks {
        Marks::take_over(self.all(), 42, 1000).unwrap()
    }
}

fn page_of(byte: u8) -> [u8; PAGE_BYTES] {
    [byte; PAGE_BYTES]
}

/// Slots and pages of the writes that are to be redone, and the byte that each makes of its page.
fn unfinished(marks: &Marks) -> Vec<(usize, u64, u8)> {
    let bytes_of = |write: Unfinished| {
        let mut image = page_of(0xee);
        marks.image(write, &mut image);
        assert!(image.iter().all(|&byte| byte == image[0]), "{write:?}");
        image[0]
    };
    let all = marks.unfinished().into_iter();
    all.map(|write| (write.slot, write.page, bytes_of(write)))
        .collect()
}

#[test]
fn the_next_owner_finds_what_is_written_in_flight_and_torn() {
    let files = Files::new();
    let marks = files.create();
    for page in [3, 4, 999] {
        marks.written.insert(page);
    }
    assert!(!marks.begin_write(0, 3, &page_of(30)));
    assert!(!marks.begin_write(IN_FLIGHT_MAX - 1, 999, &page_of(99)));
    assert!(!marks.begin_write(17, 4, &page_of(40)));
    marks.end_write(17, 4);
    assert!(
        marks.begin_write(18, 6, &page_of(60)),
        "a page that held no data ..."
    );
    marks.doubt(5);
    marks.tear_doubtful(5, 6);
    drop(marks);
    // It may have grown meanwhile.
    let marks = Marks::take_over(files.all(), 42, 100_000).unwrap();
    assert_eq!(marks.written.count(0, 100_000), 3);
    assert_eq!(
        marks.doubtful_pages(0, 100_000).collect::<Vec<_>>(),
        [3, 999]
    );
    assert!(!marks.written.contains(6), "... holds none again");
    assert_eq!(marks.soundness(4), Soundness::Sound);
    assert_eq!(marks.soundness(5), Soundness::Torn);
    let last = IN_FLIGHT_MAX - 1;
    assert_eq!(unfinished(&marks), [(0, 3, 30), (last, 999, 99)]);
    // An owner that ends before it has redone them leaves them as they are.
    marks.end_write(0, 3);
    drop(marks);
    let marks = files.take_over();
    assert_eq!(unfinished(&marks), [(last, 999, 99)]);
    assert_eq!(marks.doubtful_pages(0, 1000).collect::<Vec<_>>(), [999]);
    // And one that cannot redo them leaves a page whose write ended unknown.
    marks.fail_write(last);
    drop(marks);
    let marks = files.take_over();
    assert_eq!(unfinished(&marks), []);
    assert_eq!(marks.soundness(999), Soundness::Doubtful);
    marks.heal(999);
    marks.heal(5);
    assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
}

#[test]
fn what_was_acknowledged_is_redone_though_its_page_held_nothing_before() {
    let files = Files::new();
    let marks = files.create();
    assert!(marks.begin_write(7, 6, &page_of(60)));
    marks.commit(7);
    drop(marks);
    let marks = files.take_over();
    assert!(marks.written.contains(6));
    assert_eq!(marks.soundness(6), Soundness::Torn, "until it is redone");
    assert_eq!(unfinished(&marks), [(7, 6, 60)]);
    marks.end_write(7, 6);
    assert_eq!(marks.soundness(6), Soundness::Sound);
}

#[test]
fn images_have_room_on_the_disk_before_they_are_used() {
    let files = Files::new();
    let marks = Marks::create(files.all(), 42, 1000).unwrap();
    let on_disk = || files.images.metadata().unwrap().blocks() * 512;
    let before = on_disk();
    let slots = 256..512;
    marks.reserve_slots(slots.clone()).unwrap();
    assert!(on_disk() >= before + (slots.len() * PAGE_BYTES) as u64);
    assert!(Marks::anonymous(1000).unwrap().reserve_slots(slots).is_ok());
}

/// The process may be killed at any store. What a slot names is what its image was when it was named.
#[test]
fn a_slot_names_a_page_only_while_its_image_is_whole() {
    let files = Files::new();
    let marks = files.create();
    marks.written.insert(3);
    marks.begin_write(5, 3, &page_of(1));
    marks.end_write(5, 3);
    // Killed in the middle of the next image: the slot names nothing.
    let torn = [&page_of(2)[..100], &page_of(1)[100..]].concat();
    files
        .images
        .write_all_at(&torn, ((1 + 5) * PAGE_BYTES) as u64)
        .unwrap();
    drop(marks);
    let marks = files.take_over();
    assert_eq!(unfinished(&marks), []);
    assert_eq!(marks.soundness(3), Soundness::Sound);
}

#[test]
fn images_of_nobody_of_another_volume_and_of_another_boot_are_not_redone() {
    // A word of the images' header that is changed; `None`: the whole file is gone.
    for word in [Some(0), Some(1), Some(2), Some(3), Some(4), None] {
        let files = Files::new();
        let marks = files.create();
        marks.written.insert(3);
        marks.begin_write(5, 3, &page_of(1));
        drop(marks);
        match word {
            Some(word) => files.images.write_all_at(&[0xa5; 8], word * 8).unwrap(),
            None => files.images.set_len(0).unwrap(),
        }
        let marks = files.take_over();
        assert_eq!(unfinished(&marks), [], "{word:?}");
        assert_eq!(marks.soundness(3), Soundness::Doubtful, "{word:?}");
    }
}

#[test]
fn marks_of_another_volume_or_another_boot_are_refused() {
    let files = Files::new();
    assert!(matches!(
        Marks::take_over(files.all(), 42, 1000),
        Err(MarksError::Foreign)
    ));
    let marks = files.create();
    assert!(matches!(
        Marks::take_over(files.all(), 43, 1000),
        Err(MarksError::Foreign)
    ));
    // Word 3 begins the boot's number.
    let map = Arc::new(MmapRaw::map_raw(&files.pages).unwrap());
    Words::new(&map, 0, HEADER_WORDS).as_slice()[3].fetch_add(1, Ordering::Relaxed);
    drop(marks);
    assert!(matches!(
        Marks::take_over(files.all(), 42, 1000),
        Err(MarksError::Restarted)
    ));
}

/// Its pages would read as zeros.
#[test]
fn a_file_that_was_cut_short_is_refused_and_stays_as_it_is() {
    let files = Files::new();
    drop(files.create());
    let whole = files.pages.metadata().unwrap().len();
    files.take_over();
    let cut = (len_bytes(1000).unwrap() - 1) as u64;
    assert!(cut < whole);
    files.pages.set_len(cut).unwrap();
    for pages in [1000_u64, 10, 100_000] {
        let taken_over = Marks::take_over(files.all(), 42, pages).map(drop);
        assert!(matches!(taken_over, Err(MarksError::CutShort)));
        assert_eq!(files.pages.metadata().unwrap().len(), cut);
        let fresh = Marks::without_slabs(files.all(), 42, 1000).map(drop);
        assert!(matches!(fresh, Err(MarksError::CutShort)));
    }
}

#[test]
fn marks_that_are_refused_take_no_more_of_the_disk() {
    let files = Files::new();
    drop(files.create());
    let room = || {
        let metadata = files.pages.metadata().unwrap();
        (metadata.len(), metadata.blocks())
    };
    let (before, larger) = (room(), 1 << 24);
    let other = Marks::take_over(files.all(), 43, larger);
    assert!(matches!(other, Err(MarksError::Foreign)));
    assert_eq!(room(), before);
    // Word 3 begins the boot's number.
    files.pages.write_all_at(&[0xa5; 8], 3 * 8).unwrap();
    let earlier = Marks::take_over(files.all(), 42, larger);
    assert!(matches!(earlier, Err(MarksError::Restarted)));
    assert_eq!(room(), before);
}

#[test]
fn a_page_healed_while_doubtful_pages_are_torn_is_sound_and_counted_once() {
    let marks = Marks::anonymous(1000).unwrap();
    for page in 0..1000 {
        marks.doubt(page);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| marks.tear_doubtful(0, 1000));
        scope.spawn(|| (0..1000).for_each(|page| marks.heal(page)));
    });
    assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
    assert_eq!(marks.torn.count(0, 1000) + marks.doubtful.count(0, 1000), 0);
}

/// The control thread and a worker both learn that a data split is lost.
#[test]
fn pages_that_two_tear_at_a_time_are_torn_and_counted_once() {
    let marks = Marks::anonymous(1000).unwrap();
    for _ in 0..200 {
        (0..1000).for_each(|page| marks.doubt(page));
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| marks.tear_doubtful(0, 1000)));
            both.into_iter().for_each(|tears| tears.join().unwrap());
        });
        assert_eq!(marks.torn.count(0, 1000), 1000);
        assert_eq!(marks.troubled.load(Ordering::Relaxed), 1000);
        std::thread::scope(|scope| {
            scope.spawn(|| marks.tear_doubtful(0, 1000));
            scope.spawn(|| (0..1000).for_each(|page| marks.heal(page)));
        });
        assert_eq!(marks.torn.count(0, 1000), 0);
        assert_eq!(marks.troubled.load(Ordering::Relaxed), 0);
    }
}

/// A reader that finds it sound would decode it from parities that do not fit.
#[test]
fn a_page_is_never_sound_while_it_is_torn() {
    let marks = Marks::anonymous(1000).unwrap();
    for _ in 0..2000 {
        marks.doubt(7);
        std::thread::scope(|scope| {
            scope.spawn(|| marks.tear_doubtful(7, 8));
            while marks.soundness(7) != Soundness::Torn {
                assert_ne!(marks.soundness(7), Soundness::Sound);
            }
        });
        marks.heal(7);
    }
}

#[test]
fn marks_without_slabs_keep_what_is_lost() {
    let files = Files::new();
    let marks = Marks::without_slabs(files.all(), 42, 1000).unwrap();
    marks.written.insert(7);
    drop(marks);
    let marks = Marks::without_slabs(files.all(), 42, 1000).unwrap();
    assert!(marks.written.contains(7), "lost, and no zeros");
    marks.disown();
    drop(marks);
    let marks = Marks::without_slabs(files.all(), 42, 1000).unwrap();
    assert_eq!(marks.written.count(0, 1000), 0);
}

#[test]
#[should_panic(expected = "slot 5 has page 3, and is to have page 7")]
fn a_slot_that_has_a_page_takes_no_other() {
    let files = Files::new();
    let marks = files.create();
    marks.begin_write(5, 3, &page_of(30));
    marks.begin_write(5, 7, &page_of(70));
}

/// An owner of this epoch ends in good order, with a page of each block of the volume.
fn end_in_good_order(files: &Files, epoch: u64, pages: u64) {
    let mut all = files.all();
    all.epoch = epoch - 1;
    let marks = Marks::create(all, 42, pages).unwrap();
    (0..pages).step_by(32768).for_each(|page| {
        marks.written.insert(page);
    });
    marks.sum_up();
}

fn flip(file: &File, at: u64, mask: u8) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ mask], at).unwrap();
}

/// What an owner finds that comes after `epoch` others: pages that hold data, and torn ones.
fn found(files: &Files, epoch: u64, pages: u64) -> Result<(u64, u64), MarksError> {
    let mut all = files.all();
    all.epoch = epoch;
    let marks = Marks::take_over(all, 42, pages)?;
    Ok((marks.written.count(0, pages), marks.torn_count(0, pages)))
}

const BITS_AT: u64 = 16896 * 8;
const BLOCK_BYTES: u64 = 3 * 512 * 8;

#[test]
fn a_bit_that_flipped_since_it_was_summed_is_put_right() {
    // One block to a group, and three.
    for pages in [4 * 32768 - 5_u64, 1200 * 32768] {
        let files = Files::new();
        let blocks = pages.div_ceil(32768);
        for at in [0, 4096, 8192, BLOCK_BYTES - 1, 3 * BLOCK_BYTES] {
            end_in_good_order(&files, 5, pages);
            flip(&files.pages, BITS_AT + at, 1);
            assert_eq!(found(&files, 5, pages).unwrap(), (blocks, 0), "byte {at}");
        }
    }
}

#[test]
fn what_flipped_more_than_once_tears_its_group_alone() {
    let files = Files::new();
    let pages = 4 * 32768 - 5;
    end_in_good_order(&files, 5, pages);
    flip(&files.pages, BITS_AT + BLOCK_BYTES + 7, 0b101);
    assert_eq!(found(&files, 5, pages).unwrap(), (32768 + 3, 32768));
    // The last one ends with the volume.
    end_in_good_order(&files, 5, pages);
    flip(&files.pages, BITS_AT + 3 * BLOCK_BYTES, 0b11);
    let last = 32768 - 5;
    assert_eq!(found(&files, 5, pages).unwrap(), (last + 3, last));
    // And the next owner finds the same, without sums.
    assert_eq!(found(&files, 6, pages).unwrap(), (last + 3, last));
}

#[test]
fn sums_count_for_the_owner_that_follows_the_one_that_made_them() {
    let files = Files::new();
    let pages = 2 * 32768;
    // An owner that knows no sums, the sixth, has stored since.
    end_in_good_order(&files, 5, pages);
    flip(&files.pages, BITS_AT, 0b110);
    assert_eq!(found(&files, 6, pages).unwrap(), (4, 0));
    // An owner was killed that came after the one that summed.
    end_in_good_order(&files, 5, pages);
    assert_eq!(found(&files, 5, pages).unwrap(), (2, 0));
    flip(&files.pages, BITS_AT, 0b110);
    assert_eq!(found(&files, 5, pages).unwrap(), (4, 0));
    // The sums themselves are damaged: nothing is concluded from them.
    end_in_good_order(&files, 5, pages);
    flip(&files.pages, 16 * 8, 1);
    assert_eq!(found(&files, 5, pages).unwrap(), (2, 0));
}

#[test]
fn a_list_that_flipped_since_it_was_summed_is_an_error_if_a_page_was_on_it() {
    let files = Files::new();
    let marks = files.create();
    assert!(marks.begin_write(3, 7, &page_of(1)));
    marks.sum_up();
    flip(&files.pages, 515 * 8, 1);
    for _ in 0..2 {
        let damaged = found(&files, 1, 1000);
        assert!(matches!(damaged, Err(MarksError::Damaged { at: 4096 })));
    }
    flip(&files.pages, 515 * 8, 1);
    // Back as it was, it is taken over: a page that held nothing holds none.
    assert_eq!(found(&files, 1, 1000).unwrap(), (0, 0));
}
