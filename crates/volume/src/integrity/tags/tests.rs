//! Tags through the lives of their owners.

use super::*;
use crate::SealKey;

const PAGES: u64 = 1 << 15;

fn sealed(byte: u8) -> Protection {
    Protection::Sealed(SealKey::new([byte; 32]))
}

struct Owner {
    marks: Marks,
    tags: Tags,
}

fn owner(files: &(File, File), protection: &Protection) -> Result<Owner, TagsError> {
    let marks = match Marks::take_over(&files.0, 3, PAGES) {
        Ok(marks) => marks,
        Err(_) => Marks::create(&files.0, 3, PAGES)?,
    };
    let tags = Tags::in_file(&files.1, protection, 3, PAGES, &marks)?;
    let tags = tags.expect("protected");
    Ok(Owner { marks, tags })
}

fn files() -> (File, File) {
    (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap())
}

fn write(owner: &Owner, slot: usize, page: u64, tag: Tag) {
    owner.tags.stage(slot, page, &tag);
    owner.marks.begin_write(slot, page);
}

fn end(owner: &Owner, slot: usize, page: u64, tag: Tag) {
    owner.tags.commit(slot, page, &tag);
    owner.marks.end_write(slot, page);
}

#[test]
fn the_next_owner_knows_the_old_tag_and_the_new() {
    let files = files();
    let first = owner(&files, &Protection::Checksum).unwrap();
    write(&first, 0, 5, [50, 0, 0]);
    end(&first, 0, 5, [50, 0, 0]);
    write(&first, 1, 5, [51, 0, 0]);
    write(&first, 2, 6, [60, 0, 0]);
    drop(first);
    let second = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(second.marks.soundness(5), Soundness::Doubtful);
    assert_eq!(second.tags.load(5), [50, 0, 0]);
    let pending: Vec<Tag> = second.tags.pending(5).collect();
    assert_eq!(pending, [[51, 0, 0]]);
    assert_eq!(second.tags.pending(6).count(), 0, "it held nothing before");
    drop(second);
    let third = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(third.tags.pending(5).count(), 1, "until it is decided");
    write(&third, 0, 5, [52, 0, 0]);
    end(&third, 0, 5, [52, 0, 0]);
    assert_eq!(third.tags.pending(5).count(), 0);
    assert_eq!(third.tags.load(5), [52, 0, 0]);
}

#[test]
fn a_write_that_failed_leaves_both_until_one_is_whole() {
    let files = files();
    let owner = owner(&files, &Protection::Checksum).unwrap();
    write(&owner, 0, 5, [50, 0, 0]);
    end(&owner, 0, 5, [50, 0, 0]);
    for tag in [51, 52] {
        write(&owner, 3, 5, [tag, 0, 0]);
        assert!(owner.tags.fail(3));
        owner.marks.fail_write(3);
    }
    assert_eq!(owner.tags.load(5), [50, 0, 0]);
    let pending: Vec<u64> = owner.tags.pending(5).map(|tag| tag[0]).collect();
    assert_eq!(pending, [51, 52]);
    owner.tags.forget_pending(5);
    assert_eq!(owner.tags.pending(5).count(), 0);
}

#[test]
fn what_was_made_otherwise_is_refused_and_stays_as_it_was() {
    let files = files();
    let first = owner(&files, &sealed(1)).unwrap();
    write(&first, 0, 5, [1, 2, 3]);
    end(&first, 0, 5, [1, 2, 3]);
    drop(first);
    let refused = |protection| owner(&files, &protection).err();
    assert!(matches!(refused(sealed(2)), Some(TagsError::Key)));
    let other = refused(Protection::Checksum);
    assert!(matches!(other, Some(TagsError::Other { .. })));
    let marks = Marks::take_over(&files.0, 3, PAGES).unwrap();
    let none = Tags::in_file(&files.1, &Protection::None, 3, PAGES, &marks);
    assert!(matches!(none, Err(TagsError::Other { .. })));
    let again = owner(&files, &sealed(1)).unwrap();
    assert_eq!(again.tags.load(5), [1, 2, 3]);
}

#[test]
fn checksums_stay_what_they_were_and_a_later_version_is_refused() {
    let files = files();
    let page = [7; crate::PAGE_BYTES];
    let first = owner(&files, &Protection::Checksum).unwrap();
    assert_eq!(first.tags.checksum(&page), xxh3(&page));
    write(&first, 0, 5, [1, 0, 0]);
    end(&first, 0, 5, [1, 0, 0]);
    drop(first);
    let map = Arc::new(MmapRaw::map_raw(&files.1).unwrap());
    let magic = |bytes: &[u8; 8]| {
        let header = Words::new(&map, 0, HEADER_WORDS);
        header.as_slice()[0].store(u64::from_le_bytes(*bytes), Ordering::Release);
    };
    magic(b"cenoteT1");
    for _ in 0..2 {
        let next = owner(&files, &Protection::Checksum).unwrap();
        assert_eq!(next.tags.checksum(&page), crc64(&page));
    }
    magic(b"cenoteT3");
    let refused = owner(&files, &Protection::Checksum).err();
    assert!(matches!(refused, Some(TagsError::Version)));
    magic(b"cenoteP1");
    let refused = owner(&files, &Protection::Checksum).err();
    assert!(matches!(refused, Some(TagsError::Other { .. })));
}

#[test]
fn pages_of_an_unprotected_volume_have_no_tags_to_take_over() {
    let files = files();
    let marks = Marks::create(&files.0, 3, PAGES).unwrap();
    assert!(
        Tags::in_file(&files.1, &Protection::None, 3, PAGES, &marks)
            .unwrap()
            .is_none()
    );
    marks.begin_write(0, 7);
    marks.end_write(0, 7);
    let refused = Tags::in_file(&files.1, &Protection::Checksum, 3, PAGES, &marks);
    assert!(matches!(refused, Err(TagsError::Other { .. })));
}

#[test]
fn a_tag_takes_less_than_a_hundredth_of_its_page() {
    for (protection, bytes) in [(Protection::Checksum, 8), (sealed(1), 24)] {
        let tags = Tags::anonymous(&protection, 3, PAGES).unwrap().unwrap();
        assert_eq!(tags.bytes_per_page(), bytes);
        assert!(bytes * 100 < crate::PAGE_BYTES);
    }
}
